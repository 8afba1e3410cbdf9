/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"
#include "vk/result.h"
#include "vk/type.h"

/* What vk_memory_get_address promises: kernels load vectors, and GPUs fetch whole lines. */
enum {
	ADDRESS_ALIGN = 256,
	DEDICATED_MIN_BYTES = 2 << 20, /* a large page: less would take one all the same */
};

static const char *const role_names[VK_MEMORY_N_ROLES] = {
	[VK_MEMORY_WEIGHTS] = "weights",
	[VK_MEMORY_KV] = "kv",
	[VK_MEMORY_SCRATCH] = "scratch",
	[VK_MEMORY_STAGING] = "staging",
	[VK_MEMORY_IO] = "io",
};

const char *vk_memory_role_name(enum vk_memory_role role)
{
	return (unsigned)role < VK_MEMORY_N_ROLES ? role_names[role] : "unknown";
}

VkExternalMemoryHandleTypeFlagBits vk_memory_handle_bit(enum vk_handle handle)
{
	return handle == VK_HANDLE_DMA_BUF ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT
					   : VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
}

bool vk_memory_is_shared(const struct vk_memory *m)
{
	return m->handle_bit &&
	       m->handle_bit != VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
}

int vk_memory_start(struct vk_device *d, enum vk_memory_role role, const char *name,
	uint64_t n_bytes, struct err *ret_err, struct vk_memory **ret_memory)
{
	if ((unsigned)role >= VK_MEMORY_N_ROLES)
		return err_set(
			ret_err, EINVAL, "memory %s: no role %u", name ? name : "", (unsigned)role);
	if (!name)
		name = role_names[role];
	if (n_bytes == 0)
		return err_set(ret_err, EINVAL, "memory %s: no bytes", name);
	if (n_bytes > d->info.max_alloc_bytes)
		return err_set(ret_err, EINVAL,
			"memory %s: expected at most %" PRIu64 " bytes, found %" PRIu64, name,
			d->info.max_alloc_bytes, n_bytes);
	if (d->is_lost) {
		(void)err_set(ret_err, EIO, "memory %s: the device is lost", name);
		return VK_DEVICE_LOST;
	}
	if (d->is_poisoned)
		return err_set(ret_err, ENOTRECOVERABLE,
			"memory %s: device %s refused to import host memory and must be made anew",
			name, d->info.name);
	struct vk_memory *m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(ret_err, ENOMEM, "memory %s: no memory", name);
	m->d = d;
	m->role = role;
	m->n_bytes = n_bytes;
	snprintf(m->name, sizeof(m->name), "%s", name);
	*ret_memory = m;
	return 0;
}

int vk_memory_make_buffer(
	struct vk_memory *m, struct err *ret_err, struct vk_memory_needs *ret_needs)
{
	VkExternalMemoryBufferCreateInfo external = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
		.handleTypes = m->handle_bit | m->other_bit,
	};
	/* Both lines of work use all memory, without passing ownership to and fro. */
	uint32_t families[VK_QUEUE_N] = {
		m->d->queues[VK_QUEUE_COMPUTE].family, m->d->queues[VK_QUEUE_TRANSFER].family};
	bool is_concurrent = vk_device_is_concurrent(m->d);
	VkBufferCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.pNext = m->handle_bit ? &external : NULL,
		.size = m->n_bytes,
		.usage = VK_MEMORY_BUFFER_USAGE,
		.sharingMode =
			is_concurrent ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
		.queueFamilyIndexCount = is_concurrent ? VK_QUEUE_N : 0,
		.pQueueFamilyIndices = is_concurrent ? families : NULL,
	};
	VkMemoryDedicatedRequirements dedicated = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS};
	VkMemoryRequirements2 needs = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2, .pNext = &dedicated};

	VkResult r = vk_device_note(m->d, vkCreateBuffer(m->d->device, &info, NULL, &m->buffer));
	if (r != VK_SUCCESS) {
		m->buffer = VK_NULL_HANDLE;
		return vk_result_fail(
			r, ret_err, "memory %s: buffer of %" PRIu64 " bytes", m->name, m->n_bytes);
	}
	vk_device_name(m->d, VK_OBJECT_TYPE_BUFFER, (uint64_t)(uintptr_t)m->buffer, m->name);
	vkGetBufferMemoryRequirements2(m->d->device,
		&(VkBufferMemoryRequirementsInfo2){
			.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_REQUIREMENTS_INFO_2,
			.buffer = m->buffer},
		&needs);
	*ret_needs = (struct vk_memory_needs){
		.n_bytes = needs.memoryRequirements.size,
		.type_bits = needs.memoryRequirements.memoryTypeBits,
		.wants_dedicated = dedicated.requiresDedicatedAllocation,
	};
	return 0;
}

VkResult vk_memory_allocate(struct vk_memory *m, const void *next)
{
	VkMemoryAllocateFlagsInfo flags = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
		.pNext = next,
		.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
	};
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = &flags,
		.allocationSize = m->alloc_bytes,
		.memoryTypeIndex = m->type_index,
	};

	VkResult r = vk_device_note(m->d, vkAllocateMemory(m->d->device, &info, NULL, &m->memory));
	if (r != VK_SUCCESS)
		m->memory = VK_NULL_HANDLE;
	return r;
}

static VkResult allocate(struct vk_memory *m, uint32_t type_index)
{
	VkMemoryDedicatedAllocateInfo dedicated = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO,
		.buffer = m->buffer,
	};
	VkExportMemoryAllocateInfo export = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
		.pNext = m->is_dedicated ? &dedicated : NULL,
		.handleTypes = m->handle_bit | m->other_bit,
	};
	const VkPhysicalDeviceMemoryProperties *types = &m->d->types;

	/* More than the heap holds is invalid to ask for, not merely refused. */
	if (m->alloc_bytes > types->memoryHeaps[types->memoryTypes[type_index].heapIndex].size)
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	m->type_index = type_index;
	return vk_memory_allocate(m, m->handle_bit ? (const void *)&export : export.pNext);
}

static int refuse_bytes(
	const struct vk_memory *m, VkResult result, uint32_t type_index, struct err *ret_err)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint32_t heap = m->d->types.memoryTypes[type_index].heapIndex;

	vk_device_query_heaps(m->d, heaps);
	return vk_result_fail(result, ret_err,
		"memory %s (%s): wanted %" PRIu64 " bytes of heap %u, budget %" PRIu64
		", used %" PRIu64 ", heap %" PRIu64,
		m->name, vk_memory_role_name(m->role), m->alloc_bytes, heap,
		heaps[heap].budget_bytes, heaps[heap].usage_bytes, heaps[heap].n_bytes);
}

/*
 * Drivers over-commit host memory and lose the device at submit, so what spills there and weights
 * that are put there must fit into the budget.
 */
static bool is_within_budget(const struct vk_memory *m, uint32_t type_index)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	const struct vk_device_heap *h = &heaps[m->d->types.memoryTypes[type_index].heapIndex];

	vk_device_query_heaps(m->d, heaps);
	return h->usage_bytes <= h->budget_bytes &&
	       m->alloc_bytes <= h->budget_bytes - h->usage_bytes;
}

/* The types of the role in order. The error is that of the type where the memory belongs. */
static int allocate_ranked(struct vk_memory *m, uint32_t type_bits, struct err *ret_err)
{
	struct vk_type_list list;
	VkResult first = VK_SUCCESS;

	vk_type_rank(&m->d->types, type_bits, m->is_host ? VK_MEMORY_IO : m->role, &list);
	if (m->is_home_only)
		list.n = list.n_home;
	if (list.n)
		m->home_heap = m->d->types.memoryTypes[list.indices[0]].heapIndex;
	for (uint32_t i = 0; i < list.n; i++) {
		bool is_spill = i >= list.n_home;
		VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;

		if (!(is_spill || m->is_host) || is_within_budget(m, list.indices[i]))
			r = allocate(m, list.indices[i]);
		if (r == VK_SUCCESS) {
			m->is_spilled = is_spill;
			return 0;
		}
		if (i == 0)
			first = r;
		if (r != VK_ERROR_OUT_OF_DEVICE_MEMORY)
			return refuse_bytes(m, r, list.indices[i], ret_err);
	}
	if (list.n == 0)
		return err_set(ret_err, ENOTSUP,
			"memory %s: the device has no memory type for %s among 0x%x", m->name,
			vk_memory_role_name(m->role), type_bits);
	return refuse_bytes(m, first, list.indices[0], ret_err);
}

/* n_bytes: of m, negated (modulo 2^64) when they go. */
static void count_bytes(const struct vk_memory *m, uint64_t n_bytes,
	struct vk_memory_counter *counter, bool is_home, bool is_here)
{
	uint64_t *bytes = m->is_imported  ? &counter->imported_bytes
			  : m->is_spilled ? &counter->spilled_bytes
					  : &counter->placed_bytes;

	if (is_home && !m->is_imported)
		counter->requested_bytes += n_bytes;
	if (!is_here)
		return;
	*bytes += n_bytes;
	if (m->is_spilled && n_bytes == m->alloc_bytes)
		counter->n_spills++;
	uint64_t n_now = counter->placed_bytes + counter->spilled_bytes;
	if (n_now > counter->peak_bytes)
		counter->peak_bytes = n_now;
}

static void count(const struct vk_memory *m, uint64_t n_bytes)
{
	struct vk_memory_books *books = &m->d->books;
	uint32_t here = vk_memory_get_heap_index(m);

	count_bytes(m, n_bytes, &books->roles[m->role], true, true);
	count_bytes(m, n_bytes, &books->heaps[m->role][here], here == m->home_heap, true);
	if (here != m->home_heap)
		count_bytes(m, n_bytes, &books->heaps[m->role][m->home_heap], true, false);
}

static void enter(struct vk_memory *m)
{
	struct vk_memory_books *books = &m->d->books;

	pthread_mutex_lock(&books->lock);
	m->is_counted = true;
	count(m, m->alloc_bytes);
	if (!m->is_imported) {
		m->next = books->first;
		if (m->next)
			m->next->previous = m;
		books->first = m;
	}
	pthread_mutex_unlock(&books->lock);
}

static void leave(struct vk_memory *m)
{
	struct vk_memory_books *books = &m->d->books;

	if (!m->is_counted)
		return;
	pthread_mutex_lock(&books->lock);
	count(m, -m->alloc_bytes);
	if (m->next)
		m->next->previous = m->previous;
	if (m->previous)
		m->previous->next = m->next;
	if (books->first == m)
		books->first = m->next;
	pthread_mutex_unlock(&books->lock);
}

int vk_memory_finish(struct vk_memory *m, struct err *ret_err)
{
	struct vk_device *d = m->d;

	VkResult r = vk_device_note(d, vkBindBufferMemory(d->device, m->buffer, m->memory, 0));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "memory %s: bind", m->name);
	vk_device_name(d, VK_OBJECT_TYPE_DEVICE_MEMORY, (uint64_t)(uintptr_t)m->memory, m->name);
	m->address = vkGetBufferDeviceAddress(d->device,
		&(VkBufferDeviceAddressInfo){.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
			.buffer = m->buffer});
	if (!m->address || m->address % ADDRESS_ALIGN)
		return err_set(ret_err, EIO,
			"memory %s: address: expected a multiple of %d, found 0x%" PRIx64, m->name,
			ADDRESS_ALIGN, m->address);
	if (m->is_mapped) {
		r = vk_device_note(
			d, vkMapMemory(d->device, m->memory, 0, VK_WHOLE_SIZE, 0, &m->map));
		if (r != VK_SUCCESS) {
			m->map = NULL;
			return vk_result_fail(r, ret_err, "memory %s: map", m->name);
		}
	}
	enter(m);
	return 0;
}

static int make_memory(
	struct vk_memory *m, VkExternalMemoryFeatureFlags handle_features, struct err *ret_err)
{
	struct vk_memory_needs needs;

	int r = vk_memory_make_buffer(m, ret_err, &needs);
	if (r)
		return r;
	/* An importer holds the size that it is told against the same limit. */
	if (needs.n_bytes > m->d->info.max_alloc_bytes)
		return err_set(ret_err, EINVAL,
			"memory %s: %" PRIu64 " bytes take an allocation of %" PRIu64
			", expected at most %" PRIu64,
			m->name, m->n_bytes, needs.n_bytes, m->d->info.max_alloc_bytes);
	m->alloc_bytes = needs.n_bytes;
	/* Memory that may serve many buffers is mapped by small pages at once: 20 ms a GiB on an
	 * H200, 1 ms when it is its one buffer's. Exported so, it is allocated as fast and takes
	 * each importer twice as long, 23 ms a GiB instead of 11. */
	m->is_dedicated = needs.wants_dedicated ||
			  (handle_features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) ||
			  (!m->handle_bit && needs.n_bytes >= DEDICATED_MIN_BYTES);
	r = allocate_ranked(m, needs.type_bits, ret_err);
	if (r)
		return r;
	return vk_memory_finish(m, ret_err);
}

/* What is asked for besides bytes of a role. */
static int check_kind(
	const struct vk_memory *m, const struct vk_memory_params *params, struct err *ret_err)
{
	const struct vk_device_info *info = &m->d->info;

	if (params->is_host && m->role != VK_MEMORY_WEIGHTS)
		return err_set(ret_err, EINVAL,
			"memory %s: only weights choose to lie in host memory, %s do not", m->name,
			vk_memory_role_name(m->role));
	if (!params->is_exportable)
		return 0;
	if (m->role != VK_MEMORY_WEIGHTS && m->role != VK_MEMORY_KV)
		return err_set(ret_err, EINVAL, "memory %s: %s memory is never exported", m->name,
			vk_memory_role_name(m->role));
	if ((unsigned)params->handle >= VK_HANDLE_N)
		return err_set(ret_err, EINVAL, "memory %s: no handle kind %u", m->name,
			(unsigned)params->handle);
	if (params->handle == VK_HANDLE_OPAQUE_FD ? info->has_export_fd : info->has_export_dma_buf)
		return 0;
	return err_set(ret_err, ENOTSUP, "memory %s: device %s exports no %s", m->name, info->name,
		params->handle == VK_HANDLE_OPAQUE_FD ? "opaque descriptors" : "dma-bufs");
}

int vk_memory_new(struct vk_device *d, const struct vk_memory_params *params, struct err *ret_err,
	struct vk_memory **ret_memory)
{
	VkExternalMemoryFeatureFlags features = 0;
	struct vk_memory *m;

	int r = vk_memory_start(d, params->role, params->name, params->n_bytes, ret_err, &m);
	if (r)
		return r;
	m->is_host = params->is_host;
	m->is_home_only = params->is_home_only;
	m->is_mapped = m->is_host || m->role == VK_MEMORY_STAGING || m->role == VK_MEMORY_IO;
	r = check_kind(m, params, ret_err);
	if (!r && params->is_exportable) {
		m->handle_bit = vk_memory_handle_bit(params->handle);
		features = d->handle_features[params->handle];
		if (params->handle == VK_HANDLE_DMA_BUF && d->can_export_both) {
			m->other_bit = vk_memory_handle_bit(VK_HANDLE_OPAQUE_FD);
			features |= d->handle_features[VK_HANDLE_OPAQUE_FD];
		}
	}
	if (!r)
		r = make_memory(m, features, ret_err);
	if (r) {
		vk_memory_free(m);
		return r;
	}
	*ret_memory = m;
	return 0;
}

struct vk_memory *vk_memory_free(struct vk_memory *m)
{
	if (!m)
		return NULL;
	vkDestroyBuffer(m->d->device, m->buffer, NULL);
	/* Unmaps too. */
	vkFreeMemory(m->d->device, m->memory, NULL);
	leave(m);
	free(m->slices);
	free(m);
	return NULL;
}

uint64_t vk_memory_get_address(const struct vk_memory *m)
{
	return m->address;
}

uint64_t vk_memory_get_bytes(const struct vk_memory *m)
{
	return m->n_bytes;
}

const char *vk_memory_get_name(const struct vk_memory *m)
{
	return m->name;
}

uint32_t vk_memory_get_type_index(const struct vk_memory *m)
{
	return m->type_index;
}

uint32_t vk_memory_get_heap_index(const struct vk_memory *m)
{
	return m->d->types.memoryTypes[m->type_index].heapIndex;
}

bool vk_memory_can_export(const struct vk_memory *m, enum vk_handle handle)
{
	VkExternalMemoryHandleTypeFlags bits = m->is_imported ? 0 : m->handle_bit | m->other_bit;

	return bits & vk_memory_handle_bit(handle);
}

int vk_memory_map(struct vk_memory *m, struct err *ret_err, void **ret_pointer)
{
	if (!m->map)
		return err_set(ret_err, EPERM,
			"memory %s: %s memory has no host pointer here; only staging, io and host "
			"weights have one, where they were made",
			m->name, vk_memory_role_name(m->role));
	*ret_pointer = m->map;
	return 0;
}

/* The books are no part of what a const device promises not to change. */
static struct vk_memory_books *get_books(const struct vk_device *d)
{
	return (struct vk_memory_books *)&d->books;
}

void vk_memory_get_counters(
	const struct vk_device *d, struct vk_memory_counter ret_counters[VK_MEMORY_N_ROLES])
{
	struct vk_memory_books *books = get_books(d);

	pthread_mutex_lock(&books->lock);
	memcpy(ret_counters, books->roles, sizeof(books->roles));
	pthread_mutex_unlock(&books->lock);
}

void vk_memory_get_heap_counters(const struct vk_device *d,
	struct vk_memory_counter ret_counters[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS])
{
	struct vk_memory_books *books = get_books(d);

	pthread_mutex_lock(&books->lock);
	memcpy(ret_counters, books->heaps, sizeof(books->heaps));
	pthread_mutex_unlock(&books->lock);
}
