/* SPDX-License-Identifier: Apache-2.0 */
/* The workgroup size of modules that glslc made, and of bytes that nobody should have. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/spirv.h"

static const uint32_t pattern[] =
#include "pattern.comp.inc"
	;
static const uint32_t spec[] =
#include "spec.comp.inc"
	;

static void test_literal(void **state)
{
	struct err e = ERR_NULL;
	uint32_t size[3];

	(void)state;
	assert_int_equal(vk_spirv_get_group_size(pattern, sizeof(pattern), NULL, 0, &e, size), 0);
	assert_int_equal(size[0], 64);
	assert_int_equal(size[1], 1);
	assert_int_equal(size[2], 1);
}

static void test_specialized(void **state)
{
	const uint32_t values[] = {96, 7};
	struct err e = ERR_NULL;
	uint32_t size[3];

	(void)state;
	assert_int_equal(vk_spirv_get_group_size(spec, sizeof(spec), values, 2, &e, size), 0);
	assert_int_equal(size[0], 96);
	assert_int_equal(size[1], 1);
	/* The default of local_size_x_id is 1. */
	assert_int_equal(vk_spirv_get_group_size(spec, sizeof(spec), NULL, 0, &e, size), 0);
	assert_int_equal(size[0], 1);
}

static void test_not_spirv(void **state)
{
	const uint32_t no_size[] = {0x07230203, 0x00010600, 0, 1, 0};
	const uint32_t zero_length[] = {0x07230203, 0x00010600, 0, 1, 0, 0};
	const uint32_t too_long[] = {0x07230203, 0x00010600, 0, 1, 0, 0x00090010, 1, 17};
	struct err e = ERR_NULL;
	uint32_t size[3] = {1, 2, 3};

	(void)state;
	assert_int_equal(vk_spirv_get_group_size(NULL, 0, NULL, 0, &e, size), -EINVAL);
	assert_int_equal(vk_spirv_get_group_size(pattern, 7, NULL, 0, &e, size), -EINVAL);
	assert_int_equal(
		vk_spirv_get_group_size(pattern + 1, sizeof(pattern) - 4, NULL, 0, &e, size),
		-EINVAL);
	assert_non_null(strstr(e.text, "no SPIR-V"));
	assert_int_equal(
		vk_spirv_get_group_size(no_size, sizeof(no_size), NULL, 0, &e, size), -EINVAL);
	assert_non_null(strstr(e.text, "no workgroup size"));
	assert_int_equal(
		vk_spirv_get_group_size(zero_length, sizeof(zero_length), NULL, 0, &e, size),
		-EINVAL);
	assert_int_equal(
		vk_spirv_get_group_size(too_long, sizeof(too_long), NULL, 0, &e, size), -EINVAL);
	assert_int_equal(size[0], 1);
	assert_int_equal(size[2], 3);
}

/* Every cut and every changed word is refused or answered, never read past (for the sanitizers). */
static void test_damaged(void **state)
{
	uint32_t *copy = NULL;
	struct err e = ERR_NULL;
	uint32_t size[3];
	int n_refused = 0;

	(void)state;
	for (size_t n = 0; n <= sizeof(spec); n += 4) {
		copy = malloc(n + 1);
		assert_non_null(copy);
		memcpy(copy, spec, n);
		n_refused += vk_spirv_get_group_size(copy, n, NULL, 0, &e, size) != 0;
		for (size_t i = 0; n == sizeof(spec) && i < n / 4; i++) {
			copy[i] = 0xffffffff;
			n_refused += vk_spirv_get_group_size(copy, n, NULL, 0, &e, size) != 0;
			copy[i] = spec[i];
		}
		free(copy);
	}
	assert_true(n_refused > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_literal),
		CASE(test_specialized),
		CASE(test_not_spirv),
		CASE(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
