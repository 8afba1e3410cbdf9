/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/clock.h"
#include "workerd/kv.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/plan.h"
#include "workerd/queue.h"
#include "workerd/scheduler.h"
#include "workerd/stack.h"
#include "workerd/weights.h"

struct engine {
	struct engine_params params;
	struct stack *stack;       /* NULL: parked */
	struct manifest *manifest; /* a reference: of the stack there is, or of the last */
	uint64_t generation;       /* likewise */
	uint64_t epoch;            /* see message.epoch */
	uint64_t newest;           /* generation that weightd has told of */
	uint64_t unfit;            /* newer generation that open sessions cannot move to */
	uint64_t lost;             /* generation not to be computed with */
	struct err lost_why;
	bool is_pressed;
	uint64_t idle_ns; /* since when nobody generates, or parking was tried */
	struct scheduler *scheduler;
	struct message *stop;    /* MESSAGE_STOP until it is sent; the stopping thread's */
	struct message *failure; /* MESSAGE_FAILED until it is sent */
	int code;                /* not 0: failed, and error says why */
	struct err error;
	bool is_cache_due; /* a first generation has made the driver compile everything */
	bool is_cache_saved;
	pthread_t thread;
};

static int engine_kv_open(void *userdata, struct err *ret_err, uint32_t *ret_slot)
{
	const struct engine *e = userdata;

	return kv_open(e->stack->kv, ret_err, ret_slot);
}

static void engine_kv_close(void *userdata, uint32_t slot)
{
	const struct engine *e = userdata;

	kv_close(e->stack->kv, slot);
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

static int engine_plan_step(void *userdata, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err, const float **ret_logits)
{
	const struct engine *e = userdata;

	return plan_step(e->stack->plan, rows, n_rows, want, n_want, ret_err, ret_logits);
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
static void engine_set_failed(struct engine *e, int code, const struct err *why)
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

static void engine_send(struct engine *e, struct message *m)
{
	if (m)
		queue_push(e->params.out, &m->node);
	else
		engine_set_failed(e, -ENOMEM, &ERR_NULL);
}

static void engine_send_token(void *userdata, const struct message *generate, uint32_t token,
	const char *bytes, uint32_t n_bytes)
{
	struct message *m = message_new_for(MESSAGE_TOKEN, generate, n_bytes);

	if (m) {
		char *text = (char *)(m + 1);

		if (n_bytes)
			memcpy(text, bytes, n_bytes);
		m->token = (struct message_token){
			.session = generate->generate.session,
			.id = token,
			.n_bytes = n_bytes,
			.bytes = text,
		};
	}
	engine_send(userdata, m);
}

static void engine_send_finished(void *userdata, struct message *generate)
{
	struct engine *e = userdata;

	if (generate->generate.finished.generated_tokens)
		e->is_cache_due = true;
	engine_send(e, generate);
}

/* ---- the stack goes and comes ---- */

static uint32_t engine_get_max_text_bytes(const struct manifest *m)
{
	uint32_t n_max = 0;

	for (uint32_t i = 0; i < m->n_vocab; i++)
		if (m->tokens[i].bytes.n_bytes > n_max)
			n_max = m->tokens[i].bytes.n_bytes;
	return n_max;
}

static struct scheduler_params engine_get_scheduler_params(const struct stack *s)
{
	const struct kv_params *kv = kv_get_params(s->kv);

	return (struct scheduler_params){
		.n_sessions = kv->n_slots,
		.n_ctx = kv->n_ctx,
		.n_rows = s->n_rows,
		.n_vocab = plan_get_n_vocab(s->plan),
		.max_text_bytes = engine_get_max_text_bytes(s->weights->manifest),
	};
}

static void engine_tell_changed(struct engine *e)
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
		for (uint32_t p = 0; p < MESSAGE_N_PLACEMENTS; p++)
			m->changed.placed_bytes[p] = weights_count_bytes(e->stack->weights, p);
	}
	engine_send(e, m);
}

/* The client is the engine's. What it cannot say weightd will notice by itself. */
static void engine_leave(struct engine *e, uint64_t generation)
{
	struct err error = ERR_NULL;

	if (stack_leave(e->params.site, generation, &error))
		log_warn("weightd was not told that generation %" PRIu64 " is given back: %s",
			generation, error.text);
}

/* Memory, lease and grant go; generations that run are suspended. The client is the engine's. */
static void engine_drop_stack(struct engine *e)
{
	scheduler_detach(e->scheduler);
	e->stack = stack_free(e->stack);
	engine_leave(e, e->generation);
}

/* False: weightd is gone, and without it there would be no way back. */
static bool engine_park(struct engine *e)
{
	struct err error = ERR_NULL;

	e->idle_ns = clock_now_ns();
	if (loan_take(e->params.loan, &error)) {
		log_debug("not parked: %s", error.text);
		return false;
	}
	engine_drop_stack(e);
	loan_give_back(e->params.loan);
	engine_tell_changed(e);
	return true;
}

/* The text thread goes by the new model's tables from here on. */
static void engine_replace_manifest(struct engine *e)
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

/* No answer is of two models: what runs ends, unless the new one is made from the same file. */
static void engine_end_mixed(struct engine *e, const struct manifest *other)
{
	struct err error = ERR_NULL;

	if (!scheduler_is_busy(e->scheduler) || manifest_has_same_content(e->manifest, other))
		return;
	int r = err_set(&error, ESTALE,
		"generation %" PRIu64 " (%.256s) was replaced by generation %" PRIu64
		", which is not known to be the same",
		e->generation, e->lost_why.text, other->header->generation);
	scheduler_fail(e->scheduler, r, &error);
}

/* Takes s on success. */
static int engine_attach(struct engine *e, struct stack *s, struct err *ret_err)
{
	const struct scheduler_params params = engine_get_scheduler_params(s);
	const struct manifest *manifest = s->weights->manifest;
	bool is_other = s->weights->generation != e->generation;
	bool has_other_tokens = is_other && !manifest_has_same_tokens(e->manifest, manifest);

	if (is_other)
		engine_end_mixed(e, manifest);
	e->stack = s;
	int r = scheduler_attach(e->scheduler, &params, has_other_tokens, ret_err);
	if (r) {
		e->stack = NULL;
		return r;
	}
	e->epoch += has_other_tokens;
	if (is_other)
		engine_replace_manifest(e);
	return 0;
}

/* The client is the engine's. */
static int engine_make_stack(struct engine *e, struct err *ret_err)
{
	struct stack *s = NULL;
	uint32_t refused;
	int r = stack_new(e->params.site, ret_err, &refused, &s);

	if (r)
		return r;
	uint64_t generation = s->weights->generation;
	if (generation == e->lost)
		r = err_set(
			ret_err, EIO, "generation %" PRIu64 ": %s", generation, e->lost_why.text);
	else
		r = engine_attach(e, s, ret_err);
	if (r) {
		stack_free(s);
		engine_leave(e, generation);
	}
	return r;
}

/* A refusal leaves it parked. */
static int engine_unpark(struct engine *e, struct err *ret_err)
{
	uint64_t start_ns = clock_now_ns();
	int r = loan_take(e->params.loan, ret_err);

	if (!r) {
		r = engine_make_stack(e, ret_err);
		loan_give_back(e->params.loan);
	}
	/* A device that is lost, or was poisoned by an import that it had taken before. */
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
	engine_tell_changed(e);
	return 0;
}

/* Nothing that the generation has made is used any more; who generates waits for the newest. */
static void engine_recover(struct engine *e)
{
	struct err error = ERR_NULL;

	log_warn("generation %" PRIu64 " is dropped: %s", e->generation, e->lost_why.text);
	int r = loan_take(e->params.loan, &error);
	if (r) {
		scheduler_detach(e->scheduler);
		e->stack = stack_free(e->stack);
	} else {
		engine_drop_stack(e);
		loan_give_back(e->params.loan);
	}
	engine_tell_changed(e);
	if (!scheduler_is_busy(e->scheduler))
		return;
	if (!r)
		r = engine_unpark(e, &error);
	if (r < 0 && !e->code) {
		err_prefix(
			&error, "generation %" PRIu64 ": %.200s", e->generation, e->lost_why.text);
		scheduler_fail(e->scheduler, r, &error);
	}
}

/* Can the sessions that are open go on there? */
static bool engine_fits_newest(struct engine *e)
{
	struct manifest *m = NULL;
	struct err error = ERR_NULL;
	bool fits = false;

	if (scheduler_get_largest_ctx(e->scheduler) == 0)
		return true;
	if (e->unfit == e->newest || loan_take(e->params.loan, &error))
		return false;
	int r = stack_describe(e->params.site, &error, &m);
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

static void engine_move(struct engine *e)
{
	struct err error = ERR_NULL;

	if (!engine_fits_newest(e) || !engine_park(e))
		return;
	if (engine_unpark(e, &error))
		log_warn("generation %" PRIu64 ": %s", e->newest, error.text);
}

/* What is to be done about the stack, between two steps. */
static void engine_attend(struct engine *e)
{
	bool is_pressed = e->is_pressed && !e->params.no_park;

	/* While somebody waits for memory it is said again. */
	e->is_pressed = false;
	if (e->stack && e->generation == e->lost)
		engine_recover(e);
	if (scheduler_is_busy(e->scheduler)) {
		e->idle_ns = clock_now_ns();
		return;
	}
	if (e->stack && e->newest > e->generation)
		engine_move(e);
	if (e->stack &&
		(is_pressed || (e->params.park_after_ns &&
				       clock_now_ns() - e->idle_ns >= e->params.park_after_ns))) {
		if (engine_park(e))
			log_info("parked: generation %" PRIu64 " is given back%s", e->generation,
				is_pressed ? ", others need memory" : "");
	}
}

static void engine_take_notice(struct engine *e, struct message *m)
{
	switch (m->notice.kind) {
	case MESSAGE_NOTICE_PRESSURE: e->is_pressed = true; break;
	case MESSAGE_NOTICE_REPLACED:
		if (m->notice.generation > e->newest)
			e->newest = m->notice.generation;
		break;
	case MESSAGE_NOTICE_LOST:
		e->lost = m->notice.generation;
		err_set(&e->lost_why, EIO, "%s", message_get_error(m));
		break;
	}
	message_free(m);
}

/* ---- requests ---- */

static int engine_generate(struct engine *e, struct message *m, struct err *ret_err)
{
	uint64_t *seed = &m->generate.sampling.seed;
	struct message *started;
	int r;

	if (!e->stack) {
		r = engine_unpark(e, ret_err);
		if (r)
			return r;
	}
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
	int r = 0;

	if (m->epoch && m->epoch != e->epoch)
		return err_set(ret_err, ESTALE,
			"session %" PRIu64 ": the model was replaced by one with other tokens",
			a->session);
	r = scheduler_append(
		e->scheduler, m->client, a->session, a->ids, a->n_ids, ret_err, &a->n_total);

	if (!r)
		a->n_added = (uint32_t)a->n_ids;
	return r;
}

static int engine_status(struct engine *e, struct message *m)
{
	const struct scheduler_counters *counters = scheduler_get_counters(e->scheduler);
	struct vk_memory_counter bytes[VK_MEMORY_N_ROLES];
	struct message_status *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	m->status = s;
	s->n_sessions = counters->n_sessions;
	s->first_token_ns = counters->first_token_ns;
	s->prompt_tokens = counters->prompt_tokens;
	s->generated_tokens = counters->generated_tokens;
	if (e->stack)
		plan_get_counters(e->stack->plan, &s->stream);
	vk_memory_get_counters(e->params.site->device, bytes);
	_Static_assert((int)VK_MEMORY_N_ROLES <= MESSAGE_MAX_ROLES, "a row for every role");
	s->n_roles = VK_MEMORY_N_ROLES;
	for (uint32_t i = 0; i < s->n_roles; i++)
		s->roles[i] = (struct message_role){
			.name = vk_memory_role_name((enum vk_memory_role)i),
			.requested_bytes = bytes[i].requested_bytes,
			.placed_bytes = bytes[i].placed_bytes,
			.spilled_bytes = bytes[i].spilled_bytes,
		};
	return 0;
}

static int engine_bench_memory(struct engine *e, struct message *m, struct err *ret_err)
{
	m->rates = calloc(1, sizeof(*m->rates));
	if (!m->rates)
		return -ENOMEM;
	int r = e->stack ? 0 : engine_unpark(e, ret_err);
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
	case MESSAGE_OPEN: return scheduler_open(s, m->client, ret_err, &m->session);
	case MESSAGE_APPEND: return engine_append(e, m, ret_err);
	case MESSAGE_GENERATE: return engine_generate(e, m, ret_err);
	case MESSAGE_CANCEL: return scheduler_cancel(s, m->client, m->session, ret_err);
	case MESSAGE_TRUNCATE:
		return scheduler_truncate(
			s, m->client, m->truncate.session, m->truncate.n_tokens, ret_err);
	case MESSAGE_CLOSE: return scheduler_close(s, m->client, m->session, ret_err);
	case MESSAGE_STATUS: return engine_status(e, m);
	case MESSAGE_BENCH_MEMORY: return engine_bench_memory(e, m, ret_err);
	default: return err_set(ret_err, ENOSYS, "engine: no such request");
	}
}

static void engine_handle(struct engine *e, struct message *m)
{
	struct err error = ERR_NULL;
	int r = 0;

	if (m->kind == MESSAGE_DISCONNECT)
		scheduler_disconnect(e->scheduler, m->client);
	else
		r = engine_serve(e, m, &error);
	if (r)
		message_refuse(m, r, &error);
	/* An accepted Generate is the session's until it is finished. */
	if (r || m->kind != MESSAGE_GENERATE)
		engine_send(e, m);
}

static void engine_save_cache(struct engine *e)
{
	if (vk_cache_save(e->params.site->device))
		log_debug("the pipeline cache was not saved");
	e->is_cache_saved = true;
}

/* Serves what is in the queue; true: MESSAGE_STOP, which is *ret_stop. */
static bool engine_serve_queue(struct engine *e, struct message **ret_stop)
{
	struct queue_node *node;

	while ((node = queue_take(e->params.in))) {
		struct message *m = message_from_node(node);

		if (m->kind == MESSAGE_STOP) {
			*ret_stop = m;
			return true;
		}
		if (m->kind == MESSAGE_NOTICE)
			engine_take_notice(e, m);
		else
			engine_handle(e, m);
	}
	return false;
}

static void engine_step(struct engine *e)
{
	struct err error = ERR_NULL;
	int r = scheduler_step(e->scheduler, &error);

	if (r)
		engine_set_failed(e, r, &error);
}

/* When it is to park if nothing comes. */
static uint64_t engine_get_deadline(const struct engine *e)
{
	return e->stack && e->params.park_after_ns && !e->code
		       ? e->idle_ns + e->params.park_after_ns
		       : UINT64_MAX;
}

static void *engine_run(void *userdata)
{
	struct engine *e = userdata;
	struct message *stop;

	for (;;) {
		if (e->code && e->failure) {
			scheduler_fail(e->scheduler, e->code, &e->error);
			message_refuse(e->failure, e->code, &e->error);
			engine_send(e, TAKE_PTR(e->failure));
		}
		if (!scheduler_is_busy(e->scheduler)) {
			if (e->is_cache_due && !e->is_cache_saved && !e->code)
				engine_save_cache(e);
			queue_wait_until(e->params.in, engine_get_deadline(e));
		}
		if (engine_serve_queue(e, &stop))
			break;
		if (!e->code)
			engine_attend(e);
		if (!e->code && e->stack)
			engine_step(e);
	}
	scheduler_stop(e->scheduler);
	if (!e->code)
		engine_save_cache(e);
	queue_push(e->params.out, &stop->node);
	return NULL;
}

static int engine_start(struct engine *e, struct err *ret_err)
{
	const struct scheduler_params params = engine_get_scheduler_params(e->stack);
	const struct scheduler_backend backend = {
		.userdata = e,
		.open = engine_kv_open,
		.close = engine_kv_close,
		.reserve = engine_kv_reserve,
		.truncate = engine_kv_truncate,
		.step = engine_plan_step,
		.get_text = engine_get_text,
		.token = engine_send_token,
		.finished = engine_send_finished,
	};
	int r = scheduler_new(&params, &backend, &e->scheduler);

	if (r)
		return r;
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
	e->stack = params->stack;
	e->manifest = manifest_ref(params->stack->weights->manifest);
	e->generation = params->stack->weights->generation;
	e->epoch = 1;
	e->idle_ns = clock_now_ns();
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
