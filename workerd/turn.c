/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/turn.h"

static int64_t turn_get_rank(const struct turn_claim *c)
{
	return c->priority + (int64_t)(c->n_waited / TURN_AGE_STEPS);
}

/* The highest rank below `below` of those who want more rows than they have; false: nobody does. */
static bool turn_find_rank(const struct turn_claim *claims, uint32_t n, const uint32_t *n_take,
	int64_t below, int64_t *ret_rank)
{
	bool is_found = false;

	for (uint32_t i = 0; i < n; i++) {
		int64_t rank = turn_get_rank(&claims[i]);

		if (n_take[i] >= claims[i].n_due || rank >= below ||
			(is_found && rank <= *ret_rank))
			continue;
		*ret_rank = rank;
		is_found = true;
	}
	return is_found;
}

/* Equal shares of n_left for those of one rank, and what a short prompt leaves to the others. */
static uint32_t turn_share_rank(const struct turn_claim *claims, uint32_t n, int64_t rank,
	uint32_t first, uint32_t n_left, uint32_t *n_take)
{
	uint32_t n_waiting;

	do {
		n_waiting = 0;
		for (uint32_t i = 0; i < n; i++)
			n_waiting +=
				turn_get_rank(&claims[i]) == rank && n_take[i] < claims[i].n_due;
		uint32_t n_share = n_waiting && n_left > n_waiting ? n_left / n_waiting : 1;

		for (uint32_t k = 0; k < n && n_left; k++) {
			uint32_t i = (first + k) % n;
			uint32_t n_more = claims[i].n_due - n_take[i];

			if (turn_get_rank(&claims[i]) != rank)
				continue;
			if (n_more > n_share)
				n_more = n_share;
			if (n_more > n_left)
				n_more = n_left;
			n_take[i] += n_more;
			n_left -= n_more;
		}
	} while (n_left && n_waiting);
	return n_left;
}

void turn_share(const struct turn_claim *claims, uint32_t n, uint32_t n_rows, uint32_t n_shared,
	uint32_t first, uint32_t *ret_n_take)
{
	int64_t rank = INT64_MAX;
	uint32_t n_decoding = 0;
	uint32_t n_left = n_rows;

	for (uint32_t i = 0; i < n; i++) {
		ret_n_take[i] = claims[i].n_due == 1;
		n_decoding += ret_n_take[i];
	}
	if (n_decoding)
		n_left = n_shared > n_decoding ? n_shared : n_decoding + 1;
	if (n_left > n_rows)
		n_left = n_rows;
	n_left -= n_decoding;
	while (n_left && turn_find_rank(claims, n, ret_n_take, rank, &rank))
		n_left = turn_share_rank(claims, n, rank, first, n_left, ret_n_take);
}
