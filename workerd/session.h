/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SESSION_H
#define WORKERD_SESSION_H

/*
 * One session: its tokens, how many of them are in the KV cache, and the generation that runs on
 * it. Pure: the scheduler decides when something is computed. Engine thread.
 *
 *	tokens: [0 .. n_cached) have their KV, [n_cached .. n_tokens) do not; n_tokens <= n_ctx
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/holdback.h"

struct dry_text;
struct err;
struct grammar_cursor;
struct message;
struct sampler;

enum session_state {
	SESSION_CLOSED,
	SESSION_IDLE,
	SESSION_GENERATING,
};

struct session {
	enum session_state state;
	uint64_t id; /* never used again in this process */
	uint64_t client;
	uint64_t scope;   /* whose KV it may find, and who may find its (workerd/prefix.h) */
	uint32_t slot;    /* of kv; while there is one */
	uint64_t used_ns; /* when a client, or a generation, was last done with it */
	bool is_restored; /* its KV came from a file: nobody else is to have it */
	bool is_stale;    /* its tokens mean nothing to the model that is there now */
	uint32_t n_ctx;
	uint32_t n_tokens;
	uint32_t n_cached;
	uint32_t n_published; /* of n_cached, those that others may find */
	uint32_t *tokens;     /* [n_ctx] */
	struct holdback text;
	uint64_t parent; /* the session whose Generate it completes too; 0: a client's own */
	/* of the generation */
	struct message *generate; /* or MESSAGE_FINISHED; the session's until it is finished */
	struct sampler *sampler;
	struct grammar_cursor *cursor; /* NULL: no grammar */
	uint32_t n_waited;             /* steps in a row that it got no row of */
	uint64_t first_ns;             /* when the first and the last token were chosen */
	uint64_t last_ns;
};

/* CLOSED to IDLE, empty. -ENOMEM. */
int must_check session_open(
	struct session *s, uint64_t id, uint64_t client, uint32_t slot, uint32_t n_ctx);

/* IDLE to CLOSED. */
void session_close(struct session *s);

/*
 * s, just opened, begins with the first n_tokens of from, at most what s can hold, and with as many
 * of them in the KV cache: whether those are in s's slot is the caller's business. -EINVAL with the
 * figures, -ENOSPC, -ESTALE, -ENOMEM.
 */
int must_check session_fork(
	struct session *s, const struct session *from, uint32_t n_tokens, struct err *ret_err);

/* Idle and not stale: -EBUSY, -ESTALE. */
int must_check session_check_idle(const struct session *s, struct err *ret_err);

/*
 * The KV cache is another one, or the model: everything is to be computed again, in slot, with room
 * for n_ctx tokens. With has_other_tokens, or more tokens than that, the session becomes stale: all
 * is -ESTALE from then on, but closing it, or truncating it to nothing, which makes it good again.
 * A generation that goes on must be neither.
 */
void session_rebase(struct session *s, uint32_t slot, uint32_t n_ctx, bool has_other_tokens);

/*
 * Adds tokens at the end. -EBUSY while generating, -EINVAL for an id of n_vocab or above, -ENOSPC
 * with the figures when the context cannot hold them; nothing is added then.
 */
int must_check session_append(struct session *s, const uint32_t *ids, uint64_t n_ids,
	uint32_t n_vocab, struct err *ret_err);

/* Keeps the first n_tokens. -EBUSY while generating, -EINVAL with the figures. */
int must_check session_truncate(struct session *s, uint32_t n_tokens, struct err *ret_err);

/*
 * IDLE to GENERATING; takes generate on success alone. The last token is always computed, for its
 * logits. text: see sampler_new. -EBUSY, -EINVAL (an empty session, a stop token, n_keep, a
 * sampling parameter), -ENOMEM; of the grammar, as grammar_cursor_new.
 */
int must_check session_start(struct session *s, struct message *generate, uint32_t n_vocab,
	uint32_t max_piece_bytes, const struct dry_text *text, struct err *ret_err);

/*
 * A new session becomes another completion of what from, whose prompt is computed, is about to
 * generate. Its KV is the caller's to share; no token is due. Takes generate on success alone.
 * Errors as session_start.
 */
int must_check session_branch(struct session *s, const struct session *from,
	struct message *generate, uint32_t n_vocab, uint32_t max_piece_bytes,
	const struct dry_text *text, struct err *ret_err);

/* Tokens to compute before the next one can be chosen: 1 when decoding, more in a prompt. */
static inline uint32_t session_get_n_due(const struct session *s)
{
	return s->n_tokens - s->n_cached;
}

/* What is known of the token that is chosen next, before its logits are. */
enum session_outlook {
	SESSION_UNKNOWN, /* as in a prompt */
	SESSION_ENDS,    /* the generation ends with it at the latest */
	SESSION_GREEDY,  /* it is that of the largest logit, and has room in the context */
};

/* Has a token been chosen, and is it all that is to be computed? */
bool session_is_decoding(const struct session *s);

enum session_outlook session_get_outlook(const struct session *s);

/* Is the next token that of the largest logit (of equal ones the lowest id), in any case? */
bool session_is_greedy(const struct session *s);

/* Which tokens may be chosen: see grammar_get_mask. *ret_mask is NULL where every one may. */
int must_check session_get_mask(struct session *s, struct err *ret_err, const uint32_t **ret_mask);

/* The grammar goes on by the chosen token; before session_accept. Errors as grammar_accept. */
int must_check session_follow(
	struct session *s, bool is_end, const char *bytes, uint32_t n_bytes, struct err *ret_err);

/*
 * Adds the chosen token, whose text is bytes; a stop token's is left out. Returns the reason to
 * end, or 0 to go on; *ret_n_ready bytes of s->text may go out with this token (holdback_drop them
 * then).
 */
uint32_t session_accept(struct session *s, uint32_t token, bool is_end, const char *bytes,
	uint32_t n_bytes, uint64_t now_ns, uint32_t *ret_n_ready);

/*
 * Of a context that is full, of a generation that asked for it: the first n_keep tokens stay, of
 * the rest the older half (rounded up) goes, and what is behind n_keep is to be computed again, at
 * its new positions.
 */
void session_shift(struct session *s);

/* GENERATING to IDLE behind session_start; the message is as it was, and the caller's again. */
struct message *session_unstart(struct session *s);

/* State and speed of an open session. */
struct message_session;
void session_describe(const struct session *s, struct message_session *ret_session);

/* GENERATING to IDLE: the figures into the MESSAGE_GENERATE, which is the caller's again. */
struct message *session_finish(struct session *s, uint32_t reason);

#endif
