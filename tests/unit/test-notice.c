/* SPDX-License-Identifier: Apache-2.0 */
/* Events of weightd as messages to the engine: those of its model, and no others. */
#include "tests/case.h"

#include <errno.h>

#include "proto/weights-client.h"
#include "workerd/message.h"
#include "workerd/notice.h"
#include "workerd/queue.h"

static void test_events(void **state)
{
	static const struct {
		enum weights_client_event_kind kind;
		const char *model;
		const char *text;
		int notice; /* -1: none */
		const char *error;
	} rows[] = {
		{WEIGHTS_CLIENT_PRESSURE, "", "", MESSAGE_NOTICE_PRESSURE, NULL},
		{WEIGHTS_CLIENT_REPLACED, "demo", "", MESSAGE_NOTICE_REPLACED, NULL},
		{WEIGHTS_CLIENT_REPLACED, "other", "", -1, NULL},
		{WEIGHTS_CLIENT_LOST, "demo", "it was cut", MESSAGE_NOTICE_LOST, "it was cut"},
		{WEIGHTS_CLIENT_LOST, "demonstration", "it was cut", -1, NULL},
		{WEIGHTS_CLIENT_CORRUPT, "demo", "blk.0", MESSAGE_NOTICE_LOST, "blk.0"},
		{WEIGHTS_CLIENT_EXPELLED, "demo", "", MESSAGE_NOTICE_LOST, "the lease has ended"},
		{WEIGHTS_CLIENT_IDENTIFIED, "demo", "", MESSAGE_NOTICE_IDENTIFIED, NULL},
		{WEIGHTS_CLIENT_IDENTIFIED, "other", "", -1, NULL},
		{WEIGHTS_CLIENT_PREFIXES, "demo", "", MESSAGE_NOTICE_PREFIXES, NULL},
		{WEIGHTS_CLIENT_PREFIXES, "other", "", -1, NULL},
		{WEIGHTS_CLIENT_READY, "demo", "", -1, NULL},
		{WEIGHTS_CLIENT_PROGRESS, "demo", "", -1, NULL},
		{WEIGHTS_CLIENT_UNLOADED, "demo", "", -1, NULL},
	};
	struct notice_params params = {.model = "demo"};

	(void)state;
	assert_int_equal(queue_new(&params.engine), 0);
	for (uint64_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct weights_client_event event = {.kind = rows[i].kind,
			.model = rows[i].model,
			.generation = i + 1,
			.text = rows[i].text,
			.contents = {.has_file = true, .file = {(uint8_t)i}}};

		notice_on_event(&event, &params);
		struct queue_node *node = queue_take(params.engine);
		assert_int_equal(node != NULL, rows[i].notice >= 0);
		if (!node)
			continue;
		struct message *m = message_from_node(node);
		assert_int_equal(m->kind, MESSAGE_NOTICE);
		assert_int_equal(m->notice.kind, rows[i].notice);
		assert_int_equal(m->notice.generation, i + 1);
		if (m->notice.kind != MESSAGE_NOTICE_PRESSURE)
			assert_int_equal(m->notice.contents.file[0], i);
		if (rows[i].error)
			assert_string_equal(message_get_error(m), rows[i].error);
		else
			assert_int_equal(m->code, 0);
		message_free(m);
		assert_null(queue_take(params.engine));
	}
	queue_free(params.engine);
}

/* What wakes the engine when weightd can be asked again, and asks for nothing itself. */
static void test_back(void **state)
{
	struct notice_params params = {.model = "demo"};

	(void)state;
	assert_int_equal(queue_new(&params.engine), 0);
	const struct weights_client_contents contents = {.has_identity = true, .identity = {5}};
	notice_tell_back(&params, 7, &contents);
	struct message *m = message_from_node(queue_take(params.engine));
	assert_int_equal(m->kind, MESSAGE_NOTICE);
	assert_int_equal(m->notice.kind, MESSAGE_NOTICE_BACK);
	assert_int_equal(m->notice.generation, 7);
	assert_memory_equal(&m->notice.contents, &contents, sizeof(contents));
	message_free(m);
	queue_free(params.engine);
}

static void test_unleased(void **state)
{
	struct notice_params params = {.model = "demo"};

	(void)state;
	assert_int_equal(queue_new(&params.engine), 0);
	notice_tell_unleased(&params, 7, "generation 7 is not to be had back");
	struct message *m = message_from_node(queue_take(params.engine));
	assert_int_equal(m->notice.kind, MESSAGE_NOTICE_UNLEASED);
	assert_int_equal(m->notice.generation, 7);
	assert_string_equal(message_get_error(m), "generation 7 is not to be had back");
	message_free(m);
	queue_free(params.engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_events),
		CASE(test_back),
		CASE(test_unleased),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
