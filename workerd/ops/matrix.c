/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix.h"

#include <errno.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/stage.h"
#include "workerd/tuning.h"

enum {
	PART_ALIGN = 256,   /* bytes; where things begin in staging behind x */
	MIN_ROWS = 9,       /* up to there W is read once by workerd/ops/matvec.h, too */
	CORE_SUBGROUPS = 8, /* that a core of a GPU has registers for */
	MIN_WIDE_ROWS = 65,
	/* Of a device with 132 cores, whose reads of it cost as much as 60 to 100 rows' product. */
	MIN_SLOW_DECODED_ROWS = 257,
	MIN_DECODED_ROWS = 769,
	SUM_INVOCATIONS = 128,
	DECODE_INVOCATIONS = 128,
	DECODE_ELEMENTS = 8, /* an invocation decodes so many or more */
	MAX_GRID = 65535,    /* in one dimension: Vulkan promises no more */
	BLOCK_ROWS = 16,     /* of shaders/matrix-blocks.comp, which takes them in pairs */
};

/* A matrix product with all that was decided about it. */
struct product {
	const struct op_matmul_params *p;
	struct op_matrix_tile tile;
	struct op_pool_kernel kernel; /* of the tile */
	uint32_t k;
	uint32_t width; /* of a row of y */
};

/* A dispatch's parts, and where there is room in staging behind x. */
struct dispatch {
	uint32_t first;
	uint32_t n_parts;
	uint32_t finish;
	uint32_t y_at;    /* their first column of y */
	uint64_t free_at; /* in staging */
	bool is_decoded;
};

/* Tiles by the most rows that there can be, the smaller ones first. */
static const struct {
	uint32_t n_rows;
	struct op_matrix_tile tile;
} tiles[] = {
	{32, {.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1}},
	{64, {.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1}},
	{UINT32_MAX, {.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1}},
};

/* For devices whose matrices' order is known; up to 128 rows of x, and with more. */
static const struct op_matrix_tile wide_tiles[] = {
	{.bn = 256, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
	{.bn = 128, .bm = 256, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
};

/* Narrow enough for a subgroup of eight lanes. */
static const struct op_matrix_tile narrow_tile = {
	.bn = 32, .bm = 32, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1};

static uint64_t whole_blocks(uint64_t n_rows)
{
	return (n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
}

/* Of x alone. */
static uint64_t staged_bytes(const struct op_matrix_tile *t, uint32_t n_rows, uint64_t k)
{
	return 2 * k * (t->is_wide ? whole_blocks(n_rows) : n_rows);
}

/* The most groups of a dispatch for n rows of W. */
static uint64_t count_groups(const struct op_matrix_tile *t, uint64_t n, uint32_t n_rows)
{
	return (n / (t->bn / 2) + ABI_MATMUL_MAX_PARTS) * ((n_rows + t->bm - 1) / t->bm);
}

/* Does the device have it, staging room for it, and a grid the groups of n rows of W? */
static bool fits_tile(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matrix_tile *t)
{
	uint64_t k = p->w[0].ne[0], n = 0;
	struct op_pool_kernel kernel;

	if (!op_matrix_tile_bind(pool, t, k, &kernel))
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++)
		n += p->w[i].ne[1];
	if (count_groups(t, n, p->n_rows) >= MAX_GRID / 2)
		return false;
	return staged_bytes(t, t->is_direct ? (p->n_rows + t->bm - 1) / t->bm * t->bm : p->n_rows,
		       k) <= p->n_staging_bytes;
}

/*
 * Words of some formats lie so that a step of the product waits for them; and with very many rows
 * what W costs once is less than what each of their tiles pays for it.
 */
static bool is_better_decoded(const struct op_matmul_params *p, const struct op_matrix_tile *tile)
{
	uint64_t k = p->w[0].ne[0], n_bytes = staged_bytes(tile, p->n_rows, k);
	uint32_t dtype = p->w[0].dtype;
	bool is_slow = dtype == DTYPE_Q6_K || dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0;

	for (uint32_t i = 0; i < p->n_parts; i++)
		n_bytes += 2 * k * whole_blocks(p->w[i].ne[1]);
	return n_bytes + OP_MATRIX_PARTIAL_BYTES <= p->n_staging_bytes &&
	       p->n_rows >= (is_slow ? MIN_SLOW_DECODED_ROWS : MIN_DECODED_ROWS) &&
	       (is_slow || dtype == DTYPE_Q4_K);
}

/* False where the order of matrices is not known, or there are few rows. */
static bool choose_wide(const struct op_pool *pool, const struct op_matmul_params *p,
	struct op_matrix_tile *ret_tile)
{
	struct op_matrix_tile tile = wide_tiles[p->n_rows > wide_tiles[0].bm];

	if (!op_pool_get_matrix_order(pool) || p->n_rows < MIN_WIDE_ROWS)
		return false;
	if (is_better_decoded(p, &tile)) {
		tile = wide_tiles[0];
		tile.is_decoded = true;
	}
	if (!fits_tile(pool, p, &tile))
		return false;
	*ret_tile = tile;
	return true;
}

struct op_matrix_tile op_matrix_choose(const struct op_pool *pool, const struct op_matmul_params *p)
{
	const struct tuning_choice *tuned = tuning_find(op_pool_get_tuning(pool), p, TUNING_MATRIX);
	uint64_t k = p->w[0].ne[0];
	struct op_matrix_tile tile = narrow_tile;
	uint32_t i = 0;

	if (tuned && fits_tile(pool, p, &tuned->tile))
		return tuned->tile;
	if (choose_wide(pool, p, &tile))
		return tile;
	if (op_pool_get_subgroup_size(pool) >= 32) {
		while (p->n_rows > tiles[i].n_rows)
			i++;
		tile = tiles[i].tile;
	}
	if (k % tile.bk)
		tile.bk = 32;
	return tile;
}

static uint64_t round_up(uint64_t v)
{
	return (v + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

/*
 * Workgroups that share the last tiles, see op_matrix_tile.n_streams; each has places for two
 * tiles' sums in n_bytes. As many as chosen or none: fewer would each have more than a full
 * device's.
 */
static uint32_t choose_streams(
	const struct op_pool *pool, const struct op_matrix_tile *t, uint64_t n_bytes)
{
	uint32_t n_subgroups = (uint32_t)(t->bn / t->sn) * (t->bm / t->sm);
	uint32_t n = n_subgroups < CORE_SUBGROUPS ? CORE_SUBGROUPS / n_subgroups : 1;

	n = t->n_streams ? t->n_streams : n * op_pool_get_info(pool)->n_cores;
	if (t->n_streams == OP_MATRIX_TILE_NO_STREAMS ||
		n > n_bytes / (2ull * t->bn * t->bm * sizeof(float)))
		return 0;
	return n;
}

uint64_t op_matrix_get_decoded_bytes(const struct vk_device_info *info)
{
	return !info->is_software && info->n_matrices ? 2ull * 4096 * 14336 : 0;
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
	struct op_matrix_tile tile = op_matrix_choose(pool, p);
	/* Quads of x and bytes of a row of y are counted in 32 bits. */
	return staged_bytes(&tile, p->n_rows, k) / 16 < UINT32_MAX &&
	       n < UINT32_MAX / sizeof(float) && fits_tile(pool, p, &tile);
}

/* Finishes what was shared. */
static int record_sum(struct op_pool *pool, struct vk_command *c, const struct product *s,
	const struct op_pool_kernel *product, const struct abi_matrix *push, uint32_t n_tiles,
	struct err *ret_err)
{
	struct op_pool_kernel kernel = *product;
	uint32_t n_x = n_tiles < 2 * push->n_streams ? n_tiles : 2 * push->n_streams;

	kernel.id = KERNELS_MATRIX_SUM;
	kernel.n_subgroups = SUM_INVOCATIONS / op_pool_get_subgroup_size(pool);
	vk_command_barrier(c);
	return op_pool_dispatch(pool, c, &kernel, push, n_x * kernel.n_subgroups,
		(s->tile.bm + ABI_MATRIX_SUM_ROWS - 1) / ABI_MATRIX_SUM_ROWS, ret_err);
}

/* What makes f16 of a part: rows side by side, or blocks of them. False where nothing does. */
static bool find_decoder(const struct product *s, uint32_t dtype, enum kernels_id *ret_id)
{
	enum kernels_id wide;

	/* A block has rows of one matrix. */
	if (!s->tile.is_decoded || (s->tile.is_wide && s->p->finish == OP_MATMUL_SWIGLU &&
					   s->tile.sn / 2 % BLOCK_ROWS))
		return false;
	return s->tile.is_wide ? op_matrix_tile_find_wide(dtype, &wide, ret_id)
			       : op_matrix_tile_find_decoder(dtype, ret_id);
}

/* Groups of it along k, and rows of groups; 32 invocations make 64 of k of blocks. */
static void get_decoder_grid(const struct product *s, uint32_t n, uint32_t *ret_x, uint32_t *ret_y)
{
	uint32_t n_group = DECODE_INVOCATIONS * (s->tile.is_wide ? 2 : DECODE_ELEMENTS);

	*ret_x = (s->k + n_group - 1) / n_group;
	*ret_y = s->tile.is_wide ? (uint32_t)whole_blocks(n) / BLOCK_ROWS : n;
}

/* W as f16 behind x, where that is to be and has room; push reads it there then. */
static int record_decode(struct op_pool *pool, struct vk_command *c, const struct product *s,
	struct dispatch *d, struct abi_matrix *push, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	struct op_pool_kernel kernel = {
		.n_subgroups = DECODE_INVOCATIONS / op_pool_get_subgroup_size(pool)};
	uint64_t n_bytes[ABI_MATMUL_MAX_PARTS] = {0}, at = d->free_at, n_all = 0;
	uint32_t n_x, n_y;

	if (!find_decoder(s, p->w[d->first].dtype, &kernel.id))
		return 0;
	for (uint32_t i = 0; i < d->n_parts; i++) {
		n_bytes[i] =
			2ull * s->k * (s->tile.is_wide ? whole_blocks(push->n[i]) : push->n[i]);
		n_all += n_bytes[i];
		get_decoder_grid(s, push->n[i], &n_x, &n_y);
		if (n_y > MAX_GRID)
			return 0;
	}
	if (at + n_all > p->n_staging_bytes)
		return 0;
	for (uint32_t i = 0; i < d->n_parts; i++) {
		const struct abi_matrix_decode decode = {.w = push->w[i],
			.y = p->staging + at,
			.n = push->n[i],
			.k = s->k,
			.n_row_bytes = push->n_row_bytes};
		get_decoder_grid(s, push->n[i], &n_x, &n_y);
		int r = op_pool_dispatch(
			pool, c, &kernel, &decode, n_x * kernel.n_subgroups, n_y, ret_err);
		if (r)
			return r;
		push->w[i] = decode.y;
		at += n_bytes[i];
	}
	push->n_row_bytes = 2 * s->k;
	d->free_at = round_up(at);
	d->is_decoded = true;
	vk_command_barrier(c);
	return 0;
}

/* What multiplies the part, or what has been made of it. */
static enum kernels_id find_product(
	const struct product *s, const struct weights_tensor *w, bool is_decoded)
{
	enum kernels_id id = KERNELS_MATRIX_F16, blocks;

	if (s->tile.is_wide && is_decoded)
		return KERNELS_MATRIX_WIDE_BLOCKS;
	if (s->tile.is_wide)
		(void)op_matrix_tile_find_wide(w->dtype, &id, &blocks);
	else if (!is_decoded)
		(void)op_matrix_tile_find_kernel(w, false, &id);
	return id;
}

static int record_parts(struct op_pool *pool, struct vk_command *c, const struct product *s,
	struct dispatch *d, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	const struct weights_tensor *w = &p->w[d->first];
	struct op_pool_kernel kernel = s->kernel;
	bool is_swiglu = d->finish == ABI_TILE_FINISH_SWIGLU;
	uint32_t n_out = is_swiglu ? s->tile.bn / 2 : s->tile.bn;
	uint32_t n_tiles = 0;
	/* The second half of a SwiGLU in two dispatches finds the first in y. */
	uint64_t r_at = d->finish == ABI_TILE_FINISH_GATE ? p->y : p->r;
	struct abi_matrix push = {
		.x = p->staging,
		.y = p->y + 4ull * d->y_at,
		.r = r_at ? r_at + 4ull * d->y_at : 0,
		.m = p->m,
		.k = s->k,
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.y_stride = s->width,
	};

	for (uint32_t i = 0; i < d->n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
		if (!is_swiglu || i == 0)
			n_tiles += (push.n[i] + n_out - 1) / n_out;
	}
	n_tiles *= (p->n_rows + s->tile.bm - 1) / s->tile.bm;
	d->free_at = round_up(staged_bytes(&s->tile, p->n_rows, s->k));
	int r = record_decode(pool, c, s, d, &push, ret_err);
	if (r)
		return r;
	kernel.id = find_product(s, w, d->is_decoded);
	kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] = d->finish;
	if (d->free_at < p->n_staging_bytes) {
		push.n_streams = choose_streams(pool, &s->tile, p->n_staging_bytes - d->free_at);
		push.partial = p->staging + d->free_at;
	}
	r = op_pool_dispatch(pool, c, &kernel, &push,
		(push.n_streams + n_tiles) * kernel.n_subgroups, 1, ret_err);
	if (!r && push.n_streams)
		r = record_sum(pool, c, s, &kernel, &push, n_tiles, ret_err);
	/* What the next parts put into staging comes to the same place. */
	if (!r && (push.n_streams || d->is_decoded))
		vk_command_barrier(c);
	return r;
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
		.n_rows = p->n_rows,
		.is_blocks = s->tile.is_wide};

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
	if (!fits_tile(pool, p, tile))
		return err_set(ret_err, ENOTSUP, "matrix: no room for whole tiles of x, or groups");
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
	struct op_matrix_tile tile = op_matrix_choose(pool, p);

	return op_matrix_record_tile(pool, c, p, &tile, ret_err);
}
