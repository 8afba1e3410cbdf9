/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_REFUSAL_H
#define TESTS_LAYER_REFUSAL_H

/* Which allocations of a VkInstance are refused, as some driver would; any thread. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct config;
struct request;

struct refusal {
	const struct config *config;
	pthread_mutex_t lock;
	uint64_t n_allocations; /* calls so far */
	uint64_t n_matching;    /* host imports of a kind that is refused */
	bool is_poisoned;
};

void refusal_init(struct refusal *r, const struct config *config);
void refusal_fini(struct refusal *r);

/*
 * Counts the allocation and says why it is refused: "unmapped", "poison", "fail-alloc", "refuse",
 * "max-alloc". NULL: it is not.
 */
const char *refusal_judge(struct refusal *r, const struct request *request);

#endif
