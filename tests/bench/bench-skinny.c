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
#include <time.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/on-device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/skinny.h"

enum {
	MAX_M = 64,
	MAX_K = 16384,
	N_SAMPLE_ROWS = 251, /* distinct rows of W and of x; a prime, so that tiles differ */
	N_CHECK_ROWS = 3,
	N_CHECK_COLUMNS = 24,
	IO_BYTES = 32 << 20,
	WEIGHT_BYTES = 512 << 20,
	Y_BYTES = 64 << 20,
	STAGING_BYTES = 64 << 20,
	BATCH_NS = 3000000, /* of one timed submission */
	N_BATCHES = 4,
	MAX_ARG_ROWS = 8,
};

/* An idle GPU runs at a fraction of its clock: computed for before anything counts. */
static const double warm_s = 0.6;

enum kind { SKINNY, MATVEC, MATRIX };

struct shape {
	uint32_t n, k, m;
	bool is_swiglu; /* n is of both */
};

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	struct vk_memory *io, *weights, *x, *y, *staging;
	uint8_t *map;
	struct vk_command *command, *upload;
	uint64_t rng;
	double deadline;
	uint32_t n_wrong;

	/* Of the format and shape that are set. */
	uint32_t dtype;
	struct shape shape;
	uint32_t n_copies; /* of W */
	uint8_t *w_rows;   /* [N_SAMPLE_ROWS][row bytes] */
	float *x_rows;     /* [N_SAMPLE_ROWS][k] */
	uint32_t columns[N_CHECK_COLUMNS];
	uint32_t rows[N_CHECK_ROWS];
	struct matrix_sample_dot expected[N_CHECK_ROWS][N_CHECK_COLUMNS];
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
	b->w_rows = malloc(4ull * N_SAMPLE_ROWS * MAX_K);
	b->x_rows = malloc(4ull * N_SAMPLE_ROWS * MAX_K);
	assert_non_null(b->w_rows);
	assert_non_null(b->x_rows);
}

static void fini(struct bench *b)
{
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

/* Rows from one copy of W to the next: whole samples, so that they are alike. */
static uint32_t count_copy_rows(const struct shape *s)
{
	return (s->n + N_SAMPLE_ROWS - 1) / N_SAMPLE_ROWS * N_SAMPLE_ROWS;
}

static void set(struct bench *b, uint32_t dtype, const struct shape *shape)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, shape->k);
	uint32_t n_copy = count_copy_rows(shape);

	b->dtype = dtype;
	b->shape = *shape;
	for (uint32_t j = 0; j < N_SAMPLE_ROWS; j++)
		matrix_sample_fill(dtype, shape->k, &b->rng, b->w_rows + j * n_row_bytes);
	/* Sums of SwiGLU's two sides are small enough to be told apart. */
	for (uint64_t i = 0; i < (uint64_t)N_SAMPLE_ROWS * shape->k; i++)
		b->x_rows[i] = ((float)next(b, 1 << 20) * 0x1p-19f - 1.0f) * 0.1f;
	b->n_copies = (uint32_t)(vk_memory_get_bytes(b->weights) / (n_copy * n_row_bytes));
	if (b->n_copies == 0)
		fail_msg("weights: no room for %u x %u", shape->n, shape->k);
	upload(b, b->weights, b->w_rows, n_row_bytes, b->n_copies * n_copy);
	upload(b, b->x, b->x_rows, 4ull * shape->k, shape->m);
	expect(b);
}

static struct weights_tensor tensor(
	const struct bench *b, uint32_t copy, uint32_t first, uint32_t n)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(b->dtype, b->shape.k);
	uint64_t row = (uint64_t)copy * count_copy_rows(&b->shape) + first;

	return (struct weights_tensor){
		.address = vk_memory_get_address(b->weights) + row * n_row_bytes,
		.dtype = b->dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {b->shape.k, n, 1, 1},
		.n_bytes = n * n_row_bytes,
	};
}

static int record_op(struct bench *b, enum kind kind, const struct op_skinny_shape *cut,
	const struct op_matmul_params *p, struct err *ret_err)
{
	if (kind == MATVEC)
		return op_matvec_fits(b->pool, p)
			       ? op_matvec_record(b->pool, b->command, p, ret_err)
			       : -ENOTSUP;
	if (kind == MATRIX)
		return op_matrix_fits(b->pool, p)
			       ? op_matrix_record(b->pool, b->command, p, ret_err)
			       : -ENOTSUP;
	return cut ? op_skinny_record_shape(b->pool, b->command, p, cut, ret_err)
		   : op_skinny_record(b->pool, b->command, p, ret_err);
}

/* Records the op n times, of one copy of W after the other. -ENOTSUP where there is none. */
static int record(struct bench *b, enum kind kind, const struct op_skinny_shape *cut, uint32_t n)
{
	const struct shape *s = &b->shape;
	uint32_t n_out = s->is_swiglu ? s->n / 2 : s->n;
	struct vk_slice y = {.memory = b->y, .n_bytes = 4ull * s->m * n_out};
	struct op_matmul_params p = {.n_parts = s->is_swiglu ? 2 : 1,
		.finish = s->is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE,
		.x = vk_memory_get_address(b->x),
		.y = vk_memory_get_address(b->y),
		.m = vk_memory_get_address(b->io),
		.n_rows = s->m,
		.staging = vk_memory_get_address(b->staging),
		.n_staging_bytes = vk_memory_get_bytes(b->staging)};
	struct err e = ERR_NULL;

	memcpy(b->map, &s->m, sizeof(s->m));
	vk_command_begin(b->command);
	vk_command_fill(b->command, &y, 0x7fc0dead);
	vk_command_barrier(b->command);
	vk_command_stamp(b->command, 0);
	for (uint32_t i = 0; i < n; i++) {
		p.w[0] = tensor(b, i % b->n_copies, 0, n_out);
		if (s->is_swiglu)
			p.w[1] = tensor(b, i % b->n_copies, n_out, n_out);
		int r = record_op(b, kind, cut, &p, &e);
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

static void print_cut(
	struct bench *b, enum kind kind, const struct op_skinny_shape *cut, double ns, bool right)
{
	const struct shape *s = &b->shape;
	double n_bytes = (double)s->n * (double)matrix_sample_row_bytes(b->dtype, s->k);

	printf("%-5s %6u x %5u x %2u %s ", dtype_find(b->dtype)->name, s->n, s->k, s->m,
		s->is_swiglu ? "swiglu" : "      ");
	if (kind == SKINNY)
		printf("skinny %u x %u groups x %2u shares x %2u splits", cut->n_fragments,
			cut->n_groups, cut->n_shares, cut->n_splits);
	else
		printf("%-43s", kind == MATVEC ? "matvec" : "matrix");
	printf(" %8.1f us %6.0f GB/s %5.0f TFLOP/s%s\n", ns * 1e-3, n_bytes / ns,
		2.0 * s->n * s->k * s->m / ns * 1e-3, right ? "" : "  WRONG");
	fflush(stdout);
}

/* One variant of the shape that is set, NULL: as the op cuts it; 0 where the device lacks it. */
static double run_cut(struct bench *b, enum kind kind, const struct op_skinny_shape *cut)
{
	struct op_matmul_params p = {.n_parts = b->shape.is_swiglu ? 2 : 1,
		.finish = b->shape.is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE,
		.n_rows = b->shape.m,
		.n_staging_bytes = vk_memory_get_bytes(b->staging)};
	uint32_t n_out = b->shape.is_swiglu ? b->shape.n / 2 : b->shape.n;

	if (record(b, kind, cut, 1))
		return 0;
	double best = INFINITY, once = time_record(b);
	bool right = kind == MATVEC || is_right(b); /* which has x in bytes, and a bench */
	/* The driver may compile at the first use. */
	once = fmin(once, (record(b, kind, cut, 1), time_record(b)));
	uint32_t n = once > BATCH_NS ? 1 : (uint32_t)(BATCH_NS / once) + 1;
	if (n > 100)
		n = 100;
	for (int i = 0; i < N_BATCHES && !is_software(b); i++) {
		(void)record(b, kind, cut, n);
		best = fmin(best, time_record(b) / n);
	}
	if (is_software(b))
		best = once;
	p.w[0] = tensor(b, 0, 0, n_out);
	p.w[1] = b->shape.is_swiglu ? tensor(b, 0, n_out, n_out) : p.w[1];
	struct op_skinny_shape chosen = cut ? *cut : op_skinny_choose(b->pool, &p, 0, p.n_parts);
	print_cut(b, kind, &chosen, best, right);
	return right ? best : 0;
}

static void warm_up(struct bench *b)
{
	double end = now() + warm_s;

	while (now() < end && !is_software(b)) {
		(void)record(b, SKINNY, NULL, 20);
		(void)time_record(b);
	}
}

/* Subgroups side by side, with shares of k, and workgroups with shares of it. */
static void run_cuts(struct bench *b)
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
				if (now() > b->deadline || n_all < 132 * 4 || n_all > 132 * 64)
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

static void run_shapes(struct bench *b)
{
	static const struct shape shapes[] = {
		{.n = 28672, .k = 4096, .is_swiglu = true},
		{.n = 4096, .k = 14336},
		{.n = 6144, .k = 4096},
		{.n = 4096, .k = 4096},
	};
	static const uint32_t dtypes[] = {DTYPE_Q4_K, DTYPE_Q6_K};
	static const uint8_t rows[] = {32, 8, 16, 64, 4, 2};

	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (uint32_t j = 0; j < ARRAY_SIZE(dtypes) * ARRAY_SIZE(shapes); j++) {
			struct shape s = shapes[j % ARRAY_SIZE(shapes)];
			if (now() > b->deadline)
				return;
			s.m = rows[i];
			if (is_software(b)) {
				s.n /= 64;
				s.k /= 4;
			}
			set(b, dtypes[j / ARRAY_SIZE(shapes)], &s);
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
	struct bench b = {0};

	on_device_warm_up();
	init(&b, argc > 1 ? atof(argv[1]) : 36);
	if (argc < 6)
		run_shapes(&b);
	for (int i = 5; i < argc && argc < 5 + MAX_ARG_ROWS; i++) {
		const struct dtype *dtype = find_format(argv[2]);
		int n = atoi(argv[3]);
		struct shape s = {.n = (uint32_t)abs(n),
			.k = (uint32_t)atoi(argv[4]),
			.m = (uint32_t)atoi(argv[i]),
			.is_swiglu = n < 0};
		if (!dtype || s.n == 0 || s.k == 0 || s.k > MAX_K || s.m < 2 || s.m > MAX_M)
			fail_msg("a shape without sense");
		set(&b, dtype->id, &s);
		warm_up(&b);
		(void)run_cut(&b, SKINNY, NULL);
		(void)run_cut(&b, MATVEC, NULL);
		(void)run_cut(&b, MATRIX, NULL);
		run_cuts(&b);
	}
	fini(&b);
	printf("%u wrong\n", b.n_wrong);
	return b.n_wrong > 0;
}
