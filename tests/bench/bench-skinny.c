/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast products of 2 to 64 rows are, with which cut, of which block format, beside the kernels
 * for other numbers of rows. Weights are read out of memory each time: those of half a gigabyte in
 * turn. Every variant's outputs are held against a reference on some rows and columns in the same
 * run. Times are of the whole op: x to f16, the product.
 *
 *	bench-skinny [SECONDS [FORMAT N K ROWS...]]
 *
 * Without a shape: those of an 8B model in Q4_K and Q6_K, only as a plan cuts them. With one, of
 * which N > 0 is n and N < 0 a SwiGLU of so many rows together: all cuts of it, the best last.
 * SECONDS: after so many no further variant is begun; default 36.
 */
#include <math.h>

#include "proto/dtype.h"
#include "tests/bench/product-bench.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/skinny.h"

enum { MAX_M = 64, MAX_K = 16384, MAX_ARG_ROWS = 8 };

/* An idle GPU runs at a fraction of its clock: computed for before anything counts. */
static const double warm_s = 0.6;

enum kind { SKINNY, MATVEC, MATRIX };

struct way {
	enum kind kind;
	const struct op_skinny_shape *cut; /* NULL: as the op cuts it */
};

static int record(struct product_bench *b, const struct op_matmul_params *p, const void *way,
	struct err *ret_err)
{
	const struct way *w = way;

	if (w->kind == MATVEC)
		return op_matvec_fits(b->pool, p)
			       ? op_matvec_record(b->pool, b->command, p, ret_err)
			       : -ENOTSUP;
	if (w->kind == MATRIX)
		return op_matrix_fits(b->pool, p)
			       ? op_matrix_record(b->pool, b->command, p, ret_err)
			       : -ENOTSUP;
	return w->cut ? op_skinny_record_shape(b->pool, b->command, p, w->cut, ret_err)
		      : op_skinny_record(b->pool, b->command, p, ret_err);
}

static const struct product_bench_params params = {
	.max_m = MAX_M,
	.max_k = MAX_K,
	.n_io_bytes = 32 << 20,
	.n_weight_bytes = 512 << 20,
	.n_y_bytes = 64 << 20,
	.n_staging_bytes = 64 << 20,
	.batch_ns = 3000000,
	.n_batches = 4,
	.max_runs = 100,
	.record = record,
};

static void print_cut(const struct product_bench *b, enum kind kind,
	const struct op_skinny_shape *cut, double ns, bool right)
{
	const struct product_bench_shape *s = &b->shape;
	double n_bytes = (double)s->n * (double)matrix_sample_row_bytes(b->dtype, s->k);

	printf("%-5s %6u x %5u x %2u %s ", dtype_find(b->dtype)->name, s->n, s->k, s->m,
		s->is_swiglu ? "swiglu" : "      ");
	if (kind == SKINNY)
		printf("skinny %u x %u groups x %2u shares x %2u splits", cut->n_fragments,
			cut->n_groups, cut->n_shares, cut->n_splits);
	else
		printf("%-43s", kind == MATVEC ? "matvec" : "matrix");
	printf(" %8.1f us %6.0f GB/s %5.0f TFLOP/s%s\n", ns * 1e-3, n_bytes / ns,
		product_bench_get_tflops(s, ns), right ? "" : "  WRONG");
	fflush(stdout);
}

/* One variant of the shape that is set, NULL: as the op cuts it; 0 where the device lacks it. */
static double run_cut(struct product_bench *b, enum kind kind, const struct op_skinny_shape *cut)
{
	const struct way way = {kind, cut};

	if (product_bench_record(b, &way, 1))
		return 0;
	double first = product_bench_run(b);
	/* A mat-vec has x in bytes, and a bench. */
	bool right = kind == MATVEC || product_bench_is_right(b);
	double best = product_bench_time(b, &way, first);
	struct op_matmul_params p = product_bench_get_params(b, 0);
	struct op_skinny_shape chosen = cut ? *cut : op_skinny_choose(b->pool, &p, 0, p.n_parts);
	print_cut(b, kind, &chosen, best, right);
	return right ? best : 0;
}

static void warm_up(struct product_bench *b)
{
	static const struct way way = {SKINNY, NULL};
	double end = product_bench_now() + warm_s;

	while (product_bench_now() < end && !product_bench_is_software(b)) {
		(void)product_bench_record(b, &way, 20);
		(void)product_bench_run(b);
	}
}

/* Subgroups side by side, with shares of k, and workgroups with shares of it. */
static void run_cuts(struct product_bench *b)
{
	static const uint8_t groups[] = {1, 2, 3, 4, 6, 7, 8};
	static const uint8_t splits[] = {1, 2, 3, 4, 6, 8, 12};
	struct op_skinny_shape best = {0};
	double least = INFINITY;

	for (uint32_t i = 0; i < ARRAY_SIZE(groups); i++) {
		for (uint32_t n_shares = 1; n_shares * groups[i] <= 12; n_shares++) {
			for (uint32_t j = 0; j < ARRAY_SIZE(splits); j++) {
				struct op_skinny_shape cut = {2, groups[i], n_shares, splits[j]};
				uint32_t n_tiles = b->shape.n / (groups[i] * 32);
				uint32_t n_all = n_tiles * splits[j] * groups[i] * n_shares;
				/* Between half a subgroup and 16 for each core's quarter. */
				if (product_bench_is_late(b) || n_all < 132 * 4 || n_all > 132 * 64)
					continue;
				double t = run_cut(b, SKINNY, &cut);
				if (t > 0 && t < least) {
					least = t;
					best = cut;
				}
			}
		}
	}
	if (least < INFINITY) {
		printf("best:\n");
		print_cut(b, SKINNY, &best, least, true);
	}
}

static void run_shapes(struct product_bench *b)
{
	static const struct product_bench_shape shapes[] = {
		{.n = 28672, .k = 4096, .is_swiglu = true},
		{.n = 4096, .k = 14336},
		{.n = 6144, .k = 4096},
		{.n = 4096, .k = 4096},
	};
	static const uint32_t dtypes[] = {DTYPE_Q4_K, DTYPE_Q6_K};
	static const uint8_t rows[] = {32, 8, 16, 64, 4, 2};

	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (uint32_t j = 0; j < ARRAY_SIZE(dtypes) * ARRAY_SIZE(shapes); j++) {
			struct product_bench_shape s = shapes[j % ARRAY_SIZE(shapes)];
			if (product_bench_is_late(b))
				return;
			s.m = rows[i];
			if (product_bench_is_software(b)) {
				s.n /= 64;
				s.k /= 4;
			}
			product_bench_set(b, dtypes[j / ARRAY_SIZE(shapes)], &s);
			warm_up(b);
			(void)run_cut(b, SKINNY, NULL);
			(void)run_cut(b, MATVEC, NULL);
			(void)run_cut(b, MATRIX, NULL);
		}
	}
}

static const struct dtype *find_format(const char *name)
{
	for (uint32_t id = 0; id <= UINT8_MAX; id++) {
		const struct dtype *t = dtype_find(id);
		if (t && !strcmp(t->name, name))
			return t;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct product_bench b;

	on_device_warm_up();
	product_bench_init(&b, &params, argc > 1 ? atof(argv[1]) : 36);
	if (argc < 6)
		run_shapes(&b);
	for (int i = 5; i < argc && argc < 5 + MAX_ARG_ROWS; i++) {
		const struct dtype *dtype = find_format(argv[2]);
		int n = atoi(argv[3]);
		struct product_bench_shape s = {.n = (uint32_t)abs(n),
			.k = (uint32_t)atoi(argv[4]),
			.m = (uint32_t)atoi(argv[i]),
			.is_swiglu = n < 0};
		if (!dtype || s.n == 0 || s.k == 0 || s.k > MAX_K || s.m < 2 || s.m > MAX_M)
			fail_msg("a shape without sense");
		product_bench_set(&b, dtype->id, &s);
		warm_up(&b);
		(void)run_cut(&b, SKINNY, NULL);
		(void)run_cut(&b, MATVEC, NULL);
		(void)run_cut(&b, MATRIX, NULL);
		run_cuts(&b);
	}
	product_bench_fini(&b);
	printf("%u wrong\n", b.n_wrong);
	return b.n_wrong > 0;
}
