/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix.h"

#include <errno.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/stage.h"

enum {
	PARTIAL_ALIGN = 256, /* bytes; where runs' sums begin behind x */
	MIN_ROWS = 17,       /* below, kernels of a row at a time are limited by reading W */
	FULL_GROUPS = 256,   /* workgroups that keep all of a large GPU busy */
	MAX_SPLITS = 16,
	MIN_SPLIT_STEPS = 8, /* a run pays for its sums */
	SUM_INVOCATIONS = 128,
	DECODE_INVOCATIONS = 128,
	DECODE_ELEMENTS = 8, /* an invocation decodes so many or more */
	MAX_GRID_Y = 65535,  /* Vulkan promises no more */
};

/* A matrix product with all that was decided about it. */
struct product {
	const struct op_matmul_params *p;
	struct op_matrix_tile tile;
	struct op_pool_kernel kernel; /* of the tile */
	uint32_t k;
	uint32_t width; /* of a row of y */
};

/* A dispatch's parts, and where its things are in staging behind x. */
struct dispatch {
	uint32_t first;
	uint32_t n_parts;
	uint32_t finish;
	uint32_t y_at;    /* their first column of y */
	uint64_t free_at; /* in staging */
	bool is_decoded;
};

/* Runs of k of one dispatch. */
struct runs {
	uint32_t n;
	uint32_t n_steps; /* of one */
	uint64_t n_bytes; /* of one's sums */
};

/* Tiles by the most rows that there can be, the smaller ones first. */
static const struct {
	uint32_t n_rows;
	struct op_matrix_tile tile;
} tiles[] = {
	{32, {.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1}},
	{64, {.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1}},
	{UINT32_MAX, {.bn = 128, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2}},
};

/* Narrow enough for a subgroup of eight lanes. */
static const struct op_matrix_tile narrow_tile = {
	.bn = 32, .bm = 32, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1};

static struct op_matrix_tile choose_tile(const struct op_pool *pool, uint32_t n_rows, uint64_t k)
{
	struct op_matrix_tile tile = narrow_tile;
	uint32_t i = 0;

	if (op_pool_get_subgroup_size(pool) >= 32) {
		while (n_rows > tiles[i].n_rows)
			i++;
		tile = tiles[i].tile;
	}
	if (k % tile.bk)
		tile.bk = 32;
	return tile;
}

/* Of x alone. */
static uint64_t staged_bytes(uint32_t n_rows, uint64_t k)
{
	return 2 * n_rows * k;
}

static uint64_t partial_at(uint32_t n_rows, uint64_t k)
{
	return (staged_bytes(n_rows, k) + PARTIAL_ALIGN - 1) / PARTIAL_ALIGN * PARTIAL_ALIGN;
}

bool op_matrix_fits(const struct op_pool *pool, const struct op_matmul_params *p)
{
	uint64_t k = p->w[0].ne[0], n = 0;
	struct op_pool_kernel kernel;

	if (p->is_exact || !op_pool_get_info(pool)->n_matrices || p->n_rows < MIN_ROWS ||
		!p->staging || p->staging % 16 || p->x % 16 || p->gain % 16 || p->n_parts == 0 ||
		p->n_parts > ABI_MATMUL_MAX_PARTS ||
		(p->finish == OP_MATMUL_SWIGLU && p->n_parts != 2))
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		if (!op_matrix_tile_find_kernel(&p->w[i], false, &kernel.id) ||
			p->w[i].ne[0] != k ||
			(p->finish == OP_MATMUL_SWIGLU && p->w[i].ne[1] != p->w[0].ne[1]))
			return false;
		n += p->w[i].ne[1];
	}
	struct op_matrix_tile tile = choose_tile(pool, p->n_rows, k);
	uint64_t n_staged = staged_bytes(p->n_rows, k);
	/* Quads of x and bytes of a row of y are counted in 32 bits. */
	return n_staged <= p->n_staging_bytes && n_staged / 16 < UINT32_MAX &&
	       n < UINT32_MAX / sizeof(float) && n / (tile.bn / 2) < MAX_GRID_Y / MAX_SPLITS &&
	       op_matrix_tile_bind(pool, &tile, k, &kernel);
}

uint64_t op_matrix_staging_bytes(uint32_t n_rows, uint64_t k, uint64_t n)
{
	/* Tiles of 128 rows of W and of at most as many of x: no choice makes fewer. */
	uint64_t n_tiles = (n + 127) / 128 * ((n_rows + 127) / 128);
	uint64_t n_splits = (FULL_GROUPS + n_tiles - 1) / n_tiles;

	if (n_splits > MAX_SPLITS)
		n_splits = MAX_SPLITS;
	if (n_splits == 1)
		return staged_bytes(n_rows, k);
	return partial_at(n_rows, k) + n_splits * n_rows * n * sizeof(float);
}

/* Runs of k, so that all of the device has work, where their sums have a place. */
static struct runs choose_runs(
	const struct product *s, uint64_t n_used, uint32_t n_tiles, uint32_t width)
{
	const struct op_matmul_params *p = s->p;
	uint32_t n_steps = s->k / s->tile.bk;
	uint32_t n = s->tile.n_splits ? s->tile.n_splits : (FULL_GROUPS + n_tiles - 1) / n_tiles;
	uint64_t n_room = p->n_staging_bytes > n_used ? p->n_staging_bytes - n_used : 0;
	struct runs runs = {.n_bytes = sizeof(float) * (uint64_t)p->n_rows * width};

	if (!s->tile.n_splits && n > n_steps / MIN_SPLIT_STEPS)
		n = n_steps / MIN_SPLIT_STEPS;
	if (n > MAX_SPLITS)
		n = MAX_SPLITS;
	if (n > n_steps)
		n = n_steps;
	if (n > n_room / runs.n_bytes)
		n = (uint32_t)(n_room / runs.n_bytes);
	if (n < 1 || runs.n_bytes > UINT32_MAX)
		n = 1;
	runs.n_steps = (n_steps + n - 1) / n;
	runs.n = (n_steps + runs.n_steps - 1) / runs.n_steps;
	return runs;
}

static int record_sum(struct op_pool *pool, struct vk_command *c, const struct product *s,
	const struct abi_matrix_sum *push, uint32_t finish, struct err *ret_err)
{
	uint32_t n_out = finish == ABI_TILE_FINISH_SWIGLU ? push->width / 2 : push->width;
	const struct op_pool_kernel kernel = {
		.id = KERNELS_MATRIX_SUM,
		.n_subgroups = SUM_INVOCATIONS / op_pool_get_subgroup_size(pool),
		.n_spec = 1,
		.spec = {[ABI_MATRIX_SUM_SPEC_FINISH - ABI_SPEC_KERNEL] = finish},
	};
	uint32_t n_groups = (n_out + SUM_INVOCATIONS - 1) / SUM_INVOCATIONS;

	vk_command_barrier(c);
	int r = op_pool_dispatch(
		pool, c, &kernel, push, n_groups * kernel.n_subgroups, s->p->n_rows, ret_err);
	/* The next parts' sums come to the same place. */
	vk_command_barrier(c);
	return r;
}

/* W as f16 behind x, where that is to be and has room; push reads it there then. */
static int record_decode(struct op_pool *pool, struct vk_command *c, const struct product *s,
	struct dispatch *d, struct abi_matrix *push, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	struct op_pool_kernel kernel = {
		.n_subgroups = DECODE_INVOCATIONS / op_pool_get_subgroup_size(pool)};
	uint64_t n_bytes = 0, at = d->free_at;

	for (uint32_t i = 0; i < d->n_parts; i++)
		n_bytes += 2ull * push->n[i] * s->k;
	if (!s->tile.is_decoded || at + n_bytes > p->n_staging_bytes ||
		!op_matrix_tile_find_decoder(p->w[d->first].dtype, &kernel.id))
		return 0;
	for (uint32_t i = 0; i < d->n_parts; i++) {
		const struct abi_matrix_decode decode = {.w = push->w[i],
			.y = p->staging + at,
			.n = push->n[i],
			.k = s->k,
			.n_row_bytes = push->n_row_bytes};
		uint32_t n_x =
			(s->k / DECODE_ELEMENTS + DECODE_INVOCATIONS - 1) / DECODE_INVOCATIONS;
		int r = op_pool_dispatch(
			pool, c, &kernel, &decode, n_x * kernel.n_subgroups, push->n[i], ret_err);
		if (r)
			return r;
		push->w[i] = decode.y;
		at += 2ull * push->n[i] * s->k;
	}
	push->n_row_bytes = 2 * s->k;
	d->free_at = (at + PARTIAL_ALIGN - 1) / PARTIAL_ALIGN * PARTIAL_ALIGN;
	d->is_decoded = true;
	vk_command_barrier(c);
	return 0;
}

static int record_parts(struct op_pool *pool, struct vk_command *c, const struct product *s,
	struct dispatch *d, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	const struct weights_tensor *w = &p->w[d->first];
	struct op_pool_kernel kernel = s->kernel;
	bool is_swiglu = d->finish == ABI_TILE_FINISH_SWIGLU;
	uint32_t n_out = is_swiglu ? s->tile.bn / 2 : s->tile.bn;
	uint32_t n_groups_x = (p->n_rows + s->tile.bm - 1) / s->tile.bm;
	uint32_t n_tiles = 0, width = 0;
	/* The second half of a SwiGLU in two dispatches finds the first in y. */
	uint64_t r_at = d->finish == ABI_TILE_FINISH_GATE ? p->y : p->r;
	uint64_t y = p->y + 4ull * d->y_at;
	struct abi_matrix push = {
		.x = p->staging,
		.y = y,
		.r = r_at ? r_at + 4ull * d->y_at : 0,
		.m = p->m,
		.k = s->k,
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.x_stride = s->k,
		.y_stride = s->width,
	};

	for (uint32_t i = 0; i < d->n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
		width += push.n[i];
		if (!is_swiglu || i == 0)
			n_tiles += (push.n[i] + n_out - 1) / n_out;
	}
	d->free_at = partial_at(p->n_rows, s->k);
	int r = record_decode(pool, c, s, d, &push, ret_err);
	if (r)
		return r;
	if (d->is_decoded)
		kernel.id = KERNELS_MATRIX_F16;
	else if (!op_matrix_tile_find_kernel(w, false, &kernel.id))
		return err_set(ret_err, ENOTSUP, "block format: found id %u", w->dtype);
	struct runs runs = choose_runs(s, d->free_at, n_tiles * n_groups_x, width);
	push.n_splits = runs.n;
	push.n_split_steps = runs.n_steps;
	kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] = d->finish;
	if (runs.n > 1) {
		kernel.spec[ABI_MATRIX_SPEC_PARTIAL - ABI_SPEC_KERNEL] = 1;
		/* But for the order of rows, the finish is matrix-sum's. */
		if (!is_swiglu)
			kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] =
				ABI_TILE_FINISH_STORE;
		push.y = p->staging + d->free_at;
		push.y_stride = width;
		push.n_split_bytes = (uint32_t)runs.n_bytes;
	}
	r = op_pool_dispatch(pool, c, &kernel, &push, n_groups_x * kernel.n_subgroups,
		n_tiles * runs.n, ret_err);
	/* The next parts' weights come to the same place. */
	if (!r && runs.n == 1 && d->is_decoded)
		vk_command_barrier(c);
	if (r || runs.n == 1)
		return r;
	const struct abi_matrix_sum sum = {.partial = push.y,
		.y = y,
		.r = push.r,
		.m = p->m,
		.n_splits = runs.n,
		.n_split_bytes = push.n_split_bytes,
		.width = width,
		.y_stride = s->width};
	return record_sum(pool, c, s, &sum, d->finish, ret_err);
}

/* Runs of parts of one format; their outputs lie side by side in a row of y. */
static int record_side_by_side(
	struct op_pool *pool, struct vk_command *c, const struct product *s, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	struct dispatch d = {.finish = p->finish};

	for (; d.first < p->n_parts; d.first += d.n_parts) {
		uint32_t width = 0, i = d.first;
		for (; i < p->n_parts && p->w[i].dtype == p->w[d.first].dtype; i++)
			width += (uint32_t)p->w[i].ne[1];
		d.n_parts = i - d.first;
		d.is_decoded = false;
		int r = record_parts(pool, c, s, &d, ret_err);
		if (r)
			return r;
		d.y_at += width;
	}
	return 0;
}

static int record_swiglu(
	struct op_pool *pool, struct vk_command *c, const struct product *s, struct err *ret_err)
{
	struct dispatch d = {.n_parts = 2, .finish = ABI_TILE_FINISH_SWIGLU};

	if (s->p->w[0].dtype == s->p->w[1].dtype)
		return record_parts(pool, c, s, &d, ret_err);
	d = (struct dispatch){.n_parts = 1, .finish = ABI_TILE_FINISH_STORE};
	int r = record_parts(pool, c, s, &d, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	d = (struct dispatch){.first = 1, .n_parts = 1, .finish = ABI_TILE_FINISH_GATE};
	return record_parts(pool, c, s, &d, ret_err);
}

static int record_product(
	struct op_pool *pool, struct vk_command *c, const struct product *s, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	const struct op_stage_params stage = {.x = p->x,
		.y = p->staging,
		.gain = p->gain,
		.want = p->want,
		.m = p->m,
		.n_share = 1,
		.k = s->k,
		.eps = p->eps,
		.n_rows = p->n_rows};

	int r = op_stage_record(pool, c, &stage, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return p->finish == OP_MATMUL_SWIGLU ? record_swiglu(pool, c, s, ret_err)
					     : record_side_by_side(pool, c, s, ret_err);
}

int op_matrix_record_tile(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_matrix_tile *tile, struct err *ret_err)
{
	struct product s = {.p = p, .tile = *tile, .k = (uint32_t)p->w[0].ne[0]};

	if (!op_matrix_fits(pool, p) || !op_matrix_tile_bind(pool, tile, s.k, &s.kernel))
		return err_set(ret_err, ENOTSUP, "matrix: a shape or tile without kernel");
	if (tile->is_direct && staged_bytes((p->n_rows + tile->bm - 1) / tile->bm * tile->bm, s.k) >
				       p->n_staging_bytes)
		return err_set(ret_err, ENOTSUP, "matrix: no room for whole tiles of x");
	for (uint32_t i = 0; i < p->n_parts; i++)
		s.width += (uint32_t)p->w[i].ne[1];
	if (p->finish == OP_MATMUL_SWIGLU)
		s.width /= 2;
	int r = record_product(pool, c, &s, ret_err);
	if (r)
		err_prefix(ret_err, "matrix");
	return r;
}

int op_matrix_record(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	struct err *ret_err)
{
	struct op_matrix_tile tile = choose_tile(pool, p->n_rows, p->w[0].ne[0]);

	return op_matrix_record_tile(pool, c, p, &tile, ret_err);
}
