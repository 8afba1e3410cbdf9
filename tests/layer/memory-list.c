/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/memory-list.h"

#include <stdatomic.h>

static atomic_uint_fast64_t last_id;

void memory_list_init(struct memory_list *l)
{
	*l = (struct memory_list){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void memory_list_fini(struct memory_list *l)
{
	pthread_mutex_destroy(&l->lock);
}

uint64_t memory_list_add(struct memory_list *l, struct memory *m)
{
	uint64_t id = m->id = ++last_id;

	pthread_mutex_lock(&l->lock);
	m->next = l->head;
	l->head = m;
	pthread_mutex_unlock(&l->lock);
	return id;
}

struct memory *memory_list_take(struct memory_list *l, VkDeviceMemory handle)
{
	struct memory **at = &l->head, *m;

	pthread_mutex_lock(&l->lock);
	while (*at && (*at)->handle != handle)
		at = &(*at)->next;
	m = *at;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&l->lock);
	return m;
}

uint32_t memory_list_find_type(struct memory_list *l, VkDeviceMemory handle)
{
	uint32_t type = UINT32_MAX;

	pthread_mutex_lock(&l->lock);
	for (struct memory *m = l->head; m; m = m->next)
		if (m->handle == handle)
			type = m->type_index;
	pthread_mutex_unlock(&l->lock);
	return type;
}

uint64_t memory_list_find_id(struct memory_list *l, VkDeviceMemory handle)
{
	uint64_t id = 0;

	pthread_mutex_lock(&l->lock);
	for (struct memory *m = l->head; m; m = m->next)
		if (m->handle == handle)
			id = m->id;
	pthread_mutex_unlock(&l->lock);
	return id;
}
