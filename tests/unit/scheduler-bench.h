/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SCHEDULER_BENCH_H
#define TESTS_UNIT_SCHEDULER_BENCH_H

/* The scheduler with a model that is this file's. For one test program each. */
#include "tests/case.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/logprob.h"
#include "workerd/message.h"
#include "workerd/scheduler.h"
#include "workerd/session.h"

enum {
	N_SESSIONS = 4,
	N_CTX = 200,
	N_ROWS = 16,
	N_VOCAB = 64,
	N_PAGE_TOKENS = 4,
	MAX_PUBLISHED = 256,
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
	/* Of the steps that are under way, or finished last: two, in turn. */
	float logits[2][N_SESSIONS][N_VOCAB];
	struct abi_best best[2][N_SESSIONS][ABI_BEST_N];
	uint32_t n_wanted[2];
	uint32_t n_steps; /* submitted */
	uint32_t n_finished_steps;
	uint32_t n_ahead;  /* of those, submitted while another was under way */
	bool runs_ahead;   /* where the scheduler likes */
	uint32_t misleads; /* every so-many-th token that is picked is another; 0: none */
	uint32_t n_picked;
	uint32_t n_slot_rows[N_SESSIONS]; /* of the last step */
	int step_error;                   /* the next step fails */
	struct {
		uint64_t scope;
		uint32_t n_tokens;
		uint32_t tokens[N_CTX];
	} published[MAX_PUBLISHED]; /* every beginning that was */
	uint32_t n_published;
	uint32_t no_pages_slot;     /* reserve of it fails; N_SESSIONS: none */
	uint32_t n_spared_reserves; /* that do not, yet */
	/* what came out, of one client request id each */
	uint32_t n_tokens[16];
	uint32_t tokens[16][N_CTX];
	char text[16][N_CTX * 4];
	struct message *finished[16];
	struct logprob_list probs[2][8]; /* likewise, where they were asked for */
};

static inline uint32_t fake_next(const uint32_t *history, uint32_t n)
{
	uint32_t hash = 2166136261u;

	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ (history[i] + i)) * 16777619u;
	/* Never the end token by itself. */
	return (hash >> 8) % (N_VOCAB - 1);
}

static inline int fake_open(void *userdata, struct err *ret_err, uint32_t *ret_slot)
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

static inline void fake_truncate(void *userdata, uint32_t slot, uint32_t n_tokens)
{
	struct fake *f = userdata;

	if (f->n_reserved[slot] > n_tokens)
		f->n_reserved[slot] = n_tokens;
	if (f->n_computed[slot] > n_tokens)
		f->n_computed[slot] = n_tokens;
}

static inline void fake_close(void *userdata, uint32_t slot)
{
	struct fake *f = userdata;

	assert_true(f->is_open[slot]);
	fake_truncate(f, slot, 0);
	f->is_open[slot] = false;
}

static inline int fake_fork(
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

static inline uint32_t fake_adopt(
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

static inline void fake_publish(
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

static inline int fake_reserve(
	void *userdata, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	struct fake *f = userdata;

	if (f->n_spared_reserves)
		f->n_spared_reserves--;
	else if (slot == f->no_pages_slot)
		return err_set(ret_err, ENOSPC, "kv: 1 more pages asked, 0 of 8 are free");
	assert_true(n_tokens <= N_CTX);
	if (f->n_reserved[slot] < n_tokens)
		f->n_reserved[slot] = n_tokens;
	return 0;
}

/* What the device picks is the first; where it is misled, the host picks the second. */
static inline void fake_pick(struct fake *f, uint32_t lane, uint32_t i, uint32_t next)
{
	struct abi_best *best = f->best[lane][i];
	uint32_t n = 0;

	if (f->misleads && ++f->n_picked % f->misleads == 0)
		best[n++] = (struct abi_best){.logit = 1, .index = (next + 1) % (N_VOCAB - 1)};
	best[n++] = (struct abi_best){.logit = 2, .index = next};
	for (; n < ABI_BEST_N; n++)
		best[n].index = ABI_BEST_NONE;
}

static inline int fake_submit(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	struct fake *f = userdata;
	uint32_t lane = f->n_steps % 2;
	bool is_seen[N_SESSIONS] = {false};
	uint32_t k = 0;

	if (f->step_error)
		return err_set(ret_err, -f->step_error, "the device is on fire");
	assert_in_range(n_rows, 1, N_ROWS);
	assert_true(n_want <= N_SESSIONS);
	assert_in_range(f->n_steps - f->n_finished_steps, 0, f->runs_ahead);
	f->n_ahead += f->n_steps > f->n_finished_steps;
	f->n_steps++;
	f->n_wanted[lane] = n_want;
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
		uint32_t token = rows[i].token;
		if (token & PLAN_PICKED) {
			assert_in_range(token & ~PLAN_PICKED, 0, f->n_wanted[!lane] - 1);
			token = f->best[!lane][token & ~PLAN_PICKED][0].index;
		}
		f->kv[slot][rows[i].position] = token;
		if (f->n_computed[slot] == rows[i].position)
			f->n_computed[slot]++;
		f->n_slot_rows[slot]++;
		if (k < n_want && (want[k] & ~PLAN_FIRST) == i) {
			uint32_t next = fake_next(f->kv[slot], rows[i].position + 1);

			for (uint32_t t = 0; t < N_VOCAB; t++)
				f->logits[lane][k][t] = t == next ? 2 : t % 8 == next % 8 ? 1 : 0;
			fake_pick(f, lane, k, next);
			k++;
		}
	}
	assert_int_equal(k, n_want);
	return 0;
}

static inline int fake_finish(void *userdata, struct err *ret_err, const float **ret_logits)
{
	struct fake *f = userdata;
	uint32_t lane = f->n_finished_steps % 2;

	(void)ret_err;
	assert_true(f->n_finished_steps < f->n_steps);
	f->n_finished_steps++;
	if (!f->runs_ahead)
		*ret_logits = f->n_wanted[lane] ? f->logits[lane][0] : NULL;
	return 0;
}

/* Of the step that was finished last, whatever is under way. */
static inline int fake_get_logits(void *userdata, struct err *ret_err, const float **ret_logits)
{
	struct fake *f = userdata;

	(void)ret_err;
	*ret_logits = f->logits[(f->n_finished_steps - 1) % 2][0];
	return 0;
}

static inline const struct abi_best *fake_get_best(void *userdata)
{
	struct fake *f = userdata;

	return f->best[(f->n_finished_steps - 1) % 2][0];
}

static inline bool fake_may_run_ahead(void *userdata, uint32_t n_rows)
{
	const struct fake *f = userdata;

	assert_in_range(n_rows, 1, N_SESSIONS);
	return f->runs_ahead;
}

/* Token t is the letter 'A' + t % 26; the end token is no text. */
static inline bool fake_get_text(
	void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	(void)userdata;
	*ret_bytes = letters + token % 26;
	*ret_n_bytes = token == END_TOKEN ? 0 : 1;
	return token == END_TOKEN;
}

/* Completions behind the first are as requests of the ids behind its own. */
static inline uint64_t fake_id(const struct message *generate)
{
	return generate->id + generate->generate.finished.index;
}

static inline void fake_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes, const struct logprob_list *probs)
{
	struct fake *f = userdata;

	uint64_t id = fake_id(generate);

	assert_true(!probs == !generate->generate.n_logprobs);
	if (probs)
		f->probs[id][f->n_tokens[id]] = *probs;
	f->tokens[id][f->n_tokens[id]++] = token;
	strncat(f->text[id], bytes, n_bytes);
}

static inline void fake_finished(void *userdata, struct message *generate)
{
	struct fake *f = userdata;

	assert_null(f->finished[fake_id(generate)]);
	f->finished[fake_id(generate)] = generate;
}

static struct fake fake;

static inline struct scheduler *new_scheduler(void)
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
		.submit = fake_submit,
		.finish = fake_finish,
		.may_run_ahead = fake_may_run_ahead,
		.get_best = fake_get_best,
		.get_logits = fake_get_logits,
		.get_text = fake_get_text,
		.token = fake_token,
		.finished = fake_finished};
	struct scheduler *s;

	fake = (struct fake){.no_pages_slot = N_SESSIONS};
	assert_int_equal(scheduler_new(&params, &backend, &s), 0);
	return s;
}

static inline void end_scheduler(struct scheduler *s)
{
	scheduler_stop(s);
	assert_int_equal(scheduler_get_counters(s)->n_sessions, 0);
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		assert_false(fake.is_open[i]);
	for (unsigned i = 0; i < ARRAY_SIZE(fake.finished); i++)
		message_free(fake.finished[i]);
	scheduler_free(s);
}

static inline void check_ok(int r, const struct err *e)
{
	if (r)
		fail_msg("%d %s", r, e->text);
}

/* A session of client with n_prompt tokens that depend on salt. */
static inline uint64_t open_prompt(
	struct scheduler *s, uint64_t client, uint32_t n_prompt, uint32_t salt)
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

static inline struct message *new_generate(
	uint64_t client, uint64_t session, uint64_t id, uint32_t n_predict)
{
	struct message *m = message_new(MESSAGE_GENERATE, client, 0);

	assert_non_null(m);
	m->id = id;
	m->generate.session = session;
	m->generate.n_predict = n_predict;
	return m;
}

static inline void generate(
	struct scheduler *s, uint64_t client, uint64_t session, uint64_t id, uint32_t n_predict)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_generate(s, new_generate(client, session, id, n_predict), &e), &e);
}

static inline void step(struct scheduler *s)
{
	struct err e = ERR_NULL;

	check_ok(scheduler_step(s, &e), &e);
}

static inline void run(struct scheduler *s)
{
	for (int i = 0; scheduler_is_busy(s); i++) {
		assert_in_range(i, 0, MAX_TOKENS);
		step(s);
	}
}

/* What a prompt of open_prompt must go on with. */
static inline void expect_tokens(uint64_t id, uint32_t n_prompt, uint32_t salt, uint32_t n_expected)
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

static inline void expect_finished(uint64_t id, enum message_reason reason)
{
	assert_non_null(fake.finished[id]);
	assert_int_equal(fake.finished[id]->generate.finished.reason, reason);
	assert_int_equal(fake.finished[id]->generate.finished.generated_tokens, fake.n_tokens[id]);
}

#endif
