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
 *begun; default 36. What matters most comes first. Times are of the whole op: x to f16, the
 *product, sums of runs of k.
 */
#include <math.h>
#include <time.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/on-device.h"
#include "workerd/ceiling.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/pool.h"
#include "workerd/warm.h"

enum {
	MAX_M = 2048,
	MAX_K = 14336,
	N_SAMPLE_ROWS = 251, /* distinct rows of W and of x; a prime, so that tiles differ */
	N_CHECK_ROWS = 3,
	N_CHECK_COLUMNS = 24,
	MAX_TILES = 20,
	MAX_RESULTS = 256,
	IO_BYTES = 64 << 20,
	WEIGHT_BYTES = 512 << 20,
	Y_BYTES = 256 << 20,
	STAGING_BYTES = 512 << 20,
	BATCH_NS = 4000000, /* of one timed submission */
	N_BATCHES = 3,
};

struct shape {
	uint32_t n, k, m;
	bool is_swiglu; /* n is of both */
};

struct result {
	uint32_t dtype;
	struct shape shape;
	struct op_matrix_tile tile;
	double ns;
};

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	struct vk_memory *io, *weights, *x, *y, *staging;
	uint8_t *map;
	struct vk_command *command, *upload;
	struct warm *warm;
	uint64_t rng;
	double deadline;
	uint32_t n_results;
	struct result results[MAX_RESULTS];
	uint32_t n_wrong;

	/* Of the format and shape that are set. */
	uint32_t dtype;
	struct shape shape;
	uint8_t *w_rows; /* [N_SAMPLE_ROWS][row bytes] */
	float *x_rows;   /* [N_SAMPLE_ROWS][k] */
	uint32_t columns[N_CHECK_COLUMNS];
	uint32_t rows[N_CHECK_ROWS];
	struct matrix_sample_dot expected[N_CHECK_ROWS][N_CHECK_COLUMNS];
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

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t next(struct bench *b, uint32_t n)
{
	b->rng = b->rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((b->rng >> 33) % n);
}

static bool is_software(const struct bench *b)
{
	return vk_device_get_info(b->d)->is_software;
}

static void init(struct bench *b, double seconds)
{
	struct err e = ERR_NULL;
	uint32_t shrink;

	b->d = on_device_new();
	b->rng = (uint64_t)time(NULL);
	b->deadline = now() + seconds;
	shrink = is_software(b) ? 8 : 1;
	on_device_check(op_pool_new(b->d, &e, &b->pool), &e, "pool");
	b->io = on_device_memory(b->d, VK_MEMORY_IO, IO_BYTES, false);
	b->map = (uint8_t *)on_device_map(b->io);
	b->weights = on_device_memory(b->d, VK_MEMORY_SCRATCH, WEIGHT_BYTES / shrink, false);
	b->x = on_device_memory(b->d, VK_MEMORY_SCRATCH, 4ull * MAX_M * MAX_K / shrink, false);
	b->y = on_device_memory(b->d, VK_MEMORY_SCRATCH, Y_BYTES / shrink, false);
	b->staging = on_device_memory(b->d, VK_MEMORY_SCRATCH, STAGING_BYTES / shrink, false);
	b->command = on_device_command(b->d, 2);
	b->upload = on_device_command(b->d, 0);
	on_device_check(warm_new(b->d, &e, &b->warm), &e, "warm");
	b->w_rows = malloc(4ull * N_SAMPLE_ROWS * MAX_K);
	b->x_rows = malloc(4ull * N_SAMPLE_ROWS * MAX_K);
	assert_non_null(b->w_rows);
	assert_non_null(b->x_rows);
}

static void fini(struct bench *b)
{
	warm_free(b->warm);
	free(b->x_rows);
	free(b->w_rows);
	vk_command_free(b->upload);
	vk_command_free(b->command);
	vk_memory_free(b->staging);
	vk_memory_free(b->y);
	vk_memory_free(b->x);
	vk_memory_free(b->weights);
	vk_memory_free(b->io);
	op_pool_free(b->pool);
	vk_device_free(b->d);
}

/* n rows of n_row_bytes, those of the sample again and again. */
static void upload(
	struct bench *b, struct vk_memory *to, const void *rows, uint64_t n_row_bytes, uint32_t n)
{
	memcpy(b->map, rows, N_SAMPLE_ROWS * n_row_bytes);
	vk_command_begin(b->upload);
	for (uint32_t j = 0; j < n; j += N_SAMPLE_ROWS) {
		uint32_t n_here = n - j < N_SAMPLE_ROWS ? n - j : N_SAMPLE_ROWS;
		struct vk_slice src = {.memory = b->io, .n_bytes = n_here * n_row_bytes};
		struct vk_slice dst = {
			.memory = to, .offset = j * n_row_bytes, .n_bytes = src.n_bytes};
		vk_command_copy(b->upload, &dst, &src);
	}
	on_device_run(b->d, b->upload);
}

static void expect(struct bench *b)
{
	uint32_t k = b->shape.k;
	uint64_t n_row_bytes = matrix_sample_row_bytes(b->dtype, k);
	uint32_t n_out = b->shape.is_swiglu ? b->shape.n / 2 : b->shape.n;
	float *w = malloc(sizeof(float) * 4 * k);

	assert_non_null(w);
	for (uint32_t i = 0; i < N_CHECK_ROWS; i++)
		b->rows[i] = i == 0 ? 0 : i == 1 ? b->shape.m - 1 : next(b, b->shape.m);
	for (uint32_t c = 0; c < N_CHECK_COLUMNS; c++) {
		uint32_t j = c == 0 ? 0 : c == 1 ? n_out - 1 : next(b, n_out);
		b->columns[c] = j;
		matrix_sample_get(
			b->dtype, b->w_rows + j % N_SAMPLE_ROWS * n_row_bytes, k, w, w + k);
		if (b->shape.is_swiglu)
			matrix_sample_get(b->dtype,
				b->w_rows + (n_out + j) % N_SAMPLE_ROWS * n_row_bytes, k, w + 2 * k,
				w + 3 * k);
		for (uint32_t i = 0; i < N_CHECK_ROWS; i++) {
			const float *x = b->x_rows + (uint64_t)(b->rows[i] % N_SAMPLE_ROWS) * k;
			b->expected[i][c] = matrix_sample_dot(w, w + k, x, k);
			if (b->shape.is_swiglu)
				b->expected[i][c] = matrix_sample_swiglu(b->expected[i][c],
					matrix_sample_dot(w + 2 * k, w + 3 * k, x, k));
		}
	}
	free(w);
}

static void set(struct bench *b, uint32_t dtype, const struct shape *shape)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, shape->k);

	b->dtype = dtype;
	b->shape = *shape;
	for (uint32_t j = 0; j < N_SAMPLE_ROWS; j++)
		matrix_sample_fill(dtype, shape->k, &b->rng, b->w_rows + j * n_row_bytes);
	/* Sums of SwiGLU's two sides are small enough to be told apart. */
	for (uint64_t i = 0; i < (uint64_t)N_SAMPLE_ROWS * shape->k; i++)
		b->x_rows[i] = ((float)next(b, 1 << 20) * 0x1p-19f - 1.0f) * 0.1f;
	upload(b, b->weights, b->w_rows, n_row_bytes, shape->n);
	upload(b, b->x, b->x_rows, 4ull * shape->k, shape->m);
	expect(b);
}

static struct weights_tensor tensor(const struct bench *b, uint32_t first, uint32_t n)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(b->dtype, b->shape.k);

	return (struct weights_tensor){
		.address = vk_memory_get_address(b->weights) + first * n_row_bytes,
		.dtype = b->dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {b->shape.k, n, 1, 1},
		.n_bytes = n * n_row_bytes,
	};
}

static struct op_matmul_params get_params(const struct bench *b)
{
	const struct shape *s = &b->shape;
	uint32_t n_out = s->is_swiglu ? s->n / 2 : s->n;

	return (struct op_matmul_params){.n_parts = s->is_swiglu ? 2 : 1,
		.finish = s->is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE,
		.w = {tensor(b, 0, n_out),
			s->is_swiglu ? tensor(b, n_out, n_out) : (struct weights_tensor){0}},
		.x = vk_memory_get_address(b->x),
		.y = vk_memory_get_address(b->y),
		.m = vk_memory_get_address(b->io),
		.n_rows = s->m,
		.staging = vk_memory_get_address(b->staging),
		.n_staging_bytes = STAGING_BYTES / (is_software(b) ? 8 : 1)};
}

/* Records the op n times, with the tile or what the op chooses. Returns what it does. */
static int record(struct bench *b, const struct op_matrix_tile *tile, uint32_t n)
{
	const struct shape *s = &b->shape;
	const struct op_matmul_params p = get_params(b);
	struct vk_slice y = {
		.memory = b->y, .n_bytes = 4ull * s->m * (s->is_swiglu ? s->n / 2 : s->n)};
	struct err e = ERR_NULL;

	memcpy(b->map, &s->m, sizeof(s->m));
	vk_command_begin(b->command);
	vk_command_fill(b->command, &y, 0x7fc0dead);
	vk_command_barrier(b->command);
	vk_command_stamp(b->command, 0);
	for (uint32_t i = 0; i < n; i++) {
		int r = tile->bn ? op_matrix_record_tile(b->pool, b->command, &p, tile, &e)
				 : op_matrix_record(b->pool, b->command, &p, &e);
		if (r == -ENOTSUP)
			return r;
		on_device_check(r, &e, "record");
		vk_command_barrier(b->command);
	}
	vk_command_stamp(b->command, 1);
	return 0;
}

static double time_record(struct bench *b)
{
	uint64_t stamps[2];

	on_device_run(b->d, b->command);
	if (vk_command_get_stamps(b->command, stamps))
		fail_msg("no timestamps");
	return (double)(stamps[1] - stamps[0]);
}

/* The outputs of the last run. */
static bool is_right(struct bench *b)
{
	const struct shape *s = &b->shape;
	uint64_t n_row_bytes = 4ull * (s->is_swiglu ? s->n / 2 : s->n);
	uint32_t n_bad = 0;

	vk_command_begin(b->upload);
	for (uint32_t i = 0; i < N_CHECK_ROWS; i++) {
		struct vk_slice src = {
			.memory = b->y, .offset = b->rows[i] * n_row_bytes, .n_bytes = n_row_bytes};
		struct vk_slice dst = {
			.memory = b->io, .offset = i * n_row_bytes, .n_bytes = n_row_bytes};
		vk_command_copy(b->upload, &dst, &src);
	}
	vk_command_host_barrier(b->upload);
	on_device_run(b->d, b->upload);
	for (uint32_t i = 0; i < N_CHECK_ROWS; i++) {
		for (uint32_t c = 0; c < N_CHECK_COLUMNS; c++) {
			const struct matrix_sample_dot *e = &b->expected[i][c];
			float y;
			memcpy(&y, b->map + i * n_row_bytes + 4ull * b->columns[c], sizeof(y));
			if (fabs(y - e->y) <= e->tolerance + 1e-6)
				continue;
			if (n_bad++ == 0)
				printf("  WRONG at row %u column %u: expected %g +- %g, found %g\n",
					b->rows[i], b->columns[c], e->y, e->tolerance, (double)y);
		}
	}
	b->n_wrong += n_bad > 0;
	return n_bad == 0;
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

static double get_tflops(const struct shape *s, double ns)
{
	return 2.0 * s->n * s->k * s->m / ns * 1e-3;
}

/* One tile of the shape that is set; 0 where the device lacks it. */
static double run_tile(struct bench *b, const struct op_matrix_tile *tile)
{
	struct err e = ERR_NULL;

	if (record(b, tile, 1))
		return 0;
	double once = time_record(b);
	bool right = is_right(b);
	/* The driver may compile at the first use, and clocks rise. */
	on_device_check(warm_up(b->warm, &e), &e, "warm up");
	once = fmin(once, (record(b, tile, 1), time_record(b)));
	uint32_t n = once > BATCH_NS ? 1 : (uint32_t)(BATCH_NS / once) + 1;
	double best = INFINITY;
	if (n > 40)
		n = 40;
	for (int i = 0; i < N_BATCHES && !is_software(b); i++) {
		(void)record(b, tile, n);
		best = fmin(best, time_record(b) / n);
	}
	if (is_software(b))
		best = once;
	printf("%-5s %5u x %5u x %4u%s ", dtype_find(b->dtype)->name, b->shape.n, b->shape.k,
		b->shape.m, b->shape.is_swiglu ? " swiglu" : "       ");
	print_tile(tile);
	printf(" %9.1f us %6.1f TFLOP/s%s\n", best * 1e-3, get_tflops(&b->shape, best),
		right ? "" : "  WRONG");
	fflush(stdout);
	return right ? best : 0;
}

static void scale_streams(const struct bench *b, struct op_matrix_tile *tiles, uint32_t n)
{
	uint32_t n_cores = vk_device_get_info(b->d)->n_cores;

	for (uint32_t i = 0; i < n; i++)
		if (tiles[i].n_streams != OP_MATRIX_TILE_NO_STREAMS)
			tiles[i].n_streams = (uint16_t)(tiles[i].n_streams * n_cores);
}

/* All tiles; keeps the best, and leaves the n_keep best of the list in ret_keep. */
static uint32_t run_tiles(struct bench *b, uint32_t dtype, const struct shape *shape,
	const struct op_matrix_tile *tiles, uint32_t n_tiles, uint32_t n_keep,
	struct op_matrix_tile *ret_keep)
{
	double ns[MAX_TILES];
	struct op_matrix_tile kept[MAX_TILES];
	uint32_t n = 0;

	if (now() > b->deadline) {
		printf("%s %u x %u x %u: no time left\n", dtype_find(dtype)->name, shape->n,
			shape->k, shape->m);
		return 0;
	}
	set(b, dtype, shape);
	for (uint32_t i = 0; i < n_tiles && now() < b->deadline; i++)
		(void)record(b, &tiles[i], 1);
	for (uint32_t i = 0; i < n_tiles && now() < b->deadline; i++) {
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

	on_device_check(ceiling_measure(b->d, b->pool, &e, &rates), &e, "ceilings");
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
	static const struct shape main_shape = {14336, 4096, 512, false};
	static const struct shape small_shape = {17408, 5120, 64, false};
	static const struct shape layers[] = {{6144, 4096, 0, false}, {4096, 4096, 0, false},
		{28672, 4096, 0, true}, {4096, 14336, 0, false}};
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
			struct shape shape = layers[l];
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
			(void)run_tiles(b, formats[f], &(struct shape){17408, 5120, m, false},
				best[f], n_best[f] < N_FEW ? n_best[f] : N_FEW, 0, NULL);
}

/* What a plan takes, for every format. */
static void run_default(struct bench *b)
{
	static const uint32_t formats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K,
		DTYPE_Q6_K, DTYPE_Q4_0, DTYPE_TQ2_0, DTYPE_Q2_0, DTYPE_Q1_0};
	static const uint32_t ms[] = {64, 128, 256, 512};
	static const struct op_matrix_tile chosen[] = {{.bn = 0}};

	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		(void)run_tiles(b, formats[f], &(struct shape){14336, 4096, 512, false}, chosen, 1,
			0, NULL);
	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		for (uint32_t i = 0; i < ARRAY_SIZE(ms); i++)
			(void)run_tiles(b, formats[f], &(struct shape){17408, 5120, ms[i], false},
				chosen, 1, 0, NULL);
}

static void run_software(struct bench *b)
{
	static const uint32_t formats[] = {DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_K};

	for (uint32_t f = 0; f < ARRAY_SIZE(formats); f++)
		(void)run_tiles(b, formats[f], &(struct shape){512, 512, 64, f == 1},
			software_tiles, ARRAY_SIZE(software_tiles), 0, NULL);
}

int main(int argc, char **argv)
{
	static struct bench b;

	/* Registers and spills beside the times, on stderr, unless somebody says otherwise. */
	setenv("WEIGHTD_PIPELINE_STATISTICS", "1", 0);
	on_device_warm_up();
	init(&b, argc > 1 ? strtod(argv[1], NULL) : 36);
	const struct vk_device_info *info = vk_device_get_info(b.d);
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
	if (is_software(&b))
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
			get_tflops(&r->shape, r->ns));
		print_tile(&r->tile);
		putchar('\n');
	}
	printf("%u variants wrong\n", b.n_wrong);
	fini(&b);
	return b.n_wrong > 0;
}
