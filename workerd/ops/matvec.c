/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matvec.h"

#include <errno.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matvec-format.h"
#include "workerd/ops/pool.h"
#include "workerd/tuning.h"

uint64_t op_matvec_staging_bytes(uint64_t k, uint32_t n_rows)
{
	return ABI_QUANT_ROW_BYTES(k) * n_rows;
}

static bool is_by_bytes(const struct op_matmul_params *p)
{
	return op_matvec_format_find(p->w[0].dtype)->order != OP_MATVEC_FORMAT_NO_ORDER;
}

bool op_matvec_fits(const struct op_pool *pool, const struct op_matmul_params *p)
{
	(void)pool;
	if (p->is_exact || p->n_rows == 0 || p->n_rows > OP_MATVEC_MAX_COLUMNS || p->n_parts == 0 ||
		p->n_parts > ABI_MATMUL_MAX_PARTS ||
		(p->finish == OP_MATMUL_SWIGLU && p->n_parts != 2))
		return false;
	uint64_t n = 0;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		const struct weights_tensor *t = &p->w[i];
		if (!op_matvec_format_fits(t) || t->ne[2] != 1 || t->ne[0] != p->w[0].ne[0] ||
			op_matvec_format_find(t->dtype)->order !=
				op_matvec_format_find(p->w[0].dtype)->order)
			return false;
		if (p->finish == OP_MATMUL_SWIGLU &&
			(t->ne[1] != p->w[0].ne[1] || t->dtype != p->w[0].dtype))
			return false;
		n += t->ne[1];
	}
	if (n > UINT32_MAX / sizeof(float))
		return false;
	if (!is_by_bytes(p))
		return p->x % 16 == 0 && p->gain % 16 == 0;
	return p->staging && p->staging % 16 == 0 &&
	       p->n_staging_bytes >= op_matvec_staging_bytes(p->w[0].ne[0], p->n_rows);
}

/* Columns of y. */
static uint32_t get_width(const struct op_matmul_params *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->n_parts; i++)
		n += (uint32_t)p->w[i].ne[1];
	return p->finish == OP_MATMUL_SWIGLU ? n / 2 : n;
}

bool op_matvec_chain(
	const struct op_pool *pool, struct op_matmul_params *p, struct op_matmul_params *next)
{
	if (!op_matvec_fits(pool, p) || !op_matvec_fits(pool, next) || !is_by_bytes(next) ||
		next->want || (p->n_parts > 1 && p->finish != OP_MATMUL_SWIGLU) ||
		next->w[0].ne[0] != get_width(p) || next->n_rows != p->n_rows ||
		next->staging == p->staging)
		return false;
	p->next = next->staging;
	p->next_gain = next->gain;
	p->next_order = op_matvec_format_find(next->w[0].dtype)->order;
	next->is_staged = true;
	return true;
}

static uint32_t get_split(const struct op_matvec_shape *s)
{
	return s->n_split ? s->n_split : 1;
}

/* Subgroups of a workgroup, or groups of those that share tiles. */
static uint32_t count_teams(const struct op_matvec_shape *s)
{
	return s->n_subgroups / get_split(s);
}

bool op_matvec_take_staged(const struct op_pool *pool, struct op_matmul_params *next,
	uint32_t width, uint32_t *ret_order)
{
	if (!op_matvec_fits(pool, next) || !is_by_bytes(next) || next->want || next->gain ||
		next->w[0].ne[0] != width)
		return false;
	next->is_staged = true;
	*ret_order = op_matvec_format_find(next->w[0].dtype)->order;
	return true;
}

/* Outputs of a workgroup in one go. */
static uint32_t count_outputs(const struct op_matmul_params *p, const struct op_matvec_shape *s)
{
	return count_teams(s) * (p->finish == OP_MATMUL_SWIGLU ? s->n_rows / 2 : s->n_rows);
}

/* Units that a workgroup has room for which quantises: few sizes, each is a pipeline. */
static uint32_t count_units(uint64_t k)
{
	uint32_t n = 16;

	while (n < k / OP_MATVEC_FORMAT_UNIT)
		n += n % 64 == 0 ? 64 : n;
	return n;
}

/* Shared memory of a workgroup but for sums of shared tiles. */
static uint64_t count_shared_bytes(const struct op_pool *pool, const struct op_matvec_format *f,
	const struct op_matvec_shape *s, uint64_t k)
{
	uint32_t n_rows = s->n_subgroups * (s->n_hold ? 1 : s->n_rows);
	uint64_t n_w = op_matvec_format_count_shared(
		f, n_rows, s->n_unroll, op_pool_get_subgroup_size(pool));
	uint64_t n_x = s->source == OP_MATVEC_OWN ? count_units(k) * 80ull : 24;

	return n_w + s->n_columns * (n_x + 4 * s->n_subgroups + 128);
}

/* Sums in shared memory of one tile of each team. */
static uint64_t count_sum_bytes(const struct op_pool *pool, const struct op_matvec_shape *s)
{
	return get_split(s) == 1 ? 0
				 : 4ull * op_pool_get_subgroup_size(pool) * s->n_subgroups *
					   s->n_hold * s->n_rows;
}

/*
 * Tiles of each team that a workgroup makes before they are added up, of n_tiles: all of them where
 * there is room. 0: there is none for one, or for a whole run that the next op needs.
 */
static uint32_t count_run(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matvec_shape *s, const struct op_matvec_format *f, uint32_t n_tiles)
{
	uint64_t n_sum = count_sum_bytes(pool, s);
	uint64_t n_all = op_pool_get_shared_bytes(pool);
	uint64_t n_used = count_shared_bytes(pool, f, s, p->w[0].ne[0]);
	uint32_t n_least = p->next ? 32 / count_outputs(p, s) : 1;

	if (n_used > n_all || n_least * n_sum > n_all - n_used)
		return 0;
	if (p->next || n_sum == 0)
		return n_least;
	uint64_t n_most = (n_all - n_used) / n_sum;
	uint32_t n_teams = (s->n_groups ? s->n_groups : n_tiles) * count_teams(s);
	uint32_t n_own = (n_tiles + n_teams - 1) / n_teams;
	uint64_t n_runs = (n_own + n_most - 1) / n_most;

	return (uint32_t)((n_own + n_runs - 1) / n_runs);
}

static bool fits(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matvec_shape *s)
{
	if (s->n_subgroups * op_pool_get_subgroup_size(pool) >
		op_pool_get_info(pool)->max_invocations)
		return false;
	for (uint32_t i = 0; i < p->n_parts; i++)
		if (count_run(pool, p, s, op_matvec_format_find(p->w[i].dtype), 1) == 0)
			return false;
	return true;
}

/* Of the parts from first on, n_parts of them. */
static uint32_t count_tiles(const struct op_matmul_params *p, const struct op_matvec_shape *s,
	uint32_t first, uint32_t n_parts)
{
	bool is_swiglu = p->finish == OP_MATMUL_SWIGLU;
	uint32_t n_out = is_swiglu ? s->n_rows / 2 : s->n_rows, n = 0;

	for (uint32_t i = first; i < first + (is_swiglu ? 1 : n_parts); i++)
		n += ((uint32_t)p->w[i].ne[1] + n_out - 1) / n_out;
	return n;
}

/* Can x of that shape stay in registers, if it is to? */
static bool can_hold(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matvec_shape *s)
{
	/* Numbers that a subgroup holds. */
	uint64_t n = (uint64_t)OP_MATVEC_FORMAT_UNIT * op_pool_get_subgroup_size(pool) * s->n_hold;
	uint64_t k = p->w[0].ne[0];

	if (s->n_hold == 0)
		return get_split(s) == 1;
	return is_by_bytes(p) && s->n_hold <= OP_MATVEC_MAX_HOLD && get_split(s) * n >= k &&
	       (get_split(s) - 1) * n < k && get_split(s) * (n - n / s->n_hold) < k &&
	       s->n_subgroups % get_split(s) == 0 && s->n_unroll == 1 && s->n_columns == 1 &&
	       (s->source != OP_MATVEC_OWN || (p->x % 16 == 0 && p->gain % 16 == 0));
}

/* Does the shape go with this op and this device? */
static bool fits_shape(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matvec_shape *s)
{
	bool is_swiglu = p->finish == OP_MATMUL_SWIGLU;

	return !(is_swiglu && s->n_rows < 2) && (s->source == OP_MATVEC_STAGED) == p->is_staged &&
	       can_hold(pool, p, s) && !(p->next && 32 % count_outputs(p, s) != 0) &&
	       fits(pool, p, s);
}

/* Streams of tiles, each a subgroup's: 16 a core. A driver leaves each lane the registers it needs.
 */
enum { N_CORE_SUBGROUPS = 16, MAX_CHOSEN_HOLD = 2 };

/* Tiles for so many rounds of all streams that it does not count who takes one more than others. */
static bool has_many_tiles(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matvec_shape *s)
{
	enum { MIN_ROUNDS = 6 };
	uint32_t n_cores = op_pool_get_info(pool)->n_cores;

	return n_cores &&
	       count_tiles(p, s, 0, p->n_parts) >= MIN_ROUNDS * N_CORE_SUBGROUPS * n_cores;
}

/* Units of x of a lane, of one subgroup. */
static uint32_t count_lane_units(const struct op_pool *pool, const struct op_matmul_params *p)
{
	uint32_t n = OP_MATVEC_FORMAT_UNIT * op_pool_get_subgroup_size(pool);

	return (uint32_t)((p->w[0].ne[0] + n - 1) / n);
}

/*
 * One row of x stays in registers, and a workgroup a core walks over the tiles. All of it measured
 * in a model on an H200: k of 4096 takes two units a lane, and workgroups that each make the bytes
 * of x for themselves cost less than a dispatch for it does; of what is staged only with many
 * tiles. Of long k seven subgroups that share it were faster for blocks that go through shared
 * memory (Q6_K 18.6 us against 24.1 alone), and not for others.
 */
static void choose_kept(
	const struct op_pool *pool, const struct op_matmul_params *p, struct op_matvec_shape *s)
{
	enum { MIN_LONG_UNITS = 5, MAX_CHOSEN_SPLIT = 16 };
	struct op_matvec_shape kept = *s;
	uint32_t n_units = count_lane_units(pool, p);
	bool is_long = n_units >= MIN_LONG_UNITS;
	const struct op_matvec_format *f = op_matvec_format_find(p->w[0].dtype);

	if (op_pool_is_software(pool) || p->next || p->n_rows > 1 ||
		op_pool_get_info(pool)->n_cores == 0 || (n_units > MAX_CHOSEN_HOLD && !is_long) ||
		(is_long && f->n_group_words == 0) ||
		(!is_long && p->is_staged && !has_many_tiles(pool, p, s)))
		return;
	kept.n_hold = is_long ? 1 + (n_units - 1) / MAX_CHOSEN_SPLIT : n_units;
	kept.n_split = (n_units + kept.n_hold - 1) / kept.n_hold;
	kept.n_groups = op_pool_get_info(pool)->n_cores;
	if (!p->is_staged && !is_long && p->x % 16 == 0 && p->gain % 16 == 0)
		kept.source = OP_MATVEC_OWN;
	kept.n_subgroups = N_CORE_SUBGROUPS / kept.n_split * kept.n_split;
	while (kept.n_subgroups > kept.n_split && !fits_shape(pool, p, &kept))
		kept.n_subgroups -= kept.n_split;
	if (fits_shape(pool, p, &kept))
		*s = kept;
}

/* What is chosen where nothing else is. */
static struct op_matvec_shape choose_plain(
	const struct op_pool *pool, const struct op_matmul_params *p)
{
	return (struct op_matvec_shape){.n_rows = 2,
		.n_columns = 1,
		.n_unroll = 1,
		.n_subgroups = op_pool_is_software(pool) ? 1 : 4,
		.is_ahead = !op_pool_is_software(pool),
		.source = p->is_staged ? OP_MATVEC_STAGED : OP_MATVEC_STAGE};
}

bool op_matvec_wants_chain(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matmul_params *next)
{
	struct op_matvec_shape s = choose_plain(pool, next);

	if (op_pool_is_software(pool) || p->finish != OP_MATMUL_ADD)
		return op_pool_is_software(pool);
	return next->n_rows > 1 || count_lane_units(pool, next) > MAX_CHOSEN_HOLD ||
	       !has_many_tiles(pool, next, &s);
}

struct op_matvec_shape op_matvec_choose(
	const struct op_pool *pool, const struct op_matmul_params *p)
{
	const struct tuning_choice *tuned = tuning_find(op_pool_get_tuning(pool), p, TUNING_MATVEC);
	struct op_matvec_shape s = choose_plain(pool, p);

	if (tuned && fits_shape(pool, p, &tuned->shape))
		return tuned->shape;
	while (s.n_columns < p->n_rows)
		s.n_columns *= 2;
	/* A run of 32 outputs is a workgroup's: as many subgroups as that allows. */
	if (p->next && !op_pool_is_software(pool)) {
		bool is_narrow = s.n_columns == 1 && p->finish != OP_MATMUL_SWIGLU;
		s.n_rows = is_narrow ? 1 : 2;
		s.n_subgroups = is_narrow ? 32 : 16;
	}
	/* Wide subgroups, small workgroups and small shared memories. */
	while (!fits(pool, p, &s) && s.n_subgroups > 1)
		s.n_subgroups /= 2;
	choose_kept(pool, p, &s);
	return s;
}

int op_matvec_record_quantize(struct op_pool *pool, struct vk_command *c,
	const struct abi_quantize *push, uint32_t n_rows, uint32_t order, struct err *ret_err)
{
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	struct op_pool_kernel kernel = {
		.id = KERNELS_QUANTIZE,
		.n_subgroups = op_pool_is_software(pool) ? 8 : 4,
		.n_spec = ABI_QUANT_SPEC_ORDER + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_QUANT_SPEC_NORM - ABI_SPEC_KERNEL] = push->gain != 0,
			[ABI_QUANT_SPEC_GATHER - ABI_SPEC_KERNEL] = push->want != 0,
			[ABI_QUANT_SPEC_ORDER - ABI_SPEC_KERNEL] = order},
	};

	int r = op_pool_dispatch(
		pool, c, &kernel, push, (push->k / 4 + n_lanes - 1) / n_lanes, n_rows, ret_err);
	if (r == 0)
		vk_command_barrier(c);
	return r;
}

/* Are rows of k whole rounds of all lanes? */
static bool is_whole(const struct op_pool *pool, const struct op_matvec_shape *s,
	const struct op_matvec_format *f, uint32_t k)
{
	uint32_t n_units = s->n_unroll * op_pool_get_subgroup_size(pool);

	return s->n_hold ? k == f->n_unit * n_units * s->n_hold * get_split(s)
			 : k / f->n_unit % n_units == 0;
}

/* The parts from first on, all of one format; y_at: their first column of y. */
static int record_parts(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_matvec_shape *s, uint32_t first,
	uint32_t n_parts, uint32_t y_at, uint32_t y_stride, struct err *ret_err)
{
	const struct weights_tensor *w = &p->w[first];
	const struct op_matvec_format *f = op_matvec_format_find(w->dtype);
	uint32_t k = (uint32_t)w->ne[0];
	bool is_own = s->source == OP_MATVEC_OWN || !is_by_bytes(p);
	uint32_t n_tiles = count_tiles(p, s, first, n_parts);
	uint32_t n_run = count_run(pool, p, s, f, n_tiles);
	struct op_pool_kernel kernel = {
		.id = f->kernel,
		.n_subgroups = s->n_subgroups,
		.n_spec = ABI_MATVEC_SPEC_RUN + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_QUANT_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_QUANT_SPEC_GATHER - ABI_SPEC_KERNEL] = is_own && p->want != 0,
			[ABI_QUANT_SPEC_ORDER - ABI_SPEC_KERNEL] = is_by_bytes(p) ? f->order : 0,
			[ABI_MATVEC_SPEC_ROWS - ABI_SPEC_KERNEL] = s->n_rows,
			[ABI_MATVEC_SPEC_COLUMNS - ABI_SPEC_KERNEL] = s->n_columns,
			[ABI_MATVEC_SPEC_UNROLL - ABI_SPEC_KERNEL] = s->n_unroll,
			[ABI_MATVEC_SPEC_AHEAD - ABI_SPEC_KERNEL] = s->is_ahead,
			[ABI_MATVEC_SPEC_FINISH - ABI_SPEC_KERNEL] = p->finish,
			[ABI_MATVEC_SPEC_UNITS - ABI_SPEC_KERNEL] = is_own ? count_units(k) : 0,
			[ABI_MATVEC_SPEC_WHOLE - ABI_SPEC_KERNEL] = is_whole(pool, s, f, k),
			[ABI_MATVEC_SPEC_NEXT - ABI_SPEC_KERNEL] = p->next ? 1 + p->next_order : 0,
			[ABI_MATVEC_SPEC_NEXT_NORM - ABI_SPEC_KERNEL] = p->next && p->next_gain,
			[ABI_MATVEC_SPEC_HOLD - ABI_SPEC_KERNEL] = s->n_hold,
			[ABI_MATVEC_SPEC_SPLIT - ABI_SPEC_KERNEL] = get_split(s),
			[ABI_MATVEC_SPEC_RUN - ABI_SPEC_KERNEL] = n_run},
	};
	struct abi_matvec push = {
		.x = p->x,
		.y = p->y ? p->y + 4ull * y_at : 0,
		.gain = p->gain,
		.r = p->r ? p->r + 4ull * y_at : 0,
		.m = p->m,
		.want = p->want,
		.staging = p->staging,
		.next = p->next,
		.next_gain = p->next_gain,
		.k = k,
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.y_stride = y_stride,
		.eps = p->eps,
	};

	for (uint32_t i = 0; i < n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
	}
	/* Teams take the tiles of a run one after the other. */
	uint32_t n_run_tiles = n_run * count_teams(s);
	uint32_t n_groups = (n_tiles + n_run_tiles - 1) / n_run_tiles;
	if (s->n_groups && n_groups > s->n_groups)
		n_groups = s->n_groups;
	return op_pool_dispatch(pool, c, &kernel, &push, n_groups * s->n_subgroups,
		(p->n_rows + s->n_columns - 1) / s->n_columns, ret_err);
}

int op_matvec_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_matvec_shape *s, struct err *ret_err)
{
	uint32_t y_stride = get_width(p), y_at = 0;

	if (!op_matvec_fits(pool, p) || !can_hold(pool, p, s) ||
		(p->next && 32 % count_outputs(p, s) != 0))
		return err_set(ret_err, EINVAL, "matvec: what does not fit");
	if (!fits(pool, p, s))
		return err_set(ret_err, ENOTSUP,
			"matvec: expected at most %u invocations and %u bytes of shared memory",
			op_pool_get_info(pool)->max_invocations, op_pool_get_shared_bytes(pool));
	if (s->source == OP_MATVEC_STAGE && is_by_bytes(p)) {
		const struct abi_quantize push = {.x = p->x,
			.gain = p->gain,
			.m = p->m,
			.want = p->want,
			.staging = p->staging,
			.k = (uint32_t)p->w[0].ne[0]};
		int r = op_matvec_record_quantize(pool, c, &push, p->n_rows,
			op_matvec_format_find(p->w[0].dtype)->order, ret_err);
		if (r)
			return r;
	}
	for (uint32_t first = 0, n = 0; first < p->n_parts; first += n) {
		uint32_t width = 0;
		for (n = 0; first + n < p->n_parts && p->w[first + n].dtype == p->w[first].dtype;
			n++)
			width += (uint32_t)p->w[first + n].ne[1];
		int r = record_parts(pool, c, p, s, first, n, y_at, y_stride, ret_err);
		if (r)
			return r;
		y_at += width;
	}
	return 0;
}

int op_matvec_record(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	struct err *ret_err)
{
	struct op_matvec_shape s = op_matvec_choose(pool, p);

	return op_matvec_record_shape(pool, c, p, &s, ret_err);
}
