/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/gather.h"

#include <errno.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/memory.h"

struct gather {
	const struct weights_alloc *alloc;
	uint64_t offset; /* of the embedding in it */
	uint64_t n_row_bytes;
	struct vk_memory *memory; /* rows [n_rows] struct abi_row, then the table */
	struct abi_row *rows;     /* mapped */
	uint8_t *table;           /* mapped, [n_rows][n_row_bytes] */
	struct weights_tensor tensor;
	uint64_t n_gathered_bytes;
};

static int make_memory(struct gather *g, struct vk_device *d, uint32_t n_rows, struct err *ret_err)
{
	uint64_t table_at, n_table_bytes;
	void *map;

	if (!bytes_align(n_rows * sizeof(struct abi_row), 256, &table_at) ||
		__builtin_mul_overflow(g->n_row_bytes, n_rows, &n_table_bytes))
		return err_set(ret_err, EOVERFLOW, "embedding: %u rows overflow", n_rows);
	const struct vk_memory_params params = {
		.role = VK_MEMORY_IO, .n_bytes = table_at + n_table_bytes, .name = "embedding"};
	int r = vk_memory_new(d, &params, ret_err, &g->memory);
	if (!r)
		r = vk_memory_map(g->memory, ret_err, &map);
	if (r)
		return r;
	g->rows = map;
	g->table = (uint8_t *)map + table_at;
	g->tensor.address = vk_memory_get_address(g->memory) + table_at;
	g->tensor.ne[1] = n_rows;
	g->tensor.n_bytes = n_table_bytes;
	return 0;
}

int gather_new(struct vk_device *d, const struct weights *w, const struct weights_tensor *t,
	uint32_t n_rows, struct err *ret_err, struct gather **ret_gather)
{
	if (!t->ne[1] || t->n_bytes % t->ne[1])
		return err_set(ret_err, EINVAL, "embedding: no whole rows");
	struct gather *g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(ret_err, ENOMEM, "embedding: no memory");
	g->alloc = &w->allocs[t->alloc];
	g->offset = t->offset;
	g->n_row_bytes = t->n_bytes / t->ne[1];
	g->tensor = *t;
	int r = make_memory(g, d, n_rows, ret_err);
	if (r) {
		gather_free(g);
		return r;
	}
	*ret_gather = g;
	return 0;
}

struct gather *gather_free(struct gather *g)
{
	if (!g)
		return NULL;
	vk_memory_free(g->memory);
	free(g);
	return NULL;
}

const struct weights_tensor *gather_get_tensor(const struct gather *g)
{
	return &g->tensor;
}

uint64_t gather_get_rows_address(const struct gather *g)
{
	return vk_memory_get_address(g->memory);
}

int gather_fill(struct gather *g, const struct abi_row *rows, uint32_t n_rows, struct err *ret_err)
{
	for (uint32_t i = 0; i < n_rows; i++) {
		int r = weights_read(g->alloc, g->offset + rows[i].token * g->n_row_bytes,
			g->n_row_bytes, g->table + i * g->n_row_bytes, ret_err);
		if (r)
			return r;
		g->rows[i] = rows[i];
		g->rows[i].token = i;
	}
	g->n_gathered_bytes += n_rows * g->n_row_bytes;
	return 0;
}

uint64_t gather_get_bytes(const struct gather *g)
{
	return g->n_gathered_bytes;
}
