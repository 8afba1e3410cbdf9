/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the integer kernels multiply one to eight rows of x by matrices of a decode, cut in all
 * the ways of the table below: many dispatches in one command with barriers between, as a decode
 * has them. Copies of the matrix are read in turn, more than a GPU's cache holds. Each result is
 * checked. A line a measurement, then the best of each case:
 *
 *	default what a plan would take, of bytes that lie in staging (not in the table)
 *	best    the kernel alone, of bytes that lie in staging
 *	+quant  with the dispatch that makes those bytes before each
 *	own     the fastest of those that make them themselves
 *	next    the fastest of those that make the bytes of their outputs for the next one too
 *
 *	bench-matvec [--quick] [--default] [--one] [FORMAT | NxK]...
 *	bench-matvec --table [FORMAT]...
 *
 * WEIGHTD_TEST_DEVICE as for the tests. Rows of x are normalised, as most of a layer's are.
 * Options: a small matrix and few cuts (the default on a software driver); only what a plan would
 * take; one row of x; what a plan would take for 4096 x 14336 and 1, 2, 4 and 8 rows of x, a line a
 * format.
 */
#include <math.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/bench/matvec-cuts.h"
#include "tests/ref/ref-blocks.h"
#include "tests/vulkan/on-device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/warm.h"
#include "workerd/weights.h"

enum {
	N_DISPATCHES = 32,
	N_ROUNDS = 12,
	N_SAMPLES = 16, /* rows of W whose products are checked */
	MAX_COLUMNS = OP_MATVEC_MAX_COLUMNS,
	MIN_BYTES = 96 << 20, /* of all copies of a matrix */
};

static const uint32_t dtypes[] = {DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q4_0,
	DTYPE_TQ2_0, DTYPE_Q2_0, DTYPE_Q1_0};

/* is_swiglu: the first half of the rows and the second are two matrices. */
struct matrix {
	uint32_t n;
	uint32_t k;
	bool is_swiglu;
};

static const struct matrix matrices[] = {
	{28672, 4096, true},
	{4096, 14336, false},
	{14336, 4096, false},
	{6144, 4096, false},
	{4096, 4096, false},
};
static const struct matrix small_matrices[] = {{192, 1024, false}, {384, 1024, true}};

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	bool is_quick;
	bool is_default; /* nothing else */
	bool is_table;   /* the default of one matrix and all formats, a line each */
	uint32_t n_most; /* columns */
	bool is_making;  /* of pipelines; nothing is measured yet */
	struct vk_memory *weights, *scratch, *io;
	uint8_t *map; /* of io */
	struct vk_command *command;
	struct warm *warm;
	uint64_t n_weights_bytes;
};

/* Where things lie in scratch, and what is copied there from the begin of io. */
enum {
	MAX_K = 14336,
	MAX_N = 14336,
	X_AT = 0,
	GAIN_AT = X_AT + 4 * MAX_K * MAX_COLUMNS,
	M_AT = GAIN_AT + 4 * MAX_K,
	N_INPUT_BYTES = M_AT + 256,
	Y_AT = N_INPUT_BYTES,
	N_Y_BYTES = 4 * MAX_N * MAX_COLUMNS,
	STAGING_AT = Y_AT + N_Y_BYTES,
	N_STAGING_BYTES = 2 * MAX_K * MAX_COLUMNS,
	NEXT_AT = STAGING_AT + N_STAGING_BYTES,
	N_SCRATCH_BYTES = NEXT_AT + N_STAGING_BYTES,
	/* In io; behind it one matrix. */
	IO_Y_AT = N_INPUT_BYTES,
	IO_W_AT = IO_Y_AT + N_Y_BYTES,
	MAX_MATRIX_BYTES = 120 << 20,
};

/* One matrix in one format, and what its sampled rows give. */
struct subject {
	uint32_t dtype;
	const struct matrix *m;
	uint64_t n_bytes;
	uint32_t n_copies;
	uint32_t samples[N_SAMPLES];
	float y[N_SAMPLES][MAX_COLUMNS];
	float scale[N_SAMPLES][MAX_COLUMNS];
};

struct result {
	double us;
	bool is_right;
};

static void init(struct bench *b)
{
	struct err e = ERR_NULL;

	b->d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(b->d);
	b->is_quick |= info->is_software;
	printf("%s, %s\n", info->name, info->driver);
	on_device_check(op_pool_new(b->d, &e, &b->pool), &e, "pool");
	b->n_weights_bytes = b->is_quick ? 1 << 20 : MIN_BYTES + MAX_MATRIX_BYTES;
	b->weights = on_device_memory(b->d, VK_MEMORY_WEIGHTS, b->n_weights_bytes, false);
	b->scratch = on_device_memory(b->d, VK_MEMORY_SCRATCH, N_SCRATCH_BYTES, false);
	b->io = on_device_memory(
		b->d, VK_MEMORY_IO, IO_W_AT + (b->is_quick ? 1 << 20 : MAX_MATRIX_BYTES), false);
	b->map = (uint8_t *)on_device_map(b->io);
	b->command = on_device_command(b->d, 2);
	on_device_check(warm_new(b->d, &e, &b->warm), &e, "warm");
}

static void fini(struct bench *b)
{
	warm_free(b->warm);
	vk_command_free(b->command);
	vk_memory_free(b->io);
	vk_memory_free(b->scratch);
	vk_memory_free(b->weights);
	op_pool_free(b->pool);
	vk_device_free(b->d);
}

static void copy(struct bench *b, struct vk_memory *dst, uint64_t dst_at, struct vk_memory *src,
	uint64_t src_at, uint64_t n_bytes)
{
	const struct vk_slice to = {.memory = dst, .offset = dst_at, .n_bytes = n_bytes};
	const struct vk_slice from = {.memory = src, .offset = src_at, .n_bytes = n_bytes};

	vk_command_copy(b->command, &to, &from);
}

/* x [MAX_COLUMNS][k] and the gain. */
static void fill_inputs(struct bench *b, const struct matrix *m, uint64_t *state)
{
	float *x = (float *)(b->map + X_AT), *gain = (float *)(b->map + GAIN_AT);

	for (uint32_t i = 0; i < m->k * MAX_COLUMNS; i++)
		x[i] = ref_blocks_random_unit(state);
	for (uint32_t i = 0; i < m->k; i++)
		gain[i] = 0.5f + (float)(ref_blocks_random(state) >> 40) * 0x1p-24f;
}

/* What the kernel has of row c of x: quantize.comp's bytes as numbers, or all of it. */
static void round_row(struct bench *b, const struct subject *s, uint32_t c, float *ret_a)
{
	const struct matrix *m = s->m;
	const float *x = (float *)(b->map + X_AT) + c * m->k;
	const float *gain = (float *)(b->map + GAIN_AT);
	double squares = 0;

	for (uint32_t i = 0; i < m->k; i++) {
		squares += (double)x[i] * x[i];
		ret_a[i] = x[i] * gain[i];
	}
	float norm = (float)(1 / sqrt(squares / m->k));
	for (uint32_t at = 0; at < m->k; at += 32) {
		float top = 0;
		for (uint32_t i = at; i < at + 32; i++)
			top = fmaxf(top, fabsf(ret_a[i]));
		for (uint32_t i = at; i < at + 32; i++) {
			if (s->dtype != DTYPE_F16)
				ret_a[i] = rintf(ret_a[i] * 127 / top) * top / 127;
			ret_a[i] *= norm;
		}
	}
}

/* Outputs of a row of x. */
static uint32_t get_width(const struct matrix *m)
{
	return m->is_swiglu ? m->n / 2 : m->n;
}

/* Sample i of column c, or the second factor of it; w, a [k]. */
static void add_half(
	struct subject *s, uint32_t i, uint32_t c, uint32_t half, const float *w, const float *a)
{
	double y = 0, scale = 0;

	for (uint32_t l = 0; l < s->m->k; l++) {
		y += (double)w[l] * a[l];
		scale += fabs((double)w[l] * a[l]);
	}
	if (half == 0) {
		s->y[i][c] = (float)y;
		s->scale[i][c] = (float)scale;
		return;
	}
	/* |silu'| is at most 1.1. */
	double gate = s->y[i][c], silu = gate / (1 + exp(-gate));
	s->scale[i][c] = (float)(1.1 * s->scale[i][c] * fabs(y) + fabs(silu) * scale);
	s->y[i][c] = (float)(silu * y);
}

static void init_subject(struct bench *b, uint32_t dtype, const struct matrix *m, struct subject *s)
{
	const struct dtype *t = dtype_find(dtype);
	uint64_t n_row_bytes = (uint64_t)m->k / t->n_block * t->n_bytes, state = 1 + dtype;
	static float w[MAX_K], reach[MAX_K], a[MAX_COLUMNS][MAX_K];

	*s = (struct subject){.dtype = dtype, .m = m, .n_bytes = n_row_bytes * m->n};
	uint64_t n_least = b->is_quick ? 1 : MIN_BYTES;
	s->n_copies = (uint32_t)((n_least + s->n_bytes - 1) / s->n_bytes);
	assert_true(s->n_copies * s->n_bytes <= b->n_weights_bytes);
	fill_inputs(b, m, &state);
	ref_blocks_fill(dtype, s->n_bytes / t->n_bytes, 0x1p-4f, 0x1p-4f, &state, b->map + IO_W_AT);
	vk_command_begin(b->command);
	for (uint32_t i = 0; i < s->n_copies; i++)
		copy(b, b->weights, i * s->n_bytes, b->io, IO_W_AT, s->n_bytes);
	copy(b, b->scratch, 0, b->io, 0, N_INPUT_BYTES);
	on_device_run(b->d, b->command);
	for (uint32_t c = 0; c < MAX_COLUMNS; c++)
		round_row(b, s, c, a[c]);
	for (uint32_t i = 0; i < N_SAMPLES; i++) {
		uint32_t j = s->samples[i] =
			(uint32_t)((uint64_t)(get_width(m) - 1) * i / (N_SAMPLES - 1));
		for (uint32_t half = 0; half <= m->is_swiglu; half++) {
			ref_blocks_dequantize(dtype,
				b->map + IO_W_AT + (j + half * get_width(m)) * n_row_bytes, m->k, w,
				reach);
			for (uint32_t c = 0; c < MAX_COLUMNS; c++)
				add_half(s, i, c, half, w, a[c]);
		}
	}
}

/* A tie may have been rounded to the other side; all else are roundings of floats. */
static bool is_right(const struct bench *b, const struct subject *s, uint32_t n_columns)
{
	const float *y = (float *)(b->map + IO_Y_AT);

	for (uint32_t i = 0; i < N_SAMPLES; i++)
		for (uint32_t c = 0; c < n_columns; c++)
			if (!(fabsf(y[c * get_width(s->m) + s->samples[i]] - s->y[i][c]) <=
				    2e-4f * s->scale[i][c]))
				return false;
	return true;
}

struct setting {
	uint32_t n_columns;
	uint32_t n_copies;
	bool has_next;
};

static void get_params(struct bench *b, const struct subject *s, const struct setting *set,
	struct op_matmul_params *ret)
{
	uint64_t scratch = vk_memory_get_address(b->scratch);

	*ret = (struct op_matmul_params){.n_parts = s->m->is_swiglu ? 2 : 1,
		.finish = s->m->is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE,
		.x = scratch + X_AT,
		.y = scratch + Y_AT,
		.gain = scratch + GAIN_AT,
		.m = scratch + M_AT,
		.staging = scratch + STAGING_AT,
		.n_staging_bytes = N_STAGING_BYTES,
		.next = set->has_next ? scratch + NEXT_AT : 0,
		.next_gain = set->has_next ? scratch + GAIN_AT : 0,
		.n_rows = set->n_columns};
}

/* Of this copy. */
static void get_matrices(
	struct bench *b, const struct subject *s, uint32_t copy, struct op_matmul_params *p)
{
	for (uint32_t i = 0; i < p->n_parts; i++)
		p->w[i] = (struct weights_tensor){.address = vk_memory_get_address(b->weights) +
							     copy * s->n_bytes +
							     i * (s->n_bytes / p->n_parts),
			.dtype = s->dtype,
			.layout = MANIFEST_LAYOUT_RAW,
			.ne = {s->m->k, get_width(s->m), 1, 1},
			.n_bytes = s->n_bytes / p->n_parts};
}

/* False where the device has too little shared memory for it. */
static bool record(struct bench *b, const struct subject *s, const struct setting *set,
	const struct op_matvec_shape *cut)
{
	uint64_t n_y = 4ull * get_width(s->m) * set->n_columns;
	struct op_matmul_params p;
	struct err e = ERR_NULL;
	struct op_matvec_shape first = *cut;

	get_params(b, s, set, &p);
	memcpy(b->map + M_AT, &set->n_columns, 4);
	memset(b->map + IO_Y_AT, 0xff, n_y);
	vk_command_begin(b->command);
	copy(b, b->scratch, M_AT, b->io, M_AT, 4);
	copy(b, b->scratch, Y_AT, b->io, IO_Y_AT, n_y);
	vk_command_barrier(b->command);
	if (first.source == OP_MATVEC_STAGED)
		first.source = OP_MATVEC_STAGE;
	for (uint32_t i = 0; i <= N_DISPATCHES; i++) {
		get_matrices(b, s, i % set->n_copies, &p);
		int r = op_matvec_record_shape(b->pool, b->command, &p, i == 0 ? &first : cut, &e);
		if (r == -ENOTSUP)
			return false;
		on_device_check(r, &e, "record");
		vk_command_barrier(b->command);
		if (i == 0 || i == N_DISPATCHES)
			vk_command_stamp(b->command, i != 0);
	}
	copy(b, b->io, IO_Y_AT, b->scratch, Y_AT, n_y);
	vk_command_host_barrier(b->command);
	on_device_check(vk_command_end(b->command, &e), &e, "end");
	return true;
}

/*
 * The fastest round's time of one dispatch; false as record. Not measured where pipelines are made
 * only: while the processor is busy with those, the device's clock falls.
 */
static bool measure(struct bench *b, const struct subject *s, const struct setting *set,
	const struct op_matvec_shape *cut, struct result *ret)
{
	struct err e = ERR_NULL;
	uint64_t ticket, ns[2];

	if (!record(b, s, set, cut))
		return false;
	if (b->is_making) {
		*ret = (struct result){.us = INFINITY, .is_right = true};
		return true;
	}
	*ret = (struct result){.us = INFINITY};
	on_device_check(warm_up(b->warm, &e), &e, "warm up");
	for (int i = 0; i < N_ROUNDS; i++) {
		on_device_check(vk_submit(b->d, &b->command, 1, &e, &ticket), &e, "submit");
		on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
		on_device_check(vk_command_get_stamps(b->command, ns), &e, "stamps");
		ret->us = fmin(ret->us, (double)(ns[1] - ns[0]) * 1e-3 / N_DISPATCHES);
	}
	ret->is_right = is_right(b, s, set->n_columns);
	return true;
}

static bool print_result(const struct subject *s, const struct setting *set,
	const struct op_matvec_shape *cut, const char *what, const struct result *r)
{
	printf("%-6s %6u x %-6u n %u  %-7s rows %u unroll %u subgroups %u groups %3u ahead %d "
	       "hold %u split %u: %8.2f us %7.1f GB/s%s\n",
		dtype_find(s->dtype)->name, s->m->n, s->m->k, set->n_columns, what, cut->n_rows,
		cut->n_unroll, cut->n_subgroups, cut->n_groups, cut->is_ahead, cut->n_hold,
		cut->n_split, r->us, (double)s->n_bytes / r->us * 1e-3,
		r->is_right ? "" : " WRONG");
	fflush(stdout);
	return r->is_right;
}

struct best {
	const struct subject *s;
	struct op_matvec_shape cut;
	struct result kernel, quant, own, next;
};

/* Is it worth it? Each pipeline takes a GPU's driver some 50 ms. */
static bool is_candidate(const struct subject *s, uint32_t n_columns, uint32_t n_lanes,
	const struct op_matvec_shape *cut, bool has_next)
{
	uint32_t n_split = cut->n_split ? cut->n_split : 1;
	uint32_t n_out = cut->n_subgroups / n_split * cut->n_rows / (s->m->is_swiglu ? 2 : 1);

	if ((s->m->is_swiglu && cut->n_rows == 1) || (has_next && 32 % n_out != 0))
		return false;
	if (cut->n_hold)
		return s->dtype != DTYPE_F16 && n_columns == 1 &&
		       cut->n_hold <= OP_MATVEC_MAX_HOLD &&
		       (cut->n_split < 2 ||
			       s->m->k > (cut->n_split - 1) * cut->n_hold * 64 * n_lanes);
	if (cut->source == OP_MATVEC_OWN)
		return s->dtype != DTYPE_F16 && s->m->k <= 8192 && n_columns <= 2;
	if (has_next)
		return n_columns == 1;
	return n_columns <= 2 || (cut->n_unroll == 1 && cut->n_subgroups == 4 &&
					 cut->n_groups == 0 && cut->n_rows * n_columns <= 16);
}

/* One way of a case. False: something was wrong. */
static bool run_variant(struct bench *b, const struct subject *s, const struct variant *v,
	struct setting *set, struct best *best)
{
	struct op_matvec_shape cut = v->cut;
	bool is_own = cut.source == OP_MATVEC_OWN;
	struct result r;

	uint32_t n_lanes = op_pool_get_subgroup_size(b->pool);
	cut.n_columns = set->n_columns;
	if (v->cut.n_hold == HOLD) {
		uint32_t n_shared = 64 * n_lanes * (cut.n_split ? cut.n_split : 1);
		cut.n_hold = (s->m->k + n_shared - 1) / n_shared;
	}
	set->has_next = v->has_next;
	/* More invocations than 1024 no device promises. */
	if (cut.n_subgroups * n_lanes > 1024 ||
		!is_candidate(s, set->n_columns, n_lanes, &cut, v->has_next) ||
		!measure(b, s, set, &cut, &r))
		return true;
	struct result *to = is_own ? &best->own : v->has_next ? &best->next : &best->kernel;
	if (r.us < to->us) {
		*to = r;
		if (to == &best->kernel)
			best->cut = cut;
	}
	return b->is_making || print_result(s, set, &cut,
				       is_own        ? "own"
				       : v->has_next ? "next"
						     : "staged",
				       &r);
}

/* What a plan would take. */
static bool run_default(struct bench *b, const struct subject *s, const struct setting *set)
{
	struct op_matmul_params p;
	struct result r;

	get_params(b, s, set, &p);
	get_matrices(b, s, 0, &p);
	p.is_staged = true;
	struct op_matvec_shape cut = op_matvec_choose(b->pool, &p);
	if (!measure(b, s, set, &cut, &r) || b->is_making)
		return true;
	if (!b->is_table)
		return print_result(s, set, &cut, "default", &r);
	printf("  %7.2f us %5.0f GB/s%s", r.us, (double)s->n_bytes / r.us * 1e-3,
		r.is_right ? "" : " WRONG");
	fflush(stdout);
	return r.is_right;
}

/* All ways of one case; the best, as a line of the last table. False: something was wrong. */
static bool run_case(
	struct bench *b, const struct subject *s, uint32_t n_columns, char *ret_line, size_t n_line)
{
	const struct variant *list = b->is_quick ? small_variants : variants;
	size_t n = b->is_quick ? ARRAY_SIZE(small_variants) : ARRAY_SIZE(variants);
	struct setting set = {.n_columns = n_columns, .n_copies = s->n_copies};
	struct best best = {.kernel.us = INFINITY, .own.us = INFINITY, .next.us = INFINITY};
	bool is_ok = true;

	is_ok &= run_default(b, s, &set);
	ret_line[0] = '\0';
	if (b->is_default)
		return is_ok;
	for (size_t i = 0; i < n; i++)
		is_ok &= run_variant(b, s, &list[i], &set, &best);
	struct op_matvec_shape cut = best.cut;
	cut.source = OP_MATVEC_STAGE;
	set.has_next = false;
	is_ok &= measure(b, s, &set, &cut, &best.quant);
	is_ok &= best.quant.is_right;
	if (b->is_making)
		return is_ok;
	snprintf(ret_line, n_line,
		"%-6s %5u x %-5u n %u: best %7.2f us %6.0f GB/s (rows %u unroll %u subgroups %u "
		"groups %u ahead %d hold %u split %u) +quant %.2f own %.2f next %.2f%s\n",
		dtype_find(s->dtype)->name, s->m->n, s->m->k, n_columns, best.kernel.us,
		(double)s->n_bytes / best.kernel.us * 1e-3, best.cut.n_rows, best.cut.n_unroll,
		best.cut.n_subgroups, best.cut.n_groups, best.cut.is_ahead, best.cut.n_hold,
		best.cut.n_split, best.quant.us, best.own.us, best.next.us, is_ok ? "" : " WRONG");
	return is_ok;
}

/* Among the arguments of this kind, which are names: none is all of them. */
static bool is_wanted(const char *name, bool is_matrix, int argc, char **argv)
{
	bool is_any = false;

	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '-' || (argv[i][0] <= '9') != is_matrix)
			continue;
		if (!strcmp(argv[i], name))
			return true;
		is_any = true;
	}
	return !is_any;
}

enum { MAX_LINES = 192, N_LINE = 256 };

struct output {
	uint32_t n_lines;
	char lines[MAX_LINES][N_LINE];
};

/* All numbers of columns. False: something was wrong. */
static bool run_matrix(
	struct bench *b, uint32_t dtype, const struct matrix *m, struct output *output)
{
	static struct subject s;
	struct err e = ERR_NULL;
	bool is_ok = true;

	/* A pool is for the pipelines of a model; these are more. */
	op_pool_free(b->pool);
	on_device_check(op_pool_new(b->d, &e, &b->pool), &e, "pool");
	init_subject(b, dtype, m, &s);
	if (b->is_table)
		printf("%-6s", dtype_find(dtype)->name);
	/* All pipelines first: while the processor makes them, the device falls asleep. */
	for (int round = b->is_quick ? 1 : 0; round < 2; round++) {
		b->is_making = round == 0;
		for (uint32_t n = 1; n <= b->n_most; n *= 2) {
			char *line = output->lines[output->n_lines];
			is_ok &= b->is_table ? run_default(b, &s,
						       &(struct setting){.n_columns = n,
							       .n_copies = s.n_copies})
					     : run_case(b, &s, n, line, N_LINE);
			if (!b->is_making && !b->is_table)
				output->n_lines++;
		}
	}
	if (b->is_table)
		printf("\n");
	return is_ok;
}

static void read_options(struct bench *b, int argc, char **argv)
{
	b->n_most = MAX_COLUMNS;
	for (int i = 1; i < argc; i++) {
		b->is_quick |= !strcmp(argv[i], "--quick");
		b->is_table |= !strcmp(argv[i], "--table");
		b->is_default |= !strcmp(argv[i], "--default");
		if (!strcmp(argv[i], "--one"))
			b->n_most = 1;
	}
}

int main(int argc, char **argv)
{
	static const struct matrix table_matrix = {4096, 14336, false};
	static struct output output;
	static struct bench b;
	bool is_ok = true;

	read_options(&b, argc, argv);
	on_device_warm_up();
	init(&b);
	if (b.is_quick && b.n_most > 2)
		b.n_most = 2;
	const struct matrix *list = b.is_quick ? small_matrices : matrices;
	size_t n = b.is_quick ? ARRAY_SIZE(small_matrices) : ARRAY_SIZE(matrices);
	if (b.is_table && !b.is_quick) {
		list = &table_matrix;
		n = 1;
	}
	for (size_t f = 0; f < ARRAY_SIZE(dtypes); f++) {
		if (!is_wanted(dtype_find(dtypes[f])->name, false, argc, argv))
			continue;
		for (size_t i = 0; i < n; i++) {
			char name[32];
			snprintf(name, sizeof(name), "%ux%u", list[i].n, list[i].k);
			/* One of two bytes a number is more than there is room for. */
			if (is_wanted(name, true, argc, argv) &&
				!(dtypes[f] == DTYPE_F16 && list[i].is_swiglu))
				is_ok &= run_matrix(&b, dtypes[f], &list[i], &output);
		}
	}
	for (uint32_t i = 0; i < output.n_lines; i++)
		fputs(output.lines[i], stdout);
	fini(&b);
	return is_ok ? 0 : 1;
}
