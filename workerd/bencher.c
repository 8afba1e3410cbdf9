/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/bencher.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "workerd/engine-internal.h"
#include "workerd/kv.h"
#include "workerd/message.h"
#include "workerd/park.h"
#include "workerd/plan.h"
#include "workerd/publisher.h"
#include "workerd/queue.h"
#include "workerd/scheduler.h"
#include "workerd/tuner.h"

enum {
	WARM_STEPS = 2, /* of generation: the second finds everything made */
	/*
	 * A GPU that had nothing to do runs at a fraction of its clock, and takes a while to rise.
	 * Behind the first pass: where kernels are compiled in that, the device waits.
	 */
	WARM_MS = 500,
};

enum state {
	STATE_READY, /* for a run */
	STATE_DEPTH, /* the tokens before a run */
	STATE_WAIT,  /* until a run's time */
	STATE_PROMPT,
	STATE_GENERATE,
	STATE_CEILINGS,
};

enum pass { PASS_WARM, PASS_PLAIN, PASS_BUSY, PASS_KERNELS };

struct bencher {
	struct message *message; /* to be answered; NULL in READY */
	uint64_t client;
	uint32_t n_sessions;
	uint32_t n_depth, n_prompt, n_generate;
	uint64_t seed;
	uint32_t n_rows; /* of a step, at most */
	enum state state;
	enum pass pass;
	uint64_t start_ns;
	uint64_t made_ns;     /* end of the first pass, which nobody counts; 0: not yet */
	uint64_t n_warm_ns;   /* that such passes go on then */
	uint32_t n_slots;     /* that are open */
	uint32_t *slots;      /* [n_sessions] */
	struct plan_row *row; /* [n_rows] */
	uint32_t *want;       /* [n_sessions] */
	uint64_t *step_ns;    /* [n_steps_room], of the phase */
	uint32_t n_steps_room;
	/* Of a prompt, or the depth: what is computed next, of which session. */
	uint32_t session;
	uint32_t position;
	uint32_t n_given; /* steps of generation that were submitted */
	uint32_t n_done;
	uint64_t since_ns; /* when the step that is computed began: the one before had ended */
	struct profile *profile; /* NULL: none has been asked for */
	struct bencher_result *result;
};

static struct bencher *bencher_free(struct engine *e, struct bencher *b)
{
	if (!b)
		return NULL;
	struct err why = ERR_NULL;

	if (e->stack && b->profile)
		plan_set_profile(e->stack->plan, NULL);
	/* Its own steps: nobody has any beside them. Who wants the device next hears of a failure.
	 */
	while (e->stack && b->n_given > b->n_done++ && plan_get_n_flight(e->stack->plan))
		if (plan_finish(e->stack->plan, &why))
			log_debug("%s", why.text);
	profile_free(b->profile);
	for (uint32_t i = 0; i < b->n_slots; i++)
		kv_close(e->stack->kv, b->slots[i]);
	free(b->slots);
	free(b->row);
	free(b->want);
	free(b->step_ns);
	free(b->result);
	free(b);
	return NULL;
}

/* Who waits hears it, and all of it goes. */
static void fail_with(struct engine *e, int code, const struct err *why)
{
	struct bencher *b = TAKE_PTR(e->bencher);
	struct message *m = TAKE_PTR(b->message);

	if (code > 0) { /* VK_DEVICE_LOST */
		engine_set_failed(e, code, why);
		code = e->code;
	}
	bencher_free(e, b);
	if (!m)
		return;
	message_refuse(m, code, code == e->code && e->code ? &e->error : why);
	engine_send(e, m);
}

/* ---- requests ---- */

static int check(const struct engine *e, const struct message_bench *m, struct err *ret_err)
{
	const struct kv_params *kv = kv_get_params(e->stack->kv);
	uint64_t n_tokens = (uint64_t)m->n_depth + m->n_prompt + m->n_generate;

	if (m->n_sessions == 0 || m->n_sessions > kv->n_slots)
		return err_set(ret_err, EINVAL,
			"bench: sessions: expected 1 to the worker's %u, found %u", kv->n_slots,
			m->n_sessions);
	if (m->n_prompt == 0 && m->n_generate == 0)
		return err_set(
			ret_err, EINVAL, "bench: expected a prompt or generation, found none");
	if (n_tokens > kv->n_ctx)
		return err_set(ret_err, ENOSPC,
			"bench: depth, prompt and generation: expected at most the context's %u "
			"tokens, found %" PRIu64,
			kv->n_ctx, n_tokens);
	return 0;
}

static int allocate(struct bencher *b, struct err *ret_err)
{
	uint64_t n_prompt_rows = (uint64_t)b->n_sessions * b->n_prompt;
	uint64_t n_steps = n_prompt_rows / b->n_rows + 1;

	b->n_steps_room = (uint32_t)(n_steps > b->n_generate ? n_steps : b->n_generate);
	b->slots = calloc(b->n_sessions, sizeof(*b->slots));
	b->row = calloc(b->n_rows, sizeof(*b->row));
	b->want = calloc(b->n_sessions, sizeof(*b->want));
	b->step_ns = calloc(b->n_steps_room, sizeof(*b->step_ns));
	b->result = calloc(1, sizeof(*b->result));
	if (!b->slots || !b->row || !b->want || !b->step_ns || !b->result)
		return err_set(ret_err, ENOMEM, "bench: no memory");
	return 0;
}

static int open_slots(struct engine *e, struct bencher *b, struct err *ret_err)
{
	for (; b->n_slots < b->n_sessions; b->n_slots++) {
		int r = kv_open(e->stack->kv, ret_err, &b->slots[b->n_slots]);

		if (r) {
			err_prefix(
				ret_err, "bench: session %u of %u", b->n_slots + 1, b->n_sessions);
			return r;
		}
	}
	return 0;
}

int bencher_begin(struct engine *e, struct message *m, struct err *ret_err)
{
	const struct message_bench *p = &m->bench;
	int r = e->stack ? 0 : park_unpark(e, ret_err);

	if (!r && e->bencher && (e->bencher->client != m->client || e->bencher->message))
		r = err_set(ret_err, EBUSY, "bench: another one is under way");
	if (!r)
		r = check(e, p, ret_err);
	if (r)
		return r;
	e->bencher = bencher_free(e, e->bencher);
	struct bencher *b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	*b = (struct bencher){.client = m->client,
		.n_sessions = p->n_sessions,
		.n_depth = p->n_depth,
		.n_prompt = p->n_prompt,
		.n_generate = p->n_generate,
		.seed = p->seed,
		.n_rows = e->stack->chunk.n_rows,
		.state = STATE_DEPTH,
		.pass = PASS_WARM,
		.n_warm_ns = plan_is_software(e->stack->plan) ? 0 : WARM_MS * UINT64_C(1000000)};
	r = allocate(b, ret_err);
	if (!r)
		r = open_slots(e, b, ret_err);
	if (r) {
		bencher_free(e, b);
		return r;
	}
	b->message = m;
	e->bencher = b;
	return 0;
}

int bencher_run(struct engine *e, struct message *m, struct err *ret_err)
{
	struct bencher *b = e->bencher;
	uint64_t now_ns = clock_now_ns();

	if (!b || b->client != m->client)
		return err_set(ret_err, ENOENT, "bench: there is none; it may have been ended");
	if (b->message)
		return err_set(ret_err, EBUSY, "bench: a run is under way");
	if (m->bench_run.start_ns > now_ns + BENCHER_MAX_WAIT_NS)
		return err_set(ret_err, EINVAL,
			"bench: start: expected at most a minute ahead, found %" PRIu64 " ns",
			m->bench_run.start_ns - now_ns);
	if (m->bench_run.is_profile) {
		struct profile_params params;
		struct profile *profile = NULL;

		plan_get_profile_params(e->stack->plan, &params);
		int r = profile_new(&params, ret_err, &profile);
		if (r)
			return r;
		profile_free(b->profile);
		b->profile = profile;
	}
	*b->result = (struct bencher_result){0};
	b->pass = m->bench_run.is_profile ? PASS_BUSY : PASS_PLAIN;
	b->state = STATE_WAIT;
	b->start_ns = m->bench_run.start_ns;
	b->message = m;
	return 0;
}

void bencher_end(struct engine *e, uint64_t client)
{
	struct err why = ERR_NULL;

	if (e->bencher && e->bencher->client == client)
		fail_with(e, err_set(&why, ECANCELED, "bench: it was ended"), &why);
}

void bencher_stop(struct engine *e, const char *text)
{
	struct err why = ERR_NULL;

	if (e->bencher)
		fail_with(e, err_set(&why, ECANCELED, "bench: %s", text), &why);
}

/* ---- steps ---- */

/* Tokens are a function of seed, session and position (splitmix64's finish). */
static uint32_t draw_token(
	const struct engine *e, const struct bencher *b, uint32_t session, uint32_t position)
{
	uint64_t x = b->seed + ((uint64_t)session << 32 | position) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((x ^ x >> 31) % plan_get_n_vocab(e->stack->plan));
}

static void add_row(
	const struct engine *e, struct bencher *b, uint32_t n, uint32_t session, uint32_t position)
{
	b->row[n] = (struct plan_row){.token = draw_token(e, b, session, position),
		.position = position,
		.slot = b->slots[session]};
}

/* The next rows of prompts that end at n_end tokens, one session's after the other's. */
static uint32_t gather_prompt(const struct engine *e, struct bencher *b, uint32_t n_begin,
	uint32_t n_end, uint32_t *ret_n_want)
{
	uint32_t n = 0;

	*ret_n_want = 0;
	while (n < b->n_rows && b->session < b->n_sessions) {
		add_row(e, b, n++, b->session, b->position++);
		if (b->position < n_end)
			continue;
		b->want[(*ret_n_want)++] = (n - 1) | PLAN_FIRST;
		b->session++;
		b->position = n_begin;
	}
	return n;
}

static uint32_t gather_decode(const struct engine *e, struct bencher *b, uint32_t *ret_n_want)
{
	for (uint32_t i = 0; i < b->n_sessions; i++) {
		add_row(e, b, i, i, b->n_depth + b->n_prompt + b->n_given);
		b->want[i] = i | PLAN_FIRST;
	}
	b->n_given++;
	*ret_n_want = b->n_sessions;
	return b->n_sessions;
}

/* As a generation's step: pages first, which may have to be cleared. */
static int submit(struct engine *e, struct bencher *b, uint32_t n_rows, uint32_t n_want,
	struct bencher_phase *phase, struct err *ret_err)
{
	uint64_t start_ns = clock_now_ns();
	int r = 0;

	if (!plan_get_n_flight(e->stack->plan))
		b->since_ns = start_ns;
	for (uint32_t i = 0; !r && i < n_rows; i++)
		if (i + 1 == n_rows || b->row[i + 1].slot != b->row[i].slot)
			r = kv_reserve(
				e->stack->kv, b->row[i].slot, b->row[i].position + 1, ret_err);
	if (phase)
		phase->record_ns += clock_now_ns() - start_ns;
	return r ? r : plan_submit(e->stack->plan, b->row, n_rows, b->want, n_want, ret_err);
}

/* A step lasts from the end of the one before it, where that was under way, too. */
static int finish(struct engine *e, struct bencher *b, uint32_t n_rows, struct bencher_phase *phase,
	struct err *ret_err)
{
	struct plan_times times;
	int r = plan_finish(e->stack->plan, ret_err);

	if (!r)
		r = stack_check_spills(e->stack, &e->site, ret_err);
	if (r || !phase)
		return r;
	plan_get_times(e->stack->plan, &times);
	phase->end_ns = clock_now_ns();
	b->step_ns[phase->n_steps++] = phase->end_ns - b->since_ns;
	phase->n_tokens += n_rows;
	phase->ns += phase->end_ns - b->since_ns;
	phase->record_ns += times.record_ns;
	phase->submit_ns += times.submit_ns;
	phase->wait_ns += times.wait_ns;
	b->since_ns = phase->end_ns;
	return 0;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right ? 1 : 0;
}

/* The nearest ranks. */
static void finish_phase(struct bencher *b, struct bencher_phase *phase)
{
	uint32_t n = phase->n_steps;

	qsort(b->step_ns, n, sizeof(*b->step_ns), compare_ns);
	phase->median_ns = b->step_ns[(n - 1) / 2];
	phase->p99_ns = b->step_ns[(99 * (uint64_t)n + 99) / 100 - 1];
}

/* What is computed is counted in passes that people see, and not twice. */
static struct bencher_phase *find_phase(struct bencher *b)
{
	if (b->pass != PASS_PLAIN && b->pass != PASS_BUSY)
		return NULL;
	return b->state == STATE_PROMPT ? &b->result->prompt : &b->result->generate;
}

static void begin_phase(struct engine *e, struct bencher *b, enum state state)
{
	b->state = state;
	b->session = b->n_given = b->n_done = 0;
	b->position = state == STATE_DEPTH ? 0 : b->n_depth;
	if (b->pass != PASS_BUSY && b->pass != PASS_KERNELS)
		return;
	profile_begin(b->profile, b->pass == PASS_BUSY ? PROFILE_BUSY : PROFILE_KERNELS,
		state == STATE_PROMPT);
	plan_set_profile(e->stack->plan, b->profile);
}

static void begin_pass(struct engine *e, struct bencher *b)
{
	begin_phase(e, b, b->n_prompt ? STATE_PROMPT : STATE_GENERATE);
}

static void answer(struct engine *e, struct bencher *b)
{
	struct message *m = TAKE_PTR(b->message);

	b->state = STATE_READY;
	if (m->kind == MESSAGE_BENCH) {
		m->bench.n_rows = b->n_rows;
		m->bench.n_dispatches = plan_get_n_dispatches(e->stack->plan);
		e->is_cache_due = true;
		engine_send(e, m);
		return;
	}
	m->bench_run.result = calloc(1, sizeof(*b->result));
	if (m->bench_run.result)
		*m->bench_run.result = *b->result;
	else
		message_refuse(m, -ENOMEM, &ERR_NULL);
	engine_send(e, m);
}

/* A pass is done: what it computed is forgotten. */
static void finish_pass(struct engine *e, struct bencher *b)
{
	struct bencher_result *result = b->result;

	plan_set_profile(e->stack->plan, NULL);
	for (uint32_t i = 0; i < b->n_sessions; i++)
		kv_truncate(e->stack->kv, b->slots[i], b->n_depth);
	switch (b->pass) {
	case PASS_WARM:
		if (!b->made_ns)
			b->made_ns = clock_now_ns();
		if (clock_now_ns() - b->made_ns < b->n_warm_ns)
			begin_pass(e, b);
		else
			answer(e, b);
		break;
	case PASS_PLAIN: answer(e, b); break;
	case PASS_BUSY:
		b->pass = PASS_KERNELS;
		begin_pass(e, b);
		break;
	case PASS_KERNELS:
		result->prompt.busy_ns = profile_get_ns(b->profile, PROFILE_BUSY, true);
		result->generate.busy_ns = profile_get_ns(b->profile, PROFILE_BUSY, false);
		result->prompt.stamped_ns = profile_get_ns(b->profile, PROFILE_KERNELS, true);
		result->generate.stamped_ns = profile_get_ns(b->profile, PROFILE_KERNELS, false);
		result->n_kernels = profile_get_kernels(b->profile, result->kernels);
		b->state = STATE_CEILINGS;
		break;
	}
}

static int step_prompt(struct engine *e, struct bencher *b, struct err *ret_err)
{
	bool is_depth = b->state == STATE_DEPTH;
	uint32_t n_begin = is_depth ? 0 : b->n_depth;
	uint32_t n_end = is_depth ? b->n_depth : b->n_depth + b->n_prompt;
	struct bencher_phase *phase = is_depth ? NULL : find_phase(b);
	uint32_t n_want = 0;
	uint32_t n_rows = gather_prompt(e, b, n_begin, n_end, &n_want);
	int r = submit(e, b, n_rows, n_want, phase, ret_err);

	if (!r)
		r = finish(e, b, n_rows, phase, ret_err);
	if (r || b->session < b->n_sessions)
		return r;
	if (is_depth) {
		begin_pass(e, b);
		return 0;
	}
	if (phase)
		finish_phase(b, phase);
	if (b->n_generate)
		begin_phase(e, b, STATE_GENERATE);
	else
		finish_pass(e, b);
	return 0;
}

/*
 * As the scheduler's steps, which the device picks the tokens of: the next is submitted before one
 * is done, where nobody else wants the device. Steps of a profile are made one at a time.
 */
static bool may_run_ahead(const struct engine *e, const struct bencher *b)
{
	return (b->pass == PASS_PLAIN || b->pass == PASS_WARM) &&
	       plan_can_run_ahead(e->stack->plan, b->n_sessions) && queue_is_empty(e->params.in) &&
	       !scheduler_is_busy(e->scheduler) && !publisher_is_due(e) && !tuner_is_due(e);
}

static uint32_t count_decode_steps(const struct bencher *b)
{
	return b->pass == PASS_WARM && b->n_generate > WARM_STEPS ? WARM_STEPS : b->n_generate;
}

static int finish_decode(struct engine *e, struct bencher *b, struct err *ret_err)
{
	struct bencher_phase *phase = find_phase(b);
	int r = finish(e, b, b->n_sessions, phase, ret_err);

	if (r || ++b->n_done < count_decode_steps(b))
		return r;
	if (phase)
		finish_phase(b, phase);
	finish_pass(e, b);
	return 0;
}

static int step_decode(struct engine *e, struct bencher *b, struct err *ret_err)
{
	uint32_t n_ahead = may_run_ahead(e, b), n_want = 0;
	int r = 0;

	while (!r && b->n_given < count_decode_steps(b) && b->n_given - b->n_done <= n_ahead) {
		uint32_t n_rows = gather_decode(e, b, &n_want);

		r = submit(e, b, n_rows, n_want, find_phase(b), ret_err);
	}
	return r ? r : finish_decode(e, b, ret_err);
}

void bencher_settle(struct engine *e)
{
	struct bencher *b = e->bencher;
	struct err error = ERR_NULL;
	int r = 0;

	/* The last one may be the end of all of them. */
	while (!r && e->bencher == b && b && b->state == STATE_GENERATE && b->n_given > b->n_done)
		r = finish_decode(e, b, &error);
	if (r)
		fail_with(e, r, &error);
}

static int measure_ceilings(struct engine *e, struct bencher *b, struct err *ret_err)
{
	struct profile_params params;

	plan_rest(e->stack->plan);
	plan_get_profile_params(e->stack->plan, &params);
	int r = ceiling_measure(params.device, params.pool, ret_err, &b->result->ceilings);

	if (!r)
		answer(e, b);
	return r;
}

bool bencher_is_due(const struct engine *e)
{
	const struct bencher *b = e->bencher;

	return b && b->state != STATE_READY &&
	       (b->state != STATE_WAIT || clock_now_ns() >= b->start_ns);
}

uint64_t bencher_get_deadline(const struct engine *e)
{
	const struct bencher *b = e->bencher;

	return b && b->state == STATE_WAIT ? b->start_ns : UINT64_MAX;
}

void bencher_attend(struct engine *e)
{
	struct bencher *b = e->bencher;
	struct err error = ERR_NULL;
	int r = 0;

	if (!bencher_is_due(e))
		return;
	if (b->state == STATE_DEPTH && b->n_depth == 0)
		begin_pass(e, b);
	if (b->state == STATE_WAIT) {
		begin_pass(e, b);
		b->result->start_ns = clock_now_ns();
	}
	switch (b->state) {
	case STATE_DEPTH:
	case STATE_PROMPT: r = step_prompt(e, b, &error); break;
	case STATE_GENERATE: r = step_decode(e, b, &error); break;
	case STATE_CEILINGS: r = measure_ceilings(e, b, &error); break;
	case STATE_READY:
	case STATE_WAIT: break;
	}
	if (r)
		fail_with(e, r, &error);
}
