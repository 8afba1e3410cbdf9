/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, tokens and failures of the engine. */
#include "tests/unit/engine-bench.h"

#include <sched.h>

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

/* Steps that run ahead: as many tokens as ever, and nothing is under way when it is over. */
static void test_runs_ahead(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	runs_ahead = true;
	uint64_t session = open_session(&b);
	struct message *m = start(&b, session, 12);
	for (int i = 0; i < 12; i++)
		expect_token(&b, 1, "bc");
	assert_ptr_equal(receive(&b), m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	message_free(m);
	/* The first step and the one behind it have tokens that the host knows. */
	assert_in_range(n_picked, 1, 10);
	assert_int_equal(n_steps, 12);
	/* What has been computed further than the end is waited for, and nobody hears of it. */
	is_gated = true;
	m = start(&b, session, 0);
	for (int i = 0; i < 3; i++) {
		sem_post(&gate);
		expect_token(&b, 1, "bc");
	}
	next_token = END;
	is_gated = false;
	sem_post(&gate);
	struct message *last;
	while ((last = receive(&b)) != m) {
		assert_int_equal(last->kind, MESSAGE_TOKEN);
		message_free(last);
	}
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_STOP);
	message_free(m);
	while (n_flight || !n_rests)
		sched_yield();
	bench_close(&b);
}

/* Whoever asks for something finds no step under way, and waits for one at most. */
static void test_ahead_of_a_request(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	runs_ahead = true;
	is_gated = true;
	uint64_t session = open_session(&b);
	struct message *m = start(&b, session, 0);
	for (int i = 0; i < 5; i++) {
		sem_post(&gate);
		expect_token(&b, 1, "bc");
	}
	/* The engine is in the step behind these: that, and the one that may have run ahead. */
	struct message *cancel = new_request(&b, MESSAGE_CANCEL);
	cancel->session = session;
	queue_push(b.in, &cancel->node);
	uint32_t n_before = n_steps;
	sem_post(&gate);
	sem_post(&gate);
	struct message *last = receive(&b);
	for (; last->kind == MESSAGE_TOKEN; last = receive(&b))
		message_free(last);
	assert_in_range(n_steps - n_before, 1, 2);
	assert_ptr_equal(last, m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_CANCELLED);
	message_free(m);
	assert_ptr_equal(receive(&b), cancel);
	assert_int_equal(cancel->code, 0);
	message_free(cancel);
	assert_int_equal(n_flight, 0);
	is_gated = false;
	bench_close(&b);
}

/* What a client may find is its user's, or where that is not known nobody else's. */
static void test_scope(void **state)
{
	static const struct {
		uint64_t sent, expected;
	} scopes[] = {{1ull << 32 | 5, 1ull << 32 | 5}, {0, 1ull << 63 | CLIENT}};
	static const uint32_t ids[] = {0, 1};
	struct bench b;

	(void)state;
	bench_open(&b);
	for (unsigned i = 0; i < ARRAY_SIZE(scopes); i++) {
		struct message *m = new_request(&b, MESSAGE_OPEN);

		m->scope = scopes[i].sent;
		call(&b, m);
		uint64_t session = m->session;
		message_free(m);
		m = new_request(&b, MESSAGE_APPEND);
		m->append.session = session;
		m->append.ids = ids;
		m->append.n_ids = 2;
		message_free(call(&b, m));
		m = start(&b, session, 1);
		message_free(receive_kind(&b, MESSAGE_TOKEN));
		assert_ptr_equal(receive(&b), m);
		message_free(m);
		assert_true(adopted_scope == scopes[i].expected);
	}
	bench_close(&b);
}

/* A BOS token in front of a chat is for an empty session, also one that was emptied. */
static void test_begins_with_bos(void **state)
{
	static const uint32_t ids[] = {1, 0, 0};
	static const struct {
		uint32_t n_added, n_total;
		bool is_emptied;
	} rows[] = {{3, 3, false}, {2, 5, false}, {3, 3, true}, {2, 5, false}};
	struct bench b;

	(void)state;
	bench_open(&b);
	struct message *m = call(&b, new_request(&b, MESSAGE_OPEN));
	uint64_t session = m->session;
	message_free(m);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		if (rows[i].is_emptied) {
			m = new_request(&b, MESSAGE_TRUNCATE);
			m->truncate.session = session;
			message_free(call(&b, m));
		}
		m = new_request(&b, MESSAGE_APPEND);
		m->append.session = session;
		m->append.ids = ids;
		m->append.n_ids = 3;
		m->append.begins_with_bos = true;
		call(&b, m);
		assert_int_equal(m->append.n_added, rows[i].n_added);
		assert_int_equal(m->append.n_total, rows[i].n_total);
		message_free(m);
	}
	/* The session that is not there is refused as ever. */
	m = new_request(&b, MESSAGE_APPEND);
	m->append.session = session + 1;
	m->append.ids = ids;
	m->append.n_ids = 3;
	m->append.begins_with_bos = true;
	queue_push(b.in, &m->node);
	assert_ptr_equal(receive(&b), m);
	assert_int_equal(m->code, -ENOENT);
	message_free(m);
	bench_close(&b);
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
	assert_int_equal(m->status->memory.roles[VK_MEMORY_KV].spilled_bytes, 10);
	assert_int_equal(m->status->memory.chunk.n_rows, N_ROWS);
	assert_int_equal(m->status->memory.chunk.n_asked, 2 * N_ROWS);
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

/* Where it is to end on a spill, one that a step's memory makes ends it too. */
static void test_step_spills(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	is_step_spilling = true;
	struct message *m = start(&b, open_session(&b), 0);
	struct message *failed = NULL, *other;
	bool is_finished = false;

	while (!failed || !is_finished) {
		other = receive(&b);
		is_finished |= other == m;
		if (other->kind == MESSAGE_FAILED)
			failed = other;
		else
			message_free(other);
	}
	assert_true(failed->code < 0);
	assert_string_equal(message_get_error(failed), "spilled: kv");
	message_free(failed);
	bench_close(&b);
}

/* The tokens of a generation without an end, until its last message, which is returned. */
static struct message *skip_tokens(struct bench *b)
{
	struct message *m;

	while ((m = receive(b))->kind == MESSAGE_TOKEN)
		message_free(m);
	return m;
}

/* While a step is made others ask: the tokens that its stream got between their answers. */
static void ask_beside_stream(enum message_kind kind, uint32_t n_requests, uint32_t n_most)
{
	struct bench b;
	uint32_t n_answered = 0, n_run = 0, n_longest = 0;

	bench_open(&b);
	is_gated = true;
	struct message *stream = start(&b, open_session(&b), 0);
	for (uint32_t i = 0; i < n_requests; i++)
		queue_push(b.in, &new_request(&b, kind)->node);
	is_gated = false;
	sem_post(&gate);
	while (n_answered < n_requests) {
		struct message *m = receive(&b);

		if (m->kind == MESSAGE_GENERATE)
			fail_msg("the stream has ended");
		n_run = m->kind == MESSAGE_TOKEN ? 0 : n_run + 1;
		n_answered += m->kind == kind;
		n_longest = n_run > n_longest ? n_run : n_longest;
		message_free(m);
	}
	assert_in_range(n_longest, 1, n_most);
	engine_stop(b.engine);
	assert_ptr_equal(skip_tokens(&b), stream);
	message_free(stream);
	bench_close(&b);
}

/* Whoever asks without a pause keeps no stream from its tokens, however long an answer takes. */
static void test_requests_beside_stream(void **state)
{
	(void)state;
	ask_beside_stream(MESSAGE_STATUS, 1000, 64);
	ask_beside_stream(MESSAGE_CANCEL, 1000, 64); /* of no session: refused */
	ask_beside_stream(MESSAGE_SAVE, 5, 1);
	ask_beside_stream(MESSAGE_RESTORE, 5, 1);
	ask_beside_stream(MESSAGE_BENCH_MEMORY, 5, 1);
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
		CASE(test_runs_ahead),
		CASE(test_ahead_of_a_request),
		CASE(test_scope),
		CASE(test_begins_with_bos),
		CASE(test_status),
		CASE(test_device_lost),
		CASE(test_step_fails),
		CASE(test_step_spills),
		CASE(test_requests_beside_stream),
		CASE(test_disconnect),
		CASE(test_stop_cancels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
