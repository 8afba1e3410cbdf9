/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/product-bench.h"

#include <math.h>
#include <time.h>

#include "proto/manifest.h"

/* Distinct rows of W and of x; a prime, so that tiles differ. */
enum { N_SAMPLE_ROWS = 251 };

double product_bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool product_bench_is_late(const struct product_bench *b)
{
	return product_bench_now() > b->deadline;
}

static uint32_t next(struct product_bench *b, uint32_t n)
{
	b->rng = b->rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((b->rng >> 33) % n);
}

bool product_bench_is_software(const struct product_bench *b)
{
	return vk_device_get_info(b->d)->is_software;
}

static struct vk_memory *new_scratch(const struct product_bench *b, uint64_t n_bytes)
{
	return on_device_memory(
		b->d, VK_MEMORY_SCRATCH, n_bytes / (product_bench_is_software(b) ? 8 : 1), false);
}

void product_bench_init(
	struct product_bench *b, const struct product_bench_params *params, double seconds)
{
	struct err e = ERR_NULL;
	uint64_t n_x_bytes = sizeof(float) * params->max_m * params->max_k;
	uint64_t n_row_bytes = sizeof(float) * params->max_k;

	*b = (struct product_bench){.params = *params,
		.d = on_device_new(),
		.rng = (uint64_t)time(NULL),
		.deadline = product_bench_now() + seconds};
	on_device_check(op_pool_new(b->d, &e, &b->pool), &e, "pool");
	b->io = on_device_memory(b->d, VK_MEMORY_IO, params->n_io_bytes, false);
	b->map = (uint8_t *)on_device_map(b->io);
	b->weights = new_scratch(b, params->n_weight_bytes);
	b->x = on_device_memory(b->d, VK_MEMORY_SCRATCH, n_x_bytes, false);
	b->y = new_scratch(b, params->n_y_bytes);
	b->staging = new_scratch(b, params->n_staging_bytes);
	b->command = on_device_command(b->d, 2);
	b->upload = on_device_command(b->d, 0);
	b->w_rows = malloc(N_SAMPLE_ROWS * n_row_bytes);
	b->x_rows = malloc(N_SAMPLE_ROWS * n_row_bytes);
	assert_non_null(b->w_rows);
	assert_non_null(b->x_rows);
}

void product_bench_fini(struct product_bench *b)
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
static void upload(struct product_bench *b, struct vk_memory *to, const void *rows,
	uint64_t n_row_bytes, uint32_t n)
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

static uint32_t count_outputs(const struct product_bench_shape *s)
{
	return s->is_swiglu ? s->n / 2 : s->n;
}

static void expect(struct product_bench *b)
{
	uint32_t k = b->shape.k;
	uint64_t n_row_bytes = matrix_sample_row_bytes(b->dtype, k);
	uint32_t n_out = count_outputs(&b->shape);
	float *w = malloc(sizeof(float) * 4 * k);

	assert_non_null(w);
	for (uint32_t i = 0; i < PRODUCT_BENCH_ROWS; i++)
		b->rows[i] = i == 0 ? 0 : i == 1 ? b->shape.m - 1 : next(b, b->shape.m);
	for (uint32_t c = 0; c < PRODUCT_BENCH_COLUMNS; c++) {
		uint32_t j = c == 0 ? 0 : c == 1 ? n_out - 1 : next(b, n_out);
		b->columns[c] = j;
		matrix_sample_get(
			b->dtype, b->w_rows + j % N_SAMPLE_ROWS * n_row_bytes, k, w, w + k);
		if (b->shape.is_swiglu)
			matrix_sample_get(b->dtype,
				b->w_rows + (n_out + j) % N_SAMPLE_ROWS * n_row_bytes, k, w + 2 * k,
				w + 3 * k);
		for (uint32_t i = 0; i < PRODUCT_BENCH_ROWS; i++) {
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
static uint32_t count_copy_rows(const struct product_bench_shape *s)
{
	return (s->n + N_SAMPLE_ROWS - 1) / N_SAMPLE_ROWS * N_SAMPLE_ROWS;
}

void product_bench_set(
	struct product_bench *b, uint32_t dtype, const struct product_bench_shape *shape)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, shape->k);
	uint32_t n_copy = count_copy_rows(shape), max = b->params.max_copies;

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
	if (max && b->n_copies > max)
		b->n_copies = max;
	upload(b, b->weights, b->w_rows, n_row_bytes, b->n_copies * n_copy);
	upload(b, b->x, b->x_rows, sizeof(float) * shape->k, shape->m);
	expect(b);
}

static struct weights_tensor tensor(
	const struct product_bench *b, uint32_t copy, uint32_t first, uint32_t n)
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

struct op_matmul_params product_bench_get_params(const struct product_bench *b, uint32_t copy)
{
	const struct product_bench_shape *s = &b->shape;
	uint32_t n_out = count_outputs(s);
	struct op_matmul_params p = {.n_parts = s->is_swiglu ? 2 : 1,
		.finish = s->is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE,
		.w[0] = tensor(b, copy, 0, n_out),
		.x = vk_memory_get_address(b->x),
		.y = vk_memory_get_address(b->y),
		.m = vk_memory_get_address(b->io),
		.n_rows = s->m,
		.staging = vk_memory_get_address(b->staging),
		.n_staging_bytes = vk_memory_get_bytes(b->staging)};

	if (s->is_swiglu)
		p.w[1] = tensor(b, copy, n_out, n_out);
	return p;
}

int product_bench_record(struct product_bench *b, const void *way, uint32_t n)
{
	const struct product_bench_shape *s = &b->shape;
	struct vk_slice y = {.memory = b->y, .n_bytes = sizeof(float) * s->m * count_outputs(s)};
	struct err e = ERR_NULL;

	memcpy(b->map, &s->m, sizeof(s->m));
	vk_command_begin(b->command);
	vk_command_fill(b->command, &y, 0x7fc0dead);
	vk_command_barrier(b->command);
	vk_command_stamp(b->command, 0);
	for (uint32_t i = 0; i < n; i++) {
		struct op_matmul_params p = product_bench_get_params(b, i % b->n_copies);
		int r = b->params.record(b, &p, way, &e);
		if (r == -ENOTSUP)
			return r;
		on_device_check(r, &e, "record");
		vk_command_barrier(b->command);
	}
	vk_command_stamp(b->command, 1);
	return 0;
}

double product_bench_run(struct product_bench *b)
{
	uint64_t stamps[2];

	on_device_run(b->d, b->command);
	if (vk_command_get_stamps(b->command, stamps))
		fail_msg("no timestamps");
	return (double)(stamps[1] - stamps[0]);
}

bool product_bench_is_right(struct product_bench *b)
{
	uint64_t n_row_bytes = sizeof(float) * count_outputs(&b->shape);
	uint32_t n_bad = 0;

	vk_command_begin(b->upload);
	for (uint32_t i = 0; i < PRODUCT_BENCH_ROWS; i++) {
		struct vk_slice src = {
			.memory = b->y, .offset = b->rows[i] * n_row_bytes, .n_bytes = n_row_bytes};
		struct vk_slice dst = {
			.memory = b->io, .offset = i * n_row_bytes, .n_bytes = n_row_bytes};
		vk_command_copy(b->upload, &dst, &src);
	}
	vk_command_host_barrier(b->upload);
	on_device_run(b->d, b->upload);
	for (uint32_t i = 0; i < PRODUCT_BENCH_ROWS; i++) {
		for (uint32_t c = 0; c < PRODUCT_BENCH_COLUMNS; c++) {
			const struct matrix_sample_dot *e = &b->expected[i][c];
			float y;
			memcpy(&y, b->map + i * n_row_bytes + sizeof(y) * b->columns[c], sizeof(y));
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

double product_bench_time(struct product_bench *b, const void *way, double first_ns)
{
	/* The driver may compile at the first use. */
	(void)product_bench_record(b, way, 1);
	double once = fmin(first_ns, product_bench_run(b)), best = INFINITY;
	if (product_bench_is_software(b))
		return once;
	uint32_t n = once > b->params.batch_ns ? 1 : (uint32_t)(b->params.batch_ns / once) + 1;
	if (n > b->params.max_runs)
		n = b->params.max_runs;
	for (uint32_t i = 0; i < b->params.n_batches; i++) {
		(void)product_bench_record(b, way, n);
		best = fmin(best, product_bench_run(b) / n);
	}
	return best;
}

double product_bench_get_tflops(const struct product_bench_shape *s, double ns)
{
	return 2.0 * s->n * s->k * s->m / ns * 1e-3;
}
