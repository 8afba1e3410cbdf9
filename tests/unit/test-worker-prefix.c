/* SPDX-License-Identifier: Apache-2.0 */
/* A prefix asked of a worker: what goes out, and what its answer may be. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-prefix.h"
#include "tests/unit/worker-peer.h"

static void publishes(void **state)
{
	struct worker_client *c = worker_peer_open_client();
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
	worker_peer_reply(2, WK__REPLY__BODY_PREFIX_PUBLISHED, &p);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), 0);
	assert_true(got.id == p.id && got.n_tokens == 96 && got.n_bytes == 4096);
	assert_true(got.n_computed == 64 && got.existed);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_PUBLISH_PREFIX);
	assert_int_equal(r->publish_prefix->input_case, WK__PUBLISH_PREFIX__INPUT_TEXT);
	assert_int_equal(r->publish_prefix->text->text.len, 9);
	assert_memory_equal(r->publish_prefix->text->text.data, "the rules", 9);
	assert_true(r->publish_prefix->text->parse_special && r->publish_prefix->text->add_bos);
	assert_string_equal(r->publish_prefix->name, "rules");
	assert_true(r->publish_prefix->shared);
	wk__request__free_unpacked(r, NULL);
	worker_peer_close_client(c);
}

static void forwards_refusals(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	const struct worker_prefix_params params = {.text = "", .n_bytes = 0};
	struct worker_prefix got = {.id = 7};
	struct err e = ERR_NULL;
	Wk__Error error = WK__ERROR__INIT;
	Wk__Done done = WK__DONE__INIT;

	(void)state;
	error.code = EBUSY;
	error.text = (char *)"prefix: another one is being published";
	worker_peer_reply(2, WK__REPLY__BODY_ERROR, &error);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), -EBUSY);
	assert_string_equal(e.text, error.text);
	worker_peer_reply(3, WK__REPLY__BODY_DONE, &done);
	assert_int_equal(worker_prefix_publish(c, &params, &e, &got), -EPROTO);
	assert_int_equal(got.id, 7);
	worker_peer_drop(2, WK__REQUEST__BODY_PUBLISH_PREFIX);
	Wk__Request *r = worker_peer_take(3, WK__REQUEST__BODY_PUBLISH_PREFIX);
	assert_string_equal(r->publish_prefix->name, "");
	wk__request__free_unpacked(r, NULL);
	worker_peer_close_client(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(publishes),
		CASE(forwards_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
