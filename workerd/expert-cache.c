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
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/graph.h"
#include "workerd/weights.h"

enum { UNIT = 16, ALIGN = 256 };

/* A layer of the graph before it has addresses. */
struct source {
	struct graph_op *route;
	const struct weights_tensor *parts[ABI_CACHE_PARTS];
	uint32_t tables[ABI_CACHE_PARTS];
	uint64_t part_at[ABI_CACHE_PARTS]; /* in a slot */
	uint64_t n_slot_bytes;
	uint64_t n_slots;
	uint64_t slots_at; /* in slots */
	uint64_t books_at; /* in books: layer, state, slots, misses */
};

struct expert_cache {
	struct vk_device *d;
	uint32_t n_layers;
	struct op_cache_layer *layers; /* [n_layers] */
	struct vk_memory *slots;
	struct vk_memory *books; /* of each layer, see lay_out_books */
	struct vk_memory *io;    /* [n_layers] struct abi_cache_counts */
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

/* Equal shares of the budget; false where one is less than a slot. */
static bool lay_out_slots(struct source *sources, uint32_t n, uint64_t n_bytes, uint64_t *ret_bytes)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct source *s = &sources[i];
		for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
			const struct weights_tensor *t = s->parts[p];
			s->part_at[p] = s->n_slot_bytes;
			s->n_slot_bytes += (t->n_bytes / t->ne[2] + ALIGN - 1) / ALIGN * ALIGN;
		}
		s->n_slots = n_bytes / n / s->n_slot_bytes;
		if (s->n_slots > s->parts[0]->ne[2])
			s->n_slots = s->parts[0]->ne[2];
		if (s->n_slots == 0)
			return false;
		s->slots_at = at;
		at += s->n_slots * s->n_slot_bytes;
	}
	*ret_bytes = at;
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
	struct abi_cache_layer layer = {.slots = vk_memory_get_address(c->slots) + s->slots_at,
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
	struct vk_memory_params params = {.role = role, .n_bytes = n_bytes, .name = "expert cache"};

	return vk_memory_new(c->d, &params, ret_err, ret_memory);
}

static int fill(struct expert_cache *c, struct source *sources, uint64_t tables,
	uint64_t n_slot_bytes, struct err *ret_err)
{
	uint64_t n_book_bytes = lay_out_books(sources, c->n_layers);
	uint64_t n_io_bytes = c->n_layers * sizeof(struct abi_cache_counts);
	struct vk_memory *staging = NULL;
	void *map = NULL, *counts = NULL;

	c->layers = calloc(c->n_layers, sizeof(c->layers[0]));
	if (!c->layers)
		return err_set(ret_err, ENOMEM, "expert cache: no memory");
	int r = make_memory(c, VK_MEMORY_SCRATCH, n_slot_bytes, ret_err, &c->slots);
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
		for (uint32_t i = 0; i < c->n_layers; i++) {
			open_books(&sources[i], c, i, tables, map);
			c->totals.n_slots += sources[i].n_slots;
		}
		c->totals.n_bytes = n_slot_bytes;
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

static int make(struct expert_cache *c, struct graph *g, struct source *sources, uint64_t tables,
	uint64_t n_bytes, struct err *ret_err)
{
	uint64_t n_slot_bytes = 0;

	if (!lay_out_slots(sources, c->n_layers, n_bytes, &n_slot_bytes)) {
		log_info("experts are not cached: %" PRIu64
			 " bytes are less than one for each of %u layers",
			n_bytes, c->n_layers);
		c->n_layers = 0;
		return 0;
	}
	int r = fill(c, sources, tables, n_slot_bytes, ret_err);
	for (uint32_t i = 0; !r && i < c->n_layers; i++)
		mark(g, &sources[i], i);
	return r;
}

int expert_cache_new(struct vk_device *d, const struct weights *w, struct graph *g, uint64_t tables,
	uint64_t n_bytes, struct err *ret_err, struct expert_cache **ret_cache)
{
	struct expert_cache *c = calloc(1, sizeof(*c));
	struct source *sources = calloc(g->n_ops ? g->n_ops : 1, sizeof(*sources));
	int r = c && sources ? 0 : err_set(ret_err, ENOMEM, "expert cache: no memory");

	if (!r) {
		c->d = d;
		c->n_layers = n_bytes ? find_sources(w, g, sources) : 0;
		if (c->n_layers)
			r = make(c, g, sources, tables, n_bytes, ret_err);
	}
	free(sources);
	if (r || !c->n_layers)
		c = expert_cache_free(c);
	if (!r)
		*ret_cache = c;
	return r;
}

struct expert_cache *expert_cache_free(struct expert_cache *c)
{
	if (!c)
		return NULL;
	vk_memory_free(c->slots);
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
