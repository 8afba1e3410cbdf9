/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/graph.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"

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
	g->values[g->n_values++] = (struct graph_value){.width = width, .is_logits = is_logits};
	return 0;
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

int graph_add_op(struct graph *g, const struct graph_op *op, struct err *ret_err)
{
	int r = grow((void **)&g->ops, g->n_ops, &g->n_ops_room, sizeof(g->ops[0]), ret_err);
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
		break;
	}
	g->ops[g->n_ops++] = *op;
	return 0;
}

static bool is_placed(const struct graph_value *v)
{
	return v->is_used && !v->is_logits;
}

static uint64_t value_bytes(const struct graph_value *v, uint32_t n_rows)
{
	return 4ull * v->width * n_rows;
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
	*ret_bytes = n_bytes;
	return 0;
}
