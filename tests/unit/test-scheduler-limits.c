/* SPDX-License-Identifier: Apache-2.0 */
/* Who computes first, who may have how much, and for how long. */
#include "tests/unit/scheduler-bench.h"
#include "workerd/turn.h"

static void generate_at(struct scheduler *s, uint64_t session, uint64_t id, int32_t priority)
{
	struct message *m = new_generate(CLIENT, session, id, 2);
	struct err e = ERR_NULL;

	m->generate.priority = priority;
	check_ok(scheduler_generate(s, m, &e), &e);
}

/* A prompt of a higher priority goes first, a stream is not held up, and nobody waits for ever. */
static void test_priority(void **state)
{
	struct scheduler *s = new_scheduler();

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 2, 0), 0, 100);
	step(s);
	generate_at(s, open_prompt(s, CLIENT, 60, 1), 1, -1);
	generate_at(s, open_prompt(s, CLIENT, 60, 2), 2, 0);
	generate_at(s, open_prompt(s, CLIENT, 40, 3), 3, 9);
	step(s);
	assert_int_equal(fake.n_slot_rows[0], 1);
	assert_int_equal(fake.n_slot_rows[3], N_ROWS - 1);
	step(s);
	step(s);
	/* What the highest leaves of a step goes to the next. */
	assert_int_equal(fake.n_tokens[3], 1);
	assert_int_equal(fake.n_slot_rows[3], 10);
	assert_int_equal(fake.n_slot_rows[2], 5);
	assert_int_equal(fake.n_slot_rows[1], 0);
	assert_int_equal(fake.n_tokens[0], 4);
	run(s);
	expect_tokens(0, 2, 0, 100);
	expect_tokens(1, 60, 1, 2);
	expect_tokens(2, 60, 2, 2);
	expect_tokens(3, 40, 3, 2);
	end_scheduler(s);
}

/* Beside a stream a prompt is computed in smaller pieces; alone it has the whole step. */
static void test_shared_rows(void **state)
{
	const struct scheduler_limits limits = {.n_shared_rows = 5};
	struct scheduler *s = new_scheduler();

	(void)state;
	scheduler_set_limits(s, &limits);
	generate(s, CLIENT, open_prompt(s, CLIENT, 50, 1), 1, 1);
	step(s);
	assert_int_equal(fake.n_slot_rows[0], N_ROWS);
	generate(s, OTHER, open_prompt(s, OTHER, 1, 0), 0, 20);
	step(s);
	step(s);
	assert_int_equal(fake.n_slot_rows[1], 1);
	assert_int_equal(fake.n_slot_rows[0], 4);
	run(s);
	expect_tokens(0, 1, 0, 20);
	expect_tokens(1, 50, 1, 1);
	end_scheduler(s);
}

/* However long a prompt is, each step beside it has a token for every stream. */
static void test_long_prompt_beside_streams(void **state)
{
	enum { N_PROMPT = 190, N_STREAMS = 2, N_SHARE = N_ROWS - N_STREAMS };
	struct scheduler *s = new_scheduler();
	uint32_t n_steps = 0;

	(void)state;
	for (uint32_t i = 0; i < N_STREAMS; i++)
		generate(s, CLIENT, open_prompt(s, CLIENT, 3, i), i, 100);
	step(s);
	generate(s, OTHER, open_prompt(s, OTHER, N_PROMPT, 2), 2, 5);
	while (!fake.n_tokens[2]) {
		step(s);
		n_steps++;
		for (uint32_t i = 0; i < N_STREAMS; i++)
			assert_int_equal(fake.n_tokens[i], 1 + n_steps);
		assert_in_range(fake.n_slot_rows[2], 1, N_SHARE);
	}
	assert_int_equal(n_steps, (N_PROMPT + N_SHARE - 1) / N_SHARE);
	run(s);
	for (uint32_t i = 0; i < N_STREAMS; i++)
		expect_tokens(i, 3, i, 100);
	expect_tokens(2, N_PROMPT, 2, 5);
	end_scheduler(s);
}

/* Prompts of a higher priority without an end: the lowest has its share when it has waited. */
static void test_starves_nobody(void **state)
{
	/* After so many steps it counts as much as the others, and has a third of one. */
	enum { N_WAIT = 4 * TURN_AGE_STEPS, N_LOW = 2 * (N_ROWS / 3) };
	struct scheduler *s = new_scheduler();
	uint32_t n_shares = 0, n_without = 0;
	uint64_t sessions[2] = {0}; /* of the flow */
	uint64_t id = 1;
	struct err e = ERR_NULL;

	(void)state;
	generate_at(s, open_prompt(s, CLIENT, N_LOW, 0), 0, -4);
	while (!fake.finished[0]) {
		for (; id < 3 || fake.finished[id - 2]; id++) {
			assert_in_range(id, 1, ARRAY_SIZE(fake.finished) - 1);
			if (id > 2)
				check_ok(scheduler_close(s, CLIENT, sessions[id % 2], &e), &e);
			sessions[id % 2] = open_prompt(s, CLIENT, 180, (uint32_t)id);
			generate_at(s, sessions[id % 2], id, 0);
		}
		step(s);
		n_without = fake.n_slot_rows[0] ? 0 : n_without + 1;
		assert_in_range(n_without, 0, N_WAIT);
		n_shares += fake.n_slot_rows[0] > 0;
	}
	/* Two of its prompt, or more where a flow's last rows leave some; and its second token. */
	assert_in_range(n_shares, 3, 5);
	expect_tokens(0, N_LOW, 0, 2);
	end_scheduler(s);
}

static void test_client_sessions(void **state)
{
	const struct scheduler_limits limits = {.n_client_sessions = 2};
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;
	uint64_t first, more;

	(void)state;
	scheduler_set_limits(s, &limits);
	first = open_prompt(s, CLIENT, 5, 0);
	check_ok(scheduler_fork(s, CLIENT, first, 0, &e, &more), &e);
	assert_int_equal(scheduler_open(s, CLIENT, CLIENT, &e, &more), -EDQUOT);
	assert_string_equal(e.text, "sessions: this connection has 2, as many as one may have");
	assert_int_equal(scheduler_fork(s, CLIENT, first, 0, &e, &more), -EDQUOT);
	open_prompt(s, OTHER, 5, 0);
	check_ok(scheduler_close(s, CLIENT, first, &e), &e);
	open_prompt(s, CLIENT, 5, 0);
	end_scheduler(s);
}

/* What is used is kept, what generates too; who comes late is told why. */
static void test_idle_time(void **state)
{
	const struct scheduler_limits limits = {.ttl_ns = 1000ull * 1000 * 1000 * 1000};
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;
	uint64_t sessions[3], deadline_ns;

	(void)state;
	assert_int_equal(scheduler_get_deadline(s), UINT64_MAX);
	scheduler_expire(s, UINT64_MAX);
	scheduler_set_limits(s, &limits);
	assert_int_equal(scheduler_get_deadline(s), UINT64_MAX);
	for (uint32_t i = 0; i < 3; i++)
		sessions[i] = open_prompt(s, CLIENT, 5, i);
	generate(s, CLIENT, sessions[1], 1, 3);
	check_ok(scheduler_truncate(s, CLIENT, sessions[0], 4, &e), &e);
	deadline_ns = scheduler_get_deadline(s);
	assert_true(deadline_ns >= limits.ttl_ns && deadline_ns < UINT64_MAX);
	scheduler_expire(s, deadline_ns - 1);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 3);
	/* The one that nobody touched since it was made. */
	scheduler_expire(s, deadline_ns);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 2);
	assert_int_equal(scheduler_truncate(s, CLIENT, sessions[2], 0, &e), -ENOENT);
	assert_non_null(strstr(e.text, "or idle for longer than --session-ttl"));
	scheduler_expire(s, scheduler_get_deadline(s));
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 1);
	assert_int_equal(scheduler_get_deadline(s), UINT64_MAX);
	scheduler_expire(s, UINT64_MAX);
	run(s);
	expect_tokens(1, 5, 1, 3);
	scheduler_expire(s, scheduler_get_deadline(s));
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	end_scheduler(s);
}

static void test_list(void **state)
{
	struct scheduler *s = new_scheduler();
	struct message_session list[N_SESSIONS];
	uint32_t n_queued;

	(void)state;
	assert_int_equal(scheduler_list(s, list, &n_queued), 0);
	open_prompt(s, OTHER, 7, 0);
	generate(s, CLIENT, open_prompt(s, CLIENT, 2, 1), 1, 50);
	for (unsigned i = 0; i < 3; i++)
		step(s);
	generate(s, CLIENT, open_prompt(s, CLIENT, 90, 2), 2, 5);
	step(s);
	assert_int_equal(scheduler_list(s, list, &n_queued), 3);
	assert_int_equal(n_queued, 1);
	assert_int_equal(list[0].client, OTHER);
	assert_int_equal(list[0].state, MESSAGE_SESSION_IDLE);
	assert_int_equal(list[0].n_tokens, 7);
	assert_int_equal(list[0].n_cached, 0);
	assert_int_equal(list[1].state, MESSAGE_SESSION_DECODING);
	assert_int_equal(list[1].n_tokens, 6);
	assert_int_equal(list[1].n_cached, 5);
	assert_true(list[1].tokens_per_second > 0);
	assert_int_equal(list[2].state, MESSAGE_SESSION_PROMPT);
	assert_int_equal(list[2].n_cached, N_ROWS - 1);
	end_scheduler(s);
}

/* Amid a prompt: the slot is free when the client is gone, before another step is made. */
static void test_disconnect_in_a_prompt(void **state)
{
	struct scheduler *s = new_scheduler();
	struct message_session list[N_SESSIONS];
	uint32_t n_queued;

	(void)state;
	generate(s, CLIENT, open_prompt(s, CLIENT, 150, 0), 0, 5);
	generate(s, OTHER, open_prompt(s, OTHER, 150, 1), 1, 5);
	step(s);
	scheduler_disconnect(s, CLIENT);
	expect_finished(0, MESSAGE_REASON_CANCELLED);
	assert_false(fake.is_open[0]);
	assert_int_equal(scheduler_list(s, list, &n_queued), 1);
	/* All rows are the other's from the next step on. */
	step(s);
	assert_int_equal(fake.n_slot_rows[1], N_ROWS);
	run(s);
	expect_tokens(1, 150, 1, 5);
	end_scheduler(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_priority),
		CASE(test_shared_rows),
		CASE(test_long_prompt_beside_streams),
		CASE(test_starves_nobody),
		CASE(test_client_sessions),
		CASE(test_idle_time),
		CASE(test_list),
		CASE(test_disconnect_in_a_prompt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
