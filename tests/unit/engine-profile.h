/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ENGINE_PROFILE_H
#define TESTS_UNIT_ENGINE_PROFILE_H

/* What workerd/bencher.c measures with, where there is no device. For tests/unit/engine-bench.h. */
#include "tests/case.h"

#include <errno.h>

#include "proto/util/cleanup.h"
#include "workerd/ceiling.h"
#include "workerd/plan.h"
#include "workerd/profile.h"

void plan_get_times(const struct plan *p, struct plan_times *ret_times)
{
	(void)p;
	*ret_times = (struct plan_times){.record_ns = 1, .submit_ns = 2, .wait_ns = 3};
}

void plan_get_profile_params(struct plan *p, struct profile_params *ret_params)
{
	(void)p;
	*ret_params = (struct profile_params){0};
}

static struct profile *plan_profile; /* that the steps go through */

void plan_set_profile(struct plan *p, struct profile *profile)
{
	(void)p;
	plan_profile = profile;
}

int profile_new(
	const struct profile_params *params, struct err *ret_err, struct profile **ret_profile)
{
	(void)params;
	(void)ret_err;
	*ret_profile = malloc(1);
	return *ret_profile ? 0 : -ENOMEM;
}

struct profile *profile_free(struct profile *p)
{
	assert_true(!p || plan_profile != p);
	free(p);
	return NULL;
}

void profile_begin(struct profile *p, enum profile_kind kind, bool is_prompt)
{
	assert_non_null(p);
	(void)kind;
	(void)is_prompt;
}

uint32_t profile_get_kernels(
	struct profile *p, struct profile_kernel ret_kernels[PROFILE_MAX_KERNELS])
{
	(void)p;
	ret_kernels[0] = (struct profile_kernel){.n_calls = 5};
	return 1;
}

uint64_t profile_get_ns(const struct profile *p, enum profile_kind kind, bool is_prompt)
{
	(void)p;
	return 10 * (uint64_t)kind + is_prompt;
}

int ceiling_measure(struct vk_device *d, struct op_pool *pool, struct err *ret_err,
	struct ceiling_rates *ret_rates)
{
	(void)d;
	(void)pool;
	(void)ret_err;
	*ret_rates = (struct ceiling_rates){.read_bytes = 7, .fma_flops = 8};
	return 0;
}

#endif
