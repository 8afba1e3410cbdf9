/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a device's memory, and every interleaving that a generator comes upon. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/account.h"

enum { N_PEERS = 6, N_GENERATIONS = 4, BUDGET = 1000, N_ASKS = 64 };

#define WAIT_NS 5000000000ull
#define FIRST_HOLDER 100

/* What the account has been told and has answered, as this file counts it. */
struct world {
	struct account *account;
	uint64_t now_ns;
	uint64_t n_budget;
	/* of peers, id 1 + index; of generations likewise */
	uint64_t granted[N_PEERS];
	bool is_idle[N_PEERS];
	bool is_pressed[N_PEERS];
	uint64_t held; /* by processes without a connection, id FIRST_HOLDER */
	uint64_t weights[N_GENERATIONS];
	bool is_evictable[N_GENERATIONS];
	uint64_t leaving;
	/* asks that wait, in order */
	uint32_t n_waits;
	struct account_request waits[N_ASKS];
	uint64_t since_ns[N_ASKS];
	uint32_t n_answers;
	int last_code;
	uint64_t last_bytes;
	struct err last_err;
	uint32_t n_presses;
};

static uint32_t world_press(void *userdata, uint64_t except)
{
	struct world *w = userdata;
	uint32_t n = 0;

	w->n_presses++;
	for (uint32_t i = 0; i < N_PEERS; i++)
		if (w->granted[i] && i + 1 != except) {
			w->is_pressed[i] = true;
			n++;
		}
	return n;
}

static void world_leave(struct world *w, uint32_t i)
{
	w->leaving += w->weights[i];
	w->weights[i] = 0;
	w->is_evictable[i] = false;
	account_leave(w->account, i + 1, w->now_ns);
}

static void world_evict(void *userdata, uint64_t n_bytes)
{
	struct world *w = userdata;
	uint64_t n_before = w->leaving;

	for (uint32_t i = 0; i < N_GENERATIONS && w->leaving - n_before < n_bytes; i++)
		if (w->is_evictable[i])
			world_leave(w, i);
}

static void world_take(struct world *w, const struct account_request *q, uint64_t n_bytes)
{
	if (q->kind == ACCOUNT_GRANT)
		w->granted[q->id - 1] = n_bytes;
	else
		w->weights[q->id - 1] = n_bytes;
}

/* The oldest ask is the one that is answered: nobody overtakes. */
static void world_answer(void *userdata, const struct account_request *q, int code,
	uint64_t n_bytes, const struct err *err)
{
	struct world *w = userdata;

	assert_true(w->n_waits > 0);
	assert_int_equal(w->waits[0].request, q->request);
	w->n_waits--;
	memmove(w->waits, w->waits + 1, w->n_waits * sizeof(w->waits[0]));
	memmove(w->since_ns, w->since_ns + 1, w->n_waits * sizeof(w->since_ns[0]));
	w->n_answers++;
	w->last_code = code;
	w->last_bytes = n_bytes;
	w->last_err = *err;
	if (code == 0) {
		assert_in_range(n_bytes, q->n_least_bytes, q->n_bytes);
		world_take(w, q, n_bytes);
	} else {
		assert_int_equal(code, -ENOMEM);
		assert_non_null(strstr(err->text, "held: "));
	}
}

static void world_open(struct world *w, uint64_t n_budget)
{
	const struct account_params params = {.device = "test device",
		.n_budget_bytes = n_budget,
		.wait_ns = WAIT_NS,
		.userdata = w,
		.press = world_press,
		.evict = world_evict,
		.answer = world_answer};

	*w = (struct world){.now_ns = 1, .n_budget = n_budget};
	assert_int_equal(account_new(&params, &w->account), 0);
}

static void world_check(const struct world *w)
{
	struct account_figures f;
	uint64_t granted = w->held, weights = w->leaving;

	for (uint32_t i = 0; i < N_PEERS; i++)
		granted += w->granted[i];
	for (uint32_t i = 0; i < N_GENERATIONS; i++)
		weights += w->weights[i];
	account_get_figures(w->account, &f);
	assert_int_equal(f.n_granted_bytes, granted);
	assert_int_equal(f.n_weights_bytes, weights);
	assert_int_equal(f.n_waiting, w->n_waits);
	assert_true(granted + weights <= f.n_budget_bytes);
	for (uint32_t i = 0; i < w->n_waits; i++)
		assert_true(w->now_ns - w->since_ns[i] < WAIT_NS + ACCOUNT_PRESS_NS);
	/* Who is first waits because it does not fit. */
	if (w->n_waits > 0) {
		const struct account_request *q = &w->waits[0];
		uint64_t own =
			q->kind == ACCOUNT_GRANT ? w->granted[q->id - 1] : w->weights[q->id - 1];
		assert_true(granted + weights - own + q->n_bytes > f.n_budget_bytes);
	}
}

static int world_ask(struct world *w, enum account_kind kind, uint64_t id, uint64_t n_bytes,
	uint64_t n_least, struct err *ret_err)
{
	static uint64_t last_request;
	const struct account_request q = {.kind = kind,
		.id = id,
		.request = ++last_request,
		.n_bytes = n_bytes,
		.n_least_bytes = n_least,
		.pid = (int32_t)(1000 + id),
		.model = "demo"};
	uint64_t n_had = kind == ACCOUNT_GRANT ? w->granted[id - 1] : w->weights[id - 1];
	uint64_t n_got = 0;

	assert_true(w->n_waits < N_ASKS);
	/* Before the call: it may be answered inside of it. */
	w->waits[w->n_waits] = q;
	w->since_ns[w->n_waits] = w->now_ns;
	uint32_t n_answers = w->n_answers;
	w->n_waits++;
	int rc = account_request(w->account, &q, w->now_ns, ret_err, &n_got);
	if (n_bytes <= n_had)
		assert_true(rc == 0 || rc == -EBUSY);
	if (rc == ACCOUNT_WAIT)
		return rc;
	/* Others may have been served by it, before or after it. */
	(void)n_answers;
	for (uint32_t i = 0; i < w->n_waits; i++) {
		if (w->waits[i].request != q.request)
			continue;
		w->n_waits--;
		memmove(w->waits + i, w->waits + i + 1, (w->n_waits - i) * sizeof(w->waits[0]));
		memmove(w->since_ns + i, w->since_ns + i + 1,
			(w->n_waits - i) * sizeof(w->since_ns[0]));
	}
	if (rc == 0) {
		assert_in_range(n_got, n_least, n_bytes);
		world_take(w, &q, n_got);
	}
	return rc;
}

static int reserve(struct world *w, uint64_t id, uint64_t n_bytes, struct err *ret_err)
{
	return world_ask(w, ACCOUNT_GRANT, id, n_bytes, n_bytes, ret_err);
}

static void test_counts_at_once(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	for (uint64_t id = 1; id <= 5; id++)
		assert_int_equal(reserve(&w, id, 200, &err), 0);
	world_check(&w);
	assert_int_equal(account_get_grant(w.account, 3), 200);
	/* The sixth waits for the five that were asked, and is refused by name. */
	assert_int_equal(reserve(&w, 6, 200, &err), ACCOUNT_WAIT);
	assert_true(w.is_pressed[0] && w.is_pressed[4]);
	w.now_ns += WAIT_NS - 1;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.n_answers, 0);
	w.now_ns += 1;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.n_answers, 1);
	assert_int_equal(w.last_code, -ENOMEM);
	assert_non_null(strstr(w.last_err.text, "expected 200 bytes, found 0 of 1000 free"));
	assert_non_null(strstr(w.last_err.text, "pid 1006 (model demo)"));
	assert_non_null(strstr(w.last_err.text, "pid 1003 (model demo) 200"));
	world_check(&w);
	account_free(w.account);
}

static void test_nobody_to_wait_for(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(reserve(&w, 1, 1001, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "held: nothing"));
	/* Its own grant is none that others could give up. */
	assert_int_equal(reserve(&w, 1, 600, &err), 0);
	assert_int_equal(reserve(&w, 1, 1001, &err), -ENOMEM);
	assert_int_equal(w.granted[0], 600);
	/* It takes less rather than nothing. */
	assert_int_equal(world_ask(&w, ACCOUNT_GRANT, 1, 1001, 700, &err), 0);
	assert_int_equal(w.granted[0], 1000);
	world_check(&w);
	/* What never fits disturbs nobody. */
	w.n_presses = 0;
	assert_int_equal(reserve(&w, 2, 1001, &err), -ENOMEM);
	assert_int_equal(w.n_presses, 0);
	assert_int_equal(reserve(&w, 2, 1000, &err), ACCOUNT_WAIT);
	assert_int_equal(w.n_presses, 1);
	account_free(w.account);
}

static void test_parks_serve_in_order(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(reserve(&w, 1, 500, &err), 0);
	assert_int_equal(reserve(&w, 2, 500, &err), 0);
	assert_int_equal(reserve(&w, 3, 700, &err), ACCOUNT_WAIT);
	assert_int_equal(reserve(&w, 4, 100, &err), ACCOUNT_WAIT);
	/* 500 would serve the second, but the first was there before. */
	assert_int_equal(reserve(&w, 1, 0, &err), 0);
	assert_int_equal(w.n_answers, 0);
	assert_int_equal(reserve(&w, 5, 10, &err), ACCOUNT_WAIT);
	assert_int_equal(reserve(&w, 2, 0, &err), 0);
	assert_int_equal(w.n_answers, 3);
	assert_int_equal(w.granted[2], 700);
	assert_int_equal(w.granted[3], 100);
	assert_int_equal(w.granted[4], 10);
	world_check(&w);
	account_free(w.account);
}

static void test_evicts_and_counts_until_free(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(world_ask(&w, ACCOUNT_WEIGHTS, 1, 600, 600, &err), 0);
	w.is_evictable[0] = true;
	assert_int_equal(reserve(&w, 1, 800, &err), ACCOUNT_WAIT);
	assert_int_equal(w.leaving, 600);
	world_check(&w);
	account_freed(w.account, 599, w.now_ns);
	w.leaving -= 599;
	assert_int_equal(w.n_answers, 1); /* 999 are free */
	assert_int_equal(w.granted[0], 800);
	world_check(&w);
	/* A load takes what there is. */
	assert_int_equal(world_ask(&w, ACCOUNT_WEIGHTS, 2, 600, 0, &err), ACCOUNT_WAIT);
	w.now_ns += WAIT_NS;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.last_code, 0);
	assert_int_equal(w.weights[1], 199);
	account_set_weights(w.account, 2, 100, w.now_ns);
	w.weights[1] = 100;
	world_check(&w);
	account_free(w.account);
}

/* What is there, without a word to anybody; but not what others wait for. */
static void test_takes(void **state)
{
	const struct account_request q = {.kind = ACCOUNT_WEIGHTS, .id = 3, .n_bytes = 700};
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(account_take(w.account, &q), 700);
	account_set_weights(w.account, 3, 0, w.now_ns);
	assert_int_equal(reserve(&w, 1, 600, &err), 0);
	assert_int_equal(account_take(w.account, &q), 400);
	assert_int_equal(w.n_presses, 0);
	w.weights[2] = 400;
	world_check(&w);
	account_set_weights(w.account, 3, 100, w.now_ns);
	w.weights[2] = 100;
	assert_int_equal(reserve(&w, 2, 500, &err), ACCOUNT_WAIT);
	assert_int_equal(account_take(w.account, &q), 0);
	account_free(w.account);
}

/* Beyond the least only what is free, and nobody is asked for that. */
static void test_modest(void **state)
{
	struct account_request q = {.kind = ACCOUNT_GRANT,
		.id = 2,
		.n_bytes = 700,
		.n_least_bytes = 300,
		.is_modest = true};
	struct world w;
	struct err err = ERR_NULL;
	uint64_t n_bytes = 0;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(reserve(&w, 1, 600, &err), 0);
	assert_int_equal(account_request(w.account, &q, w.now_ns, &err, &n_bytes), 0);
	assert_int_equal(n_bytes, 400);
	assert_int_equal(w.n_presses, 0);
	/* What it has already is more than the others have left. */
	q.n_least_bytes = 400;
	q.n_bytes = 900;
	assert_int_equal(account_request(w.account, &q, w.now_ns, &err, &n_bytes), 0);
	assert_int_equal(n_bytes, 400);
	q.n_least_bytes = 401;
	assert_int_equal(account_request(w.account, &q, w.now_ns, &err, &n_bytes), ACCOUNT_WAIT);
	assert_int_equal(w.n_presses, 1);
	account_free(w.account);
}

/* Weights that are let go while somebody waits go at once. */
static void test_evicts_when_let_go(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(world_ask(&w, ACCOUNT_WEIGHTS, 1, 600, 600, &err), 0);
	assert_int_equal(reserve(&w, 1, 100, &err), 0);
	assert_int_equal(reserve(&w, 2, 800, &err), ACCOUNT_WAIT);
	assert_int_equal(w.leaving, 0);
	w.is_evictable[0] = true; /* its last worker parks */
	assert_int_equal(reserve(&w, 1, 0, &err), 0);
	assert_int_equal(w.leaving, 600);
	w.leaving = 0;
	account_freed(w.account, 600, w.now_ns);
	assert_int_equal(w.granted[1], 800);
	world_check(&w);
	account_free(w.account);
}

static void test_grant_ends_with_the_process(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(reserve(&w, 1, 600, &err), 0);
	account_close(w.account, 1, FIRST_HOLDER, w.now_ns);
	assert_int_equal(account_get_grant(w.account, 1), 0);
	assert_int_equal(account_get_grant(w.account, FIRST_HOLDER), 600);
	w.granted[0] = 0;
	w.held = 600;
	world_check(&w);
	assert_int_equal(reserve(&w, 2, 600, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "600 without a connection"));
	/* Back again, and away with the process gone. */
	account_resume(w.account, FIRST_HOLDER, 3);
	assert_int_equal(account_get_grant(w.account, 3), 600);
	account_exit(w.account, 3, w.now_ns); /* a live peer's grant is none of a holder */
	assert_int_equal(account_get_grant(w.account, 3), 600);
	account_close(w.account, 3, FIRST_HOLDER, w.now_ns);
	assert_int_equal(reserve(&w, 4, 100, &err), 0);
	account_close(w.account, 4, FIRST_HOLDER, w.now_ns);
	assert_int_equal(account_get_grant(w.account, FIRST_HOLDER), 700);
	account_exit(w.account, FIRST_HOLDER, w.now_ns);
	assert_int_equal(account_get_grant(w.account, FIRST_HOLDER), 0);
	assert_int_equal(reserve(&w, 2, 1000, &err), 0);
	account_close(w.account, 2, 0, w.now_ns);
	assert_int_equal(account_get_grant(w.account, 2), 0);
	memset(w.granted, 0, sizeof(w.granted));
	/* What was there before the account: more than the budget, and nobody gets more. */
	account_restore(
		w.account, &(struct account_request){
				   .kind = ACCOUNT_GRANT, .id = 5, .n_bytes = 1200, .pid = 1005});
	assert_int_equal(account_get_grant(w.account, 5), 1200);
	assert_int_equal(reserve(&w, 6, 1, &err), -ENOMEM);
	w.granted[4] = 1200;
	assert_int_equal(reserve(&w, 5, 900, &err), 0);
	assert_int_equal(reserve(&w, 6, 100, &err), 0);
	account_free(w.account);
}

static void note_grant(uint64_t id, uint64_t n_bytes, const char *model, void *userdata)
{
	char *text = userdata;

	sprintf(text + strlen(text), "%llu %llu %s;", (unsigned long long)id,
		(unsigned long long)n_bytes, model);
}

/* What a process was granted before this account began counts until it is back or gone. */
static void test_recalled(void **state)
{
	struct account_request q = {
		.kind = ACCOUNT_GRANT, .id = 105, .n_bytes = 500, .pid = 1005, .model = "a"};
	char text[200] = "";
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	account_recall(w.account, &q);
	assert_true(account_is_recalled(w.account, 105));
	assert_int_equal(reserve(&w, 6, BUDGET - 499, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "pid 1005 (model a) 500 without a connection"));
	/* Another connection of it adds to that. */
	q.n_bytes = 100;
	account_recall(w.account, &q);
	assert_int_equal(account_get_grant(w.account, 105), 600);
	account_visit_grants(w.account, note_grant, text);
	assert_string_equal(text, "105 600 a;");
	/* It is back. */
	assert_true(account_resume(w.account, 105, 5));
	assert_false(account_is_recalled(w.account, 105));
	assert_int_equal(account_get_grant(w.account, 105), 0);
	assert_int_equal(account_get_grant(w.account, 5), 600);
	/* And goes, and comes, in this account's own time. */
	account_close(w.account, 5, 105, w.now_ns);
	assert_true(account_is_recalled(w.account, 105)); /* the next one may say what it has */
	assert_false(account_resume(w.account, 105, 5));
	account_close(w.account, 5, 0, w.now_ns);
	/* One that never comes. */
	account_recall(w.account, &q);
	account_exit(w.account, 105, w.now_ns);
	assert_int_equal(account_get_grant(w.account, 105), 0);
	assert_int_equal(reserve(&w, 6, BUDGET, &err), 0);
	account_free(w.account);
}

/* A device of which nothing is left now: what was granted of it before is not there to be had. */
static void test_recalled_of_nothing(void **state)
{
	struct account_request q = {.kind = ACCOUNT_GRANT, .id = 105, .pid = 1005, .model = "a"};
	struct world w;

	(void)state;
	world_open(&w, 0);
	account_recall(w.account, &q);
	assert_false(account_is_recalled(w.account, 105));
	assert_int_equal(account_get_grant(w.account, 105), 0);
	account_free(w.account);
}

static void test_presses_again(void **state)
{
	struct world w;
	struct err err = ERR_NULL;

	(void)state;
	world_open(&w, BUDGET);
	assert_int_equal(reserve(&w, 1, 600, &err), 0);
	assert_int_equal(reserve(&w, 2, 600, &err), ACCOUNT_WAIT);
	assert_int_equal(w.n_presses, 1);
	w.now_ns += ACCOUNT_PRESS_NS - 1;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.n_presses, 1);
	w.now_ns += 1;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.n_presses, 2);
	/* Who waits is gone: nobody is asked for it. */
	account_close(w.account, 2, 0, w.now_ns);
	w.n_waits = 0;
	w.now_ns += ACCOUNT_PRESS_NS;
	account_tick(w.account, w.now_ns);
	assert_int_equal(w.n_presses, 2);
	assert_int_equal(w.n_answers, 0);
	account_free(w.account);
}

/* ---- whatever order things come in ---- */

static uint64_t random_next(uint64_t *state, uint64_t n)
{
	*state ^= *state << 13; /* xorshift64, Marsaglia 2003 */
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state % n;
}

static void forget_wait(struct world *w, enum account_kind kind, uint64_t id)
{
	for (uint32_t i = 0; i < w->n_waits; i++) {
		if (w->waits[i].kind != kind || w->waits[i].id != id)
			continue;
		w->n_waits--;
		memmove(w->waits + i, w->waits + i + 1, (w->n_waits - i) * sizeof(w->waits[0]));
		memmove(w->since_ns + i, w->since_ns + i + 1,
			(w->n_waits - i) * sizeof(w->since_ns[0]));
		return;
	}
}

static bool is_waiting(const struct world *w, enum account_kind kind, uint64_t id)
{
	for (uint32_t i = 0; i < w->n_waits; i++)
		if (w->waits[i].kind == kind && w->waits[i].id == id)
			return true;
	return false;
}

static void close_peer(struct world *w, uint32_t i, bool is_alive)
{
	uint64_t n_bytes = w->granted[i];

	forget_wait(w, ACCOUNT_GRANT, i + 1);
	w->granted[i] = 0;
	if (is_alive)
		w->held += n_bytes;
	account_close(w->account, i + 1, is_alive ? FIRST_HOLDER : 0, w->now_ns);
}

static void one_event(struct world *w, uint64_t *seed)
{
	uint32_t i = (uint32_t)random_next(seed, N_PEERS);
	uint32_t g = (uint32_t)random_next(seed, N_GENERATIONS);
	uint64_t n_bytes = random_next(seed, BUDGET * 6 / 5);
	uint64_t n_least = n_bytes ? random_next(seed, n_bytes + 1) : 0;
	struct err err = ERR_NULL;
	int rc;

	switch (random_next(seed, 9)) {
	case 0: /* reserve, grow, shrink */
	case 1:
		w->is_idle[i] = random_next(seed, 2);
		rc = world_ask(w, ACCOUNT_GRANT, i + 1, n_bytes,
			random_next(seed, 2) ? n_bytes : n_least, &err);
		assert_true(rc >= 0 || rc == -ENOMEM || rc == -EBUSY);
		break;
	case 2: close_peer(w, i, random_next(seed, 2)); break;
	case 3: /* the processes without a connection end */
		w->held = 0;
		account_exit(w->account, FIRST_HOLDER, w->now_ns);
		break;
	case 4: /* whoever was asked and is idle parks */
		for (i = 0; i < N_PEERS; i++) {
			bool parks = w->is_pressed[i] && w->is_idle[i] && w->granted[i];
			w->is_pressed[i] = false;
			if (parks && !is_waiting(w, ACCOUNT_GRANT, i + 1))
				assert_int_equal(reserve(w, i + 1, 0, &err), 0);
		}
		break;
	case 5: /* a load begins, and turns out smaller, or is given up */
		if (w->weights[g] || is_waiting(w, ACCOUNT_WEIGHTS, g + 1))
			break;
		rc = world_ask(w, ACCOUNT_WEIGHTS, g + 1, n_bytes + 1, 0, &err);
		assert_true(rc >= 0);
		break;
	case 6:
		if (!w->weights[g])
			break;
		w->weights[g] -= random_next(seed, w->weights[g]);
		w->is_evictable[g] = random_next(seed, 2);
		account_set_weights(w->account, g + 1, w->weights[g], w->now_ns);
		break;
	case 7: /* it is unloaded; the loader frees some */
		if (random_next(seed, 4) == 0) {
			forget_wait(w, ACCOUNT_WEIGHTS, g + 1);
			world_leave(w, g);
		}
		n_bytes = w->leaving ? random_next(seed, w->leaving + 1) : 0;
		w->leaving -= n_bytes;
		account_freed(w->account, n_bytes, w->now_ns);
		break;
	default:
		w->now_ns += random_next(seed, 2 * ACCOUNT_PRESS_NS);
		/* The clock ticks in between, as it does outside. */
		account_tick(w->account, w->now_ns);
		break;
	}
}

static void test_any_interleaving(void **state)
{
	uint64_t seed = 88172645463325252ull;
	uint32_t n_waited = 0, n_refused = 0;

	(void)state;
	for (uint32_t run = 0; run < 300; run++) {
		struct world w;
		world_open(&w, BUDGET);
		for (uint32_t i = 0; i < 400; i++) {
			one_event(&w, &seed);
			world_check(&w);
			n_refused += w.last_code < 0;
		}
		n_waited += w.n_answers;
		/* No request waits for ever. */
		w.now_ns += WAIT_NS;
		account_tick(w.account, w.now_ns);
		assert_int_equal(w.n_waits, 0);
		world_check(&w);
		account_free(w.account);
	}
	/* The generator did come upon waits and refusals. */
	assert_true(n_waited > 1000 && n_refused > 100);
}

/* Of weights of "b", and of pid 2. */
static bool hide(void *userdata, const struct account_request *request, enum account_kind kind,
	uint64_t id, const char *model)
{
	(void)userdata;
	assert_int_equal(request->id, 3);
	return kind == ACCOUNT_GRANT ? id != 2 : strcmp(model, "b") != 0;
}

static uint32_t press_nobody(void *userdata, uint64_t except)
{
	(void)userdata;
	(void)except;
	return 0;
}

static void evict_nothing(void *userdata, uint64_t n_bytes)
{
	(void)userdata;
	(void)n_bytes;
}

/* A refusal names what who asked may see. */
static void test_refusal_hides(void **state)
{
	const struct account_params params = {.device = "d",
		.n_budget_bytes = 100,
		.shows = hide,
		.press = press_nobody,
		.evict = evict_nothing};
	struct account_request q = {.kind = ACCOUNT_WEIGHTS, .id = 1, .n_bytes = 10, .model = "a"};
	struct account *a = NULL;
	struct err err = ERR_NULL;
	uint64_t n_bytes = 0;

	(void)state;
	assert_int_equal(account_new(&params, &a), 0);
	account_restore(a, &q);
	q.id = 2;
	strcpy(q.model, "b");
	account_restore(a, &q);
	for (uint32_t i = 1; i <= 2; i++) {
		q = (struct account_request){
			.kind = ACCOUNT_GRANT, .id = i, .n_bytes = 40, .pid = (int)i, .model = "a"};
		account_restore(a, &q);
	}
	q.id = q.pid = 3;
	q.n_least_bytes = q.n_bytes;
	assert_int_equal(account_request(a, &q, 1, &err, &n_bytes), -ENOMEM);
	assert_non_null(
		strstr(err.text, "; held: weights of a (generation 1) 10, pid 1 (model a) 40"));
	assert_null(strstr(err.text, "weights of b"));
	assert_null(strstr(err.text, "pid 2"));
	assert_null(strstr(err.text, "more"));
	account_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_counts_at_once),
		CASE(test_nobody_to_wait_for),
		CASE(test_parks_serve_in_order),
		CASE(test_evicts_and_counts_until_free),
		CASE(test_takes),
		CASE(test_modest),
		CASE(test_evicts_when_let_go),
		CASE(test_grant_ends_with_the_process),
		CASE(test_recalled),
		CASE(test_recalled_of_nothing),
		CASE(test_presses_again),
		CASE(test_refusal_hides),
		CASE(test_any_interleaving),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
