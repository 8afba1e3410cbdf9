/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/kv-chunks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/memory.h"

enum {
	/* Large enough that a driver's price of an allocation does not count, */
	LEAST_BYTES = 64 << 20,
	/* and few enough: drivers allow some thousand allocations in a process. */
	MOST_CHUNKS = 64,
};

struct kv_chunks {
	struct vk_device *device;
	struct kv_chunks_params params;
	uint32_t n_chunk_pages; /* of each but the last */
	uint32_t n_chunks;
	struct vk_memory **memories; /* [n_chunks], NULL: not allocated */
};

static uint32_t kv_chunks_choose(const struct vk_device *d, const struct kv_chunks_params *p)
{
	uint64_t max_bytes = vk_device_get_info(d)->max_alloc_bytes;
	uint64_t n_bytes = p->n_bytes;

	if (!n_bytes) {
		n_bytes = p->n_page_bytes * ((p->n_pages + MOST_CHUNKS - 1ull) / MOST_CHUNKS);
		n_bytes = n_bytes < LEAST_BYTES ? LEAST_BYTES : n_bytes;
	}
	n_bytes = n_bytes < max_bytes ? n_bytes : max_bytes;
	uint64_t n_pages = n_bytes / p->n_page_bytes;
	n_pages = n_pages < 1 ? 1 : n_pages;
	return n_pages < p->n_pages ? (uint32_t)n_pages : p->n_pages;
}

static uint32_t kv_chunks_count_pages(const struct kv_chunks *c, uint32_t chunk)
{
	uint32_t n_left = c->params.n_pages - chunk * c->n_chunk_pages;

	return n_left < c->n_chunk_pages ? n_left : c->n_chunk_pages;
}

int kv_chunks_new(struct vk_device *d, const struct kv_chunks_params *params, struct err *ret_err,
	struct kv_chunks **ret_chunks)
{
	struct kv_chunks *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->device = d;
	c->params = *params;
	c->n_chunk_pages = kv_chunks_choose(d, params);
	c->n_chunks = (uint32_t)((params->n_pages + c->n_chunk_pages - 1ull) / c->n_chunk_pages);
	c->memories = calloc(c->n_chunks, sizeof(struct vk_memory *));
	int r = c->memories ? kv_chunks_need(c, 0, ret_err) : -ENOMEM;
	if (r) {
		kv_chunks_free(c);
		return r;
	}
	*ret_chunks = c;
	return 0;
}

struct kv_chunks *kv_chunks_free(struct kv_chunks *c)
{
	if (!c)
		return NULL;
	for (uint32_t i = 0; c->memories && i < c->n_chunks; i++)
		vk_memory_free(c->memories[i]);
	free(c->memories);
	free(c);
	return NULL;
}

int kv_chunks_need(struct kv_chunks *c, uint32_t page, struct err *ret_err)
{
	uint32_t chunk = page / c->n_chunk_pages;
	const struct vk_memory_params params = {
		.role = VK_MEMORY_KV,
		.n_bytes = kv_chunks_count_pages(c, chunk) * c->params.n_page_bytes,
		.is_exportable = c->params.is_exportable,
		/* Later one session is refused rather than all made slow. */
		.is_home_only = chunk > 0,
		.name = "kv pages",
	};

	assert(page < c->params.n_pages);
	if (c->memories[chunk])
		return 0;
	return vk_memory_new(c->device, &params, ret_err, &c->memories[chunk]);
}

static bool kv_chunks_is_used(const struct kv_chunks *c, uint32_t chunk,
	kv_chunks_is_used_fn is_used, const void *userdata)
{
	uint32_t first = chunk * c->n_chunk_pages;

	for (uint32_t i = 0; i < kv_chunks_count_pages(c, chunk); i++)
		if (is_used(userdata, first + i))
			return true;
	return false;
}

void kv_chunks_trim(struct kv_chunks *c, kv_chunks_is_used_fn is_used, const void *userdata)
{
	bool has_spare = false;

	for (uint32_t i = 0; i < c->n_chunks; i++) {
		if (!c->memories[i] || kv_chunks_is_used(c, i, is_used, userdata))
			continue;
		/* Of equal ones the lowest: pages are taken from there first. */
		if (has_spare)
			c->memories[i] = vk_memory_free(c->memories[i]);
		has_spare = true;
	}
}

void kv_chunks_get_slice(
	const struct kv_chunks *c, uint32_t page, uint32_t n, struct vk_slice *ret_slice)
{
	struct vk_memory *memory = c->memories[page / c->n_chunk_pages];

	assert(memory && n <= kv_chunks_count_rest(c, page));
	*ret_slice = (struct vk_slice){
		.memory = memory,
		.offset = page % c->n_chunk_pages * c->params.n_page_bytes,
		.n_bytes = n * c->params.n_page_bytes,
	};
}

uint32_t kv_chunks_count_rest(const struct kv_chunks *c, uint32_t page)
{
	return kv_chunks_count_pages(c, page / c->n_chunk_pages) - page % c->n_chunk_pages;
}

void kv_chunks_get_figures(const struct kv_chunks *c, struct kv_chunks_figures *ret_figures)
{
	struct kv_chunks_figures f = {.n_chunks = c->n_chunks};

	for (uint32_t i = 0; i < c->n_chunks; i++) {
		if (!c->memories[i])
			continue;
		f.n_allocated++;
		f.n_allocated_bytes += vk_memory_get_bytes(c->memories[i]);
	}
	*ret_figures = f;
}
