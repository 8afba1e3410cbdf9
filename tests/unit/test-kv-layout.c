/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/kv-layout.h"

#include <errno.h>

#include "proto/util/cleanup.h"
#include "tests/case.h"

/* Every row begins at 16 bytes, every part at 64, and nothing meets. */
static void test_sizes(void **state)
{
	static const struct {
		enum kv_layout_type type;
		uint32_t n_head_kv, head_dim;
		uint32_t n_row_bytes, n_scales;
	} rows[] = {
		{KV_LAYOUT_F16, 8, 128, 256, 0},
		{KV_LAYOUT_F16, 2, 80, 160, 0},
		{KV_LAYOUT_F16, 1, 34, 80, 0},
		{KV_LAYOUT_F16, 1, 2, 16, 0},
		{KV_LAYOUT_Q8_0, 8, 128, 128, 4},
		{KV_LAYOUT_Q8_0, 3, 96, 96, 3},
		{KV_LAYOUT_Q8_0, 2, 80, 80, 3},
		{KV_LAYOUT_Q8_0, 1, 34, 48, 2},
		{KV_LAYOUT_Q8_0, 1, 2, 16, 1},
	};
	struct kv_layout l;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		uint64_t n_rows = (uint64_t)rows[i].n_head_kv * KV_PAGE_TOKENS;

		assert_int_equal(
			kv_layout_get(rows[i].type, rows[i].n_head_kv, rows[i].head_dim, &l), 0);
		assert_int_equal(l.n_row_bytes, rows[i].n_row_bytes);
		assert_int_equal(l.n_scales, rows[i].n_scales);
		assert_int_equal(l.scales_at, n_rows * l.n_row_bytes);
		assert_int_equal(l.n_part_bytes, l.scales_at + n_rows * 2 * l.n_scales);
		assert_int_equal(l.n_part_bytes % 64, 0);
	}
}

static void test_overflow(void **state)
{
	struct kv_layout l = {.n_row_bytes = 7};

	(void)state;
	for (int type = 0; type < KV_LAYOUT_N_TYPES; type++) {
		assert_int_equal(kv_layout_get(type, UINT32_MAX, UINT32_MAX, &l), -EOVERFLOW);
		assert_int_equal(kv_layout_get(type, UINT32_MAX, 1, &l), -EOVERFLOW);
		assert_int_equal(kv_layout_get(type, 1, UINT32_MAX, &l), -EOVERFLOW);
	}
	assert_int_equal(l.n_row_bytes, 7);
}

static void test_names(void **state)
{
	enum kv_layout_type type = KV_LAYOUT_N_TYPES;

	(void)state;
	for (int i = 0; i < KV_LAYOUT_N_TYPES; i++) {
		assert_int_equal(kv_layout_parse_type(kv_layout_type_name(i), &type), 0);
		assert_int_equal(type, i);
	}
	assert_int_equal(kv_layout_parse_type("F16", &type), -EINVAL);
	assert_int_equal(kv_layout_parse_type("", &type), -EINVAL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_sizes),
		CASE(test_overflow),
		CASE(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
