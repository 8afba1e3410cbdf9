/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TURN_H
#define WORKERD_TURN_H

/*
 * Who computes in the next step, and how many tokens. A session that decodes has one row, always:
 * it costs the step next to nothing, and somebody reads along. What is left goes to the prompts,
 * those of the highest rank first, in equal shares among those of one rank.
 *
 * A rank is a priority and what waiting has added to it: one for every TURN_AGE_STEPS steps
 * without a row. So a prompt of the lowest priority beside any number of the highest ones waits for
 * at most TURN_AGE_STEPS * (2 * TURN_MAX_PRIORITY + 1) steps for its share. Pure; any thread.
 */
#include <stdbool.h>
#include <stdint.h>

enum {
	TURN_MAX_PRIORITY = 100, /* and at least -TURN_MAX_PRIORITY */
	TURN_AGE_STEPS = 4,
};

struct turn_claim {
	uint32_t n_due; /* tokens to compute before the next is chosen; 0: none */
	int32_t priority;
	uint32_t n_waited; /* steps in a row that it got no row of */
};

/*
 * ret_n_take[i]: rows of claims[i], at most n_due. n is at most n_rows; n_shared, at most n_rows,
 * is what a step may have when somebody decodes, and at least a row more than those who do. first:
 * of a rank, who gets the rows that do not divide evenly; another one each step.
 */
void turn_share(const struct turn_claim *claims, uint32_t n, uint32_t n_rows, uint32_t n_shared,
	uint32_t first, uint32_t *ret_n_take);

#endif
