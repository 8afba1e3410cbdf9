/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context that is full again and again, against a list of tokens that is cut by hand. The model
 * goes by every token that it has been given for a position, in order, so that one that was not
 * computed again at its new place changes all that follows.
 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/message.h"
#include "workerd/scheduler.h"

enum { N_CTX = 50, N_ROWS = 7, N_VOCAB = 61, N_GENERATED = 150, N_PROMPT = 30 };

static uint32_t kv[N_CTX];
static uint32_t n_reserved, n_computed; /* positions */
static float logits[N_VOCAB];
static bool has_logits;
static uint32_t tokens[N_GENERATED], n_tokens;
static struct message *finished;

static uint32_t choose(const uint32_t *history, uint32_t n)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ (history[i] + i)) * 16777619u;
	return (hash >> 8) % N_VOCAB;
}

static int open_slot(void *userdata, struct err *ret_err, uint32_t *ret_slot)
{
	(void)userdata;
	(void)ret_err;
	*ret_slot = 0;
	return 0;
}

static void truncate_slot(void *userdata, uint32_t slot, uint32_t n)
{
	(void)userdata;
	(void)slot;
	n_reserved = n_reserved < n ? n_reserved : n;
	n_computed = n_computed < n ? n_computed : n;
}

static void close_slot(void *userdata, uint32_t slot)
{
	truncate_slot(userdata, slot, 0);
}

static int reserve(void *userdata, uint32_t slot, uint32_t n, struct err *ret_err)
{
	(void)userdata;
	(void)slot;
	(void)ret_err;
	assert_in_range(n, 1, N_CTX);
	n_reserved = n_reserved > n ? n_reserved : n;
	return 0;
}

static int compute(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	(void)userdata;
	(void)ret_err;
	assert_in_range(n_rows, 1, N_ROWS);
	for (uint32_t i = 0; i < n_rows; i++) {
		assert_int_equal(rows[i].position, n_computed);
		assert_true(n_computed < n_reserved);
		kv[n_computed++] = rows[i].token;
	}
	assert_true(n_want == 0 || (want[0] & ~PLAN_FIRST) == n_rows - 1);
	memset(logits, 0, sizeof(logits));
	logits[choose(kv, n_computed)] = 1;
	has_logits = n_want > 0;
	return 0;
}

static int finish(void *userdata, struct err *ret_err, const float **ret_logits)
{
	(void)userdata;
	(void)ret_err;
	*ret_logits = has_logits ? logits : NULL;
	return 0;
}

static bool get_text(void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	(void)userdata;
	(void)token;
	*ret_bytes = "x";
	*ret_n_bytes = 1;
	return false;
}

static void take_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes, const struct logprob_list *probs)
{
	(void)userdata;
	(void)generate;
	(void)bytes;
	(void)n_bytes;
	(void)probs;
	assert_true(n_tokens < N_GENERATED);
	tokens[n_tokens++] = token;
}

static void take_finished(void *userdata, struct message *generate)
{
	(void)userdata;
	finished = generate;
}

/* Nobody had anything computed before. */
static uint32_t adopt(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *ids, uint32_t n_ids)
{
	(void)userdata;
	(void)slot;
	(void)scope;
	(void)ids;
	(void)n_ids;
	return 0;
}

/* What others may find is what the session has now, shifted or not. */
static void publish(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *ids, uint32_t n_ids)
{
	(void)userdata;
	(void)slot;
	(void)scope;
	(void)ids;
	assert_in_range(n_ids, 1, N_CTX);
	assert_int_equal(n_ids % 4, 0);
}

static const struct scheduler_backend backend = {
	.adopt = adopt,
	.publish = publish,
	.open = open_slot,
	.close = close_slot,
	.reserve = reserve,
	.truncate = truncate_slot,
	.submit = compute,
	.finish = finish,
	.get_text = get_text,
	.token = take_token,
	.finished = take_finished,
};

/* What must have been chosen; the number of shifts. */
static uint32_t check_tokens(uint32_t *history, uint32_t n_keep)
{
	uint32_t n = N_PROMPT, n_shifts = 0;

	for (uint32_t i = 0; i < N_GENERATED; i++) {
		if (n == N_CTX) {
			n = n_keep + (N_CTX - n_keep) / 2;
			memmove(history + n_keep, history + n_keep + N_CTX - n,
				(n - n_keep) * sizeof(*history));
			n_shifts++;
		}
		history[n] = choose(history, n);
		assert_int_equal(tokens[i], history[n]);
		n++;
	}
	return n_shifts;
}

static void run(uint32_t n_keep, uint32_t n_least_shifts)
{
	static const struct scheduler_params params = {.n_sessions = 1,
		.n_ctx = N_CTX,
		.n_rows = N_ROWS,
		.n_page_tokens = 4,
		.n_vocab = N_VOCAB,
		.max_text_bytes = 1};
	struct message *m = message_new(MESSAGE_GENERATE, 1, 0);
	uint32_t history[N_CTX], n_total = 0;
	struct scheduler *s = NULL;
	struct err e = ERR_NULL;

	assert_non_null(m);
	n_tokens = 0;
	finished = NULL;
	for (uint32_t i = 0; i < N_PROMPT; i++)
		history[i] = i * 7 % N_VOCAB;
	assert_int_equal(scheduler_new(&params, &backend, &s), 0);
	assert_int_equal(scheduler_open(s, 1, 1, &e, &m->generate.session), 0);
	assert_int_equal(
		scheduler_append(s, 1, m->generate.session, history, N_PROMPT, &e, &n_total), 0);
	m->generate.n_predict = N_GENERATED;
	m->generate.is_shifting = true;
	m->generate.n_keep = n_keep;
	assert_int_equal(scheduler_generate(s, m, &e), 0);
	while (scheduler_is_busy(s))
		assert_int_equal(scheduler_step(s, &e), 0);
	assert_ptr_equal(finished, m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	assert_int_equal(n_tokens, N_GENERATED);
	assert_true(check_tokens(history, n_keep) >= n_least_shifts);
	message_free(m);
	scheduler_stop(s);
	scheduler_free(s);
}

static void test_nothing_kept(void **state)
{
	(void)state;
	run(0, 5);
}

static void test_start_kept(void **state)
{
	(void)state;
	run(1, 5);
	run(21, 8);
}

/* One token goes for each that comes. */
static void test_almost_all_kept(void **state)
{
	(void)state;
	run(N_CTX - 2, 100);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_nothing_kept),
		CASE(test_start_kept),
		CASE(test_almost_all_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
