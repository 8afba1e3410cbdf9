/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast matrix products of many rows run on the device's matrices, of which block format, with
 * which tile. Every variant's outputs are held against a reference on some rows and columns in the
 * same run; the best of each shape come last. A first line gives the ceiling: the same matrices out
 * of registers.
 *
 *	bench-matrix [SECONDS [--default]]
 *
 * --default: only what a plan takes, for every format. SECONDS: after so many no further variant is
 * begun; default 36. What matters most comes first. Times are of the whole op: x to f16, the
 * product, sums of runs of k.
 */
#include "proto/dtype.h"
#include "tests/bench/product-bench.h"
#include "workerd/ceiling.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/matrix.h"
#include "workerd/warm.h"

enum { MAX_TILES = 20, MAX_RESULTS = 256 };

struct result {
	uint32_t dtype;
	struct product_bench_shape shape;
	struct op_matrix_tile tile;
	double ns;
};

struct bench {
	struct product_bench product;
	struct warm *warm;
	uint32_t n_results;
	struct result results[MAX_RESULTS];
};

/*
 * For 128 rows of x and more. n_streams: for each core of the device, if it says how many it has.
 */
static struct op_matrix_tile large_tiles[] = {
	{.bn = 256, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
	{.bn = 128, .bm = 256, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2, .is_wide = true},
	{.bn = 256,
		.bm = 128,
		.bk = 32,
		.sn = 64,
		.sm = 64,
		.n_buffers = 2,
		.is_decoded = true,
		.is_wide = true},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 32, .sm = 64, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1, .n_streams = 2},
	{.bn = 128, .bm = 128, .bk = 32, .sn = 64, .sm = 32, .n_buffers = 2},
	{.bn = 128, .bm = 128, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 2},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 64, .n_buffers = 1},
	{.bn = 128, .bm = 256, .bk = 32, .sn = 64, .sm = 64, .n_buffers = 1},
	{.bn = 64, .bm = 128, .bk = 64, .sn = 32, .sm = 64, .n_buffers = 1},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1, .is_direct = true},
	{.bn = 128, .bm = 128, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1, .is_decoded = true},
};

static struct op_matrix_tile small_tiles[] = {
	{.bn = 128, .bm = 64, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 64, .bk = 64, .sn = 64, .sm = 32, .n_buffers = 1},
	{.bn = 128, .bm = 64, .bk = 32, .sn = 32, .sm = 32, .n_buffers = 2},
	{.bn = 64, .bm = 64, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 2},
	{.bn = 64, .bm = 64, .bk = 64, .sn = 32, .sm = 16, .n_buffers = 2},
	{.bn = 128, .bm = 64, .bk = 64, .sn = 16, .sm = 64, .n_buffers = 1, .is_ragged = true},
};

/* For subgroups of eight lanes and matrices of eight by eight. */
static struct op_matrix_tile software_tiles[] = {
	{.bn = 32, .bm = 32, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1},
};

static int record(struct product_bench *b, const struct op_matmul_params *p, const void *way,
	struct err *ret_err)
{
	const struct op_matrix_tile *tile = way;

	return tile->bn ? op_matrix_record_tile(b->pool, b->command, p, tile, ret_err)
			: op_matrix_record(b->pool, b->command, p, ret_err);
}

static void init(struct bench *b, double seconds)
{
	static const struct product_bench_params params = {
		.max_m = 2048,
		.max_k = 14336,
		.max_copies = 1,
		.n_io_bytes = 64 << 20,
		.n_weight_bytes = 512 << 20,
		.n_y_bytes = 256 << 20,
		.n_staging_bytes = 512 << 20,
		.batch_ns = 4000000,
		.n_batches = 3,
		.max_runs = 40,
		.record = record,
	};
	struct err e = ERR_NULL;

	product_bench_init(&b->product, &params, seconds);
	on_device_check(warm_new(b->product.d, &e, &b->warm), &e, "warm");
}

static void fini(struct bench *b)
{
	warm_free(b->warm);
	product_bench_fini(&b->product);
}

static void print_tile(const struct op_matrix_tile *t)
{
	if (!t->bn) {
		printf("chosen");
		return;
	}
	printf("%3ux%-3u k%-2u of %3ux%-3u x%u s%-3u%s%s%s%s", t->bn, t->bm, t->bk, t->sn, t->sm,
		t->n_buffers, t->n_streams == OP_MATRIX_TILE_NO_STREAMS ? 0 : t->n_streams,
		t->n ? " n8" : "", t->is_direct ? " direct" : "", t->is_decoded ? " decoded" : "",
		t->is_ragged ? " ragged"
		: t->is_wide ? " wide"
			     : "");
}

/* One tile of the shape that is set; 0 where the device lacks it. */
static double run_tile(struct bench *b, const struct op_matrix_tile *tile)
{
	struct product_bench *p = &b->product;
	const struct product_bench_shape *s = &p->shape;
	struct err e = ERR_NULL;

	if (product_bench_record(p, tile, 1))
		return 0;
	double first = product_bench_run(p);
	bool right = product_bench_is_right(p);
	on_device_check(warm_up(b->warm, &e), &e, "warm up");
	double best = product_bench_time(p, tile, first);
	printf("%-5s %5u x %5u x %4u%s ", dtype_find(p->dtype)->name, s->n, s->k, s->m,
		s->is_swiglu ? " swiglu" : "       ");
	print_tile(tile);
	printf(" %9.1f us %6.1f TFLOP/s%s\n", best * 1e-3, product_bench_get_tflops(s, best),
		right ? "" : "  WRONG");
	fflush(stdout);
	return right ? best : 0;
}

static void scale_streams(const struct bench *b, struct op_matrix_tile *tiles, uint32_t n)
{
	uint32_t n_cores = vk_device_get_info(b->product.d)->n_cores;

	for (uint32_t i = 0; i < n; i++)
		if (tiles[i].n_streams != OP_MATRIX_TILE_NO_STREAMS)
			tiles[i].n_streams = (uint16_t)(tiles[i].n_streams * n_cores);
}

/* All tiles; keeps the best, and leaves the n_keep best of the list in ret_keep. */
static uint32_t run_tiles(struct bench *b, uint32_t dtype, const struct product_bench_shape *shape,
	const struct op_matrix_tile *tiles, uint32_t n_tiles, uint32_t n_keep,
	struct op_matrix_tile *ret_keep)
{
	double ns[MAX_TILES];
	struct op_matrix_tile kept[MAX_TILES];
	uint32_t n = 0;

	if (product_bench_is_late(&b->product)) {
		printf("%s %u x %u x %u: no time left\n", dtype_find(dtype)->name, shape->n,
			shape->k, shape->m);
		return 0;
	}
	product_bench_set(&b->product, dtype, shape);
	for (uint32_t i = 0; i < n_tiles && !product_bench_is_late(&b->product); i++)
		(void)product_bench_record(&b->product, &tiles[i], 1);
	for (uint32_t i = 0; i < n_tiles && !product_bench_is_late(&b->product); i++) {
		double t = run_tile(b, &tiles[i]);
		if (t <= 0)
			continue;
		uint32_t at = n++;
		for (; at > 0 && ns[at - 1] > t; at--) {
			ns[at] = ns[at - 1];
			kept[at] = kept[at - 1];
		}
		ns[at] = t;
		kept[at] = tiles[i];
	}
	if (n > 0 && b->n_results < MAX_RESULTS)
		b->results[b->n_results++] = (struct result){
			.dtype = dtype, .shape = *shape, .tile = kept[0], .ns = ns[0]};
	if (n > n_keep)
		n = n_keep;
	for (uint32_t i = 0; ret_keep && i < n; i++)
		ret_keep[i] = kept[i];
	return n;
}

static void run_peak(struct bench *b)
{
	struct ceiling_rates rates;
	struct err e = ERR_NULL;

	on_device_check(ceiling_measure(b->product.d, b->product.pool, &e, &rates), &e, "ceilings");
	printf("ceiling: matrices out of registers: %.3f TFLOP/s\n", rates.matrix_flops / 1e12);
}

/*
 * The first two formats with all tiles, then one after another with those that were best before:
 * each variant is compiled, which may take longer than all of its runs.
 */
static void run_gpu(struct bench *b)
{
	static const uint32_t formats[] = {DTYPE_F16, DTYPE_Q4_K, DTYPE_Q8_0, DTYPE_Q6_K};
	static const uint32_t others[] = {
		DTYPE_Q4_0, DTYPE_BF16, DTYPE_F32, DTYPE_TQ2_0, DTYPE_Q2_0, DTYPE_Q1_0};
	static const struct product_bench_shape main_shape = {14336, 4096, 512, false};
	static const struct product_bench_shape small_shape = {17408, 5120, 64, false};
	static const struct product_bench_shape layers[] = {{6144, 4096, 0, false},
		{4096, 4096, 0, false}, {28672, 4096, 0, true}, {4096, 14336, 0, false}};
	static const uint32_t ms[] = {512, 64, 2048};
	enum { N_FORMATS = 4, N_BEST = 6, N_FEW = 3 };
	struct op_matrix_tile best[N_FORMATS][N_BEST], small[N_FORMATS][N_BEST];
	uint32_t n_best[N_FORMATS], n_small[N_FORMATS];

	for (uint32_t f = 0; f < N_FORMATS; f++) {
		bool is_lead = f < 2;
		n_best[f] = run_tiles(b, formats[f], &main_shape, is_lead ? large_tiles : best[1],
			is_lead ? ARRAY_SIZE(large_tiles) : n_best[1], N_BEST, best[f]);
	}
	for (uint32_t f = 1; f < N_FORMATS; f++)
		n_small[f] = run_tiles(b, formats[f], &small_shape, f == 1 ? small_tiles : small[1],
			f == 1 ? ARRAY_SIZE(small_tiles) : n_small[1], N_FEW, small[f]);
	for (uint32_t i = 0; i < ARRAY_SIZE(ms); i++)
		for (uint32_t l = 0; l < ARRAY_SIZE(layers); l++) {
			struct product_bench_shape shape = layers[l];
			shape.m = ms[i];
			if (shape.m <= 64)
				(void)run_tiles(
					b, formats[1], &shape, small[1], n_small[1], 0, NULL);
			else
				(void)run_tiles(b, formats[1], &shape, best[1],
					n_best[1] < N_FEW ? n_best[1] : N_FEW, 0, NULL);
		}
	for (uint32_t f = 0; f < ARRAY_SIZE(others); f++)
		(void)run_tiles(b, others[f], &main_shape, best[2],
			n_best[2] < N_FEW ? n_best[2] : N_FEW, 0, NULL);
	for (uint32_t f = 0; f < N_FORMATS; f++)
		for (uint32_t m = 128; m <= 512; m *= 2)
			(void)run_tiles(b, formats[f],
				&(struct product_bench_shape){17408, 5120, m, false}, best[f],
				n_best[f] < N_FEW ? n_best[f] : N_FEW, 0, NULL);
}

/* What a plan takes, for every format. */
static void run_default(struct bench *b)
{
	static const uint32_t formats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K,
		DTYPE_Q6_K, DTYPE_Q4_0, DTYPE_TQ2_0, DTYPE_Q2_0, DTYPE_Q1_0};
	static const uint32_t ms[] = {64, 128, 256, 512};
	static const struct op_matrix_tile chosen[] = {{.bn = 0}};

	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		(void)run_tiles(b, formats[f],
			&(struct product_bench_shape){14336, 4096, 512, false}, chosen, 1, 0, NULL);
	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		for (uint32_t i = 0; i < ARRAY_SIZE(ms); i++)
			(void)run_tiles(b, formats[f],
				&(struct product_bench_shape){17408, 5120, ms[i], false}, chosen, 1,
				0, NULL);
}

static void run_software(struct bench *b)
{
	static const uint32_t formats[] = {DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_K};

	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		(void)run_tiles(b, formats[f], &(struct product_bench_shape){512, 512, 64, f == 1},
			software_tiles, ARRAY_SIZE(software_tiles), 0, NULL);
}

int main(int argc, char **argv)
{
	static struct bench b;

	/* Registers and spills beside the times, on stderr, unless somebody says otherwise. */
	setenv("WEIGHTD_PIPELINE_STATISTICS", "1", 0);
	on_device_warm_up();
	init(&b, argc > 1 ? strtod(argv[1], NULL) : 36);
	const struct vk_device_info *info = vk_device_get_info(b.product.d);
	printf("%s, %s\n", info->name, info->driver);
	if (!info->n_matrices || !kernels_has(KERNELS_MATRIX_F16)) {
		printf("skipped: no matrices, or a build without kernels for them\n");
		fini(&b);
		return CASE_SKIP;
	}
	for (uint32_t i = 0; i < info->n_matrices; i++)
		printf("matrices of %u x %u x %u\n", info->matrices[i].m, info->matrices[i].n,
			info->matrices[i].k);
	printf("%u cores\n", info->n_cores);
	run_peak(&b);
	scale_streams(&b, large_tiles, ARRAY_SIZE(large_tiles));
	if (product_bench_is_software(&b.product))
		run_software(&b);
	else if (argc > 2 && !strcmp(argv[2], "--default"))
		run_default(&b);
	else
		run_gpu(&b);
	/* Whoever else used the device shows in a second, lower ceiling. */
	run_peak(&b);
	printf("\nbest of each\n");
	for (uint32_t i = 0; i < b.n_results; i++) {
		const struct result *r = &b.results[i];
		printf("%-5s %5u x %5u x %4u%s %9.1f us %6.1f TFLOP/s  ",
			dtype_find(r->dtype)->name, r->shape.n, r->shape.k, r->shape.m,
			r->shape.is_swiglu ? " swiglu" : "       ", r->ns * 1e-3,
			product_bench_get_tflops(&r->shape, r->ns));
		print_tile(&r->tile);
		putchar('\n');
	}
	printf("%u variants wrong\n", b.product.n_wrong);
	fini(&b);
	return b.product.n_wrong > 0;
}
