/* SPDX-License-Identifier: Apache-2.0 */
/* What bench is asked for, its figures, and how they are shown. */
#include "tests/case.h"

#include <errno.h>
#include <math.h>

#include "proto/util/err.h"
#include "weightctl/bench-crew.h"
#include "weightctl/bench-json.h"
#include "weightctl/bench-options.h"
#include "weightctl/bench-profile.h"
#include "weightctl/bench-result.h"
#include "weightctl/bench-roofline.h"
#include "weightctl/bench-stats.h"
#include "weightctl/bench-table.h"
#include "weightctl/options.h"

static struct worker_bench_result crew_results[BENCH_OPTIONS_MAX_WORKERS];

const struct worker_bench_result *bench_crew_get_result(const struct bench_crew *c, uint32_t i)
{
	(void)c;
	return &crew_results[i];
}

/* ---- options ---- */

enum { MAX_WORDS = 24 };

/* "bench" and the words, which a space separates. */
static int parse(const char *words, struct err *e, struct bench_options *ret_options)
{
	static char text[256];
	char *argv[MAX_WORDS + 2] = {(char *)"weightctl", (char *)"bench"};
	struct options o = {0};
	int argc = 2;

	snprintf(text, sizeof(text), "%s", words);
	for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
		assert_true(argc < MAX_WORDS);
		argv[argc++] = word;
	}
	*e = ERR_NULL;
	int r = options_parse(argc, argv, e, &o);
	if (!r)
		r = bench_options_parse(&o, e, ret_options);
	options_fini(&o);
	return r;
}

static void expect_list(const struct bench_options_list *l, const char *text)
{
	char found[256] = "";
	int n = 0;

	for (uint32_t i = 0; i < l->n; i++)
		n += snprintf(
			found + n, sizeof(found) - (size_t)n, "%s%u", i ? "," : "", l->values[i]);
	assert_string_equal(found, text);
}

static void test_options(void **state)
{
	struct bench_options o;
	struct err e;

	(void)state;
	assert_int_equal(parse("", &e, &o), 0);
	expect_list(&o.prompts, "512");
	expect_list(&o.generates, "128");
	expect_list(&o.sessions, "1");
	expect_list(&o.depths, "0");
	assert_int_equal(o.n_repeats, 3);
	assert_int_equal(o.n_splits, 1);
	assert_int_equal(o.splits[0].n_workers, 1);
	assert_int_equal(o.seed, 1);
	assert_false(o.has_workers || o.profile || o.model || o.synthetic || o.kernels);

	assert_int_equal(parse("-p 1,64,4096 -n 0 -b 1,32 -d 0,1024 -r 100 --workers 1,4x8,32x1 "
			       "--seed 9 --profile -m a.gguf --device 0 --kernels fast",
				 &e, &o),
		0);
	expect_list(&o.prompts, "1,64,4096");
	expect_list(&o.generates, "");
	expect_list(&o.sessions, "1,32");
	expect_list(&o.depths, "0,1024");
	assert_int_equal(o.n_repeats, 100);
	assert_int_equal(o.n_splits, 3);
	assert_int_equal(bench_options_get_sessions(&o, &o.splits[0]), 32);
	assert_int_equal(o.splits[1].n_workers, 4);
	assert_int_equal(bench_options_get_sessions(&o, &o.splits[1]), 8);
	assert_int_equal(bench_options_get_sessions(&o, &o.splits[2]), 1);
	assert_int_equal(bench_options_get_ctx(&o), 4096 + 1024);
	assert_string_equal(o.model, "a.gguf");
	assert_string_equal(o.device, "0");
	assert_string_equal(o.kernels, "fast");
	assert_int_equal(o.seed, 9);
	assert_true(o.has_workers && o.profile);

	/* The long names, and -n as in llama-bench: no completions. */
	assert_int_equal(parse("--n-prompt 7 --n-gen 4096 --n-depth 3 --n-sessions 2 "
			       "--repetitions 1 --synthetic tiny:q8_0",
				 &e, &o),
		0);
	expect_list(&o.prompts, "7");
	expect_list(&o.generates, "4096");
	assert_int_equal(bench_options_get_ctx(&o), 4099);
	assert_string_equal(o.synthetic, "tiny:q8_0");
}

static void test_refusals(void **state)
{
	static const struct {
		const char *words;
		const char *text;
	} rows[] = {
		{"-p 3,x", "-p: expected up to 32 whole numbers from 0 to 16777216, with commas, "
			   "found 3,x"},
		{"-p ,", "found ,"},
		{"-p 1,", "found 1,"},
		{"-n 16777217", "-n: "},
		{"-n 99999999999999999999", "-n: "},
		{"-n -1", "-n: "},
		{"-b 0", "-b: expected up to 32 whole numbers from 1 to 256"},
		{"-b 1,257", "found 1,257"},
		{"-d 1e3", "-d: "},
		{"-r 0", "-r: expected a whole number from 1 to 100, found 0"},
		{"-r 101", "found 101"},
		{"-r 1,2", "found 1,2"},
		{"-p 0 -n 0", "-p, -n: expected a prompt or generation, found none"},
		{"--workers 0", "--workers: expected WORKERS or WORKERSxSESSIONS"},
		{"--workers 65", "found 65"},
		{"--workers 4x", "found 4x"},
		{"--workers x4", "found x4"},
		{"--workers 1x0", "found 1x0"},
		{"--workers 1x257", "found 1x257"},
		{"--synthetic tiny", "--synthetic: expected SHAPE:TYPE"},
		{"--synthetic tiny:q8_0 -m x", "-m, --synthetic: expected one of them, found both"},
		{"-p 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
			"up to 32"},
	};
	struct bench_options o;
	struct err e;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_int_equal(parse(rows[i].words, &e, &o), OPTIONS_USAGE);
		if (!strstr(e.text, rows[i].text) || strchr(e.text, '\n'))
			fail_msg("%s: %s", rows[i].words, e.text);
	}
}

/* ---- figures ---- */

static void test_stats(void **state)
{
	static const double samples[] = {2, 4, 4, 4, 5, 5, 7, 9};

	(void)state;
	assert_true(bench_stats_mean(samples, 8) == 5);
	assert_true(fabs(bench_stats_deviation(samples, 8) - sqrt(32.0 / 7)) < 1e-12);
	assert_true(bench_stats_deviation(samples, 1) == 0);
	assert_true(bench_stats_mean(samples, 0) == 0 && bench_stats_deviation(samples, 0) == 0);
	assert_true(bench_stats_min(samples, 8) == 2 && bench_stats_max(samples, 8) == 9);
	assert_true(bench_stats_rate(512, 256000000) == 2000);
	assert_true(bench_stats_rate(512, 0) == 0);
}

static void test_join(void **state)
{
	static const uint64_t starts[] = {1000000000, 1100000000};
	static const struct worker_bench_phase phases[] = {
		{.n_tokens = 100, .ns = 400000000, .end_ns = 1500000000},
		{.n_tokens = 100, .ns = 900000000, .end_ns = 2000000000},
	};

	(void)state;
	/* One: its own time, whatever others did between its steps. */
	assert_true(bench_result_join(phases, starts, 1) == 250);
	/* Two: from the first that began to the last that ended. */
	assert_true(bench_result_join(phases, starts, 2) == 200);
	assert_true(bench_result_join((struct worker_bench_phase[2]){0}, starts, 2) == 0);
}

/* ---- texts ---- */

static struct worker_bench_phase make_phase(uint32_t n_tokens, uint32_t n_steps, uint64_t ms)
{
	return (struct worker_bench_phase){.n_tokens = n_tokens,
		.n_steps = n_steps,
		.ns = ms * 1000000,
		.median_ns = ms * 1000000 / n_steps,
		.p99_ns = 2 * ms * 1000000 / n_steps,
		.record_ns = 1000000,
		.submit_ns = 2000000,
		.wait_ns = (ms - 3) * 1000000,
		.busy_ns = (ms - 4) * 1000000,
		.stamped_ns = ms * 1000000,
		.end_ns = ms * 1000000};
}

static struct bench_result make_result(uint32_t n_workers)
{
	return (struct bench_result){
		.model = {.name = "a|b", .device = "Some\nGPU", .weights_bytes = 3 << 20},
		.n_generate = 8,
		.n_sessions = 2,
		.n_workers = n_workers,
		.seed = 5,
		.ready = {.n_rows = 256, .n_dispatches = 26}};
}

/* Two runs: at 100 ms and 50 ms for 16 tokens of each worker. */
static void add_samples(struct bench_result *r)
{
	for (uint64_t ms = 100; ms >= 50; ms -= 50) {
		for (uint32_t i = 0; i < r->n_workers; i++)
			crew_results[i] = (struct worker_bench_result){
				.generate = make_phase(16, 8, ms), .prompt = make_phase(1, 1, 7)};
		assert_int_equal(bench_result_add(r, NULL), 0);
	}
}

/* What a function prints. */
static char *print(
	void (*fn)(FILE *out, const struct bench_result *r), const struct bench_result *r)
{
	size_t n_bytes = 0;
	char *text = NULL;
	FILE *out = open_memstream(&text, &n_bytes);

	assert_non_null(out);
	fn(out, r);
	assert_int_equal(fclose(out), 0);
	return text;
}

static void expect_text(char *found, const char *expected)
{
	assert_string_equal(found, expected);
	free(found);
}

static void test_table(void **state)
{
	struct bench_result r = make_result(1), two = make_result(2), five = make_result(5);

	(void)state;
	add_samples(&r);
	expect_text(print(bench_table_print_row, &r),
		"| a?b | 3.0 MiB | Some?GPU | 1 | 2 | tg8 | 240.00 ± 113.14 | 240.00 | 9.375, "
		"25.000 |\n");
	add_samples(&two);
	two.n_depth = 64;
	expect_text(print(bench_table_print_row, &two),
		"| a?b | 3.0 MiB | Some?GPU | 2 | 2 | tg8 @ d64 | 480.00 ± 226.27 | 240.00, 240.00 "
		"| 9.375, 25.000 |\n");
	add_samples(&five);
	five.n_generate = 0;
	five.n_prompt = 512;
	expect_text(print(bench_table_print_row, &five),
		"| a?b | 3.0 MiB | Some?GPU | 5 | 2 | pp512 | 1200.00 ± 565.69 | 240.00 to 240.00 "
		"| 9.375, 25.000 |\n");
	bench_result_fini(&r);
	bench_result_fini(&two);
	bench_result_fini(&five);
}

static double get_number(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	if (!json_is_number(value))
		fail_msg("no number %s", key);
	return json_number_value(value);
}

/* matrix_flops: of the device; 0: it has none. */
static void set_profile(struct bench_result *r, double matrix_flops)
{
	crew_results[0] = (struct worker_bench_result){.generate = make_phase(16, 8, 80),
		.n_kernels = 3,
		.kernels = {{.name = "MATMUL_Q8_0_X2",
				    .shape = "256 x 1536",
				    .n_calls = 32,
				    .ns = 60000000,
				    .weight_bytes = 30000000,
				    .flops = 60000000},
			{.name = "ATTENTION_F16",
				.shape = "4 / 2 heads of 64",
				.n_calls = 32,
				.ns = 15000000,
				.kv_bytes = 1500000,
				.flops = 3000000},
			{.name = "ROUTE", .shape = "-", .n_calls = 32, .ns = 5000000}},
		.ceilings = {.read_bytes = 1e9, .fma_flops = 1e11, .matrix_flops = matrix_flops}};
	assert_int_equal(bench_result_set_profile(r, NULL), 0);
}

static void test_json(void **state)
{
	struct bench_result r = make_result(2);

	(void)state;
	add_samples(&r);
	set_profile(&r, 0);
	json_t *object = bench_json_get_result(&r);
	assert_non_null(object);
	assert_string_equal(json_string_value(json_object_get(object, "model")), "a|b");
	assert_string_equal(json_string_value(json_object_get(object, "test")), "tg8");
	assert_true(get_number(object, "n_gen") == 8 && get_number(object, "n_prompt") == 0);
	assert_true(get_number(object, "sessions") == 2 && get_number(object, "workers") == 2);
	assert_true(get_number(object, "avg_t_s") == 480);
	assert_true(fabs(get_number(object, "stddev_t_s") - 226.274) < 0.01);
	json_t *samples = json_object_get(object, "samples");
	assert_int_equal(json_array_size(samples), 2);
	json_t *sample = json_array_get(samples, 1);
	assert_true(get_number(sample, "t_s") == 640);
	json_t *workers = json_object_get(sample, "workers");
	assert_int_equal(json_array_size(workers), 2);
	json_t *worker = json_array_get(workers, 1);
	assert_true(get_number(worker, "t_s") == 320 && get_number(worker, "steps") == 8);
	assert_true(get_number(worker, "step_median_ns") == 6250000);
	assert_true(get_number(worker, "submit_ns") == 2000000);

	json_t *profile = json_object_get(object, "profile");
	assert_true(get_number(profile, "busy_ns") == 76000000);
	assert_true(get_number(json_object_get(profile, "ceilings"), "fma_tflop_s") == 0.1);
	json_t *kernel = json_array_get(json_object_get(profile, "kernels"), 0);
	assert_true(get_number(kernel, "gb_s") == 0.5 && get_number(kernel, "read_share") == 0.5);
	assert_true(fabs(get_number(kernel, "tflop_s") - 0.001) < 1e-9);
	assert_true(fabs(get_number(kernel, "flop_share") - 0.01) < 1e-9);
	json_decref(object);
	bench_result_fini(&r);
}

/* Shares of arithmetic are of the higher ceiling. */
static void test_json_matrices(void **state)
{
	struct bench_result r = make_result(2);

	(void)state;
	add_samples(&r);
	set_profile(&r, 4e11);
	json_t *object = bench_json_get_result(&r);
	assert_non_null(object);
	json_t *profile = json_object_get(object, "profile");
	json_t *ceilings = json_object_get(profile, "ceilings");
	assert_true(get_number(ceilings, "matrix_tflop_s") == 0.4);
	assert_true(get_number(ceilings, "fma_tflop_s") == 0.1);
	json_t *kernel = json_array_get(json_object_get(profile, "kernels"), 0);
	assert_true(fabs(get_number(kernel, "flop_share") - 0.0025) < 1e-9);
	assert_true(get_number(kernel, "read_share") == 0.5);
	json_decref(object);
	bench_result_fini(&r);
}

static void test_profile(void **state)
{
	struct bench_result r = make_result(1);

	(void)state;
	set_profile(&r, 0);
	char *text = print(bench_profile_print, &r);
	static const char *const lines[] = {
		("\ntg8, 2 sessions: 8 steps of 10.000 ms: record 0.125, submit 0.250, wait 9.625; "
		 "GPU "
		 "busy 9.500 (95.0 %), 10.000 with timestamps\n"),
		("\na MATMUL_Q8_0_X2         256 x 1536                     32    60000.0   "
		 "1875.00 "
		 " "
		 "75.0    0.5000  50.0    0.0010   1.0\n"),
		("\nb ATTENTION_F16          4 / 2 heads of 64              32    15000.0    "
		 "468.75 "
		 " "
		 "18.8    0.1000  10.0    0.0002   0.2\n"),
		("\nc ROUTE                  -                              32     5000.0    "
		 "156.25 "
		 "  "
		 "6.2         -     -         -     -\n"),
		("\nceilings, measured in this run: reading 1.0 GB/s, f32 in registers 0.100 "
		 "TFLOP/s, no matrices: arithmetic is held against f32\n"),
	};
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		if (!strstr(text, lines[i]))
			fail_msg("expected %s in %s", lines[i], text);
	assert_null(strstr(text, "....")); /* there is one ridge */
	free(text);
	bench_result_fini(&r);
}

static void test_profile_matrices(void **state)
{
	struct bench_result r = make_result(1);

	(void)state;
	set_profile(&r, 4e11);
	char *text = print(bench_profile_print, &r);
	static const char *const lines[] = {
		"75.0    0.5000  50.0    0.0010   0.2\n",
		("\nceilings, measured in this run: reading 1.0 GB/s, f32 in registers 0.100 "
		 "TFLOP/s, f16 matrices in registers 0.4000 TFLOP/s\n"),
		"....", /* f32's ridge is below that of matrices */
	};
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		if (!strstr(text, lines[i]))
			fail_msg("expected %s in %s", lines[i], text);
	free(text);
	bench_result_fini(&r);
}

/* Three at one place are a star, and what has no place is not there. */
static const char roofline_text[] =
	"  TFLOP/s\n"
	"       64 |                              //--------------------------------\n"
	"          |                          ////\n"
	"          |                     /////......................................\n"
	"      6.4 |                 ////                       *\n"
	"          |             ////\n"
	"          |        ////a\n"
	"     0.64 |    ////\n"
	"          |////\n"
	"          |\n"
	"    0.064 |\n"
	"          |\n"
	"          |\n"
	"   0.0064 |\n"
	"          |\n"
	"          |\n"
	"          ++-------+-------+-------+-------+-------+-------+-------+-------\n"
	"           0.25    1       4       16      64      256     1024    4096     FLOP a byte\n";

static void print_roofline(FILE *out, const struct bench_result *r)
{
	/* The knee is at 64 operations a byte. */
	const struct bench_roofline roofline = {.read = 1e12,
		.flops = 64e12,
		.f32_flops = 15e12,
		.n_points = 6,
		.points = {{2, 1.9e12}, {512, 6.4e12}, {512, 6.4e12}, {512, 6.4e12}, {0, 5},
			{8, INFINITY}}};

	(void)r;
	bench_roofline_print(out, &roofline);
}

static void print_nothing(FILE *out, const struct bench_result *r)
{
	const struct bench_roofline roofline = {.read = 1e12, .n_points = 1, .points = {{2, 1}}};

	(void)r;
	bench_roofline_print(out, &roofline);
}

static void test_roofline(void **state)
{
	const struct bench_roofline r = {.read = 1e12, .flops = 64e12};

	(void)state;
	assert_true(bench_roofline_get_roof(&r, 2) == 2e12);
	assert_true(bench_roofline_get_roof(&r, 64) == 64e12);
	assert_true(bench_roofline_get_roof(&r, 1000) == 64e12);
	expect_text(print(print_nothing, NULL), "");
	expect_text(print(print_roofline, NULL), roofline_text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_options),
		CASE(test_refusals),
		CASE(test_stats),
		CASE(test_join),
		CASE(test_table),
		CASE(test_json),
		CASE(test_json_matrices),
		CASE(test_profile),
		CASE(test_profile_matrices),
		CASE(test_roofline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
