/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/logprob.h"
#include "workerd/message.h"
#include "workerd/scheduler.h"

enum {
	N_SESSIONS = 4,
	N_CTX = 200,
	N_ROWS = 16,
	N_VOCAB = 64,
	N_PAGE_TOKENS = 4,
	MAX_PUBLISHED = 64,
	END_TOKEN = 63,
	MAX_TOKENS = 4096,
	CLIENT = 1,
	OTHER = 2,
};

/*
 * A model whose next token depends on every token before it, in order, so that a row computed
 * twice, never, or in another session's slot changes all that follows. It checks what a step is
 * promised.
 */
struct fake {
	bool is_open[N_SESSIONS];
	uint32_t n_reserved[N_SESSIONS];
	uint32_t n_computed[N_SESSIONS];
	uint32_t kv[N_SESSIONS][N_CTX];
	float logits[N_SESSIONS][N_VOCAB];
	uint32_t n_steps;
	uint32_t n_slot_rows[N_SESSIONS]; /* of the last step */
	int step_error;                   /* the next step fails */
	struct {
		uint64_t scope;
		uint32_t n_tokens;
		uint32_t tokens[N_CTX];
	} published[MAX_PUBLISHED]; /* every beginning that was */
	uint32_t n_published;
	uint32_t no_pages_slot; /* reserve of it fails; N_SESSIONS: none */
	/* what came out, of one client request id each */
	uint32_t n_tokens[16];
	uint32_t tokens[16][N_CTX];
	char text[16][N_CTX * 4];
	struct message *finished[16];
	struct logprob_list probs[2][8]; /* likewise, where they were asked for */
};

static uint32_t fake_next(const uint32_t *history, uint32_t n)
{
	uint32_t hash = 2166136261u;

	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ (history[i] + i)) * 16777619u;
	/* Never the end token by itself. */
	return (hash >> 8) % (N_VOCAB - 1);
}

static int fake_open(void *userdata, struct err *ret_err, uint32_t *ret_slot)
{
	struct fake *f = userdata;

	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		if (f->is_open[i])
			continue;
		f->is_open[i] = true;
		*ret_slot = i;
		return 0;
	}
	return err_set(ret_err, EAGAIN, "sessions: all %d are open", N_SESSIONS);
}

static void fake_truncate(void *userdata, uint32_t slot, uint32_t n_tokens)
{
	struct fake *f = userdata;

	if (f->n_reserved[slot] > n_tokens)
		f->n_reserved[slot] = n_tokens;
	if (f->n_computed[slot] > n_tokens)
		f->n_computed[slot] = n_tokens;
}

static void fake_close(void *userdata, uint32_t slot)
{
	struct fake *f = userdata;

	assert_true(f->is_open[slot]);
	fake_truncate(f, slot, 0);
	f->is_open[slot] = false;
}

static int fake_fork(
	void *userdata, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	struct fake *f = userdata;

	if (slot == f->no_pages_slot)
		return err_set(ret_err, ENOSPC, "kv: 1 more pages asked, 0 of 8 are free");
	assert_true(f->is_open[from] && f->is_open[slot] && from != slot);
	assert_true(n_tokens <= f->n_computed[from]);
	assert_int_equal(f->n_computed[slot], 0);
	memcpy(f->kv[slot], f->kv[from], n_tokens * sizeof(uint32_t));
	f->n_computed[slot] = f->n_reserved[slot] = n_tokens;
	return 0;
}

static uint32_t fake_adopt(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	struct fake *f = userdata;
	uint32_t n_best = f->n_reserved[slot];

	assert_true(f->is_open[slot]);
	for (uint32_t i = 0; i < f->n_published; i++) {
		uint32_t n = 0;

		while (n < n_tokens && n < f->published[i].n_tokens &&
			tokens[n] == f->published[i].tokens[n])
			n++;
		n -= n % N_PAGE_TOKENS;
		if (scope == f->published[i].scope && n > n_best)
			n_best = n;
	}
	if (n_best == f->n_reserved[slot])
		return 0;
	memcpy(f->kv[slot], tokens, n_best * sizeof(*tokens));
	f->n_computed[slot] = f->n_reserved[slot] = n_best;
	return n_best;
}

static void fake_publish(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	struct fake *f = userdata;

	assert_int_equal(n_tokens % N_PAGE_TOKENS, 0);
	assert_in_range(n_tokens, N_PAGE_TOKENS, f->n_computed[slot]);
	assert_memory_equal(tokens, f->kv[slot], n_tokens * sizeof(*tokens));
	assert_in_range(f->n_published, 0, MAX_PUBLISHED - 1);
	f->published[f->n_published].scope = scope;
	f->published[f->n_published].n_tokens = n_tokens;
	memcpy(f->published[f->n_published++].tokens, tokens, n_tokens * sizeof(*tokens));
}

static int fake_reserve(void *userdata, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	struct fake *f = userdata;

	if (slot == f->no_pages_slot)
		return err_set(ret_err, ENOSPC, "kv: 1 more pages asked, 0 of 8 are free");
	assert_true(n_tokens <= N_CTX);
	if (f->n_reserved[slot] < n_tokens)
		f->n_reserved[slot] = n_tokens;
	return 0;
}

static int fake_step(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err, const float **ret_logits)
{
	struct fake *f = userdata;
	bool is_seen[N_SESSIONS] = {false};
	uint32_t k = 0;

	if (f->step_error)
		return err_set(ret_err, -f->step_error, "the device is on fire");
	assert_in_range(n_rows, 1, N_ROWS);
	assert_true(n_want <= N_SESSIONS);
	f->n_steps++;
	memset(f->n_slot_rows, 0, sizeof(f->n_slot_rows));
	for (uint32_t i = 0; i < n_rows; i++) {
		uint32_t slot = rows[i].slot;

		/* Rows of a session are together, in order, after what is computed, with pages. */
		if (!i || rows[i - 1].slot != slot) {
			assert_false(is_seen[slot]);
			is_seen[slot] = true;
		} else {
			assert_int_equal(rows[i].position, rows[i - 1].position + 1);
		}
		assert_true(f->is_open[slot]);
		assert_true(rows[i].position <= f->n_computed[slot]);
		assert_true(rows[i].position < f->n_reserved[slot]);
		f->kv[slot][rows[i].position] = rows[i].token;
		if (f->n_computed[slot] == rows[i].position)
			f->n_computed[slot]++;
		f->n_slot_rows[slot]++;
		if (k < n_want && want[k] == i) {
			uint32_t next = fake_next(f->kv[slot], rows[i].position + 1);

			for (uint32_t t = 0; t < N_VOCAB; t++)
				f->logits[k][t] = t == next ? 2 : t % 8 == next % 8 ? 1 : 0;
			k++;
		}
	}
	assert_int_equal(k, n_want);
	*ret_logits = n_want ? f->logits[0] : NULL;
	return 0;
}

/* Token t is the letter 'A' + t % 26; the end token is no text. */
static bool fake_get_text(
	void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	(void)userdata;
	*ret_bytes = letters + token % 26;
	*ret_n_bytes = token == END_TOKEN ? 0 : 1;
	return token == END_TOKEN;
}

static void fake_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes, const struct logprob_list *probs)
{
	struct fake *f = userdata;

	assert_true(!probs == !generate->generate.n_logprobs);
	if (probs)
		f->probs[generate->id][f->n_tokens[generate->id]] = *probs;
	f->tokens[generate->id][f->n_tokens[generate->id]++] = token;
	strncat(f->text[generate->id], bytes, n_bytes);
}

static void fake_finished(void *userdata, struct message *generate)
{
	struct fake *f = userdata;

	assert_null(f->finished[generate->id]);
	f->finished[generate->id] = generate;
}

static struct fake fake;

static struct scheduler *new_scheduler(void)
{
	const struct scheduler_params params = {.n_sessions = N_SESSIONS,
		.n_ctx = N_CTX,
		.n_rows = N_ROWS,
		.n_vocab = N_VOCAB,
		.max_text_bytes = 4,
		.n_page_tokens = N_PAGE_TOKENS};
	const struct scheduler_backend backend = {.userdata = &fake,
		.open = fake_open,
		.close = fake_close,
		.fork = fake_fork,
		.adopt = fake_adopt,
		.publish = fake_publish,
		.reserve = fake_reserve,
		.truncate = fake_truncate,
		.step = fake_step,
		.get_text = fake_get_text,
		.token = fake_token,
		.finished = fake_finished};
	struct scheduler *s;

	fake = (struct fake){.no_pages_slot = N_SESSIONS};
	assert_int_equal(scheduler_new(&params, &backend, &s), 0);
	return s;
}

static void end_scheduler(struct scheduler *s)
{
	scheduler_stop(s);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		assert_false(fake.is_open[i]);
	for (unsigned i = 0; i < ARRAY_SIZE(fake.finished); i++)
		message_free(fake.finished[i]);
	scheduler_free(s);
}

static void check_ok(int r, const struct err *e)
{
	if (r)
		fail_msg("%d %s", r, e->text);
}

/* A session of client with n_prompt tokens that depend on salt. */
static uint64_t open_prompt(struct scheduler *s, uint64_t client, uint32_t n_prompt, uint32_t salt)
{
	uint32_t ids[N_CTX];
	uint32_t n_total;
	uint64_t session;
	struct err e = ERR_NULL;

	check_ok(scheduler_open(s, client, client, &e, &session), &e);
	for (uint32_t i = 0; i < n_prompt; i++)
		ids[i] = (i * 7 + salt) % (N_VOCAB - 1);
	check_ok(scheduler_append(s, client, session, ids, n_prompt, &e, &n_total), &e);
	assert_int_equal(n_total, n_prompt);
	return session;
}

static struct message *new_generate(
	uint64_t client, uint64_t session, uint64_t id, uint32_t n_predict)
{
	struct message *m = message_new(MESSAGE_GENERATE, client, 0);

	assert_non_null(m);
	m->id = id;
	m->generate.session = session;
	m->generate.n_predict = n_predict;
	return m;
}

static void generate(
	struct scheduler *s, uint64_t client, uint64_t session, uint64_t id, uint32_t n_predict)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_generate(s, new_generate(client, session, id, n_predict), &e), &e);
}

static void step(struct scheduler *s)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_step(s, &e), &e);
}

static void run(struct scheduler *s)
{
	for (int i = 0; scheduler_is_busy(s); i++) {
		assert_in_range(i, 0, MAX_TOKENS);
		step(s);
	}
}

/* What a prompt of open_prompt must go on with. */
static void expect_tokens(uint64_t id, uint32_t n_prompt, uint32_t salt, uint32_t n_expected)
{
	uint32_t history[N_CTX];

	assert_int_equal(fake.n_tokens[id], n_expected);
	for (uint32_t i = 0; i < n_prompt; i++)
		history[i] = (i * 7 + salt) % (N_VOCAB - 1);
	for (uint32_t i = 0; i < n_expected; i++) {
		history[n_prompt + i] = fake_next(history, n_prompt + i);
		assert_int_equal(fake.tokens[id][i], history[n_prompt + i]);
	}
}

static void expect_finished(uint64_t id, enum message_reason reason)
{
	assert_non_null(fake.finished[id]);
	assert_int_equal(fake.finished[id]->generate.finished.reason, reason);
	assert_int_equal(fake.finished[id]->generate.finished.generated_tokens, fake.n_tokens[id]);
}

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
		CASE(test_fork),
		CASE(test_prefix),
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
