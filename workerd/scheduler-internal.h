/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SCHEDULER_INTERNAL_H
#define WORKERD_SCHEDULER_INTERNAL_H

/* The scheduler, for workerd/scheduler, scheduler-branch and scheduler-step alone. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/scheduler.h"

struct err;
struct session;
struct turn_claim;

enum { SCHEDULER_MAX_FLIGHT = 2, SCHEDULER_NO_ROW = UINT32_MAX };

/* A step that the backend has; by the index of a session. */
struct scheduler_flight {
	uint32_t *n_take; /* [n_sessions] rows of the session; 0: none, or none that count */
	uint32_t *want;   /* [n_sessions] its wanted row; SCHEDULER_NO_ROW: it has none */
	bool *is_dropped; /* [n_sessions] it had rows, which are thrown away */
	uint32_t n_rows;
	uint32_t n_want;
};

struct scheduler {
	struct scheduler_params params;
	struct scheduler_backend backend;
	struct scheduler_counters counters;
	struct scheduler_limits limits;
	bool is_detached;
	uint64_t last_session;    /* id given last */
	uint32_t n_promised;      /* sessions that completions which have not begun will open */
	uint32_t turn;            /* who is first when a step's rows do not divide evenly */
	struct session *sessions; /* [n_sessions] */
	/* Steps under way: n_flight from first_flight on, which is the oldest. */
	struct scheduler_flight flights[SCHEDULER_MAX_FLIGHT];
	uint32_t first_flight;
	uint32_t n_flight;
	/* The step that is being made. */
	struct turn_claim *claims; /* [n_sessions] */
	struct plan_row *rows;     /* [n_rows] */
	uint32_t *want;            /* [n_sessions] */
	/* Of the step that was finished last. */
	const struct abi_best *best; /* [n_want][ABI_BEST_N]; NULL: logits are there, or none */
	const float *logits;         /* [n_want][n_vocab]; NULL: nobody has asked for them */
};

/* A new session, which is the client's unless it gets a parent. -EAGAIN, -ENOMEM. */
int must_check scheduler_open_one(struct scheduler *s, uint64_t client, uint64_t scope,
	struct err *ret_err, struct session **ret_session);

/* Of a session that does not generate. */
void scheduler_close_session(struct scheduler *s, struct session *session);

/*
 * Behind the text of a refusal for want of pages: they are somebody's, and this is who could go
 * without ending an answer.
 */
void scheduler_tell_idle(const struct scheduler *s, struct err *e);

/* The generation of a session ends as FAILED. */
void scheduler_finish_failed(
	struct scheduler *s, struct session *session, int code, const struct err *e);

/* What the session has computed may be found by others, as far as it is whole pages. */
void scheduler_publish(struct scheduler *s, struct session *session);

/* The generation of a session ends. */
void scheduler_finish(struct scheduler *s, struct session *session, uint32_t reason);

#endif
