/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_CUTS_H
#define WORKERD_CUTS_H

/*
 * Measures how the matrix products of a graph are best cut: each kind of product with each number
 * of rows that commands are recorded for, over the weights of all layers where they are, with some
 * cuts from a short list beside the one that the ops choose by themselves. What was best is run
 * once more in turn with that one, and has to be faster then too. One cut a step; what is in
 * scratch afterwards is anything.
 *
 * Engine thread, between two steps of the plan that the graph is of.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/tuning.h"

struct cuts;
struct err;
struct graph;
struct record_addresses;
struct vk_device;

/* Borrowed until cuts_free. Nothing in the graph is read through slots of weights. */
struct cuts_params {
	struct vk_device *device;
	const struct graph *graph;
	const struct record_addresses *addresses;
	uint32_t n_rows;       /* of a step, at most */
	uint32_t n_logit_rows; /* likewise */
};

struct cuts_row {
	struct tuning_key key;
	uint64_t default_ns; /* a product, of the ops' own choice */
	uint64_t best_ns;
	struct tuning_choice best; /* may be the ops' own */
};

/* -ENOTSUP without timestamps or products with a choice, -ENOMEM, VK_DEVICE_LOST. */
int must_check cuts_new(
	const struct cuts_params *params, struct err *ret_err, struct cuts **ret_cuts);
struct cuts *cuts_free(struct cuts *c);

/* Measures the next cut, or ends a row. Errors of the device, with ret_err. */
int must_check cuts_step(struct cuts *c, struct err *ret_err, bool *ret_is_done);

/* Rows that there are, those that matter most first. */
uint32_t cuts_count(const struct cuts *c);

/* The rows that have been measured; until cuts_free. */
const struct cuts_row *cuts_get_rows(const struct cuts *c, uint32_t *ret_n);

#endif
