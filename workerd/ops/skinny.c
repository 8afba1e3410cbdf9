/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/skinny.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/fragment.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/pool.h"

enum {
	ALIGN = 256, /* bytes; where things begin in staging */
	/*
	 * At the begin of staging are the counters of an op that stages x itself, then those of one
	 * that another staged for: these are set to 0 while those are in use.
	 */
	MAX_COUNTERS = 1024,
	X_AT = 2 * 4 * MAX_COUNTERS,
	MAX_EDGE = 1 << 28, /* rows and their bytes are counted in 32 bits */
	MAX_SPLITS = 32,
	MAX_SUBGROUPS = 16, /* of a workgroup */
	MIN_ROWS = 2,
	MIN_WANTED_ROWS = 3, /* dot products of bytes cost less for two */
	MAX_GRID = 65535,    /* in one dimension: Vulkan promises no more */
	STAGE_INVOCATIONS = 256,
	NORM_INVOCATIONS = 512, /* a whole row is read for its norm */
	STAGE_UNIT = 8,         /* numbers of an invocation */
};

/* A block format: shaders/skinny-dtype.glsl. */
struct format {
	uint32_t dtype;
	enum kernels_id kernel;
	uint32_t order;    /* of x: ABI_SKINNY_ORDER_* */
	uint32_t n_slice;  /* k is a multiple of it */
	uint32_t n_stride; /* quads of shared memory of a row; 0: none */
};

static const struct format formats[] = {
#define FORMAT(name, order, n_slice, n_stride)                                                   \
	{                                                                                        \
		DTYPE_##name, KERNELS_SKINNY_##name, ABI_SKINNY_ORDER_##order, n_slice, n_stride \
	}
	FORMAT(F16, BY8, 128, 0),
	FORMAT(BF16, BY8, 128, 0),
	FORMAT(Q8_0, PLAIN, 128, 9),
	FORMAT(Q4_0, PLAIN, 256, 9),
	FORMAT(Q4_K, BY16, 256, 0),
	FORMAT(Q6_K, BY8, 256, 15),
	FORMAT(TQ2_0, BY8, 256, 5),
	FORMAT(Q2_0, PLAIN, 256, 5),
	FORMAT(Q1_0, PLAIN, 256, 3),
#undef FORMAT
};

/* Parts that one dispatch multiplies, and where in staging there is what for them. */
struct run {
	uint32_t first;
	uint32_t n_parts;
	uint32_t finish;
	uint32_t y_at; /* their first column of y */
	const struct format *format;
	struct op_skinny_shape shape;
	uint32_t n_tiles;
	uint64_t x_at, counters_at, partials_at;
};

struct product {
	const struct op_matmul_params *p;
	uint32_t k;
	uint32_t n_sets;
	uint32_t width; /* of a row of y */
	uint32_t n_runs;
	struct run runs[ABI_MATMUL_MAX_PARTS];
	uint64_t counters_at; /* of all runs, one behind the other */
	uint32_t n_counters;
};

static const struct format *find_format(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
		if (formats[i].dtype == dtype)
			return &formats[i];
	return NULL;
}

static uint32_t count_sets(uint32_t n_rows)
{
	return (n_rows + ABI_SKINNY_COLUMNS - 1) / ABI_SKINNY_COLUMNS;
}

static uint64_t round_up(uint64_t v)
{
	return (v + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of x in one order, whole sets. */
static uint64_t staged_bytes(uint32_t n_rows, uint64_t k)
{
	return round_up(2ull * count_sets(n_rows) * ABI_SKINNY_COLUMNS * k);
}

static bool fits_part(const struct weights_tensor *w)
{
	const struct format *f = find_format(w->dtype);
	const struct dtype *dtype = dtype_find(w->dtype);
	uint64_t k = w->ne[0], n = w->ne[1];

	if (!f || !dtype || !kernels_has(f->kernel) || w->layout != MANIFEST_LAYOUT_RAW || k == 0 ||
		k >= MAX_EDGE || k % f->n_slice || n == 0 || n >= MAX_EDGE || w->ne[2] != 1 ||
		w->ne[3] != 1)
		return false;
	return w->n_bytes == n * (k / dtype->n_block * dtype->n_bytes) && w->address % 16 == 0 &&
	       w->n_bytes % 16 == 0 && w->n_bytes < UINT32_MAX;
}

/* Orders in which x is needed. */
static uint32_t count_orders(const struct op_matmul_params *p)
{
	uint32_t seen = 0;

	for (uint32_t i = 0; i < p->n_parts; i++)
		seen |= 1u << find_format(p->w[i].dtype)->order;
	return (uint32_t)__builtin_popcount(seen);
}

bool op_skinny_fits(const struct op_pool *pool, const struct op_matmul_params *p)
{
	uint64_t n = 0;

	if (p->is_exact || !op_pool_get_fragment(pool)->n_lanes || p->n_rows < MIN_ROWS ||
		p->n_rows > OP_SKINNY_MAX_ROWS || !p->staging || p->staging % ALIGN || p->x % 16 ||
		p->gain % 16 || p->n_parts == 0 || p->n_parts > ABI_MATMUL_MAX_PARTS ||
		(p->finish == OP_MATMUL_SWIGLU && p->n_parts != 2))
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		if (!fits_part(&p->w[i]) || p->w[i].ne[0] != p->w[0].ne[0] ||
			(p->finish == OP_MATMUL_SWIGLU && p->w[i].ne[1] != p->w[0].ne[1]))
			return false;
		n += p->w[i].ne[1];
	}
	/* Bytes of a row of y are counted in 32 bits; workgroups have 16 rows of W or more. */
	return n < UINT32_MAX / sizeof(float) && n / 8 + ABI_MATMUL_MAX_PARTS < MAX_GRID &&
	       X_AT + count_orders(p) * staged_bytes(p->n_rows, p->w[0].ne[0]) <=
		       p->n_staging_bytes;
}

bool op_skinny_wants(const struct op_pool *pool, const struct op_matmul_params *p)
{
	/* A software driver compiles such a kernel for seconds, and has no use for registers. */
	return !op_pool_is_software(pool) && p->n_rows >= MIN_WANTED_ROWS &&
	       ((!p->is_staged && !p->next) || p->is_skinny) && op_skinny_fits(pool, p);
}

bool op_skinny_chain(
	const struct op_pool *pool, struct op_matmul_params *p, struct op_matmul_params *next)
{
	if (!op_skinny_fits(pool, p) || !op_skinny_fits(pool, next) || p->is_staged || p->next ||
		p->finish != OP_MATMUL_SWIGLU || p->w[0].dtype != p->w[1].dtype ||
		next->finish == OP_MATMUL_SWIGLU || next->gain || next->want || next->x != p->y ||
		next->w[0].ne[0] != p->w[0].ne[1] || next->n_rows != p->n_rows ||
		next->staging != p->staging || count_orders(next) != 1)
		return false;
	/* y has room for whole sets of f16? */
	if (2 * p->n_rows < count_sets(p->n_rows) * ABI_SKINNY_COLUMNS)
		return false;
	p->next = p->y;
	p->next_order = find_format(next->w[0].dtype)->order;
	p->is_skinny = next->is_skinny = true;
	next->is_staged = true;
	return true;
}

/* Outputs of a workgroup. */
static uint32_t count_outputs(
	const struct op_pool *pool, const struct op_skinny_shape *s, uint32_t finish)
{
	uint32_t n = s->n_groups * s->n_fragments * op_pool_get_fragment(pool)->matrix.m;

	return finish == ABI_TILE_FINISH_SWIGLU ? n / 2 : n;
}

static uint32_t count_tiles(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_skinny_shape *s, uint32_t first, uint32_t n_parts, uint32_t finish)
{
	uint32_t n_out = count_outputs(pool, s, finish), n = 0;

	for (uint32_t i = first; i < first + n_parts; i++)
		if (finish != ABI_TILE_FINISH_SWIGLU || i == first)
			n += ((uint32_t)p->w[i].ne[1] + n_out - 1) / n_out;
	return n;
}

static uint64_t count_shared_bytes(
	const struct op_pool *pool, const struct format *f, const struct op_skinny_shape *s)
{
	uint64_t m = op_pool_get_fragment(pool)->matrix.m;
	uint64_t n_sums = s->n_groups * s->n_fragments * ABI_SKINNY_COLUMNS * m / 4;
	uint64_t n_slices =
		(uint64_t)s->n_groups * s->n_shares * s->n_fragments * m * f->n_stride + 1;

	return 16 * (n_sums > n_slices ? n_sums : n_slices) + 16;
}

static bool fits_shape(const struct op_pool *pool, const struct format *f,
	const struct op_skinny_shape *s, uint32_t finish)
{
	uint32_t n = s->n_groups * s->n_shares;

	return s->n_fragments > 0 && s->n_fragments <= 4 && s->n_groups > 0 && s->n_shares > 0 &&
	       s->n_splits > 0 && s->n_splits <= MAX_SPLITS && n <= MAX_SUBGROUPS &&
	       !(finish == ABI_TILE_FINISH_SWIGLU && s->n_fragments % 2) &&
	       n * op_pool_get_subgroup_size(pool) <= op_pool_get_info(pool)->max_invocations &&
	       count_shared_bytes(pool, f, s) <= op_pool_get_shared_bytes(pool);
}

static uint64_t partial_bytes(const struct op_pool *pool, const struct op_skinny_shape *s,
	uint32_t n_tiles, uint32_t n_sets)
{
	uint64_t n_rows =
		(uint64_t)s->n_groups * s->n_fragments * op_pool_get_fragment(pool)->matrix.m;

	return s->n_splits < 2
		       ? 0
		       : 4ull * n_tiles * s->n_splits * n_rows * n_sets * ABI_SKINNY_COLUMNS;
}

/* Are there counters, and is there room in staging behind n_used, if each part is a dispatch? */
static bool fits_grid(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_skinny_shape *s, uint32_t n_tiles, uint64_t n_used)
{
	uint64_t n_bytes = partial_bytes(pool, s, n_tiles, count_sets(p->n_rows)) + ALIGN;

	return (uint64_t)n_tiles * s->n_splits < MAX_GRID &&
	       (s->n_splits == 1 || (n_tiles <= MAX_COUNTERS / ABI_MATMUL_MAX_PARTS &&
					    n_used + p->n_parts * n_bytes <= p->n_staging_bytes));
}

/* Subgroups of a core of a GPU: those that there are registers for, and those that keep it busy. */
static void get_room(uint32_t n_sets, uint32_t *ret_n_room, uint32_t *ret_n_busy)
{
	*ret_n_room = n_sets <= 2 ? 14 : n_sets <= 4 ? 12 : 8;
	*ret_n_busy = n_sets <= 2 ? 12 : n_sets <= 4 ? 9 : 8;
}

/*
 * How long it takes, in microseconds of an H200, whose measured times for some twenty cuts this
 * follows within a tenth: the core that has most workgroups takes them in rounds, as many at once
 * as it has room for, and longer where those are too few to have enough under way; beside that x is
 * read, and sums of parts are written and read.
 */
static double estimate(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct format *f, const struct op_skinny_shape *s, uint32_t first, uint32_t n_parts)
{
	uint32_t n_sets = count_sets(p->n_rows), n = s->n_groups * s->n_shares, n_room, n_busy;
	uint32_t n_tiles = count_tiles(pool, p, s, first, n_parts, p->finish);
	uint32_t n_slices = (uint32_t)(p->w[first].ne[0] / f->n_slice);
	uint32_t n_cores = op_pool_get_info(pool)->n_cores ? op_pool_get_info(pool)->n_cores : 16;
	uint32_t n_core = (n_tiles * s->n_splits + n_cores - 1) / n_cores;
	uint32_t n_steps = (n_slices + s->n_splits * s->n_shares - 1) / (s->n_splits * s->n_shares);

	get_room(n_sets, &n_room, &n_busy);
	uint32_t n_at_once = n_room / n ? n_room / n : 1, n_rest = n_core % n_at_once * n;
	/* In subgroups that work on a slice, each round at least as if the core were busy. */
	uint32_t n_work = n_core / n_at_once * (n_at_once * n > n_busy ? n_at_once * n : n_busy);
	if (n_rest)
		n_work += n_rest > n_busy ? n_rest : n_busy;
	double slice_us = (0.15 + 0.065 * n_sets) * s->n_fragments / 2;
	double x_us = 0.012 * n_sets * n_core * n_slices / s->n_splits;
	double parts_us = 2 + 0.028 * n_sets * n_core * s->n_groups * s->n_fragments;
	return n_work * n_steps * slice_us + x_us + (s->n_splits > 1 ? parts_us : 0) +
	       0.05 * s->n_shares;
}

struct op_skinny_shape op_skinny_choose(const struct op_pool *pool,
	const struct op_matmul_params *p, uint32_t first, uint32_t n_parts)
{
	const struct format *f = find_format(p->w[first].dtype);
	uint32_t k = (uint32_t)p->w[0].ne[0], n_most, n_busy;
	struct op_skinny_shape s = {0}, best = {2, 1, 1, 1};
	uint64_t n_used = X_AT + count_orders(p) * staged_bytes(p->n_rows, k);
	double least = INFINITY;

	if (op_pool_is_software(pool))
		return best;
	/* A workgroup of more makes a driver give each lane too few registers. */
	get_room(count_sets(p->n_rows), &n_most, &n_busy);
	/* What passes through registers and shared memory has twice as much of both. */
	s.n_fragments = f->n_stride && p->finish != OP_MATMUL_SWIGLU ? 1 : 2;
	for (s.n_groups = 1; s.n_groups <= 8; s.n_groups++) {
		for (s.n_shares = 1; s.n_shares * s.n_groups <= n_most; s.n_shares++) {
			for (s.n_splits = 1; s.n_splits <= 16; s.n_splits++) {
				uint32_t n_tiles =
					count_tiles(pool, p, &s, first, n_parts, p->finish);
				if (!fits_shape(pool, f, &s, p->finish) ||
					s.n_splits * s.n_shares > k / f->n_slice ||
					!fits_grid(pool, p, &s, n_tiles, n_used))
					continue;
				double t = estimate(pool, p, f, &s, first, n_parts);
				if (t < least) {
					least = t;
					best = s;
				}
			}
		}
	}
	return best;
}

static void add_run(
	struct product *s, uint32_t first, uint32_t n_parts, uint32_t finish, uint32_t y_at)
{
	s->runs[s->n_runs++] = (struct run){
		.first = first,
		.n_parts = n_parts,
		.finish = finish,
		.y_at = y_at,
		.format = find_format(s->p->w[first].dtype),
	};
}

/* Runs of parts of one format; their outputs lie side by side in a row of y. */
static void make_runs(struct product *s)
{
	const struct op_matmul_params *p = s->p;

	if (p->finish == OP_MATMUL_SWIGLU && p->w[0].dtype == p->w[1].dtype) {
		add_run(s, 0, 2, ABI_TILE_FINISH_SWIGLU, 0);
	} else if (p->finish == OP_MATMUL_SWIGLU) {
		add_run(s, 0, 1, ABI_TILE_FINISH_STORE, 0);
		add_run(s, 1, 1, ABI_TILE_FINISH_GATE, 0);
	}
	for (uint32_t i = 0, first = 0; p->finish != OP_MATMUL_SWIGLU && i < p->n_parts;) {
		uint32_t at = s->width;
		for (first = i; i < p->n_parts && p->w[i].dtype == p->w[first].dtype; i++)
			s->width += (uint32_t)p->w[i].ne[1];
		add_run(s, first, i - first, p->finish, at);
	}
	if (p->finish == OP_MATMUL_SWIGLU)
		s->width = (uint32_t)p->w[0].ne[1];
}

/* The cut of each run. -ENOTSUP: of this shape there is no kernel. */
static int choose_runs(struct op_pool *pool, struct product *s, const struct op_skinny_shape *shape,
	struct err *ret_err)
{
	for (uint32_t i = 0; i < s->n_runs; i++) {
		struct run *run = &s->runs[i];

		run->shape =
			shape ? *shape : op_skinny_choose(pool, s->p, run->first, run->n_parts);
		if (!fits_shape(pool, run->format, &run->shape, run->finish))
			return err_set(ret_err, ENOTSUP, "skinny: a shape without kernel");
		run->n_tiles =
			count_tiles(pool, s->p, &run->shape, run->first, run->n_parts, run->finish);
		if ((uint64_t)run->n_tiles * run->shape.n_splits >= MAX_GRID)
			return err_set(ret_err, ENOTSUP, "skinny: too many workgroups");
	}
	return 0;
}

/* Places in staging: counters of all runs, x in each order, sums of parts. -ENOTSUP: no room. */
static int place_runs(const struct op_pool *pool, struct product *s, struct err *ret_err)
{
	uint64_t at = X_AT;

	s->counters_at = s->p->is_staged ? 4 * MAX_COUNTERS : 0;
	for (uint32_t i = 0; i < s->n_runs; i++) {
		struct run *run = &s->runs[i];
		uint32_t j = 0;

		while (j < i && s->runs[j].format->order != run->format->order)
			j++;
		run->x_at = j < i ? s->runs[j].x_at : at;
		at += j < i ? 0 : staged_bytes(s->p->n_rows, s->k);
		run->counters_at = s->counters_at + 4ull * s->n_counters;
		s->n_counters += run->shape.n_splits > 1 ? run->n_tiles : 0;
	}
	for (uint32_t i = 0; i < s->n_runs; i++) {
		struct run *run = &s->runs[i];
		run->partials_at = round_up(at);
		at = run->partials_at + partial_bytes(pool, &run->shape, run->n_tiles, s->n_sets);
	}
	if (s->n_counters && (s->n_counters > MAX_COUNTERS || at > s->p->n_staging_bytes))
		return err_set(ret_err, ENOTSUP, "skinny: no room in staging");
	return 0;
}

static int record_stage(struct op_pool *pool, struct vk_command *c, const struct product *s,
	const struct run *run, uint32_t n_counters, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint32_t n_max = p->gain ? NORM_INVOCATIONS : STAGE_INVOCATIONS;
	uint32_t n_units = s->k / STAGE_UNIT;
	uint32_t n_invocations =
		n_units < n_max ? (n_units + n_lanes - 1) / n_lanes * n_lanes : n_max;
	const struct op_pool_kernel kernel = {
		.id = KERNELS_SKINNY_STAGE,
		.n_subgroups = n_invocations / n_lanes,
		.n_spec = ABI_SKINNY_STAGE_SPEC_LANES + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_SKINNY_STAGE_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_SKINNY_STAGE_SPEC_GATHER - ABI_SPEC_KERNEL] = p->want != 0,
			[ABI_SKINNY_STAGE_SPEC_ORDER - ABI_SPEC_KERNEL] = run->format->order,
			[ABI_SKINNY_STAGE_SPEC_LANES - ABI_SPEC_KERNEL] =
				op_pool_get_fragment(pool)->n_lanes},
	};
	const struct abi_skinny_stage push = {.x = p->x,
		.y = p->staging + run->x_at,
		.gain = p->gain,
		.want = p->want,
		.m = p->m,
		.counters = p->staging + s->counters_at,
		.k = s->k,
		.n_sets = s->n_sets,
		.n_counters = n_counters,
		.eps = p->eps};

	return op_pool_dispatch(pool, c, &kernel, &push, p->n_rows * kernel.n_subgroups,
		p->gain ? 1 : (n_units + n_invocations - 1) / n_invocations, ret_err);
}

static int record_run(struct op_pool *pool, struct vk_command *c, const struct product *s,
	const struct run *run, struct err *ret_err)
{
	const struct op_matmul_params *p = s->p;
	const struct weights_tensor *w = &p->w[run->first];
	const struct op_fragment *fragment = op_pool_get_fragment(pool);
	const struct op_pool_kernel kernel = {
		.id = run->format->kernel,
		.n_subgroups = run->shape.n_groups * run->shape.n_shares,
		.n_spec = ABI_SKINNY_SPEC_NEXT + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_SKINNY_SPEC_FRAGMENTS - ABI_SPEC_KERNEL] = run->shape.n_fragments,
			[ABI_SKINNY_SPEC_SETS - ABI_SPEC_KERNEL] = s->n_sets,
			[ABI_SKINNY_SPEC_GROUPS - ABI_SPEC_KERNEL] = run->shape.n_groups,
			[ABI_SKINNY_SPEC_SHARES - ABI_SPEC_KERNEL] = run->shape.n_shares,
			[ABI_SKINNY_SPEC_M - ABI_SPEC_KERNEL] = fragment->matrix.m,
			[ABI_SKINNY_SPEC_K - ABI_SPEC_KERNEL] = fragment->matrix.k,
			[ABI_SKINNY_SPEC_LANES - ABI_SPEC_KERNEL] = fragment->n_lanes,
			[ABI_SKINNY_SPEC_FINISH - ABI_SPEC_KERNEL] = run->finish,
			[ABI_SKINNY_SPEC_STEP - ABI_SPEC_KERNEL] = op_pool_is_software(pool),
			[ABI_SKINNY_SPEC_NEXT - ABI_SPEC_KERNEL] = p->next ? 1 + p->next_order : 0},
	};
	/* The second half of a SwiGLU in two dispatches finds the first in y. */
	uint64_t r_at = run->finish == ABI_TILE_FINISH_GATE ? p->y : p->r;
	struct abi_skinny push = {
		.x = p->is_staged ? p->x : p->staging + run->x_at,
		.y = p->y + 4ull * run->y_at,
		.r = r_at ? r_at + 4ull * run->y_at : 0,
		.m = p->m,
		.partials = p->staging + run->partials_at,
		.counters = p->staging + run->counters_at,
		.next = p->next,
		.next_counters = p->staging + 4 * MAX_COUNTERS,
		.n_next_counters = MAX_COUNTERS,
		.n_slices = s->k / run->format->n_slice,
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.y_stride = s->width,
		.n_splits = run->shape.n_splits,
	};

	for (uint32_t i = 0; i < run->n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
	}
	return op_pool_dispatch(pool, c, &kernel, &push,
		run->n_tiles * run->shape.n_splits * kernel.n_subgroups, 1, ret_err);
}

static int record_product(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_skinny_shape *shape, struct err *ret_err)
{
	struct product s = {.p = p, .k = (uint32_t)p->w[0].ne[0], .n_sets = count_sets(p->n_rows)};

	if (!op_skinny_fits(pool, p))
		return err_set(ret_err, ENOTSUP, "skinny: a product without kernel");
	make_runs(&s);
	int r = choose_runs(pool, &s, shape, ret_err);
	if (!r)
		r = place_runs(pool, &s, ret_err);
	uint32_t seen = 0;
	for (uint32_t i = 0; !r && !p->is_staged && i < s.n_runs; i++) {
		uint32_t bit = 1u << s.runs[i].format->order;
		if (!(seen & bit))
			r = record_stage(pool, c, &s, &s.runs[i], seen ? 0 : s.n_counters, ret_err);
		seen |= bit;
	}
	if (!r && !p->is_staged)
		vk_command_barrier(c);
	for (uint32_t i = 0; !r && i < s.n_runs; i++) {
		if (s.runs[i].finish == ABI_TILE_FINISH_GATE)
			vk_command_barrier(c);
		r = record_run(pool, c, &s, &s.runs[i], ret_err);
	}
	return r;
}

int op_skinny_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_skinny_shape *shape, struct err *ret_err)
{
	return record_product(pool, c, p, shape, ret_err);
}

int op_skinny_record(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	struct err *ret_err)
{
	return record_product(pool, c, p, NULL, ret_err);
}
