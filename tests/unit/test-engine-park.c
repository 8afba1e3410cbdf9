/* SPDX-License-Identifier: Apache-2.0 */
/* The engine parks, comes back, and changes generations. */
#include "proto/util/clock.h"
#include "tests/unit/engine-bench.h"

/* ---- parking ---- */

static void notice(struct bench *b, enum message_notice_kind kind, uint64_t generation)
{
	struct message *m = message_new(MESSAGE_NOTICE, 0, 0);
	struct err why = ERR_NULL;

	assert_non_null(m);
	m->notice = (struct message_notice){.kind = kind, .generation = generation};
	if (kind == MESSAGE_NOTICE_LOST || kind == MESSAGE_NOTICE_UNLEASED) {
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

/* Unlike a refusal: what is not to spill has, and the process is to end. */
static void test_spill_ends_it(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	notice(&b, MESSAGE_NOTICE_PRESSURE, 0);
	expect_changed(&b, 0);
	stack_result = STACK_SPILLED;
	refuse_ask(&b, ask(&b, session, 1), -EIO, "spilled: kv");
	struct message *failed = receive_kind(&b, MESSAGE_FAILED);
	assert_string_equal(message_get_error(failed), "spilled: kv");
	message_free(failed);
	bench_close(&b);
}

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

static void notice_contents(
	struct bench *b, uint64_t generation, const struct weights_client_contents *contents)
{
	struct message *m = message_new(MESSAGE_NOTICE, 0, 0);

	assert_non_null(m);
	m->notice = (struct message_notice){
		.kind = MESSAGE_NOTICE_IDENTIFIED, .generation = generation, .contents = *contents};
	queue_push(b->in, &m->node);
}

/* How a generation of text ends that loses `from` amid its tokens, while the next holds `to`. */
static void lose_to(const struct weights_client_contents *from,
	const struct weights_client_contents *to, enum message_reason reason)
{
	const struct weights_client_contents contents[2] = {*from, *to};
	struct bench b;

	told_contents = contents;
	bench_open(&b);
	told_contents = NULL;
	uint64_t session = open_session(&b);
	newest = 2;
	struct message *m = lose_amid(&b, session), *other;
	while ((other = receive(&b)) != m)
		message_free(other);
	assert_int_equal(m->generate.finished.reason, reason);
	message_free(m);
	if (reason == MESSAGE_REASON_FAILED)
		expect_changed(&b, 2);
	expect_manifest(&b, 2, 1);
	bench_close(&b);
}

static void test_same_contents(void **state)
{
	const struct weights_client_contents nothing = {0};
	const struct weights_client_contents file = {.has_file = true, .file = {1}};
	const struct weights_client_contents other_file = {.has_file = true, .file = {2}};
	const struct weights_client_contents both = {
		.has_file = true, .file = {1}, .has_identity = true, .identity = {3}};
	const struct weights_client_contents moved = {
		.has_file = true, .file = {2}, .has_identity = true, .identity = {3}};

	(void)state;
	lose_to(&file, &file, MESSAGE_REASON_LENGTH);
	lose_to(&file, &both, MESSAGE_REASON_LENGTH);
	lose_to(&both, &moved, MESSAGE_REASON_LENGTH);
	lose_to(&file, &other_file, MESSAGE_REASON_FAILED);
	lose_to(&file, &moved, MESSAGE_REASON_FAILED);
	lose_to(&file, &nothing, MESSAGE_REASON_FAILED);
}

/* What the identity is may become known after the lease, and before the generation is lost. */
static void test_identified(void **state)
{
	const struct weights_client_contents known = {.has_identity = true, .identity = {7}};
	const struct weights_client_contents files[2] = {{.has_file = true}, {.has_file = true}};
	struct bench b;

	(void)state;
	told_contents = files;
	bench_open(&b);
	told_contents = NULL;
	notice_contents(&b, 2, &known); /* of another one */
	settle(&b);
	notice_contents(&b, 1, &known);
	struct message *m = receive_kind(&b, MESSAGE_CHANGED);
	assert_true(m->changed.has_identity);
	assert_int_equal(m->changed.identity[0], 7);
	message_free(m);
	/* What it was told before stays, and is no news again. */
	notice_contents(&b, 1, &known);
	settle(&b);
	assert_true(weights[0].contents.has_file && weights[0].contents.has_identity);
	bench_close(&b);
}

/* Idle, it goes as soon as somebody can be asked for another; what the next weightd calls by the
 * same number is another one. */
static void test_unleased_when_idle(void **state)
{
	struct bench b;

	(void)state;
	bench_open_with(&b, 0, true);
	uint64_t session = open_session(&b);
	finish_ask(&b, ask(&b, session, 1), 1);
	is_gone = true;
	notice(&b, MESSAGE_NOTICE_REPLACED, 3);
	notice(&b, MESSAGE_NOTICE_UNLEASED, 1);
	settle(&b);
	assert_int_equal(n_stacks, 1);
	is_gone = false;
	notice(&b, MESSAGE_NOTICE_BACK, 0);
	expect_changed(&b, 0);
	settle(&b);
	assert_int_equal(n_stacks, 0);
	struct message *m = ask(&b, session, 1);
	expect_changed(&b, 1);
	expect_manifest(&b, 1, 1);
	finish_ask(&b, m, 1);
	assert_int_equal(first_row.position, 0);
	/* The number 3 was of the weightd before. */
	settle(&b);
	assert_int_equal(n_stacks, 1);
	assert_int_equal(n_left, 1);
	bench_close(&b);
}

/* A newer one that was told of meanwhile is moved to when the last generation has ended. */
static void test_moves_after_the_last(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	is_gated = true;
	struct message *m = ask(&b, session, 2);
	message_free(receive_kind(&b, MESSAGE_STARTED));
	newest = 3;
	notice(&b, MESSAGE_NOTICE_REPLACED, 3);
	sem_post(&gate);
	sem_post(&gate);
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	assert_ptr_equal(receive(&b), m);
	message_free(m);
	expect_changed(&b, 0);
	expect_changed(&b, 3);
	expect_manifest(&b, 3, 1);
	bench_close(&b);
}

/* Its weights are as good as before: what is under way ends on them, and then they go. */
static void test_unleased_amid(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b);
	uint64_t session = open_session(&b);
	is_gated = true;
	struct message *m = ask(&b, session, 2);
	message_free(receive_kind(&b, MESSAGE_STARTED));
	sem_post(&gate);
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	newest = 3;
	notice(&b, MESSAGE_NOTICE_UNLEASED, 1);
	assert_int_equal(n_stacks, 1);
	sem_post(&gate);
	message_free(receive_kind(&b, MESSAGE_TOKEN));
	assert_ptr_equal(receive(&b), m);
	assert_int_equal(m->generate.finished.reason, MESSAGE_REASON_LENGTH);
	message_free(m);
	expect_changed(&b, 0);
	is_gated = false;
	m = ask(&b, session, 1);
	expect_changed(&b, 3);
	finish_ask(&b, m, 1);
	expect_manifest(&b, 3, 1);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_park_and_return),
		CASE(test_busy_does_not_park),
		CASE(test_parks_when_idle),
		CASE(test_refused_stays_parked),
		CASE(test_spill_ends_it),
		CASE(test_moves),
		CASE(test_moves_with_sessions),
		CASE(test_other_tokens_after_a_park),
		CASE(test_lost_goes_on),
		CASE(test_lost_ends),
		CASE(test_lost_when_idle),
		CASE(test_same_contents),
		CASE(test_identified),
		CASE(test_unleased_when_idle),
		CASE(test_unleased_amid),
		CASE(test_moves_after_the_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
