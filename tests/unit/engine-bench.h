/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ENGINE_BENCH_H
#define TESTS_UNIT_ENGINE_BENCH_H

/*
 * The engine thread with a device, a stack and a client of weightd that are this file's. For one
 * test program each: it defines what the engine calls.
 */
#include "tests/case.h"
#include "tests/unit/engine-profile.h"
#include "tests/unit/engine-tuner.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/archive.h"
#include "workerd/bencher.h"
#include "workerd/engine.h"
#include "workerd/guests.h"
#include "workerd/kv.h"
#include "workerd/lease.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/plan.h"
#include "workerd/publisher.h"
#include "workerd/queue.h"
#include "workerd/stack.h"
#include "workerd/weights.h"

enum { N_SLOTS = 2, N_CTX = 64, N_ROWS = 8, N_VOCAB = 4, CONTROL = 2, END = 3, CLIENT = 7 };

static const struct kv_params kv_shape = {.n_slots = N_SLOTS, .n_ctx = N_CTX};
static bool is_slot_open[N_SLOTS];
static float logits[N_SLOTS][N_VOCAB];
static atomic_int step_result; /* of the next steps */
static atomic_uint next_token; /* that each step makes the largest */
static atomic_uint n_cache_saves;
/* Under --fail-on-spill: the next step's memory will spill, and it has. */
static atomic_bool is_step_spilling, has_spilled;
static atomic_bool is_gated;      /* a step waits for gate */
static atomic_uint first_step_us; /* that the first step takes longer */
static atomic_bool is_gpu;
static sem_t gate;
static struct plan_row first_row; /* of the last step */
static atomic_uint n_last_rows;
static atomic_uint n_steps;  /* that are done */
static atomic_uint n_flight; /* that are under way */
static atomic_bool runs_ahead;
static atomic_uint n_ahead;  /* steps submitted while another was under way */
static atomic_uint n_picked; /* steps whose first token was left to the device */
static atomic_uint n_waits;  /* plan_wait */
static atomic_uint n_rests;  /* plan_rest */
static struct abi_best best[N_SLOTS][ABI_BEST_N];
static _Atomic uint64_t adopted_scope; /* of the last Generate */

int kv_open(struct kv *kv, struct err *ret_err, uint32_t *ret_slot)
{
	(void)kv;
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		if (is_slot_open[i])
			continue;
		is_slot_open[i] = true;
		*ret_slot = i;
		return 0;
	}
	return err_set(ret_err, EAGAIN, "sessions: all are open");
}

void kv_close(struct kv *kv, uint32_t slot)
{
	(void)kv;
	is_slot_open[slot] = false;
}

int kv_fork(struct kv *kv, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	(void)kv;
	(void)n_tokens;
	(void)ret_err;
	assert_true(is_slot_open[from] && is_slot_open[slot] && from != slot);
	return 0;
}

uint32_t kv_adopt(struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *ids, uint32_t n_ids)
{
	(void)kv;
	(void)slot;
	(void)ids;
	(void)n_ids;
	adopted_scope = scope;
	return 0;
}

void kv_publish(struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *ids, uint32_t n_ids)
{
	(void)kv;
	(void)scope;
	(void)ids;
	assert_true(is_slot_open[slot] && n_ids % KV_PAGE_TOKENS == 0);
}

int guests_new(struct guests **ret_guests)
{
	(void)ret_guests;
	return 0;
}

struct guests *guests_free(struct guests *g)
{
	assert_null(g);
	return NULL;
}

void guests_note_changed(struct guests *g)
{
	(void)g;
}

void guests_note_back(struct guests *g)
{
	(void)g;
}

void guests_attend(struct engine *e, bool is_pressed)
{
	(void)e;
	(void)is_pressed;
}

void guests_seek(struct engine *e, const uint32_t *ids, uint32_t n_ids)
{
	(void)e;
	(void)ids;
	(void)n_ids;
}

void guests_clear(struct engine *e)
{
	(void)e;
}

void guests_tell_dropped(struct engine *e)
{
	(void)e;
}

uint64_t guests_get_deadline(const struct engine *e)
{
	(void)e;
	return UINT64_MAX;
}

void guests_count(const struct guests *g, uint32_t *ret_n, uint64_t *ret_n_bytes)
{
	(void)g;
	*ret_n = 0;
	*ret_n_bytes = 0;
}

int publisher_begin(struct engine *e, struct message *m, struct err *ret_err, bool *ret_is_done)
{
	(void)e;
	(void)m;
	(void)ret_is_done;
	return err_set(ret_err, ENOSYS, "no prefixes here");
}

void publisher_take_finished(struct engine *e, struct message *generate)
{
	(void)e;
	(void)generate;
	fail();
}

void publisher_attend(struct engine *e)
{
	(void)e;
}

bool publisher_is_due(const struct engine *e)
{
	(void)e;
	return false;
}

void publisher_suspend(struct engine *e)
{
	(void)e;
}

void publisher_stop(struct engine *e)
{
	(void)e;
}

void kv_get_counters(const struct kv *kv, struct kv_counters *ret_counters)
{
	(void)kv;
	*ret_counters =
		(struct kv_counters){.n_total = 9, .n_used = 4, .n_shared = 2, .n_cached = 1};
}

int kv_reserve(struct kv *kv, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	(void)kv;
	(void)slot;
	(void)n_tokens;
	(void)ret_err;
	return 0;
}

void kv_truncate(struct kv *kv, uint32_t slot, uint32_t n_tokens)
{
	(void)kv;
	(void)slot;
	(void)n_tokens;
}

const struct kv_params *kv_get_params(const struct kv *kv)
{
	(void)kv;
	return &kv_shape;
}

/* Files are archive's own business. */
int archive_save(struct engine *e, struct message *m, struct err *ret_err)
{
	(void)e;
	(void)m;
	return err_set(ret_err, ENOTSUP, "no files here");
}

int archive_restore(struct engine *e, struct message *m, struct err *ret_err)
{
	return archive_save(e, m, ret_err);
}

/* It is computed when it is finished. */
int plan_submit(struct plan *p, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want, struct err *ret_err)
{
	(void)p;
	(void)want;
	(void)ret_err;
	assert_true(n_rows <= N_ROWS && n_want <= N_SLOTS);
	assert_true(n_flight <= runs_ahead);
	if (rows[0].token & PLAN_PICKED)
		n_picked++;
	if (n_steps == 0)
		usleep(first_step_us);
	first_row = rows[0];
	n_last_rows = n_rows;
	n_ahead += n_flight > 0;
	n_flight++;
	return 0;
}

int plan_finish(struct plan *p, struct err *ret_err)
{
	(void)p;
	(void)ret_err;
	assert_true(n_flight > 0);
	if (is_gated)
		sem_wait(&gate);
	n_flight--;
	n_steps++;
	if (is_step_spilling)
		has_spilled = true;
	if (step_result)
		return step_result;
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		for (uint32_t t = 0; t < N_VOCAB; t++)
			logits[i][t] = t == next_token;
		best[i][0] = (struct abi_best){.logit = 1, .index = next_token};
		best[i][1].index = ABI_BEST_NONE;
	}
	return 0;
}

int plan_wait(struct plan *p, struct err *ret_err)
{
	(void)p;
	(void)ret_err;
	n_waits++;
	return 0;
}

bool plan_would_wait(const struct plan *p)
{
	(void)p;
	return false;
}

void plan_rest(struct plan *p)
{
	(void)p;
	n_rests++;
}

uint32_t plan_get_n_flight(const struct plan *p)
{
	(void)p;
	return n_flight;
}

bool plan_can_run_ahead(const struct plan *p, uint32_t n_rows)
{
	(void)p;
	assert_in_range(n_rows, 1, N_SLOTS);
	return runs_ahead;
}

const struct abi_best *plan_get_best(const struct plan *p)
{
	(void)p;
	return runs_ahead ? best[0] : NULL;
}

int plan_get_logits(struct plan *p, struct err *ret_err, const float **ret_logits)
{
	(void)p;
	(void)ret_err;
	*ret_logits = logits[0];
	return 0;
}

bool plan_is_software(const struct plan *p)
{
	(void)p;
	return !is_gpu;
}

void plan_get_counters(const struct plan *p, struct plan_counters *ret_counters)
{
	(void)p;
	*ret_counters = (struct plan_counters){.stream_rows = 16, .stream_bytes = 99};
}

int plan_bench_memory(struct plan *p, struct err *ret_err,
	struct bench_memory_rate ret_rates[BENCH_MEMORY_MAX_RATES], uint32_t *ret_n)
{
	(void)p;
	(void)ret_err;
	ret_rates[0] = (struct bench_memory_rate){.placement = 3, .n_bytes = 5};
	*ret_n = 1;
	return 0;
}

uint32_t plan_get_n_vocab(const struct plan *p)
{
	(void)p;
	return N_VOCAB;
}

uint32_t plan_get_n_dispatches(const struct plan *p)
{
	(void)p;
	return 38;
}

uint64_t weights_count_bytes(const struct weights *w, uint32_t placement)
{
	(void)w;
	return placement;
}

bool weights_get_identity(const struct weights *w, uint8_t ret_identity[32])
{
	if (w->contents.has_identity)
		memcpy(ret_identity, w->contents.identity, 32);
	return w->contents.has_identity;
}

int vk_cache_save(struct vk_device *d)
{
	(void)d;
	n_cache_saves++;
	return 0;
}

void ledger_take(const struct vk_device *d, struct ledger *ret_ledger)
{
	(void)d;
	ret_ledger->roles[VK_MEMORY_KV] = (struct vk_memory_counter){
		.requested_bytes = 30, .placed_bytes = 20, .spilled_bytes = 10};
}

int stack_check_spills(struct stack *s, const struct stack_params *params, struct err *ret_err)
{
	(void)s;
	(void)params;
	if (!has_spilled)
		return 0;
	(void)err_set(ret_err, ENOMEM, "spilled: kv");
	return STACK_SPILLED;
}

static const struct manifest_token tokens[N_VOCAB] = {
	{.bytes = {0, 1}, .type = MANIFEST_TOKEN_NORMAL},
	{.bytes = {1, 2}, .type = MANIFEST_TOKEN_NORMAL},
	{.bytes = {0, 3}, .type = MANIFEST_TOKEN_CONTROL},
	{.bytes = {0, 3}, .type = MANIFEST_TOKEN_CONTROL},
};
static const struct manifest_tokenizer tokenizer = {.n_eog = 1, .eog = {END}};
static const struct manifest_token other_tokens[N_VOCAB] = {
	{.bytes = {0, 1}, .type = MANIFEST_TOKEN_NORMAL},
	{.bytes = {2, 1}, .type = MANIFEST_TOKEN_NORMAL},
	{.bytes = {0, 3}, .type = MANIFEST_TOKEN_CONTROL},
	{.bytes = {0, 3}, .type = MANIFEST_TOKEN_CONTROL},
};
static const struct manifest_hparams hparams = {.n_ctx_train = N_CTX};

/* ---- what weightd has, and what the engine made of it ---- */

enum { N_GENERATIONS = 4 };

/* Generations 1 to 3 have the same tokens, 4 others; 1 and 2 have the same identity. */
static struct manifest_header headers[N_GENERATIONS];
static struct manifest manifests[N_GENERATIONS];
static struct weights weights[N_GENERATIONS];
static atomic_uint newest;      /* generation that a new stack is of */
static atomic_int stack_result; /* of stack_new */
static atomic_bool is_gone;     /* weightd */
static atomic_bool is_lent;
static atomic_uint n_stacks; /* that there are */
static atomic_uint n_left;   /* leases that were given back */

/* What generations 1 and 2 hold instead, [2]; NULL: as above. */
static const struct weights_client_contents *told_contents;

static void make_generations(void)
{
	for (uint32_t i = 0; i < N_GENERATIONS; i++) {
		headers[i] = (struct manifest_header){.generation = i + 1};
		/* Each is this file's too: it never goes. */
		manifests[i] = (struct manifest){
			.n_refs = 1,
			.header = &headers[i],
			.strings = (const uint8_t *)"abc",
			.tokens = i == 3 ? other_tokens : tokens,
			.n_vocab = N_VOCAB,
			.tokenizer = &tokenizer,
			.hparams = &hparams,
		};
		weights[i] = (struct weights){.manifest = &manifests[i],
			.generation = i + 1,
			.contents = {
				.has_identity = true, .identity = {i < 2 ? 7 : (uint8_t)(50 + i)}}};
		if (told_contents && i < 2)
			weights[i].contents = told_contents[i];
	}
}

int loan_take(struct loan *l, struct err *ret_err, struct weights_client **ret_client)
{
	(void)l;
	(void)ret_client;
	assert_false(is_lent);
	if (is_gone)
		return err_set(ret_err, ENOTCONN, "weightd is gone");
	is_lent = true;
	return 0;
}

void loan_give_back(struct loan *l)
{
	(void)l;
	assert_true(is_lent);
	is_lent = false;
}

static struct stack *make_stack(void)
{
	struct stack *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->weights = &weights[newest - 1];
	s->chunk = (struct ledger_chunk){.n_rows = N_ROWS, .n_asked = 2 * N_ROWS};
	manifest_ref(s->weights->manifest);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		assert_false(is_slot_open[i]);
	n_stacks++;
	return s;
}

int stack_new(const struct stack_params *params, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct stack **ret_stack)
{
	(void)params;
	(void)ret_refusal;
	assert_true(is_lent);
	assert_int_equal(n_stacks, 0);
	if (stack_result == STACK_SPILLED)
		(void)err_set(ret_err, ENOMEM, "spilled: kv");
	if (stack_result)
		return stack_result > 0 ? stack_result
					: err_set(ret_err, -stack_result, "pid 12 has it all");
	*ret_stack = make_stack();
	return 0;
}

struct stack *stack_free(struct stack *s)
{
	if (!s)
		return NULL;
	manifest_free(s->weights->manifest);
	free(s);
	n_stacks--;
	return NULL;
}

int stack_leave(const struct stack_params *params, uint64_t generation, struct err *ret_err)
{
	(void)params;
	(void)generation;
	(void)ret_err;
	assert_true(is_lent);
	assert_int_equal(n_stacks, 0);
	n_left++;
	return 0;
}

int stack_describe(
	const struct stack_params *params, struct err *ret_err, struct manifest **ret_manifest)
{
	(void)params;
	(void)ret_err;
	assert_true(is_lent);
	*ret_manifest = manifest_ref(&manifests[newest - 1]);
	return 0;
}

struct bench {
	struct queue *in;
	struct queue *text;
	struct queue *out;
	struct lease *lease;
	struct engine *engine;
	uint64_t last_id;
};

static void bench_open_with(struct bench *b, uint64_t park_after_ns, bool no_park)
{
	static const struct stack_params site = {0};
	struct err e = ERR_NULL;

	*b = (struct bench){0};
	step_result = 0;
	stack_result = 0;
	next_token = 1;
	n_cache_saves = 0;
	n_steps = 0;
	n_left = 0;
	newest = 1;
	is_gone = false;
	runs_ahead = false;
	n_flight = n_ahead = n_picked = n_waits = n_rests = 0;
	is_gated = is_step_spilling = has_spilled = false;
	sem_init(&gate, 0, 0);
	make_generations();
	assert_int_equal(queue_new(&b->in), 0);
	assert_int_equal(queue_new(&b->text), 0);
	assert_int_equal(queue_new(&b->out), 0);
	assert_int_equal(lease_new(&b->lease), 0);
	const struct engine_params params = {.site = &site,
		.stack = make_stack(),
		.lease = b->lease,
		.park_after_ns = park_after_ns,
		.no_park = no_park,
		.in = b->in,
		.text = b->text,
		.out = b->out};
	assert_int_equal(engine_new(&params, &e, &b->engine), 0);
}

static inline void bench_open(struct bench *b)
{
	bench_open_with(b, 0, false);
}

static struct message *receive(struct bench *b)
{
	queue_wait(b->out);
	return message_from_node(queue_take(b->out));
}

static struct message *receive_kind(struct bench *b, enum message_kind kind)
{
	struct message *m = receive(b);

	assert_int_equal(m->kind, kind);
	return m;
}

/* Stops the thread; what is left in the queue must be nothing but its last message. */
static void bench_close(struct bench *b)
{
	engine_free(b->engine);
	message_free(receive_kind(b, MESSAGE_STOP));
	assert_null(queue_take(b->out));
	assert_int_equal(n_flight, 0);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		assert_false(is_slot_open[i]);
	assert_int_equal(n_stacks, 0);
	assert_null(queue_take(b->text));
	for (uint32_t i = 0; i < N_GENERATIONS; i++)
		assert_int_equal(manifests[i].n_refs, 1);
	queue_free(b->in);
	queue_free(b->text);
	queue_free(b->out);
	lease_free(b->lease);
}

static struct message *new_request(struct bench *b, enum message_kind kind)
{
	struct message *m = message_new(kind, CLIENT, 0);

	assert_non_null(m);
	m->id = ++b->last_id;
	m->serial = b->last_id;
	return m;
}

/* Sends a request that is to be accepted, and returns it answered. */
static struct message *call(struct bench *b, struct message *m)
{
	queue_push(b->in, &m->node);
	struct message *answer = receive(b);
	assert_ptr_equal(answer, m);
	if (m->code)
		fail_msg("%d %s", m->code, message_get_error(m));
	return m;
}

static uint64_t open_session(struct bench *b)
{
	static const uint32_t ids[] = {0, 1, 0};
	struct message *m = call(b, new_request(b, MESSAGE_OPEN));
	uint64_t session = m->session;

	message_free(m);
	m = new_request(b, MESSAGE_APPEND);
	m->append.session = session;
	m->append.ids = ids;
	m->append.n_ids = 3;
	call(b, m);
	assert_int_equal(m->append.n_added, 3);
	assert_int_equal(m->append.n_total, 3);
	message_free(m);
	return session;
}

#endif
