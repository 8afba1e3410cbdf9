/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/size.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t n_bytes;
	} rows[] = {{"1", 1}, {"3K", 3 << 10}, {"4M", 4 << 20}, {"8G", 8ull << 30},
		{"2T", 2ull << 40}, {"18446744073709551615", UINT64_MAX}};
	static const char *const wrong[] = {"", "0", "0M", "-1", "+1", " 1", "1m", "1MB", "M",
		"16777216T", "18446744073709551616", "0x10", "1.5G"};
	struct err e = ERR_NULL;
	uint64_t n_bytes = 0;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_int_equal(size_parse("--x", rows[i].text, &e, &n_bytes), 0);
		assert_true(n_bytes == rows[i].n_bytes);
	}
	n_bytes = 7;
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		if (size_parse("--x", wrong[i], &e, &n_bytes) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
		assert_non_null(strstr(e.text, "--x: expected a number of bytes"));
	}
	assert_int_equal(n_bytes, 7);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
