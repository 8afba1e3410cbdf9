/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/slice.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"

_Static_assert((int)VK_SLICE_DEVICE_LOCAL == VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT &&
		       (int)VK_SLICE_HOST_VISIBLE == VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT &&
		       (int)VK_SLICE_HOST_COHERENT == VK_MEMORY_PROPERTY_HOST_COHERENT_BIT &&
		       (int)VK_SLICE_HOST_CACHED == VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
	"flags are Vulkan's");

static bool is_within(uint64_t offset, uint64_t n_bytes, const struct vk_memory *m)
{
	return offset <= m->n_bytes && n_bytes <= m->n_bytes - offset;
}

int vk_slice_set_names(struct vk_memory *m, const struct vk_slice_name *names, uint32_t n_names,
	struct err *ret_err)
{
	struct vk_slice_name *copy = NULL;

	if (m->slices)
		return err_set(ret_err, EINVAL, "memory %s: its slices have names", m->name);
	for (uint32_t i = 0; i < n_names; i++)
		if (!names[i].n_bytes || !is_within(names[i].offset, names[i].n_bytes, m))
			return err_set(ret_err, EINVAL,
				"memory %s: slice %.47s: expected some of %" PRIu64
				" bytes, found %" PRIu64 " at %" PRIu64,
				m->name, names[i].name, m->n_bytes, names[i].n_bytes,
				names[i].offset);
	if (n_names == 0)
		return 0;
	copy = reallocarray(NULL, n_names, sizeof(*copy));
	if (!copy)
		return err_set(ret_err, ENOMEM, "memory %s: no memory for names", m->name);
	memcpy(copy, names, n_names * sizeof(*copy));
	for (uint32_t i = 0; i < n_names; i++)
		copy[i].name[VK_SLICE_NAME_BYTES - 1] = '\0';
	pthread_mutex_lock(&m->d->books.lock);
	m->slices = copy;
	m->n_slices = n_names;
	pthread_mutex_unlock(&m->d->books.lock);
	return 0;
}

int vk_slice_find(
	struct vk_memory *m, const char *name, struct err *ret_err, struct vk_slice *ret_slice)
{
	for (uint32_t i = 0; i < m->n_slices; i++) {
		if (strcmp(m->slices[i].name, name))
			continue;
		*ret_slice = (struct vk_slice){.memory = m,
			.offset = m->slices[i].offset,
			.n_bytes = m->slices[i].n_bytes};
		return 0;
	}
	return err_set(ret_err, ENOENT, "memory %s: no slice %s", m->name, name);
}

/* The slice's own name, else that of what it is a part of; NULL: it has none. */
static const char *find_name(const struct vk_slice *s)
{
	const struct vk_memory *m = s->memory;
	const char *around = NULL;

	for (uint32_t i = 0; i < m->n_slices; i++) {
		const struct vk_slice_name *n = &m->slices[i];

		if (s->offset < n->offset || s->offset - n->offset >= n->n_bytes ||
			s->n_bytes > n->n_bytes - (s->offset - n->offset))
			continue;
		if (s->offset == n->offset && s->n_bytes == n->n_bytes)
			return n->name;
		if (!around)
			around = n->name;
	}
	return around;
}

int vk_slice_map(const struct vk_slice *s, struct err *ret_err, void **ret_pointer)
{
	const char *name = find_name(s);
	void *base;

	if (!is_within(s->offset, s->n_bytes, s->memory))
		return err_set(ret_err, EINVAL,
			"memory %s: slice of %" PRIu64 " bytes at %" PRIu64
			": expected some of %" PRIu64 " bytes",
			s->memory->name, s->n_bytes, s->offset, s->memory->n_bytes);
	int r = vk_memory_map(s->memory, ret_err, &base);
	if (r && name)
		err_prefix(ret_err, "slice %s", name);
	else if (r)
		err_prefix(
			ret_err, "slice of %" PRIu64 " bytes at %" PRIu64, s->n_bytes, s->offset);
	else
		*ret_pointer = (uint8_t *)base + s->offset;
	return r;
}

/* What is to be filled, and how much of it is. */
struct list {
	struct vk_slice_place *places;
	uint32_t n_room;
	uint32_t n;
};

static void add(struct list *l, const struct vk_memory *m, const char *name, uint64_t n_bytes)
{
	const VkMemoryType *type = &m->d->types.memoryTypes[m->type_index];
	uint32_t n_there = l->n < l->n_room ? l->n : l->n_room;

	for (uint32_t i = 0; i < n_there; i++) {
		struct vk_slice_place *p = &l->places[i];

		if (p->role != m->role || p->type != m->type_index ||
			p->is_spilled != m->is_spilled ||
			strncmp(p->name, name, VK_SLICE_NAME_BYTES - 1))
			continue;
		p->n++;
		p->n_total_bytes += n_bytes;
		if (n_bytes > p->n_bytes)
			p->n_bytes = n_bytes;
		return;
	}
	if (l->n++ >= l->n_room)
		return;
	struct vk_slice_place *p = &l->places[n_there];
	*p = (struct vk_slice_place){
		.role = m->role,
		.n = 1,
		.n_bytes = n_bytes,
		.n_total_bytes = n_bytes,
		.heap = type->heapIndex,
		.type = m->type_index,
		.flags = type->propertyFlags &
			 (VK_SLICE_DEVICE_LOCAL | VK_SLICE_HOST_VISIBLE | VK_SLICE_HOST_COHERENT |
				 VK_SLICE_HOST_CACHED),
		.is_spilled = m->is_spilled,
	};
	memccpy(p->name, name, '\0', VK_SLICE_NAME_BYTES - 1);
}

uint32_t vk_slice_get_places(
	const struct vk_device *d, struct vk_slice_place *ret_places, uint32_t n_room)
{
	struct vk_memory_books *books = (struct vk_memory_books *)&d->books;
	struct list l = {.places = ret_places, .n_room = n_room};
	const struct vk_memory *m;

	pthread_mutex_lock(&books->lock);
	for (m = books->first; m && m->next; m = m->next)
		;
	for (; m; m = m->previous) {
		for (uint32_t i = 0; i < m->n_slices; i++)
			add(&l, m, m->slices[i].name, m->slices[i].n_bytes);
		if (!m->n_slices)
			add(&l, m, m->name, m->n_bytes);
	}
	pthread_mutex_unlock(&books->lock);
	return l.n;
}
