/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/cuts.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/crew.h"
#include "workerd/graph.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/matvec-format.h"
#include "workerd/ops/skinny.h"
#include "workerd/ops/pool.h"
#include "workerd/record.h"
#include "workerd/stopwatch.h"

enum {
	MAX_ROWS = 512, /* kinds of product times numbers of rows */
	MAX_OPS = 16,   /* whose weights are read one after the other, past the caches */
	N_RUNS = 5,
	N_DUEL_RUNS = 11, /* of a row's best and the ops' own, in turn */
	SOFTWARE_N_RUNS = 1,
	SOFTWARE_N_DUEL_RUNS = 3,
	/* Cuts whose pipelines are made at a time, while the steps of others wait. */
	N_GATHERED = CREW_MAX_THREADS,
	M_BYTES = 256,
	SOFTWARE_MAX_OPS = 1,
	/* Of 100: a cut that is hardly faster is not, and the ops' own is the one to have. */
	MIN_GAIN = 2,
	/*
	 * Of 100: what is so much slower than the best is not tried for twice as many rows, or
	 * for other products that are finished likewise.
	 */
	HOPELESS = 140,
	HOPELESS_ELSEWHERE = 180,
	MAX_CUTS = 32, /* of a list */
	/* Rows of the matrix tiles that are tried: up to twice those of x, and from so many on. */
	MANY_ROWS = 256,
	MIN_MANY_BM = 64,
	/* Pipelines are kept for other rows, which mostly need the same, as long as there is room.
	 */
	MAX_PIPELINES = OP_POOL_MAX_PIPELINES / 2,
};

/* One run of a command; of fewer ops where they take longer. */
static const uint64_t max_run_ns = 3000000;

/*
 * Of the ops of a row; OWN where they say so, else as the op has it. n_columns are counted in the
 * rows of x divided by n_split. With n_core that many subgroups of each core keep x in registers
 * and take all tiles, where there is one row of it and it goes into them (op_matvec_shape).
 */
struct shape_row {
	uint32_t n_rows, n_unroll, n_subgroups, n_split, n_core;
	bool is_ahead, is_own;
};

static const struct shape_row shapes[] = {
	{1, 1, 4, 1, 0, true, false},
	{1, 2, 8, 1, 0, true, false},
	{1, 1, 32, 1, 0, true, false},
	{2, 1, 2, 1, 0, true, false},
	{2, 1, 4, 1, 0, true, false},
	{2, 1, 4, 1, 0, false, false},
	{2, 2, 4, 1, 0, true, false},
	{2, 1, 8, 1, 0, true, false},
	{2, 1, 16, 1, 0, true, false},
	{2, 2, 16, 1, 0, true, false},
	{4, 1, 4, 1, 0, true, false},
	{4, 1, 4, 1, 0, false, false},
	{4, 1, 8, 1, 0, true, false},
	{4, 2, 4, 1, 0, true, false},
	{8, 1, 4, 1, 0, true, false},
	{4, 1, 4, 2, 0, true, false},
	{2, 1, 8, 1, 0, true, true},
	{2, 1, 16, 1, 0, true, true},
	{2, 1, 16, 1, 16, true, false},
	{2, 1, 16, 1, 32, true, false},
	{2, 1, 8, 1, 16, true, false},
	{2, 1, 4, 1, 32, true, false},
	{4, 1, 16, 1, 16, true, false},
	{1, 1, 16, 1, 16, true, true},
	{2, 1, 16, 1, 16, true, true},
};

/* A software driver takes a tenth of a second to make each. */
static const struct shape_row software_shapes[] = {
	{4, 1, 1, 1, 0, false, false},
	{2, 1, 1, 1, 1, false, false},
};

static const struct op_matrix_tile tiles[] = {
	{.bn = 64, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 2},
	{.bn = 64, .bm = 64, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 2},
	{.bn = 128, .bm = 64, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 64, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1, .is_decoded = true},
	{.bn = 256, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 1},
	{.bn = 256, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
	{.bn = 128, .bm = 256, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
	{.bn = 128, .bm = 128, .bk = 32, .sn = 64, .sm = 32, .n_buffers = 2, .is_wide = true},
	{.bn = 256,
		.bm = 128,
		.bk = 32,
		.sn = 64,
		.sm = 64,
		.n_buffers = 2,
		.is_decoded = true,
		.is_wide = true},
};

static_assert(ARRAY_SIZE(shapes) <= MAX_CUTS && ARRAY_SIZE(tiles) <= MAX_CUTS, "work.ns");

/* For subgroups of fewer than 32 lanes. */
static const struct op_matrix_tile narrow_tiles[] = {
	{.bn = 32, .bm = 16, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1},
};

/* A row with the ops that it is of. */
struct work {
	uint32_t n_rows; /* that commands are recorded for */
	uint32_t n_m;    /* that there are at most */
	uint32_t n_ops;
	uint32_t ops[MAX_OPS];
	enum tuning_kind kind;
	uint64_t best_ns;
	uint64_t ns[MAX_CUTS]; /* of each cut of the list; 0: not tried */
};

struct cuts {
	struct cuts_params params;
	bool is_software;
	uint32_t n_lanes;
	uint32_t n_cores;    /* 0: it does not say */
	struct vk_memory *m; /* u32: rows of x */
	struct stopwatch *watch;
	struct op_pool *pool;     /* a plan's would be full of them */
	struct tuning *tuning;    /* with the cut that is measured */
	struct tuning_choice own; /* what the ops choose for the row */
	uint32_t row;
	uint32_t next;     /* cut of the row: 0 the ops' own, then those of the list */
	uint32_t prepared; /* of them: up to here there are pipelines */
	uint32_t n_rows;
	struct cuts_row rows[MAX_ROWS];
	struct work works[MAX_ROWS];
};

/* ---- what there is to measure ---- */

/*
 * With the number of rows in memory of its own, on the device as a step's is: nothing here reads
 * what the host writes for a step, so there is nothing to bring there first (workerd/mirror.h).
 */
static void get_params(
	const struct cuts *c, uint32_t op, uint32_t n_rows, struct op_matmul_params *ret)
{
	record_get_matmul(c->params.graph, c->params.addresses, c->pool, op, n_rows, ret);
	ret->m = vk_memory_get_address(c->m);
	ret->want = 0; /* the wanted rows are the first */
}

static bool find_kind(
	const struct op_pool *pool, const struct op_matmul_params *p, enum tuning_kind *ret_kind)
{
	if (op_skinny_wants(pool, p))
		return false; /* it cuts itself */
	*ret_kind = op_matvec_fits(pool, p) ? TUNING_MATVEC : TUNING_MATRIX;
	return *ret_kind == TUNING_MATVEC || op_matrix_fits(pool, p);
}

/* Among those of the same number of rows, which are the last. */
static struct work *find_work(struct cuts *c, const struct tuning_key *key)
{
	for (uint32_t i = c->n_rows; i > 0 && c->rows[i - 1].key.n_rows == key->n_rows; i--)
		if (!memcmp(&c->rows[i - 1].key, key, sizeof(*key)))
			return &c->works[i - 1];
	return NULL;
}

static void add_op(struct cuts *c, uint32_t op, uint32_t n_rows, uint32_t n_m)
{
	struct op_matmul_params p;
	struct tuning_key key;
	enum tuning_kind kind;

	get_params(c, op, n_rows, &p);
	if (!find_kind(c->pool, &p, &kind))
		return;
	tuning_get_key(&p, &key);
	struct work *w = find_work(c, &key);
	if (!w && c->n_rows == MAX_ROWS)
		return;
	if (!w) {
		w = &c->works[c->n_rows];
		*w = (struct work){.n_rows = n_rows, .n_m = n_m, .kind = kind};
		c->rows[c->n_rows++].key = key;
	}
	if (w->n_ops < (c->is_software ? SOFTWARE_MAX_OPS : MAX_OPS))
		w->ops[w->n_ops++] = op;
}

static void collect_rows(struct cuts *c, uint32_t n)
{
	const struct graph *g = c->params.graph;

	for (uint32_t i = 0; i < g->n_ops; i++) {
		uint32_t n_most = g->ops[i].is_head ? c->params.n_logit_rows : c->params.n_rows;

		if (g->ops[i].kind == GRAPH_MATMUL && n / 2 < n_most)
			add_op(c, i, n, n < n_most ? n : n_most);
	}
}

/* What most steps are first: of one row, of as many as there can be; then the others. */
static void collect(struct cuts *c)
{
	uint32_t n_most = 1;

	while (n_most < c->params.n_rows)
		n_most *= 2;
	collect_rows(c, 1);
	if (n_most > 1)
		collect_rows(c, n_most);
	for (uint32_t n = 2; n < n_most; n *= 2)
		collect_rows(c, n);
}

static int renew_pool(struct cuts *c, struct err *ret_err)
{
	c->pool = op_pool_free(c->pool);
	int r = op_pool_new(c->params.device, ret_err, &c->pool);
	if (!r)
		op_pool_set_trial(c->pool);
	return r;
}

int cuts_new(const struct cuts_params *params, struct err *ret_err, struct cuts **ret_cuts)
{
	const struct vk_memory_params memory = {
		.role = VK_MEMORY_SCRATCH, .n_bytes = M_BYTES, .name = "rows of measured products"};
	struct cuts *c = calloc(1, sizeof(*c));
	int r = 0;

	if (!c)
		return err_set(ret_err, ENOMEM, "tuning: no memory");
	c->params = *params;
	c->is_software = vk_device_get_info(params->device)->is_software;
	c->n_lanes = vk_device_get_info(params->device)->subgroup_size;
	c->n_cores = vk_device_get_info(params->device)->n_cores;
	c->tuning = tuning_new();
	if (!c->tuning)
		r = err_set(ret_err, ENOMEM, "tuning: no memory");
	if (!r)
		r = renew_pool(c, ret_err);
	if (!r)
		r = stopwatch_new(params->device, ret_err, &c->watch);
	if (!r)
		r = vk_memory_new(params->device, &memory, ret_err, &c->m);
	if (!r)
		collect(c);
	if (!r && c->n_rows == 0)
		r = err_set(ret_err, ENOTSUP, "tuning: the plan has no products with a choice");
	if (r) {
		cuts_free(c);
		return r;
	}
	*ret_cuts = c;
	return 0;
}

struct cuts *cuts_free(struct cuts *c)
{
	if (!c)
		return NULL;
	op_pool_free(c->pool);
	stopwatch_free(c->watch);
	vk_memory_free(c->m);
	tuning_free(c->tuning);
	free(c);
	return NULL;
}

/* ---- one cut ---- */

/* What the pool's table says, over the ops of the row. */
static int record(struct cuts *c, struct vk_command *command, struct err *ret_err)
{
	const struct work *w = &c->works[c->row];
	const struct vk_slice m = {.memory = c->m, .n_bytes = sizeof(uint32_t)};
	int r = 0;

	vk_command_begin(command);
	vk_command_fill(command, &m, w->n_m);
	vk_command_barrier(command);
	vk_command_stamp(command, 0);
	for (uint32_t i = 0; !r && i < w->n_ops; i++) {
		struct op_matmul_params p;

		get_params(c, w->ops[i], w->n_rows, &p);
		r = op_matmul_record(c->pool, command, &p, ret_err);
		vk_command_barrier(command);
	}
	vk_command_stamp(command, 1);
	/* What was begun is ended, also where there is an error already. */
	int ended = vk_command_end(command, ret_err);
	return r ? r : ended;
}

/* choice NULL: the ops' own. */
static int make_command(struct cuts *c, const struct tuning_choice *choice, struct err *ret_err,
	struct vk_command **ret_command)
{
	struct vk_command *command = NULL;
	int r = choice ? tuning_set(c->tuning, &c->rows[c->row].key, choice) : 0;

	op_pool_set_tuning(c->pool, choice ? c->tuning : NULL);
	if (!r)
		r = vk_command_new(c->params.device, STOPWATCH_N_STAMPS, ret_err, &command);
	if (!r)
		r = record(c, command, ret_err);
	if (r)
		vk_command_free(command);
	else
		*ret_command = command;
	return r;
}

/* All ops of the row, once. */
static int time_cut(
	struct cuts *c, const struct tuning_choice *choice, struct err *ret_err, uint64_t *ret_ns)
{
	struct vk_command *command = NULL;
	int r = make_command(c, choice, ret_err, &command);

	if (!r)
		r = stopwatch_time(c->watch, &command, 1, c->is_software ? SOFTWARE_N_RUNS : N_RUNS,
			ret_err, ret_ns);
	vk_command_free(command);
	return r;
}

/* The row's best once more, beside the ops' own: what was best by luck loses. */
static int duel(struct cuts *c, struct err *ret_err)
{
	struct cuts_row *row = &c->rows[c->row];
	uint32_t n_ops = c->works[c->row].n_ops;
	struct vk_command *commands[2] = {NULL, NULL};
	uint64_t ns[2];

	if (tuning_is_same(&row->best, &c->own))
		return 0;
	int r = make_command(c, NULL, ret_err, &commands[0]);
	if (!r)
		r = make_command(c, &row->best, ret_err, &commands[1]);
	if (!r)
		r = stopwatch_time(c->watch, commands, 2,
			c->is_software ? SOFTWARE_N_DUEL_RUNS : N_DUEL_RUNS, ret_err, ns);
	vk_command_free(commands[0]);
	vk_command_free(commands[1]);
	if (r)
		return r;
	row->default_ns = ns[0] / n_ops;
	row->best_ns = ns[1] / n_ops;
	if (100 * row->best_ns < (100 - MIN_GAIN) * row->default_ns)
		return 0;
	row->best = c->own;
	row->best_ns = row->default_ns;
	return 0;
}

/*
 * For products of k whose x is kept: where it is more than a subgroup has registers for, several
 * share it. Where that does not go either, one that no op takes.
 */
static void hold(
	const struct cuts *c, const struct shape_row *row, uint64_t k, struct op_matvec_shape *s)
{
	const uint32_t n_numbers = OP_MATVEC_FORMAT_UNIT * c->n_lanes;
	const uint32_t n_units = (uint32_t)((k + n_numbers - 1) / n_numbers);

	s->n_hold = n_units <= 2 ? n_units : 1 + (n_units - 1) / OP_MATVEC_MAX_SPLIT;
	s->n_split = (n_units + s->n_hold - 1) / s->n_hold;
	if (s->n_subgroups > s->n_split)
		s->n_subgroups -= s->n_subgroups % s->n_split;
	else
		s->n_subgroups = s->n_split;
	s->n_groups = row->n_core * c->n_cores / s->n_subgroups;
}

/* Cut i of the list, for an op of the row. False behind the last. */
static bool get_cut(const struct cuts *c, uint32_t i, const struct op_matmul_params *p,
	struct tuning_choice *ret_choice)
{
	const struct work *w = &c->works[c->row];
	const struct shape_row *s = c->is_software ? software_shapes : shapes;
	uint32_t n_shapes = c->is_software ? ARRAY_SIZE(software_shapes) : ARRAY_SIZE(shapes);
	bool is_narrow = c->n_lanes < 32;
	uint32_t n_tiles = is_narrow ? ARRAY_SIZE(narrow_tiles) : ARRAY_SIZE(tiles);

	*ret_choice = (struct tuning_choice){.kind = w->kind};
	if (i >= (w->kind == TUNING_MATVEC ? n_shapes : n_tiles))
		return false;
	if (w->kind == TUNING_MATRIX) {
		ret_choice->tile = is_narrow ? narrow_tiles[i] : tiles[i];
		return true;
	}
	ret_choice->shape = (struct op_matvec_shape){.n_rows = s[i].n_rows,
		.n_columns = w->n_rows > s[i].n_split ? w->n_rows / s[i].n_split : 1,
		.n_unroll = s[i].n_unroll,
		.n_subgroups = s[i].n_subgroups,
		.is_ahead = s[i].is_ahead,
		.source = p->is_staged  ? OP_MATVEC_STAGED
			  : s[i].is_own ? OP_MATVEC_OWN
					: OP_MATVEC_STAGE};
	if (s[i].n_core)
		hold(c, &s[i], p->w[0].ne[0], &ret_choice->shape);
	return true;
}

/* What the op would do now. */
static void get_chosen(
	const struct cuts *c, const struct op_matmul_params *p, struct tuning_choice *ret_choice)
{
	*ret_choice = (struct tuning_choice){.kind = c->works[c->row].kind};
	if (ret_choice->kind == TUNING_MATVEC)
		ret_choice->shape = op_matvec_choose(c->pool, p);
	else
		ret_choice->tile = op_matrix_choose(c->pool, p);
}

/* Did it take far more than the best for half as many rows, or for others of the same formats? */
static bool is_hopeless(const struct cuts *c, uint32_t i)
{
	const struct tuning_key *key = &c->rows[c->row].key;
	struct tuning_key half = *key;

	half.n_rows /= 2;
	for (uint32_t k = 0; k < c->row; k++) {
		const struct tuning_key *other = &c->rows[k].key;
		const struct work *w = &c->works[k];
		bool is_half = !memcmp(other, &half, sizeof(half));
		bool is_like = other->n_rows == key->n_rows && other->dtype[0] == key->dtype[0] &&
			       other->finish == key->finish;

		if (w->kind == c->works[c->row].kind &&
			((is_half && 100 * w->ns[i] > HOPELESS * w->best_ns) ||
				(is_like && 100 * w->ns[i] > HOPELESS_ELSEWHERE * w->best_ns)))
			return true;
	}
	return false;
}

/* Is cut i worth its time? */
static bool is_candidate(const struct cuts *c, uint32_t i, const struct tuning_choice *choice)
{
	uint32_t n_rows = c->works[c->row].n_rows, bm = choice->tile.bm;

	if (is_hopeless(c, i))
		return false;
	return choice->kind == TUNING_MATVEC || c->n_lanes < 32 ||
	       (bm <= 2 * n_rows && (n_rows < MANY_ROWS || bm >= MIN_MANY_BM));
}

/*
 * The row's first cut from *next on that the op would take and that is not its own already; next is
 * behind it then. False: there is none.
 */
static bool find_cut(struct cuts *c, uint32_t *next, struct tuning_choice *ret_choice)
{
	struct op_matmul_params p;
	struct tuning_choice chosen;

	op_pool_set_tuning(c->pool, NULL);
	get_params(c, c->works[c->row].ops[0], c->works[c->row].n_rows, &p);
	if (*next == 0) {
		*next = 1;
		get_chosen(c, &p, &c->own);
		*ret_choice = c->own;
		return true;
	}
	op_pool_set_tuning(c->pool, c->tuning);
	while (get_cut(c, (*next)++ - 1, &p, ret_choice)) {
		if (!is_candidate(c, *next - 2, ret_choice) ||
			tuning_set(c->tuning, &c->rows[c->row].key, ret_choice))
			continue;
		get_chosen(c, &p, &chosen);
		if (tuning_is_same(&chosen, ret_choice) && !tuning_is_same(&chosen, &c->own))
			return true;
	}
	return false;
}

/* The pipelines of the row's next cuts. What does not work out here does not when it is measured.
 */
static void prepare(struct cuts *c)
{
	struct tuning_choice choice;
	struct err e = ERR_NULL;
	uint32_t next = c->next;

	op_pool_gather(c->pool);
	for (int i = 0; i < N_GATHERED && find_cut(c, &next, &choice); i++) {
		struct vk_command *command = NULL;

		(void)make_command(c, next == 1 ? NULL : &choice, &e, &command);
		vk_command_free(command);
	}
	uint64_t start_ns = clock_now_ns();
	op_pool_make(c->pool);
	log_debug("tuning: %u pipelines, the last of them made in %.1f ms", op_pool_count(c->pool),
		(double)(clock_now_ns() - start_ns) / 1e6);
	c->prepared = next;
}

static bool advance(struct cuts *c, struct tuning_choice *ret_choice)
{
	if (c->next == c->prepared)
		prepare(c);
	return find_cut(c, &c->next, ret_choice);
}

static int finish_row(struct cuts *c, struct err *ret_err)
{
	int r = duel(c, ret_err);

	if (r)
		return r;
	c->row++;
	c->next = c->prepared = 0;
	if (op_pool_count(c->pool) <= MAX_PIPELINES)
		return 0;
	return renew_pool(c, ret_err);
}

static void log_cut(
	const struct cuts_row *row, const struct tuning_choice *choice, int r, uint64_t ns)
{
	char op[TUNING_TEXT_BYTES], cut[TUNING_TEXT_BYTES];

	tuning_describe_key(&row->key, op);
	tuning_describe_choice(choice, cut);
	if (r)
		log_debug("tuning: %s of %u rows: %s: error %d", op, row->key.n_rows, cut, r);
	else
		log_debug(
			"tuning: %s of %u rows: %s: %" PRIu64 " ns", op, row->key.n_rows, cut, ns);
}

/* The ops' own: what the others are held against, and how many ops a run is of. */
static int measure_own(struct cuts *c, struct err *ret_err)
{
	struct work *w = &c->works[c->row];
	struct cuts_row *row = &c->rows[c->row];
	uint64_t ns = 0;
	int r = time_cut(c, NULL, ret_err, &ns);

	log_cut(row, &c->own, r, ns / w->n_ops);
	if (r)
		return r;
	row->best = c->own;
	row->default_ns = row->best_ns = w->best_ns = ns / w->n_ops;
	if (ns > max_run_ns && w->n_ops > 1) {
		uint64_t n_ops = w->n_ops * max_run_ns / ns;
		w->n_ops = n_ops > 1 ? (uint32_t)n_ops : 1;
	}
	return 0;
}

static int measure(struct cuts *c, const struct tuning_choice *choice, struct err *ret_err)
{
	struct work *w = &c->works[c->row];
	struct cuts_row *row = &c->rows[c->row];
	uint64_t ns = 0;
	int r = time_cut(c, choice, ret_err, &ns);

	ns /= w->n_ops;
	log_cut(row, choice, r, ns);
	/* A list's cut that this device's compiler does not take is none. */
	if (r)
		return r < 0 ? 0 : r;
	w->ns[c->next - 2] = ns;
	if (ns >= row->best_ns)
		return 0;
	row->best_ns = w->best_ns = ns;
	row->best = *choice;
	return 0;
}

int cuts_step(struct cuts *c, struct err *ret_err, bool *ret_is_done)
{
	struct tuning_choice choice;
	*ret_is_done = c->row == c->n_rows;
	if (*ret_is_done)
		return 0;
	if (!advance(c, &choice))
		return finish_row(c, ret_err);
	return c->next == 1 ? measure_own(c, ret_err) : measure(c, &choice, ret_err);
}

uint32_t cuts_count(const struct cuts *c)
{
	return c->n_rows;
}

const struct cuts_row *cuts_get_rows(const struct cuts *c, uint32_t *ret_n)
{
	*ret_n = c->row;
	return c->rows;
}
