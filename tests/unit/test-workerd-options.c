/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/options.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

/* Of "workerd --model m" and some more. */
static int parse(const char *name, const char *value, struct err *ret_err, struct options *ret)
{
	char *argv[] = {(char *)"workerd", (char *)"--model", (char *)"m", (char *)name,
		(char *)value, NULL};
	int argc = 3 + (name != NULL) + (value != NULL);

	optind = 0; /* glibc: begin anew */
	return options_parse(argc, argv, ret_err, ret);
}

static void test_defaults(void **state)
{
	struct options o;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(parse(NULL, NULL, &e, &o), 0);
	assert_string_equal(o.model, "m");
	assert_int_equal(o.n_sessions, 4);
	assert_int_equal(o.expert_cache, OPTIONS_EXPERT_CACHE_AUTO);
}

static void test_switches(void **state)
{
	struct options o;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(parse(NULL, NULL, &e, &o), 0);
	assert_false(o.shares_prefixes);
	assert_int_equal(parse("--share-prefixes", NULL, &e, &o), 0);
	assert_true(o.shares_prefixes);
	assert_null(o.sessions_dir);
	assert_int_equal(o.n_step_tokens + o.n_client_sessions + o.session_ttl_ns, 0);
	assert_int_equal(parse("--sessions-dir", "d", &e, &o), 0);
	assert_string_equal(o.sessions_dir, "d");
	assert_int_equal(parse("--step-tokens", "64", &e, &o), 0);
	assert_int_equal(o.n_step_tokens, 64);
	assert_int_equal(parse("--client-sessions", "2", &e, &o), 0);
	assert_int_equal(o.n_client_sessions, 2);
	assert_int_equal(parse("--session-ttl", "60", &e, &o), 0);
	assert_int_equal(o.session_ttl_ns, 60000000000ull);
	assert_int_equal(parse("--session-ttl", "0", &e, &o), -EINVAL);
	assert_string_equal(e.text, "--session-ttl: expected 1 to 4294967295, found 0");
	assert_int_equal(parse("--client-sessions", "257", &e, &o), -EINVAL);
}

static void test_expert_cache(void **state)
{
	static const char *const wrong[] = {
		"", "0", "-1", "on", "Auto", "AUTO", "auto ", "4MB", "1.5G", "offf"};
	struct options o = {.n_ctx = 77};
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		if (parse("--expert-cache", wrong[i], &e, &o) != -EINVAL)
			fail_msg("\"%s\" was taken", wrong[i]);
		assert_non_null(strstr(e.text, "--expert-cache: expected auto, off or bytes"));
	}
	assert_int_equal(parse("--expert-cache", NULL, &e, &o), -EINVAL);
	assert_int_equal(o.n_ctx, 77);
	assert_int_equal(parse("--expert-cache", "off", &e, &o), 0);
	assert_int_equal(o.expert_cache, OPTIONS_EXPERT_CACHE_OFF);
	assert_int_equal(parse("--expert-cache", "auto", &e, &o), 0);
	assert_int_equal(o.expert_cache, OPTIONS_EXPERT_CACHE_AUTO);
	assert_int_equal(parse("--expert-cache", "3G", &e, &o), 0);
	assert_int_equal(o.expert_cache, OPTIONS_EXPERT_CACHE_BYTES);
	assert_int_equal(o.expert_cache_bytes, 3ull << 30);
	assert_non_null(strstr(options_usage, "--expert-cache"));
}

static void test_kernels(void **state)
{
	struct options o = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(parse("--kernels", "fastest", &e, &o), -EINVAL);
	assert_non_null(
		strstr(e.text, "--kernels: expected auto, exact or fast, found \"fastest\""));
	assert_int_equal(o.kernels, PLAN_KERNELS_AUTO);
	assert_int_equal(parse("--kernels", "fast", &e, &o), 0);
	assert_int_equal(o.kernels, PLAN_KERNELS_FAST);
	assert_int_equal(parse("--deterministic", NULL, &e, &o), 0);
	assert_int_equal(o.kernels, PLAN_KERNELS_EXACT);
}

static void test_kv_type(void **state)
{
	struct options o = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(parse(NULL, NULL, &e, &o), 0);
	assert_int_equal(o.kv_type, KV_LAYOUT_F16);
	assert_int_equal(parse("--kv-type", "q8_0", &e, &o), 0);
	assert_int_equal(o.kv_type, KV_LAYOUT_Q8_0);
	assert_int_equal(parse("--kv-type", "f16", &e, &o), 0);
	assert_int_equal(o.kv_type, KV_LAYOUT_F16);
	assert_int_equal(parse("--kv-type", "q4_0", &e, &o), -EINVAL);
	assert_string_equal(e.text, "--kv-type: expected f16 or q8_0, found q4_0");
}

static void test_kv_tokens(void **state)
{
	struct options o = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(parse(NULL, NULL, &e, &o), 0);
	assert_int_equal(o.n_kv_tokens, 0);
	assert_int_equal(parse("--kv-tokens", "4096", &e, &o), 0);
	assert_int_equal(o.n_kv_tokens, 4096);
	assert_int_equal(parse("--kv-tokens", "0", &e, &o), -EINVAL);
	assert_string_equal(e.text, "--kv-tokens: expected 1 to 268435456, found 0");
	assert_int_equal(parse("--kv-tokens", "4K", &e, &o), -EINVAL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_defaults),
		CASE(test_switches),
		CASE(test_expert_cache),
		CASE(test_kernels),
		CASE(test_kv_type),
		CASE(test_kv_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
