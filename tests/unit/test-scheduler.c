/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the scheduler, and what becomes of generations. */
#include "tests/unit/scheduler-bench.h"

/* A prompt of several chunks, one of a row, four sessions at once: each as if it were alone. */
static void test_batch_equals_alone(void **state)
{
	static const uint32_t n_prompt[N_SESSIONS] = {1, 70, 16, 33};
	struct scheduler *s = new_scheduler();

	(void)state;
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		generate(s, CLIENT, open_prompt(s, CLIENT, n_prompt[i], i), i, 20 + i);
	run(s);
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		expect_tokens(i, n_prompt[i], i, 20 + i);
		expect_finished(i, MESSAGE_REASON_LENGTH);
		assert_int_equal(fake.finished[i]->generate.finished.prompt_tokens, n_prompt[i]);
		assert_int_equal(fake.finished[i]->generate.finished.cached_tokens, 0);
	}
	assert_int_equal(scheduler_get_counters(s)->prompt_tokens, 1 + 70 + 16 + 33);
	assert_int_equal(scheduler_get_counters(s)->generated_tokens, 20 + 21 + 22 + 23);
	end_scheduler(s);
}

/* A long prompt neither stops a stream nor keeps a short prompt waiting. */
static void test_fair_shares(void **state)
{
	struct scheduler *s = new_scheduler();

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 2, 0), 0, 100);
	step(s);
	assert_int_equal(fake.n_tokens[0], 1);
	generate(s, CLIENT, open_prompt(s, CLIENT, 150, 1), 1, 1);
	generate(s, OTHER, open_prompt(s, OTHER, 10, 2), 2, 1);
	step(s);
	/* One row decodes; fifteen are shared. */
	assert_int_equal(fake.n_slot_rows[0], 1);
	assert_int_equal(fake.n_slot_rows[1] + fake.n_slot_rows[2], N_ROWS - 1);
	assert_in_range(fake.n_slot_rows[1], 7, 8);
	assert_int_equal(fake.n_tokens[0], 2);
	step(s);
	/* What the short one does not need is the long one's. */
	assert_int_equal(fake.n_tokens[2], 1);
	assert_int_equal(fake.n_slot_rows[0] + fake.n_slot_rows[1] + fake.n_slot_rows[2], N_ROWS);
	step(s);
	assert_int_equal(fake.n_slot_rows[0], 1);
	assert_int_equal(fake.n_slot_rows[1], N_ROWS - 1);
	run(s);
	expect_tokens(0, 2, 0, 100);
	expect_tokens(1, 150, 1, 1);
	expect_tokens(2, 10, 2, 1);
	end_scheduler(s);
}

static void test_truncate_and_again(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, 40, 3);
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, session, 0, 12);
	run(s);
	assert_int_equal(scheduler_truncate(s, CLIENT, session, 53, &e), -EINVAL);
	check_ok(scheduler_truncate(s, CLIENT, session, 40, &e), &e);
	generate(s, CLIENT, session, 1, 12);
	run(s);
	expect_tokens(0, 40, 3, 12);
	expect_tokens(1, 40, 3, 12);
	assert_int_equal(fake.finished[1]->generate.finished.cached_tokens, 39);
	/* Going on from where it ended computes one row a token. */
	uint32_t n_steps = fake.n_steps;
	generate(s, CLIENT, session, 2, 5);
	run(s);
	assert_int_equal(fake.n_steps - n_steps, 5);
	assert_int_equal(fake.finished[2]->generate.finished.prompt_tokens, 52);
	assert_int_equal(fake.finished[2]->generate.finished.cached_tokens, 51);
	end_scheduler(s);
}

static void test_context_full(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, N_CTX - 3, 0);
	uint32_t ids[4] = {0};
	uint32_t n_total;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(scheduler_append(s, CLIENT, session, ids, 4, &e, &n_total), -ENOSPC);
	assert_string_equal(e.text, "context: 200 tokens, 197 in the session, 4 more asked");
	generate(s, CLIENT, session, 0, 0);
	run(s);
	expect_finished(0, MESSAGE_REASON_LENGTH);
	expect_tokens(0, N_CTX - 3, 0, 3);
	/* Full already: done at once, nothing computed. */
	uint32_t n_steps = fake.n_steps;
	generate(s, CLIENT, session, 1, 5);
	run(s);
	expect_finished(1, MESSAGE_REASON_LENGTH);
	assert_int_equal(fake.n_tokens[1], 0);
	assert_int_equal(fake.n_steps, n_steps);
	end_scheduler(s);
}

static void test_cancel_and_close(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, 5, 0);
	struct err e = ERR_NULL;

	(void)state;
	check_ok(scheduler_cancel(s, CLIENT, session, &e), &e);
	generate(s, CLIENT, session, 0, 0);
	step(s);
	step(s);
	check_ok(scheduler_cancel(s, CLIENT, session, &e), &e);
	assert_false(scheduler_is_busy(s));
	expect_finished(0, MESSAGE_REASON_CANCELLED);
	assert_int_equal(fake.n_tokens[0], 2);
	/* What was generated stays. */
	generate(s, CLIENT, session, 1, 3);
	run(s);
	assert_int_equal(fake.finished[1]->generate.finished.prompt_tokens, 7);
	generate(s, CLIENT, session, 2, 0);
	step(s);
	check_ok(scheduler_close(s, CLIENT, session, &e), &e);
	expect_finished(2, MESSAGE_REASON_CANCELLED);
	assert_int_equal(scheduler_close(s, CLIENT, session, &e), -ENOENT);
	end_scheduler(s);
}

static void test_disconnect(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t sessions[N_SESSIONS];
	uint64_t more;
	struct err e = ERR_NULL;

	(void)state;
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		sessions[i] = open_prompt(s, i % 2 ? OTHER : CLIENT, 5, i);
		generate(s, i % 2 ? OTHER : CLIENT, sessions[i], i, 10);
	}
	assert_int_equal(scheduler_open(s, CLIENT, CLIENT, &e, &more), -EAGAIN);
	step(s);
	scheduler_disconnect(s, CLIENT);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 2);
	expect_finished(0, MESSAGE_REASON_CANCELLED);
	expect_finished(2, MESSAGE_REASON_CANCELLED);
	assert_false(fake.is_open[0]);
	/* The freed slot serves at once, under an id that was never used. */
	more = open_prompt(s, OTHER, 3, 9);
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		assert_true(more != sessions[i]);
	generate(s, OTHER, more, 4, 4);
	run(s);
	expect_tokens(1, 5, 1, 10);
	expect_tokens(3, 5, 3, 10);
	expect_tokens(4, 3, 9, 4);
	end_scheduler(s);
}

static void test_refusals(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, 5, 0);
	struct message *m = new_generate(OTHER, session, 1, 1);
	uint32_t id = 0;
	uint32_t n_total;
	struct err e = ERR_NULL;

	(void)state;
	/* Another connection's session is not there. */
	assert_int_equal(scheduler_generate(s, m, &e), -ENOENT);
	assert_int_equal(scheduler_append(s, OTHER, session, &id, 1, &e, &n_total), -ENOENT);
	assert_int_equal(scheduler_truncate(s, OTHER, session, 0, &e), -ENOENT);
	assert_int_equal(scheduler_cancel(s, OTHER, session, &e), -ENOENT);
	assert_int_equal(scheduler_close(s, OTHER, session, &e), -ENOENT);
	/* Two at once on one session. */
	m->client = CLIENT;
	generate(s, CLIENT, session, 0, 2);
	assert_int_equal(scheduler_generate(s, m, &e), -EBUSY);
	message_free(m);
	run(s);
	expect_tokens(0, 5, 0, 2);
	end_scheduler(s);
}

/* The token that completes a stop string ends the generation; the text stops before it. */
static void test_stop_string(void **state)
{
	struct scheduler *s = new_scheduler();
	struct message *m;
	char stop[3];
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 30, 5), 0, 20);
	run(s);
	assert_int_equal(strlen(fake.text[0]), 20);
	memcpy(stop, fake.text[0] + 11, 3);
	m = new_generate(CLIENT, open_prompt(s, CLIENT, 30, 5), 1, 0);
	m->generate.stops = calloc(1, sizeof(*m->generate.stops));
	m->generate.stops[0] = (struct message_stop){stop, sizeof(stop)};
	m->generate.n_stops = 1;
	check_ok(scheduler_generate(s, m, &e), &e);
	run(s);
	expect_finished(1, MESSAGE_REASON_STOP);
	expect_tokens(1, 30, 5, 14);
	assert_int_equal(strlen(fake.text[1]), 11);
	assert_memory_equal(fake.text[1], fake.text[0], 11);
	end_scheduler(s);
}

static void test_seed(void **state)
{
	struct scheduler *s = new_scheduler();
	static const uint64_t seeds[] = {1, 1, 2};
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(seeds); i++) {
		struct message *m = new_generate(CLIENT, open_prompt(s, CLIENT, 9, 0), i, 40);

		m->generate.sampling.temperature = 2;
		m->generate.sampling.seed = seeds[i];
		check_ok(scheduler_generate(s, m, &e), &e);
		/* Beside different neighbours each time. */
		step(s);
	}
	run(s);
	assert_memory_equal(fake.tokens[0], fake.tokens[1], 40 * sizeof(uint32_t));
	assert_memory_not_equal(fake.tokens[0], fake.tokens[2], 40 * sizeof(uint32_t));
	assert_int_equal(fake.finished[2]->generate.finished.seed, 2);
	end_scheduler(s);
}

/* Of the logits as the model gave them: 2 for the next token, 1 for each eighth, else 0. */
static void test_logprobs(void **state)
{
	struct scheduler *s = new_scheduler();
	struct sampler_bias far = {.bias = 1};
	const double shift = log(exp(2) + 7 * exp(1) + 56);
	struct err e = ERR_NULL;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct message *m = new_generate(CLIENT, open_prompt(s, CLIENT, 9, 0), i, 8);

		m->generate.n_logprobs = i ? LOGPROB_MAX_TOP : 3;
		/* The second never takes what is likeliest at first. */
		far = (struct sampler_bias){.id = fake.tokens[0][0], .bias = -INFINITY};
		m->generate.sampling.biases = &far;
		m->generate.sampling.n_biases = i;
		check_ok(scheduler_generate(s, m, &e), &e);
		run(s);
	}
	for (uint32_t k = 0; k < 8; k++) {
		const struct logprob_list *p = &fake.probs[0][k];

		assert_int_equal(p->n_top, 3);
		assert_int_equal(p->own.id, fake.tokens[0][k]);
		assert_int_equal(p->top[0].id, fake.tokens[0][k]);
		assert_true(fabs((double)p->own.logprob - (2 - shift)) < 1e-5);
		assert_true(fabs((double)p->top[2].logprob - (1 - shift)) < 1e-5);
	}
	const struct logprob_list *p = &fake.probs[1][0];
	assert_int_equal(p->n_top, LOGPROB_MAX_TOP);
	assert_int_not_equal(p->own.id, fake.tokens[0][0]);
	assert_int_equal(p->top[0].id, fake.tokens[0][0]);
	assert_true(fabs((double)p->top[0].logprob - (2 - shift)) < 1e-5);
	assert_true(fabs((double)p->own.logprob - (1 - shift)) < 1e-5);
	assert_true(fabs((double)p->top[8].logprob + shift) < 1e-5);
	end_scheduler(s);
}

static void test_no_pages(void **state)
{
	struct scheduler *s = new_scheduler();

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 9, 0), 0, 4);
	generate(s, CLIENT, open_prompt(s, CLIENT, 9, 1), 1, 4);
	fake.no_pages_slot = 0;
	run(s);
	expect_finished(0, MESSAGE_REASON_FAILED);
	assert_string_equal(message_get_error(fake.finished[0]),
		"kv: 1 more pages asked, 0 of 8 are free; 0 idle sessions have 0 tokens there");
	expect_tokens(1, 9, 1, 4);
	end_scheduler(s);
}

/* Refused before anything is computed, with who could go; then it is as if nobody had asked. */
static void test_admission(void **state)
{
	struct scheduler *s = new_scheduler();
	struct message *m;
	struct err e = ERR_NULL;

	(void)state;
	/* Two idle sessions have 12 and 13 tokens there: the last that was chosen is not computed.
	 */
	for (uint32_t i = 0; i < 2; i++) {
		generate(s, CLIENT, open_prompt(s, CLIENT, 9 + i, i), i, 4);
		run(s);
	}
	m = new_generate(CLIENT, open_prompt(s, CLIENT, 40, 2), 2, 4);
	fake.no_pages_slot = 2;
	assert_int_equal(scheduler_generate(s, m, &e), -ENOSPC);
	assert_string_equal(e.text, "kv: 1 more pages asked, 0 of 8 are free; 2 idle sessions have "
				    "25 tokens there");
	assert_int_equal(m->generate.finished.reason, 0);
	assert_false(scheduler_is_busy(s));
	fake.no_pages_slot = N_SESSIONS;
	check_ok(scheduler_generate(s, m, &e), &e);
	assert_int_equal(fake.n_reserved[2], 41); /* of one token more */
	run(s);
	expect_tokens(2, 40, 2, 4);
	end_scheduler(s);
}

static void test_step_fails(void **state)
{
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 9, 0), 0, 4);
	generate(s, OTHER, open_prompt(s, OTHER, 9, 0), 1, 4);
	step(s);
	fake.step_error = -EIO;
	assert_int_equal(scheduler_step(s, &e), -EIO);
	scheduler_fail(s, -EIO, &e);
	assert_false(scheduler_is_busy(s));
	for (uint64_t i = 0; i < 2; i++) {
		expect_finished(i, MESSAGE_REASON_FAILED);
		assert_string_equal(message_get_error(fake.finished[i]), "the device is on fire");
	}
	end_scheduler(s);
}

/* The KV cache goes amid two generations, and another comes with other slots and fewer rows. */
static void test_detach_and_attach(void **state)
{
	struct scheduler_params params = {.n_sessions = N_SESSIONS,
		.n_ctx = N_CTX,
		.n_rows = N_SESSIONS,
		.n_vocab = N_VOCAB,
		.max_text_bytes = 4,
		.n_page_tokens = N_PAGE_TOKENS};
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;
	uint64_t sessions[3];
	uint32_t n_total;

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		sessions[i] = open_prompt(s, CLIENT, 20 + i, i);
	generate(s, CLIENT, sessions[1], 1, 9);
	generate(s, CLIENT, sessions[2], 2, 12);
	while (fake.n_tokens[1] < 4)
		step(s);
	scheduler_detach(s);
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		assert_false(fake.is_open[i]);
	/* What does not compute goes on: sessions close, open, grow and shrink. */
	check_ok(scheduler_close(s, CLIENT, sessions[0], &e), &e);
	uint64_t young = open_prompt(s, CLIENT, 5, 3);
	check_ok(scheduler_truncate(s, CLIENT, young, 3, &e), &e);
	check_ok(scheduler_append(s, CLIENT, young, (const uint32_t[]){1}, 1, &e, &n_total), &e);
	for (uint32_t i = 3; i < N_SESSIONS; i++)
		open_prompt(s, CLIENT + 1, 1, i);
	assert_int_equal(scheduler_open(s, CLIENT, CLIENT, &e, &young), -EAGAIN);
	scheduler_disconnect(s, CLIENT + 1);
	assert_true(scheduler_is_busy(s));
	check_ok(scheduler_attach(s, &params, false, &e), &e);
	assert_int_equal(scheduler_get_largest_ctx(s), N_CTX);
	run(s);
	expect_tokens(1, 21, 1, 9);
	expect_tokens(2, 22, 2, 12);
	expect_finished(1, MESSAGE_REASON_LENGTH);
	expect_finished(2, MESSAGE_REASON_LENGTH);
	/* More rows again, and tokens that mean nothing there. */
	scheduler_detach(s);
	params.n_rows = N_ROWS;
	check_ok(scheduler_attach(s, &params, true, &e), &e);
	struct message *m = new_generate(CLIENT, sessions[1], 3, 1);
	assert_int_equal(scheduler_generate(s, m, &e), -ESTALE);
	message_free(m);
	generate(s, CLIENT, open_prompt(s, CLIENT, 40, 4), 4, 3);
	run(s);
	expect_tokens(4, 40, 4, 3);
	end_scheduler(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_batch_equals_alone),
		CASE(test_fair_shares),
		CASE(test_truncate_and_again),
		CASE(test_context_full),
		CASE(test_cancel_and_close),
		CASE(test_disconnect),
		CASE(test_refusals),
		CASE(test_stop_string),
		CASE(test_seed),
		CASE(test_logprobs),
		CASE(test_no_pages),
		CASE(test_admission),
		CASE(test_step_fails),
		CASE(test_detach_and_attach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
