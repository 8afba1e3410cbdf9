/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for few rows, of every block format, against scalar references: what they make of x,
 * the products of those bytes to a few roundings, and of x itself within what eight bits allow; all
 * that is fused in, the ways to cut the work, and that those do not change a bit.
 */
#include <math.h>

#include "tests/vulkan/matvec-site.h"

static uint64_t seed;

enum { ARENA_BYTES = 8 << 20 };

/* A step of one row less than was recorded for: that one's outputs are nobody's. */
static void run_fewer(struct op_arena *a, const struct matvec_shape *s,
	const struct matvec_site *site, const struct op_matvec_shape *cut, const float *expected)
{
	uint64_t n_row = site->n_y_bytes / s->m, n_less = site->n_y_bytes - n_row;
	uint32_t m = s->m - 1;

	memcpy(a->map + (site->p.m - op_arena_address(a, 0)), &m, sizeof(m));
	matvec_site_poison(a, site);
	matvec_site_run(a, site, cut);
	assert_memory_equal(expected, a->map + site->y, n_less);
	for (uint64_t i = n_less / 4; i < site->n_y_bytes / 4; i++)
		assert_true(isnan(op_arena_floats(a, site->y)[i]));
}

/* Through staging, then without, then from what is staged: the same bytes, so the same answer. */
static void run_shape(struct op_arena *a, const struct matvec_shape *s, bool has_own)
{
	struct op_matvec_shape cut = s->cut;
	struct matvec_site site;

	matvec_site_init(a, s, &site);
	op_arena_expect(a, site.y, site.n_y_bytes);
	matvec_site_expect_staging(a, s, &site);
	cut.source = OP_MATVEC_STAGE;
	matvec_site_run(a, &site, &cut);
	matvec_site_check(a, s, &site);
	float *first = malloc(site.n_y_bytes);
	assert_non_null(first);
	memcpy(first, a->map + site.y, site.n_y_bytes);
	matvec_site_poison(a, &site);
	cut.source = OP_MATVEC_STAGED;
	matvec_site_run(a, &site, &cut);
	assert_memory_equal(first, a->map + site.y, site.n_y_bytes);
	if (has_own) {
		matvec_site_poison(a, &site);
		cut.source = OP_MATVEC_OWN;
		matvec_site_run(a, &site, &cut);
		matvec_site_check_written(a, &site, true);
		matvec_site_check(a, s, &site);
		if (!s->has_norm)
			assert_memory_equal(first, a->map + site.y, site.n_y_bytes);
	}
	/* Kept x is the same x, and sums of shared tiles are the same sums. */
	if (cut.n_hold > 0) {
		cut.n_hold = cut.n_split = 0;
		cut.source = OP_MATVEC_STAGED;
		matvec_site_poison(a, &site);
		matvec_site_run(a, &site, &cut);
		assert_memory_equal(first, a->map + site.y, site.n_y_bytes);
	}
	if (s->m > 1) {
		cut.source = OP_MATVEC_STAGED;
		cut.n_hold = s->cut.n_hold;
		cut.n_split = s->cut.n_split;
		run_fewer(a, s, &site, &cut, first);
	}
	free(first);
}

/* Software drivers compile a big tile for seconds: few, and small ones. */
static const struct op_matvec_shape cuts[] = {
	{.n_rows = 1, .n_columns = 2, .n_unroll = 2, .n_subgroups = 4},
	{.n_rows = 2,
		.n_columns = 1,
		.n_unroll = 1,
		.n_subgroups = 1,
		.n_groups = 1,
		.is_ahead = true},
	{.n_rows = 1, .n_columns = 8, .n_unroll = 1, .n_subgroups = 3},
	{.n_rows = 2, .n_columns = 4, .n_unroll = 1, .n_subgroups = 2, .n_groups = 2},
};

/* Rows of W are whole words where k is a multiple of it. */
static uint32_t unit_of(uint32_t dtype)
{
	return dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0   ? 64
	       : dtype == DTYPE_Q2_0                        ? 128
	       : dtype == DTYPE_Q1_0 || dtype == DTYPE_Q4_K ? 256
							    : 512;
}

/*
 * Does a barrier of a subgroup hold up the whole workgroup? Software drivers of Mesa after 22.3
 * wait there for subgroups that have nothing to do any more, and leave the rest undone (seen
 * with 26.1).
 */
static bool has_loose_subgroups(const struct op_arena *a)
{
	return !op_pool_is_software(a->pool) ||
	       strstr(vk_device_get_info(a->d)->driver, "Mesa 22.");
}

/* One cut of one format: a pipeline of each source, with several sizes. */
static void run_cut(struct op_arena *a, uint32_t dtype, uint32_t i)
{
	/* Eight rows of x in the shared memory of a software driver. */
	uint32_t unit = unit_of(dtype), n_most = (cuts[i].n_columns == 8 ? 1024 : 2560) / unit;
	struct matvec_shape s = {.dtypes = {dtype, dtype, dtype},
		.has_norm = i < 2,
		.has_want = i == 0,
		.cut = cuts[i],
		.finish = i == 0   ? OP_MATMUL_STORE
			  : i == 2 ? OP_MATMUL_ADD
				   : OP_MATMUL_SWIGLU};

	if (!has_loose_subgroups(a))
		s.cut.n_subgroups = 1;
	for (uint32_t round = 0; round < 3; round++) {
		/* More rows than columns: two tiles of them. */
		s.m = op_arena_random(a, round == 0 ? 1 : cuts[i].n_columns, OP_MATVEC_MAX_COLUMNS);
		s.k = unit * (round == 0 ? 1 : op_arena_random(a, 1, n_most));
		s.n_parts = s.finish == OP_MATMUL_SWIGLU ? 2 : 1 + (i + round) % 3;
		s.n[0] = round == 0 ? 1 : op_arena_random(a, 1, 40);
		s.n[1] = s.finish == OP_MATMUL_SWIGLU ? s.n[0] : op_arena_random(a, 1, 20);
		s.n[2] = op_arena_random(a, 1, 20);
		run_shape(a, &s, i % 2 == 0);
	}
}

/* x in registers: subgroups that walk over several tiles, and such that share them. */
static const struct op_matvec_shape held[] = {
	{.n_rows = 2, .n_subgroups = 2, .n_groups = 2, .is_ahead = true, .n_hold = 2},
	{.n_rows = 1, .n_subgroups = 3, .n_groups = 1, .n_hold = 2, .n_split = 3},
	{.n_rows = 4, .n_subgroups = 4, .is_ahead = true, .n_hold = 1, .n_split = 2},
	{.n_rows = 1, .n_subgroups = 1, .n_groups = 3, .n_hold = 1},
};

/* The last ones of few formats: each is several pipelines. */
static void run_hold(struct op_arena *a, uint32_t dtype)
{
	bool is_all = dtype == DTYPE_Q4_K || dtype == DTYPE_Q6_K;

	for (uint32_t i = 0; i < (is_all ? ARRAY_SIZE(held) : 2); i++) {
		struct matvec_shape s = {.dtypes = {dtype, dtype, dtype},
			.n_parts = 2,
			.m = i == 3 ? 3 : 1,
			.has_norm = i != 3,
			.has_want = i == 1,
			.cut = held[i],
			.finish = i % 2 == 0 ? OP_MATMUL_SWIGLU
				  : i == 3   ? OP_MATMUL_ADD
					     : OP_MATMUL_STORE};
		uint32_t n_split = s.cut.n_split ? s.cut.n_split : 1;
		uint32_t n = 64 * op_pool_get_subgroup_size(a->pool) * s.cut.n_hold;
		uint32_t n_less = n / s.cut.n_hold * (s.cut.n_hold - 1) * n_split;
		uint32_t n_least = n * (n_split - 1) > n_less ? n * (n_split - 1) : n_less;

		s.cut.n_columns = s.cut.n_unroll = 1;
		if (!has_loose_subgroups(a))
			s.cut.n_subgroups = n_split;
		/* The last of those that share it may have less than the others. */
		s.k = i == 2 ? n * n_split
			     : unit_of(dtype) * op_arena_random(a, n_least / unit_of(dtype) + 1,
							n * n_split / unit_of(dtype));
		s.n[0] = op_arena_random(a, 8, 18) * 2 + 1;
		s.n[1] = i % 2 == 0 ? s.n[0] : op_arena_random(a, 1, 20);
		run_shape(a, &s, i < 2);
	}
}

/* What cannot stay in registers is refused. */
static void refuse_hold(struct op_arena *a, uint32_t dtype)
{
	uint32_t k = 64 * op_pool_get_subgroup_size(a->pool) * 2;
	struct matvec_shape s = {
		.dtypes = {dtype}, .n = {4}, .n_parts = 1, .k = k, .m = 1, .cut = {0}};
	const struct op_matvec_shape good = {
		.n_rows = 2, .n_columns = 1, .n_unroll = 1, .n_subgroups = 2, .n_hold = 2};
	struct op_matvec_shape refused[9];
	struct matvec_site site;
	struct err e = ERR_NULL;

	for (uint32_t i = 0; i < ARRAY_SIZE(refused); i++)
		refused[i] = good;
	refused[0].n_hold = 1;
	refused[1].n_columns = 2;
	refused[2].n_unroll = 2;
	refused[3].n_hold = OP_MATVEC_MAX_HOLD + 1;
	refused[4].n_split = 2; /* one of them would have nothing */
	refused[5].n_split = 3; /* nor is it a divisor */
	refused[5].n_hold = 1;
	refused[6].n_split = 2;
	refused[6].n_hold = 0;
	refused[7].n_hold = 1;
	refused[7].n_split = 2;
	refused[7].n_subgroups = 3;
	refused[8].source = OP_MATVEC_OWN;
	matvec_site_init(a, &s, &site);
	struct vk_command *c = op_arena_begin(a);
	for (uint32_t i = 0; i < ARRAY_SIZE(refused); i++) {
		struct op_matmul_params p = site.p;
		/* Made by the kernel itself, x is read in sixteens of bytes. */
		p.x += refused[i].source == OP_MATVEC_OWN ? 4 : 0;
		assert_int_equal(op_matvec_record_shape(a->pool, c, &p, &refused[i], &e), -EINVAL);
	}
	op_arena_run(a);
}

static void run_format(uint32_t dtype)
{
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(cuts); i++)
		run_cut(&a, dtype, i);
	if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) {
		run_hold(&a, dtype);
		refuse_hold(&a, dtype);
	}
	op_arena_fini(&a);
}

static void test_format(void **state)
{
	run_format(*(const uint32_t *)*state);
}

/* Arguments: the names of those to test; none: all. */
int main(int argc, char **argv)
{
	static uint32_t dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_K,
		DTYPE_Q6_K, DTYPE_TQ2_0, DTYPE_Q2_0, DTYPE_Q1_0};
	struct CMUnitTest tests[ARRAY_SIZE(dtypes)];
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
		const char *name = dtype_find(dtypes[i])->name;
		bool is_wanted = argc == 1;
		for (int k = 1; k < argc; k++)
			is_wanted |= !strcmp(argv[k], name);
		if (is_wanted)
			tests[n++] = (struct CMUnitTest){
				name, test_format, case_setup, case_teardown, &dtypes[i]};
	}
	if (n == 0) {
		fprintf(stderr, "none of these formats\n");
		return 2;
	}
	on_device_warm_up();
	seed = op_arena_seed();
	return _cmocka_run_group_tests("formats", tests, n, NULL, NULL);
}
