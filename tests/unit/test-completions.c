/* SPDX-License-Identifier: Apache-2.0 */
/* Several completions of one prompt, by the scheduler: tests/unit/test-scheduler.c has the rest. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/message.h"
#include "workerd/scheduler.h"

enum { N_SESSIONS = 5, N_CTX = 120, N_ROWS = 16, N_VOCAB = 32, N_PROMPT = 40, CLIENT = 1, OTHER };

/* What came out of one completion. */
struct heard {
	uint32_t n;
	uint32_t tokens[N_CTX];
	struct message *finished;
};

/* A model whose logits depend on every token before, as they are in the slot's cache. */
static struct fake {
	bool is_open[N_SESSIONS];
	uint32_t n_kv[N_SESSIONS];
	uint32_t kv[N_SESSIONS][N_CTX];
	float logits[N_SESSIONS][N_VOCAB];
	uint32_t n_rows;  /* computed in all */
	uint32_t n_forks; /* that may still succeed */
	int fork_error;   /* of one beyond them */
	uint32_t n_finished;
	struct heard heard[8]; /* by index */
	enum message_kind last_kind;
} fake;

static int fake_open(void *userdata, struct err *ret_err, uint32_t *ret_slot)
{
	(void)userdata;
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		if (fake.is_open[i])
			continue;
		fake.is_open[i] = true;
		fake.n_kv[i] = 0;
		*ret_slot = i;
		return 0;
	}
	return err_set(ret_err, EAGAIN, "no slot");
}

static void fake_close(void *userdata, uint32_t slot)
{
	(void)userdata;
	assert_true(fake.is_open[slot]);
	fake.is_open[slot] = false;
}

static int fake_fork(
	void *userdata, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	(void)userdata;
	if (!fake.n_forks)
		return err_set(ret_err, -fake.fork_error, "kv: no page");
	fake.n_forks--;
	assert_true(fake.is_open[from] && fake.is_open[slot] && from != slot);
	assert_true(n_tokens <= fake.n_kv[from]);
	memcpy(fake.kv[slot], fake.kv[from], n_tokens * sizeof(uint32_t));
	fake.n_kv[slot] = n_tokens;
	return 0;
}

/* Nothing is found: what is computed is to be counted. */
static uint32_t fake_adopt(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	(void)userdata;
	(void)slot;
	(void)scope;
	(void)tokens;
	(void)n_tokens;
	return 0;
}

/* Sessions of completions have their client's scope. */
static void fake_publish(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	(void)userdata;
	assert_int_equal(scope, CLIENT);
	assert_true(fake.is_open[slot] && n_tokens <= fake.n_kv[slot]);
	assert_memory_equal(tokens, fake.kv[slot], n_tokens * sizeof(*tokens));
}

static int fake_reserve(void *userdata, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	(void)userdata;
	(void)ret_err;
	assert_true(fake.is_open[slot] && n_tokens <= N_CTX);
	return 0;
}

static void fake_truncate(void *userdata, uint32_t slot, uint32_t n_tokens)
{
	(void)userdata;
	if (fake.n_kv[slot] > n_tokens)
		fake.n_kv[slot] = n_tokens;
}

static int fake_submit(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	uint32_t k = 0;

	(void)userdata;
	(void)ret_err;
	fake.n_rows += n_rows;
	for (uint32_t i = 0; i < n_rows; i++) {
		uint32_t slot = rows[i].slot, hash = 2166136261u;

		assert_true(fake.is_open[slot] && rows[i].position == fake.n_kv[slot]);
		fake.kv[slot][fake.n_kv[slot]++] = rows[i].token;
		if (k == n_want || (want[k] & ~PLAN_FIRST) != i)
			continue;
		for (uint32_t t = 0; t < fake.n_kv[slot]; t++)
			hash = (hash ^ (fake.kv[slot][t] + t)) * 16777619u;
		for (uint32_t t = 0; t < N_VOCAB; t++)
			fake.logits[k][t] = (float)((hash >> t % 13 ^ t * 7) % 16) / 4;
		k++;
	}
	assert_int_equal(k, n_want);
	return 0;
}

static int fake_finish(void *userdata, struct err *ret_err, const float **ret_logits)
{
	(void)userdata;
	(void)ret_err;
	*ret_logits = fake.logits[0];
	return 0;
}

static bool fake_get_text(
	void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	(void)userdata;
	*ret_bytes = &"ab"[token % 2];
	*ret_n_bytes = 1;
	return false;
}

static void fake_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes, const struct logprob_list *probs)
{
	struct heard *h = &fake.heard[generate->generate.finished.index];

	(void)userdata;
	(void)bytes;
	(void)n_bytes;
	(void)probs;
	assert_null(h->finished);
	h->tokens[h->n++] = token;
}

static void fake_finished(void *userdata, struct message *m)
{
	struct heard *h = &fake.heard[m->generate.finished.index];

	(void)userdata;
	assert_null(h->finished);
	assert_int_equal(m->client, CLIENT);
	assert_int_equal(m->id, 77);
	assert_int_equal(m->generate.finished.generated_tokens, h->n);
	h->finished = m;
	fake.n_finished++;
	fake.last_kind = m->kind;
}

static const struct scheduler_params params = {.n_sessions = N_SESSIONS,
	.n_ctx = N_CTX,
	.n_rows = N_ROWS,
	.n_vocab = N_VOCAB,
	.max_text_bytes = 1,
	.n_page_tokens = 8};

static void forget(void)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(fake.heard); i++)
		message_free(fake.heard[i].finished);
	memset(fake.heard, 0, sizeof(fake.heard));
	fake.n_finished = 0;
	fake.n_rows = 0;
}

static struct scheduler *new_scheduler(void)
{
	const struct scheduler_backend backend = {.open = fake_open,
		.close = fake_close,
		.fork = fake_fork,
		.adopt = fake_adopt,
		.publish = fake_publish,
		.reserve = fake_reserve,
		.truncate = fake_truncate,
		.submit = fake_submit,
		.finish = fake_finish,
		.get_text = fake_get_text,
		.token = fake_token,
		.finished = fake_finished};
	struct scheduler *s;

	fake = (struct fake){.n_forks = 1000};
	assert_int_equal(scheduler_new(&params, &backend, &s), 0);
	return s;
}

static void end_scheduler(struct scheduler *s)
{
	scheduler_stop(s);
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		assert_false(fake.is_open[i]);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	forget();
	scheduler_free(s);
}

static void check_ok(int r, const struct err *e)
{
	if (r)
		fail_msg("%d %s", r, e->text);
}

static uint64_t open_prompt(struct scheduler *s)
{
	uint32_t ids[N_PROMPT], n_total;
	uint64_t session;
	struct err e = ERR_NULL;

	for (uint32_t i = 0; i < N_PROMPT; i++)
		ids[i] = i * 5 % N_VOCAB;
	check_ok(scheduler_open(s, CLIENT, CLIENT, &e, &session), &e);
	check_ok(scheduler_append(s, CLIENT, session, ids, N_PROMPT, &e, &n_total), &e);
	return session;
}

static const uint32_t stop_tokens[] = {3, 17};

static int try_generate(
	struct scheduler *s, uint64_t session, uint32_t n, uint64_t seed, struct err *ret_err)
{
	struct message *m = message_new(MESSAGE_GENERATE, CLIENT, 0);

	assert_non_null(m);
	m->id = 77;
	m->generate.session = session;
	m->generate.n_predict = 30;
	m->generate.n_completions = n;
	m->generate.sampling = (struct sampler_params){.temperature = 1.5f, .seed = seed};
	m->generate.stop_tokens = stop_tokens; /* so that they end at different times */
	m->generate.n_stop_tokens = ARRAY_SIZE(stop_tokens);
	/* Lists that all completions borrow and the client's message owns. */
	m->generate.stops = calloc(1, sizeof(*m->generate.stops));
	assert_non_null(m->generate.stops);
	m->generate.stops[0] = (struct message_stop){.bytes = "c", .n_bytes = 1};
	m->generate.n_stops = 1;
	int r = scheduler_generate(s, m, ret_err);
	if (r)
		message_free(m);
	return r;
}

static void generate(struct scheduler *s, uint64_t session, uint32_t n, uint64_t seed)
{
	struct err e = ERR_NULL;

	check_ok(try_generate(s, session, n, seed, &e), &e);
}

static void step(struct scheduler *s)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_step(s, &e), &e);
}

static void run(struct scheduler *s)
{
	while (scheduler_is_busy(s))
		step(s);
}

/* What each seed gives alone. */
static void run_alone(struct scheduler *s, uint64_t seed, uint32_t n, struct heard *ret_heard)
{
	for (uint32_t i = 0; i < n; i++) {
		struct err e = ERR_NULL;
		uint64_t session = open_prompt(s);

		generate(s, session, i % 2, seed + i);
		run(s);
		ret_heard[i] = fake.heard[0];
		check_ok(scheduler_close(s, CLIENT, session, &e), &e);
		forget();
	}
}

static void expect_like_alone(const struct heard *alone, uint32_t n, uint64_t seed)
{
	assert_int_equal(fake.n_finished, n);
	/* The client's own message is the last. */
	assert_int_equal(fake.last_kind, MESSAGE_GENERATE);
	for (uint32_t i = 0; i < n; i++) {
		const struct heard *h = &fake.heard[i];

		assert_int_equal(h->n, alone[i].n);
		assert_memory_equal(h->tokens, alone[i].tokens, h->n * sizeof(uint32_t));
		assert_int_equal(h->finished->generate.finished.seed, seed + i);
		assert_int_equal(h->finished->generate.finished.prompt_tokens, N_PROMPT);
		assert_int_equal(h->finished->generate.finished.reason,
			h->n == 30 ? MESSAGE_REASON_LENGTH : MESSAGE_REASON_STOP);
	}
}

/* Each is what its seed gives alone, and the prompt is computed once. */
static void test_like_alone(void **state)
{
	struct scheduler *s = new_scheduler();
	struct heard alone[N_SESSIONS];

	(void)state;
	for (uint64_t seed = 1; seed < 40; seed++) {
		uint32_t n = 2 + (uint32_t)seed % (N_SESSIONS - 1), n_tokens = 0, n_total;
		struct err e = ERR_NULL;

		run_alone(s, seed, n, alone);
		uint64_t session = open_prompt(s);
		generate(s, session, n, seed);
		run(s);
		expect_like_alone(alone, n, seed);
		/* Each token but the last of each is a row. */
		for (uint32_t i = 0; i < n; i++)
			n_tokens += fake.heard[i].n - 1;
		assert_int_equal(fake.n_rows, N_PROMPT + n_tokens);
		/* The first is the client's session's, which alone is left. */
		assert_int_equal(scheduler_get_counters(s)->n_sessions, 1);
		check_ok(scheduler_append(s, CLIENT, session, NULL, 0, &e, &n_total), &e);
		assert_int_equal(n_total, N_PROMPT + fake.heard[0].n);
		check_ok(scheduler_close(s, CLIENT, session, &e), &e);
		forget();
	}
	end_scheduler(s);
}

static void test_room(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t sessions[2] = {open_prompt(s), open_prompt(s)}, other;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(try_generate(s, sessions[0], 5, 1, &e), -EAGAIN);
	assert_string_equal(e.text, "n: 5 completions take 4 more sessions, 3 of 5 are free");
	generate(s, sessions[0], 3, 1);
	/* What is promised is nobody else's. */
	assert_int_equal(try_generate(s, sessions[1], 3, 1, &e), -EAGAIN);
	check_ok(scheduler_open(s, OTHER, OTHER, &e, &other), &e);
	assert_int_equal(scheduler_open(s, OTHER, OTHER, &e, &other), -EAGAIN);
	run(s);
	assert_int_equal(fake.n_finished, 3);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 3);
	/* No request names the sessions of completions. */
	forget();
	generate(s, sessions[0], 2, 1);
	while (!fake.heard[1].n)
		step(s);
	for (uint64_t id = 0; id < 100; id++)
		if (id != sessions[0] && id != sessions[1])
			assert_int_equal(scheduler_close(s, CLIENT, id, &e), -ENOENT);
	end_scheduler(s);
}

/* However it ends: each completion once, the client's message last, and no session stays. */
static void test_ends(void **state)
{
	(void)state;
	for (uint32_t n_steps = 0; n_steps < 8; n_steps++) {
		for (int how = 0; how < 4; how++) {
			struct scheduler *s = new_scheduler();
			uint64_t session = open_prompt(s);
			struct err e = ERR_NULL;
			bool is_failed = how == 3;

			generate(s, session, 4, 5);
			for (uint32_t i = 0; i < n_steps; i++)
				step(s);
			uint32_t n_ended = fake.n_finished;
			if (how == 0)
				check_ok(scheduler_cancel(s, CLIENT, session, &e), &e);
			if (how == 1)
				check_ok(scheduler_close(s, CLIENT, session, &e), &e);
			if (how == 2)
				scheduler_disconnect(s, CLIENT);
			err_set(&e, EIO, "the device is on fire");
			if (is_failed)
				scheduler_fail(s, -EIO, &e);
			assert_int_equal(fake.n_finished, 4);
			assert_int_equal(fake.last_kind, MESSAGE_GENERATE);
			assert_false(scheduler_is_busy(s));
			uint32_t n_so = 0;
			for (uint32_t i = 0; i < 4; i++)
				n_so += fake.heard[i].finished->generate.finished.reason ==
					(is_failed ? MESSAGE_REASON_FAILED
						   : MESSAGE_REASON_CANCELLED);
			assert_int_equal(n_so, 4 - n_ended);
			assert_int_equal(scheduler_get_counters(s)->n_sessions,
				how == 1 || how == 2 ? 0 : 1);
			end_scheduler(s);
		}
	}
}

/* Without pages for one, the others go on; with a device that fails, the step does. */
static void test_no_pages(void **state)
{
	struct scheduler *s = new_scheduler();
	struct heard alone[4];
	struct err e = ERR_NULL;
	uint32_t n_failed = 0;
	int r = 0;

	(void)state;
	run_alone(s, 9, 4, alone);
	fake.n_forks = 2;
	fake.fork_error = -ENOSPC;
	generate(s, open_prompt(s), 4, 9);
	run(s);
	assert_int_equal(fake.n_finished, 4);
	for (uint32_t i = 0; i < 4; i++) {
		const struct heard *h = &fake.heard[i];

		if (h->finished->generate.finished.reason == MESSAGE_REASON_FAILED) {
			assert_string_equal(message_get_error(h->finished),
				"kv: no page; 0 idle sessions have 0 tokens there");
			assert_int_equal(h->n, 0);
			n_failed++;
		} else {
			assert_int_equal(h->finished->code, 0);
			assert_int_equal(h->n, alone[i].n);
		}
	}
	assert_int_equal(n_failed, 1);
	assert_int_equal(fake.heard[0].n, alone[0].n);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 1);
	forget();
	fake.n_forks = 0;
	fake.fork_error = -EIO;
	generate(s, open_prompt(s), 4, 9);
	while (!r)
		r = scheduler_step(s, &e);
	assert_int_equal(r, -EIO);
	scheduler_fail(s, r, &e);
	assert_int_equal(fake.n_finished, 4);
	end_scheduler(s);
}

/* The cache goes before the prompt is computed, or amid the completions. */
static void test_detach(void **state)
{
	(void)state;
	for (uint32_t n_steps = 0; n_steps < 8; n_steps++) {
		struct scheduler *s = new_scheduler();
		struct heard alone[4];
		struct err e = ERR_NULL;

		run_alone(s, 3, 4, alone);
		generate(s, open_prompt(s), 4, 3);
		for (uint32_t i = 0; i < n_steps; i++)
			step(s);
		scheduler_detach(s);
		check_ok(scheduler_attach(s, &params, false, &e), &e);
		run(s);
		expect_like_alone(alone, 4, 3);
		end_scheduler(s);
	}
}

/* A context that is full already, or with the first token. */
static void test_full_context(void **state)
{
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s);
	uint32_t ids[N_CTX] = {0}, n_total;
	struct err e = ERR_NULL;

	(void)state;
	check_ok(scheduler_append(s, CLIENT, session, ids, N_CTX - N_PROMPT - 1, &e, &n_total), &e);
	for (uint32_t n_tokens = 1; n_tokens < 2; n_tokens--) {
		generate(s, session, 3, 1);
		run(s);
		assert_int_equal(fake.n_finished, 3);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(fake.heard[i].n, n_tokens);
			assert_int_equal(fake.heard[i].finished->generate.finished.seed, 1 + i);
		}
		forget();
	}
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 1);
	end_scheduler(s);
}

/* Completions are no sessions of the client's, and their prompt's session is in use by them. */
static void test_limits(void **state)
{
	const struct scheduler_limits limits = {.n_client_sessions = 1, .ttl_ns = 1000};
	struct scheduler *s = new_scheduler();
	uint64_t session = open_prompt(s);
	struct heard alone[N_SESSIONS];
	struct err e = ERR_NULL;
	uint64_t more;

	(void)state;
	check_ok(scheduler_close(s, CLIENT, session, &e), &e);
	run_alone(s, 1, 3, alone);
	scheduler_set_limits(s, &limits);
	session = open_prompt(s);
	generate(s, session, 3, 1);
	while (scheduler_is_busy(s)) {
		step(s);
		if (!scheduler_is_busy(s))
			break;
		/* However late it is: some completion runs, and the session stays. */
		assert_int_equal(scheduler_get_deadline(s), UINT64_MAX);
		scheduler_expire(s, UINT64_MAX);
		assert_int_equal(scheduler_open(s, CLIENT, CLIENT, &e, &more), -EDQUOT);
	}
	expect_like_alone(alone, 3, 1);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 1);
	scheduler_expire(s, scheduler_get_deadline(s));
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	end_scheduler(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_like_alone),
		CASE(test_limits),
		CASE(test_room),
		CASE(test_ends),
		CASE(test_no_pages),
		CASE(test_detach),
		CASE(test_full_context),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
