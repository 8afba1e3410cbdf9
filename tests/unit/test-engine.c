/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread with a device, a stack and a client of weightd that are this file's. */
#include "tests/case.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/engine.h"
#include "workerd/clock.h"
#include "workerd/kv.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/plan.h"
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
static atomic_bool is_gated; /* a step waits for gate */
static sem_t gate;
static struct plan_row first_row; /* of the last step */
static atomic_uint n_last_rows;

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

int plan_step(struct plan *p, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want, struct err *ret_err, const float **ret_logits)
{
	(void)p;
	(void)want;
	(void)ret_err;
	assert_true(n_rows <= N_ROWS && n_want <= N_SLOTS);
	if (is_gated)
		sem_wait(&gate);
	first_row = rows[0];
	n_last_rows = n_rows;
	if (step_result)
		return step_result;
	for (uint32_t i = 0; i < n_want; i++)
		for (uint32_t t = 0; t < N_VOCAB; t++)
			logits[i][t] = t == next_token;
	*ret_logits = logits[0];
	return 0;
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

int vk_cache_save(struct vk_device *d)
{
	(void)d;
	n_cache_saves++;
	return 0;
}

void vk_memory_get_counters(
	const struct vk_device *d, struct vk_memory_counter ret_counters[VK_MEMORY_N_ROLES])
{
	(void)d;
	memset(ret_counters, 0, VK_MEMORY_N_ROLES * sizeof(*ret_counters));
	ret_counters[VK_MEMORY_KV] = (struct vk_memory_counter){
		.requested_bytes = 30, .placed_bytes = 20, .spilled_bytes = 10};
}

const char *vk_memory_role_name(enum vk_memory_role role)
{
	static const char *const names[] = {"weights", "kv", "scratch", "staging", "io"};

	return names[role];
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

/* Generations 1 to 3 have the same tokens, 4 others; 1 and 2 are of the same file. */
static struct manifest_header headers[N_GENERATIONS];
static struct manifest manifests[N_GENERATIONS];
static struct weights weights[N_GENERATIONS];
static atomic_uint newest;      /* generation that a new stack is of */
static atomic_int stack_result; /* of stack_new */
static atomic_bool is_gone;     /* weightd */
static atomic_bool is_lent;
static atomic_uint n_stacks; /* that there are */
static atomic_uint n_left;   /* leases that were given back */

static void make_generations(void)
{
	for (uint32_t i = 0; i < N_GENERATIONS; i++) {
		headers[i] = (struct manifest_header){
			.generation = i + 1, .content_hash = {i < 2 ? 7 : (uint8_t)(50 + i)}};
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
		weights[i] = (struct weights){.manifest = &manifests[i], .generation = i + 1};
	}
}

int loan_take(struct loan *l, struct err *ret_err)
{
	(void)l;
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
	s->n_rows = N_ROWS;
	manifest_ref(s->weights->manifest);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		assert_false(is_slot_open[i]);
	n_stacks++;
	return s;
}

int stack_new(const struct stack_params *params, struct err *ret_err, uint32_t *ret_refused,
	struct stack **ret_stack)
{
	(void)params;
	(void)ret_refused;
	assert_true(is_lent);
	assert_int_equal(n_stacks, 0);
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
	n_left = 0;
	newest = 1;
	is_gone = false;
	is_gated = false;
	sem_init(&gate, 0, 0);
	make_generations();
	assert_int_equal(queue_new(&b->in), 0);
	assert_int_equal(queue_new(&b->text), 0);
	assert_int_equal(queue_new(&b->out), 0);
	const struct engine_params params = {.site = &site,
		.stack = make_stack(),
		.park_after_ns = park_after_ns,
		.no_park = no_park,
		.in = b->in,
		.text = b->text,
		.out = b->out};
	assert_int_equal(engine_new(&params, &e, &b->engine), 0);
}

static void bench_open(struct bench *b)
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
	for (uint32_t i = 0; i < N_SLOTS; i++)
		assert_false(is_slot_open[i]);
	assert_int_equal(n_stacks, 0);
	assert_null(queue_take(b->text));
	for (uint32_t i = 0; i < N_GENERATIONS; i++)
		assert_int_equal(manifests[i].n_refs, 1);
	queue_free(b->in);
	queue_free(b->text);
	queue_free(b->out);
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

static struct message *start(struct bench *b, uint64_t session, uint32_t n_predict)
{
	struct message *m = new_request(b, MESSAGE_GENERATE);

	m->generate.session = session;
	m->generate.n_predict = n_predict;
	queue_push(b->in, &m->node);
	struct message *started = receive_kind(b, MESSAGE_STARTED);
	assert_int_equal(started->serial, m->serial);
	message_free(started);
	return m;
}

static void expect_token(struct bench *b, uint32_t id, const char *text)
{
	struct message *m = receive_kind(b, MESSAGE_TOKEN);

	assert_int_equal(m->client, CLIENT);
	assert_int_equal(m->token.id, id);
	assert_int_equal(m->token.n_bytes, strlen(text));
	assert_memory_equal(m->token.bytes, text, strlen(text));
	message_free(m);
}

static void test_generate(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	struct message *m = start(&b, session, 2);
	expect_token(&b, 1, "bc");
	expect_token(&b, 1, "bc");
	assert_ptr_equal(receive(&b), m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	assert_int_equal(m->code, 0);
	/* A seed was drawn. */
	assert_true(m->generate.finished.seed != 0);
	message_free(m);
	/* The end token, as every control token, is no text. */
	next_token = END;
	m = start(&b, session, 5);
	expect_token(&b, END, "");
	assert_ptr_equal(receive(&b), m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_STOP);
	message_free(m);
	next_token = CONTROL;
	m = start(&b, session, 1);
	expect_token(&b, CONTROL, "");
	message_free(receive(&b));
	bench_close(&b);
	/* After the first generation, and at the end. */
	assert_int_equal(n_cache_saves, 2);
}

static void test_status(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	open_session(&b);
	struct message *m = call(&b, new_request(&b, MESSAGE_STATUS));
	assert_int_equal(m->status->n_sessions, 1);
	assert_int_equal(m->status->first_token_ns, 0);
	assert_int_equal(m->status->n_roles, VK_MEMORY_N_ROLES);
	assert_string_equal(m->status->roles[1].name, "kv");
	assert_int_equal(m->status->roles[1].spilled_bytes, 10);
	assert_int_equal(m->status->stream.stream_bytes, 99);
	message_free(m);
	m = call(&b, new_request(&b, MESSAGE_BENCH_MEMORY));
	assert_int_equal(m->rates->n_rates, 1);
	assert_int_equal(m->rates->rates[0].n_bytes, 5);
	message_free(m);
	bench_close(&b);
}

/* Every generation hears why, the loop once, and nothing is served any more. */
static void expect_failure(int result, const char *why)
{
	struct bench b;

	bench_open(&b);
	uint64_t sessions[] = {open_session(&b), open_session(&b)};
	step_result = result;
	struct message *m[2];
	m[0] = start(&b, sessions[0], 0);
	struct message *first = receive(&b);
	assert_ptr_equal(first, m[0]);
	assert_int_equal(first->generate.finished.reason, MESSAGE_REASON_FAILED);
	assert_string_equal(message_get_error(first), why);
	message_free(first);
	struct message *failed = receive_kind(&b, MESSAGE_FAILED);
	assert_true(failed->code < 0);
	assert_string_equal(message_get_error(failed), why);
	message_free(failed);
	m[1] = new_request(&b, MESSAGE_GENERATE);
	m[1]->generate.session = sessions[1];
	queue_push(b.in, &m[1]->node);
	assert_ptr_equal(receive(&b), m[1]);
	assert_true(m[1]->code < 0);
	assert_int_equal(m[1]->generate.finished.reason, 0);
	message_free(m[1]);
	bench_close(&b);
	assert_int_equal(n_cache_saves, 0);
}

static void test_device_lost(void **state)
{
	(void)state;
	expect_failure(VK_DEVICE_LOST, "the device was lost");
}

static void test_step_fails(void **state)
{
	(void)state;
	expect_failure(-EIO, strerror(EIO));
}

/* The tokens of a generation without an end, until its last message, which is returned. */
static struct message *skip_tokens(struct bench *b)
{
	struct message *m;

	while ((m = receive(b))->kind == MESSAGE_TOKEN)
		message_free(m);
	return m;
}

static void test_disconnect(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	struct message *m = start(&b, session, 0);
	struct message *goodbye = new_request(&b, MESSAGE_DISCONNECT);
	queue_push(b.in, &goodbye->node);
	struct message *finished = skip_tokens(&b);
	assert_ptr_equal(finished, m);
	assert_in_range(
		m->generate.finished.reason, MESSAGE_REASON_LENGTH, MESSAGE_REASON_CANCELLED);
	message_free(m);
	message_free(receive_kind(&b, MESSAGE_DISCONNECT));
	struct message *status = call(&b, new_request(&b, MESSAGE_STATUS));
	assert_int_equal(status->status->n_sessions, 0);
	message_free(status);
	bench_close(&b);
}

static void test_stop_cancels(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	struct message *m = start(&b, open_session(&b), 0);
	engine_stop(b.engine);
	engine_stop(b.engine);
	assert_ptr_equal(skip_tokens(&b), m);
	message_free(m);
	bench_close(&b);
}

/* ---- parking ---- */

static void notice(struct bench *b, enum message_notice_kind kind, uint64_t generation)
{
	struct message *m = message_new(MESSAGE_NOTICE, 0, 0);
	struct err why = ERR_NULL;

	assert_non_null(m);
	m->notice = (struct message_notice){.kind = kind, .generation = generation};
	if (kind == MESSAGE_NOTICE_LOST) {
		err_set(&why, EIO, "bits have flipped");
		message_refuse(m, -EIO, &why);
	}
	queue_push(b->in, &m->node);
}

/* generation 0: parked. */
static void expect_changed(struct bench *b, uint64_t generation)
{
	struct message *m = receive_kind(b, MESSAGE_CHANGED);

	assert_int_equal(m->changed.is_parked, generation == 0);
	if (generation) {
		assert_int_equal(m->changed.generation, generation);
		assert_int_equal(m->changed.n_ctx, N_CTX);
		assert_int_equal(m->changed.n_dispatches, 38);
		assert_int_equal(m->changed.placed_bytes[3], 3);
	}
	message_free(m);
}

static void expect_manifest(struct bench *b, uint32_t generation, uint64_t epoch)
{
	queue_wait(b->text);
	struct message *m = message_from_node(queue_take(b->text));
	assert_int_equal(m->kind, MESSAGE_MANIFEST);
	assert_ptr_equal(m->manifest.manifest, &manifests[generation - 1]);
	assert_int_equal(m->manifest.epoch, epoch);
	message_free(m);
}

/* Everything before it has been served. */
static void settle(struct bench *b)
{
	message_free(call(b, new_request(b, MESSAGE_STATUS)));
}

static struct message *ask(struct bench *b, uint64_t session, uint32_t n_predict)
{
	struct message *m = new_request(b, MESSAGE_GENERATE);

	m->generate.session = session;
	m->generate.n_predict = n_predict;
	queue_push(b->in, &m->node);
	return m;
}

static void finish_ask(struct bench *b, struct message *m, uint32_t n_tokens)
{
	message_free(receive_kind(b, MESSAGE_STARTED));
	for (uint32_t i = 0; i < n_tokens; i++)
		message_free(receive_kind(b, MESSAGE_TOKEN));
	assert_ptr_equal(receive(b), m);
	if (m->code)
		fail_msg("%d %s", m->code, message_get_error(m));
	assert_int_equal(m->generate.finished.generated_tokens, n_tokens);
	message_free(m);
}

static void refuse_ask(struct bench *b, struct message *m, int code, const char *why)
{
	assert_ptr_equal(receive(b), m);
	assert_int_equal(m->code, code);
	if (!strstr(message_get_error(m), why))
		fail_msg("%s", message_get_error(m));
	message_free(m);
}

static void test_park_and_return(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	finish_ask(&b, ask(&b, session, 2), 2);
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	expect_changed(&b, 0);
	assert_int_equal(n_stacks, 0);
	assert_int_equal(n_left, 1);
	/* What does not compute is served all the same: sessions have their tokens. */
	settle(&b);
	uint64_t another = open_session(&b);
	struct message *m = new_request(&b, MESSAGE_OPEN);
	queue_push(b.in, &m->node);
	refuse_ask(&b, m, -EAGAIN, "all 2 are open");
	/* Parked already: nothing to give. */
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	settle(&b);
	assert_int_equal(n_left, 1);
	m = ask(&b, session, 1);
	expect_changed(&b, 1);
	message_free(receive_kind(&b, MESSAGE_STARTED));
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	assert_ptr_equal(receive(&b), m);
	/* 3 of the prompt and 2 that were generated, all of them anew. */
	assert_int_equal(m->generate.finished.prompt_tokens, 5);
	assert_int_equal(m->generate.finished.cached_tokens, 0);
	assert_int_equal(first_row.position, 0);
	assert_int_equal(n_last_rows, 5);
	message_free(m);
	finish_ask(&b, ask(&b, another, 2), 2);
	bench_close(&b);
}

static void test_busy_does_not_park(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	is_gated = true;
	struct message *m = ask(&b, session, 2);
	message_free(receive_kind(&b, MESSAGE_STARTED));
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	sem_post(&gate);
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	sem_post(&gate);
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	assert_ptr_equal(receive(&b), m);
	message_free(m);
	/* Nor afterwards: whoever still waits says so again. */
	settle(&b);
	assert_int_equal(n_stacks, 1);
	bench_close(&b);
	bench_open_with(&b, 0, true);
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	settle(&b);
	assert_int_equal(n_stacks, 1);
	bench_close(&b);
	/* Without weightd there would be no way back. */
	bench_open(&b);
	is_gone = true;
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	settle(&b);
	assert_int_equal(n_stacks, 1);
	bench_close(&b);
}

static void test_parks_when_idle(void **state)
{
	enum { MS = 1000 * 1000 };
	struct bench b;

	(void)state;
	bench_open_with(&b, 50 * MS, false);
	uint64_t start_ns = clock_now_ns();
	expect_changed(&b, 0);
	assert_true(clock_now_ns() - start_ns >= 40 * MS);
	uint64_t session = open_session(&b);
	struct message *m = ask(&b, session, 1);
	expect_changed(&b, 1);
	finish_ask(&b, m, 1);
	expect_changed(&b, 0);
	bench_close(&b);
}

static void test_refused_stays_parked(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	expect_changed(&b, 0);
	stack_result = -ENOMEM;
	refuse_ask(&b, ask(&b, session, 1), -ENOMEM, "the worker is parked: pid 12 has it all");
	is_gone = true;
	refuse_ask(&b, ask(&b, session, 1), -ENOTCONN, "weightd is gone");
	is_gone = false;
	stack_result = 0;
	struct message *m = ask(&b, session, 1);
	expect_changed(&b, 1);
	finish_ask(&b, m, 1);
	/* A lost device is the engine's end, here too. */
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	expect_changed(&b, 0);
	stack_result = VK_DEVICE_LOST;
	refuse_ask(&b, ask(&b, session, 1), -EIO, "the device was lost");
	message_free(receive_kind(&b, MESSAGE_FAILED));
	bench_close(&b);
}

/* ---- generations ---- */

static void test_moves(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	newest = 3;
	notice(&b, MESSAGE_NOTICE_REPLACED, 3);
	expect_changed(&b, 0);
	expect_changed(&b, 3);
	expect_manifest(&b, 3, 1);
	/* Told twice, or late. */
	notice(&b, MESSAGE_NOTICE_REPLACED, 3);
	notice(&b, MESSAGE_NOTICE_REPLACED, 2);
	settle(&b);
	assert_int_equal(n_left, 1);
	bench_close(&b);
}

static void test_moves_with_sessions(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	finish_ask(&b, ask(&b, session, 1), 1);
	newest = 3;
	notice(&b, MESSAGE_NOTICE_REPLACED, 3);
	expect_changed(&b, 0);
	expect_changed(&b, 3);
	expect_manifest(&b, 3, 1);
	finish_ask(&b, ask(&b, session, 1), 1);
	assert_int_equal(first_row.position, 0);
	assert_int_equal(n_last_rows, 4);
	/* Other tokens: it stays until the session is closed. */
	newest = 4;
	notice(&b, MESSAGE_NOTICE_REPLACED, 4);
	settle(&b);
	finish_ask(&b, ask(&b, session, 1), 1);
	struct message *m = new_request(&b, MESSAGE_CLOSE);
	m->session = session;
	message_free(call(&b, m));
	expect_changed(&b, 0);
	expect_changed(&b, 4);
	expect_manifest(&b, 4, 2);
	bench_close(&b);
}

static void test_other_tokens_after_a_park(void **state)
{
	static const uint32_t ids[] = {1};
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	expect_changed(&b, 0);
	newest = 4;
	struct message *m = ask(&b, session, 1);
	expect_changed(&b, 4);
	expect_manifest(&b, 4, 2);
	refuse_ask(&b, m, -ESTALE, "begin anew");
	/* Text that became tokens of the former model is not taken for text of this one. */
	m = new_request(&b, MESSAGE_TRUNCATE);
	m->truncate.session = session;
	message_free(call(&b, m));
	m = new_request(&b, MESSAGE_APPEND);
	m->append.session = session;
	m->append.ids = ids;
	m->append.n_ids = 1;
	m->epoch = 1;
	queue_push(b.in, &m->node);
	refuse_ask(&b, m, -ESTALE, "other tokens");
	m = new_request(&b, MESSAGE_APPEND);
	m->append.session = session;
	m->append.ids = ids;
	m->append.n_ids = 1;
	m->epoch = 2;
	message_free(call(&b, m));
	finish_ask(&b, ask(&b, session, 1), 1);
	bench_close(&b);
}

/* A generation of text of 4 tokens, under which the weights are lost behind the first or second. */
static struct message *lose_amid(struct bench *b, uint64_t session)
{
	is_gated = true;
	struct message *m = ask(b, session, 4);
	message_free(receive_kind(b, MESSAGE_STARTED));
	sem_post(&gate);
	message_free(receive_kind(b, MESSAGE_TOKEN));
	notice(b, MESSAGE_NOTICE_LOST, 1);
	is_gated = false;
	sem_post(&gate); /* where a step was begun already */
	return m;
}

static void test_lost_goes_on(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	newest = 2;
	struct message *m = lose_amid(&b, session);
	uint32_t n_tokens = 1;
	struct message *other;
	while ((other = receive(&b)) != m) {
		if (other->kind == MESSAGE_TOKEN)
			n_tokens++;
		else
			assert_int_equal(other->kind, MESSAGE_CHANGED);
		message_free(other);
	}
	assert_int_equal(m->code, 0);
	assert_int_equal(n_tokens, 4);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	message_free(m);
	expect_manifest(&b, 2, 1);
	assert_int_equal(n_left, 1);
	bench_close(&b);
}

static void expect_lost(uint32_t next, const char *why)
{
	struct bench b;

	bench_open(&b);
	uint64_t session = open_session(&b);
	newest = next;
	struct message *m = lose_amid(&b, session);
	struct message *other;
	while ((other = receive(&b)) != m) {
		assert_true(other->kind == MESSAGE_TOKEN || other->kind == MESSAGE_CHANGED);
		message_free(other);
	}
	assert_true(m->code < 0);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_FAILED);
	assert_non_null(strstr(message_get_error(m), "bits have flipped"));
	if (!strstr(message_get_error(m), why))
		fail_msg("%s", message_get_error(m));
	message_free(m);
	if (next == 1) {
		/* It is there still, and is not taken again; a next one is. */
		refuse_ask(&b, ask(&b, session, 1), -EIO, "bits have flipped");
		newest = 2;
		m = ask(&b, session, 1);
		expect_changed(&b, 2);
		finish_ask(&b, m, 1);
		expect_manifest(&b, 2, 1);
	} else {
		expect_changed(&b, next);
		expect_manifest(&b, next, 1);
		finish_ask(&b, ask(&b, session, 1), 1);
	}
	bench_close(&b);
}

static void test_lost_ends(void **state)
{
	(void)state;
	expect_lost(3, "not known to be the same");
	expect_lost(1, "the worker is parked");
}

static void test_lost_when_idle(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	notice(&b, MESSAGE_NOTICE_LOST, 2); /* another one */
	settle(&b);
	assert_int_equal(n_stacks, 1);
	notice(&b, MESSAGE_NOTICE_LOST, 1);
	expect_changed(&b, 0);
	assert_int_equal(n_left, 1);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_park_and_return),
		CASE(test_busy_does_not_park),
		CASE(test_parks_when_idle),
		CASE(test_refused_stays_parked),
		CASE(test_moves),
		CASE(test_moves_with_sessions),
		CASE(test_other_tokens_after_a_park),
		CASE(test_lost_goes_on),
		CASE(test_lost_ends),
		CASE(test_lost_when_idle),
		CASE(test_generate),
		CASE(test_status),
		CASE(test_device_lost),
		CASE(test_step_fails),
		CASE(test_disconnect),
		CASE(test_stop_cancels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
