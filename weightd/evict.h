/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_EVICT_H
#define WEIGHTD_EVICT_H

/*
 * Which generations make room for another: a pure choice over a list. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

/* A generation that could go. */
struct evict_candidate {
	uint64_t n_bytes; /* of the memory that is wanted, that it gives back */
	bool is_chosen;
};

/*
 * Chooses from the front, where the least recently used stand, until n_bytes come together; then
 * those go free again, from the most recently used on, that it takes none of. True with the
 * choice; false, and nobody is chosen, when all together are not enough: nobody goes for nothing.
 */
bool evict_choose(struct evict_candidate *candidates, uint32_t n, uint64_t n_bytes);

#endif
