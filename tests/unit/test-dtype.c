/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>

#include "proto/dtype.h"

static void knows_the_formats(void **state)
{
	/* Block sizes from the structures of the GGUF specification, counted by hand. */
	static const struct dtype rows[] = {
		{0, "f32", 1, 4, true},
		{1, "f16", 1, 2, true},
		{2, "q4_0", 32, 2 + 16, true},
		{3, "q4_1", 32, 4 + 16, false},
		{6, "q5_0", 32, 2 + 4 + 16, false},
		{7, "q5_1", 32, 4 + 4 + 16, false},
		{8, "q8_0", 32, 2 + 32, true},
		{10, "q2_K", 256, 16 + 64 + 4, false},
		{11, "q3_K", 256, 32 + 64 + 12 + 2, false},
		{12, "q4_K", 256, 4 + 12 + 128, true},
		{13, "q5_K", 256, 4 + 12 + 32 + 128, true},
		{14, "q6_K", 256, 128 + 64 + 16 + 2, true},
		{30, "bf16", 1, 2, true},
		{35, "tq2_0", 256, 64 + 2, true},
		{39, "mxfp4", 32, 1 + 16, false},
		{41, "q1_0", 128, 2 + 16, true},
		{42, "q2_0", 64, 2 + 16, true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct dtype *t = dtype_find(rows[i].id);

		assert_non_null(t);
		assert_string_equal(t->name, rows[i].name);
		assert_int_equal(t->n_block, rows[i].n_block);
		assert_int_equal(t->n_bytes, rows[i].n_bytes);
		assert_int_equal(t->is_supported, rows[i].is_supported);
	}
}

static void has_no_row_for_removed_or_unknown(void **state)
{
	static const uint32_t ids[] = {4, 5, 31, 32, 33, 36, 37, 38, 1000, UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
		assert_null(dtype_find(ids[i]));
}

static void has_each_id_once(void **state)
{
	unsigned n_supported = 0;

	(void)state;
	for (uint32_t id = 0; id < 256; id++) {
		const struct dtype *t = dtype_find(id);

		if (!t)
			continue;
		assert_int_equal(t->id, id);
		assert_true(t->n_block > 0 && t->n_bytes > 0);
		n_supported += t->is_supported;
	}
	assert_int_equal(n_supported, 11);
}

static void lists_what_is_supported(void **state)
{
	char list[DTYPE_LIST_BYTES];

	(void)state;
	dtype_list_supported(list);
	assert_string_equal(
		list, "f32, f16, q4_0, q8_0, q4_K, q5_K, q6_K, bf16, tq2_0, q1_0 or q2_0");
}

static void counts_bytes(void **state)
{
	const uint64_t ne[4] = {64, 3, 1, 1};
	uint64_t n_elements, n_bytes;

	(void)state;
	assert_int_equal(
		dtype_tensor_bytes(dtype_find(DTYPE_F32), 2, ne, &n_elements, &n_bytes), 0);
	assert_int_equal(n_elements, 192);
	assert_int_equal(n_bytes, 768);
	assert_int_equal(
		dtype_tensor_bytes(dtype_find(DTYPE_Q8_0), 4, ne, &n_elements, &n_bytes), 0);
	assert_int_equal(n_elements, 192);
	assert_int_equal(n_bytes, 6 * 34);
	/* A row that ends in half a block, even where the whole tensor would not. */
	assert_int_equal(dtype_tensor_bytes(dtype_find(DTYPE_Q8_0), 2, (const uint64_t[]){16, 2},
				 &n_elements, &n_bytes),
		-EINVAL);
	assert_int_equal(n_bytes, 6 * 34);
}

static void refuses_overflow(void **state)
{
	const struct dtype *f32 = dtype_find(DTYPE_F32), *q8_0 = dtype_find(DTYPE_Q8_0);
	const struct dtype *i8 = dtype_find(24);
	uint64_t e, b;

	(void)state;
	assert_int_equal(dtype_tensor_bytes(f32, 2, (uint64_t[]){1ull << 32, 1ull << 32}, &e, &b),
		-EOVERFLOW);
	assert_int_equal(
		dtype_tensor_bytes(f32, 4,
			(uint64_t[]){1ull << 16, 1ull << 16, 1ull << 16, 1ull << 17}, &e, &b),
		-EOVERFLOW);
	/* The count fits in 64 bits unsigned, not signed. */
	assert_int_equal(dtype_tensor_bytes(i8, 1, (uint64_t[]){1ull << 63}, &e, &b), -EOVERFLOW);
	/* The count fits, the bytes do not. */
	assert_int_equal(dtype_tensor_bytes(f32, 1, (uint64_t[]){1ull << 62}, &e, &b), -EOVERFLOW);
	assert_int_equal(dtype_tensor_bytes(q8_0, 1, (uint64_t[]){1ull << 62}, &e, &b), 0);
	assert_int_equal(
		dtype_tensor_bytes(q8_0, 1, (uint64_t[]){INT64_MAX - 31}, &e, &b), -EOVERFLOW);
	/* The bytes fit, but not rounded up to an alignment. */
	assert_int_equal(
		dtype_tensor_bytes(i8, 1, (uint64_t[]){INT64_MAX - 31}, &e, &b), -EOVERFLOW);
	/* A zero behind the overflow does not hide it. */
	assert_int_equal(
		dtype_tensor_bytes(f32, 3, (uint64_t[]){1ull << 40, 1ull << 40, 0}, &e, &b),
		-EOVERFLOW);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(knows_the_formats),
		CASE(has_no_row_for_removed_or_unknown),
		CASE(has_each_id_once),
		CASE(lists_what_is_supported),
		CASE(counts_bytes),
		CASE(refuses_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
