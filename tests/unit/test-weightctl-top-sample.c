/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-sample.h"

#include <errno.h>
#include <string.h>

#include "tests/case.h"

#define SECONDS(n) ((uint64_t)(n)*1000000000)

static struct worker_client_status before, now;

static void fill(void)
{
	before = (struct worker_client_status){
		.pid = 7,
		.uptime_ns = SECONDS(10),
		.prompt_tokens = 100,
		.generated_tokens = 50,
		.experts = {.n_slots = 8, .n_found = 10, .n_fetched = 10, .n_direct = 10},
	};
	now = before;
	now.uptime_ns = SECONDS(12);
	now.prompt_tokens += 300;
	now.generated_tokens += 5;
	now.experts.n_found += 6;
	now.experts.n_fetched += 1;
	now.experts.n_direct += 1;
}

static bool is_unknown(struct top_sample_rates r)
{
	return r.prompt < 0 && r.generated < 0 && r.found < 0;
}

static void test_rates(void **state)
{
	struct top_sample_rates r;

	(void)state;
	fill();
	r = top_sample_get_rates(&before, &now);
	assert_true(r.prompt == 150 && r.generated == 2.5 && r.found == 0.75);
	/* Nothing wanted, a cache that begins anew after parking, none at all. */
	now.experts = before.experts;
	assert_true(top_sample_get_rates(&before, &now).found < 0);
	now.experts.n_found = 1;
	r = top_sample_get_rates(&before, &now);
	assert_true(r.found < 0 && r.generated == 2.5);
	now.experts = (struct worker_client_experts){0};
	assert_true(top_sample_get_rates(&before, &now).found < 0);
}

/* Each alone tells that it is another process, or no later moment. */
static void test_restarts(void **state)
{
	(void)state;
	fill();
	now.pid = 8;
	assert_true(is_unknown(top_sample_get_rates(&before, &now)));
	fill();
	now.uptime_ns = SECONDS(1);
	assert_true(is_unknown(top_sample_get_rates(&before, &now)));
	now.uptime_ns = before.uptime_ns;
	assert_true(is_unknown(top_sample_get_rates(&before, &now)));
	fill();
	now.prompt_tokens = before.prompt_tokens - 1;
	assert_true(is_unknown(top_sample_get_rates(&before, &now)));
	fill();
	now.generated_tokens = before.generated_tokens - 1;
	assert_true(is_unknown(top_sample_get_rates(&before, &now)));
	/* The largest counters that there are. */
	fill();
	before.generated_tokens = 0;
	now.generated_tokens = UINT64_MAX;
	assert_true(top_sample_get_rates(&before, &now).generated > 1e18);
}

static void test_status(void **state)
{
	struct top_sample s = {.is_fixed = true};
	struct top_sample_worker *w;

	(void)state;
	fill();
	assert_int_equal(top_sample_add(&s, 0, NULL), 0);
	w = s.workers[0];
	assert_int_equal(top_sample_judge(w, 5), TOP_SAMPLE_ASKED);
	top_sample_set_status(w, &before);
	assert_true(w->has_status && is_unknown(w->rates));
	top_sample_set_status(w, &now);
	assert_true(w->rates.generated == 2.5);
	assert_int_equal(top_sample_judge(w, 5), TOP_SAMPLE_READY);
	now.is_parked = true;
	now.n_sessions_listed = 3;
	now.sessions[0].state = WORKER_CLIENT_IDLE;
	now.sessions[1].state = WORKER_CLIENT_PROMPT;
	now.sessions[2].state = WORKER_CLIENT_DECODING;
	now.n_roles = 2;
	now.roles[0].n_spills = 3;
	now.roles[1].n_spills = 1ull << 40;
	top_sample_set_status(w, &now);
	assert_int_equal(top_sample_judge(w, 5), TOP_SAMPLE_PARKED);
	assert_int_equal(top_sample_count_generating(&w->status), 2);
	assert_true(top_sample_count_spills(&w->status) == (1ull << 40) + 3);
	top_sample_fini(&s);
}

static void test_contact(void **state)
{
	struct top_sample s = {.is_fixed = true};
	uint64_t silent_ns = 0;
	const uint64_t limit_ns = TOP_SAMPLE_SILENT_MS * 1000000ull;

	(void)state;
	fill();
	assert_int_equal(top_sample_add(&s, 0, "/w"), 0);
	struct top_sample_worker *w = s.workers[0];
	struct top_sample_contact *c = &w->contact;
	top_sample_ask(c, 1000);
	top_sample_ask(c, 2000); /* of one that is asked already the first counts */
	assert_false(top_sample_is_silent(c, 1000 + limit_ns - 1, &silent_ns));
	assert_true(top_sample_is_silent(c, 1000 + limit_ns, &silent_ns));
	assert_true(silent_ns == limit_ns);
	assert_int_equal(top_sample_judge(w, 1000 + limit_ns), TOP_SAMPLE_SILENT);
	/* A client that gave up waiting has not heard anything. */
	top_sample_hear(c, -ETIMEDOUT, "worker does not answer");
	assert_int_equal(top_sample_judge(w, 2000 + limit_ns), TOP_SAMPLE_SILENT);
	top_sample_hear(c, -ECONNREFUSED, "/w: connect: refused");
	assert_int_equal(top_sample_judge(w, 2000 + limit_ns), TOP_SAMPLE_FAILED);
	assert_string_equal(c->trouble, "/w: connect: refused");
	top_sample_hear(c, -ENOMEM, "");
	assert_string_equal(c->trouble, strerror(ENOMEM));
	top_sample_ask(c, 9000);
	assert_int_equal(top_sample_judge(w, 9001), TOP_SAMPLE_FAILED);
	top_sample_hear(c, 0, "");
	top_sample_set_status(w, &before);
	assert_int_equal(top_sample_judge(w, UINT64_MAX), TOP_SAMPLE_READY);
	top_sample_fini(&s);
}

/* A status of weightd with n of these peers; its arrays are on the heap, as the client's are. */
static struct weights_client_status new_weightd(const struct weights_client_peer *peers, uint32_t n)
{
	struct weights_client_status s = {.n_peers = n, .peers = calloc(n, sizeof(*peers))};

	assert_non_null(s.peers);
	memcpy(s.peers, peers, n * sizeof(*peers));
	return s;
}

/* Only what the client would free is freed here. */
void weights_client_status_fini(struct weights_client_status *s)
{
	free(s->peers);
}

static uint32_t set_weightd(
	struct top_sample *s, const struct weights_client_peer *peers, uint32_t n)
{
	struct weights_client_status status = new_weightd(peers, n);
	struct top_sample_worker **gone;
	uint32_t n_gone;

	assert_int_equal(top_sample_set_weightd(s, &status, &gone, &n_gone), 0);
	assert_null(status.peers);
	for (uint32_t i = 0; i < n_gone; i++)
		top_sample_free_worker(gone[i]);
	free(gone);
	return n_gone;
}

#define WORKER(p, path)                                                        \
	{                                                                      \
		.pid = (p), .role = WEIGHTS_CLIENT_WORKER, .has_report = true, \
		.report.socket = (path)                                        \
	}

static void test_peers(void **state)
{
	struct weights_client_peer peers[] = {
		WORKER(1, "/a"),
		{.pid = 2, .role = WEIGHTS_CLIENT_CONTROL},
		{.pid = 3, .role = WEIGHTS_CLIENT_WORKER},
		{.pid = 4, .role = WEIGHTS_CLIENT_WORKER, .is_gone = true},
		WORKER(5, "/b"),
	};
	struct weights_client_peer later[] = {
		WORKER(5, "/b"),
		WORKER(3, "/c"),
		WORKER(1, "/a"),
		WORKER(6, "/b"),
		WORKER(6, "/b"),
	};
	struct top_sample s = {.has_weightd = true};

	(void)state;
	assert_int_equal(set_weightd(&s, peers, ARRAY_SIZE(peers)), 0);
	assert_int_equal(s.n_workers, 3);
	assert_string_equal(s.workers[0]->socket, "/a");
	assert_true(s.workers[1]->pid == 3 && s.workers[1]->socket[0] == '\0');
	assert_int_equal(top_sample_judge(s.workers[1], 5), TOP_SAMPLE_NEW);
	const struct top_sample_worker *a = s.workers[0], *b = s.workers[2];
	/* In another order, one with a socket by now, one that left its path to another: and a peer
	 * that is there twice is two. */
	assert_int_equal(set_weightd(&s, later, ARRAY_SIZE(later)), 1);
	assert_int_equal(s.n_workers, 5);
	assert_ptr_equal(s.workers[0], b);
	assert_ptr_equal(s.workers[2], a);
	assert_string_equal(s.workers[1]->socket, "/c");
	assert_true(s.workers[3]->pid == 6 && s.workers[4]->pid == 6);
	assert_ptr_not_equal(s.workers[3], s.workers[4]);
	assert_int_equal(set_weightd(&s, later, ARRAY_SIZE(later)), 0);
	assert_int_equal(set_weightd(&s, later, 1), 4);
	assert_ptr_equal(s.workers[0], b);
	assert_int_equal(set_weightd(&s, later, 0), 1);
	assert_int_equal(s.n_workers, 0);
	top_sample_fini(&s);
}

static void test_fixed(void **state)
{
	struct weights_client_peer peers[] = {WORKER(1, "/a")};
	struct top_sample s = {.has_weightd = true, .is_fixed = true};

	(void)state;
	assert_int_equal(top_sample_add(&s, 0, "/mine"), 0);
	assert_int_equal(set_weightd(&s, peers, 1), 0);
	assert_int_equal(s.n_workers, 1);
	assert_string_equal(s.workers[0]->socket, "/mine");
	assert_int_equal(s.weightd.n_peers, 1);
	top_sample_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_rates),
		CASE(test_restarts),
		CASE(test_status),
		CASE(test_contact),
		CASE(test_peers),
		CASE(test_fixed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
