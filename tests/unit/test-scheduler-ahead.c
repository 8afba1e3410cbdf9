/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that are submitted before the one before them is done: the same tokens as without, whoever
 * ends, in whatever way, while a step with its row is under way, and wherever the device has picked
 * another token than the host does.
 */
#include "tests/unit/scheduler-bench.h"

enum { N_PROMPT = 5 };

static struct scheduler *new_ahead(void)
{
	struct scheduler *s = new_scheduler();

	fake.runs_ahead = true;
	return s;
}

static void settle(struct scheduler *s)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_step_settle(s, &e), &e);
	assert_int_equal(scheduler_step_count(s), 0);
	assert_int_equal(fake.n_steps, fake.n_finished_steps);
}

/* As an engine that has nothing else to do. */
static void run_all(struct scheduler *s)
{
	run(s);
	settle(s);
}

/* The session has no cells behind its tokens; the last of them is not computed. */
static void expect_cells(uint32_t slot, uint32_t n_tokens)
{
	assert_int_equal(fake.n_reserved[slot], n_tokens - 1);
	assert_int_equal(fake.n_computed[slot], n_tokens - 1);
}

static void test_one_session(void **state)
{
	struct scheduler *s = new_ahead();
	uint64_t session = open_prompt(s, CLIENT, N_PROMPT, 3);

	(void)state;
	generate(s, CLIENT, session, 1, 20);
	run_all(s);
	expect_tokens(1, N_PROMPT, 3, 20);
	expect_finished(1, MESSAGE_REASON_LENGTH);
	/* None in vain, and all but the prompt's and the first behind it run ahead. */
	assert_int_equal(fake.n_steps, 20);
	assert_int_equal(fake.n_ahead, 18);
	expect_cells(0, N_PROMPT + 20);
	end_scheduler(s);
}

/* Ends of different lengths; the others go on, with one row each. */
static void test_sessions_end(void **state)
{
	struct scheduler *s = new_ahead();

	(void)state;
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		generate(s, CLIENT, open_prompt(s, CLIENT, 2 + i, i), 1 + i, 4 + 7 * i);
	run_all(s);
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		expect_tokens(1 + i, 2 + i, i, 4 + 7 * i);
		expect_cells(i, 2 + i + 4 + 7 * i);
	}
	assert_true(fake.n_ahead > 15);
	end_scheduler(s);
}

/* A stop word ends what is already computed further: nobody hears of that, and its cells go. */
static void test_stop_word(void **state)
{
	struct scheduler *s = new_ahead();
	uint64_t session = open_prompt(s, CLIENT, N_PROMPT, 3);
	uint64_t other = open_prompt(s, CLIENT, N_PROMPT, 4);
	uint32_t history[N_PROMPT + 8];
	struct err e = ERR_NULL;

	(void)state;
	for (uint32_t i = 0; i < N_PROMPT; i++)
		history[i] = (i * 7 + 3) % (N_VOCAB - 1);
	for (uint32_t i = N_PROMPT; i < N_PROMPT + 8; i++)
		history[i] = fake_next(history, i);
	struct message *m = new_generate(CLIENT, session, 1, 0);
	m->generate.n_stop_tokens = 1;
	m->generate.stop_tokens = &history[N_PROMPT + 6];
	check_ok(scheduler_generate(s, m, &e), &e);
	generate(s, CLIENT, other, 2, 30);
	run_all(s);
	expect_finished(1, MESSAGE_REASON_STOP);
	expect_tokens(1, N_PROMPT, 3, fake.n_tokens[1]);
	assert_in_range(fake.n_tokens[1], 1, 7);
	expect_cells(0, N_PROMPT + fake.n_tokens[1]);
	expect_tokens(2, N_PROMPT, 4, 30);
	expect_finished(2, MESSAGE_REASON_LENGTH);
	m->generate.stop_tokens = NULL;
	m->generate.n_stop_tokens = 0;
	/* And it goes on from there as if nothing had been computed. */
	generate(s, CLIENT, session, 3, 5);
	run_all(s);
	expect_finished(3, MESSAGE_REASON_LENGTH);
	memcpy(history + N_PROMPT, fake.tokens[1], fake.n_tokens[1] * sizeof(*history));
	uint32_t n = N_PROMPT + fake.n_tokens[1];
	assert_int_equal(fake.tokens[3][0], fake_next(history, n));
	end_scheduler(s);
}

/* Whoever ends a generation, or begins one, settles first: what was under way counts. */
static void test_cancel_and_begin(void **state)
{
	struct scheduler *s = new_ahead();
	uint64_t first = open_prompt(s, CLIENT, N_PROMPT, 3);
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, first, 1, 0);
	for (int i = 0; i < 6; i++)
		step(s);
	assert_int_equal(scheduler_step_count(s), 1);
	settle(s);
	check_ok(scheduler_cancel(s, CLIENT, first, &e), &e);
	expect_tokens(1, N_PROMPT, 3, 7);
	expect_finished(1, MESSAGE_REASON_CANCELLED);
	expect_cells(0, N_PROMPT + 7);
	generate(s, CLIENT, first, 2, 10);
	step(s);
	step(s);
	step(s);
	settle(s);
	generate(s, OTHER, open_prompt(s, OTHER, 30, 8), 3, 12);
	run_all(s);
	expect_tokens(3, 30, 8, 12);
	expect_finished(2, MESSAGE_REASON_LENGTH);
	assert_int_equal(fake.n_tokens[2], 10);
	end_scheduler(s);
}

/* What the device picked is not what the host does: that row alone is computed again. */
static void test_misled(void **state)
{
	static const uint32_t misleads[] = {1, 2, 3, 5, 7};

	(void)state;
	for (uint32_t k = 0; k < ARRAY_SIZE(misleads); k++) {
		struct scheduler *s = new_ahead();

		fake.misleads = misleads[k];
		for (uint32_t i = 0; i < 3; i++)
			generate(s, CLIENT, open_prompt(s, CLIENT, 2 + i, i), 1 + i, 25 + i);
		run_all(s);
		for (uint32_t i = 0; i < 3; i++) {
			expect_tokens(1 + i, 2 + i, i, 25 + i);
			expect_finished(1 + i, MESSAGE_REASON_LENGTH);
			expect_cells(i, 2 + i + 25 + i);
		}
		assert_true(fake.n_ahead > 10);
		end_scheduler(s);
	}
}

/* Who needs the host between two steps keeps all from running ahead, as long as it is there. */
static void test_host_is_needed(void **state)
{
	struct scheduler *s = new_ahead();
	uint64_t first = open_prompt(s, CLIENT, N_PROMPT, 3), second;
	struct err e = ERR_NULL;

	(void)state;
	struct message *m = new_generate(CLIENT, first, 1, 8);
	m->generate.sampling.temperature = 1;
	m->generate.sampling.top_k = 1;
	check_ok(scheduler_generate(s, m, &e), &e);
	second = open_prompt(s, CLIENT, N_PROMPT, 4);
	generate(s, CLIENT, second, 2, 20);
	for (int i = 0; i < 7; i++)
		step(s);
	assert_int_equal(fake.n_ahead, 0);
	run_all(s);
	assert_true(fake.n_ahead >= 10);
	expect_tokens(1, N_PROMPT, 3, 8);
	expect_tokens(2, N_PROMPT, 4, 20);
	m = new_generate(CLIENT, first, 0, 4);
	m->generate.n_logprobs = 2;
	check_ok(scheduler_generate(s, m, &e), &e);
	m = new_generate(CLIENT, second, 4, 4);
	m->generate.sampling.repeat_penalty = 1.1f;
	check_ok(scheduler_generate(s, m, &e), &e);
	uint32_t n_ahead = fake.n_ahead;
	run_all(s);
	assert_int_equal(fake.n_ahead, n_ahead);
	end_scheduler(s);
}

/* No page for the step ahead ends nobody; the step itself may. */
static void test_no_page_ahead(void **state)
{
	struct scheduler *s = new_ahead();

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, N_PROMPT, 3), 1, 20);
	generate(s, CLIENT, open_prompt(s, CLIENT, N_PROMPT, 4), 2, 20);
	for (int i = 0; i < 4; i++)
		step(s);
	settle(s);
	uint32_t n_ahead = fake.n_ahead, n_reserved = fake.n_reserved[0];
	fake.no_pages_slot = 1;
	fake.n_spared_reserves = 2; /* for the step itself */
	step(s);
	assert_int_equal(fake.n_ahead, n_ahead);
	assert_null(fake.finished[1]);
	assert_null(fake.finished[2]);
	/* What had been reserved ahead for the other is not kept. */
	assert_int_equal(fake.n_reserved[0], n_reserved + 1);
	run_all(s);
	expect_finished(2, MESSAGE_REASON_FAILED);
	expect_tokens(1, N_PROMPT, 3, 20);
	end_scheduler(s);
}

/* The context is full: nothing is computed behind it. */
static void test_context_ends(void **state)
{
	struct scheduler *s = new_ahead();

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, N_CTX - 9, 3), 1, 0);
	run_all(s);
	expect_finished(1, MESSAGE_REASON_LENGTH);
	expect_tokens(1, N_CTX - 9, 3, 9);
	expect_cells(0, N_CTX);
	assert_true(fake.n_ahead >= 6);
	end_scheduler(s);
}

/* Completions of one prompt are closed as they end, while a step with a row of theirs is under way.
 */
static void test_completions(void **state)
{
	struct scheduler *s = new_ahead();
	uint64_t session = open_prompt(s, CLIENT, N_PROMPT, 3);
	struct message *m = new_generate(CLIENT, session, 1, 12);
	uint32_t stop_token, history[N_PROMPT + 6];
	struct err e = ERR_NULL;

	(void)state;
	for (uint32_t i = 0; i < N_PROMPT; i++)
		history[i] = (i * 7 + 3) % (N_VOCAB - 1);
	for (uint32_t i = N_PROMPT; i < N_PROMPT + 6; i++)
		history[i] = fake_next(history, i);
	stop_token = history[N_PROMPT + 5];
	m->generate.n_completions = 3;
	m->generate.stop_tokens = &stop_token;
	m->generate.n_stop_tokens = 1;
	check_ok(scheduler_generate(s, m, &e), &e);
	generate(s, CLIENT, open_prompt(s, CLIENT, N_PROMPT, 4), 8, 30);
	run_all(s);
	expect_tokens(8, N_PROMPT, 4, 30);
	for (uint32_t i = 1; i <= 3; i++) {
		expect_tokens(i, N_PROMPT, 3, fake.n_tokens[1]);
		expect_finished(i, MESSAGE_REASON_STOP);
	}
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 2);
	assert_true(fake.n_ahead > 20);
	end_scheduler(s);
}

/* The device fails with two steps under way. */
static void test_step_fails(void **state)
{
	struct scheduler *s = new_ahead();
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, N_PROMPT, 3), 1, 20);
	for (int i = 0; i < 4; i++)
		step(s);
	assert_int_equal(scheduler_step_count(s), 1);
	fake.step_error = -EIO;
	assert_int_equal(scheduler_step(s, &e), -EIO);
	scheduler_fail(s, -EIO, &e);
	expect_finished(1, MESSAGE_REASON_FAILED);
	assert_false(scheduler_is_busy(s));
	end_scheduler(s);
}

/* The cache goes with what is under way, and all is computed again. */
static void test_detach(void **state)
{
	const struct scheduler_params params = {.n_sessions = N_SESSIONS,
		.n_ctx = N_CTX,
		.n_rows = N_ROWS,
		.n_vocab = N_VOCAB,
		.max_text_bytes = 4,
		.n_page_tokens = N_PAGE_TOKENS};
	struct scheduler *s = new_ahead();
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, N_PROMPT, 3), 1, 20);
	for (int i = 0; i < 7; i++)
		step(s);
	assert_int_equal(scheduler_step_count(s), 1);
	scheduler_detach(s);
	fake.n_finished_steps = fake.n_steps; /* it went with the plan */
	check_ok(scheduler_attach(s, &params, false, &e), &e);
	run_all(s);
	expect_tokens(1, N_PROMPT, 3, 20);
	end_scheduler(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_one_session),
		CASE(test_sessions_end),
		CASE(test_stop_word),
		CASE(test_cancel_and_begin),
		CASE(test_misled),
		CASE(test_host_is_needed),
		CASE(test_no_page_ahead),
		CASE(test_context_ends),
		CASE(test_completions),
		CASE(test_step_fails),
		CASE(test_detach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
