/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/engine-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/thread.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/archive.h"
#include "workerd/bencher.h"
#include "workerd/grammar.h"
#include "workerd/guests.h"
#include "workerd/kv.h"
#include "workerd/ledger.h"
#include "workerd/message.h"
#include "workerd/park.h"
#include "workerd/plan.h"
#include "workerd/publisher.h"
#include "workerd/queue.h"
#include "workerd/scheduler.h"
#include "workerd/stack.h"
#include "workerd/tuner.h"
#include "workerd/weights.h"

enum { MAX_SERVED = 64 }; /* requests between two steps */

/* When there is something to do though nothing comes. */
static uint64_t engine_get_deadline(const struct engine *e)
{
	uint64_t park_ns = park_get_deadline(e);
	uint64_t guests_ns = guests_get_deadline(e);
	uint64_t bencher_ns = bencher_get_deadline(e);
	uint64_t expire_ns = e->code ? UINT64_MAX : scheduler_get_deadline(e->scheduler);

	park_ns = park_ns < guests_ns ? park_ns : guests_ns;
	park_ns = park_ns < bencher_ns ? park_ns : bencher_ns;
	return park_ns < expire_ns ? park_ns : expire_ns;
}

static int engine_kv_open(void *userdata, struct err *ret_err, uint32_t *ret_slot)
{
	const struct engine *e = userdata;

	return kv_open(e->stack->kv, ret_err, ret_slot);
}

/* Its pages go to others: not while a step computes with them. */
static void engine_kv_close(void *userdata, uint32_t slot)
{
	const struct engine *e = userdata;
	struct err why = ERR_NULL;

	if (plan_get_n_flight(e->stack->plan) && plan_wait(e->stack->plan, &why))
		log_debug("%s", why.text); /* whoever finishes the step hears it */
	kv_close(e->stack->kv, slot);
}

static int engine_kv_fork(
	void *userdata, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	const struct engine *e = userdata;

	return kv_fork(e->stack->kv, from, n_tokens, slot, ret_err);
}

static int engine_kv_reserve(void *userdata, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	const struct engine *e = userdata;

	return kv_reserve(e->stack->kv, slot, n_tokens, ret_err);
}

static void engine_kv_truncate(void *userdata, uint32_t slot, uint32_t n_tokens)
{
	const struct engine *e = userdata;

	kv_truncate(e->stack->kv, slot, n_tokens);
}

static uint32_t engine_kv_adopt(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	struct engine *e = userdata;

	guests_seek(e, tokens, n_tokens);
	return kv_adopt(e->stack->kv, slot, scope, tokens, n_tokens);
}

static void engine_kv_publish(
	void *userdata, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	const struct engine *e = userdata;

	kv_publish(e->stack->kv, slot, scope, tokens, n_tokens);
}

static void engine_flush(struct engine *e)
{
	while (e->held) {
		struct queue_node *node = e->held;

		e->held = node->next;
		queue_push(e->params.out, node);
	}
}

/* What was chosen in the step before goes out now that the device has the next one. */
static int engine_submit(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	struct engine *e = userdata;

	/* Tokens do not wait for a turn, but for no more than a submission. */
	if (plan_would_wait(e->stack->plan))
		engine_flush(e);
	int r = plan_submit(e->stack->plan, rows, n_rows, want, n_want, ret_err);
	engine_flush(e);
	return r;
}

static int engine_finish(void *userdata, struct err *ret_err, const float **ret_logits)
{
	const struct engine *e = userdata;

	*ret_logits = NULL;
	return plan_finish(e->stack->plan, ret_err);
}

/* Does anybody want something that is done between two steps? */
static bool engine_is_asked(const struct engine *e)
{
	return !queue_is_empty(e->params.in) || publisher_is_due(e) || bencher_is_due(e) ||
	       tuner_is_due(e);
}

/* Whoever has asked for something would wait for one step more. */
static bool engine_may_run_ahead(void *userdata, uint32_t n_rows)
{
	const struct engine *e = userdata;

	return !engine_is_asked(e) && plan_can_run_ahead(e->stack->plan, n_rows);
}

static const struct abi_best *engine_get_best(void *userdata)
{
	return plan_get_best(((const struct engine *)userdata)->stack->plan);
}

static int engine_get_logits(void *userdata, struct err *ret_err, const float **ret_logits)
{
	return plan_get_logits(((const struct engine *)userdata)->stack->plan, ret_err, ret_logits);
}

/* A control token is structure, not text: a client sees none of it. */
static bool engine_get_text(
	void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	const struct manifest *m = ((const struct engine *)userdata)->manifest;

	*ret_n_bytes = 0;
	if (token < m->n_vocab && m->tokens[token].type != MANIFEST_TOKEN_CONTROL) {
		*ret_bytes = (const char *)manifest_get_string(m, m->tokens[token].bytes);
		*ret_n_bytes = m->tokens[token].bytes.n_bytes;
	}
	return manifest_is_eog(m, token);
}

/* The first failure counts; engine_run acts on it. */
void engine_set_failed(struct engine *e, int code, const struct err *why)
{
	if (e->code)
		return;
	e->code = code < 0 ? code : -EIO;
	e->error = *why;
	if (code == VK_DEVICE_LOST)
		err_set(&e->error, EIO, "the device was lost");
	else if (!e->error.text[0])
		err_set(&e->error, -code, "%s", strerror(-code));
}

/* A client of no known user is one of its own. */
uint64_t engine_get_scope(const struct engine *e, const struct message *m)
{
	if (e->params.shares_prefixes)
		return 0;
	return m->scope ? m->scope : 1ull << 63 | m->client;
}

void engine_send(struct engine *e, struct message *m)
{
	if (!m) {
		engine_set_failed(e, -ENOMEM, &ERR_NULL);
		return;
	}
	m->node.next = NULL;
	if (e->held)
		e->last_held->next = &m->node;
	else
		e->held = &m->node;
	e->last_held = &m->node;
	if (!e->is_holding)
		engine_flush(e);
}

/* The texts of the likeliest tokens, borrowed from the model; their bytes in all. */
static uint32_t engine_get_top(
	struct engine *e, const struct logprob_list *probs, struct message_logprob *ret_top)
{
	uint32_t n_bytes = 0;

	for (uint32_t i = 0; i < probs->n_top; i++) {
		ret_top[i] = (struct message_logprob){
			.id = probs->top[i].id, .logprob = probs->top[i].logprob};
		(void)engine_get_text(e, ret_top[i].id, &ret_top[i].bytes, &ret_top[i].n_bytes);
		n_bytes += ret_top[i].n_bytes;
	}
	return n_bytes;
}

/* All bytes are copied behind the message: the model may be another one when it is read. */
static void engine_send_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes, const struct logprob_list *probs)
{
	struct message_logprob top[LOGPROB_MAX_TOP];
	uint32_t n_top = probs ? probs->n_top : 0;
	uint32_t n_top_bytes = probs ? engine_get_top(userdata, probs, top) : 0;
	struct message *m = message_new_for(
		MESSAGE_TOKEN, generate, n_top * (uint32_t)sizeof(*top) + n_top_bytes + n_bytes);

	if (m) {
		struct message_logprob *rows = (struct message_logprob *)(m + 1);
		char *text = (char *)(rows + n_top);

		m->token = (struct message_token){
			.session = generate->generate.session,
			.index = generate->generate.finished.index,
			.id = token,
			.n_bytes = n_bytes,
			.bytes = text,
			.logprob = probs ? probs->own.logprob : 0,
			.n_top = n_top,
			.top = rows,
		};
		if (n_bytes)
			text = mempcpy(text, bytes, n_bytes);
		for (uint32_t i = 0; i < n_top; i++) {
			rows[i] = top[i];
			rows[i].bytes = text;
			if (top[i].n_bytes)
				text = mempcpy(text, top[i].bytes, top[i].n_bytes);
		}
	}
	engine_send(userdata, m);
}

static void engine_send_finished(void *userdata, struct message *generate)
{
	struct engine *e = userdata;

	if (generate->client == PUBLISHER_CLIENT) {
		publisher_take_finished(e, generate);
		return;
	}
	if (generate->generate.finished.generated_tokens)
		e->is_cache_due = true;
	if (generate->generate.grammar) {
		const struct grammar_counters *c = grammar_get_counters(generate->generate.grammar);

		log_debug("grammar: of its masks so far %" PRIu64 " were kept, %" PRIu64 " made",
			c->found, c->made);
	}
	engine_send(e, generate);
}

static int engine_generate(struct engine *e, struct message *m, struct err *ret_err)
{
	uint64_t *seed = &m->generate.sampling.seed;
	struct message *started;
	int r;

	if (!e->stack) {
		r = park_unpark(e, ret_err);
		if (r)
			return r;
	}
	/* The grammar's masks are of other tokens. */
	if (m->epoch && m->epoch != e->epoch)
		return err_set(ret_err, ESTALE,
			"generate: the model was replaced by one with other tokens");
	if (!m->generate.has_seed && getrandom(seed, sizeof(*seed), 0) != sizeof(*seed))
		return err_set(ret_err, EIO, "seed: the system gave no random number");
	started = message_new_for(MESSAGE_STARTED, m, 0);
	if (!started)
		return -ENOMEM;
	r = scheduler_generate(e->scheduler, m, ret_err);
	if (r) {
		message_free(started);
		return r;
	}
	engine_send(e, started);
	return 0;
}

static int engine_append(struct engine *e, struct message *m, struct err *ret_err)
{
	struct message_append *a = &m->append;
	uint32_t n_skipped = 0;
	int r = 0;

	if (m->epoch && m->epoch != e->epoch)
		return err_set(ret_err, ESTALE,
			"session %" PRIu64 ": the model was replaced by one with other tokens",
			a->session);
	if (a->begins_with_bos) {
		r = scheduler_append(
			e->scheduler, m->client, a->session, NULL, 0, ret_err, &a->n_total);
		n_skipped = a->n_total > 0;
	}
	if (!r)
		r = scheduler_append(e->scheduler, m->client, a->session, a->ids + n_skipped,
			a->n_ids - n_skipped, ret_err, &a->n_total);
	if (!r)
		a->n_added = (uint32_t)a->n_ids - n_skipped;
	return r;
}

static int engine_status(struct engine *e, struct message *m)
{
	const struct scheduler_counters *counters = scheduler_get_counters(e->scheduler);
	struct message_status *s = calloc(1, sizeof(*s));
	struct kv_counters pages = {0};

	if (!s)
		return -ENOMEM;
	m->status = s;
	s->n_sessions = counters->n_sessions;
	s->sessions = calloc(counters->n_sessions + 1, sizeof(*s->sessions));
	if (!s->sessions)
		return -ENOMEM;
	s->n_listed = scheduler_list(e->scheduler, s->sessions, &s->n_queued);
	s->first_token_ns = counters->first_token_ns;
	s->prompt_tokens = counters->prompt_tokens;
	s->generated_tokens = counters->generated_tokens;
	ledger_take(e->site.device, &s->memory);
	if (e->stack) {
		plan_get_counters(e->stack->plan, &s->stream);
		kv_get_counters(e->stack->kv, &pages);
		s->memory.chunk = e->stack->chunk;
	}
	s->kv_pages = pages.n_total;
	s->kv_used_pages = pages.n_used;
	s->kv_shared_pages = pages.n_shared;
	s->kv_cached_pages = pages.n_cached;
	guests_count(e->guests, &s->n_prefixes, &s->prefix_bytes);
	return 0;
}

static int engine_bench_memory(struct engine *e, struct message *m, struct err *ret_err)
{
	m->rates = calloc(1, sizeof(*m->rates));
	if (!m->rates)
		return -ENOMEM;
	int r = e->stack ? 0 : park_unpark(e, ret_err);
	if (r)
		return r;
	r = plan_bench_memory(e->stack->plan, ret_err, m->rates->rates, &m->rates->n_rates);
	if (r > 0) {
		engine_set_failed(e, r, ret_err);
		*ret_err = e->error;
		return e->code;
	}
	return r;
}

static int engine_serve(struct engine *e, struct message *m, struct err *ret_err)
{
	struct scheduler *s = e->scheduler;

	if (e->code) {
		*ret_err = e->error;
		return e->code;
	}
	switch (m->kind) {
	case MESSAGE_OPEN:
		return scheduler_open(s, m->client, engine_get_scope(e, m), ret_err, &m->session);
	case MESSAGE_APPEND: return engine_append(e, m, ret_err);
	case MESSAGE_GENERATE: return engine_generate(e, m, ret_err);
	case MESSAGE_CANCEL: return scheduler_cancel(s, m->client, m->session, ret_err);
	case MESSAGE_TRUNCATE:
		return scheduler_truncate(
			s, m->client, m->truncate.session, m->truncate.n_tokens, ret_err);
	case MESSAGE_CLOSE: return scheduler_close(s, m->client, m->session, ret_err);
	case MESSAGE_SAVE: return archive_save(e, m, ret_err);
	case MESSAGE_RESTORE: return archive_restore(e, m, ret_err);
	case MESSAGE_FORK:
		return scheduler_fork(
			s, m->client, m->fork.session, m->fork.n_tokens, ret_err, &m->fork.session);
	case MESSAGE_STATUS: return engine_status(e, m);
	case MESSAGE_BENCH_MEMORY: return engine_bench_memory(e, m, ret_err);
	case MESSAGE_BENCH: return bencher_begin(e, m, ret_err);
	case MESSAGE_BENCH_RUN: return bencher_run(e, m, ret_err);
	case MESSAGE_BENCH_END: bencher_end(e, m->client); return 0;
	case MESSAGE_TUNE: return tuner_begin(e, m, ret_err);
	default: return err_set(ret_err, ENOSYS, "engine: no such request");
	}
}

static void engine_handle(struct engine *e, struct message *m)
{
	struct err error = ERR_NULL;
	bool is_answered = m->kind != MESSAGE_GENERATE && m->kind != MESSAGE_BENCH &&
			   m->kind != MESSAGE_BENCH_RUN && m->kind != MESSAGE_TUNE;
	int r = 0;

	if (m->kind == MESSAGE_DISCONNECT) {
		bencher_end(e, m->client);
		tuner_end(e, m->client);
		scheduler_disconnect(e->scheduler, m->client);
	} else if (m->kind == MESSAGE_PUBLISH && !e->code) {
		r = publisher_begin(e, m, &error, &is_answered);
	} else {
		r = engine_serve(e, m, &error);
	}
	if (r > 0) { /* VK_DEVICE_LOST, of a request that takes pages */
		engine_set_failed(e, r, &error);
		error = e->error;
		r = e->code;
	}
	if (r)
		message_refuse(m, r, &error);
	/* An accepted Generate is the session's until it is finished; likewise a prefix, a bench.
	 */
	if (r || is_answered)
		engine_send(e, m);
}

static void engine_save_cache(struct engine *e)
{
	if (vk_cache_save(e->site.device))
		log_debug("the pipeline cache was not saved");
	e->is_cache_saved = true;
}

/* Of these one can take longer than a step. */
static bool engine_is_slow(const struct message *m)
{
	return m->kind == MESSAGE_SAVE || m->kind == MESSAGE_RESTORE ||
	       m->kind == MESSAGE_BENCH_MEMORY;
}

/* Nothing of the scheduler is under way, and all that it has said is out. */
static void engine_settle(struct engine *e)
{
	struct err error = ERR_NULL;
	int r = e->code || !e->stack ? 0 : scheduler_step_settle(e->scheduler, &error);

	if (r)
		engine_set_failed(e, r, &error);
	engine_flush(e);
}

/*
 * Serves what is in the queue, up to a bound: clients that ask as fast as they are answered would
 * keep it from ever being empty, and others from their tokens. true: MESSAGE_STOP, which is
 * *ret_stop.
 */
static bool engine_serve_queue(struct engine *e, struct message **ret_stop)
{
	struct queue_node *node;
	bool is_slow = false;

	for (int n = 0; n < MAX_SERVED && !is_slow && (node = queue_take(e->params.in)); n++) {
		struct message *m = message_from_node(node);

		engine_settle(e);
		if (!e->code)
			bencher_settle(e);
		if (m->kind == MESSAGE_STOP) {
			*ret_stop = m;
			return true;
		}
		is_slow = engine_is_slow(m);
		if (is_slow && e->stack)
			plan_rest(e->stack->plan);
		if (m->kind == MESSAGE_NOTICE)
			park_take_notice(e, m);
		else
			engine_handle(e, m);
	}
	return false;
}

static void engine_step(struct engine *e)
{
	struct err error = ERR_NULL;

	const struct queue_node *held = e->held;
	e->is_holding = true;
	int r = scheduler_step(e->scheduler, &error);
	e->is_holding = false;
	/* Else there is a step to be submitted first; unless there was none to be made just now. */
	if (r || scheduler_step_count(e->scheduler) || !scheduler_is_busy(e->scheduler) ||
		(held && e->held == held))
		engine_flush(e);
	if (!r)
		r = stack_check_spills(e->stack, &e->site, &error);
	if (r)
		engine_set_failed(e, r, &error);
}

static void *engine_run(void *userdata)
{
	struct engine *e = userdata;
	struct message *stop;

	thread_ask_short_slice();
	for (;;) {
		if (e->code && e->failure) {
			scheduler_fail(e->scheduler, e->code, &e->error);
			message_refuse(e->failure, e->code, &e->error);
			engine_send(e, TAKE_PTR(e->failure));
		}
		if (!scheduler_is_busy(e->scheduler)) {
			engine_settle(e); /* a step that nobody waits for any more */
			if (e->stack && !bencher_is_due(e))
				plan_rest(e->stack->plan);
			if (e->is_cache_due && !e->is_cache_saved && !e->code)
				engine_save_cache(e);
			/* What waited for the last generation; nobody may ask for anything now. */
			if (!e->code)
				park_attend(e);
			if (e->code && e->failure)
				continue;
			if ((!publisher_is_due(e) && !bencher_is_due(e) && !tuner_is_due(e)) ||
				e->code)
				queue_wait_until(e->params.in, engine_get_deadline(e));
		}
		if (engine_serve_queue(e, &stop))
			break;
		if (engine_is_asked(e) || (scheduler_step_count(e->scheduler) &&
						  clock_now_ns() >= engine_get_deadline(e)))
			engine_settle(e);
		/* What takes long and is no step. */
		if (e->stack && (publisher_is_due(e) || tuner_is_due(e)))
			plan_rest(e->stack->plan);
		if (!e->code)
			publisher_attend(e);
		if (!e->code)
			scheduler_expire(e->scheduler, clock_now_ns());
		if (!e->code)
			park_attend(e);
		/* Asked once: it may have become due since. */
		bool is_bench_due = bencher_is_due(e);
		if (is_bench_due)
			engine_settle(e);
		if (is_bench_due && !e->code)
			bencher_attend(e);
		if (!e->code)
			tuner_attend(e);
		if (!e->code && e->stack)
			engine_step(e);
	}
	publisher_stop(e);
	bencher_stop(e, "workerd is stopping");
	tuner_stop(e, "workerd is stopping");
	scheduler_stop(e->scheduler);
	if (e->stack)
		guests_clear(e);
	if (!e->code)
		engine_save_cache(e);
	queue_push(e->params.out, &stop->node);
	return NULL;
}

static int engine_start(struct engine *e, struct err *ret_err)
{
	const struct scheduler_params params = park_get_scheduler_params(e->stack);
	const struct scheduler_backend backend = {
		.userdata = e,
		.open = engine_kv_open,
		.close = engine_kv_close,
		.fork = engine_kv_fork,
		.adopt = engine_kv_adopt,
		.publish = engine_kv_publish,
		.reserve = engine_kv_reserve,
		.truncate = engine_kv_truncate,
		.submit = engine_submit,
		.finish = engine_finish,
		.may_run_ahead = engine_may_run_ahead,
		.get_best = engine_get_best,
		.get_logits = engine_get_logits,
		.get_text = engine_get_text,
		.token = engine_send_token,
		.finished = engine_send_finished,
	};
	int r = scheduler_new(&params, &backend, &e->scheduler);

	if (!r)
		r = guests_new(&e->guests);
	if (r)
		return r;
	if (e->params.limits)
		scheduler_set_limits(e->scheduler, e->params.limits);
	e->params.limits = NULL; /* the caller's */
	e->stop = message_new(MESSAGE_STOP, 0, 0);
	e->failure = message_new(MESSAGE_FAILED, 0, 0);
	if (!e->stop || !e->failure)
		return -ENOMEM;
	r = -pthread_create(&e->thread, NULL, engine_run, e);
	if (r)
		err_set(ret_err, -r, "cannot start the engine thread: %s", strerror(-r));
	return r;
}

static struct engine *engine_destroy(struct engine *e)
{
	message_free(e->stop);
	message_free(e->failure);
	stack_free(e->stack);
	manifest_free(e->manifest);
	scheduler_free(e->scheduler);
	guests_free(e->guests);
	free(e);
	return NULL;
}

int engine_new(const struct engine_params *params, struct err *ret_err, struct engine **ret_engine)
{
	struct engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return -ENOMEM;
	e->params = *params;
	e->site = *params->site;
	e->stack = params->stack;
	e->manifest = manifest_ref(params->stack->weights->manifest);
	e->generation = params->stack->weights->generation;
	e->contents = params->stack->weights->contents;
	e->epoch = 1;
	e->idle_ns = clock_now_ns();
	park_tell_lease(e);
	r = engine_start(e, ret_err);
	if (r) {
		e->stack = NULL; /* the caller's still */
		engine_destroy(e);
		return r;
	}
	*ret_engine = e;
	return 0;
}

void engine_stop(struct engine *e)
{
	if (e->stop)
		queue_push(e->params.in, &TAKE_PTR(e->stop)->node);
}

struct engine *engine_free(struct engine *e)
{
	if (!e)
		return NULL;
	engine_stop(e);
	pthread_join(e->thread, NULL);
	return engine_destroy(e);
}
