/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring asked of a worker: what goes out, and what its answers may be. */
#include "tests/case.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-bench.h"
#include "proto/worker-tune.h"
#include "tests/unit/worker-peer.h"

static void begins(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	const struct worker_bench_params params = {
		.n_sessions = 3, .n_depth = 4, .n_prompt = 5, .n_generate = 6, .seed = 7};
	Wk__BenchReady ready = WK__BENCH_READY__INIT;
	struct worker_bench_ready got;
	struct err e = ERR_NULL;

	(void)state;
	ready.n_rows = 256;
	ready.n_dispatches = 26;
	worker_peer_reply(2, WK__REPLY__BODY_BENCH_READY, &ready);
	assert_int_equal(worker_bench_begin(c, &params, &e, &got), 0);
	assert_true(got.n_rows == 256 && got.n_dispatches == 26);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_BENCH);
	assert_true(r->bench->n_sessions == 3 && r->bench->n_depth == 4 &&
		    r->bench->n_prompt == 5 && r->bench->n_generate == 6 && r->bench->seed == 7);
	wk__request__free_unpacked(r, NULL);
	worker_peer_close_client(c);
}

/* Of a phase that was, a kernel, and ceilings that nobody could divide by. */
static void runs(void **state)
{
	static struct worker_bench_result got;
	struct worker_client *c = worker_peer_open_client();
	Wk__BenchRan ran = WK__BENCH_RAN__INIT;
	Wk__BenchPhase phase = WK__BENCH_PHASE__INIT;
	Wk__BenchKernel kernel = WK__BENCH_KERNEL__INIT, *kernels[] = {&kernel};
	Wk__BenchCeilings ceilings = WK__BENCH_CEILINGS__INIT;
	struct err e = ERR_NULL;

	(void)state;
	ran.start_ns = 5;
	phase.n_tokens = 64;
	phase.n_steps = 2;
	phase.ns = 9;
	phase.busy_ns = 8;
	ran.prompt = &phase;
	kernel.name = (char *)"MATMUL";
	kernel.shape = (char *)"1 x 2";
	kernel.kv_bytes = 4;
	kernel.is_prompt = true;
	ran.n_kernels = 1;
	ran.kernels = kernels;
	ceilings.read_bytes_per_second = 3;
	ceilings.fma_flops_per_second = NAN;
	ceilings.matrix_flops_per_second = -1;
	ran.ceilings = &ceilings;
	worker_peer_reply(2, WK__REPLY__BODY_BENCH_RAN, &ran);
	assert_int_equal(worker_bench_run(c, 11, true, &e, &got), 0);
	assert_true(got.start_ns == 5 && got.prompt.n_tokens == 64 && got.prompt.n_steps == 2 &&
		    got.prompt.ns == 9 && got.prompt.busy_ns == 8);
	assert_int_equal(got.generate.n_steps, 0);
	assert_int_equal(got.n_kernels, 1);
	assert_string_equal(got.kernels[0].name, "MATMUL");
	assert_string_equal(got.kernels[0].shape, "1 x 2");
	assert_true(got.kernels[0].kv_bytes == 4 && got.kernels[0].is_prompt);
	assert_true(got.ceilings.read_bytes == 3 && got.ceilings.fma_flops == 0 &&
		    got.ceilings.matrix_flops == 0);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_BENCH_RUN);
	assert_true(r->bench_run->start_ns == 11 && r->bench_run->profile);
	wk__request__free_unpacked(r, NULL);
	worker_peer_close_client(c);
}

static void refuses(void **state)
{
	static struct worker_bench_result got;
	static Wk__BenchKernel kernels[WORKER_BENCH_MAX_KERNELS + 1];
	static Wk__BenchKernel *list[WORKER_BENCH_MAX_KERNELS + 1];
	struct worker_client *c = worker_peer_open_client();
	Wk__BenchRan ran = WK__BENCH_RAN__INIT;
	Wk__Error error = WK__ERROR__INIT;
	Wk__Done done = WK__DONE__INIT;
	char name[64];
	struct err e = ERR_NULL;

	(void)state;
	error.code = ENOENT;
	error.text = (char *)"bench: there is none";
	worker_peer_reply(2, WK__REPLY__BODY_ERROR, &error);
	assert_int_equal(worker_bench_run(c, 0, false, &e, &got), -ENOENT);
	assert_string_equal(e.text, error.text);
	worker_peer_reply(3, WK__REPLY__BODY_DONE, &done);
	assert_int_equal(worker_bench_run(c, 0, false, &e, &got), -EPROTO);
	for (size_t i = 0; i < ARRAY_SIZE(kernels); i++) {
		kernels[i] = (Wk__BenchKernel)WK__BENCH_KERNEL__INIT;
		list[i] = &kernels[i];
	}
	ran.kernels = list;
	ran.n_kernels = WORKER_BENCH_MAX_KERNELS + 1;
	worker_peer_reply(4, WK__REPLY__BODY_BENCH_RAN, &ran);
	assert_int_equal(worker_bench_run(c, 0, false, &e, &got), -EPROTO);
	assert_string_equal(e.text, "worker: bench: expected at most 256 kernels, found 257");
	memset(name, 'n', sizeof(name));
	name[63] = '\0';
	kernels[0].name = name;
	ran.n_kernels = 1;
	worker_peer_reply(5, WK__REPLY__BODY_BENCH_RAN, &ran);
	assert_int_equal(worker_bench_run(c, 0, false, &e, &got), -EPROTO);
	assert_string_equal(
		e.text, "worker: bench: kernel: expected a name of at most 47 bytes, found 63");
	worker_peer_close_client(c);
}

static void take_row(
	void *userdata, const struct worker_tune_row *row, uint32_t n_done, uint32_t n_products)
{
	uint32_t *n_told = userdata;

	assert_string_equal(row->op, "q4_K 8 x 64");
	assert_true(row->best_ns == 7 && n_done == 1 + *n_told && n_products == 2);
	(*n_told)++;
}

/* Each row when it is measured, and all of them in the end; a row unasked for is none. */
static void tunes_with_progress(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	Wk__Tuning tuning = WK__TUNING__INIT;
	Wk__TuneRow row = WK__TUNE_ROW__INIT;
	Wk__Tuned tuned = WK__TUNED__INIT;
	struct worker_tune_result got = {0};
	uint32_t n_told = 0;
	struct err e = ERR_NULL;

	(void)state;
	row.op = (char *)"q4_K 8 x 64";
	row.best_ns = 7;
	tuning.row = &row;
	tuning.n_products = 2;
	for (tuning.n_done = 1; tuning.n_done <= 2; tuning.n_done++)
		worker_peer_reply(2, WK__REPLY__BODY_TUNING, &tuning);
	worker_peer_reply(2, WK__REPLY__BODY_TUNED, &tuned);
	assert_int_equal(worker_tune_run(c, 9, take_row, &n_told, &e, &got), 0);
	assert_int_equal(n_told, 2);
	worker_tune_fini(&got);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_TUNE);
	assert_true(r->tune->progress && r->tune->max_seconds == 9);
	wk__request__free_unpacked(r, NULL);
	worker_peer_reply(3, WK__REPLY__BODY_TUNING, &tuning);
	assert_int_equal(worker_tune_run(c, 0, NULL, NULL, &e, &got), -EPROTO);
	tuning.row = NULL;
	worker_peer_reply(4, WK__REPLY__BODY_TUNING, &tuning);
	assert_int_equal(worker_tune_run(c, 9, take_row, &n_told, &e, &got), -EPROTO);
	assert_int_equal(n_told, 2);
	worker_peer_close_client(c);
}

/* One that fits, then one of a text that does not. */
static void tunes(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	Wk__Tuned tuned = WK__TUNED__INIT;
	Wk__TuneRow rows[2] = {WK__TUNE_ROW__INIT, WK__TUNE_ROW__INIT};
	Wk__TuneRow *list[] = {&rows[0], &rows[1]};
	struct worker_tune_result got = {0};
	char text[WORKER_TUNE_TEXT_BYTES + 1];
	Wk__Done done = WK__DONE__INIT;
	struct err e = ERR_NULL;

	(void)state;
	rows[1].op = (char *)"q4_K 8 x 64";
	rows[1].choice = (char *)"matvec n_rows=2";
	rows[1].n_rows = 4;
	rows[1].default_ns = 9;
	rows[1].best_ns = 7;
	tuned.ns = 11;
	tuned.is_saved = true;
	tuned.n_products = 3;
	tuned.n_rows = 2;
	tuned.rows = list;
	worker_peer_reply(2, WK__REPLY__BODY_TUNED, &tuned);
	assert_int_equal(worker_tune_run(c, 0, NULL, NULL, &e, &got), 0);
	assert_true(got.ns == 11 && got.is_saved && got.n_rows == 2 && got.n_products == 3);
	assert_string_equal(got.rows[0].op, "");
	assert_string_equal(got.rows[1].op, "q4_K 8 x 64");
	assert_string_equal(got.rows[1].choice, "matvec n_rows=2");
	assert_true(
		got.rows[1].n_rows == 4 && got.rows[1].default_ns == 9 && got.rows[1].best_ns == 7);
	worker_tune_fini(&got);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_TUNE);
	assert_true(!r->tune->progress && r->tune->max_seconds == 0);
	wk__request__free_unpacked(r, NULL);
	memset(text, 'x', sizeof(text));
	text[WORKER_TUNE_TEXT_BYTES] = '\0';
	rows[0].choice = text;
	worker_peer_reply(3, WK__REPLY__BODY_TUNED, &tuned);
	assert_int_equal(worker_tune_run(c, 0, NULL, NULL, &e, &got), -EPROTO);
	assert_null(got.rows);
	worker_peer_reply(4, WK__REPLY__BODY_DONE, &done);
	assert_int_equal(worker_tune_run(c, 0, NULL, NULL, &e, &got), -EPROTO);
	worker_peer_close_client(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(begins),
		CASE(runs),
		CASE(refuses),
		CASE(tunes),
		CASE(tunes_with_progress),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
