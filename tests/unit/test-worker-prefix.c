/* SPDX-License-Identifier: Apache-2.0 */
/* A prefix asked of a worker: what goes out, and what its answer may be. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/worker-prefix.h"
#include "proto/workerd.pb-c.h"

static int peer;

static void reply(uint64_t id, Wk__Reply__BodyCase body, void *content)
{
	Wk__Reply r = WK__REPLY__INIT;
	uint8_t data[1024];

	r.id = id;
	r.body_case = body;
	r.error = content; /* the body is a union of pointers */
	assert_int_equal(stream_send(peer, data, (uint32_t)wk__reply__pack(&r, data)), 0);
}

/* The answers of a case are in the socket before the client asks: ids are 1 (Hello), 2, ... */
static struct worker_client *open_client(void)
{
	Wk__Welcome w = WK__WELCOME__INIT;
	struct worker_client *c = NULL;
	struct err e = ERR_NULL;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	peer = pair[0];
	w.protocol = STREAM_PROTOCOL;
	w.model = (char *)"atlas";
	reply(1, WK__REPLY__BODY_WELCOME, &w);
	assert_int_equal(worker_client_new_connected(pair[1], &e, &c), 0);
	return c;
}

static Wk__Request *take_request(uint64_t id)
{
	struct err e = ERR_NULL;
	Wk__Request *r;
	uint8_t *data;
	uint32_t n;

	do {
		assert_int_equal(stream_recv(peer, &e, &data, &n), 0);
		r = wk__request__unpack(NULL, n, data);
		free(data);
		assert_non_null(r);
		if (r->id == id)
			return r;
		wk__request__free_unpacked(r, NULL);
	} while (true);
}

static void publishes(void **state)
{
	struct worker_client *c = open_client();
	const struct worker_prefix_params params = {.text = "the rules",
		.n_bytes = 9,
		.has_bos = true,
		.name = "rules",
		.is_shared = true};
	Wk__PrefixPublished p = WK__PREFIX_PUBLISHED__INIT;
	struct worker_prefix got;
	struct err e = ERR_NULL;

	(void)state;
	p.id = UINT64_C(1) << 62;
	p.n_tokens = 96;
	p.n_bytes = 4096;
	p.computed_tokens = 64;
	p.existed = true;
	reply(2, WK__REPLY__BODY_PREFIX_PUBLISHED, &p);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), 0);
	assert_true(got.id == p.id && got.n_tokens == 96 && got.n_bytes == 4096);
	assert_true(got.n_computed == 64 && got.existed);
	Wk__Request *r = take_request(2);
	assert_int_equal(r->body_case, WK__REQUEST__BODY_PUBLISH_PREFIX);
	assert_int_equal(r->publish_prefix->input_case, WK__PUBLISH_PREFIX__INPUT_TEXT);
	assert_int_equal(r->publish_prefix->text->text.len, 9);
	assert_memory_equal(r->publish_prefix->text->text.data, "the rules", 9);
	assert_true(r->publish_prefix->text->parse_special && r->publish_prefix->text->add_bos);
	assert_string_equal(r->publish_prefix->name, "rules");
	assert_true(r->publish_prefix->shared);
	wk__request__free_unpacked(r, NULL);
	worker_client_free(c);
	close(peer);
}

static void forwards_refusals(void **state)
{
	struct worker_client *c = open_client();
	const struct worker_prefix_params params = {.text = "", .n_bytes = 0};
	struct worker_prefix got = {.id = 7};
	struct err e = ERR_NULL;
	Wk__Error error = WK__ERROR__INIT;
	Wk__Done done = WK__DONE__INIT;

	(void)state;
	error.code = EBUSY;
	error.text = (char *)"prefix: another one is being published";
	reply(2, WK__REPLY__BODY_ERROR, &error);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), -EBUSY);
	assert_string_equal(e.text, error.text);
	reply(3, WK__REPLY__BODY_DONE, &done);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), -EPROTO);
	assert_int_equal(got.id, 7);
	Wk__Request *r = take_request(3);
	assert_string_equal(r->publish_prefix->name, "");
	wk__request__free_unpacked(r, NULL);
	worker_client_free(c);
	close(peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(publishes),
		CASE(forwards_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
