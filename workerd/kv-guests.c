/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/kv-guests.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "vk/memory.h"

struct guest {
	struct vk_memory *memory; /* NULL: there is none */
	uint32_t first;
	uint32_t n_pages;
};

struct kv_guests {
	struct kv_guests_params params;
	struct guest rows[KV_GUESTS_MAX];
};

int kv_guests_new(const struct kv_guests_params *params, struct kv_guests **ret_guests)
{
	struct kv_guests *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->params = *params;
	*ret_guests = g;
	return 0;
}

struct kv_guests *kv_guests_free(struct kv_guests *g)
{
	free(g);
	return NULL;
}

/* The guest that begins first of those that end behind page; NULL. */
static const struct guest *kv_guests_find_next(const struct kv_guests *g, uint32_t page)
{
	const struct guest *found = NULL;

	for (uint32_t i = 0; i < KV_GUESTS_MAX; i++) {
		const struct guest *row = &g->rows[i];
		if (row->memory && row->first + row->n_pages > page &&
			(!found || row->first < found->first))
			found = row;
	}
	return found;
}

/* The lowest numbers that n_pages in a row can have. */
static bool kv_guests_find_gap(const struct kv_guests *g, uint32_t n_pages, uint32_t *ret_first)
{
	uint32_t end = g->params.first_page + g->params.n_pages;
	uint32_t at = g->params.first_page;

	while (n_pages <= end - at) {
		const struct guest *next = kv_guests_find_next(g, at);
		if (!next || next->first - at >= n_pages) {
			*ret_first = at;
			return true;
		}
		at = next->first + next->n_pages;
	}
	return false;
}

int kv_guests_add(struct kv_guests *g, struct vk_memory *memory, uint32_t n_pages,
	struct err *ret_err, uint32_t *ret_guest)
{
	uint32_t first = 0;
	uint32_t i = 0;

	while (i < KV_GUESTS_MAX && g->rows[i].memory)
		i++;
	if (i == KV_GUESTS_MAX || !kv_guests_find_gap(g, n_pages, &first))
		return err_set(ret_err, ENOSPC,
			"kv: %" PRIu32 " pages of others more than there are numbers for: %d such "
			"memories and %" PRIu32 " pages are the most",
			n_pages, KV_GUESTS_MAX, g->params.n_pages);
	g->rows[i] = (struct guest){.memory = memory, .first = first, .n_pages = n_pages};
	*ret_guest = i;
	return 0;
}

void kv_guests_remove(struct kv_guests *g, uint32_t guest)
{
	g->rows[guest].memory = NULL;
}

void kv_guests_get_pages(
	const struct kv_guests *g, uint32_t guest, uint32_t *ret_first, uint32_t *ret_n)
{
	*ret_first = g->rows[guest].first;
	*ret_n = g->rows[guest].n_pages;
}

void kv_guests_get_slice(const struct kv_guests *g, uint32_t page, struct vk_slice *ret_slice)
{
	const struct guest *row = kv_guests_find_next(g, page);

	assert(row && row->first <= page);
	*ret_slice = (struct vk_slice){
		.memory = row->memory,
		.offset = (page - row->first) * g->params.n_page_bytes,
		.n_bytes = g->params.n_page_bytes,
	};
}
