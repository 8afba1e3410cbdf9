/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/scheduler-internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "workerd/message.h"
#include "workerd/scheduler-branch.h"
#include "workerd/scheduler-step.h"
#include "workerd/session.h"
#include "workerd/turn.h"

int scheduler_new(const struct scheduler_params *params, const struct scheduler_backend *backend,
	struct scheduler **ret_scheduler)
{
	struct scheduler *s;

	if (!params->n_sessions || !params->n_ctx || params->n_rows < params->n_sessions ||
		!params->n_page_tokens)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->params = *params;
	s->backend = *backend;
	s->sessions = calloc(params->n_sessions, sizeof(*s->sessions));
	s->claims = calloc(params->n_sessions, sizeof(*s->claims));
	s->want = calloc(params->n_sessions, sizeof(*s->want));
	s->rows = calloc(params->n_rows, sizeof(*s->rows));
	bool has_flights = scheduler_step_init(s);
	if (!s->sessions || !s->claims || !s->want || !s->rows || !has_flights) {
		scheduler_free(s);
		return -ENOMEM;
	}
	*ret_scheduler = s;
	return 0;
}

struct scheduler *scheduler_free(struct scheduler *s)
{
	if (!s)
		return NULL;
	free(s->sessions);
	free(s->claims);
	free(s->want);
	scheduler_step_fini(s);
	free(s->rows);
	free(s);
	return NULL;
}

static int scheduler_find(struct scheduler *s, uint64_t client, uint64_t id, struct err *ret_err,
	struct session **ret_session)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];

		if (session->state != SESSION_CLOSED && session->id == id &&
			session->client == client && !session->parent) {
			session->used_ns = clock_now_ns();
			*ret_session = session;
			return 0;
		}
	}
	return err_set(ret_err, ENOENT, "session %" PRIu64 ": not one of this connection's%s", id,
		s->limits.ttl_ns ? ", or idle for longer than --session-ttl" : "");
}

static void scheduler_close_slot(struct scheduler *s, uint32_t slot)
{
	if (!s->is_detached)
		s->backend.close(s->backend.userdata, slot);
}

static int scheduler_check_quota(const struct scheduler *s, uint64_t client, struct err *ret_err)
{
	uint32_t n_most = s->limits.n_client_sessions;
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		n += s->sessions[i].state != SESSION_CLOSED && s->sessions[i].client == client &&
		     !s->sessions[i].parent;
	if (!n_most || n < n_most)
		return 0;
	return err_set(ret_err, EDQUOT,
		"sessions: this connection has %" PRIu32 ", as many as one may have", n);
}

int scheduler_open_one(struct scheduler *s, uint64_t client, uint64_t scope, struct err *ret_err,
	struct session **ret_session)
{
	struct session *session = s->sessions;
	uint32_t slot = 0;
	int r = 0;

	if (s->counters.n_sessions + s->n_promised >= s->params.n_sessions)
		r = err_set(ret_err, EAGAIN, "sessions: all %" PRIu32 " are open",
			s->params.n_sessions);
	else if (!s->is_detached)
		r = s->backend.open(s->backend.userdata, ret_err, &slot);
	if (r)
		return r;
	while (session->state != SESSION_CLOSED) {
		session++;
		/* There is one: the backend has no more slots than there are sessions. */
		assert(session < s->sessions + s->params.n_sessions);
	}
	r = session_open(session, s->last_session + 1, client, slot, s->params.n_ctx);
	if (r) {
		scheduler_close_slot(s, slot);
		return r;
	}
	session->scope = scope;
	session->used_ns = clock_now_ns();
	s->last_session++;
	s->counters.n_sessions++;
	*ret_session = session;
	return 0;
}

/* One that the client asks for, and that counts. */
static int scheduler_open_own(struct scheduler *s, uint64_t client, uint64_t scope,
	struct err *ret_err, struct session **ret_session)
{
	int r = scheduler_check_quota(s, client, ret_err);

	return r ? r : scheduler_open_one(s, client, scope, ret_err, ret_session);
}

int scheduler_open(struct scheduler *s, uint64_t client, uint64_t scope, struct err *ret_err,
	uint64_t *ret_session)
{
	struct session *session;
	int r = scheduler_open_own(s, client, scope, ret_err, &session);

	if (!r)
		*ret_session = session->id;
	return r;
}

void scheduler_close_session(struct scheduler *s, struct session *session)
{
	scheduler_step_forget(s, session);
	scheduler_close_slot(s, session->slot);
	session_close(session);
	s->counters.n_sessions--;
}

/* code 0: not failed. */
static void scheduler_finish_as(struct scheduler *s, struct session *session, uint32_t reason,
	int code, const struct err *e)
{
	struct message *m = session_finish(session, reason);
	uint64_t now_ns = clock_now_ns();

	scheduler_step_drop(s, session);

	/* A completion is a use of the session whose prompt it completes. */
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (&s->sessions[i] == session ||
			(session->parent && s->sessions[i].id == session->parent))
			s->sessions[i].used_ns = now_ns;
	if (code)
		message_refuse(m, code, e);
	if (session->parent)
		scheduler_close_session(s, session);
	scheduler_branch_send(s, m);
}

void scheduler_finish(struct scheduler *s, struct session *session, uint32_t reason)
{
	scheduler_finish_as(s, session, reason, 0, NULL);
}

void scheduler_finish_failed(
	struct scheduler *s, struct session *session, int code, const struct err *e)
{
	scheduler_finish_as(s, session, MESSAGE_REASON_FAILED, code, e);
}

/* The generation on a session, with all completions. */
static void scheduler_stop_session(struct scheduler *s, struct session *session)
{
	uint64_t id = session->id;

	if (session->state == SESSION_GENERATING)
		scheduler_finish(s, session, MESSAGE_REASON_CANCELLED);
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state == SESSION_GENERATING && s->sessions[i].parent == id)
			scheduler_finish(s, &s->sessions[i], MESSAGE_REASON_CANCELLED);
}

static void scheduler_end(struct scheduler *s, struct session *session)
{
	scheduler_stop_session(s, session);
	if (session->state != SESSION_CLOSED)
		scheduler_close_session(s, session);
}

int scheduler_close(struct scheduler *s, uint64_t client, uint64_t id, struct err *ret_err)
{
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &session);

	if (!r)
		scheduler_end(s, session);
	return r;
}

void scheduler_tell_idle(const struct scheduler *s, struct err *e)
{
	uint32_t n_sessions = 0;
	uint64_t n_tokens = 0;
	size_t n = strlen(e->text);

	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		if (s->sessions[i].state != SESSION_IDLE || !s->sessions[i].n_cached)
			continue;
		n_sessions++;
		n_tokens += s->sessions[i].n_cached;
	}
	snprintf(e->text + n, sizeof(e->text) - n,
		"; %" PRIu32 " idle sessions have %" PRIu64 " tokens there", n_sessions, n_tokens);
}

int scheduler_fork(struct scheduler *s, uint64_t client, uint64_t id, uint32_t n_tokens,
	struct err *ret_err, uint64_t *ret_session)
{
	struct session *from = NULL;
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &from);

	if (!r)
		r = scheduler_open_own(s, client, from->scope, ret_err, &session);
	if (r)
		return r;
	r = session_fork(session, from, n_tokens ? n_tokens : from->n_tokens, ret_err);
	if (!r && session->n_cached) {
		r = s->backend.fork(
			s->backend.userdata, from->slot, session->n_cached, session->slot, ret_err);
		if (r == -ENOSPC) {
			session->n_cached = 0; /* it has none of those tokens */
			scheduler_tell_idle(s, ret_err);
		}
	}
	if (r) {
		scheduler_end(s, session);
		return r;
	}
	*ret_session = session->id;
	return 0;
}

int scheduler_borrow(struct scheduler *s, uint64_t client, uint64_t id, struct err *ret_err,
	const struct session **ret_session)
{
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &session);

	if (!r)
		r = session_check_idle(session, ret_err);
	if (!r)
		*ret_session = session;
	return r;
}

int scheduler_restore(struct scheduler *s, const struct scheduler_restore_params *params,
	struct err *ret_err, uint64_t *ret_session)
{
	struct session *session = NULL;
	int r = scheduler_open_own(s, params->client, params->scope, ret_err, &session);

	if (r)
		return r;
	r = session_append(session, params->tokens, params->n_tokens, s->params.n_vocab, ret_err);
	if (!r && params->n_cached) {
		r = s->backend.reserve(
			s->backend.userdata, session->slot, params->n_cached, ret_err);
		if (r == -ENOSPC)
			scheduler_tell_idle(s, ret_err);
	}
	if (!r)
		r = params->fill(params->userdata, session->slot, ret_err);
	if (r) {
		scheduler_end(s, session);
		return r;
	}
	session->n_cached = params->n_cached;
	session->is_restored = params->n_cached > 0;
	*ret_session = session->id;
	return 0;
}

int scheduler_append(struct scheduler *s, uint64_t client, uint64_t id, const uint32_t *ids,
	uint64_t n_ids, struct err *ret_err, uint32_t *ret_n_total)
{
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &session);

	if (!r)
		r = session_append(session, ids, n_ids, s->params.n_vocab, ret_err);
	if (!r)
		*ret_n_total = session->n_tokens;
	return r;
}

int scheduler_truncate(
	struct scheduler *s, uint64_t client, uint64_t id, uint32_t n_tokens, struct err *ret_err)
{
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &session);

	if (!r)
		r = session_truncate(session, n_tokens, ret_err);
	if (!r && !s->is_detached)
		s->backend.truncate(s->backend.userdata, session->slot, n_tokens);
	return r;
}

/* What somebody has computed already; the last token is left, for its logits. */
static void scheduler_adopt(struct scheduler *s, struct session *session)
{
	uint32_t n;

	if (s->is_detached || session->state != SESSION_IDLE || session->is_stale ||
		!session->n_tokens)
		return;
	/* A generation that was cancelled in its prompt has more pages than tokens in them. */
	s->backend.truncate(s->backend.userdata, session->slot, session->n_cached);
	n = s->backend.adopt(s->backend.userdata, session->slot, session->scope, session->tokens,
		session->n_tokens - 1);
	if (n > session->n_cached)
		session->n_cached = session->n_published = n;
}

void scheduler_publish(struct scheduler *s, struct session *session)
{
	uint32_t n_whole = session->n_cached - session->n_cached % s->params.n_page_tokens;

	if (n_whole <= session->n_published || session->is_restored)
		return;
	s->backend.publish(
		s->backend.userdata, session->slot, session->scope, session->tokens, n_whole);
	session->n_published = n_whole;
}

/*
 * All pages of what the session has, and of one token more, before anything is computed: a prompt
 * that is admitted is not refused in its middle.
 */
static int scheduler_admit(struct scheduler *s, struct session *session, struct err *ret_err)
{
	if (session->n_tokens == session->n_ctx)
		return 0;
	int r = s->backend.reserve(
		s->backend.userdata, session->slot, session->n_tokens + 1, ret_err);
	if (!r)
		return 0;
	s->backend.truncate(s->backend.userdata, session->slot, session->n_cached);
	if (r == -ENOSPC)
		scheduler_tell_idle(s, ret_err);
	(void)session_unstart(session); /* the caller's again */
	return r;
}

int scheduler_generate(struct scheduler *s, struct message *generate, struct err *ret_err)
{
	const struct dry_text text = {.userdata = s->backend.userdata, .get = s->backend.get_text};
	struct session *session = NULL;
	int r = scheduler_find(s, generate->client, generate->generate.session, ret_err, &session);

	if (!r)
		scheduler_adopt(s, session);
	if (!r)
		r = scheduler_branch_promise(s, generate, ret_err);
	if (!r)
		r = session_start(session, generate, s->params.n_vocab, s->params.max_text_bytes,
			&text, ret_err);
	/* The last token is computed again, into a page that may not be this session's alone. */
	if (!r && !s->is_detached) {
		s->backend.truncate(s->backend.userdata, session->slot, session->n_cached);
		r = scheduler_admit(s, session, ret_err);
	}
	if (!r)
		s->n_promised += generate->generate.n_branches;
	return r;
}

int scheduler_cancel(struct scheduler *s, uint64_t client, uint64_t id, struct err *ret_err)
{
	struct session *session = NULL;
	int r = scheduler_find(s, client, id, ret_err, &session);

	if (!r)
		scheduler_stop_session(s, session);
	return r;
}

void scheduler_set_limits(struct scheduler *s, const struct scheduler_limits *limits)
{
	s->limits = *limits;
}

/* Neither it nor a completion of its prompt generates. */
static bool scheduler_is_idle(const struct scheduler *s, const struct session *session)
{
	if (session->state != SESSION_IDLE)
		return false;
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state == SESSION_GENERATING &&
			s->sessions[i].parent == session->id)
			return false;
	return true;
}

void scheduler_expire(struct scheduler *s, uint64_t now_ns)
{
	for (uint32_t i = 0; s->limits.ttl_ns && i < s->params.n_sessions; i++)
		if (scheduler_is_idle(s, &s->sessions[i]) && now_ns >= s->sessions[i].used_ns &&
			now_ns - s->sessions[i].used_ns >= s->limits.ttl_ns)
			scheduler_end(s, &s->sessions[i]);
}

uint64_t scheduler_get_deadline(const struct scheduler *s)
{
	uint64_t deadline_ns = UINT64_MAX;

	for (uint32_t i = 0; s->limits.ttl_ns && i < s->params.n_sessions; i++)
		if (scheduler_is_idle(s, &s->sessions[i]) &&
			s->sessions[i].used_ns + s->limits.ttl_ns < deadline_ns)
			deadline_ns = s->sessions[i].used_ns + s->limits.ttl_ns;
	return deadline_ns;
}

void scheduler_disconnect(struct scheduler *s, uint64_t client)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state != SESSION_CLOSED && s->sessions[i].client == client)
			scheduler_end(s, &s->sessions[i]);
}

void scheduler_stop(struct scheduler *s)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state != SESSION_CLOSED)
			scheduler_end(s, &s->sessions[i]);
}

void scheduler_detach(struct scheduler *s)
{
	/* What is under way goes with the device's memory; it is computed again. */
	s->n_flight = 0;
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];

		if (session->state == SESSION_CLOSED)
			continue;
		scheduler_close_slot(s, session->slot);
		session->n_cached = session->n_published = 0;
	}
	s->is_detached = true;
}

/* Slots are many enough: none is open. */
static int scheduler_open_slots(struct scheduler *s, bool has_other_tokens, struct err *ret_err)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *session = &s->sessions[i];
		uint32_t slot = 0;

		if (session->state == SESSION_CLOSED)
			continue;
		int r = s->backend.open(s->backend.userdata, ret_err, &slot);
		if (r)
			return r;
		session_rebase(session, slot, s->params.n_ctx, has_other_tokens);
	}
	return 0;
}

int scheduler_attach(struct scheduler *s, const struct scheduler_params *params,
	bool has_other_tokens, struct err *ret_err)
{
	struct plan_row *rows = s->rows;

	assert(s->is_detached && params->n_sessions == s->params.n_sessions);
	if (params->n_rows > s->params.n_rows) {
		rows = reallocarray(s->rows, params->n_rows, sizeof(*rows));
		if (!rows)
			return -ENOMEM;
		s->rows = rows;
	}
	s->params = *params;
	int r = scheduler_open_slots(s, has_other_tokens, ret_err);
	s->is_detached = r != 0;
	return r;
}

uint32_t scheduler_get_largest_ctx(const struct scheduler *s)
{
	uint32_t n_ctx = 0;

	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state != SESSION_CLOSED && s->sessions[i].n_ctx > n_ctx)
			n_ctx = s->sessions[i].n_ctx;
	return n_ctx;
}

void scheduler_fail(struct scheduler *s, int code, const struct err *e)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state == SESSION_GENERATING)
			scheduler_finish_failed(s, &s->sessions[i], code, e);
}

bool scheduler_is_busy(const struct scheduler *s)
{
	for (uint32_t i = 0; i < s->params.n_sessions; i++)
		if (s->sessions[i].state == SESSION_GENERATING)
			return true;
	return false;
}

uint32_t scheduler_list(
	const struct scheduler *s, struct message_session *ret_sessions, uint32_t *ret_n_queued)
{
	uint32_t n = 0;
	uint32_t n_queued = 0;

	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		const struct session *from = &s->sessions[i];

		if (from->state == SESSION_CLOSED)
			continue;
		ret_sessions[n] = (struct message_session){
			.session = from->id,
			.client = from->client,
			.n_tokens = from->n_tokens,
			.n_cached = from->n_cached,
		};
		session_describe(from, &ret_sessions[n]);
		n_queued += ret_sessions[n].state == MESSAGE_SESSION_PROMPT;
		n++;
	}
	*ret_n_queued = n_queued;
	return n;
}

const struct scheduler_counters *scheduler_get_counters(const struct scheduler *s)
{
	return &s->counters;
}
