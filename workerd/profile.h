/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PROFILE_H
#define WORKERD_PROFILE_H

/*
 * Where the device's time goes. A plan that is given one (plan_set_profile) computes its steps
 * through it, in one of two ways:
 *
 *	PROFILE_BUSY     the plan's own commands, between two timestamps: how long the device takes
 *	PROFILE_KERNELS  a second set of commands with a timestamp behind each dispatch: what each
 *	                 kernel takes, from the end of the one before to its own. It costs some time
 *	                 itself, so that the first is what a step really takes
 *
 * A plan without one has nothing of it in its commands. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/cost.h"

struct abi_row;
struct err;
struct graph;
struct op_pool;
struct profile;
struct record_addresses;
struct vk_command;
struct vk_device;

enum profile_kind { PROFILE_BUSY, PROFILE_KERNELS };

enum { PROFILE_MAX_KERNELS = 96 }; /* of kernels and shapes: a model has some dozens */

/* Borrowed for the profile's life. */
struct profile_params {
	struct vk_device *device;
	const struct graph *graph;
	const struct record_addresses *addresses;
	struct op_pool *pool;
};

/* -ENOTSUP where the device has no timestamps, -ENOMEM, VK_DEVICE_LOST. */
int must_check profile_new(
	const struct profile_params *params, struct err *ret_err, struct profile **ret_profile);

/* Nothing of it is submitted any more. Accepts NULL; returns NULL. */
struct profile *profile_free(struct profile *p);

/* The steps from here on. is_prompt: which phase they are of. */
void profile_begin(struct profile *p, enum profile_kind kind, bool is_prompt);

/*
 * Submits a step of up to n_rows rows, of which n_want have logits: the plan's recorded commands
 * (head is NULL without logits), or the profile's own. is_spread: see record_range.
 */
int must_check profile_submit(struct profile *p, struct vk_command *body, struct vk_command *head,
	uint32_t n_rows, uint32_t n_want, bool is_spread, struct err *ret_err,
	uint64_t *ret_ticket);

/* The step that was submitted last is done; rows [n_rows] are those that it was of. */
int must_check profile_take(struct profile *p, const struct abi_row *rows, uint32_t n_rows,
	uint32_t n_want, struct err *ret_err);

/* All dispatches of one kernel with one shape in one phase. */
struct profile_kernel {
	enum kernels_id id;
	const char *name; /* of it, static */
	bool is_prompt;
	uint64_t n_calls;
	uint64_t ns;
	struct cost cost; /* of all */
};

/* The longest first; how many there are. */
uint32_t profile_get_kernels(
	struct profile *p, struct profile_kernel ret_kernels[PROFILE_MAX_KERNELS]);

/* Of all steps of a phase since profile_new, in nanoseconds. */
uint64_t profile_get_ns(const struct profile *p, enum profile_kind kind, bool is_prompt);

#endif
