/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/session.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/grammar.h"
#include "workerd/message.h"
#include "workerd/sampler.h"

static void session_set_state(struct session *s, enum session_state state)
{
	assert((s->state == SESSION_CLOSED && state == SESSION_IDLE) ||
		(s->state == SESSION_IDLE && state == SESSION_CLOSED) ||
		(s->state == SESSION_IDLE && state == SESSION_GENERATING) ||
		(s->state == SESSION_GENERATING && state == SESSION_IDLE));
	s->state = state;
}

int session_open(struct session *s, uint64_t id, uint64_t client, uint32_t slot, uint32_t n_ctx)
{
	uint32_t *tokens = calloc(n_ctx, sizeof(*tokens));

	if (!tokens)
		return -ENOMEM;
	session_set_state(s, SESSION_IDLE);
	s->id = id;
	s->client = client;
	s->slot = slot;
	s->n_ctx = n_ctx;
	s->tokens = tokens;
	return 0;
}

void session_close(struct session *s)
{
	session_set_state(s, SESSION_CLOSED);
	holdback_fini(&s->text);
	free(s->tokens);
	*s = (struct session){.state = SESSION_CLOSED};
}

void session_rebase(struct session *s, uint32_t slot, uint32_t n_ctx, bool has_other_tokens)
{
	s->slot = slot;
	s->n_cached = s->n_published = 0;
	s->is_restored = false;
	if (n_ctx < s->n_ctx)
		s->n_ctx = n_ctx;
	s->is_stale |= has_other_tokens || s->n_tokens > s->n_ctx;
	assert(!s->is_stale || s->state != SESSION_GENERATING);
}

static int session_check_fresh(const struct session *s, struct err *ret_err)
{
	if (s->is_stale)
		return err_set(ret_err, ESTALE,
			"session %" PRIu64
			": the model was replaced by one with other tokens or a smaller context: "
			"begin anew",
			s->id);
	return 0;
}

int session_check_idle(const struct session *s, struct err *ret_err)
{
	if (s->state != SESSION_IDLE)
		return err_set(ret_err, EBUSY, "session %" PRIu64 ": it is generating", s->id);
	return session_check_fresh(s, ret_err);
}

int session_fork(
	struct session *s, const struct session *from, uint32_t n_tokens, struct err *ret_err)
{
	int r = session_check_fresh(from, ret_err);

	if (r)
		return r;
	if (n_tokens > from->n_tokens)
		return err_set(ret_err, EINVAL,
			"fork: %" PRIu32 " tokens in the session, %" PRIu32 " asked",
			from->n_tokens, n_tokens);
	if (n_tokens > s->n_ctx)
		return err_set(ret_err, ENOSPC, "context: %" PRIu32 " tokens, %" PRIu32 " asked",
			s->n_ctx, n_tokens);
	/* What a generation that runs holds back is its own, once it has a token. */
	bool has_begun = from->state == SESSION_GENERATING &&
			 from->generate->generate.finished.generated_tokens;
	if (n_tokens == from->n_tokens && !has_begun)
		r = holdback_copy(&from->text, &s->text);
	if (r)
		return r;
	memcpy(s->tokens, from->tokens, n_tokens * sizeof(*s->tokens));
	s->n_tokens = n_tokens;
	s->is_restored = from->is_restored;
	s->n_cached = from->n_cached < n_tokens ? from->n_cached : n_tokens;
	return 0;
}

int session_append(struct session *s, const uint32_t *ids, uint64_t n_ids, uint32_t n_vocab,
	struct err *ret_err)
{
	int r = session_check_idle(s, ret_err);

	if (r)
		return r;
	if (n_ids > s->n_ctx - s->n_tokens)
		return err_set(ret_err, ENOSPC,
			"context: %" PRIu32 " tokens, %" PRIu32 " in the session, %" PRIu64
			" more asked",
			s->n_ctx, s->n_tokens, n_ids);
	for (uint64_t i = 0; i < n_ids; i++)
		if (ids[i] >= n_vocab)
			return err_set(ret_err, EINVAL,
				"tokens[%" PRIu64 "]: expected less than %" PRIu32
				", found %" PRIu32,
				i, n_vocab, ids[i]);
	if (!n_ids)
		return 0;
	memcpy(s->tokens + s->n_tokens, ids, n_ids * sizeof(*ids));
	s->n_tokens += (uint32_t)n_ids;
	holdback_clear(&s->text);
	return 0;
}

int session_truncate(struct session *s, uint32_t n_tokens, struct err *ret_err)
{
	int r;

	/* Without its tokens it is as good as a new one. */
	s->is_stale &= n_tokens > 0 || s->state != SESSION_IDLE;
	r = session_check_idle(s, ret_err);
	if (r)
		return r;
	if (n_tokens > s->n_tokens)
		return err_set(ret_err, EINVAL,
			"truncate: %" PRIu32 " tokens in the session, %" PRIu32 " to keep",
			s->n_tokens, n_tokens);
	if (n_tokens < s->n_tokens)
		holdback_clear(&s->text);
	s->n_tokens = n_tokens;
	s->is_restored &= n_tokens > 0;
	if (s->n_cached > n_tokens)
		s->n_cached = n_tokens;
	if (s->n_published > n_tokens)
		s->n_published = n_tokens;
	return 0;
}

static int session_check_stop_tokens(
	const struct message_generate *g, uint32_t n_vocab, struct err *ret_err)
{
	for (uint32_t i = 0; i < g->n_stop_tokens; i++)
		if (g->stop_tokens[i] >= n_vocab)
			return err_set(ret_err, EINVAL,
				"stop_tokens[%" PRIu32 "]: expected an id below %" PRIu32
				", found %" PRIu32,
				i, n_vocab, g->stop_tokens[i]);
	return 0;
}

static int session_check_keep(
	const struct session *s, const struct message_generate *g, struct err *ret_err)
{
	if (g->n_keep && !g->is_shifting)
		return err_set(ret_err, EINVAL,
			"n_keep: expected 0 without context_shift, found "
			"%" PRIu32,
			g->n_keep);
	/* One token goes, and one comes behind what stays. */
	if (g->is_shifting && (s->n_ctx < 2 || g->n_keep > s->n_ctx - 2))
		return err_set(ret_err, EINVAL,
			"n_keep: expected at most the context of %" PRIu32
			" less 2, found %" PRIu32,
			s->n_ctx, g->n_keep);
	return 0;
}

int session_start(struct session *s, struct message *generate, uint32_t n_vocab,
	uint32_t max_piece_bytes, const struct dry_text *text, struct err *ret_err)
{
	struct message_generate *g = &generate->generate;
	struct sampler *sampler;
	int r = session_check_idle(s, ret_err);

	if (r)
		return r;
	if (!s->n_tokens)
		return err_set(ret_err, EINVAL,
			"session %" PRIu64 ": it is empty, there is nothing to go on from", s->id);
	r = session_check_stop_tokens(g, n_vocab, ret_err);
	if (!r)
		r = session_check_keep(s, g, ret_err);
	if (r)
		return r;
	r = holdback_start(&s->text, g->stops, g->n_stops, max_piece_bytes);
	if (r)
		return r;
	r = sampler_new(&g->sampling, n_vocab, s->n_ctx, text, ret_err, &sampler);
	if (r)
		return r;
	if (g->grammar)
		r = grammar_cursor_new(g->grammar, ret_err, &s->cursor);
	if (r) {
		sampler_free(sampler);
		return r;
	}
	session_set_state(s, SESSION_GENERATING);
	s->n_waited = 0;
	if (s->n_cached == s->n_tokens)
		s->n_cached--;
	s->generate = generate;
	s->sampler = sampler;
	g->finished = (struct message_finished){
		.prompt_tokens = s->n_tokens,
		.cached_tokens = s->n_cached,
		.seed = g->sampling.seed,
		.index = g->finished.index,
	};
	return 0;
}

int session_branch(struct session *s, const struct session *from, struct message *generate,
	uint32_t n_vocab, uint32_t max_piece_bytes, const struct dry_text *text,
	struct err *ret_err)
{
	int r = session_fork(s, from, from->n_tokens, ret_err);

	if (!r)
		r = session_start(s, generate, n_vocab, max_piece_bytes, text, ret_err);
	if (r)
		return r;
	/* The logits of the last token are there: they are from's. */
	s->n_cached = s->n_tokens;
	generate->generate.finished.cached_tokens = s->n_tokens;
	s->parent = from->id;
	return 0;
}

static bool session_is_stop_token(const struct message_generate *g, uint32_t token)
{
	for (uint32_t i = 0; i < g->n_stop_tokens; i++)
		if (g->stop_tokens[i] == token)
			return true;
	return false;
}

bool session_is_decoding(const struct session *s)
{
	return s->state == SESSION_GENERATING && s->generate->generate.finished.generated_tokens &&
	       session_get_n_due(s) == 1;
}

bool session_is_greedy(const struct session *s)
{
	const struct message_generate *g = &s->generate->generate;

	return !s->cursor && !g->n_logprobs && sampler_is_greedy(s->sampler);
}

enum session_outlook session_get_outlook(const struct session *s)
{
	/* Without a token so far it may have completions that begin with its logits. */
	if (!session_is_decoding(s))
		return SESSION_UNKNOWN;
	const struct message_generate *g = &s->generate->generate;
	if (g->finished.generated_tokens + 1 == g->n_predict ||
		(s->n_tokens + 1 >= s->n_ctx && !g->is_shifting))
		return SESSION_ENDS;
	return session_is_greedy(s) && s->n_tokens + 1 < s->n_ctx ? SESSION_GREEDY
								  : SESSION_UNKNOWN;
}

int session_get_mask(struct session *s, struct err *ret_err, const uint32_t **ret_mask)
{
	if (s->cursor)
		return grammar_get_mask(s->cursor, ret_err, ret_mask);
	*ret_mask = NULL;
	return 0;
}

int session_follow(
	struct session *s, bool is_end, const char *bytes, uint32_t n_bytes, struct err *ret_err)
{
	return s->cursor && !is_end ? grammar_accept(s->cursor, bytes, n_bytes, ret_err) : 0;
}

/* The text is whole, and there is no end token that would say so, or no room for one. */
static bool session_is_at_end(const struct session *s, bool is_full)
{
	return s->cursor && (is_full || !grammar_has_end(s->cursor)) && grammar_is_final(s->cursor);
}

uint32_t session_accept(struct session *s, uint32_t token, bool is_end, const char *bytes,
	uint32_t n_bytes, uint64_t now_ns, uint32_t *ret_n_ready)
{
	const struct message_generate *g = &s->generate->generate;
	struct message_finished *f = &s->generate->generate.finished;
	uint32_t reason = 0;

	s->tokens[s->n_tokens++] = token;
	if (!f->generated_tokens++)
		s->first_ns = now_ns;
	s->last_ns = now_ns;
	bool is_stop = session_is_stop_token(g, token) || holdback_add(&s->text, bytes, n_bytes);
	bool is_full =
		f->generated_tokens == g->n_predict || (s->n_tokens == s->n_ctx && !g->is_shifting);
	if (is_stop || (is_end && !g->ignore_eos) || session_is_at_end(s, is_full))
		reason = MESSAGE_REASON_STOP;
	else if (is_full)
		reason = MESSAGE_REASON_LENGTH;
	*ret_n_ready = holdback_get_ready(&s->text, reason != 0);
	return reason;
}

void session_shift(struct session *s)
{
	struct message_generate *g = &s->generate->generate;
	uint32_t n_rest = s->n_tokens - g->n_keep;
	uint32_t n_gone = n_rest - n_rest / 2;

	assert(s->state == SESSION_GENERATING && g->is_shifting && s->n_tokens == s->n_ctx);
	memmove(s->tokens + g->n_keep, s->tokens + g->n_keep + n_gone,
		(n_rest - n_gone) * sizeof(*s->tokens));
	s->n_tokens -= n_gone;
	if (s->n_cached > g->n_keep)
		s->n_cached = g->n_keep;
	if (s->n_published > g->n_keep)
		s->n_published = g->n_keep;
	if (!g->finished.generated_tokens)
		g->finished.cached_tokens = s->n_cached;
}

struct message *session_unstart(struct session *s)
{
	struct message *m = session_finish(s, MESSAGE_REASON_CANCELLED);

	m->generate.finished = (struct message_finished){0};
	return m;
}

void session_describe(const struct session *s, struct message_session *ret_session)
{
	uint32_t n;

	ret_session->state = MESSAGE_SESSION_IDLE;
	if (s->state != SESSION_GENERATING)
		return;
	n = s->generate->generate.finished.generated_tokens;
	ret_session->state = n ? MESSAGE_SESSION_DECODING : MESSAGE_SESSION_PROMPT;
	if (n > 1 && s->last_ns > s->first_ns)
		ret_session->tokens_per_second =
			(float)((double)(n - 1) * 1e9 / (double)(s->last_ns - s->first_ns));
}

struct message *session_finish(struct session *s, uint32_t reason)
{
	struct message *m = TAKE_PTR(s->generate);
	struct message_finished *f = &m->generate.finished;

	session_set_state(s, SESSION_IDLE);
	f->reason = reason;
	if (f->generated_tokens) {
		f->prompt_ns = s->first_ns - m->arrived_ns;
		f->generate_ns = s->last_ns - s->first_ns;
	}
	/* Only a character cut by the limit may go on in the next generation. */
	if (reason != MESSAGE_REASON_LENGTH)
		holdback_clear(&s->text);
	s->sampler = sampler_free(s->sampler);
	s->cursor = grammar_cursor_free(s->cursor);
	return m;
}
