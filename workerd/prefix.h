/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PREFIX_H
#define WORKERD_PREFIX_H

/*
 * Which pages hold the KV of which tokens, so that what was computed once is found again. Whole
 * pages alone, and each under all that comes before it: an entry is a page, its tokens, and the
 * entry of the page before. So two sessions find the same page exactly when every token up to its
 * end is the same. A hash leads to an entry; whether it is the one is decided by the tokens.
 *
 * Entries have a scope, and are found within it alone. Each holds a reference on its page
 * (workerd/pages.h), which is given back by prefix_give_back when somebody needs pages: first those
 * that were not used for longest, and an entry before the ones that lead to it. A page that a slot
 * has too is of no use to anybody else, and stays. Nobody may write into a page while it has an
 * entry.
 *
 * Pages of guests (workerd/pages.h) are in the scope PREFIX_ANY, which is found from every scope:
 * somebody else computed them, for all. They are not given back; prefix_drop takes them out.
 *
 * Pure; engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct pages;
struct pages_change;
struct prefix;

#define PREFIX_ANY UINT64_MAX

struct prefix_params {
	uint32_t n_pages;
	uint32_t n_guest_pages;
	uint32_t n_page_tokens;
	/* Of the hash: one that clients do not know, so that none makes all entries collide. */
	uint64_t key;
};

/* pages is borrowed, and outlives it. -EINVAL, -ENOMEM. */
int must_check prefix_new(
	const struct prefix_params *params, struct pages *pages, struct prefix **ret_prefix);

/* Without a word to pages. Accepts NULL; returns NULL. */
struct prefix *prefix_free(struct prefix *p);

/*
 * The pages that hold the beginning of tokens[0..n_tokens), as many as are known: their number, and
 * the pages themselves into ret_pages, which has room for n_tokens / n_page_tokens. Borrowed: they
 * are to be shared before anything else is done.
 */
uint32_t prefix_find(struct prefix *p, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens,
	uint32_t *ret_pages);

/*
 * pages[0..n_pages) hold tokens[0..n_pages * n_page_tokens), whole. Where another page is known to
 * hold the same, that one stays, and what follows is entered behind it.
 */
void prefix_add(struct prefix *p, uint64_t scope, const uint32_t *tokens, const uint32_t *pages,
	uint32_t n_pages);

/* Somebody is done with pages[0..n_pages): as if they had been found now. */
void prefix_touch(struct prefix *p, const uint32_t *pages, uint32_t n_pages);

/* Gives pages back until n_free are free, or all that are left are in use. */
void prefix_give_back(struct prefix *p, uint32_t n_free);

/* As pages_reserve and pages_fork. What has only entries never makes them fail. */
int must_check prefix_reserve(struct prefix *p, uint32_t slot, uint32_t n_tokens,
	struct err *ret_err, struct pages_change *ret_change);
int must_check prefix_fork(struct prefix *p, uint32_t from, uint32_t n_tokens, uint32_t slot,
	struct err *ret_err, struct pages_change *ret_change);

/* The page's entry goes, if it has one, and those behind it. */
void prefix_drop(struct prefix *p, uint32_t page);

bool prefix_has(const struct prefix *p, uint32_t page);

#endif
