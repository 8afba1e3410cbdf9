/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/prefix.h"

#include <errno.h>
#include <string.h>

#include "workerd/pages.h"

enum { NONE = UINT32_MAX };

/* Of one page: entries[page]. Links are page numbers, NONE at an end. */
struct entry {
	bool is_used;
	uint64_t scope;
	uint32_t parent; /* NONE: it is the first page of its tokens */
	uint32_t first_child;
	uint32_t next_sibling;
	uint32_t previous_sibling;
	uint32_t bucket;
	uint32_t next_in_bucket;
	uint32_t newer;
	uint32_t older;
};

struct prefix {
	struct prefix_params params;
	struct pages *pages;
	struct entry *entries; /* [n_pages + n_guest_pages] */
	uint32_t *tokens;      /* [n_pages + n_guest_pages][n_page_tokens] */
	uint32_t n_buckets;    /* a power of two */
	uint32_t *buckets;     /* [n_buckets] first entry */
	uint32_t newest;
	uint32_t oldest;
	uint32_t n_entries;
	uint32_t n_any; /* of them, in PREFIX_ANY */
};

int prefix_new(const struct prefix_params *params, struct pages *pages, struct prefix **ret_prefix)
{
	size_t n_pages = (size_t)params->n_pages + params->n_guest_pages;
	struct prefix *p;

	if (!params->n_pages || !params->n_page_tokens)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->params = *params;
	p->pages = pages;
	p->newest = p->oldest = NONE;
	p->n_buckets = 1;
	while (p->n_buckets < n_pages)
		p->n_buckets *= 2;
	p->entries = calloc(n_pages, sizeof(*p->entries));
	p->tokens = calloc(n_pages, params->n_page_tokens * sizeof(*p->tokens));
	p->buckets = malloc(p->n_buckets * sizeof(*p->buckets));
	if (!p->entries || !p->tokens || !p->buckets) {
		prefix_free(p);
		return -ENOMEM;
	}
	memset(p->buckets, 0xff, p->n_buckets * sizeof(*p->buckets));
	*ret_prefix = p;
	return 0;
}

struct prefix *prefix_free(struct prefix *p)
{
	if (!p)
		return NULL;
	free(p->entries);
	free(p->tokens);
	free(p->buckets);
	free(p);
	return NULL;
}

static uint32_t *prefix_get_tokens(const struct prefix *p, uint32_t page)
{
	return p->tokens + (size_t)page * p->params.n_page_tokens;
}

static uint64_t prefix_mix(uint64_t hash, uint64_t value)
{
	unsigned __int128 product = (unsigned __int128)(hash ^ value) * 0x9e3779b97f4a7c15ull;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t prefix_hash(
	const struct prefix *p, uint64_t scope, uint32_t parent, const uint32_t *tokens)
{
	uint64_t hash = prefix_mix(p->params.key, scope);

	hash = prefix_mix(hash, parent);
	for (uint32_t i = 0; i < p->params.n_page_tokens; i++)
		hash = prefix_mix(hash, tokens[i] ^ p->params.key);
	return (uint32_t)hash & (p->n_buckets - 1);
}

/* The entry of tokens[0..n_page_tokens) behind parent, or NONE. */
static uint32_t prefix_find_one(const struct prefix *p, uint64_t scope, uint32_t parent,
	const uint32_t *tokens, uint32_t bucket)
{
	uint32_t page = p->buckets[bucket];

	while (page != NONE) {
		const struct entry *e = &p->entries[page];

		if (e->scope == scope && e->parent == parent &&
			!memcmp(prefix_get_tokens(p, page), tokens,
				p->params.n_page_tokens * sizeof(*tokens)))
			return page;
		page = e->next_in_bucket;
	}
	return NONE;
}

static void prefix_unlink_age(struct prefix *p, uint32_t page)
{
	struct entry *e = &p->entries[page];

	*(e->newer == NONE ? &p->newest : &p->entries[e->newer].older) = e->older;
	*(e->older == NONE ? &p->oldest : &p->entries[e->older].newer) = e->newer;
}

static void prefix_link_newest(struct prefix *p, uint32_t page)
{
	struct entry *e = &p->entries[page];

	e->newer = NONE;
	e->older = p->newest;
	*(p->newest == NONE ? &p->oldest : &p->entries[p->newest].newer) = page;
	p->newest = page;
}

static void prefix_renew(struct prefix *p, uint32_t page)
{
	prefix_unlink_age(p, page);
	prefix_link_newest(p, page);
}

/* What leads to an entry is newer than it, so that it goes later. */
static void prefix_renew_chain(struct prefix *p, uint32_t page)
{
	for (; page != NONE; page = p->entries[page].parent)
		prefix_renew(p, page);
}

/* From the beginning, at each page in the first of two scopes that has it: how many there are. */
static uint32_t prefix_walk(const struct prefix *p, const uint64_t scopes[2],
	const uint32_t *tokens, uint32_t n_most, uint32_t *ret_pages)
{
	uint32_t last = NONE;
	uint32_t n = 0;

	for (; n < n_most; n++, tokens += p->params.n_page_tokens) {
		uint32_t page = NONE;

		for (int i = 0; i < (p->n_any ? 2 : 1) && page == NONE; i++)
			page = prefix_find_one(p, scopes[i], last, tokens,
				prefix_hash(p, scopes[i], last, tokens));
		if (page == NONE)
			break;
		ret_pages[n] = last = page;
	}
	return n;
}

uint32_t prefix_find(struct prefix *p, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens,
	uint32_t *ret_pages)
{
	const uint64_t orders[2][2] = {{scope, PREFIX_ANY}, {PREFIX_ANY, scope}};
	uint32_t n_most = n_tokens / p->params.n_page_tokens;
	uint32_t n = prefix_walk(p, orders[0], tokens, n_most, ret_pages);

	/* A page of one scope may lead nowhere where its twin leads far. Of equals the guests'. */
	if (p->n_any) {
		uint32_t n_own = n;

		n = prefix_walk(p, orders[1], tokens, n_most, ret_pages);
		if (n < n_own)
			n = prefix_walk(p, orders[0], tokens, n_most, ret_pages);
	}
	prefix_renew_chain(p, n ? ret_pages[n - 1] : NONE);
	return n;
}

static void prefix_enter(struct prefix *p, uint64_t scope, uint32_t parent, const uint32_t *tokens,
	uint32_t bucket, uint32_t page)
{
	uint32_t *first = parent == NONE ? NULL : &p->entries[parent].first_child;

	p->entries[page] = (struct entry){
		.is_used = true,
		.scope = scope,
		.parent = parent,
		.first_child = NONE,
		.next_sibling = first ? *first : NONE,
		.previous_sibling = NONE,
		.bucket = bucket,
		.next_in_bucket = p->buckets[bucket],
	};
	if (first) {
		if (*first != NONE)
			p->entries[*first].previous_sibling = page;
		*first = page;
	}
	memcpy(prefix_get_tokens(p, page), tokens, p->params.n_page_tokens * sizeof(*tokens));
	p->buckets[bucket] = page;
	prefix_link_newest(p, page);
	p->n_entries++;
	p->n_any += scope == PREFIX_ANY;
	pages_ref(p->pages, page);
}

/* An entry without children. */
static void prefix_remove(struct prefix *p, uint32_t page)
{
	struct entry *e = &p->entries[page];
	uint32_t *link = &p->buckets[e->bucket];

	while (*link != page)
		link = &p->entries[*link].next_in_bucket;
	*link = e->next_in_bucket;
	if (e->previous_sibling != NONE)
		p->entries[e->previous_sibling].next_sibling = e->next_sibling;
	else if (e->parent != NONE)
		p->entries[e->parent].first_child = e->next_sibling;
	if (e->next_sibling != NONE)
		p->entries[e->next_sibling].previous_sibling = e->previous_sibling;
	prefix_unlink_age(p, page);
	e->is_used = false;
	p->n_entries--;
	p->n_any -= e->scope == PREFIX_ANY;
	pages_unref(p->pages, page);
}

static void prefix_remove_all(struct prefix *p, uint32_t page)
{
	/* What follows it could never be found again. */
	for (uint32_t at = page; p->entries[page].is_used;) {
		while (p->entries[at].first_child != NONE)
			at = p->entries[at].first_child;
		uint32_t parent = p->entries[at].parent;
		prefix_remove(p, at);
		at = parent;
	}
}

/* The last of pages[0..n_pages) that has an entry; its chain is that of the pages before it. */
static uint32_t prefix_count_known(const struct prefix *p, const uint32_t *pages, uint32_t n_pages)
{
	while (n_pages && !p->entries[pages[n_pages - 1]].is_used)
		n_pages--;
	return n_pages;
}

void prefix_add(struct prefix *p, uint64_t scope, const uint32_t *tokens, const uint32_t *pages,
	uint32_t n_pages)
{
	uint32_t n_known = prefix_count_known(p, pages, n_pages);
	uint32_t last = n_known ? pages[n_known - 1] : NONE;

	for (uint32_t i = n_known; i < n_pages; i++) {
		const uint32_t *own = tokens + (size_t)i * p->params.n_page_tokens;
		uint32_t bucket = prefix_hash(p, scope, last, own);
		uint32_t page = prefix_find_one(p, scope, last, own, bucket);

		if (page == NONE) {
			page = pages[i];
			prefix_enter(p, scope, last, own, bucket, page);
		}
		last = page;
	}
	prefix_renew_chain(p, last);
}

void prefix_touch(struct prefix *p, const uint32_t *pages, uint32_t n_pages)
{
	uint32_t n_known = prefix_count_known(p, pages, n_pages);

	prefix_renew_chain(p, n_known ? pages[n_known - 1] : NONE);
}

void prefix_give_back(struct prefix *p, uint32_t n_free)
{
	/* Pages in use are as good as new. */
	for (uint32_t n = p->n_entries; n && pages_get_n_free(p->pages) < n_free; n--) {
		uint32_t page = p->oldest;

		if (pages_get_n_refs(p->pages, page) == 1 && p->entries[page].first_child == NONE)
			prefix_remove(p, page);
		else
			prefix_renew(p, page);
	}
	/*
	 * What leads to pages in use only: slots that computed the same beginning at the same time
	 * have pages of their own for it, and share what one of them entered behind it.
	 */
	for (uint32_t n = p->n_entries; n && p->n_entries && pages_get_n_free(p->pages) < n_free;
		n--) {
		uint32_t page = p->oldest;

		if (pages_get_n_refs(p->pages, page) == 1)
			prefix_remove_all(p, page);
		else
			prefix_renew(p, page);
	}
}

int prefix_reserve(struct prefix *p, uint32_t slot, uint32_t n_tokens, struct err *ret_err,
	struct pages_change *ret_change)
{
	uint32_t n_had = pages_get_n_tokens(p->pages, slot);
	uint32_t n_wanted = pages_count(p->pages, n_tokens);
	uint32_t n;
	const uint32_t *list = pages_get_list(p->pages, slot, &n);

	if (n_tokens <= n_had || n_wanted > pages_get_n_slot_pages(p->pages))
		return pages_reserve(p->pages, slot, n_tokens, ret_err, ret_change);
	uint32_t n_more = n_wanted - n;
	bool is_cut = n_had % p->params.n_page_tokens;
	if (is_cut && pages_get_n_refs(p->pages, list[n - 1]) > 1)
		n_more++;
	prefix_give_back(p, n_more);
	/* Instead of a copy: the page is the slot's alone again. A guest's never is. */
	if (is_cut && list[n - 1] < p->params.n_pages && p->entries[list[n - 1]].is_used &&
		pages_get_n_free(p->pages) < n_more)
		prefix_remove_all(p, list[n - 1]);
	return pages_reserve(p->pages, slot, n_tokens, ret_err, ret_change);
}

int prefix_fork(struct prefix *p, uint32_t from, uint32_t n_tokens, uint32_t slot,
	struct err *ret_err, struct pages_change *ret_change)
{
	prefix_give_back(p, n_tokens % p->params.n_page_tokens ? 1 : 0);
	return pages_fork(p->pages, from, n_tokens, slot, ret_err, ret_change);
}

void prefix_drop(struct prefix *p, uint32_t page)
{
	if (p->entries[page].is_used)
		prefix_remove_all(p, page);
}

bool prefix_has(const struct prefix *p, uint32_t page)
{
	return p->entries[page].is_used;
}
