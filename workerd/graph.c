/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/graph.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/matvec.h"

enum { ALIGN = 256 }; /* of values, so that no two share a cache line */

void graph_fini(struct graph *g)
{
	free(g->values);
	free(g->ops);
	*g = (struct graph){0};
}

/* Room for one more of size bytes. */
static int grow(void **items, uint32_t n, uint32_t *n_room, size_t size, struct err *ret_err)
{
	if (n < *n_room)
		return 0;
	uint32_t n_new = *n_room ? 2 * *n_room : 64;
	void *more = reallocarray(*items, n_new, size);
	if (!more)
		return err_set(ret_err, ENOMEM, "graph: no memory");
	*items = more;
	*n_room = n_new;
	return 0;
}

int graph_add_value(
	struct graph *g, uint32_t width, bool is_logits, struct err *ret_err, uint32_t *ret_value)
{
	int r = grow(
		(void **)&g->values, g->n_values, &g->n_values_room, sizeof(g->values[0]), ret_err);
	if (r)
		return r;
	*ret_value = g->n_values;
	g->values[g->n_values++] =
		(struct graph_value){.width = width, .is_logits = is_logits, .name = "value"};
	return 0;
}

void graph_extend_value(struct graph *g, uint32_t value, uint32_t n_extra)
{
	assert(value < g->n_values);
	g->values[value].n_extra = n_extra;
}

void graph_name_value(struct graph *g, uint32_t value, const char *name)
{
	assert(value < g->n_values);
	g->values[value].name = name;
}

void graph_reserve_partials(struct graph *g, uint32_t n_words)
{
	for (uint32_t i = 0; i < g->n_ops; i++)
		if (g->ops[i].kind == GRAPH_ATTENTION)
			graph_extend_value(g, g->ops[i].attention.partials, n_words);
}

uint32_t graph_add_table(struct graph *g, const struct weights_tensor *w)
{
	uint32_t table = g->n_table_entries;

	assert(w->ne[2] <= ABI_MAX_EXPERTS);
	g->n_table_entries += (uint32_t)w->ne[2];
	return table;
}

static void use(struct graph *g, uint32_t value, bool is_written)
{
	if (value == GRAPH_NONE)
		return;
	struct graph_value *v = &g->values[value];
	assert(value < g->n_values && (is_written || v->is_used));
	if (!v->is_used)
		v->first_op = g->n_ops;
	v->is_used = true;
	v->last_op = g->n_ops;
}

static void use_routing(struct graph *g, const struct graph_routing *r, bool is_written)
{
	/* Experts of few rows read the logits once more, see workerd/ops/experts.h. */
	use(g, r->logits, false);
	use(g, r->choice, is_written);
	use(g, r->pairs, is_written);
	use(g, r->groups, is_written);
	use(g, r->wide, is_written);
}

/* Words of a row that an op puts into another form, and words beside all rows; 0: it has none. */
static uint32_t get_staging(const struct graph *g, const struct graph_op *op, uint32_t *ret_extra)
{
	uint64_t k;

	*ret_extra = 0;
	if (op->kind == GRAPH_MATMUL) {
		*ret_extra = (uint32_t)(OP_MATRIX_PARTIAL_BYTES + g->n_decoded_bytes) / 4;
		k = (op->matmul.w[0].ne[0] + 63) / 64 * 64;
	} else if (op->kind == GRAPH_EXPERTS) {
		k = op->experts.w[0].ne[0];
		if (op->experts.finish == OP_EXPERTS_MIX)
			k *= g->n_expert_used;
	} else {
		return 0;
	}
	return (uint32_t)((k + 1) / 2);
}

static int add_staging(struct graph *g, uint32_t *ret_value, struct err *ret_err)
{
	int r = graph_add_value(g, 0, false, ret_err, ret_value);

	if (!r)
		graph_name_value(g, *ret_value, "staging");
	return r;
}

static void widen(struct graph *g, uint32_t value, uint32_t width, uint32_t n_extra)
{
	struct graph_value *v = &g->values[value];

	v->width = v->width > width ? v->width : width;
	v->n_extra = v->n_extra > n_extra ? v->n_extra : n_extra;
	use(g, value, true);
}

/*
 * One for all ops: each is done with it before the next begins. And a small one beside it for few
 * rows, whose ops fill each other's.
 */
static int use_staging(struct graph *g, const struct graph_op *op, struct err *ret_err)
{
	uint32_t n_extra, width = get_staging(g, op, &n_extra);

	if (!g->wants_staging || width == 0)
		return 0;
	if (!g->has_staging) {
		int r = add_staging(g, &g->staging, ret_err);
		if (!r)
			r = add_staging(g, &g->few_staging, ret_err);
		if (r)
			return r;
		g->has_staging = true;
	}
	widen(g, g->staging, width, n_extra);
	widen(g, g->few_staging, 0, OP_MATVEC_MAX_COLUMNS * width);
	return 0;
}

int graph_add_op(struct graph *g, const struct graph_op *op, struct err *ret_err)
{
	uint32_t partials = GRAPH_NONE;
	int r = grow((void **)&g->ops, g->n_ops, &g->n_ops_room, sizeof(g->ops[0]), ret_err);
	if (!r)
		r = use_staging(g, op, ret_err);
	if (!r && op->kind == GRAPH_ATTENTION)
		r = graph_add_value(g, 0, false, ret_err, &partials);
	if (r)
		return r;
	switch (op->kind) {
	case GRAPH_EMBED: use(g, op->embed.y, true); break;
	case GRAPH_MATMUL:
		use(g, op->matmul.x, false);
		use(g, op->matmul.r, false);
		use(g, op->matmul.y, true);
		break;
	case GRAPH_ROPE_KV: use(g, op->rope_kv.qkv, false); break;
	case GRAPH_ATTENTION:
		use(g, op->attention.qkv, false);
		use(g, op->attention.y, true);
		use(g, partials, true);
		graph_name_value(g, partials, "attention parts");
		break;
	case GRAPH_ROUTE: use_routing(g, &op->route, true); break;
	case GRAPH_EXPERTS:
		use(g, op->experts.x, false);
		use_routing(g, &op->experts.routing, false);
		use(g, op->experts.y, true);
		use(g, op->experts.z, true);
		break;
	case GRAPH_BEST: use(g, op->best.logits, false); break;
	}
	g->ops[g->n_ops] = *op;
	if (op->kind == GRAPH_ATTENTION)
		g->ops[g->n_ops].attention.partials = partials;
	g->n_ops++;
	return 0;
}

static void add_tensor(struct weights_tensor *t, struct weights_tensor **tensors, uint32_t *n)
{
	if (t->address)
		tensors[(*n)++] = t;
}

uint32_t graph_op_get_tensors(
	struct graph_op *op, struct weights_tensor *ret_tensors[GRAPH_MAX_OP_TENSORS])
{
	uint32_t n = 0;

	switch (op->kind) {
	case GRAPH_EMBED: add_tensor(&op->embed.w, ret_tensors, &n); break;
	case GRAPH_MATMUL:
		for (uint32_t i = 0; i < op->matmul.n_parts; i++)
			add_tensor(&op->matmul.w[i], ret_tensors, &n);
		add_tensor(&op->matmul.gain, ret_tensors, &n);
		break;
	case GRAPH_ROPE_KV:
		add_tensor(&op->rope_kv.q_gain, ret_tensors, &n);
		add_tensor(&op->rope_kv.k_gain, ret_tensors, &n);
		break;
	case GRAPH_ATTENTION:
	case GRAPH_ROUTE:
	case GRAPH_BEST: break;
	case GRAPH_EXPERTS:
		for (uint32_t i = 0; i < op->experts.n_parts; i++)
			add_tensor(&op->experts.w[i], ret_tensors, &n);
		add_tensor(&op->experts.gain, ret_tensors, &n);
		break;
	}
	return n;
}

static bool is_placed(const struct graph_value *v)
{
	return v->is_used && !v->is_logits && (v->width || v->n_extra);
}

static uint64_t value_bytes(const struct graph_value *v, uint32_t n_rows)
{
	return 4 * ((uint64_t)v->width * n_rows + v->n_extra);
}

uint64_t graph_value_bytes(const struct graph *g, uint32_t value, uint32_t n_rows)
{
	assert(value < g->n_values);
	return value_bytes(&g->values[value], n_rows);
}

/* The lowest offset where v meets none of the values before it that live when it does. */
static int find_offset(const struct graph *g, uint32_t value, uint32_t n_rows, uint64_t *ret)
{
	const struct graph_value *v = &g->values[value];
	uint64_t offset = 0;

	for (uint32_t i = 0; i < value; i++) {
		const struct graph_value *o = &g->values[i];
		if (!is_placed(o) || o->last_op < v->first_op || o->first_op > v->last_op)
			continue;
		if (offset >= o->offset + value_bytes(o, n_rows) ||
			offset + value_bytes(v, n_rows) <= o->offset)
			continue;
		if (!bytes_align(o->offset + value_bytes(o, n_rows), ALIGN, &offset))
			return -EOVERFLOW;
		i = UINT32_MAX; /* once more from the first one */
	}
	*ret = offset;
	return 0;
}

int graph_place(struct graph *g, uint32_t n_rows, struct err *ret_err, uint64_t *ret_bytes)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < g->n_values; i++) {
		struct graph_value *v = &g->values[i];
		uint64_t end;

		if (!is_placed(v))
			continue;
		if (find_offset(g, i, n_rows, &v->offset) ||
			__builtin_add_overflow(v->offset, value_bytes(v, n_rows), &end))
			return err_set(ret_err, EOVERFLOW, "scratch: %u rows overflow", n_rows);
		if (end > n_bytes)
			n_bytes = end;
	}
	g->n_placed_rows = n_rows;
	*ret_bytes = n_bytes;
	return 0;
}

uint64_t graph_sum_bytes(const struct graph *g, uint32_t n_rows, uint32_t *ret_n_values)
{
	uint64_t sum = 0, n_bytes;
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->n_values; i++) {
		if (!is_placed(&g->values[i]))
			continue;
		if (!bytes_align(value_bytes(&g->values[i], n_rows), ALIGN, &n_bytes) ||
			__builtin_add_overflow(sum, n_bytes, &sum))
			sum = UINT64_MAX;
		n++;
	}
	*ret_n_values = n;
	return sum;
}

uint32_t graph_get_sites(
	const struct graph *g, uint32_t n_rows, struct graph_site *ret_sites, uint32_t n_room)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->n_values; i++) {
		const struct graph_value *v = &g->values[i];
		struct graph_site site = {.name = v->name,
			.offset = v->offset,
			.n_bytes = value_bytes(v, n_rows),
			.n_values = 1};
		uint32_t n_there = n < n_room ? n : n_room, k = 0;

		if (!is_placed(v))
			continue;
		while (k < n_there && (strcmp(ret_sites[k].name, site.name) ||
					      ret_sites[k].offset != site.offset ||
					      ret_sites[k].n_bytes != site.n_bytes))
			k++;
		if (k < n_there)
			ret_sites[k].n_values++;
		else if (n++ < n_room)
			ret_sites[k] = site;
	}
	return n;
}

void graph_fill_tables(const struct graph *g, uint64_t *ret_addresses)
{
	for (uint32_t i = 0; i < g->n_ops; i++) {
		const struct graph_op *op = &g->ops[i];
		if (op->kind != GRAPH_EXPERTS)
			continue;
		for (uint32_t part = 0; part < op->experts.n_parts; part++) {
			const struct weights_tensor *w = &op->experts.w[part];
			for (uint64_t e = 0; e < w->ne[2]; e++)
				ret_addresses[op->experts.tables[part] + e] =
					w->address + e * (w->n_bytes / w->ne[2]);
		}
	}
}

void graph_mark_far(struct graph *g, const struct weights *w)
{
	for (uint32_t i = 0; i < g->n_ops; i++) {
		struct graph_op *op = &g->ops[i];
		if (op->kind != GRAPH_EXPERTS)
			continue;
		for (uint32_t part = 0; part < op->experts.n_parts; part++) {
			uint32_t placement = w->allocs[op->experts.w[part].alloc].placement;
			op->experts.is_far |= placement == MANIFEST_PLACEMENT_PINNED ||
					      placement == MANIFEST_PLACEMENT_STAGED;
		}
	}
}
