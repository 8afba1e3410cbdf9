/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that begin with what others have computed. */
#include "tests/unit/scheduler-bench.h"

/* Of a session that generates: what both go on with is what one would have. */
static void test_fork(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, 20, 3);
	uint64_t forks[2];
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(scheduler_fork(s, OTHER, session, 0, &e, &forks[0]), -ENOENT);
	generate(s, CLIENT, session, 0, 30);
	for (uint32_t i = 0; i < 7; i++)
		step(s);
	assert_int_equal(fake.n_tokens[0], 6);
	check_ok(scheduler_fork(s, CLIENT, session, 0, &e, &forks[0]), &e);
	check_ok(scheduler_fork(s, CLIENT, session, 20, &e, &forks[1]), &e);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 3);
	generate(s, CLIENT, forks[0], 1, 10);
	generate(s, CLIENT, forks[1], 2, 30);
	run(s);
	expect_tokens(0, 20, 3, 30);
	expect_tokens(2, 20, 3, 30);
	assert_memory_equal(fake.tokens[1], fake.tokens[0] + 6, 10 * sizeof(uint32_t));
	assert_int_equal(fake.finished[1]->generate.finished.cached_tokens, 25);
	assert_int_equal(fake.finished[2]->generate.finished.cached_tokens, 19);
	/* One that cannot be made leaves nothing. */
	assert_int_equal(scheduler_fork(s, CLIENT, session, 51, &e, &forks[0]), -EINVAL);
	fake.no_pages_slot = 3;
	assert_int_equal(scheduler_fork(s, CLIENT, session, 0, &e, &forks[0]), -ENOSPC);
	/* Those that idle, and not the one that was not made. */
	assert_string_equal(e.text,
		"kv: 1 more pages asked, 0 of 8 are free; 3 idle sessions have 133 tokens there");
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 3);
	assert_false(fake.is_open[3]);
	/* With nothing on the device there is nothing to share: the tokens go along. */
	scheduler_detach(s);
	check_ok(scheduler_fork(s, CLIENT, session, 20, &e, &forks[0]), &e);
	const struct scheduler_params params = {.n_sessions = N_SESSIONS,
		.n_ctx = N_CTX,
		.n_rows = N_ROWS,
		.n_vocab = N_VOCAB,
		.max_text_bytes = 4,
		.n_page_tokens = N_PAGE_TOKENS};
	fake.no_pages_slot = N_SESSIONS;
	check_ok(scheduler_attach(s, &params, false, &e), &e);
	generate(s, CLIENT, forks[0], 3, 5);
	run(s);
	expect_tokens(3, 20, 3, 5);
	end_scheduler(s);
}

/* What was computed once is not again, for the same scope, and the answers are the same. */
static void test_prefix(void **state)
{
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;
	uint64_t session;

	(void)state;
	session = open_prompt(s, CLIENT, 21, 3);
	generate(s, CLIENT, session, 0, 8);
	run(s);
	assert_int_equal(fake.finished[0]->generate.finished.cached_tokens, 0);
	assert_int_equal(scheduler_get_counters(s)->prompt_tokens, 21);
	/* A session that is still open, and one that is closed. */
	generate(s, CLIENT, open_prompt(s, CLIENT, 21, 3), 1, 8);
	run(s);
	check_ok(scheduler_close(s, CLIENT, session, &e), &e);
	generate(s, CLIENT, open_prompt(s, CLIENT, 20, 3), 2, 8);
	run(s);
	assert_int_equal(fake.finished[1]->generate.finished.cached_tokens, 20);
	/* One token is always left to compute. */
	assert_int_equal(fake.finished[2]->generate.finished.cached_tokens, 16);
	assert_int_equal(scheduler_get_counters(s)->prompt_tokens, 21 + 1 + 4);
	/* Another scope knows nothing of it. */
	generate(s, OTHER, open_prompt(s, OTHER, 21, 3), 3, 8);
	run(s);
	assert_int_equal(fake.finished[3]->generate.finished.cached_tokens, 0);
	for (uint64_t i = 0; i < 4; i++)
		expect_tokens(i, i == 2 ? 20 : 21, 3, 8);
	end_scheduler(s);
}

/* A prompt that is only computed: no token is chosen, and others find all of it but a page. */
static void test_prefill(void **state)
{
	struct scheduler *s = new_scheduler();
	struct err e = ERR_NULL;
	struct message *m = new_generate(CLIENT, open_prompt(s, CLIENT, 20, 3), 0, 0);

	(void)state;
	m->generate.is_prefill = true;
	generate(s, CLIENT, open_prompt(s, CLIENT, 9, 5), 1, 8);
	check_ok(scheduler_generate(s, m, &e), &e);
	run(s);
	expect_finished(0, MESSAGE_REASON_STOP);
	assert_int_equal(fake.finished[0]->generate.finished.prompt_tokens, 20);
	assert_int_equal(fake.n_tokens[0], 0);
	/* Who decodes beside it gets its own logits. */
	expect_tokens(1, 9, 5, 8);
	assert_int_equal(scheduler_get_counters(s)->prompt_tokens, 20 + 9);
	assert_int_equal(scheduler_get_counters(s)->generated_tokens, 8);
	generate(s, CLIENT, open_prompt(s, CLIENT, 21, 3), 2, 8);
	run(s);
	assert_int_equal(fake.finished[2]->generate.finished.cached_tokens, 20);
	expect_tokens(2, 21, 3, 8);
	end_scheduler(s);
}

struct file {
	uint32_t tokens[N_CTX];
	uint32_t n_tokens;
	int result; /* of the fill */
	unsigned n_fills;
};

/* As archive does: it writes the KV of what was computed. */
static int fill(void *userdata, uint32_t slot, struct err *ret_err)
{
	struct file *file = userdata;

	file->n_fills++;
	if (file->result)
		return err_set(ret_err, -file->result, "the file is damaged");
	memcpy(fake.kv[slot], file->tokens, fake.n_reserved[slot] * sizeof(uint32_t));
	fake.n_computed[slot] = fake.n_reserved[slot];
	return 0;
}

/* What was in a file goes on as it would have, and nobody else finds it. */
static void test_restore(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s, CLIENT, 30, 3);
	const struct session *borrowed = NULL;
	struct file file = {.n_tokens = 30};
	struct err e = ERR_NULL;
	uint64_t restored;

	(void)state;
	assert_int_equal(scheduler_borrow(s, OTHER, session, &e, &borrowed), -ENOENT);
	check_ok(scheduler_borrow(s, CLIENT, session, &e, &borrowed), &e);
	assert_int_equal(borrowed->n_tokens, 30);
	memcpy(file.tokens, borrowed->tokens, sizeof(file.tokens[0]) * 30);
	generate(s, CLIENT, session, 0, 1);
	assert_int_equal(scheduler_borrow(s, CLIENT, session, &e, &borrowed), -EBUSY);
	scheduler_disconnect(s, CLIENT);
	const struct scheduler_restore_params params = {
		.client = CLIENT,
		.scope = CLIENT,
		.tokens = file.tokens,
		.n_tokens = 30,
		.n_cached = 29,
		.fill = fill,
		.userdata = &file,
	};
	check_ok(scheduler_restore(s, &params, &e, &restored), &e);
	generate(s, CLIENT, restored, 1, 12);
	run(s);
	expect_tokens(1, 30, 3, 12);
	assert_int_equal(fake.finished[1]->generate.finished.cached_tokens, 29);
	assert_int_equal(scheduler_get_counters(s)->prompt_tokens, 1);
	/* Neither it nor what is forked from it. */
	check_ok(scheduler_fork(s, CLIENT, restored, 30, &e, &session), &e);
	generate(s, CLIENT, session, 2, 12);
	run(s);
	expect_tokens(2, 30, 3, 12);
	assert_int_equal(fake.n_published, 0);
	generate(s, CLIENT, open_prompt(s, CLIENT, 30, 3), 3, 12);
	run(s);
	assert_int_equal(fake.finished[3]->generate.finished.cached_tokens, 0);
	assert_true(fake.n_published > 0);
	end_scheduler(s);
}

static void test_restore_refusals(void **state)
{
	struct scheduler *s = new_scheduler();
	struct file file = {.tokens = {1, 2, N_VOCAB}};
	struct scheduler_restore_params params = {
		.client = CLIENT,
		.tokens = file.tokens,
		.n_tokens = 3,
		.n_cached = 2,
		.fill = fill,
		.userdata = &file,
	};
	struct err e = ERR_NULL;
	uint64_t session;

	(void)state;
	assert_int_equal(scheduler_restore(s, &params, &e, &session), -EINVAL);
	assert_string_equal(e.text, "tokens[2]: expected less than 64, found 64");
	params.n_tokens = N_CTX + 1;
	assert_int_equal(scheduler_restore(s, &params, &e, &session), -ENOSPC);
	params.n_tokens = 2;
	fake.no_pages_slot = 0;
	assert_int_equal(scheduler_restore(s, &params, &e, &session), -ENOSPC);
	assert_string_equal(e.text,
		"kv: 1 more pages asked, 0 of 8 are free; 0 idle sessions have 0 tokens there");
	fake.no_pages_slot = N_SESSIONS;
	assert_int_equal(file.n_fills, 0);
	file.result = -EBADMSG;
	assert_int_equal(scheduler_restore(s, &params, &e, &session), -EBADMSG);
	assert_int_equal(file.n_fills, 1);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	/* Tokens alone are read to their end all the same. */
	file.result = 0;
	params.n_cached = 0;
	check_ok(scheduler_restore(s, &params, &e, &session), &e);
	assert_int_equal(file.n_fills, 2);
	for (uint32_t i = 1; i < N_SESSIONS; i++)
		open_prompt(s, CLIENT, 1, i);
	assert_int_equal(scheduler_restore(s, &params, &e, &session), -EAGAIN);
	end_scheduler(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_fork),
		CASE(test_prefix),
		CASE(test_prefill),
		CASE(test_restore),
		CASE(test_restore_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
