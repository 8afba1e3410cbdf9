/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread with a device, a cache and a plan that are this file's. */
#include "tests/case.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/engine.h"
#include "workerd/kv.h"
#include "workerd/message.h"
#include "workerd/plan.h"
#include "workerd/queue.h"

enum { N_SLOTS = 2, N_CTX = 64, N_ROWS = 8, N_VOCAB = 4, CONTROL = 2, END = 3, CLIENT = 7 };

static const struct kv_params kv_shape = {.n_slots = N_SLOTS, .n_ctx = N_CTX};
static bool is_slot_open[N_SLOTS];
static float logits[N_SLOTS][N_VOCAB];
static atomic_int step_result; /* of the next steps */
static atomic_uint next_token; /* that each step makes the largest */
static atomic_uint n_cache_saves;

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
	(void)rows;
	(void)want;
	(void)ret_err;
	assert_true(n_rows <= N_ROWS && n_want <= N_SLOTS);
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
static const struct manifest manifest = {
	.strings = (const uint8_t *)"abc",
	.tokens = tokens,
	.n_vocab = N_VOCAB,
	.tokenizer = &tokenizer,
};

struct bench {
	struct queue *in;
	struct queue *out;
	struct engine *engine;
	uint64_t last_id;
};

static void bench_open(struct bench *b)
{
	struct err e = ERR_NULL;

	*b = (struct bench){0};
	step_result = 0;
	next_token = 1;
	n_cache_saves = 0;
	assert_int_equal(queue_new(&b->in), 0);
	assert_int_equal(queue_new(&b->out), 0);
	const struct engine_params params = {
		.manifest = &manifest, .n_rows = N_ROWS, .in = b->in, .out = b->out};
	assert_int_equal(engine_new(&params, &e, &b->engine), 0);
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
	queue_free(b->in);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_generate),
		CASE(test_status),
		CASE(test_device_lost),
		CASE(test_step_fails),
		CASE(test_disconnect),
		CASE(test_stop_cancels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
