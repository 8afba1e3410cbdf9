/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine measures: slots of its own, steps between those of others, and nothing left. */
#include "tests/unit/engine-bench.h"

#include <sched.h>

enum { OTHER_CLIENT = CLIENT + 1 };

static struct message *new_bench(struct bench *b, uint32_t n_sessions, uint32_t n_depth,
	uint32_t n_prompt, uint32_t n_generate)
{
	struct message *m = new_request(b, MESSAGE_BENCH);

	m->bench = (struct message_bench){.n_sessions = n_sessions,
		.n_depth = n_depth,
		.n_prompt = n_prompt,
		.n_generate = n_generate,
		.seed = 3};
	return m;
}

static struct message *new_run(struct bench *b, bool is_profile, uint64_t start_ns)
{
	struct message *m = new_request(b, MESSAGE_BENCH_RUN);

	m->bench_run.is_profile = is_profile;
	m->bench_run.start_ns = start_ns;
	return m;
}

static void expect_refusal(struct bench *b, struct message *m, int code, const char *text)
{
	queue_push(b->in, &m->node);
	assert_ptr_equal(receive(b), m);
	assert_int_equal(m->code, code);
	if (!strstr(message_get_error(m), text))
		fail_msg("expected %s, found %s", text, message_get_error(m));
	message_free(m);
}

static void expect_phase(const struct bencher_phase *p, uint32_t n_tokens, uint32_t n_phase_steps)
{
	assert_int_equal(p->n_tokens, n_tokens);
	assert_int_equal(p->n_steps, n_phase_steps);
	assert_true(p->ns > 0 && p->median_ns <= p->p99_ns && p->p99_ns <= p->ns);
	assert_int_equal(p->submit_ns, 2 * n_phase_steps);
	assert_int_equal(p->wait_ns, 3 * n_phase_steps);
	assert_true(p->record_ns >= n_phase_steps);
}

/* Depth is computed once, the prompt in steps of all the rows there are, then a row a session. */
static void test_run(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	struct message *m = call(&b, new_bench(&b, 2, 4, 10, 3));
	assert_int_equal(m->bench.n_rows, N_ROWS);
	assert_int_equal(m->bench.n_dispatches, 38);
	assert_int_equal(n_steps, 1 + 3 + 2); /* the last two warm up */
	message_free(m);
	for (int i = 0; i < 3; i++) {
		n_steps = 0;
		m = call(&b, new_run(&b, false, 0));
		expect_phase(&m->bench_run.result->prompt, 20, 3);
		expect_phase(&m->bench_run.result->generate, 6, 3);
		assert_int_equal(m->bench_run.result->n_kernels, 0);
		assert_int_equal(n_steps, 6);
		assert_int_equal(n_last_rows, 2);
		assert_int_equal(first_row.position, 4 + 10 + 2);
		message_free(m);
	}
	/* Another shape, on the same connection; then none. */
	message_free(call(&b, new_bench(&b, 1, 0, 0, 5)));
	m = call(&b, new_run(&b, false, 0));
	assert_int_equal(m->bench_run.result->prompt.n_steps, 0);
	expect_phase(&m->bench_run.result->generate, 5, 5);
	message_free(m);
	message_free(call(&b, new_request(&b, MESSAGE_BENCH_END)));
	assert_false(is_slot_open[0] || is_slot_open[1]);
	expect_refusal(&b, new_run(&b, false, 0), -ENOENT, "there is none");
	bench_close(&b);
}

/* A GPU's clock rises while it computes, not while its compiler does: half a second behind that. */
static void test_warm(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	is_gpu = true;
	first_step_us = 600000;
	n_steps = 0;
	uint64_t start_ns = clock_now_ns();
	message_free(call(&b, new_bench(&b, 1, 0, 0, 1)));
	assert_true(clock_now_ns() - start_ns > 1100000000);
	assert_true(n_steps > 2);
	is_gpu = false;
	first_step_us = 0;
	bench_close(&b);
}

/* Where it has the device to itself its steps run ahead, as those of generations do: as many. */
static void test_runs_ahead(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	runs_ahead = true;
	message_free(call(&b, new_bench(&b, 2, 0, 3, 20)));
	n_steps = n_ahead = 0;
	struct message *m = call(&b, new_run(&b, false, 0));
	expect_phase(&m->bench_run.result->generate, 40, 20);
	assert_int_equal(n_steps, 21);
	assert_int_equal(n_ahead, 19);
	assert_int_equal(n_flight, 0);
	message_free(m);
	/* One that is ended in a run leaves nothing under way. */
	is_gated = true;
	m = new_run(&b, false, 0);
	queue_push(b.in, &m->node);
	for (int i = 0; i < 5; i++)
		sem_post(&gate);
	while (n_flight < 2)
		sched_yield();
	struct message *end = new_request(&b, MESSAGE_BENCH_END);
	queue_push(b.in, &end->node);
	is_gated = false;
	for (int i = 0; i < 5; i++)
		sem_post(&gate);
	for (int i = 0; i < 2; i++) {
		struct message *answer = receive(&b);

		assert_true(answer == m || answer == end);
		message_free(answer);
	}
	assert_int_equal(n_flight, 0);
	bench_close(&b);
}

static void test_profile(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 4, 2)));
	n_steps = 0;
	struct message *m = call(&b, new_run(&b, true, 0));
	const struct bencher_result *result = m->bench_run.result;
	/* Counted once, computed twice. */
	expect_phase(&result->prompt, 4, 1);
	expect_phase(&result->generate, 2, 2);
	assert_int_equal(n_steps, 6);
	assert_int_equal(result->prompt.busy_ns, 1);
	assert_int_equal(result->generate.stamped_ns, 10);
	assert_int_equal(result->n_kernels, 1);
	assert_true(result->ceilings.read_bytes == 7 && result->ceilings.fma_flops == 8);
	assert_null(plan_profile);
	message_free(m);
	/* The next run is as ever. */
	m = call(&b, new_run(&b, false, 0));
	assert_int_equal(m->bench_run.result->n_kernels, 0);
	assert_int_equal(m->bench_run.result->generate.busy_ns, 0);
	message_free(m);
	bench_close(&b);
}

static void test_refusals(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	expect_refusal(&b, new_bench(&b, 0, 0, 1, 0), -EINVAL, "expected 1 to the worker's 2");
	expect_refusal(&b, new_bench(&b, 3, 0, 1, 0), -EINVAL, "found 3");
	expect_refusal(&b, new_bench(&b, 1, 9, 0, 0), -EINVAL, "found none");
	expect_refusal(&b, new_bench(&b, 1, 50, 10, 5), -ENOSPC, "context's 64 tokens, found 65");
	expect_refusal(
		&b, new_bench(&b, 1, UINT32_MAX, UINT32_MAX, 2), -ENOSPC, "found 8589934592");
	/* Sessions have slots: what is left is not enough. */
	open_session(&b);
	expect_refusal(&b, new_bench(&b, 2, 0, 1, 0), -EAGAIN, "session 2 of 2");
	assert_int_equal(is_slot_open[0] + is_slot_open[1], 1);
	message_free(call(&b, new_bench(&b, 1, 0, 1, 0)));
	struct message *m = new_bench(&b, 1, 0, 1, 0);
	m->client = OTHER_CLIENT;
	expect_refusal(&b, m, -EBUSY, "another one is under way");
	m = new_run(&b, false, 0);
	m->client = OTHER_CLIENT;
	expect_refusal(&b, m, -ENOENT, "there is none");
	expect_refusal(&b, new_run(&b, false, UINT64_MAX), -EINVAL, "a minute");
	bench_close(&b);
}

/* The connection goes in the middle of a step: the next is not made. */
static void test_disconnect(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 2, 0, 0, 60)));
	n_steps = 0;
	is_gated = true;
	struct message *run = new_run(&b, true, 0);
	queue_push(b.in, &run->node);
	while (n_steps == 0 && !is_slot_open[1])
		usleep(100);
	struct message *goodbye = new_request(&b, MESSAGE_DISCONNECT);
	queue_push(b.in, &goodbye->node);
	sem_post(&gate);
	assert_ptr_equal(receive(&b), run);
	assert_int_equal(run->code, -ECANCELED);
	message_free(run);
	message_free(receive_kind(&b, MESSAGE_DISCONNECT));
	assert_true(n_steps <= 2);
	assert_false(is_slot_open[0] || is_slot_open[1]);
	is_gated = false;
	bench_close(&b);
}

static void test_stop_in_a_run(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 0, 1)));
	struct message *run = new_run(&b, false, clock_now_ns() + 50ull * 1000 * 1000 * 1000);
	queue_push(b.in, &run->node);
	engine_stop(b.engine);
	assert_ptr_equal(receive(&b), run);
	assert_non_null(strstr(message_get_error(run), "stopping"));
	message_free(run);
	bench_close(&b);
}

static void test_start(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 0, 1)));
	uint64_t start_ns = clock_now_ns() + 30ull * 1000 * 1000;
	struct message *run = call(&b, new_run(&b, false, start_ns));
	assert_true(run->bench_run.result->start_ns >= start_ns);
	message_free(run);
	bench_close(&b);
}

/* A generation has a step after each of the bench's. */
static void test_beside_a_generation(void **state)
{
	struct bench b;
	uint32_t n_tokens = 0;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 0, 60)));
	struct message *run = new_run(&b, false, clock_now_ns() + 20ull * 1000 * 1000);
	struct message *g = new_request(&b, MESSAGE_GENERATE);
	g->generate.session = session;
	g->generate.n_predict = 20;
	/* Neither runs before both are there. */
	is_gated = true;
	queue_push(b.in, &run->node);
	queue_push(b.in, &g->node);
	message_free(receive_kind(&b, MESSAGE_STARTED));
	usleep(30000);
	is_gated = false;
	sem_post(&gate);
	struct message *m;
	while ((m = receive(&b)) != run && m != g) {
		n_tokens += m->kind == MESSAGE_TOKEN;
		message_free(m);
	}
	assert_ptr_equal(m, g);
	assert_int_equal(n_tokens, 20);
	message_free(g);
	assert_ptr_equal(receive(&b), run);
	assert_int_equal(run->code, 0);
	expect_phase(&run->bench_run.result->generate, 60, 60);
	message_free(run);
	bench_close(&b);
}

/* Others need the memory: a bench that does not run is no reason to keep it. */
static void test_parks(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 0, 2)));
	struct message *m = new_request(&b, MESSAGE_NOTICE);
	m->notice.kind = MESSAGE_NOTICE_PRESSURE;
	queue_push(b.in, &m->node);
	message_free(receive_kind(&b, MESSAGE_CHANGED));
	expect_refusal(&b, new_run(&b, false, 0), -ENOENT, "there is none");
	bench_close(&b);
}

static void test_step_fails(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	message_free(call(&b, new_bench(&b, 1, 0, 0, 2)));
	step_result = VK_DEVICE_LOST;
	struct message *run = new_run(&b, true, 0);
	queue_push(b.in, &run->node);
	assert_ptr_equal(receive(&b), run);
	assert_non_null(strstr(message_get_error(run), "lost"));
	message_free(run);
	message_free(receive_kind(&b, MESSAGE_FAILED));
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_run),
		CASE(test_warm),
		CASE(test_runs_ahead),
		CASE(test_profile),
		CASE(test_refusals),
		CASE(test_disconnect),
		CASE(test_stop_in_a_run),
		CASE(test_start),
		CASE(test_beside_a_generation),
		CASE(test_parks),
		CASE(test_step_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
