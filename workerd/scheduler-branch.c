/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/scheduler-branch.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "workerd/message.h"
#include "workerd/scheduler-internal.h"
#include "workerd/scheduler-step.h"
#include "workerd/session.h"

int scheduler_branch_promise(struct scheduler *s, struct message *generate, struct err *ret_err)
{
	uint32_t n = generate->generate.n_completions;
	uint32_t n_free = s->params.n_sessions - s->counters.n_sessions - s->n_promised;

	if (n > 1 && n - 1 > n_free)
		return err_set(ret_err, EAGAIN,
			"n: %" PRIu32 " completions take %" PRIu32 " more sessions, %" PRIu32
			" of %" PRIu32 " are free",
			n, n - 1, n_free, s->params.n_sessions);
	return message_make_branches(generate);
}

/* Completions that have not begun end as m does, which they would have begun with. */
static void drop(struct scheduler *s, struct message *m)
{
	struct message_generate *g = &m->generate;

	while (g->n_branches) {
		struct message *branch = g->branches[--g->n_branches];
		uint32_t index = branch->generate.finished.index;

		s->n_promised--;
		branch->generate.finished = g->finished;
		branch->generate.finished.index = index;
		branch->generate.finished.seed = branch->generate.sampling.seed;
		if (m->code)
			message_refuse(branch, m->code, m->error);
		s->backend.finished(s->backend.userdata, branch);
	}
}

void scheduler_branch_send(struct scheduler *s, struct message *m)
{
	drop(s, m);
	for (uint32_t i = 0; i < s->params.n_sessions; i++) {
		struct session *other = &s->sessions[i];

		if (other->state != SESSION_GENERATING || other->generate->generate.origin != m)
			continue;
		struct message *branch = other->generate;
		message_swap_outcomes(m, branch);
		other->generate = m;
		m = branch;
		break;
	}
	s->backend.finished(s->backend.userdata, m);
}

/* A session for one more completion of what from has computed; takes m. */
static int begin(struct scheduler *s, const struct session *from, struct message *m, uint32_t i,
	struct err *ret_err)
{
	const struct dry_text text = {.userdata = s->backend.userdata, .get = s->backend.get_text};
	struct session *session = NULL;
	struct err e = ERR_NULL;
	int r = scheduler_open_one(s, from->client, from->scope, &e, &session);

	if (!r)
		r = session_branch(
			session, from, m, s->params.n_vocab, s->params.max_text_bytes, &text, &e);
	if (r) {
		if (session)
			scheduler_close_session(s, session);
		m->generate.finished.reason = MESSAGE_REASON_FAILED;
		message_refuse(m, r, &e);
		s->backend.finished(s->backend.userdata, m);
		return 0;
	}
	r = s->backend.fork(s->backend.userdata, from->slot, from->n_cached, session->slot, &e);
	if (r == -ENOSPC) {
		scheduler_tell_idle(s, &e);
		scheduler_finish_failed(s, session, r, &e);
	} else if (r) {
		*ret_err = e;
		return r;
	} else {
		return scheduler_step_pick(s, session, i, ret_err);
	}
	return 0;
}

int scheduler_branch_start(
	struct scheduler *s, const struct session *session, uint32_t i, struct err *ret_err)
{
	struct message_generate *g = &session->generate->generate;
	int r = 0;

	while (g->n_branches && !r) {
		s->n_promised--;
		r = begin(s, session, g->branches[--g->n_branches], i, ret_err);
	}
	return r;
}
