/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_CHECK_H
#define WORKERD_PLAN_CHECK_H

/* What a plan refuses, for workerd/plan alone. Any one thread. */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv;
struct plan;
struct plan_params;
struct plan_row;
struct weights;

/* Do the parameters and the KV cache fit the model? -EINVAL. */
int must_check plan_check_model(const struct weights *w, const struct kv *kv,
	const struct plan_params *params, struct err *ret_err);

/* Is it a step, as plan_submit says, behind those that the plan has? -EINVAL. */
int must_check plan_check_step(const struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err);

#endif
