/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/policy.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/case.h"

static void test_bytes(void **state)
{
	static const struct {
		const char *text;
		uint64_t n_bytes;
	} rows[] = {{"1", 1}, {"4096", 4096}, {"3K", 3 << 10}, {"512M", 512ull << 20},
		{"8G", 8ull << 30}, {"2T", 2ull << 40}, {"18446744073709551615", UINT64_MAX},
		{"17179869183G", 17179869183ull << 30}};
	static const char *const wrong[] = {"", "0", "0G", "-1", "+1", " 1", "1k", "1GB", "1 G",
		"G", "17179869184G", "18446744073709551616", "0x10", "1.5G"};
	struct err e = ERR_NULL;
	uint64_t n_bytes = 7;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_int_equal(policy_parse_bytes("--x", rows[i].text, &e, &n_bytes), 0);
		assert_int_equal(n_bytes, rows[i].n_bytes);
	}
	n_bytes = 7;
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		if (policy_parse_bytes("--x", wrong[i], &e, &n_bytes) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
		assert_non_null(strstr(e.text, "--x: expected a number of bytes"));
	}
	assert_int_equal(n_bytes, 7);
	/* A budget may be nothing, which is not the 0 of struct policy; a reserve may. */
	assert_int_equal(policy_parse_budget("--x", "0", &e, &n_bytes), 0);
	assert_int_equal(n_bytes, 1);
	assert_int_equal(policy_parse_budget("--x", "2K", &e, &n_bytes), 0);
	assert_int_equal(n_bytes, 2048);
	assert_int_equal(policy_parse_reserve("--x", "0", &e, &n_bytes), 0);
	assert_int_equal(n_bytes, 0);
	assert_int_equal(policy_parse_budget("--x", "", &e, &n_bytes), -EINVAL);
	assert_int_equal(policy_parse_reserve("--x", "-1", &e, &n_bytes), -EINVAL);
}

static void test_experts(void **state)
{
	struct err e = ERR_NULL;
	enum policy_experts experts = POLICY_EXPERTS_AUTO;

	(void)state;
	assert_int_equal(policy_parse_experts("host", &e, &experts), 0);
	assert_int_equal(experts, POLICY_EXPERTS_HOST);
	assert_int_equal(policy_parse_experts("device", &e, &experts), 0);
	assert_int_equal(experts, POLICY_EXPERTS_DEVICE);
	assert_int_equal(policy_parse_experts("auto", &e, &experts), 0);
	assert_int_equal(experts, POLICY_EXPERTS_AUTO);
	assert_int_equal(policy_parse_experts("", &e, &experts), -EINVAL);
}

static void test_rules(void **state)
{
	struct policy p = {0};
	struct err e = ERR_NULL;
	char text[POLICY_MAX_PATTERN_BYTES + 16];

	(void)state;
	assert_int_equal(policy_find(&p, "blk.0.x"), 0);
	assert_int_equal(policy_add_rule(&p, "*=staged", &e), 0);
	assert_int_equal(policy_add_rule(&p, "blk.[0-3].*=device", &e), 0);
	assert_int_equal(policy_add_rule(&p, "a=b=paged", &e), 0);
	assert_int_equal(policy_find(&p, "blk.0.x"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(policy_find(&p, "blk.4.x"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(policy_find(&p, "a=b"), MANIFEST_PLACEMENT_PAGED);
	assert_int_equal(policy_add_rule(&p, "*=", &e), -EINVAL);
	assert_int_equal(policy_add_rule(&p, "=device", &e), -EINVAL);
	assert_int_equal(policy_add_rule(&p, "device", &e), -EINVAL);
	assert_int_equal(policy_add_rule(&p, "*=vram", &e), -EINVAL);
	assert_non_null(strstr(e.text, "vram"));
	memset(text, 'x', POLICY_MAX_PATTERN_BYTES);
	strcpy(text + POLICY_MAX_PATTERN_BYTES, "=paged");
	assert_int_equal(policy_add_rule(&p, text, &e), -EINVAL);
	while (p.n_rules < POLICY_MAX_RULES)
		assert_int_equal(policy_add_rule(&p, "x=paged", &e), 0);
	assert_int_equal(policy_add_rule(&p, "x=paged", &e), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_bytes),
		CASE(test_experts),
		CASE(test_rules),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
