/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/gbnf.h"
#include "workerd/grammar.h"
#include "workerd/message.h"
#include "workerd/session.h"
#include "workerd/vocab-trie.h"

enum { N_CTX = 10, N_VOCAB = 100, MAX_PIECE = 16, SLOT = 3 };

static const uint32_t ids[N_CTX + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static struct message *new_generate(uint32_t n_predict)
{
	struct message *m = message_new(MESSAGE_GENERATE, 1, 0);

	assert_non_null(m);
	m->arrived_ns = 1000;
	m->generate.n_predict = n_predict;
	m->generate.sampling.seed = 7;
	return m;
}

static void open_with(struct session *s, uint64_t n_tokens)
{
	struct err e = ERR_NULL;

	*s = (struct session){0};
	assert_int_equal(session_open(s, 5, 1, SLOT, N_CTX), 0);
	assert_int_equal(session_append(s, ids, n_tokens, N_VOCAB, &e), 0);
}

static void test_append(void **state)
{
	const uint32_t foreign[] = {1, N_VOCAB};
	struct session s;
	struct err e = ERR_NULL;

	(void)state;
	open_with(&s, 8);
	assert_int_equal(s.n_tokens, 8);
	assert_int_equal(session_append(&s, ids, 3, N_VOCAB, &e), -ENOSPC);
	assert_string_equal(e.text, "context: 10 tokens, 8 in the session, 3 more asked");
	assert_int_equal(session_append(&s, ids, UINT64_MAX, N_VOCAB, &e), -ENOSPC);
	assert_int_equal(session_append(&s, foreign, 2, N_VOCAB, &e), -EINVAL);
	assert_string_equal(e.text, "tokens[1]: expected less than 100, found 100");
	assert_int_equal(s.n_tokens, 8);
	assert_int_equal(session_append(&s, NULL, 0, N_VOCAB, &e), 0);
	assert_int_equal(session_append(&s, ids, 2, N_VOCAB, &e), 0);
	assert_int_equal(s.n_tokens, N_CTX);
	assert_int_equal(s.tokens[9], 2);
	session_close(&s);
}

static void test_truncate(void **state)
{
	struct session s;
	struct err e = ERR_NULL;

	(void)state;
	open_with(&s, 6);
	s.n_cached = 5;
	assert_int_equal(session_truncate(&s, 7, &e), -EINVAL);
	assert_string_equal(e.text, "truncate: 6 tokens in the session, 7 to keep");
	assert_int_equal(session_truncate(&s, 6, &e), 0);
	assert_int_equal(s.n_cached, 5);
	assert_int_equal(session_truncate(&s, 2, &e), 0);
	assert_int_equal(s.n_tokens, 2);
	assert_int_equal(s.n_cached, 2);
	session_close(&s);
}

static void test_fork(void **state)
{
	static const char cut[] = {'a', (char)0xe2, (char)0x82};
	struct session from;
	struct session s = {0};
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	open_with(&from, 6);
	from.n_cached = 4;
	assert_int_equal(session_open(&s, 6, 1, SLOT + 1, 5), 0);
	assert_int_equal(session_fork(&s, &from, 7, &e), -EINVAL);
	assert_string_equal(e.text, "fork: 6 tokens in the session, 7 asked");
	assert_int_equal(session_fork(&s, &from, 6, &e), -ENOSPC);
	assert_string_equal(e.text, "context: 5 tokens, 6 asked");
	assert_int_equal(session_fork(&s, &from, 3, &e), 0);
	assert_int_equal(s.n_tokens, 3);
	assert_int_equal(s.n_cached, 3);
	assert_memory_equal(s.tokens, ids, 3 * sizeof(*ids));
	session_close(&s);
	/* A character that was cut at the end goes on in either. */
	struct message *m = new_generate(1);
	assert_int_equal(session_start(&from, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(session_accept(&from, 9, false, cut, sizeof(cut), 0, &n_ready),
		MESSAGE_REASON_LENGTH);
	assert_int_equal(n_ready, 1);
	holdback_drop(&from.text, n_ready);
	message_free(session_finish(&from, MESSAGE_REASON_LENGTH));
	assert_int_equal(session_open(&s, 7, 1, SLOT + 1, N_CTX), 0);
	assert_int_equal(session_fork(&s, &from, 7, &e), 0);
	assert_int_equal(s.n_cached, 4);
	assert_int_equal(s.text.n_bytes, 2);
	assert_memory_equal(s.text.text, cut + 1, 2);
	session_close(&s);
	/* From before it there is nothing to go on with. */
	assert_int_equal(session_open(&s, 8, 1, SLOT + 1, N_CTX), 0);
	assert_int_equal(session_fork(&s, &from, 6, &e), 0);
	assert_int_equal(s.text.n_bytes, 0);
	session_close(&s);
	session_rebase(&from, SLOT, N_CTX, true);
	assert_int_equal(session_open(&s, 9, 1, SLOT + 1, N_CTX), 0);
	assert_int_equal(session_fork(&s, &from, 1, &e), -ESTALE);
	session_close(&s);
	session_close(&from);
}

static void test_start_refusals(void **state)
{
	struct session s;
	struct message *m = new_generate(4);
	struct err e = ERR_NULL;

	(void)state;
	open_with(&s, 0);
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	assert_non_null(strstr(e.text, "empty"));
	assert_int_equal(session_append(&s, ids, 2, N_VOCAB, &e), 0);
	m->generate.sampling.temperature = -1;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	assert_int_equal(s.state, SESSION_IDLE);
	assert_int_equal(m->generate.finished.prompt_tokens, 0);
	m->generate.sampling.temperature = 0;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	/* While it generates, nothing else may touch the tokens. */
	struct message *second = new_generate(1);
	assert_int_equal(session_start(&s, second, N_VOCAB, MAX_PIECE, NULL, &e), -EBUSY);
	assert_string_equal(e.text, "session 5: it is generating");
	assert_int_equal(session_append(&s, ids, 1, N_VOCAB, &e), -EBUSY);
	assert_int_equal(session_truncate(&s, 1, &e), -EBUSY);
	message_free(second);
	assert_ptr_equal(session_finish(&s, MESSAGE_REASON_CANCELLED), m);
	assert_int_equal(m->generate.finished.prompt_ns, 0);
	message_free(m);
	session_close(&s);
}

/* The figures of a generation that its limit ends. */
static void test_length(void **state)
{
	struct session s;
	struct message *m = new_generate(2);
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	open_with(&s, 4);
	s.n_cached = 4;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	/* The last token is computed again, for its logits. */
	assert_int_equal(session_get_n_due(&s), 1);
	assert_int_equal(m->generate.finished.cached_tokens, 3);
	s.n_cached = 4;
	assert_int_equal(session_accept(&s, 50, false, "a\xc3", 2, 1500, &n_ready), 0);
	assert_int_equal(n_ready, 1);
	holdback_drop(&s.text, n_ready);
	assert_int_equal(session_get_n_due(&s), 1);
	s.n_cached = 5;
	assert_int_equal(session_accept(&s, 51, false, "\xa9\xe2", 2, 1900, &n_ready),
		MESSAGE_REASON_LENGTH);
	assert_int_equal(n_ready, 2);
	holdback_drop(&s.text, n_ready);
	session_finish(&s, MESSAGE_REASON_LENGTH);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	assert_int_equal(m->generate.finished.prompt_tokens, 4);
	assert_int_equal(m->generate.finished.generated_tokens, 2);
	assert_int_equal(m->generate.finished.prompt_ns, 500);
	assert_int_equal(m->generate.finished.generate_ns, 400);
	assert_int_equal(m->generate.finished.seed, 7);
	assert_int_equal(s.n_tokens, 6);
	/* The cut character waits for its rest in the next generation. */
	assert_int_equal(s.text.n_bytes, 1);
	assert_int_equal(session_append(&s, ids, 1, N_VOCAB, &e), 0);
	assert_int_equal(s.text.n_bytes, 0);
	message_free(m);
	session_close(&s);
}

static void test_end_token(void **state)
{
	struct session s;
	struct message *m = new_generate(0);
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	open_with(&s, 2);
	m->generate.ignore_eos = true;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(session_accept(&s, 9, true, NULL, 0, 1500, &n_ready), 0);
	m->generate.ignore_eos = false;
	assert_int_equal(session_accept(&s, 9, true, NULL, 0, 1500, &n_ready), MESSAGE_REASON_STOP);
	message_free(session_finish(&s, MESSAGE_REASON_STOP));
	assert_int_equal(s.n_tokens, 4);
	session_close(&s);
}

/* A stop token ends it, whatever ignore_eos says, and its own text is left out. */
static void test_stop_tokens(void **state)
{
	static const uint32_t stops[] = {9, N_VOCAB};
	struct session s;
	struct message *m = new_generate(0);
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	open_with(&s, 2);
	m->generate.ignore_eos = true;
	m->generate.stop_tokens = stops;
	m->generate.n_stop_tokens = 2;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	assert_string_equal(e.text, "stop_tokens[1]: expected an id below 100, found 100");
	m->generate.n_stop_tokens = 1;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(session_accept(&s, 8, true, "ab", 2, 1500, &n_ready), 0);
	assert_int_equal(n_ready, 2);
	assert_int_equal(
		session_accept(&s, 9, false, "cd", 2, 1500, &n_ready), MESSAGE_REASON_STOP);
	assert_int_equal(n_ready, 2);
	assert_memory_equal(s.text.text, "ab", 2);
	message_free(session_finish(&s, MESSAGE_REASON_STOP));
	assert_int_equal(s.n_tokens, 4);
	session_close(&s);
}

static void test_full_context(void **state)
{
	struct session s;
	struct message *m = new_generate(0);
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	open_with(&s, N_CTX - 2);
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(session_accept(&s, 9, false, "x", 1, 1500, &n_ready), 0);
	assert_int_equal(
		session_accept(&s, 9, false, "x", 1, 1500, &n_ready), MESSAGE_REASON_LENGTH);
	message_free(session_finish(&s, MESSAGE_REASON_LENGTH));
	assert_int_equal(s.n_tokens, N_CTX);
	session_close(&s);
}

/* Of a context of N_CTX: what stays, what goes, and what is to be computed again. */
static void test_shift(void **state)
{
	static const struct {
		uint32_t n_keep, n_gone;
	} rows[] = {{0, N_CTX / 2}, {1, N_CTX / 2}, {4, (N_CTX - 4) / 2}, {N_CTX - 2, 1}};
	struct session s;
	struct err e = ERR_NULL;
	uint32_t n_ready;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct message *m = new_generate(0);

		m->generate.is_shifting = true;
		m->generate.n_keep = rows[i].n_keep;
		open_with(&s, N_CTX - 1);
		for (uint32_t t = 0; t < N_CTX - 1; t++)
			s.tokens[t] = t;
		assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
		s.n_cached = N_CTX - 1;
		/* Full, and no end. */
		assert_int_equal(session_accept(&s, N_CTX - 1, false, "x", 1, 1500, &n_ready), 0);
		assert_int_equal(s.n_tokens, N_CTX);
		session_shift(&s);
		assert_int_equal(s.n_tokens, N_CTX - rows[i].n_gone);
		assert_int_equal(s.n_cached, rows[i].n_keep);
		for (uint32_t t = 0; t < s.n_tokens; t++)
			assert_int_equal(s.tokens[t], t < rows[i].n_keep ? t : t + rows[i].n_gone);
		message_free(session_finish(&s, MESSAGE_REASON_LENGTH));
		session_close(&s);
	}
}

/* Full before it began: nothing of what is left was there. */
static void test_shift_at_once(void **state)
{
	struct session s;
	struct message *m = new_generate(0);
	struct err e = ERR_NULL;

	(void)state;
	m->generate.is_shifting = true;
	open_with(&s, N_CTX);
	s.n_cached = N_CTX;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(m->generate.finished.cached_tokens, N_CTX - 1);
	session_shift(&s);
	assert_int_equal(m->generate.finished.cached_tokens, 0);
	assert_int_equal(session_get_n_due(&s), N_CTX / 2);
	message_free(session_finish(&s, MESSAGE_REASON_LENGTH));
	session_close(&s);
}

static void test_shift_refusals(void **state)
{
	struct session s;
	struct message *m = new_generate(0);
	struct err e = ERR_NULL;

	(void)state;
	open_with(&s, 3);
	m->generate.n_keep = 1;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	assert_string_equal(e.text, "n_keep: expected 0 without context_shift, found 1");
	m->generate.is_shifting = true;
	m->generate.n_keep = N_CTX - 1;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	assert_string_equal(e.text, "n_keep: expected at most the context of 10 less 2, found 9");
	m->generate.n_keep = UINT32_MAX;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -EINVAL);
	m->generate.n_keep = N_CTX - 2;
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	/* And back: as if nobody had asked. */
	assert_ptr_equal(session_unstart(&s), m);
	assert_int_equal(m->generate.finished.reason, 0);
	assert_int_equal(s.state, SESSION_IDLE);
	message_free(m);
	session_close(&s);
}

/* Another KV cache, or another model: computed anew, in its slot, as far as tokens mean the same.
 */
static void test_rebase(void **state)
{
	struct session s;
	struct err e = ERR_NULL;
	struct message *m = new_generate(1);

	(void)state;
	open_with(&s, 6);
	s.n_cached = 5;
	session_rebase(&s, 3, N_CTX + 10, false);
	assert_int_equal(s.slot, 3);
	assert_int_equal(s.n_cached, 0);
	assert_int_equal(s.n_tokens, 6);
	assert_int_equal(s.n_ctx, N_CTX); /* it has no room for more */
	assert_int_equal(session_append(&s, ids, 1, N_VOCAB, &e), 0);
	session_rebase(&s, 0, 7, false);
	assert_int_equal(session_append(&s, ids, 1, N_VOCAB, &e), -ENOSPC);
	session_rebase(&s, 0, 6, false);
	assert_int_equal(session_append(&s, ids, 0, N_VOCAB, &e), -ESTALE);
	assert_non_null(strstr(e.text, "begin anew"));
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -ESTALE);
	assert_int_equal(session_truncate(&s, 1, &e), -ESTALE);
	assert_int_equal(session_truncate(&s, 0, &e), 0);
	assert_int_equal(session_append(&s, ids, 2, N_VOCAB, &e), 0);
	session_rebase(&s, 1, 6, true);
	assert_int_equal(session_append(&s, ids, 1, N_VOCAB, &e), -ESTALE);
	/* What is stale stays so, whatever model comes. */
	session_rebase(&s, 1, 6, false);
	assert_int_equal(session_start(&s, m, N_VOCAB, MAX_PIECE, NULL, &e), -ESTALE);
	message_free(m);
	session_close(&s);
}

/* 'a' to 'd' are tokens 1 to 4; token 5 ends a generation where the vocabulary has_end. */
static struct grammar *new_grammar(const char *text, bool has_end)
{
	struct vocab_trie_token tokens[N_VOCAB] = {0};
	struct vocab_trie *trie;
	struct grammar *grammar;
	struct gbnf *g;
	struct err e = ERR_NULL;

	for (uint32_t i = 0; i < 4; i++)
		tokens[1 + i] = (struct vocab_trie_token){
			.bytes = (const uint8_t *)"abcd" + i, .n_bytes = 1, .is_text = true};
	tokens[5].is_end = has_end;
	assert_int_equal(vocab_trie_new(tokens, N_VOCAB, &trie), 0);
	assert_int_equal(gbnf_parse(text, strlen(text), GBNF_MAX_BYTES, &e, &g), 0);
	assert_int_equal(grammar_new(g, trie, &grammar), 0);
	vocab_trie_free(trie);
	return grammar;
}

static struct message *start_with(
	struct session *s, const char *grammar, bool has_end, uint32_t n_predict)
{
	struct message *m = new_generate(n_predict);
	struct err e = ERR_NULL;

	open_with(s, 1);
	m->generate.grammar = new_grammar(grammar, has_end);
	assert_int_equal(session_start(s, m, N_VOCAB, MAX_PIECE, NULL, &e), 0);
	return m;
}

/* Tokens 0 to 5 as bits; no other is ever allowed. */
static uint32_t get_allowed(struct session *s)
{
	struct err e = ERR_NULL;
	const uint32_t *mask = NULL;

	assert_int_equal(session_get_mask(s, &e, &mask), 0);
	for (uint32_t i = 1; i < (N_VOCAB + 31) / 32; i++)
		assert_int_equal(mask[i], 0);
	return mask[0];
}

static uint32_t choose(struct session *s, uint32_t token)
{
	struct err e = ERR_NULL;
	const char *bytes = &"abcd"[(token - 1) % 4];
	uint32_t n_ready;

	assert_int_equal(session_follow(s, token == 5, bytes, token == 5 ? 0 : 1, &e), 0);
	return session_accept(s, token, token == 5, bytes, token == 5 ? 0 : 1, 0, &n_ready);
}

static void finish(struct session *s, uint32_t reason)
{
	message_free(session_finish(s, reason));
	assert_null(s->cursor);
	session_close(s);
}

static void test_grammar(void **state)
{
	const char *const grammar = "root ::= \"a\" [bc] \"d\"?";
	struct session s;
	struct err e = ERR_NULL;
	const uint32_t *mask;

	(void)state;
	start_with(&s, grammar, true, 0);
	assert_int_equal(get_allowed(&s), 1 << 1);
	assert_int_equal(session_follow(&s, false, "b", 1, &e), -EINVAL);
	assert_int_equal(choose(&s, 1), 0);
	assert_int_equal(get_allowed(&s), 1 << 2 | 1 << 3);
	assert_int_equal(choose(&s, 3), 0);
	assert_int_equal(get_allowed(&s), 1 << 4 | 1 << 5);
	assert_int_equal(choose(&s, 4), 0);
	/* The end token alone is left: it is chosen as any other. */
	assert_int_equal(get_allowed(&s), 1 << 5);
	assert_int_equal(choose(&s, 5), MESSAGE_REASON_STOP);
	finish(&s, MESSAGE_REASON_STOP);
	/* At the limit: whole is whole, what could go on was cut. */
	start_with(&s, grammar, true, 3);
	assert_int_equal(choose(&s, 1), 0);
	assert_int_equal(choose(&s, 2), 0);
	assert_int_equal(choose(&s, 4), MESSAGE_REASON_STOP);
	finish(&s, MESSAGE_REASON_STOP);
	start_with(&s, grammar, true, 2);
	assert_int_equal(choose(&s, 1), 0);
	assert_int_equal(choose(&s, 2), MESSAGE_REASON_LENGTH);
	finish(&s, MESSAGE_REASON_LENGTH);
	/* A vocabulary without an end token. */
	start_with(&s, grammar, false, 0);
	assert_int_equal(choose(&s, 1), 0);
	assert_int_equal(choose(&s, 2), 0);
	assert_int_equal(get_allowed(&s), 1 << 4);
	assert_int_equal(choose(&s, 4), MESSAGE_REASON_STOP);
	finish(&s, MESSAGE_REASON_STOP);
	/* Without a grammar there is no mask. */
	open_with(&s, 1);
	assert_int_equal(session_start(&s, new_generate(1), N_VOCAB, MAX_PIECE, NULL, &e), 0);
	assert_int_equal(session_get_mask(&s, &e, &mask), 0);
	assert_null(mask);
	finish(&s, MESSAGE_REASON_CANCELLED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_append),
		CASE(test_truncate),
		CASE(test_fork),
		CASE(test_start_refusals),
		CASE(test_length),
		CASE(test_end_token),
		CASE(test_stop_tokens),
		CASE(test_full_context),
		CASE(test_shift),
		CASE(test_shift_at_once),
		CASE(test_shift_refusals),
		CASE(test_rebase),
		CASE(test_grammar),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
