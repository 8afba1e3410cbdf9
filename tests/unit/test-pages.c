/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations against a model that knows what every position of every slot holds. A page is
 * an array of values here; what pages_change says is done to it, and what is written goes through
 * the slot's list. So a page that two slots have and one writes, a copy that is missing, a page
 * that is given away while somebody reads it: each shows as a wrong value.
 */
#include "workerd/pages.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

enum {
	N_PAGES = 70, /* more than a word of free bits */
	N_PAGE_TOKENS = 4,
	N_SLOTS = 7,
	N_SLOT_TOKENS = 55, /* the last page is never full */
	N_SLOT_PAGES = 14,
	N_ROUNDS = 20000,
	MAX_HELD = 10,
};

struct model {
	struct pages *pages;
	uint32_t values[N_PAGES][N_PAGE_TOKENS]; /* what lies in the pages */
	bool is_open[N_SLOTS];
	uint32_t n_tokens[N_SLOTS];
	uint32_t expected[N_SLOTS][N_SLOT_PAGES * N_PAGE_TOKENS];
	uint32_t held[MAX_HELD]; /* pages_ref without pages_unref */
	uint32_t n_held;
	uint32_t last_value;
	unsigned n_copies, n_forks, n_refused, n_reverted;
};

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

static void apply(struct model *m, uint32_t slot, const struct pages_change *change)
{
	uint32_t n;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);

	for (uint32_t i = change->first; i < n; i++) {
		assert_int_equal(pages_get_n_refs(m->pages, list[i]), 1);
		for (uint32_t k = 0; k < N_PAGE_TOKENS; k++)
			m->values[list[i]][k] =
				change->copy_to == list[i] ? m->values[change->copy_from][k] : 0;
	}
	m->n_copies += change->copy_to != PAGES_NONE;
}

static void write_from(struct model *m, uint32_t slot, uint32_t first)
{
	uint32_t n;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);

	for (uint32_t i = first; i < m->n_tokens[slot]; i++) {
		uint32_t page = list[i / N_PAGE_TOKENS];

		assert_int_equal(pages_get_n_refs(m->pages, page), 1);
		m->values[page][i % N_PAGE_TOKENS] = m->expected[slot][i] = ++m->last_value;
	}
}

/* Counts and values, from nothing but the lists. */
static void check(const struct model *m)
{
	uint32_t n_refs[N_PAGES] = {0};
	uint32_t n_free = 0;

	for (uint32_t s = 0; s < N_SLOTS; s++) {
		uint32_t n;
		const uint32_t *list = pages_get_list(m->pages, s, &n);

		assert_int_equal(pages_get_n_tokens(m->pages, s), m->n_tokens[s]);
		assert_int_equal(n, (m->n_tokens[s] + N_PAGE_TOKENS - 1) / N_PAGE_TOKENS);
		for (uint32_t i = 0; i < n; i++)
			n_refs[list[i]]++;
		for (uint32_t i = 0; i < m->n_tokens[s]; i++)
			assert_int_equal(m->values[list[i / N_PAGE_TOKENS]][i % N_PAGE_TOKENS],
				m->expected[s][i]);
	}
	for (uint32_t i = 0; i < m->n_held; i++)
		n_refs[m->held[i]]++;
	for (uint32_t p = 0; p < N_PAGES; p++) {
		assert_int_equal(pages_get_n_refs(m->pages, p), n_refs[p]);
		n_free += !n_refs[p];
	}
	assert_int_equal(pages_get_n_free(m->pages), n_free);
}

static bool is_alone(const struct model *m, uint32_t slot, uint32_t index)
{
	uint32_t n;

	return pages_get_n_refs(m->pages, pages_get_list(m->pages, slot, &n)[index]) == 1;
}

static void do_reserve(struct model *m, uint32_t slot)
{
	uint32_t n_old = m->n_tokens[slot];
	uint32_t n_tokens = draw(N_SLOT_TOKENS + 3);
	uint32_t n_need = 0;
	struct pages_change change = {0};
	struct err e = ERR_NULL;

	if (n_tokens > n_old) {
		n_need = pages_count(m->pages, n_tokens) - pages_count(m->pages, n_old);
		n_need += n_old % N_PAGE_TOKENS && !is_alone(m, slot, n_old / N_PAGE_TOKENS);
	}
	bool fits = n_tokens <= N_SLOT_TOKENS && n_need <= pages_get_n_free(m->pages);
	int r = pages_reserve(m->pages, slot, n_tokens, &e, &change);

	assert_int_equal(r, fits ? 0 : -ENOSPC);
	assert_true(fits == !e.text[0]);
	if (r) {
		m->n_refused++;
		return;
	}
	if (draw(4) == 0) {
		pages_revert(m->pages, slot, &change);
		m->n_reverted++;
		return;
	}
	apply(m, slot, &change);
	if (n_tokens > n_old)
		m->n_tokens[slot] = n_tokens;
	write_from(m, slot, n_old);
}

static void do_truncate(struct model *m, uint32_t slot)
{
	uint32_t n_tokens = draw(N_SLOT_TOKENS + 3);

	pages_truncate(m->pages, slot, n_tokens);
	if (n_tokens < m->n_tokens[slot])
		m->n_tokens[slot] = n_tokens;
}

static void do_fork(struct model *m, uint32_t from)
{
	uint32_t n_tokens = draw(m->n_tokens[from] + 1);
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t slot;

	if (pages_open(m->pages, &e, &slot))
		return;
	int r = pages_fork(m->pages, from, n_tokens, slot, &e, &change);
	if (r || draw(4) == 0) {
		bool fits = n_tokens % N_PAGE_TOKENS == 0 || pages_get_n_free(m->pages) > 0;

		assert_int_equal(r, fits ? 0 : -ENOSPC);
		if (!r)
			pages_revert(m->pages, slot, &change);
		pages_close(m->pages, slot);
		return;
	}
	m->n_forks++;
	apply(m, slot, &change);
	m->is_open[slot] = true;
	m->n_tokens[slot] = n_tokens;
	memcpy(m->expected[slot], m->expected[from], n_tokens * sizeof(uint32_t));
}

/* A whole page of another slot, as from a cache of prefixes. */
static void do_share(struct model *m, uint32_t slot, uint32_t from)
{
	uint32_t n_whole = m->n_tokens[from] / N_PAGE_TOKENS;
	uint32_t n_own = (m->n_tokens[slot] + N_PAGE_TOKENS - 1) / N_PAGE_TOKENS;
	uint32_t n;

	if (!n_whole || !m->is_open[from])
		return;
	uint32_t other = draw(n_whole);
	uint32_t index = draw(n_own + 1);

	if (index >= N_SLOT_TOKENS / N_PAGE_TOKENS || index * N_PAGE_TOKENS > m->n_tokens[slot])
		return;
	memcpy(m->expected[slot] + (size_t)index * N_PAGE_TOKENS,
		m->expected[from] + (size_t)other * N_PAGE_TOKENS,
		N_PAGE_TOKENS * sizeof(uint32_t));
	pages_share(m->pages, slot, index, pages_get_list(m->pages, from, &n)[other]);
	m->n_tokens[slot] = (index + 1) * N_PAGE_TOKENS;
}

static void do_hold(struct model *m, uint32_t slot)
{
	uint32_t n;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);

	if (n && m->n_held < MAX_HELD) {
		m->held[m->n_held] = list[draw(n)];
		pages_ref(m->pages, m->held[m->n_held++]);
	} else if (m->n_held) {
		uint32_t i = draw(m->n_held);

		pages_unref(m->pages, m->held[i]);
		m->held[i] = m->held[--m->n_held];
	}
}

static void do_open(struct model *m)
{
	struct err e = ERR_NULL;
	uint32_t slot = 0;
	uint32_t lowest = 0;

	while (lowest < N_SLOTS && m->is_open[lowest])
		lowest++;
	int r = pages_open(m->pages, &e, &slot);
	assert_int_equal(r, lowest < N_SLOTS ? 0 : -EAGAIN);
	if (r) {
		assert_string_equal(e.text, "sessions: all 7 are open");
		return;
	}
	assert_int_equal(slot, lowest);
	m->is_open[slot] = true;
}

static void do_close(struct model *m, uint32_t slot)
{
	pages_close(m->pages, slot);
	m->is_open[slot] = false;
	m->n_tokens[slot] = 0;
}

static const struct pages_params shape = {
	.n_pages = N_PAGES,
	.n_page_tokens = N_PAGE_TOKENS,
	.n_slots = N_SLOTS,
	.n_slot_tokens = N_SLOT_TOKENS,
};

static void keeps_every_value(void **state)
{
	static struct model m;

	(void)state;
	srandom(1);
	assert_int_equal(pages_new(&shape, &m.pages), 0);
	assert_int_equal(pages_get_n_slot_pages(m.pages), N_SLOT_PAGES);
	for (unsigned round = 0; round < N_ROUNDS; round++) {
		uint32_t slot = draw(N_SLOTS);
		uint32_t what = draw(16);

		if (!m.is_open[slot])
			do_open(&m);
		else if (what < 6)
			do_reserve(&m, slot);
		else if (what < 8)
			do_truncate(&m, slot);
		else if (what < 11)
			do_fork(&m, slot);
		else if (what < 12)
			do_share(&m, slot, draw(N_SLOTS));
		else if (what < 14)
			do_hold(&m, slot);
		else if (what < 15)
			do_close(&m, slot);
		check(&m);
	}
	print_message("# %u copies, %u forks, %u refused, %u reverted\n", m.n_copies, m.n_forks,
		m.n_refused, m.n_reverted);
	assert_true(m.n_copies > 100 && m.n_forks > 100 && m.n_refused > 100 && m.n_reverted > 100);
	for (uint32_t s = 0; s < N_SLOTS; s++)
		if (m.is_open[s])
			do_close(&m, s);
	while (m.n_held)
		pages_unref(m.pages, m.held[--m.n_held]);
	check(&m);
	assert_int_equal(pages_get_n_free(m.pages), N_PAGES);
	m.pages = pages_free(m.pages);
}

/* Of a fork both may go on: the page that both have in part is two from then on. */
static void copies_the_last_page_alone(void **state)
{
	struct pages *p = NULL;
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t a, b, n;

	(void)state;
	assert_int_equal(pages_new(&shape, &p), 0);
	assert_int_equal(pages_open(p, &e, &a), 0);
	assert_int_equal(pages_reserve(p, a, 10, &e, &change), 0);
	assert_int_equal(pages_open(p, &e, &b), 0);
	assert_int_equal(pages_fork(p, a, 9, b, &e, &change), 0);
	assert_int_equal(change.first, 2);
	assert_int_equal(change.copy_from, 2);
	assert_int_equal(change.copy_to, 3);
	assert_int_equal(pages_get_n_free(p), N_PAGES - 4);
	/* Back into a page that is shared: writing there is a copy. */
	pages_truncate(p, b, 5);
	assert_int_equal(pages_reserve(p, b, 6, &e, &change), 0);
	assert_int_equal(change.first, 1);
	assert_int_equal(change.copy_from, 1);
	assert_int_equal(change.copy_to, 3);
	assert_int_equal(pages_get_list(p, a, &n)[1], 1);
	/* To a page's end: none of it is kept, so there is nothing to copy. */
	pages_truncate(p, b, 4);
	assert_int_equal(pages_reserve(p, b, 6, &e, &change), 0);
	assert_int_equal(change.copy_to, PAGES_NONE);
	pages_free(p);
}

static void refuses_sizes_of_zero(void **state)
{
	struct pages *p = NULL;
	struct pages_params params[] = {shape, shape, shape, shape};

	(void)state;
	params[0].n_pages = 0;
	params[1].n_page_tokens = 0;
	params[2].n_slots = 0;
	params[3].n_slot_tokens = 0;
	for (unsigned i = 0; i < ARRAY_SIZE(params); i++)
		assert_int_equal(pages_new(&params[i], &p), -EINVAL);
	assert_null(pages_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(keeps_every_value),
		CASE(copies_the_last_page_alone),
		CASE(refuses_sizes_of_zero),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
