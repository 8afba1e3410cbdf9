/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mat-vecs that leave their outputs as the next one's bytes: the same bytes as those made of y. And
 * what is and is not computed this way at all.
 */
#include "proto/manifest.h"
#include "tests/vulkan/matvec-site.h"

static uint64_t seed;

enum { ARENA_BYTES = 8 << 20, N_NEXT = 16 };

/* Two ops, the second of which finds its bytes as the first left them. */
struct chain {
	uint32_t dtype;
	uint32_t next_dtype;
	enum op_matmul_finish finish;
	uint32_t n; /* outputs of the first */
	uint32_t m;
	bool has_norm; /* before the second */
	struct op_matvec_shape cut;
};

struct link {
	struct matvec_site site;
	struct op_matmul_params next;
	uint64_t left, made, z; /* offsets: bytes of y, the same from y, outputs of next */
	uint64_t n_row, n_said; /* bytes of a row of those, and how many of them say something */
};

static void init_link(
	struct op_arena *a, const struct chain *l, const struct matvec_shape *s, struct link *ret)
{
	matvec_site_init(a, s, &ret->site);
	uint64_t n_bytes = op_matvec_staging_bytes(l->n, l->m);
	ret->n_row = op_matvec_staging_bytes(l->n, 1);
	ret->n_said = l->n / 4 * 5 + (l->has_norm ? l->n / 8 : 0);
	ret->left = op_arena_take(a, n_bytes, 0);
	ret->made = op_arena_take(a, n_bytes, 0);
	ret->z = op_arena_take(a, sizeof(float) * l->m * N_NEXT, 0);
	ret->next = (struct op_matmul_params){.n_parts = 1,
		.x = ret->site.p.y,
		.y = op_arena_address(a, ret->z),
		.m = ret->site.p.m,
		.staging = op_arena_address(a, ret->left),
		.n_staging_bytes = n_bytes,
		.n_rows = l->m};
	ret->next.w[0] = matvec_site_take_matrix(a, l->next_dtype, N_NEXT, l->n, 16);
	if (l->has_norm)
		ret->next.gain = op_arena_address(a, op_arena_take_floats(a, l->n));
	for (uint32_t i = 0; i < l->m; i++) {
		op_arena_expect(a, ret->left + i * ret->n_row, ret->n_said);
		op_arena_expect(a, ret->made + i * ret->n_row, ret->n_said);
	}
	op_arena_expect(a, ret->site.y, ret->site.n_y_bytes);
	op_arena_expect(a, ret->z, sizeof(float) * l->m * N_NEXT);
	matvec_site_expect_staging(a, s, &ret->site);
}

/* The first op, then bytes made of its y by the kernel that has only that to do. */
static void run_both(struct op_arena *a, const struct chain *l, struct link *k)
{
	struct op_matmul_params again = k->next;
	struct op_matvec_shape cut = op_matvec_choose(a->pool, &k->next);
	struct err e = ERR_NULL;

	assert_int_equal(cut.source, OP_MATVEC_STAGED);
	cut.source = OP_MATVEC_STAGE;
	again.staging = op_arena_address(a, k->made);
	struct vk_command *c = op_arena_begin(a);
	on_device_check(op_matvec_record_shape(a->pool, c, &k->site.p, &l->cut, &e), &e, "first");
	vk_command_barrier(c);
	on_device_check(op_matvec_record_shape(a->pool, c, &again, &cut, &e), &e, "again");
	op_arena_run(a);
	for (uint32_t i = 0; i < l->m; i++)
		assert_memory_equal(a->map + k->left + i * k->n_row,
			a->map + k->made + i * k->n_row, k->n_said);
}

/* The first op when nobody needs its y, then the next. */
static void run_staged_only(struct op_arena *a, const struct chain *l, struct link *k)
{
	struct op_matmul_params first = k->site.p;
	struct err e = ERR_NULL;

	first.y = 0;
	matvec_site_poison(a, &k->site);
	struct vk_command *c = op_arena_begin(a);
	on_device_check(op_matvec_record_shape(a->pool, c, &first, &l->cut, &e), &e, "first");
	vk_command_barrier(c);
	on_device_check(op_matvec_record(a->pool, c, &k->next, &e), &e, "next");
	op_arena_run(a);
	matvec_site_check_written(a, &k->site, false);
}

static void run_chain(struct op_arena *a, const struct chain *l)
{
	struct matvec_shape s = {.dtypes = {l->dtype, l->dtype},
		.n = {l->n, l->n},
		.n_parts = l->finish == OP_MATMUL_SWIGLU ? 2 : 1,
		.k = l->cut.n_hold ? 64 * op_pool_get_subgroup_size(a->pool) * l->cut.n_hold *
					     (l->cut.n_split ? l->cut.n_split : 1)
				   : 512,
		.m = l->m,
		.finish = l->finish,
		.cut = l->cut};
	float expected[OP_MATVEC_MAX_COLUMNS * N_NEXT];
	struct link k;

	init_link(a, l, &s, &k);
	assert_true(op_matvec_wants_chain(a->pool, &k.site.p, &k.next) ||
		    l->finish == OP_MATMUL_SWIGLU);
	assert_true(op_matvec_chain(a->pool, &k.site.p, &k.next));
	assert_true(k.next.is_staged);
	run_both(a, l, &k);
	matvec_site_check(a, &s, &k.site);
	memcpy(expected, op_arena_floats(a, k.z), sizeof(float) * l->m * N_NEXT);
	run_staged_only(a, l, &k);
	assert_memory_equal(expected, op_arena_floats(a, k.z), sizeof(float) * l->m * N_NEXT);
}

static void test_chain(void **state)
{
	static const struct chain chains[] = {
		{DTYPE_Q4_K, DTYPE_Q6_K, OP_MATMUL_SWIGLU, 512, 1, false,
			{2, 1, 1, 4, 0, false, OP_MATVEC_STAGE, 0, 0}},
		{DTYPE_Q8_0, DTYPE_Q8_0, OP_MATMUL_ADD, 64, 3, true,
			{4, 2, 1, 1, 1, true, OP_MATVEC_STAGE, 0, 0}},
		{DTYPE_Q2_0, DTYPE_Q2_0, OP_MATMUL_ADD, 640, 5, true,
			{1, 4, 1, 2, 3, false, OP_MATVEC_STAGE, 0, 0}},
		{DTYPE_Q1_0, DTYPE_Q1_0, OP_MATMUL_SWIGLU, 256, 8, false,
			{2, 8, 1, 8, 0, false, OP_MATVEC_STAGE, 0, 0}},
		{DTYPE_Q4_K, DTYPE_Q8_0, OP_MATMUL_ADD, 192, 1, true,
			{2, 1, 1, 4, 2, true, OP_MATVEC_STAGE, 1, 0}},
		{DTYPE_Q4_K, DTYPE_Q4_K, OP_MATMUL_SWIGLU, 256, 1, false,
			{2, 1, 1, 4, 0, true, OP_MATVEC_STAGE, 2, 0}},
		{DTYPE_Q6_K, DTYPE_Q8_0, OP_MATMUL_ADD, 192, 1, true,
			{4, 1, 1, 4, 3, true, OP_MATVEC_STAGE, 1, 2}},
		{DTYPE_Q8_0, DTYPE_Q6_K, OP_MATMUL_ADD, 512, 1, true,
			{1, 1, 1, 2, 0, false, OP_MATVEC_STAGE, 2, 2}},
	};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(chains); i++)
		run_chain(&a, &chains[i]);
	op_arena_fini(&a);
}

/* q and k of one format, v of another: a dispatch each, side by side in y. */
static void test_mixed_formats(void **state)
{
	struct matvec_shape s = {.dtypes = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
		.n = {33, 9, 20},
		.n_parts = 3,
		.k = 1024,
		.m = 2,
		.has_norm = true,
		.finish = OP_MATMUL_ADD};
	struct matvec_site site;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	matvec_site_init(&a, &s, &site);
	op_arena_expect(&a, site.y, site.n_y_bytes);
	matvec_site_expect_staging(&a, &s, &site);
	s.cut = op_matvec_choose(a.pool, &site.p);
	matvec_site_run(&a, &site, &s.cut);
	matvec_site_check(&a, &s, &site);
	op_arena_fini(&a);
}

/* One thing is changed at a time, and that is why it does not fit. */
static void test_fits(void **state)
{
	const struct matvec_shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_Q8_0},
		.n = {4, 4},
		.n_parts = 2,
		.k = 64,
		.m = 2,
		.finish = OP_MATMUL_SWIGLU};
	struct matvec_site site;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 18, seed);
	matvec_site_init(&a, &s, &site);
	assert_true(op_matvec_fits(a.pool, &site.p));
#define DOES_NOT_FIT(change)                              \
	{                                                 \
		struct op_matmul_params p = site.p;       \
		change;                                   \
		assert_false(op_matvec_fits(a.pool, &p)); \
	}
	DOES_NOT_FIT(p.is_exact = true)
	DOES_NOT_FIT(p.n_rows = 9)
	DOES_NOT_FIT(p.n_rows = 0)
	DOES_NOT_FIT(p.n_parts = 1)
	DOES_NOT_FIT(p.n_parts = ABI_MATMUL_MAX_PARTS + 1)
	DOES_NOT_FIT(p.staging = 0)
	DOES_NOT_FIT(p.staging += 8)
	DOES_NOT_FIT(p.n_staging_bytes--)
	DOES_NOT_FIT(p.w[0].address += 2)
	DOES_NOT_FIT(p.w[0].layout = MANIFEST_LAYOUT_RAW + 1)
	DOES_NOT_FIT(p.w[0].n_bytes--)
	DOES_NOT_FIT(p.w[0].dtype = DTYPE_F32)
	DOES_NOT_FIT(p.w[1].dtype = DTYPE_Q4_0; p.w[1].n_bytes = 4 * 2 * 18)
	DOES_NOT_FIT(p.w[1].ne[1] = 2; p.w[1].n_bytes /= 2)
	DOES_NOT_FIT(p.w[0].ne[0] = p.w[1].ne[0] = 32; p.w[0].n_bytes = p.w[1].n_bytes /= 2)
#undef DOES_NOT_FIT
	/* Rows of one format want other bytes of x than those of another. */
	struct op_matmul_params p = site.p;
	p.finish = OP_MATMUL_STORE;
	p.n_rows = 1;
	for (uint32_t i = 0; i < 2; i++) {
		p.w[i].ne[0] = 128;
		p.w[i].ne[1] = 2;
	}
	assert_true(op_matvec_fits(a.pool, &p));
	p.w[1].dtype = DTYPE_Q2_0;
	p.w[1].n_bytes = 2 * 2 * 18;
	assert_false(op_matvec_fits(a.pool, &p));
	p.w[0] = p.w[1];
	assert_true(op_matvec_fits(a.pool, &p));
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_chain),
		CASE(test_mixed_formats),
		CASE(test_fits),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
