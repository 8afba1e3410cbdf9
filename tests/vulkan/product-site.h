/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_PRODUCT_SITE_H
#define TESTS_VULKAN_PRODUCT_SITE_H

/*
 * Products of several rows in an arena, with staging in scratch beside it, and what their outputs
 * are to be after x and W were rounded to f16: what the tests of op_matrix and op_skinny share.
 */
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/matmul.h"

/* Rows that x has, of which a step wants some. */
enum { PRODUCT_SITE_X_ROWS = 80 };

/* Records the op into c as a cut of its own kind says; NULL: as the op chooses. */
typedef int (*product_site_record_fn)(struct op_arena *a, struct vk_command *c,
	const struct op_matmul_params *p, const void *cut, struct err *ret_err);

struct product_shape {
	uint32_t dtypes[ABI_MATMUL_MAX_PARTS];
	uint32_t n[ABI_MATMUL_MAX_PARTS];
	uint32_t n_parts;
	uint32_t k;
	uint32_t m;      /* rows of the step */
	uint32_t n_rows; /* what is recorded for */
	bool has_norm;
	bool has_want;
	enum op_matmul_finish finish;
	const void *cut; /* the record function's; NULL: what the op chooses */
};

struct product_site {
	struct op_arena a;
	struct vk_memory *staging;
	product_site_record_fn record;
};

void product_site_init(struct product_site *s, uint64_t seed, product_site_record_fn record);
void product_site_fini(struct product_site *s);

/* A random matrix [n][k] in the arena. */
struct weights_tensor product_site_take_matrix(
	struct product_site *s, uint32_t dtype, uint32_t n, uint32_t k);

/* Params with the staging, for n_rows; nothing else is set. */
struct op_matmul_params product_site_get_params(const struct product_site *s, uint32_t n_rows);

/* The same for m rows of a random x [m][k] and a random matrix [n][k]; y is the caller's. */
struct op_matmul_params product_site_take_product(
	struct product_site *s, uint32_t dtype, uint32_t n, uint32_t k, uint32_t m);

/* Fills staging with NaN, as f32 and as f16: another op's. */
void product_site_poison_staging(const struct product_site *s, struct vk_command *c);

/* Poisons staging, then records and runs the op. */
void product_site_run(struct product_site *s, const struct op_matmul_params *p, const void *cut);

/* Random inputs of a shape: runs it and holds all outputs against scalar references. */
void product_site_run_shape(struct product_site *s, const struct product_shape *shape);

/* n runs of a product that was taken write the same bits. */
void product_site_check_repeats(
	struct product_site *s, struct op_matmul_params p, const void *cut, uint32_t n);

/* fits takes good, and refuses it with any one thing changed that no op on matrices takes. */
void product_site_check_fits(const struct product_site *s,
	bool (*fits)(const struct op_pool *pool, const struct op_matmul_params *p),
	const struct op_matmul_params *good);

#endif
