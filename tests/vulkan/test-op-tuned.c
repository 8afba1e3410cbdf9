/* SPDX-License-Identifier: Apache-2.0 */
/* Products cut by a table: as it says where that can be, with the same numbers, else as ever. */
#include "tests/vulkan/matvec-site.h"
#include "vk/device.h"
#include "workerd/ops/matrix.h"
#include "workerd/tuning.h"

static uint64_t seed;

enum { ARENA_BYTES = 8 << 20, N_OUT = 96, K = 512 };

#define CUT                                                                   \
	{                                                                     \
		.n_rows = 4, .n_columns = 2, .n_unroll = 2, .n_subgroups = 2, \
		.source = OP_MATVEC_STAGE                                     \
	}
static const struct op_matvec_shape cut = CUT;

static const struct matvec_shape shape = {.dtypes = {DTYPE_Q8_0},
	.n = {N_OUT},
	.n_parts = 1,
	.k = K,
	.m = 3,
	.has_norm = true,
	.finish = OP_MATMUL_ADD,
	.cut = CUT};

static struct tuning *make(const struct op_matmul_params *p, const struct tuning_choice *choice)
{
	struct tuning *t = tuning_new();
	struct tuning_key key;

	assert_non_null(t);
	tuning_get_key(p, &key);
	assert_int_equal(tuning_set(t, &key, choice), 0);
	return t;
}

/* What op_matvec_choose says of a table with this shape. */
static bool is_taken(
	struct op_arena *a, const struct op_matmul_params *p, const struct op_matvec_shape *s)
{
	const struct tuning_choice choice = {.kind = TUNING_MATVEC, .shape = *s};
	struct tuning_choice own = {.kind = TUNING_MATVEC}, found = own;

	op_pool_set_tuning(a->pool, NULL);
	own.shape = op_matvec_choose(a->pool, p);
	struct tuning *t = make(p, &choice);
	op_pool_set_tuning(a->pool, t);
	found.shape = op_matvec_choose(a->pool, p);
	op_pool_set_tuning(a->pool, NULL);
	tuning_free(t);
	if (tuning_is_same(&found, &choice))
		return true;
	assert_true(tuning_is_same(&found, &own));
	return false;
}

/* Recorded as the plan does; held against the scalar sums. */
static void run_tuned(
	struct op_arena *a, const struct matvec_shape *s, const struct matvec_site *site)
{
	const struct tuning_choice choice = {.kind = TUNING_MATVEC, .shape = s->cut};
	struct err e = ERR_NULL;

	op_arena_expect(a, site->y, site->n_y_bytes);
	matvec_site_expect_staging(a, s, site);
	struct tuning *t = make(&site->p, &choice);
	op_pool_set_tuning(a->pool, t);
	op_arena_begin(a);
	on_device_check(op_matmul_record(a->pool, a->command, &site->p, &e), &e, "matmul");
	op_arena_run(a);
	matvec_site_check(a, s, site);
	op_pool_set_tuning(a->pool, NULL);
	tuning_free(t);
}

static void test_few_rows(void **state)
{
	struct op_arena a;
	struct matvec_site site;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	matvec_site_init(&a, &shape, &site);
	assert_true(op_matvec_fits(a.pool, &site.p));
	assert_true(is_taken(&a, &site.p, &cut));
	/* Shapes that do not go with the op, the device or what others make of it. */
	struct op_matvec_shape other = cut;
	other.source = OP_MATVEC_STAGED;
	assert_false(is_taken(&a, &site.p, &other));
	other = cut;
	other.n_subgroups =
		2 * op_pool_get_info(a.pool)->max_invocations / op_pool_get_subgroup_size(a.pool);
	if (other.n_subgroups <= 128)
		assert_false(is_taken(&a, &site.p, &other));
	struct op_matmul_params p = site.p;
	p.is_staged = true;
	assert_false(is_taken(&a, &p, &cut));
	p = site.p;
	p.next = p.staging;
	other = cut;
	other.n_subgroups = 3;
	assert_false(is_taken(&a, &p, &other));
	assert_true(is_taken(&a, &site.p, &other));
	p = site.p;
	p.finish = OP_MATMUL_SWIGLU;
	p.n_parts = 2;
	p.w[1] = p.w[0];
	other = cut;
	other.n_rows = 1;
	assert_false(is_taken(&a, &p, &other));
	assert_true(is_taken(&a, &site.p, &other));
	op_arena_fini(&a);
}

/* x goes into registers whole, or the shape is not for this op. */
static void test_held(void **state)
{
	struct op_arena a;
	struct matvec_site site;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	struct matvec_shape s = shape;
	s.cut.n_columns = 1;
	s.cut.n_unroll = 1;
	s.cut.n_hold = 2;
	s.cut.n_groups = 3;
	s.cut.n_subgroups = 1; /* as some software drivers have to have it */
	s.k = 64 * s.cut.n_hold * op_pool_get_subgroup_size(a.pool);
	matvec_site_init(&a, &s, &site);
	assert_true(is_taken(&a, &site.p, &s.cut));
	for (uint32_t n_hold = 1; n_hold <= OP_MATVEC_MAX_HOLD; n_hold++) {
		struct op_matvec_shape other = s.cut;

		other.n_hold = n_hold;
		assert_int_equal(is_taken(&a, &site.p, &other), n_hold == 2);
	}
	run_tuned(&a, &s, &site);
	/* Two that share it hold half. */
	s.cut.n_subgroups = s.cut.n_split = 2;
	assert_false(is_taken(&a, &site.p, &s.cut));
	s.cut.n_hold = 1;
	assert_true(is_taken(&a, &site.p, &s.cut));
	matvec_site_init(&a, &s, &site);
	run_tuned(&a, &s, &site);
	op_arena_fini(&a);
}

static void test_results(void **state)
{
	struct matvec_site site;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	matvec_site_init(&a, &shape, &site);
	run_tuned(&a, &shape, &site);
	op_arena_fini(&a);
}

static void test_many_rows(void **state)
{
	struct tuning_choice choice = {.kind = TUNING_MATRIX,
		.tile = {.bn = 32, .bm = 16, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1}};
	struct op_arena a;
	struct matvec_site site;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	if (!op_pool_get_info(a.pool)->n_matrices) {
		op_arena_fini(&a);
		skip();
	}
	matvec_site_init(&a, &shape, &site);
	struct op_matmul_params p = site.p;
	/* Nothing is dispatched: addresses need only be such as could be. */
	p.x &= ~15ull;
	p.gain &= ~15ull;
	p.staging &= ~15ull;
	p.w[0].address &= ~15ull;
	p.n_rows = 32;
	p.n_staging_bytes = 2ull * p.n_rows * K;
	assert_true(op_matrix_fits(a.pool, &p));
	struct tuning_choice found = choice, own = choice;
	own.tile = op_matrix_choose(a.pool, &p);
	assert_false(tuning_is_same(&own, &choice));
	struct tuning *t = make(&p, &choice);
	op_pool_set_tuning(a.pool, t);
	found.tile = op_matrix_choose(a.pool, &p);
	assert_true(tuning_is_same(&found, &choice));
	assert_true(op_matrix_fits(a.pool, &p));
	/* Whole tiles of x would not have room; no grid has so many groups. */
	p.n_rows = 24;
	p.n_staging_bytes = 2ull * p.n_rows * K;
	choice.tile.is_direct = true;
	tuning_free(t);
	t = make(&p, &choice);
	op_pool_set_tuning(a.pool, t);
	found.tile = op_matrix_choose(a.pool, &p);
	assert_false(tuning_is_same(&found, &choice));
	p.n_staging_bytes = 2ull * 32 * K;
	found.tile = op_matrix_choose(a.pool, &p);
	assert_true(tuning_is_same(&found, &choice));
	p.w[0].ne[1] = 1 << 20;
	tuning_free(t);
	t = make(&p, &choice);
	op_pool_set_tuning(a.pool, t);
	found.tile = op_matrix_choose(a.pool, &p);
	assert_false(tuning_is_same(&found, &choice));
	op_pool_set_tuning(a.pool, NULL);
	tuning_free(t);
	op_arena_fini(&a);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		CASE(test_few_rows),
		CASE(test_results),
		CASE(test_held),
		CASE(test_many_rows),
	};

	seed = op_arena_seed();
	on_device_warm_up();
	return cmocka_run_group_tests(cases, NULL, NULL);
}
