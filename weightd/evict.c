/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/evict.h"

bool evict_choose(struct evict_candidate *candidates, uint32_t n, uint64_t n_bytes)
{
	uint64_t got = 0;
	uint32_t end = 0;

	for (uint32_t i = 0; i < n; i++)
		candidates[i].is_chosen = false;
	for (; end < n && got < n_bytes; end++) {
		candidates[end].is_chosen = candidates[end].n_bytes > 0;
		if (__builtin_add_overflow(got, candidates[end].n_bytes, &got))
			got = UINT64_MAX;
	}
	for (uint32_t i = end; i > 0; i--) {
		struct evict_candidate *c = &candidates[i - 1];
		/* A sum that did not fit says nothing of what is left of it. */
		if (c->is_chosen && got < UINT64_MAX &&
			(got < n_bytes || got - c->n_bytes >= n_bytes)) {
			c->is_chosen = false;
			got -= c->n_bytes;
		}
	}
	return got >= n_bytes;
}
