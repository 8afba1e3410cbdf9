/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/pages.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "proto/util/err.h"

struct slot {
	bool is_open;
	uint32_t n_tokens;
	uint32_t n_pages;
	uint32_t *pages; /* [n_slot_pages], the first n_pages valid */
};

struct pages {
	struct pages_params params;
	uint32_t n_slot_pages;
	uint32_t n_free;
	uint32_t first_word;  /* no free bit before this word */
	uint64_t *free_bits;  /* [n_pages / 64] bit set: free */
	uint32_t *n_refs;     /* [n_pages + n_guest_pages] */
	struct slot *slots;   /* [n_slots] */
	uint32_t *slot_pages; /* [n_slots][n_slot_pages], what slots[].pages point into */
};

uint32_t pages_count(const struct pages *p, uint32_t n_tokens)
{
	uint32_t n = p->params.n_page_tokens;

	return n_tokens / n + !!(n_tokens % n);
}

int pages_new(const struct pages_params *params, struct pages **ret_pages)
{
	struct pages *p;

	if (!params->n_pages || !params->n_page_tokens || !params->n_slots ||
		!params->n_slot_tokens)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->params = *params;
	p->n_slot_pages = pages_count(p, params->n_slot_tokens);
	p->n_free = params->n_pages;
	p->free_bits = calloc(((size_t)params->n_pages + 63) / 64, sizeof(*p->free_bits));
	p->n_refs = calloc((size_t)params->n_pages + params->n_guest_pages, sizeof(*p->n_refs));
	p->slots = calloc(params->n_slots, sizeof(*p->slots));
	p->slot_pages = calloc((size_t)params->n_slots * p->n_slot_pages, sizeof(*p->slot_pages));
	if (!p->free_bits || !p->n_refs || !p->slots || !p->slot_pages) {
		pages_free(p);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < params->n_pages; i++)
		p->free_bits[i / 64] |= 1ull << (i % 64);
	for (uint32_t i = 0; i < params->n_slots; i++)
		p->slots[i].pages = p->slot_pages + (size_t)i * p->n_slot_pages;
	*ret_pages = p;
	return 0;
}

struct pages *pages_free(struct pages *p)
{
	if (!p)
		return NULL;
	free(p->free_bits);
	free(p->n_refs);
	free(p->slots);
	free(p->slot_pages);
	free(p);
	return NULL;
}

/* The lowest free page, so that the end of a pool larger than its use stays untouched. */
static uint32_t pages_take(struct pages *p)
{
	uint32_t word = p->first_word;

	while (!p->free_bits[word])
		word++;
	uint32_t page = word * 64 + (uint32_t)__builtin_ctzll(p->free_bits[word]);
	p->free_bits[word] &= p->free_bits[word] - 1;
	p->first_word = word;
	p->n_free--;
	p->n_refs[page] = 1;
	return page;
}

void pages_ref(struct pages *p, uint32_t page)
{
	assert(p->n_refs[page]);
	p->n_refs[page]++;
}

void pages_unref(struct pages *p, uint32_t page)
{
	assert(p->n_refs[page]);
	if (--p->n_refs[page] || page >= p->params.n_pages)
		return;
	p->free_bits[page / 64] |= 1ull << (page % 64);
	if (page / 64 < p->first_word)
		p->first_word = page / 64;
	p->n_free++;
}

int pages_open(struct pages *p, struct err *ret_err, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < p->params.n_slots; i++) {
		if (p->slots[i].is_open)
			continue;
		p->slots[i].is_open = true;
		*ret_slot = i;
		return 0;
	}
	return err_set(ret_err, EAGAIN, "sessions: all %" PRIu32 " are open", p->params.n_slots);
}

void pages_close(struct pages *p, uint32_t slot)
{
	pages_truncate(p, slot, 0);
	p->slots[slot].is_open = false;
}

static int pages_check_free(const struct pages *p, uint32_t n_more, struct err *ret_err)
{
	if (n_more <= p->n_free)
		return 0;
	return err_set(ret_err, ENOSPC,
		"kv: %" PRIu32 " more pages asked, %" PRIu32 " of %" PRIu32 " are free", n_more,
		p->n_free, p->params.n_pages);
}

int pages_reserve(struct pages *p, uint32_t slot, uint32_t n_tokens, struct err *ret_err,
	struct pages_change *ret_change)
{
	struct slot *s = &p->slots[slot];
	uint32_t n_pages = pages_count(p, n_tokens);
	struct pages_change change = {
		.first = s->n_pages,
		.copy_from = PAGES_NONE,
		.copy_to = PAGES_NONE,
		.n_old_pages = s->n_pages,
		.n_old_tokens = s->n_tokens,
	};
	bool is_shared = false;

	if (n_tokens > p->params.n_slot_tokens)
		return err_set(ret_err, ENOSPC, "context: %" PRIu32 " tokens, %" PRIu32 " asked",
			p->params.n_slot_tokens, n_tokens);
	if (n_tokens > s->n_tokens && s->n_tokens % p->params.n_page_tokens)
		is_shared = p->n_refs[s->pages[s->n_pages - 1]] > 1;
	if (n_tokens > s->n_tokens) {
		int r = pages_check_free(p, n_pages - s->n_pages + is_shared, ret_err);
		if (r)
			return r;
	}
	if (is_shared) {
		change.first = s->n_pages - 1;
		change.copy_from = s->pages[change.first];
		change.copy_to = pages_take(p);
		s->pages[change.first] = change.copy_to;
		pages_unref(p, change.copy_from);
	}
	while (s->n_pages < n_pages)
		s->pages[s->n_pages++] = pages_take(p);
	if (n_tokens > s->n_tokens)
		s->n_tokens = n_tokens;
	*ret_change = change;
	return 0;
}

void pages_revert(struct pages *p, uint32_t slot, const struct pages_change *change)
{
	struct slot *s = &p->slots[slot];

	while (s->n_pages > change->n_old_pages)
		pages_unref(p, s->pages[--s->n_pages]);
	/* Of a fork the copy is not among the old pages, and gone by now. */
	if (change->copy_to != PAGES_NONE && change->first < s->n_pages) {
		pages_unref(p, change->copy_to);
		pages_ref(p, change->copy_from);
		s->pages[change->first] = change->copy_from;
	}
	s->n_tokens = change->n_old_tokens;
}

void pages_truncate(struct pages *p, uint32_t slot, uint32_t n_tokens)
{
	struct slot *s = &p->slots[slot];
	uint32_t n_pages = pages_count(p, n_tokens);

	while (s->n_pages > n_pages)
		pages_unref(p, s->pages[--s->n_pages]);
	if (s->n_tokens > n_tokens)
		s->n_tokens = n_tokens;
}

int pages_fork(struct pages *p, uint32_t from, uint32_t n_tokens, uint32_t slot,
	struct err *ret_err, struct pages_change *ret_change)
{
	const struct slot *source = &p->slots[from];
	struct slot *s = &p->slots[slot];
	uint32_t n_whole = n_tokens / p->params.n_page_tokens;
	struct pages_change change = {
		.first = n_whole, .copy_from = PAGES_NONE, .copy_to = PAGES_NONE};

	assert(s->is_open && !s->n_pages && n_tokens <= source->n_tokens);
	int r = pages_check_free(p, pages_count(p, n_tokens) - n_whole, ret_err);
	if (r)
		return r;
	for (uint32_t i = 0; i < n_whole; i++) {
		pages_ref(p, source->pages[i]);
		s->pages[i] = source->pages[i];
	}
	s->n_pages = n_whole;
	if (pages_count(p, n_tokens) > n_whole) {
		change.copy_from = source->pages[n_whole];
		change.copy_to = pages_take(p);
		s->pages[s->n_pages++] = change.copy_to;
	}
	s->n_tokens = n_tokens;
	*ret_change = change;
	return 0;
}

void pages_lend(struct pages *p, uint32_t page)
{
	assert(page >= p->params.n_pages && !p->n_refs[page]);
	p->n_refs[page] = 1;
}

void pages_share(struct pages *p, uint32_t slot, uint32_t index, uint32_t page)
{
	struct slot *s = &p->slots[slot];

	assert(s->is_open && index <= s->n_pages && index < p->n_slot_pages);
	/* First: it may be the slot's own. */
	pages_ref(p, page);
	pages_truncate(p, slot, index * p->params.n_page_tokens);
	s->pages[s->n_pages++] = page;
	s->n_tokens = s->n_pages * p->params.n_page_tokens;
}

const uint32_t *pages_get_list(const struct pages *p, uint32_t slot, uint32_t *ret_n)
{
	*ret_n = p->slots[slot].n_pages;
	return p->slots[slot].pages;
}

uint32_t pages_get_n_tokens(const struct pages *p, uint32_t slot)
{
	return p->slots[slot].n_tokens;
}

uint32_t pages_get_n_refs(const struct pages *p, uint32_t page)
{
	return p->n_refs[page];
}

uint32_t pages_get_n_free(const struct pages *p)
{
	return p->n_free;
}

uint32_t pages_get_n_slot_pages(const struct pages *p)
{
	return p->n_slot_pages;
}
