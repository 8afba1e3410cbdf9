/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/options.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "weightctl/number.h"

static void test_integers(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int r;
		uint64_t value;
	} rows[] = {
		{"0", 0, 0},
		{"007", 0, 7},
		{"18446744073709551615", 0, UINT64_MAX},
		{"18446744073709551616", -ERANGE, 0},
		{"", -EINVAL, 0},
		{"-1", -EINVAL, 0},
		{"+1", -EINVAL, 0},
		{" 1", -EINVAL, 0},
		{"1 ", -EINVAL, 0},
		{"1e3", -EINVAL, 0},
		{"0x10", -EINVAL, 0},
		{"twelve", -EINVAL, 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		uint64_t value = 99;

		assert_int_equal(number_parse_u64(rows[i].text, &value), rows[i].r);
		assert_true(value == (rows[i].r == 0 ? rows[i].value : 99));
	}
	uint32_t small = 99;
	assert_int_equal(number_parse_u32("4294967296", &small), -ERANGE);
	assert_int_equal(small, 99);
	assert_int_equal(number_parse_u32("4294967295", &small), 0);
	assert_int_equal(small, UINT32_MAX);
}

static void test_decimals(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int r;
		float value;
	} rows[] = {
		{"0", 0, 0},
		{"0.5", 0, 0.5f},
		{".25", 0, 0.25f},
		{"1e-1", 0, 0.1f},
		{"+1", 0, 1},
		{"1.0001", -ERANGE, 0},
		{"-0.1", -ERANGE, 0},
		{"1e99", -ERANGE, 0},
		{"", -EINVAL, 0},
		{".", -EINVAL, 0},
		{"nan", -EINVAL, 0},
		{"-nan", -ERANGE, 0},
		{"inf", -EINVAL, 0},
		{" 0", -EINVAL, 0},
		{"0.5x", -EINVAL, 0},
		{"warm", -EINVAL, 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		float value = 99;

		assert_int_equal(number_parse_f32(rows[i].text, 0, 1, &value), rows[i].r);
		assert_true(value == (rows[i].r == 0 ? rows[i].value : 99));
	}
}

/* Parses "weightctl" and the words up to NULL. */
static int parse(char *const *words, struct err *ret_err, struct options *ret_options)
{
	char *argv[32] = {(char[]){"weightctl"}};
	int argc = 1;

	for (; *words; words++)
		argv[argc++] = *words;
	return options_parse(argc, argv, ret_err, ret_options);
}

#define PARSE(ret_err, ret_options, ...) \
	parse((char *const[]){__VA_ARGS__, NULL}, ret_err, ret_options)

static void test_places(void **state)
{
	(void)state;
	struct options o;

	setenv("POSIXLY_CORRECT", "1", 1);
	assert_int_equal(PARSE(NULL, &o, "--worker", "w", "ask", "--temp=0.5", "TEXT", "--top-k",
				 "7", "--json", "--seed", "18446744073709551615"),
		0);
	unsetenv("POSIXLY_CORRECT");
	assert_string_equal(o.worker, "w");
	assert_null(o.weightd);
	assert_string_equal(o.command, "ask");
	assert_int_equal(o.n_args, 1);
	assert_string_equal(o.args[0], "TEXT");
	assert_true(o.sampling.temperature == 0.5f);
	assert_int_equal(o.sampling.top_k, 7);
	assert_true(o.sampling.has_seed && o.sampling.seed == UINT64_MAX);
	assert_true(o.json && !o.replace);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "ask", "--json-schema", "{}"), 0);
	assert_string_equal(o.json_schema, "{}");
	assert_null(o.grammar);
	options_fini(&o);
	assert_int_equal(PARSE(NULL, &o, "ask", "--grammar", "FILE"), 0);
	assert_string_equal(o.grammar, "FILE");
	assert_null(o.json_schema);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "prefix", "add", "f", "--name", "rules", "--shared"), 0);
	assert_string_equal(o.name, "rules");
	assert_true(o.shared);
	assert_int_equal(o.n_args, 2);
	options_fini(&o);
	assert_int_equal(PARSE(NULL, &o, "prefix", "ls"), 0);
	assert_null(o.name);
	assert_false(o.shared);
	options_fini(&o);
	assert_int_equal(PARSE(NULL, &o, "chat", "--load", "a", "--save", "b"), 0);
	assert_string_equal(o.load, "a");
	assert_string_equal(o.save, "b");
	options_fini(&o);
	assert_int_equal(PARSE(NULL, &o, "complete", "--n-predict", "3", "--", "--json"), 0);
	assert_int_equal(o.n_predict, 3);
	assert_int_equal(o.n_args, 1);
	assert_string_equal(o.args[0], "--json");
	assert_true(!o.json && !o.sampling.has_seed && o.sampling.temperature == 0);
	assert_true(!o.context_shift && o.n_keep == 0);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "complete", "a", "--context-shift", "--n-keep", "12"), 0);
	assert_true(o.context_shift && o.n_keep == 12);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "load", "a=b", "--replace", "tokenize", "-"), 0);
	assert_string_equal(o.command, "load");
	assert_int_equal(o.n_args, 3);
	assert_string_equal(o.args[2], "-");
	assert_true(o.replace);
	assert_false(o.has_timeout);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "unload", "a", "--timeout", "30"), 0);
	assert_true(o.has_timeout);
	assert_int_equal(o.timeout_s, 30);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "unload", "a", "--timeout", "0"), 0);
	assert_true(o.has_timeout);
	assert_int_equal(o.timeout_s, 0);
	options_fini(&o);
}

static void test_top(void **state)
{
	(void)state;
	static char *const wrong[] = {"0", "0.09", "86401", "-1", "", "1s", "nan"};
	struct options o;

	assert_int_equal(PARSE(NULL, &o, "top"), 0);
	assert_true(o.interval_s == 1 && !o.once);
	options_fini(&o);
	assert_int_equal(PARSE(NULL, &o, "top", "--interval", "0.25", "--once"), 0);
	assert_true(o.interval_s == 0.25f && o.once);
	options_fini(&o);
	for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct err e = ERR_NULL;

		assert_int_equal(PARSE(&e, &o, "top", "--interval", wrong[i]), OPTIONS_USAGE);
		assert_non_null(strstr(e.text, "--interval: expected a number of seconds"));
	}
}

static void test_sampling(void **state)
{
	(void)state;
	struct options o;

	assert_int_equal(
		PARSE(NULL, &o, "ask", "x", "--logit-bias", "7=-inf", "--logit-bias=8=1.5",
			"--stop-token", "3", "--stop-token", "4", "--logprobs", "5", "--json"),
		0);
	assert_int_equal(o.sampling.n_biases, 2);
	assert_int_equal(o.sampling.biases[0].id, 7);
	assert_true(o.sampling.biases[0].bias == -INFINITY);
	assert_int_equal(o.sampling.biases[1].id, 8);
	assert_true(o.sampling.biases[1].bias == 1.5f);
	assert_int_equal(o.n_stop_tokens, 2);
	assert_int_equal(o.stop_tokens[1], 4);
	assert_int_equal(o.n_logprobs, 5);
	assert_int_equal(o.n, 1);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "ask", "x", "--typical-p", "0.5", "--frequency-penalty",
				 "-2", "--presence-penalty", "0.25", "--dry-multiplier", "0.8",
				 "--dry-base", "1.5", "--dry-allowed-length", "3"),
		0);
	assert_true(o.sampling.typical_p == 0.5f && o.sampling.frequency_penalty == -2);
	assert_true(o.sampling.presence_penalty == 0.25f && o.sampling.dry_multiplier == 0.8f);
	assert_true(o.sampling.dry_base == 1.5f && o.sampling.dry_allowed_length == 3);
	options_fini(&o);

	assert_int_equal(PARSE(NULL, &o, "ask", "-n", "8", "x"), 0);
	assert_int_equal(o.n, 8);
	assert_string_equal(o.args[0], "x");
	options_fini(&o);
}

static void test_wrong_usage(void **state)
{
	(void)state;
	static char *const rows[][4] = {
		{"ls", "--nonsense"},
		{"ls", "-x"},
		{"ls", "--json=yes"},
		{"ask", "x", "--temp"},
		{"unload", "x", "--timeout", "soon"},
		{"ask", "--temp", "warm"},
		{"ask", "--temp", "-1"},
		{"ask", "--top-p", "1.5"},
		{"ask", "--min-p", "nan"},
		{"ask", "--repeat-penalty", "-1"},
		{"ask", "--n-predict", "1e3x"},
		{"ask", "--top-k", "4294967296"},
		{"ask", "--seed", "-1"},
		{"ask", "--typical-p", "1.5"},
		{"ask", "--frequency-penalty", "101"},
		{"ask", "--presence-penalty", "nan"},
		{"ask", "--dry-multiplier", "-1"},
		{"ask", "--dry-base", "0.5"},
		{"ask", "--dry-allowed-length", "two"},
		{"ask", "--logit-bias", "7"},
		{"ask", "--logit-bias", "=1"},
		{"ask", "--logit-bias", "7="},
		{"ask", "--logit-bias", "7=inf"},
		{"ask", "--logit-bias", "7=nan"},
		{"ask", "--logit-bias", "77777777777777777=1"},
		{"ask", "--stop-token", "-1"},
		{"ask", "--logprobs", "3"},
		{"ask", "--grammar=a", "--json-schema={}"},
		{"ask", "x", "-n"},
		{"ask", "x", "-n", "0"},
		{"ask", "x", "-n", "9"},
		{"ask", "x", "-n2x"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct options o = {.n_args = 99};
		struct err err = ERR_NULL;

		assert_int_equal(parse(rows[i], &err, &o), OPTIONS_USAGE);
		assert_true(err.text[0] != '\0');
		assert_int_equal(o.n_args, 99);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_integers),
		CASE(test_decimals),
		CASE(test_places),
		CASE(test_top),
		CASE(test_sampling),
		CASE(test_wrong_usage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
