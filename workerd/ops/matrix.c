/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix.h"

#include <errno.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/pool.h"

enum {
	X_ALIGN = 64,        /* f16s of a staged row: the longest step */
	PARTIAL_ALIGN = 256, /* bytes */
	MIN_ROWS = 9,        /* up to there W is read once by workerd/ops/matvec.h, too */
	FULL_GROUPS = 256,   /* workgroups that keep all of a large GPU busy */
	MAX_SPLITS = 16,
	MIN_SPLIT_STEPS = 8, /* a run pays for its partial sums */
	STAGE_INVOCATIONS = 256,
	SUM_INVOCATIONS = 128,
	MAX_INVOCATIONS = 1024, /* Vulkan promises fewer, but such devices have no matrices */
};

/* A matrix product with all that was decided about it. */
struct product {
	const struct op_matmul_params *p;
	struct op_matrix_tile tile;
	struct vk_device_matrix matrix;
	uint32_t k;
	uint32_t x_stride;
	uint32_t width; /* of a row of y */
	uint32_t n_splits;
	uint32_t n_split_steps;
};

static const struct {
	uint32_t dtype;
	enum kernels_id id;
} kernels[] = {
	{DTYPE_F32, KERNELS_MATRIX_F32},
	{DTYPE_F16, KERNELS_MATRIX_F16},
	{DTYPE_BF16, KERNELS_MATRIX_BF16},
	{DTYPE_Q8_0, KERNELS_MATRIX_Q8_0},
	{DTYPE_Q4_0, KERNELS_MATRIX_Q4_0},
	{DTYPE_Q4_K, KERNELS_MATRIX_Q4_K},
	{DTYPE_Q6_K, KERNELS_MATRIX_Q6_K},
	{DTYPE_TQ2_0, KERNELS_MATRIX_TQ2_0},
	{DTYPE_Q2_0, KERNELS_MATRIX_Q2_0},
	{DTYPE_Q1_0, KERNELS_MATRIX_Q1_0},
};

static bool find_kernel(uint32_t dtype, enum kernels_id *ret_id)
{
	for (size_t i = 0; i < ARRAY_SIZE(kernels); i++) {
		if (kernels[i].dtype != dtype)
			continue;
		*ret_id = kernels[i].id;
		return kernels_has(kernels[i].id);
	}
	return false;
}

/* Tiles by the most rows that there can be, the smaller ones first. */
static const struct {
	uint32_t n_rows;
	struct op_matrix_tile tile;
} tiles[] = {
	{32, {.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1}},
	{64, {.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1}},
	{UINT32_MAX, {.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1}},
};

/* Narrow enough for a subgroup of eight lanes. */
static const struct op_matrix_tile narrow_tile = {
	.bn = 32, .bm = 32, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1};

static struct op_matrix_tile choose_tile(const struct op_pool *pool, uint32_t n_rows, uint32_t k)
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

/* The device's matrices that the tile wants, or the first listed. */
static bool find_matrix(const struct op_pool *pool, const struct op_matrix_tile *tile,
	struct vk_device_matrix *ret_matrix)
{
	const struct vk_device_info *info = op_pool_get_info(pool);

	for (uint32_t i = 0; i < info->n_matrices; i++) {
		if (tile->n && info->matrices[i].n != tile->n)
			continue;
		*ret_matrix = info->matrices[i];
		return true;
	}
	return false;
}

static uint32_t count_subgroups(const struct op_matrix_tile *t)
{
	return (uint32_t)(t->bn / t->sn) * (t->bm / t->sm);
}

/* See the arrays in shared memory of shaders/matrix.comp. */
static bool tile_fits(const struct op_pool *pool, const struct op_matrix_tile *t, uint32_t k,
	const struct vk_device_matrix *matrix)
{
	const struct vk_device_info *info = op_pool_get_info(pool);

	if (!t->sn || !t->sm || !t->bk || !matrix->n || t->bn % t->sn || t->bm % t->sm ||
		t->sn % matrix->n || t->sm % matrix->m || t->bk % matrix->k || t->bk % 32 ||
		t->bk > X_ALIGN || t->sn % 8 || t->bm % 8 || t->n_buffers < 1 || t->n_buffers > 2 ||
		k % t->bk)
		return false;
	uint64_t n_input = 16ull * t->n_buffers * (t->bn + t->bm) * (t->bk / 8 + 1);
	uint64_t n_output = 16ull * count_subgroups(t) * matrix->m * (t->sn / 4 + 2);
	return n_input <= info->max_shared_bytes && n_output <= info->max_shared_bytes &&
	       count_subgroups(t) * info->subgroup_size <= MAX_INVOCATIONS;
}

static uint64_t round_up(uint64_t v, uint64_t to)
{
	return (v + to - 1) / to * to;
}

/* Of x alone. */
static uint64_t staged_bytes(uint32_t n_rows, uint64_t k)
{
	return round_up(2 * n_rows * round_up(k, X_ALIGN), PARTIAL_ALIGN);
}

/* Where a weight matrix is decoded by kernels that load whole words, and where indices are u32. */
static bool part_fits(const struct weights_tensor *w, uint64_t k)
{
	const struct dtype *dtype = dtype_find(w->dtype);
	enum kernels_id id;

	return find_kernel(w->dtype, &id) && dtype && w->layout == MANIFEST_LAYOUT_RAW &&
	       w->address % 16 == 0 && w->ne[0] == k && k % 32 == 0 && k % dtype->n_block == 0 &&
	       w->ne[1] > 0 && w->ne[1] < 1 << 28 && w->ne[2] == 1 && w->ne[3] == 1 &&
	       w->n_bytes == w->ne[1] * (k / dtype->n_block * dtype->n_bytes);
}

bool op_matrix_fits(const struct op_pool *pool, const struct op_matmul_params *p)
{
	uint64_t k = p->w[0].ne[0], n = 0;

	if (p->is_exact || !op_pool_get_info(pool)->n_matrices || p->n_rows < MIN_ROWS ||
		!p->staging || p->staging % 16 || p->x % 16 || p->gain % 16 || p->n_parts == 0 ||
		p->n_parts > ABI_MATMUL_MAX_PARTS ||
		(p->finish == OP_MATMUL_SWIGLU && p->n_parts != 2) || k == 0 || k >= 1 << 28)
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		if (!part_fits(&p->w[i], k) ||
			(p->finish == OP_MATMUL_SWIGLU && p->w[i].ne[1] != p->w[0].ne[1]))
			return false;
		n += p->w[i].ne[1];
	}
	uint64_t n_staged = staged_bytes(p->n_rows, k);
	struct op_matrix_tile tile = choose_tile(pool, p->n_rows, (uint32_t)k);
	struct vk_device_matrix matrix;
	return n_staged <= p->n_staging_bytes && n_staged / 16 < UINT32_MAX &&
	       n < UINT32_MAX / sizeof(float) && find_matrix(pool, &tile, &matrix) &&
	       tile_fits(pool, &tile, (uint32_t)k, &matrix);
}

uint64_t op_matrix_staging_bytes(uint32_t n_rows, uint64_t k, uint64_t n)
{
	uint64_t n_splits = 1;

	/* Tiles of 128 rows of W and of at most as many of x: no choice makes fewer. */
	uint64_t n_tiles = (n + 127) / 128 * ((n_rows + 127) / 128);
	if (n_tiles < FULL_GROUPS)
		n_splits = (FULL_GROUPS + n_tiles - 1) / n_tiles;
	if (n_splits > MAX_SPLITS)
		n_splits = MAX_SPLITS;
	return staged_bytes(n_rows, k) + (n_splits > 1 ? n_splits * n_rows * n * sizeof(float) : 0);
}

/* Runs of k, so that all of the device has work, where their sums have a place. */
static void split(struct product *s, uint32_t n_tiles, uint32_t width)
{
	uint32_t n_steps = s->k / s->tile.bk;
	uint32_t n = s->tile.n_splits ? s->tile.n_splits : (FULL_GROUPS + n_tiles - 1) / n_tiles;
	uint64_t n_run_bytes = sizeof(float) * (uint64_t)s->p->n_rows * width;
	uint64_t n_room = s->p->n_staging_bytes - staged_bytes(s->p->n_rows, s->k);

	if (!s->tile.n_splits && n > n_steps / MIN_SPLIT_STEPS)
		n = n_steps / MIN_SPLIT_STEPS;
	if (n > MAX_SPLITS)
		n = MAX_SPLITS;
	if (n > n_steps)
		n = n_steps;
	if (n > n_room / n_run_bytes)
		n = (uint32_t)(n_room / n_run_bytes);
	if (n < 1 || n_run_bytes > UINT32_MAX)
		n = 1;
	s->n_split_steps = (n_steps + n - 1) / n;
	s->n_splits = (n_steps + s->n_split_steps - 1) / s->n_split_steps;
}

static int record_stage(
	struct op_pool *pool, struct vk_command *c, const struct product *s, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	struct op_pool_kernel kernel = {
		.id = KERNELS_STAGE,
		.n_subgroups = STAGE_INVOCATIONS / op_pool_get_subgroup_size(pool),
		.n_spec = ABI_STAGE_SPEC_GATHER + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_STAGE_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_STAGE_SPEC_GATHER - ABI_SPEC_KERNEL] = p->want != 0},
	};
	struct abi_stage push = {
		.x = p->x,
		.y = p->staging,
		.gain = p->gain,
		.want = p->want,
		.m = p->m,
		.k = s->k,
		.y_stride = s->x_stride,
		.eps = p->eps,
	};

	int r = op_pool_dispatch(
		pool, c, &kernel, &push, p->n_rows * kernel.n_subgroups, 1, ret_err);
	if (!r)
		vk_command_barrier(c);
	return r;
}

static int record_sum(struct op_pool *pool, struct vk_command *c, const struct product *s,
	const struct abi_matrix *product, uint64_t y, uint32_t width, uint32_t finish,
	struct err *ret_err)
{
	uint32_t n_out = finish == ABI_TILE_FINISH_SWIGLU ? width / 2 : width;
	struct op_pool_kernel kernel = {
		.id = KERNELS_MATRIX_SUM,
		.n_subgroups = SUM_INVOCATIONS / op_pool_get_subgroup_size(pool),
		.n_spec = 1,
		.spec = {[ABI_MATRIX_SUM_SPEC_FINISH - ABI_SPEC_KERNEL] = finish},
	};
	struct abi_matrix_sum push = {
		.partial = product->y,
		.y = y,
		.r = product->r,
		.m = s->p->m,
		.n_splits = s->n_splits,
		.n_split_bytes = product->n_split_bytes,
		.width = width,
		.y_stride = s->width,
	};
	uint32_t n_groups = (n_out + SUM_INVOCATIONS - 1) / SUM_INVOCATIONS;

	vk_command_barrier(c);
	int r = op_pool_dispatch(
		pool, c, &kernel, &push, n_groups * kernel.n_subgroups, s->p->n_rows, ret_err);
	/* The next parts' sums come to the same place. */
	vk_command_barrier(c);
	return r;
}

/* The parts from first on that one dispatch takes; y_at: their first column of y. */
static int record_parts(struct op_pool *pool, struct vk_command *c, struct product *s,
	uint32_t first, uint32_t n_parts, uint32_t finish, uint32_t y_at, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	const struct weights_tensor *w = &p->w[first];
	const struct op_matrix_tile *t = &s->tile;
	bool is_swiglu = finish == ABI_TILE_FINISH_SWIGLU;
	uint32_t n_out = is_swiglu ? t->bn / 2 : t->bn;
	uint32_t n_groups_x = (p->n_rows + t->bm - 1) / t->bm;
	uint32_t n_tiles = 0, width = 0;
	/* The second half of a SwiGLU in two dispatches finds the first in y. */
	uint64_t r_at = finish == ABI_TILE_FINISH_GATE ? p->y : p->r;
	struct op_pool_kernel kernel = {
		.n_subgroups = count_subgroups(t),
		.n_spec = ABI_MATRIX_SPEC_PARTIAL + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_MATRIX_SPEC_BN - ABI_SPEC_KERNEL] = t->bn,
			[ABI_MATRIX_SPEC_BM - ABI_SPEC_KERNEL] = t->bm,
			[ABI_MATRIX_SPEC_BK - ABI_SPEC_KERNEL] = t->bk,
			[ABI_MATRIX_SPEC_SN - ABI_SPEC_KERNEL] = t->sn,
			[ABI_MATRIX_SPEC_SM - ABI_SPEC_KERNEL] = t->sm,
			[ABI_MATRIX_SPEC_N - ABI_SPEC_KERNEL] = s->matrix.n,
			[ABI_MATRIX_SPEC_M - ABI_SPEC_KERNEL] = s->matrix.m,
			[ABI_MATRIX_SPEC_K - ABI_SPEC_KERNEL] = s->matrix.k,
			[ABI_MATRIX_SPEC_BUFFERS - ABI_SPEC_KERNEL] = t->n_buffers,
			[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] = finish},
	};
	struct abi_matrix push = {
		.x = p->staging,
		.y = p->y + 4ull * y_at,
		.r = r_at ? r_at + 4ull * y_at : 0,
		.m = p->m,
		.k = s->k,
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.x_stride = s->x_stride,
		.y_stride = s->width,
	};
	uint64_t y = push.y;

	if (!find_kernel(w->dtype, &kernel.id))
		return err_set(ret_err, ENOTSUP, "block format: found id %u", w->dtype);
	for (uint32_t i = 0; i < n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
		width += push.n[i];
		if (!is_swiglu || i == 0)
			n_tiles += (push.n[i] + n_out - 1) / n_out;
	}
	split(s, n_tiles * n_groups_x, width);
	push.n_splits = s->n_splits;
	push.n_split_steps = s->n_split_steps;
	if (s->n_splits > 1) {
		kernel.spec[ABI_MATRIX_SPEC_PARTIAL - ABI_SPEC_KERNEL] = 1;
		/* But for the order of rows, the finish is matrix-sum's. */
		if (!is_swiglu)
			kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] =
				ABI_TILE_FINISH_STORE;
		push.y = p->staging + staged_bytes(p->n_rows, s->k);
		push.y_stride = width;
		push.n_split_bytes = (uint32_t)(sizeof(float) * p->n_rows * width);
	}
	int r = op_pool_dispatch(pool, c, &kernel, &push, n_groups_x * kernel.n_subgroups,
		n_tiles * s->n_splits, ret_err);
	if (r || s->n_splits == 1)
		return r;
	return record_sum(pool, c, s, &push, y, width, finish, ret_err);
}

/* Runs of parts of one format; their outputs lie side by side in a row of y. */
static int record_runs(
	struct op_pool *pool, struct vk_command *c, struct product *s, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	uint32_t y_at = 0;

	for (uint32_t first = 0, n = 0; first < p->n_parts; first += n) {
		uint32_t width = 0;
		for (n = 0; first + n < p->n_parts && p->w[first + n].dtype == p->w[first].dtype;
			n++)
			width += (uint32_t)p->w[first + n].ne[1];
		int r = record_parts(pool, c, s, first, n, p->finish, y_at, ret_err);
		if (r)
			return r;
		y_at += width;
	}
	return 0;
}

static int record_swiglu(
	struct op_pool *pool, struct vk_command *c, struct product *s, struct err *ret_err)
{
	if (s->p->w[0].dtype == s->p->w[1].dtype)
		return record_parts(pool, c, s, 0, 2, ABI_TILE_FINISH_SWIGLU, 0, ret_err);
	int r = record_parts(pool, c, s, 0, 1, ABI_TILE_FINISH_STORE, 0, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return record_parts(pool, c, s, 1, 1, ABI_TILE_FINISH_GATE, 0, ret_err);
}

int op_matrix_record_tile(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_matrix_tile *tile, struct err *ret_err)
{
	uint64_t k = p->w[0].ne[0];
	struct product s = {
		.p = p,
		.tile = *tile,
		.k = (uint32_t)k,
		.x_stride = (uint32_t)round_up(k, X_ALIGN),
	};

	if (!op_matrix_fits(pool, p) || !find_matrix(pool, tile, &s.matrix) ||
		!tile_fits(pool, tile, s.k, &s.matrix))
		return err_set(ret_err, ENOTSUP, "matrix: a shape or tile without kernel");
	for (uint32_t i = 0; i < p->n_parts; i++)
		s.width += (uint32_t)p->w[i].ne[1];
	if (p->finish == OP_MATMUL_SWIGLU)
		s.width /= 2;
	int r = record_stage(pool, c, &s, ret_err);
	if (!r)
		r = p->finish == OP_MATMUL_SWIGLU ? record_swiglu(pool, c, &s, ret_err)
						  : record_runs(pool, c, &s, ret_err);
	if (r)
		err_prefix(ret_err, "matrix");
	return r;
}

int op_matrix_record(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	struct err *ret_err)
{
	struct op_matrix_tile tile = choose_tile(pool, p->n_rows, (uint32_t)p->w[0].ne[0]);

	return op_matrix_record_tile(pool, c, p, &tile, ret_err);
}
