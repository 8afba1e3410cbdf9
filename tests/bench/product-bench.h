/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_PRODUCT_BENCH_H
#define TESTS_BENCH_PRODUCT_BENCH_H

/*
 * A product of several rows on random weights and inputs, timed, and held against a reference on
 * some rows and columns: what the benches of op_matrix and op_skinny share. A software driver gets
 * an eighth of the memory, but for x, and is timed by single runs.
 */
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/on-device.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/pool.h"

enum { PRODUCT_BENCH_ROWS = 3, PRODUCT_BENCH_COLUMNS = 24 };

struct product_bench;

/* Records p once into b->command, in the way that the bench chose. -ENOTSUP where there is none. */
typedef int (*product_bench_record_fn)(struct product_bench *b, const struct op_matmul_params *p,
	const void *way, struct err *ret_err);

struct product_bench_params {
	uint32_t max_m, max_k;
	uint32_t max_copies; /* of W, which runs read in turn; 0: all that have room */
	uint64_t n_io_bytes, n_weight_bytes, n_y_bytes, n_staging_bytes;
	double batch_ns; /* of one timed submission */
	uint32_t n_batches;
	uint32_t max_runs; /* in a batch */
	product_bench_record_fn record;
};

struct product_bench_shape {
	uint32_t n, k, m;
	bool is_swiglu; /* n is of both */
};

struct product_bench {
	struct product_bench_params params;
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
	struct product_bench_shape shape;
	uint32_t n_copies; /* of W */
	uint8_t *w_rows;   /* distinct rows of W */
	float *x_rows;     /* [as many][k] */
	uint32_t columns[PRODUCT_BENCH_COLUMNS];
	uint32_t rows[PRODUCT_BENCH_ROWS];
	struct matrix_sample_dot expected[PRODUCT_BENCH_ROWS][PRODUCT_BENCH_COLUMNS];
};

/* seconds: until the deadline. */
void product_bench_init(
	struct product_bench *b, const struct product_bench_params *params, double seconds);
void product_bench_fini(struct product_bench *b);

/* In seconds, of the clock that the deadline is of. */
double product_bench_now(void);
bool product_bench_is_late(const struct product_bench *b);

bool product_bench_is_software(const struct product_bench *b);

/* New random weights and inputs. */
void product_bench_set(
	struct product_bench *b, uint32_t dtype, const struct product_bench_shape *shape);

/* The product of what is set, with one copy of W. */
struct op_matmul_params product_bench_get_params(const struct product_bench *b, uint32_t copy);

/* Records the op n times, of one copy of W after the other. -ENOTSUP where there is none. */
int product_bench_record(struct product_bench *b, const void *way, uint32_t n);

/* Runs what was recorded; its time in ns. */
double product_bench_run(struct product_bench *b);

/* Are the outputs of the last run right? Says where not, and counts. */
bool product_bench_is_right(struct product_bench *b);

/* The least time of a run, in ns, after a first one, of first_ns, was recorded and run. */
double product_bench_time(struct product_bench *b, const void *way, double first_ns);

double product_bench_get_tflops(const struct product_bench_shape *s, double ns);

#endif
