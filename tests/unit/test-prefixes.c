/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers and processes publish, take, drop, remove and end at random, beside a model that keeps sets
 * of who has what. Whatever is freed is freed once, when the last one has let go, and its
 * descriptors are closed by then; whoever needs room in the middle of that removes others.
 */
#include "weightd/prefixes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

enum { N_ROUNDS = 60000, N_PEERS = 6, N_HOLDERS = 3, N_IDS = N_PEERS + N_HOLDERS, N_SLOTS = 2 };

struct row {
	uint64_t id;
	uint64_t generation;
	uint32_t slot, socket;
	uint64_t n_bytes, used_ns;
	bool is_removed;
	bool has[N_IDS + 1]; /* by id of peer or holder */
	int fds[2];
};

struct model {
	struct prefixes *prefixes;
	struct row rows[PREFIXES_MAX];
	uint32_t n_rows;
	uint64_t now_ns, last_id;
	bool evicts; /* of what is freed the room is not enough for somebody */
	unsigned n_freed, n_evicted, n_full;
};

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static struct row *find(struct model *m, uint64_t id)
{
	for (uint32_t i = 0; i < m->n_rows; i++)
		if (m->rows[i].id == id)
			return &m->rows[i];
	return NULL;
}

static uint32_t count_leases(const struct row *r)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= N_IDS; i++)
		n += r->has[i];
	return n;
}

static void forget(struct model *m, struct row *r)
{
	memmove(r, r + 1, (size_t)(&m->rows[m->n_rows] - r - 1) * sizeof(*r));
	m->n_rows--;
}

static void evict_one(struct model *m)
{
	const struct prefix *x = prefixes_find_idle(m->prefixes, draw(N_SLOTS));
	struct err e = ERR_NULL;

	if (!x)
		return;
	m->n_evicted++;
	find(m, x->id)->is_removed = true;
	assert_int_equal(prefixes_remove(m->prefixes, x->id, &e), 0);
}

static void on_freed(const struct prefix *x, void *userdata)
{
	struct model *m = userdata;
	struct row *r = find(m, x->id);

	assert_non_null(r);
	assert_true(r->is_removed);
	assert_int_equal(count_leases(r), 0);
	assert_int_equal(x->memory.n_bytes, r->n_bytes);
	assert_int_equal(x->slot, r->slot);
	assert_false(is_open(r->fds[0]) || is_open(r->fds[1]));
	forget(m, r);
	m->n_freed++;
	if (m->evicts && draw(2))
		evict_one(m);
}

/* In the model the row goes by on_freed alone: what was to be freed and was not is found here. */
static void check_all(struct model *m)
{
	uint64_t n_bytes[3] = {0};

	assert_int_equal(prefixes_count(m->prefixes), m->n_rows);
	for (uint32_t i = 0; i < m->n_rows; i++) {
		const struct prefix *x = prefixes_at(m->prefixes, i);
		struct row *r = find(m, x->id);

		assert_non_null(r);
		assert_true(i == 0 || x->id > prefixes_at(m->prefixes, i - 1)->id);
		assert_int_equal(x->n_leases, count_leases(r));
		assert_int_equal(x->is_removed, r->is_removed);
		assert_true(!r->is_removed || x->n_leases);
		assert_int_equal(x->used_ns, r->used_ns);
		assert_ptr_equal(prefixes_find(m->prefixes, x->id), r->is_removed ? NULL : x);
		assert_true(is_open(x->tokens_fd) && is_open(x->memory_fd));
		for (uint32_t k = 1; k <= N_IDS; k++)
			assert_int_equal(prefixes_has(m->prefixes, x->id, k), r->has[k]);
		n_bytes[r->socket] += r->n_bytes;
	}
	for (uint32_t k = 0; k < 3; k++)
		assert_int_equal(prefixes_count_bytes(m->prefixes, k), n_bytes[k]);
	for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
		const struct prefix *idle = prefixes_find_idle(m->prefixes, slot);
		for (uint32_t i = 0; i < m->n_rows; i++) {
			const struct row *r = &m->rows[i];
			if (r->slot != slot || r->is_removed || count_leases(r))
				continue;
			assert_non_null(idle);
			assert_true(idle->used_ns <= r->used_ns);
		}
		assert_true(!idle || (idle->slot == slot && idle->n_leases == 0));
	}
}

static struct prefix make(struct model *m)
{
	struct prefix x = {.generation = 1 + draw(3),
		.slot = draw(N_SLOTS),
		.socket = draw(3),
		.is_shared = draw(2),
		.n_tokens = 1 + draw(3),
		.layout = {(uint8_t)draw(2)},
		.n_layout_bytes = 1,
		.digest = {(uint8_t)draw(3)},
		.memory = {.n_bytes = 1 + draw(1000)},
		.used_ns = ++m->now_ns};

	x.tokens_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	x.memory_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(x.tokens_fd >= 0 && x.memory_fd >= 0);
	return x;
}

static void do_add(struct model *m)
{
	struct prefix x = make(m);
	struct err e = ERR_NULL;
	uint64_t id = 0;
	int r = prefixes_add(m->prefixes, &x, &e, &id);

	if (m->n_rows == PREFIXES_MAX) {
		assert_int_equal(r, -ENOSPC);
		close(x.tokens_fd);
		close(x.memory_fd);
		m->n_full++;
		return;
	}
	assert_int_equal(r, 0);
	assert_true(id >= PREFIXES_FIRST_ID && id > m->last_id);
	m->last_id = id;
	m->rows[m->n_rows++] = (struct row){.id = id,
		.generation = x.generation,
		.slot = x.slot,
		.socket = x.socket,
		.n_bytes = x.memory.n_bytes,
		.used_ns = x.used_ns,
		.fds = {x.tokens_fd, x.memory_fd}};
}

/* Some id that there is, or was. */
static uint64_t some_id(const struct model *m)
{
	if (m->n_rows == 0 || draw(20) == 0)
		return m->last_id;
	return m->rows[draw(m->n_rows)].id;
}

static void do_take(struct model *m)
{
	uint64_t id = some_id(m), peer = 1 + draw(N_PEERS);
	struct row *row = find(m, id);
	struct err e = ERR_NULL;
	int r = prefixes_take(m->prefixes, id, peer, ++m->now_ns, &e);

	assert_int_equal(r, row && !row->is_removed ? 0 : -ENOENT);
	if (r)
		return;
	if (!row->has[peer])
		row->used_ns = m->now_ns;
	row->has[peer] = true;
}

static void let_go(struct model *m, struct row *r, uint64_t peer)
{
	(void)m;
	r->has[peer] = false;
	r->used_ns = m->now_ns;
}

static void do_drop(struct model *m)
{
	uint64_t id = some_id(m), peer = 1 + draw(N_PEERS);
	struct row *row = find(m, id);
	struct err e = ERR_NULL;
	bool had = row && row->has[peer];

	m->now_ns++;
	if (had)
		let_go(m, row, peer);
	assert_int_equal(prefixes_drop(m->prefixes, id, peer, m->now_ns, &e), had ? 0 : -ENOENT);
}

/* holder: none, the process's own first connection (the peer's id), or another id. */
static void do_close(struct model *m)
{
	uint64_t peer = 1 + draw(N_PEERS);
	uint64_t holders[] = {0, peer, N_PEERS + 1 + draw(N_HOLDERS)};
	uint64_t holder = holders[draw(3)];

	m->now_ns++;
	for (uint32_t i = 0; i < m->n_rows && holder != peer; i++) {
		struct row *r = &m->rows[i];
		if (!r->has[peer])
			continue;
		if (holder && !r->has[holder]) {
			r->has[peer] = false;
			r->has[holder] = true; /* goes over: nobody used it */
		} else {
			let_go(m, r, peer);
		}
	}
	prefixes_close(m->prefixes, peer, holder, m->now_ns);
	assert_true(holder == peer || !prefixes_has_any(m->prefixes, peer));
}

static void do_exit(struct model *m)
{
	uint64_t holder = 1 + draw(N_IDS);

	m->now_ns++;
	for (uint32_t i = 0; i < m->n_rows; i++)
		if (m->rows[i].has[holder])
			let_go(m, &m->rows[i], holder);
	prefixes_exit(m->prefixes, holder, m->now_ns);
	assert_false(prefixes_has_any(m->prefixes, holder));
}

static void do_remove(struct model *m)
{
	uint64_t id = some_id(m);
	struct row *row = find(m, id);
	struct err e = ERR_NULL;
	bool can = row && !row->is_removed;

	if (can)
		row->is_removed = true;
	assert_int_equal(prefixes_remove(m->prefixes, id, &e), can ? 0 : -ENOENT);
}

static void do_remove_generation(struct model *m)
{
	uint64_t generation = 1 + draw(3);
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->n_rows; i++) {
		struct row *r = &m->rows[i];
		if (r->generation != generation || r->is_removed)
			continue;
		r->is_removed = true;
		n++;
	}
	/* What somebody in need of room removes meanwhile may be of the generation too. */
	uint32_t n_removed = prefixes_remove_generation(m->prefixes, generation);
	assert_true(m->evicts ? n_removed <= n : n_removed == n);
}

static void do_one(struct model *m)
{
	uint32_t what = draw(40);

	if (what < 14)
		do_add(m);
	else if (what < 24)
		do_take(m);
	else if (what < 30)
		do_drop(m);
	else if (what < 36)
		do_remove(m);
	else if (what < 38)
		do_close(m);
	else if (what < 39)
		do_exit(m);
	else if (draw(8) == 0)
		do_remove_generation(m);
}

static void run(bool evicts, unsigned seed)
{
	struct model m = {.evicts = evicts};

	srandom(seed);
	assert_int_equal(prefixes_new(on_freed, &m, &m.prefixes), 0);
	for (int i = 0; i < N_ROUNDS; i++) {
		do_one(&m);
		if (i % 8 == 0)
			check_all(&m);
	}
	printf("# freed %u, of them for room %u; full %u times\n", m.n_freed, m.n_evicted,
		m.n_full);
	assert_true(m.n_freed > 1000);
	assert_true(!evicts || m.n_evicted > 100);
	m.prefixes = prefixes_free(m.prefixes);
	for (uint32_t i = 0; i < m.n_rows; i++)
		assert_false(is_open(m.rows[i].fds[0]) || is_open(m.rows[i].fds[1]));
}

static void test_random(void **state)
{
	(void)state;
	run(false, 1);
}

static void test_room_needed_meanwhile(void **state)
{
	(void)state;
	run(true, 2);
}

static void test_full(void **state)
{
	struct model m = {0};

	(void)state;
	assert_int_equal(prefixes_new(on_freed, &m, &m.prefixes), 0);
	for (int i = 0; i < PREFIXES_MAX + 1; i++)
		do_add(&m);
	assert_int_equal(m.n_full, 1);
	check_all(&m);
	prefixes_free(m.prefixes);
}

/* Each difference makes another prefix; of private ones the socket too. */
static void test_same(void **state)
{
	struct model m = {0};
	struct err e = ERR_NULL;
	uint64_t id = 0;

	(void)state;
	assert_int_equal(prefixes_new(on_freed, &m, &m.prefixes), 0);
	struct prefix x = make(&m);
	x.is_shared = false;
	assert_int_equal(prefixes_add(m.prefixes, &x, &e, &id), 0);
	m.rows[m.n_rows++] = (struct row){.id = id,
		.slot = x.slot,
		.n_bytes = x.memory.n_bytes,
		.fds = {x.tokens_fd, x.memory_fd}};
	assert_int_equal(prefixes_find_same(m.prefixes, &x)->id, id);
	struct prefix others[7] = {x, x, x, x, x, x, x};
	others[0].generation++;
	others[1].slot++;
	others[2].socket++;
	others[3].is_shared = true;
	others[4].n_tokens++;
	others[5].digest[31] ^= 1;
	others[6].layout[0] ^= 1;
	for (int i = 0; i < 7; i++)
		assert_null(prefixes_find_same(m.prefixes, &others[i]));
	x.pid++;
	x.name[0] = 'n';
	assert_int_equal(prefixes_find_same(m.prefixes, &x)->id, id);
	m.rows[0].is_removed = true;
	assert_int_equal(prefixes_remove(m.prefixes, id, &e), 0);
	assert_null(prefixes_find_same(m.prefixes, &x));
	assert_int_equal(m.n_freed, 1);
	prefixes_free(m.prefixes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_random),
		CASE(test_room_needed_meanwhile),
		CASE(test_full),
		CASE(test_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
