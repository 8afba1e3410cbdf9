/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/expert-cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/graph.h"
#include "workerd/weights.h"

enum { UNIT = 16, ALIGN = 256 };

/* What EXPERT_CACHE_AUTO leaves of the heap, a fraction: workers that come later have KV too. */
enum { MARGIN_FRACTION = 8 };

/* A layer of the graph before it has addresses. */
struct source {
	struct graph_op *route;
	const struct weights_tensor *parts[ABI_CACHE_PARTS];
	uint32_t tables[ABI_CACHE_PARTS];
	uint64_t part_at[ABI_CACHE_PARTS]; /* in a slot */
	uint64_t n_slot_bytes;
	uint64_t n_slots;
	uint64_t books_at; /* in books: layer, state, slots, misses */
};

struct expert_cache {
	struct vk_device *d;
	uint32_t n_layers;
	struct op_cache_layer *layers; /* [n_layers] */
	struct vk_memory **slots;      /* [n_layers] [n_slots][n_slot_bytes] */
	struct vk_memory *books;       /* of each layer, see lay_out_books */
	struct vk_memory *io;          /* [n_layers] struct abi_cache_counts */
	const struct abi_cache_counts *counts;
	struct expert_cache_counters totals;
};

/* Some part crosses the bus, and all can be read and copied in whole units. */
static bool is_cacheable(const struct weights *w, const struct source *s)
{
	bool is_on_host = false;

	for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
		const struct weights_tensor *t = s->parts[p];
		uint32_t placement = w->allocs[t->alloc].placement;
		uint64_t n_part_bytes = t->n_bytes / t->ne[2];

		if (placement == MANIFEST_PLACEMENT_PAGED || t->address % UNIT ||
			n_part_bytes % UNIT || n_part_bytes > UINT32_MAX / ABI_CACHE_PARTS - ALIGN)
			return false;
		is_on_host |= placement != MANIFEST_PLACEMENT_DEVICE;
	}
	return is_on_host;
}

/* The layers of the graph that can be cached, [n_ops] at most. */
static uint32_t find_sources(const struct weights *w, struct graph *g, struct source *ret_sources)
{
	struct source s = {0};
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->n_ops; i++) {
		struct graph_op *op = &g->ops[i];
		if (op->kind == GRAPH_ROUTE)
			s = (struct source){.route = op};
		if (op->kind != GRAPH_EXPERTS || !s.route)
			continue;
		uint32_t first = op->experts.finish == OP_EXPERTS_MIX ? 2 : 0;
		for (uint32_t p = 0; p < op->experts.n_parts; p++) {
			s.parts[first + p] = &op->experts.w[p];
			s.tables[first + p] = op->experts.tables[p];
		}
		if (first && is_cacheable(w, &s))
			ret_sources[n++] = s;
	}
	return n;
}

static const struct vk_device_heap *find_heap(
	const struct vk_device *d, const struct vk_device_heap *heaps)
{
	const struct vk_device_heap *found = NULL;

	for (uint32_t i = 0; i < vk_device_get_info(d)->n_heaps; i++)
		if (heaps[i].device_local && (!found || heaps[i].n_bytes > found->n_bytes))
			found = &heaps[i];
	return found;
}

static bool is_host_slower(const struct vk_device *d)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	bool has_host_heap = false;

	for (uint32_t i = 0; i < info->n_heaps; i++)
		has_host_heap |= !info->heaps[i].device_local;
	return has_host_heap && !info->is_software;
}

/* What is to be spent of what was asked for. */
static uint64_t choose_bytes(const struct vk_device *d, uint64_t n_asked)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	bool is_auto = n_asked == EXPERT_CACHE_AUTO;

	vk_device_query_heaps(d, heaps);
	const struct vk_device_heap *h = find_heap(d, heaps);
	if (!h || !info->has_memory_budget)
		return is_auto ? 0 : n_asked;
	uint64_t n_used = h->usage_bytes + (is_auto ? h->n_bytes / MARGIN_FRACTION : 0);
	uint64_t n_left = h->budget_bytes > n_used ? h->budget_bytes - n_used : 0;
	if (n_left >= n_asked)
		return n_asked;
	if (!is_auto)
		log_info("expert cache: expected %" PRIu64 " bytes of device memory, found %" PRIu64
			 " left",
			n_asked, n_left);
	return n_left;
}

/*
 * Equal shares of the budget, each in one memory; false where one is less than a slot. Where a
 * layer's experts take less than its share, that is not given to others.
 */
static bool lay_out_slots(
	struct source *sources, uint32_t n, uint64_t n_bytes, uint64_t max_memory_bytes)
{
	uint64_t n_share_bytes = n_bytes / n < max_memory_bytes ? n_bytes / n : max_memory_bytes;

	for (uint32_t i = 0; i < n; i++) {
		struct source *s = &sources[i];
		for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
			const struct weights_tensor *t = s->parts[p];
			s->part_at[p] = s->n_slot_bytes;
			s->n_slot_bytes += (t->n_bytes / t->ne[2] + ALIGN - 1) / ALIGN * ALIGN;
		}
		s->n_slots = n_share_bytes / s->n_slot_bytes;
		if (s->n_slots > s->parts[0]->ne[2])
			s->n_slots = s->parts[0]->ne[2];
		if (s->n_slots == 0)
			return false;
	}
	return true;
}

static uint64_t lay_out_books(struct source *sources, uint32_t n)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		sources[i].books_at = at;
		at += sizeof(struct abi_cache_layer) + sizeof(struct abi_cache_state) +
		      sources[i].n_slots *
			      (sizeof(struct abi_cache_slot) + sizeof(struct abi_cache_miss));
		at = (at + ALIGN - 1) / ALIGN * ALIGN;
	}
	return at;
}

/* The books of a layer at their start, into the staging memory; and where everything is. */
static void open_books(const struct source *s, const struct expert_cache *c, uint32_t i,
	uint64_t tables, uint8_t *map)
{
	struct abi_cache_layer layer = {.slots = vk_memory_get_address(c->slots[i]),
		.n_slot_bytes = (uint32_t)s->n_slot_bytes};
	struct abi_cache_slot empty = {.expert = ABI_CACHE_NO_EXPERT};
	uint64_t address = vk_memory_get_address(c->books) + s->books_at;
	uint64_t state_at = sizeof(layer), slots_at = state_at + sizeof(struct abi_cache_state);
	uint64_t misses_at = slots_at + s->n_slots * sizeof(empty);

	for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
		const struct weights_tensor *t = s->parts[p];
		layer.tables[p] = tables + sizeof(uint64_t) * s->tables[p];
		layer.home[p] = t->address;
		layer.n_part_bytes[p] = (uint32_t)(t->n_bytes / t->ne[2]);
		layer.part_at[p] = (uint32_t)s->part_at[p];
	}
	memset(map + s->books_at, 0, misses_at + s->n_slots * sizeof(struct abi_cache_miss));
	memcpy(map + s->books_at, &layer, sizeof(layer));
	for (uint64_t slot = 0; slot < s->n_slots; slot++)
		memcpy(map + s->books_at + slots_at + slot * sizeof(empty), &empty, sizeof(empty));
	c->layers[i] = (struct op_cache_layer){
		.layer = address,
		.state = address + state_at,
		.slots = address + slots_at,
		.misses = address + misses_at,
		.counts = vk_memory_get_address(c->io) + i * sizeof(struct abi_cache_counts),
		.n_slots = (uint32_t)s->n_slots,
		.n_expert_bytes = (uint32_t)s->n_slot_bytes,
	};
}

static int upload(struct expert_cache *c, struct vk_memory *staging, struct err *ret_err)
{
	struct vk_slice dst = {.memory = c->books, .n_bytes = vk_memory_get_bytes(c->books)};
	struct vk_slice src = {.memory = staging, .n_bytes = dst.n_bytes};
	struct vk_command *command = NULL;
	uint64_t ticket = 0;

	int r = vk_command_new(c->d, 0, ret_err, &command);
	if (r)
		return r;
	vk_command_begin(command);
	vk_command_copy(command, &dst, &src);
	r = vk_command_end(command, ret_err);
	if (!r)
		r = vk_submit(c->d, &command, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(c->d, ticket, UINT64_MAX);
	vk_command_free(command);
	return r;
}

static int make_memory(struct expert_cache *c, enum vk_memory_role role, uint64_t n_bytes,
	struct err *ret_err, struct vk_memory **ret_memory)
{
	const struct vk_memory_params params = {.role = role,
		.n_bytes = n_bytes,
		.name = "expert cache",
		.is_home_only = role == VK_MEMORY_SCRATCH};

	return vk_memory_new(c->d, &params, ret_err, ret_memory);
}

/* Nothing is gained by slots outside device memory. */
static int make_slots(struct expert_cache *c, const struct source *sources, struct err *ret_err)
{
	c->slots = calloc(c->n_layers, sizeof(c->slots[0]));
	if (!c->slots)
		return err_set(ret_err, ENOMEM, "expert cache: no memory");
	for (uint32_t i = 0; i < c->n_layers; i++) {
		uint64_t n_bytes = sources[i].n_slots * sources[i].n_slot_bytes;
		int r = make_memory(c, VK_MEMORY_SCRATCH, n_bytes, ret_err, &c->slots[i]);
		if (r)
			return r;
		c->totals.n_slots += sources[i].n_slots;
		c->totals.n_bytes += n_bytes;
	}
	return 0;
}

static int fill(
	struct expert_cache *c, struct source *sources, uint64_t tables, struct err *ret_err)
{
	uint64_t n_book_bytes = lay_out_books(sources, c->n_layers);
	uint64_t n_io_bytes = c->n_layers * sizeof(struct abi_cache_counts);
	struct vk_memory *staging = NULL;
	void *map = NULL, *counts = NULL;

	c->layers = calloc(c->n_layers, sizeof(c->layers[0]));
	if (!c->layers)
		return err_set(ret_err, ENOMEM, "expert cache: no memory");
	int r = make_slots(c, sources, ret_err);
	if (!r)
		r = make_memory(c, VK_MEMORY_SCRATCH, n_book_bytes, ret_err, &c->books);
	if (!r)
		r = make_memory(c, VK_MEMORY_IO, n_io_bytes, ret_err, &c->io);
	if (!r)
		r = vk_memory_map(c->io, ret_err, &counts);
	if (!r)
		r = make_memory(c, VK_MEMORY_STAGING, n_book_bytes, ret_err, &staging);
	if (!r)
		r = vk_memory_map(staging, ret_err, &map);
	if (!r) {
		memset(counts, 0, n_io_bytes);
		c->counts = counts;
		memset(map, 0, n_book_bytes);
		for (uint32_t i = 0; i < c->n_layers; i++)
			open_books(&sources[i], c, i, tables, map);
		r = upload(c, staging, ret_err);
	}
	vk_memory_free(staging);
	return r;
}

/* Every op of the layer finds its cache by the routing. */
static void mark(struct graph *g, const struct source *s, uint32_t id)
{
	uint32_t choice = s->route->route.choice;

	for (uint32_t i = 0; i < g->n_ops; i++) {
		struct graph_op *op = &g->ops[i];
		if (op->kind == GRAPH_ROUTE && op->route.choice == choice)
			op->route.cache = id;
		if (op->kind == GRAPH_EXPERTS && op->experts.routing.choice == choice)
			op->experts.routing.cache = id;
	}
}

/* *ret_is_made is false where the worker is to go on without, and why has been said. */
static int make(struct expert_cache *c, struct graph *g, struct source *sources, uint64_t tables,
	uint64_t n_asked, struct err *ret_err, bool *ret_is_made)
{
	uint64_t n_bytes = choose_bytes(c->d, n_asked);
	uint64_t max_memory_bytes = vk_device_get_info(c->d)->max_alloc_bytes;
	struct err reason = ERR_NULL;

	*ret_is_made = false;
	if (!lay_out_slots(sources, c->n_layers, n_bytes, max_memory_bytes)) {
		log_info("experts are not cached: %" PRIu64
			 " bytes are less than one for each of %u layers",
			n_bytes, c->n_layers);
		return 0;
	}
	int r = fill(c, sources, tables, &reason);
	if (r == -ENOMEM) {
		log_info("experts are not cached: %s", reason.text);
		return 0;
	}
	if (r) {
		*ret_err = reason;
		return r;
	}
	for (uint32_t i = 0; i < c->n_layers; i++)
		mark(g, &sources[i], i);
	log_info("expert cache: %" PRIu64 " slots in %u layers, %" PRIu64 " bytes",
		c->totals.n_slots, c->n_layers, c->totals.n_bytes);
	*ret_is_made = true;
	return 0;
}

int expert_cache_new(struct vk_device *d, const struct weights *w, struct graph *g, uint64_t tables,
	uint64_t n_bytes, struct err *ret_err, struct expert_cache **ret_cache)
{
	bool is_auto = n_bytes == EXPERT_CACHE_AUTO, is_made = false;
	struct expert_cache *c = NULL;

	if (n_bytes == 0 || (is_auto && !is_host_slower(d))) {
		*ret_cache = NULL;
		return 0;
	}
	struct source *sources = calloc(g->n_ops ? g->n_ops : 1, sizeof(*sources));
	if (!sources || !(c = calloc(1, sizeof(*c)))) {
		free(sources);
		return err_set(ret_err, ENOMEM, "expert cache: no memory");
	}
	c->d = d;
	c->n_layers = find_sources(w, g, sources);
	int r = 0;
	if (c->n_layers)
		r = make(c, g, sources, tables, n_bytes, ret_err, &is_made);
	else if (!is_auto)
		log_info("experts are not cached: none is in host memory that the device reads");
	free(sources);
	if (!is_made)
		c = expert_cache_free(c);
	if (!r)
		*ret_cache = c;
	return r;
}

struct expert_cache *expert_cache_free(struct expert_cache *c)
{
	if (!c)
		return NULL;
	for (uint32_t i = 0; c->slots && i < c->n_layers; i++)
		vk_memory_free(c->slots[i]);
	free(c->slots);
	vk_memory_free(c->books);
	vk_memory_free(c->io);
	free(c->layers);
	free(c);
	return NULL;
}

const struct op_cache_layer *expert_cache_get_layers(const struct expert_cache *c)
{
	return c->layers;
}

void expert_cache_get_counters(
	const struct expert_cache *c, struct expert_cache_counters *ret_counters)
{
	*ret_counters = c->totals;
	for (uint32_t i = 0; i < c->n_layers; i++) {
		ret_counters->n_found += c->counts[i].n_found;
		ret_counters->n_fetched += c->counts[i].n_fetched;
		ret_counters->n_direct += c->counts[i].n_direct;
	}
}
