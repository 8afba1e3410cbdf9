/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that write random tokens of a tiny vocabulary, so that many have the same beginning. What a
 * page really holds is kept beside: every token up to its end and whose they were. Whatever is
 * found must hold just what was looked for, nothing that is known may be missed, and no slot may be
 * refused pages while entries have some.
 */
#include "workerd/prefix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "workerd/pages.h"

enum {
	N_PAGE_TOKENS = 2,
	N_SLOTS = 6,
	N_SLOT_TOKENS = 15, /* 8 pages */
	N_SLOT_PAGES = 8,
	N_PAGES = N_SLOTS * N_SLOT_PAGES, /* as in a worker: enough for all, and none over */
	N_VOCAB = 3,
	N_SCOPES = 2,
	N_ROUNDS = 200000,
};

struct content {
	uint64_t scope;
	uint32_t n_tokens; /* of whole pages */
	uint32_t tokens[N_SLOT_TOKENS + 1];
};

struct model {
	struct pages *pages;
	struct prefix *prefix;
	struct content contents[N_PAGES];
	bool is_open[N_SLOTS];
	uint64_t scope[N_SLOTS];
	uint32_t n_tokens[N_SLOTS];
	uint32_t tokens[N_SLOTS][N_SLOT_TOKENS];
	unsigned n_found, n_copies, n_given_back;
};

static const struct pages_params pages_shape = {
	.n_pages = N_PAGES,
	.n_page_tokens = N_PAGE_TOKENS,
	.n_slots = N_SLOTS,
	.n_slot_tokens = N_SLOT_TOKENS,
};

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

/* Every page of the slot holds the slot's tokens up to its end. */
static void check_slot(const struct model *m, uint32_t slot)
{
	uint32_t n;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);

	for (uint32_t i = 0; i < m->n_tokens[slot] / N_PAGE_TOKENS; i++) {
		const struct content *c = &m->contents[list[i]];

		assert_int_equal(c->scope, m->scope[slot]);
		assert_int_equal(c->n_tokens, (i + 1) * N_PAGE_TOKENS);
		assert_memory_equal(c->tokens, m->tokens[slot], c->n_tokens * sizeof(uint32_t));
	}
}

static void check_counts(const struct model *m)
{
	uint32_t n_refs[N_PAGES] = {0};

	for (uint32_t s = 0; s < N_SLOTS; s++) {
		uint32_t n;
		const uint32_t *list = pages_get_list(m->pages, s, &n);

		for (uint32_t i = 0; i < n; i++)
			n_refs[list[i]]++;
	}
	for (uint32_t p = 0; p < N_PAGES; p++)
		assert_int_equal(
			pages_get_n_refs(m->pages, p), n_refs[p] + prefix_has(m->prefix, p));
}

/* The most whole pages of tokens that entries lead to, by looking at every page. */
static uint32_t count_known(
	const struct model *m, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	uint32_t n = 0;

	for (bool is_known = true; is_known && (n + 1) * N_PAGE_TOKENS <= n_tokens; n += is_known) {
		is_known = false;
		for (uint32_t p = 0; p < N_PAGES; p++) {
			const struct content *c = &m->contents[p];

			is_known |= prefix_has(m->prefix, p) && c->scope == scope &&
				    c->n_tokens == (n + 1) * N_PAGE_TOKENS &&
				    !memcmp(c->tokens, tokens, c->n_tokens * sizeof(*tokens));
		}
	}
	return n;
}

static void do_adopt(struct model *m, uint32_t slot)
{
	uint32_t tokens[N_SLOT_TOKENS];
	uint32_t found[N_SLOT_PAGES];
	uint32_t n_tokens = N_SLOT_TOKENS - draw(4);
	uint32_t first = m->n_tokens[slot] / N_PAGE_TOKENS;

	for (uint32_t i = 0; i < N_SLOT_TOKENS; i++)
		tokens[i] = i < m->n_tokens[slot] ? m->tokens[slot][i] : draw(N_VOCAB);
	/* Of those that begin so, one that there is. */
	const struct content *like = &m->contents[draw(N_PAGES)];
	if (!memcmp(like->tokens, tokens, m->n_tokens[slot] * sizeof(uint32_t)) &&
		like->n_tokens <= N_SLOT_TOKENS)
		memcpy(tokens, like->tokens, like->n_tokens * sizeof(uint32_t));
	uint32_t n = prefix_find(m->prefix, m->scope[slot], tokens, n_tokens, found);
	assert_int_equal(n, count_known(m, m->scope[slot], tokens, n_tokens));
	for (uint32_t i = 0; i < n; i++) {
		const struct content *c = &m->contents[found[i]];

		assert_true(prefix_has(m->prefix, found[i]));
		assert_int_equal(c->scope, m->scope[slot]);
		assert_int_equal(c->n_tokens, (i + 1) * N_PAGE_TOKENS);
		assert_memory_equal(c->tokens, tokens, c->n_tokens * sizeof(uint32_t));
	}
	if (n * N_PAGE_TOKENS <= m->n_tokens[slot])
		return;
	for (uint32_t i = first; i < n; i++)
		pages_share(m->pages, slot, i, found[i]);
	m->n_tokens[slot] = n * N_PAGE_TOKENS;
	memcpy(m->tokens[slot], tokens, m->n_tokens[slot] * sizeof(uint32_t));
	m->n_found += n - first;
}

static uint32_t count_entries(const struct model *m)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < N_PAGES; p++)
		n += prefix_has(m->prefix, p);
	return n;
}

static void do_write(struct model *m, uint32_t slot)
{
	uint32_t n_tokens = m->n_tokens[slot] + 1 + draw(4);
	uint32_t n_entries = count_entries(m);
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t n;

	if (n_tokens > N_SLOT_TOKENS) {
		assert_int_equal(
			prefix_reserve(m->prefix, slot, N_SLOT_TOKENS + 1, &e, &change), -ENOSPC);
		return;
	}
	int r = prefix_reserve(m->prefix, slot, n_tokens, &e, &change);
	if (r)
		fail_msg("%s", e.text);
	m->n_copies += change.copy_to != PAGES_NONE;
	m->n_given_back += count_entries(m) < n_entries;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);
	for (uint32_t i = m->n_tokens[slot]; i < n_tokens; i++) {
		struct content *c = &m->contents[list[i / N_PAGE_TOKENS]];

		/* Nobody else reads what is written here. */
		assert_int_equal(pages_get_n_refs(m->pages, list[i / N_PAGE_TOKENS]), 1);
		assert_false(prefix_has(m->prefix, list[i / N_PAGE_TOKENS]));
		m->tokens[slot][i] = draw(N_VOCAB);
		c->scope = m->scope[slot];
		c->n_tokens = (i / N_PAGE_TOKENS + 1) * N_PAGE_TOKENS;
		memcpy(c->tokens, m->tokens[slot], (i + 1) * sizeof(uint32_t));
	}
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
	assert_int_equal(prefix_fork(m->prefix, from, n_tokens, slot, &e, &change), 0);
	m->is_open[slot] = true;
	m->scope[slot] = m->scope[from];
	m->n_tokens[slot] = n_tokens;
	memcpy(m->tokens[slot], m->tokens[from], n_tokens * sizeof(uint32_t));
	if (change.copy_to != PAGES_NONE)
		m->contents[change.copy_to] = m->contents[change.copy_from];
}

static void do_open(struct model *m, uint32_t slot)
{
	struct err e = ERR_NULL;
	uint32_t opened;

	if (m->is_open[slot]) {
		uint32_t n;
		const uint32_t *list = pages_get_list(m->pages, slot, &n);

		prefix_touch(m->prefix, list, n);
		pages_close(m->pages, slot);
		m->is_open[slot] = false;
		m->n_tokens[slot] = 0;
	} else {
		assert_int_equal(pages_open(m->pages, &e, &opened), 0);
		m->is_open[opened] = true;
		m->scope[opened] = draw(N_SCOPES);
	}
}

static void do_add(struct model *m, uint32_t slot)
{
	uint32_t n;
	const uint32_t *list = pages_get_list(m->pages, slot, &n);
	uint32_t n_whole = m->n_tokens[slot] / N_PAGE_TOKENS;

	prefix_add(m->prefix, m->scope[slot], m->tokens[slot], list, n_whole);
	assert_int_equal(
		count_known(m, m->scope[slot], m->tokens[slot], m->n_tokens[slot]), n_whole);
}

static void new_model(struct model *m)
{
	const struct prefix_params params = {.n_pages = N_PAGES, .n_page_tokens = N_PAGE_TOKENS};

	*m = (struct model){0};
	assert_int_equal(pages_new(&pages_shape, &m->pages), 0);
	assert_int_equal(prefix_new(&params, m->pages, &m->prefix), 0);
}

static void free_model(struct model *m)
{
	for (uint32_t s = 0; s < N_SLOTS; s++)
		if (m->is_open[s])
			pages_close(m->pages, s);
	prefix_give_back(m->prefix, N_PAGES);
	assert_int_equal(pages_get_n_free(m->pages), N_PAGES);
	prefix_free(m->prefix);
	pages_free(m->pages);
}

static void finds_what_is_there(void **state)
{
	static struct model m;

	(void)state;
	srandom(2);
	new_model(&m);
	for (unsigned round = 0; round < N_ROUNDS; round++) {
		uint32_t slot = draw(N_SLOTS);
		uint32_t what = draw(64);

		if (!m.is_open[slot] || what == 0)
			do_open(&m, slot);
		else if (what < 8)
			do_adopt(&m, slot);
		else if (what < 36)
			do_write(&m, slot);
		else if (what < 56)
			do_add(&m, slot);
		else if (what < 58)
			do_fork(&m, slot);
		else if (what < 61) {
			m.n_tokens[slot] = draw(m.n_tokens[slot] + 1);
			pages_truncate(m.pages, slot, m.n_tokens[slot]);
		} else if (what == 61)
			prefix_give_back(m.prefix, draw(8));
		for (uint32_t s = 0; s < N_SLOTS; s++)
			check_slot(&m, s);
		check_counts(&m);
	}
	print_message("# %u pages found, %u copies, %u times given back\n", m.n_found, m.n_copies,
		m.n_given_back);
	assert_true(m.n_found > 1000 && m.n_copies > 100 && m.n_given_back > 100);
	free_model(&m);
}

/* tokens in a slot of its own, closed again. */
static void remember(struct model *m, const uint32_t *tokens, uint32_t n_tokens)
{
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t slot;
	uint32_t n;

	assert_int_equal(pages_open(m->pages, &e, &slot), 0);
	assert_int_equal(prefix_reserve(m->prefix, slot, n_tokens, &e, &change), 0);
	prefix_add(
		m->prefix, 0, tokens, pages_get_list(m->pages, slot, &n), n_tokens / N_PAGE_TOKENS);
	pages_close(m->pages, slot);
}

/* The end of a text goes before its beginning, and what was looked for last goes last. */
static void gives_back_the_oldest(void **state)
{
	static const uint32_t a[] = {1, 1, 1, 1, 1, 1}, b[] = {2, 2, 2, 2, 2, 2};
	static struct model m;
	uint32_t found[N_SLOT_PAGES];

	(void)state;
	new_model(&m);
	remember(&m, a, ARRAY_SIZE(a));
	remember(&m, b, ARRAY_SIZE(b));
	assert_int_equal(prefix_find(m.prefix, 0, a, 6, found), 3);
	assert_int_equal(prefix_find(m.prefix, 1, a, 6, found), 0);
	prefix_give_back(m.prefix, N_PAGES - 5);
	assert_int_equal(prefix_find(m.prefix, 0, b, 6, found), 2);
	prefix_give_back(m.prefix, N_PAGES - 4);
	assert_int_equal(prefix_find(m.prefix, 0, a, 6, found), 2);
	prefix_give_back(m.prefix, N_PAGES - 2);
	assert_int_equal(prefix_find(m.prefix, 0, b, 6, found), 0);
	assert_int_equal(prefix_find(m.prefix, 0, a, 6, found), 2);
	free_model(&m);
}

enum { N_GUESTS = 6 };

/* pages[0..n) lent, and known to hold tokens. */
static void lend(struct model *m, const uint32_t *tokens, uint32_t first, uint32_t n)
{
	uint32_t list[N_SLOT_PAGES];

	for (uint32_t i = 0; i < n; i++) {
		list[i] = N_PAGES + first + i;
		pages_lend(m->pages, list[i]);
	}
	prefix_add(m->prefix, PREFIX_ANY, tokens, list, n);
}

static void unlend(struct model *m, uint32_t first, uint32_t n)
{
	for (uint32_t page = N_PAGES + first; page < N_PAGES + first + n; page++) {
		prefix_drop(m->prefix, page);
		assert_int_equal(pages_get_n_refs(m->pages, page), 1);
		pages_unref(m->pages, page);
		assert_int_equal(pages_get_n_refs(m->pages, page), 0);
	}
}

static void new_model_with_guests(struct model *m)
{
	struct pages_params pages = pages_shape;
	const struct prefix_params params = {
		.n_pages = N_PAGES, .n_guest_pages = N_GUESTS, .n_page_tokens = N_PAGE_TOKENS};

	pages.n_guest_pages = N_GUESTS;
	*m = (struct model){0};
	assert_int_equal(pages_new(&pages, &m->pages), 0);
	assert_int_equal(prefix_new(&params, m->pages, &m->prefix), 0);
}

/* From every scope; a longer way of one's own is taken, of equal ones the guests'. */
static void finds_guests_from_everywhere(void **state)
{
	static const uint32_t a[] = {1, 1, 1, 1, 1, 1, 1, 1};
	static struct model m;
	uint32_t found[N_SLOT_PAGES];

	(void)state;
	new_model_with_guests(&m);
	remember(&m, a, 6);
	lend(&m, a, 0, 2);
	assert_int_equal(prefix_find(m.prefix, 5, a, 8, found), 2);
	assert_int_equal(found[0], N_PAGES);
	assert_int_equal(found[1], N_PAGES + 1);
	assert_int_equal(prefix_find(m.prefix, 5, a, 3, found), 1);
	assert_int_equal(prefix_find(m.prefix, 0, a, 8, found), 3);
	assert_true(found[0] < N_PAGES && found[1] < N_PAGES && found[2] < N_PAGES);
	assert_int_equal(prefix_find(m.prefix, 0, a, 4, found), 2);
	assert_int_equal(found[1], N_PAGES + 1);
	/* Whoever needs pages gets those of the pool; guests stay. */
	prefix_give_back(m.prefix, N_PAGES + 1);
	assert_int_equal(pages_get_n_free(m.pages), N_PAGES);
	assert_int_equal(prefix_find(m.prefix, 0, a, 8, found), 2);
	unlend(&m, 0, 2);
	assert_int_equal(prefix_find(m.prefix, 0, a, 8, found), 0);
	assert_int_equal(pages_get_n_free(m.pages), N_PAGES);
	free_model(&m);
}

/* A slot goes on behind a guest's pages, and within them with a copy, with no page free too. */
static void goes_on_behind_guests(void **state)
{
	static const uint32_t a[] = {1, 1, 1, 1, 2, 2};
	static struct model m;
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t found[N_SLOT_PAGES];
	uint32_t slots[2], n;

	(void)state;
	new_model_with_guests(&m);
	lend(&m, a, 2, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pages_open(m.pages, &e, &slots[i]), 0);
		assert_int_equal(prefix_find(m.prefix, (uint64_t)i, a, 4, found), 2);
		for (uint32_t k = 0; k < 2; k++)
			pages_share(m.pages, slots[i], k, found[k]);
	}
	assert_int_equal(prefix_reserve(m.prefix, slots[0], 6, &e, &change), 0);
	assert_int_equal(change.copy_to, PAGES_NONE);
	const uint32_t *list = pages_get_list(m.pages, slots[0], &n);
	assert_true(n == 3 && list[2] < N_PAGES);
	prefix_add(m.prefix, 0, a, list, 3);
	assert_int_equal(prefix_find(m.prefix, 0, a, 6, found), 3);
	assert_int_equal(prefix_find(m.prefix, 1, a, 6, found), 2);
	/* Within: the guest's page is never written, nor forgotten for want of pages. */
	pages_truncate(m.pages, slots[1], 3);
	assert_int_equal(prefix_reserve(m.prefix, slots[1], 4, &e, &change), 0);
	assert_int_equal(change.copy_from, N_PAGES + 3);
	assert_true(change.copy_to < N_PAGES);
	assert_int_equal(pages_get_n_refs(m.pages, N_PAGES + 3), 3);
	for (int i = 0; i < 2; i++)
		pages_close(m.pages, slots[i]);
	/* With the guest goes what is only found behind it. */
	unlend(&m, 2, 2);
	assert_int_equal(prefix_find(m.prefix, 0, a, 6, found), 0);
	assert_int_equal(pages_get_n_free(m.pages), N_PAGES);
	free_model(&m);
}

/* With no page for a copy the slot is refused, and the guest's page is still everybody's. */
static void refuses_to_write_into_guests(void **state)
{
	static const uint32_t a[] = {1, 1, 2, 2, 3, 3};
	const struct pages_params shape = {.n_pages = 1,
		.n_guest_pages = 2,
		.n_page_tokens = N_PAGE_TOKENS,
		.n_slots = 2,
		.n_slot_tokens = 6};
	const struct prefix_params params = {
		.n_pages = 1, .n_guest_pages = 2, .n_page_tokens = N_PAGE_TOKENS};
	const uint32_t guests[] = {1, 2};
	struct pages_change change;
	struct pages *pages = NULL;
	struct prefix *p = NULL;
	struct err e = ERR_NULL;
	uint32_t slots[2], found[2];

	(void)state;
	assert_int_equal(pages_new(&shape, &pages), 0);
	assert_int_equal(prefix_new(&params, pages, &p), 0);
	for (int i = 0; i < 2; i++)
		pages_lend(pages, guests[i]);
	prefix_add(p, PREFIX_ANY, a, guests, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pages_open(pages, &e, &slots[i]), 0);
		for (uint32_t k = 0; k < 2; k++)
			pages_share(pages, slots[i], k, guests[k]);
	}
	assert_int_equal(prefix_reserve(p, slots[0], 6, &e, &change), 0);
	pages_truncate(pages, slots[1], 3);
	assert_int_equal(prefix_reserve(p, slots[1], 4, &e, &change), -ENOSPC);
	assert_int_equal(prefix_find(p, 7, a, 4, found), 2);
	assert_int_equal(found[1], 2);
	prefix_free(p);
	pages_free(pages);
}

/* Every hash the same: the tokens alone decide. A key of two pages makes one bucket of all. */
static void collisions_do_not_matter(void **state)
{
	const struct pages_params shape = {
		.n_pages = 300, .n_page_tokens = 1, .n_slots = 1, .n_slot_tokens = 300};
	const struct prefix_params one = {.n_pages = 1, .n_page_tokens = 1};
	struct prefix *p = NULL;
	struct pages *pages = NULL;
	struct pages_change change;
	struct err e = ERR_NULL;
	uint32_t tokens[300];
	uint32_t found[300];
	uint32_t slot, n;

	(void)state;
	assert_int_equal(prefix_new(&one, NULL, &p), 0);
	prefix_free(p);
	assert_int_equal(pages_new(&shape, &pages), 0);
	const struct prefix_params params = {.n_pages = 300, .n_page_tokens = 1};
	assert_int_equal(prefix_new(&params, pages, &p), 0);
	/* 300 entries in 512 buckets: some 70 share one. */
	for (uint32_t i = 0; i < 300; i++)
		tokens[i] = i;
	assert_int_equal(pages_open(pages, &e, &slot), 0);
	assert_int_equal(prefix_reserve(p, slot, 300, &e, &change), 0);
	const uint32_t *list = pages_get_list(pages, slot, &n);
	for (uint32_t i = 0; i < 300; i++)
		prefix_add(p, 0, &tokens[i], &list[i], 1);
	for (uint32_t i = 0; i < 300; i++) {
		assert_int_equal(prefix_find(p, 0, &tokens[i], 1, found), 1);
		assert_int_equal(found[0], list[i]);
	}
	n = 300;
	assert_int_equal(prefix_find(p, 0, &n, 1, found), 0);
	prefix_free(p);
	pages_free(pages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(finds_what_is_there),
		CASE(gives_back_the_oldest),
		CASE(finds_guests_from_everywhere),
		CASE(goes_on_behind_guests),
		CASE(refuses_to_write_into_guests),
		CASE(collisions_do_not_matter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
