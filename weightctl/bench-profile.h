/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_PROFILE_H
#define WEIGHTCTL_BENCH_PROFILE_H

/*
 * A profile for people: a line of what a step takes, a table of its kernels beside the ceilings of
 * the same run, and a roofline.
 */
#include <stdio.h>

struct bench_result;
struct bench_roofline;
struct worker_bench_kernel;
struct worker_bench_result;

/* r has a profile. */
void bench_profile_print(FILE *out, const struct bench_result *r);

/* A second; 0 where it has none, or took no time. */
double bench_profile_get_bytes_rate(const struct worker_bench_kernel *k);
double bench_profile_get_flops_rate(const struct worker_bench_kernel *k);

/* The higher of the arithmetic ceilings. */
double bench_profile_get_ridge(const struct worker_bench_result *p);

#endif
