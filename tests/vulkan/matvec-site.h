/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_MATVEC_SITE_H
#define TESTS_VULKAN_MATVEC_SITE_H

/*
 * A multiplication of few rows in an arena, and what its bytes and outputs are to be: what the
 * tests of op_matvec share.
 */
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matvec.h"

enum { MATVEC_SITE_X_ROWS = 16 };

struct matvec_shape {
	uint32_t dtypes[ABI_MATMUL_MAX_PARTS];
	uint32_t n[ABI_MATMUL_MAX_PARTS];
	uint32_t n_parts;
	uint32_t k;
	uint32_t m;
	bool has_norm;
	bool has_want;
	enum op_matmul_finish finish;
	struct op_matvec_shape cut;
};

/* Where everything is: offsets in the arena. */
struct matvec_site {
	struct op_matmul_params p;
	uint64_t x, gain, y, r, staging;
	uint64_t n_y_bytes;
	uint32_t y_width;
	uint32_t want[OP_MATVEC_MAX_COLUMNS];
	uint32_t order;
};

/* A random one: nothing is left of what the arena held. */
void matvec_site_init(
	struct op_arena *a, const struct matvec_shape *s, struct matvec_site *ret_site);

/* A random matrix in the arena, at an address that is skew more than a multiple of 256. */
struct weights_tensor matvec_site_take_matrix(
	struct op_arena *a, uint32_t dtype, uint32_t n, uint32_t k, uint32_t skew);

/* The kernels are to write the staging of each row. */
void matvec_site_expect_staging(
	struct op_arena *a, const struct matvec_shape *s, const struct matvec_site *site);

/* Holds what is staged against x, and the outputs against that. */
void matvec_site_check(
	const struct op_arena *a, const struct matvec_shape *s, const struct matvec_site *site);

/* Records and runs it in a cut. */
void matvec_site_run(
	struct op_arena *a, const struct matvec_site *site, const struct op_matvec_shape *cut);

/* Forgets the last run's outputs; and: were all of them written, or none? */
void matvec_site_poison(struct op_arena *a, const struct matvec_site *site);
void matvec_site_check_written(
	const struct op_arena *a, const struct matvec_site *site, bool is_written);

#endif
