/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/scheduler-step.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/logprob.h"
#include "workerd/message.h"
#include "workerd/sampler.h"
#include "workerd/scheduler-branch.h"
#include "workerd/scheduler-internal.h"
#include "workerd/session.h"
#include "workerd/turn.h"

/* Rows of each session into f. */
static void scheduler_share(struct scheduler *s, struct scheduler_flight *f)
{
	uint32_t n_shared = s->limits.n_shared_rows;

	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		const struct session *session = &s->sessions[i];

		s->claims[i] = (struct turn_claim){0};
		if (session->state == SESSION_GENERATING)
			s->claims[i] = (struct turn_claim){
				.n_due = session_get_n_due(session),
				.priority = session->generate->generate.priority,
				.n_waited = session->n_waited,
			};
	}
	turn_share(s->claims, s->params.n_sessions, s->params.n_rows,
		n_shared ? n_shared : s->params.n_rows, s->turn, f->n_take);
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		s->sessions[i].n_waited = f->n_take[i] ? 0 : s->sessions[i].n_waited + 1;
	s->turn = (s->turn + 1) % s->params.n_sessions;
}

/* Contexts that are full lose tokens or end their generation. */
static void scheduler_make_room(struct scheduler *s)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];

		if (session->state != SESSION_GENERATING || session->n_tokens < session->n_ctx)
			continue;
		if (session->generate->generate.is_shifting) {
			session_shift(session);
			s->backend.truncate(s->backend.userdata, session->slot, session->n_cached);
		} else {
			scheduler_finish(s, session, MESSAGE_REASON_LENGTH);
		}
	}
}

/* A full context, or pages that are not there, end a generation before the step. */
static int scheduler_prepare(struct scheduler *s, struct scheduler_flight *f, struct err *ret_err)
{
	scheduler_make_room(s);
	scheduler_share(s, f);
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];
		struct err e = ERR_NULL;

		if (!f->n_take[i])
			continue;
		int r = s->backend.reserve(
			s->backend.userdata, session->slot, session->n_cached + f->n_take[i], &e);
		if (r == -ENOSPC) {
			f->n_take[i] = 0;
			scheduler_tell_idle(s, &e);
			scheduler_finish_failed(s, session, r, &e);
		} else if (r) {
			*ret_err = e;
			return r;
		}
	}
	return 0;
}

static void add_row(
	struct scheduler *s, struct scheduler_flight *f, uint32_t slot, uint32_t token, uint32_t at)
{
	s->rows[f->n_rows++] = (struct plan_row){.token = token, .position = at, .slot = slot};
}

/* The last row of session i has logits that are needed. */
static void add_want(struct scheduler *s, struct scheduler_flight *f, uint32_t i)
{
	const struct session *session = &s->sessions[i];
	/* Completions of a prompt, which begin with the same logits, may draw theirs. */
	bool is_first = session_is_greedy(session) && !session->generate->generate.n_branches;

	s->want[f->n_want] = (f->n_rows - 1) | (is_first ? PLAN_FIRST : 0);
	f->want[i] = f->n_want++;
}

/* Rows of the sessions, one after the other, and the indices of those whose logits are needed. */
static void scheduler_fill(struct scheduler *s, struct scheduler_flight *f)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		const struct session *session = &s->sessions[i];

		for (uint32_t k = 0; k < f->n_take[i]; k++) {
			uint32_t at = session->n_cached + k;

			add_row(s, f, session->slot, session->tokens[at], at);
		}
		if (f->n_take[i] && f->n_take[i] == session_get_n_due(session))
			add_want(s, f, i);
	}
}

static int scheduler_submit(
	struct scheduler *s, const struct scheduler_flight *f, struct err *ret_err)
{
	int r = s->backend.submit(
		s->backend.userdata, s->rows, f->n_rows, s->want, f->n_want, ret_err);

	s->n_flight += r == 0;
	return r;
}

/* The flight behind those that are under way, empty. */
static struct scheduler_flight *begin_flight(struct scheduler *s)
{
	struct scheduler_flight *f =
		&s->flights[(s->first_flight + s->n_flight) % SCHEDULER_MAX_FLIGHT];

	f->n_rows = f->n_want = 0;
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		f->n_take[i] = 0;
		f->want[i] = SCHEDULER_NO_ROW;
		f->is_dropped[i] = false;
	}
	return f;
}

/* ---- running ahead ---- */

/*
 * Can all that generates have its next row before the step that is under way is done? How many rows
 * those are; 0: no, or there is nothing to compute.
 */
static uint32_t count_ahead(const struct scheduler *s, const struct scheduler_flight *now)
{
	uint32_t n_rows = 0;

	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		const struct session *session = &s->sessions[i];
		bool is_due = !now->n_take[i];

		if (session->state != SESSION_GENERATING)
			continue;
		enum session_outlook outlook = session_get_outlook(session);
		/* What was thrown away is computed again, with the token that was chosen. */
		if (is_due ? !session_is_decoding(session) || session->n_tokens >= session->n_ctx
			   : outlook == SESSION_UNKNOWN)
			return 0;
		n_rows += is_due || outlook == SESSION_GREEDY;
	}
	return n_rows;
}

/* As scheduler_fill, of a row each; tokens that are not known yet are the device's to put in. */
static int fill_ahead(struct scheduler *s, const struct scheduler_flight *now,
	struct scheduler_flight *f, struct err *ret_err)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		const struct session *session = &s->sessions[i];
		bool is_due = !now->n_take[i];

		if (session->state != SESSION_GENERATING ||
			(!is_due && session_get_outlook(session) != SESSION_GREEDY))
			continue;
		uint32_t at = is_due ? session->n_cached : session->n_tokens;
		int r = s->backend.reserve(s->backend.userdata, session->slot, at + 1, ret_err);
		if (r)
			return r;
		add_row(s, f, session->slot,
			is_due ? session->tokens[at] : PLAN_PICKED | now->want[i], at);
		f->n_take[i] = 1;
		add_want(s, f, i);
	}
	return 0;
}

/*
 * What fill_ahead has reserved is given back. Not where a row is computed again: its page may be
 * one that the step under way writes to.
 */
static void unfill_ahead(
	struct scheduler *s, const struct scheduler_flight *now, const struct scheduler_flight *f)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (f->n_take[i] && now->n_take[i])
			s->backend.truncate(
				s->backend.userdata, s->sessions[i].slot, s->sessions[i].n_tokens);
}

/*
 * The step behind the one that is under way, where the device picks the tokens between them. Where
 * there are no pages for it, it comes later, and then somebody may have to end.
 */
static int scheduler_run_ahead(struct scheduler *s, struct err *ret_err)
{
	const struct scheduler_flight *now = &s->flights[s->first_flight];
	uint32_t n_rows = s->backend.may_run_ahead ? count_ahead(s, now) : 0;
	struct err e = ERR_NULL;

	if (!n_rows || !s->backend.may_run_ahead(s->backend.userdata, n_rows))
		return 0;
	struct scheduler_flight *f = begin_flight(s);
	int r = fill_ahead(s, now, f, &e);
	if (r == -ENOSPC) {
		unfill_ahead(s, now, f);
		return 0;
	}
	if (!r)
		r = scheduler_submit(s, f, &e);
	if (r)
		*ret_err = e;
	return r;
}

void scheduler_step_drop(struct scheduler *s, const struct session *session)
{
	size_t i = (size_t)(session - s->sessions);

	for (uint32_t n = 0; n < s->n_flight; n++) {
		struct scheduler_flight *f =
			&s->flights[(s->first_flight + n) % SCHEDULER_MAX_FLIGHT];

		f->is_dropped[i] |= f->n_take[i] > 0;
		f->n_take[i] = 0;
	}
}

void scheduler_step_forget(struct scheduler *s, const struct session *session)
{
	for (uint32_t n = 0; n < SCHEDULER_MAX_FLIGHT; n++)
		s->flights[n].is_dropped[session - s->sessions] = false;
}

/* A token was picked for wanted row i: has the step that ran ahead been computed with it? */
static void check_ahead(struct scheduler *s, const struct session *session, uint32_t i)
{
	const struct scheduler_flight *f = &s->flights[s->first_flight];

	if (s->n_flight && session->state == SESSION_GENERATING &&
		f->n_take[session - s->sessions] &&
		(!s->best || s->best[(uint64_t)i * ABI_BEST_N].index !=
				     session->tokens[session->n_tokens - 1]))
		scheduler_step_drop(s, session);
}

/* ---- what comes back ---- */

/* Why sampler_pick gave no token. */
static void scheduler_finish_unpicked(struct scheduler *s, struct session *session, int code)
{
	struct err e = ERR_NULL;

	err_set(&e, -code, "position %" PRIu32 ": no %s is a finite number", session->n_tokens - 1,
		code == -ENOENT ? "logit of an allowed token" : "logit");
	scheduler_finish_failed(s, session, code, &e);
}

/* Of the wanted row i; errors are the device's. */
static int scheduler_get_logits(
	struct scheduler *s, uint32_t i, struct err *ret_err, const float **ret_logits)
{
	int r = s->logits ? 0 : s->backend.get_logits(s->backend.userdata, ret_err, &s->logits);

	if (!r)
		*ret_logits = s->logits + (uint64_t)i * s->params.n_vocab;
	return r;
}

int scheduler_step_pick(
	struct scheduler *s, struct session *session, uint32_t i, struct err *ret_err)
{
	const struct message *m = session->generate;
	const char *bytes = NULL;
	uint32_t n_bytes;
	uint32_t n_ready;
	uint32_t token;
	struct logprob_list probs;
	const uint32_t *allowed;
	const float *logits = NULL;
	struct err e = ERR_NULL;
	int r = session_get_mask(session, &e, &allowed);

	if (r) {
		scheduler_finish_failed(s, session, r, &e);
		return 0;
	}
	bool is_short = s->best && !allowed && !m->generate.n_logprobs;
	r = is_short ? sampler_pick_best(session->sampler, s->best + (uint64_t)i * ABI_BEST_N,
			       session->tokens, session->n_tokens, &token)
		     : -EAGAIN;
	if (r == -EAGAIN) {
		r = scheduler_get_logits(s, i, ret_err, &logits);
		if (r)
			return r;
		r = sampler_pick(session->sampler, logits, allowed, session->tokens,
			session->n_tokens, &token);
	}
	if (r) {
		scheduler_finish_unpicked(s, session, r);
		return 0;
	}
	if (m->generate.n_logprobs)
		logprob_find(logits, s->params.n_vocab, token, m->generate.n_logprobs, &probs);
	bool is_end = s->backend.get_text(s->backend.userdata, token, &bytes, &n_bytes);
	r = session_follow(session, is_end, bytes, n_bytes, &e);
	if (r) {
		scheduler_finish_failed(s, session, r, &e);
		return 0;
	}
	uint64_t now_ns = clock_now_ns();
	uint32_t reason = session_accept(session, token, is_end, bytes, n_bytes, now_ns, &n_ready);

	s->counters.generated_tokens++;
	if (!s->counters.first_token_ns)
		s->counters.first_token_ns = now_ns - m->arrived_ns;
	s->backend.token(s->backend.userdata, m, token, session->text.text, n_ready,
		m->generate.n_logprobs ? &probs : NULL);
	holdback_drop(&session->text, n_ready);
	if (reason)
		scheduler_finish(s, session, reason);
	return 0;
}

/* The session's rows are computed: it moves on, and gets a token where it wanted logits. */
static int advance_session(struct scheduler *s, struct session *session, uint32_t n_take,
	uint32_t want, struct err *ret_err)
{
	if (session->n_cached < session->generate->generate.finished.prompt_tokens)
		s->counters.prompt_tokens += n_take;
	session->n_cached += n_take;
	scheduler_publish(s, session);
	if (want == SCHEDULER_NO_ROW)
		return 0;
	if (session->generate->generate.is_prefill) {
		scheduler_finish(s, session, MESSAGE_REASON_STOP);
		return 0;
	}
	int r = scheduler_branch_start(s, session, want, ret_err);
	if (!r)
		r = scheduler_step_pick(s, session, want, ret_err);
	if (!r)
		check_ahead(s, session, want);
	return r;
}

/* The oldest step that is under way is waited for, and the sessions it is of go on. */
static int scheduler_advance(struct scheduler *s, struct err *ret_err)
{
	struct scheduler_flight *f = &s->flights[s->first_flight];

	s->logits = NULL;
	s->n_flight--;
	s->first_flight = (s->first_flight + 1) % SCHEDULER_MAX_FLIGHT;
	int r = s->backend.finish(s->backend.userdata, ret_err, &s->logits);
	if (r)
		return r;
	s->best = s->logits || !f->n_want ? NULL : s->backend.get_best(s->backend.userdata);
	for (uint32_t i = 0; !r && i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];

		if (f->n_take[i])
			r = advance_session(s, session, f->n_take[i], f->want[i], ret_err);
		/* Its cells behind what it has; those of one that goes on are written again. */
		else if (f->is_dropped[i] && session->state == SESSION_IDLE)
			s->backend.truncate(s->backend.userdata, session->slot, session->n_cached);
	}
	return r;
}

int scheduler_step_settle(struct scheduler *s, struct err *ret_err)
{
	int r = 0;

	while (!r && s->n_flight)
		r = scheduler_advance(s, ret_err);
	return r;
}

uint32_t scheduler_step_count(const struct scheduler *s)
{
	return s->n_flight;
}

int scheduler_step(struct scheduler *s, struct err *ret_err)
{
	int r = 0;

	if (!s->n_flight) {
		struct scheduler_flight *f = begin_flight(s);

		r = scheduler_prepare(s, f, ret_err);
		if (r)
			return r;
		scheduler_fill(s, f);
		if (!f->n_rows)
			return 0;
		r = scheduler_submit(s, f, ret_err);
	}
	if (!r)
		r = scheduler_run_ahead(s, ret_err);
	return r ? r : scheduler_advance(s, ret_err);
}

bool scheduler_step_init(struct scheduler *s)
{
	bool is_whole = true;

	for (uint32_t n = 0; n < SCHEDULER_MAX_FLIGHT; n++) {
		struct scheduler_flight *f = &s->flights[n];

		f->n_take = calloc(s->params.n_sessions, sizeof(*f->n_take));
		f->want = calloc(s->params.n_sessions, sizeof(*f->want));
		f->is_dropped = calloc(s->params.n_sessions, sizeof(*f->is_dropped));
		is_whole &= f->n_take && f->want && f->is_dropped;
	}
	return is_whole;
}

void scheduler_step_fini(struct scheduler *s)
{
	for (uint32_t n = 0; n < SCHEDULER_MAX_FLIGHT; n++) {
		free(s->flights[n].n_take);
		free(s->flights[n].want);
		free(s->flights[n].is_dropped);
	}
}
