/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PAGES_H
#define WORKERD_PAGES_H

/*
 * The books of a paged cache: which page is whose. A page holds n_page_tokens positions; a slot has
 * a list of pages for positions [0, n_tokens), and several slots may list one page. Pure: the
 * memory behind the numbers is the caller's, who clears and copies as a pages_change says.
 *
 *	n_refs[page]: slots that list it, and pages_ref without its pages_unref; 0: free
 *
 * Behind the pool's pages come those of guests, [n_pages, n_pages + n_guest_pages): they are lent,
 * by pages_lend and until their last pages_unref, and never among the free ones.
 *
 * A slot's positions below its n_tokens are only read, those from there on are written. So only the
 * page that holds position n_tokens can be both shared and written: pages_reserve replaces it.
 *
 * Engine thread. A slot is below n_slots, a page below n_pages.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct pages;

enum { PAGES_NONE = UINT32_MAX };

struct pages_params {
	uint32_t n_pages;
	uint32_t n_guest_pages;
	uint32_t n_page_tokens;
	uint32_t n_slots;
	uint32_t n_slot_tokens; /* that a slot can hold */
};

/*
 * What became of a slot. Its list is another from index first on; of that, page copy_to (at index
 * first, unless PAGES_NONE) is to be a copy of copy_from, and the others have what a former user
 * left.
 */
struct pages_change {
	uint32_t first;
	uint32_t copy_from;
	uint32_t copy_to;
	uint32_t n_old_pages;
	uint32_t n_old_tokens;
};

/* -EINVAL for a size of zero; -ENOMEM. */
int must_check pages_new(const struct pages_params *params, struct pages **ret_pages);
struct pages *pages_free(struct pages *p);

/* Pages that n_tokens of a slot take. */
uint32_t pages_count(const struct pages *p, uint32_t n_tokens);

/* The lowest slot that is closed, without pages; -EAGAIN with the number of slots. */
int must_check pages_open(struct pages *p, struct err *ret_err, uint32_t *ret_slot);
void pages_close(struct pages *p, uint32_t slot);

/*
 * Pages for positions [0, n_tokens) of the slot, the lowest free ones, of which those from the
 * slot's n_tokens on are going to be written: no page of them is shared afterwards. Less than the
 * slot has is no change. -ENOSPC with the figures, and nothing changed.
 */
int must_check pages_reserve(struct pages *p, uint32_t slot, uint32_t n_tokens, struct err *ret_err,
	struct pages_change *ret_change);

/* Undoes the last pages_reserve or pages_fork of the slot, before any other call. */
void pages_revert(struct pages *p, uint32_t slot, const struct pages_change *change);

/* Keeps the first n_tokens, and gives the pages behind them back. */
void pages_truncate(struct pages *p, uint32_t slot, uint32_t n_tokens);

/*
 * slot, which is open and empty, begins with the first n_tokens of slot from (it has them): whole
 * pages are shared, the last one, when it is not full, is to be copied. -ENOSPC as pages_reserve.
 */
int must_check pages_fork(struct pages *p, uint32_t from, uint32_t n_tokens, uint32_t slot,
	struct err *ret_err, struct pages_change *ret_change);

/* A user that is no slot. Not for a free page. */
void pages_ref(struct pages *p, uint32_t page);
void pages_unref(struct pages *p, uint32_t page);

/* A guest's page that nobody has gets its first reference. */
void pages_lend(struct pages *p, uint32_t page);

/*
 * The slot holds (index + 1) whole pages from here on, the last of them page (in use by somebody).
 * It has index pages at least; what it had from there on is given back.
 */
void pages_share(struct pages *p, uint32_t slot, uint32_t index, uint32_t page);

/* [*ret_n], borrowed until the next change. */
const uint32_t *pages_get_list(const struct pages *p, uint32_t slot, uint32_t *ret_n);

uint32_t pages_get_n_tokens(const struct pages *p, uint32_t slot);
uint32_t pages_get_n_refs(const struct pages *p, uint32_t page);
uint32_t pages_get_n_free(const struct pages *p);
uint32_t pages_get_n_slot_pages(const struct pages *p); /* that a slot can have */

#endif
