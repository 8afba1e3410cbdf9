/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SCHEDULER_H
#define WORKERD_SCHEDULER_H

/*
 * The sessions of a worker and which of their tokens the next step computes. Continuous batching:
 * a step takes one row of every session that decodes, and shares what is left of its rows fairly
 * among the prompts that wait. Pure: the device and the vocabulary are behind scheduler_backend.
 *
 * Engine thread. A session is named by its id and the client that opened it; another client's is
 * -ENOENT. Errors of the backend, other than -ENOSPC of reserve, are forwarded unchanged: the
 * device is of no more use then.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/plan.h"

struct err;
struct logprob_list;
struct message;
struct scheduler;

struct scheduler_backend {
	void *userdata;
	/* as kv_open, kv_close, kv_fork, kv_adopt, kv_publish, kv_reserve, kv_truncate */
	int (*open)(void *userdata, struct err *ret_err, uint32_t *ret_slot);
	void (*close)(void *userdata, uint32_t slot);
	int (*fork)(void *userdata, uint32_t from, uint32_t n_tokens, uint32_t slot,
		struct err *ret_err);
	uint32_t (*adopt)(void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens,
		uint32_t n_tokens);
	void (*publish)(void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens,
		uint32_t n_tokens);
	int (*reserve)(void *userdata, uint32_t slot, uint32_t n_tokens, struct err *ret_err);
	void (*truncate)(void *userdata, uint32_t slot, uint32_t n_tokens);
	/* as plan_submit and plan_finish */
	int (*submit)(void *userdata, const struct plan_row *rows, uint32_t n_rows,
		const uint32_t *want, uint32_t n_want, struct err *ret_err);
	/* *ret_logits may stay NULL: then get_best and get_logits are asked */
	int (*finish)(void *userdata, struct err *ret_err, const float **ret_logits);
	/*
	 * May a step of n_rows rows be submitted while another is under way? NULL: never. Slots of
	 * both may be closed meanwhile. Tokens of the second can be PLAN_PICKED.
	 */
	bool (*may_run_ahead)(void *userdata, uint32_t n_rows);
	const struct abi_best *(*get_best)(void *userdata);
	int (*get_logits)(void *userdata, struct err *ret_err, const float **ret_logits);
	/* Text of a token for a client (of a control token 0 bytes); does it end a generation? */
	bool (*get_text)(
		void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes);
	/*
	 * A token was chosen for generate (borrowed, as all are); it is in the session. logprobs is
	 * NULL where none were asked for.
	 */
	void (*token)(void *userdata, const struct message *generate, uint32_t token,
		const char *bytes, uint32_t n_bytes, const struct logprob_list *logprobs);
	/*
	 * Takes the MESSAGE_GENERATE with its figures, or the MESSAGE_FINISHED of a completion
	 * before the last one to end; code and error are set for FAILED.
	 */
	void (*finished)(void *userdata, struct message *generate);
};

struct scheduler_params {
	uint32_t n_sessions;
	uint32_t n_ctx;  /* tokens a session holds */
	uint32_t n_rows; /* of a step, at least n_sessions */
	uint32_t n_vocab;
	uint32_t max_text_bytes; /* of any token */
	uint32_t n_page_tokens;  /* what is published is a multiple of it */
};

/* What does not change with the KV cache. Zero: no limit. */
struct scheduler_limits {
	uint32_t n_shared_rows;     /* of a step in which somebody decodes */
	uint32_t n_client_sessions; /* of one client at once */
	uint64_t ttl_ns;            /* a session that nobody used for so long is closed */
};

/* backend's userdata is borrowed. -ENOMEM, -EINVAL. */
int must_check scheduler_new(const struct scheduler_params *params,
	const struct scheduler_backend *backend, struct scheduler **ret_scheduler);

void scheduler_set_limits(struct scheduler *s, const struct scheduler_limits *limits);

/* Closes sessions that have been idle for too long. */
void scheduler_expire(struct scheduler *s, uint64_t now_ns);

/* When scheduler_expire has something to do, if nothing comes; UINT64_MAX: never. */
uint64_t scheduler_get_deadline(const struct scheduler *s);

/* Without a word to the backend: scheduler_stop before it. Accepts NULL; returns NULL. */
struct scheduler *scheduler_free(struct scheduler *s);

/* scope: workerd/prefix.h. */
/* -EAGAIN when all are open, -EDQUOT when the client has as many as one may. */
int must_check scheduler_open(struct scheduler *s, uint64_t client, uint64_t scope,
	struct err *ret_err, uint64_t *ret_session);

/*
 * Another session of the client and the scope, as session_fork: what is in the KV cache is shared,
 * not computed again. n_tokens 0: all there are now, which a generation may be adding to.
 */
int must_check scheduler_fork(struct scheduler *s, uint64_t client, uint64_t session,
	uint32_t n_tokens, struct err *ret_err, uint64_t *ret_session);

/* The session, idle and not stale, until anything else is called. -ENOENT, -EBUSY, -ESTALE. */
struct session;
int must_check scheduler_borrow(struct scheduler *s, uint64_t client, uint64_t session,
	struct err *ret_err, const struct session **ret_session);

/* A session that begins with tokens whose KV somebody has kept. */
struct scheduler_restore_params {
	uint64_t client;
	uint64_t scope;
	const uint32_t *tokens; /* [n_tokens] */
	uint32_t n_tokens;
	uint32_t n_cached; /* of them, those that fill writes the KV of */
	/* The slot has pages for n_cached tokens. What it returns is forwarded. */
	int (*fill)(void *userdata, uint32_t slot, struct err *ret_err);
	void *userdata;
};

/* What it holds is never found by others. Errors of scheduler_open, scheduler_append and fill. */
int must_check scheduler_restore(struct scheduler *s, const struct scheduler_restore_params *params,
	struct err *ret_err, uint64_t *ret_session);

/* A generation on it is cancelled first. */
int must_check scheduler_close(
	struct scheduler *s, uint64_t client, uint64_t session, struct err *ret_err);

/* As session_append; *ret_n_total: in the session now. */
int must_check scheduler_append(struct scheduler *s, uint64_t client, uint64_t session,
	const uint32_t *ids, uint64_t n_ids, struct err *ret_err, uint32_t *ret_n_total);

int must_check scheduler_truncate(struct scheduler *s, uint64_t client, uint64_t session,
	uint32_t n_tokens, struct err *ret_err);

/*
 * As session_start, of the client that generate names. -ENOSPC with the figures when there are no
 * pages for what is in the session. Further completions begin when the prompt has been computed, in
 * sessions that no request names; -EAGAIN where not so many can be opened.
 */
int must_check scheduler_generate(
	struct scheduler *s, struct message *generate, struct err *ret_err);

/* With all completions. Nothing to cancel is no error. */
int must_check scheduler_cancel(
	struct scheduler *s, uint64_t client, uint64_t session, struct err *ret_err);

/* Closes every session of the client. */
void scheduler_disconnect(struct scheduler *s, uint64_t client);

/* Cancels and closes everything. */
void scheduler_stop(struct scheduler *s);

/*
 * The KV cache is about to go: its slots are closed, and every token is to be computed again. Until
 * scheduler_attach no step may be made; generations are suspended, and all else goes on.
 */
void scheduler_detach(struct scheduler *s);

/*
 * There is a KV cache again, perhaps of another model: params as for scheduler_new, with the same
 * n_sessions. With has_other_tokens, or a context too small for them, sessions become stale
 * (workerd/session.h); their generations must have ended. -ENOMEM: still detached.
 */
int must_check scheduler_attach(struct scheduler *s, const struct scheduler_params *params,
	bool has_other_tokens, struct err *ret_err);

/* The most tokens that a session may hold, of those that are open. 0: none is. */
uint32_t scheduler_get_largest_ctx(const struct scheduler *s);

/* Ends every generation as FAILED with e's text. */
void scheduler_fail(struct scheduler *s, int code, const struct err *e);

/* Is any session generating? */
bool scheduler_is_busy(const struct scheduler *s);

/*
 * Waits for a step for whoever generates; nothing when none does. Another may be under way then:
 * before anything but scheduler_step is called, but for what only asks, scheduler_step_settle is.
 */
int must_check scheduler_step(struct scheduler *s, struct err *ret_err);

/* Waits for what is under way, and no step more. Errors as scheduler_step. */
int must_check scheduler_step_settle(struct scheduler *s, struct err *ret_err);

/* Steps under way. */
uint32_t scheduler_step_count(const struct scheduler *s);

struct scheduler_counters {
	uint32_t n_sessions;       /* open */
	uint64_t first_token_ns;   /* first Generate to its first token; 0 before */
	uint64_t prompt_tokens;    /* computed */
	uint64_t generated_tokens; /* chosen */
};

const struct scheduler_counters *scheduler_get_counters(const struct scheduler *s);

/*
 * What of the open sessions a status says: into ret_sessions, [n_sessions of the params], and their
 * number; of those that generate, *ret_n_queued have their first token still to come.
 */
struct message_session;
uint32_t scheduler_list(
	const struct scheduler *s, struct message_session *ret_sessions, uint32_t *ret_n_queued);

#endif
