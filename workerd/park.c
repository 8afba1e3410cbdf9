/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/park.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/log.h"
#include "workerd/bencher.h"
#include "workerd/engine-internal.h"
#include "workerd/guests.h"
#include "workerd/kv.h"
#include "workerd/lease.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/plan.h"
#include "workerd/publisher.h"
#include "workerd/queue.h"
#include "workerd/stack.h"
#include "workerd/tuner.h"
#include "workerd/weights.h"

static uint32_t park_get_max_text_bytes(const struct manifest *m)
{
	uint32_t n_max = 0;

	for (uint32_t i = 0; i < m->n_vocab; i++)
		if (m->tokens[i].bytes.n_bytes > n_max)
			n_max = m->tokens[i].bytes.n_bytes;
	return n_max;
}

struct scheduler_params park_get_scheduler_params(const struct stack *s)
{
	const struct kv_params *kv = kv_get_params(s->kv);

	return (struct scheduler_params){
		.n_sessions = kv->n_slots,
		.n_ctx = kv->n_ctx,
		.n_rows = s->chunk.n_rows,
		.n_vocab = plan_get_n_vocab(s->plan),
		.n_page_tokens = KV_PAGE_TOKENS,
		.max_text_bytes = park_get_max_text_bytes(s->weights->manifest),
	};
}

static void park_tell_changed(struct engine *e)
{
	struct message *m = message_new(MESSAGE_CHANGED, 0, 0);

	if (m)
		m->changed.is_parked = !e->stack;
	if (m && e->stack) {
		m->changed.generation = e->generation;
		m->changed.n_ctx = kv_get_params(e->stack->kv)->n_ctx;
		m->changed.n_dispatches = plan_get_n_dispatches(e->stack->plan);
		m->changed.weights_bytes = e->stack->weights->n_bytes;
		m->changed.attach_ns = e->stack->weights->attach_ns;
		m->changed.has_identity =
			weights_get_identity(e->stack->weights, m->changed.identity);
		for (uint32_t p = 0; p < MESSAGE_N_PLACEMENTS; p++)
			m->changed.placed_bytes[p] = weights_count_bytes(e->stack->weights, p);
	}
	engine_send(e, m);
}

void park_tell_lease(struct engine *e)
{
	lease_set(e->params.lease, e->stack->weights, e->stack->n_granted_bytes, &e->stack->report);
}

/* With who uses it. */
static void park_free_stack(struct engine *e)
{
	publisher_suspend(e);
	bencher_stop(e, "the worker lets go of its memory");
	tuner_stop(e, "the worker lets go of its memory");
	scheduler_detach(e->scheduler);
	guests_clear(e);
	lease_clear(e->params.lease);
	e->stack = stack_free(e->stack);
}

/* It may be another one than the last time. */
static int park_take_client(struct engine *e, struct err *ret_err)
{
	return loan_take(e->params.loan, ret_err, &e->site.weightd);
}

/* The client is the engine's. What it cannot say weightd will notice by itself. */
static void park_leave(struct engine *e, uint64_t generation)
{
	struct err error = ERR_NULL;

	if (stack_leave(&e->site, generation, &error))
		log_warn("weightd was not told that generation %" PRIu64 " is given back: %s",
			generation, error.text);
}

/* Memory, lease and grant go; generations that run are suspended. The client is the engine's. */
static void park_drop_stack(struct engine *e)
{
	park_free_stack(e);
	guests_tell_dropped(e);
	park_leave(e, e->generation);
}

/* False: weightd is gone, and without it there would be no way back. */
static bool park_drop(struct engine *e)
{
	struct err error = ERR_NULL;

	e->idle_ns = clock_now_ns();
	if (park_take_client(e, &error)) {
		log_debug("not parked: %s", error.text);
		return false;
	}
	park_drop_stack(e);
	loan_give_back(e->params.loan);
	park_tell_changed(e);
	return true;
}

/* The text thread goes by the new model's tables from here on. */
static void park_replace_manifest(struct engine *e)
{
	struct message *m = message_new(MESSAGE_MANIFEST, 0, 0);

	e->generation = e->stack->weights->generation;
	manifest_free(e->manifest);
	e->manifest = manifest_ref(e->stack->weights->manifest);
	if (!m) {
		engine_set_failed(e, -ENOMEM, &ERR_NULL);
		return;
	}
	m->manifest.manifest = manifest_ref(e->manifest);
	m->manifest.epoch = e->epoch;
	queue_push(e->params.text, &m->node);
}

/* No answer is of two models: what runs ends, unless the new one is known to be the same. */
static void park_end_mixed(struct engine *e, const struct weights *other)
{
	struct err error = ERR_NULL;

	if (!scheduler_is_busy(e->scheduler))
		return;
	if (weights_client_has_same_contents(&e->contents, &other->contents)) {
		log_info("generation %" PRIu64 " holds what generation %" PRIu64
			 " held: what was under way goes on, computed anew",
			other->generation, e->generation);
		return;
	}
	int r = err_set(&error, ESTALE,
		"generation %" PRIu64 " (%.256s) was replaced by generation %" PRIu64
		", which is not known to be the same",
		e->generation, e->lost_why.text, other->generation);
	scheduler_fail(e->scheduler, r, &error);
}

/* Takes s on success. */
static int park_attach(struct engine *e, struct stack *s, struct err *ret_err)
{
	const struct scheduler_params params = park_get_scheduler_params(s);
	const struct manifest *manifest = s->weights->manifest;
	bool is_other = s->weights->generation != e->generation;
	bool has_other_tokens = is_other && !manifest_has_same_tokens(e->manifest, manifest);

	if (is_other)
		park_end_mixed(e, s->weights);
	e->stack = s;
	int r = scheduler_attach(e->scheduler, &params, has_other_tokens, ret_err);
	if (r) {
		e->stack = NULL;
		return r;
	}
	park_tell_lease(e);
	e->contents = s->weights->contents;
	e->epoch += has_other_tokens;
	if (is_other)
		park_replace_manifest(e);
	return 0;
}

/* The client is the engine's. */
static int park_make_stack(struct engine *e, struct err *ret_err)
{
	struct stack *s = NULL;
	struct weights_refusal refusal;
	int r = stack_new(&e->site, ret_err, &refusal, &s);

	if (r)
		return r;
	uint64_t generation = s->weights->generation;
	if (generation == e->lost)
		r = err_set(
			ret_err, EIO, "generation %" PRIu64 ": %s", generation, e->lost_why.text);
	else
		r = park_attach(e, s, ret_err);
	if (r) {
		stack_free(s);
		park_leave(e, generation);
	}
	return r;
}

/* A refusal leaves it parked. */
int park_unpark(struct engine *e, struct err *ret_err)
{
	uint64_t start_ns = clock_now_ns();
	int r = park_take_client(e, ret_err);

	if (!r) {
		r = park_make_stack(e, ret_err);
		loan_give_back(e->params.loan);
	}
	/* A device that is lost, or was poisoned by an import that it had taken before; or what is
	 * not to spill has. */
	if (r > 0) {
		engine_set_failed(e, r, ret_err);
		*ret_err = e->error;
		return e->code;
	}
	if (r) {
		err_prefix(ret_err, "the worker is parked");
		return r;
	}
	e->idle_ns = clock_now_ns();
	log_info("generation %" PRIu64 " is attached again, after %.1f ms", e->generation,
		(double)(e->idle_ns - start_ns) / 1e6);
	park_tell_changed(e);
	return 0;
}

/* Nothing that the generation has made is used any more; who generates waits for the newest. */
static void park_recover(struct engine *e)
{
	struct err error = ERR_NULL;

	log_warn("generation %" PRIu64 " is dropped: %s", e->generation, e->lost_why.text);
	int r = park_take_client(e, &error);
	if (r) {
		park_free_stack(e);
	} else {
		park_drop_stack(e);
		loan_give_back(e->params.loan);
	}
	park_tell_changed(e);
	if (!scheduler_is_busy(e->scheduler))
		return;
	if (!r)
		r = park_unpark(e, &error);
	if (r < 0 && !e->code) {
		err_prefix(
			&error, "generation %" PRIu64 ": %.200s", e->generation, e->lost_why.text);
		scheduler_fail(e->scheduler, r, &error);
	}
}

/* Can the sessions that are open go on there? */
static bool park_fits_newest(struct engine *e)
{
	struct manifest *m = NULL;
	struct err error = ERR_NULL;
	bool fits = false;

	if (scheduler_get_largest_ctx(e->scheduler) == 0)
		return true;
	if (e->unfit == e->newest || park_take_client(e, &error))
		return false;
	int r = stack_describe(&e->site, &error, &m);
	loan_give_back(e->params.loan);
	if (r) {
		log_debug("generation %" PRIu64 ": %s", e->newest, error.text);
		return false;
	}
	fits = m->hparams->n_ctx_train >= scheduler_get_largest_ctx(e->scheduler) &&
	       manifest_has_same_tokens(e->manifest, m);
	if (!fits)
		e->unfit = e->newest;
	manifest_free(m);
	return fits;
}

/* Whatever is told of it comes from a weightd whose numbers may mean others. */
static void park_let_go(struct engine *e)
{
	const struct err why = e->unleased_why;
	uint64_t generation = e->generation;

	if (!park_drop(e))
		return;
	log_info("generation %" PRIu64 " is let go of: %s", generation, why.text);
	e->generation = e->newest = e->unfit = e->lost = e->unleased = 0;
}

static void park_move(struct engine *e)
{
	struct err error = ERR_NULL;

	if (!park_fits_newest(e) || !park_drop(e))
		return;
	if (park_unpark(e, &error))
		log_warn("generation %" PRIu64 ": %s", e->newest, error.text);
}

/* What is to be done about the stack, between two steps. */
void park_attend(struct engine *e)
{
	bool is_pressed = e->is_pressed && !e->params.no_park;

	guests_attend(e, e->is_pressed);
	/* While somebody waits for memory it is said again. */
	e->is_pressed = false;
	if (e->stack && e->generation == e->lost)
		park_recover(e);
	if (scheduler_is_busy(e->scheduler) || bencher_is_due(e) || tuner_is_due(e)) {
		e->idle_ns = clock_now_ns();
		return;
	}
	if (e->stack && e->generation == e->unleased)
		park_let_go(e);
	if (e->stack && e->newest > e->generation)
		park_move(e);
	if (e->stack &&
		(is_pressed || (e->params.park_after_ns &&
				       clock_now_ns() - e->idle_ns >= e->params.park_after_ns))) {
		if (park_drop(e))
			log_info("parked: generation %" PRIu64 " is given back%s", e->generation,
				is_pressed ? ", others need memory" : "");
	}
}

/* It may be known by now what the generation holds. */
static void park_learn_contents(struct engine *e, const struct message_notice *n)
{
	const struct weights_client_contents *from = &n->contents;

	if (n->generation != e->generation || !(from->has_identity || from->has_file))
		return;
	bool is_news = from->has_identity && !e->contents.has_identity;
	/* Each is constant once it is known, whoever has forgotten it. */
	if (from->has_identity)
		memcpy(e->contents.identity, from->identity, sizeof(from->identity));
	if (from->has_file)
		memcpy(e->contents.file, from->file, sizeof(from->file));
	e->contents.has_identity |= from->has_identity;
	e->contents.has_file |= from->has_file;
	if (!e->stack)
		return;
	e->stack->weights->contents = e->contents;
	if (is_news)
		park_tell_changed(e);
}

void park_take_notice(struct engine *e, struct message *m)
{
	park_learn_contents(e, &m->notice);
	switch (m->notice.kind) {
	case MESSAGE_NOTICE_BACK: guests_note_back(e->guests); break; /* park_attend follows */
	case MESSAGE_NOTICE_PREFIXES: guests_note_changed(e->guests); break;
	case MESSAGE_NOTICE_IDENTIFIED: break;
	case MESSAGE_NOTICE_PRESSURE: e->is_pressed = true; break;
	case MESSAGE_NOTICE_REPLACED:
		if (m->notice.generation > e->newest)
			e->newest = m->notice.generation;
		break;
	case MESSAGE_NOTICE_LOST:
		e->lost = m->notice.generation;
		err_set(&e->lost_why, EIO, "%s", message_get_error(m));
		break;
	case MESSAGE_NOTICE_UNLEASED:
		e->unleased = m->notice.generation;
		err_set(&e->unleased_why, EIO, "%s", message_get_error(m));
		break;
	}
	message_free(m);
}

/* When it is to park if nothing comes. */
uint64_t park_get_deadline(const struct engine *e)
{
	return e->stack && e->params.park_after_ns && !e->code
		       ? e->idle_ns + e->params.park_after_ns
		       : UINT64_MAX;
}
