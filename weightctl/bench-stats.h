/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_STATS_H
#define WEIGHTCTL_BENCH_STATS_H

/*
 * Figures of samples.
 */
#include <stdint.h>

/* 0 of none. */
double bench_stats_mean(const double *samples, uint32_t n);

/* Of the population that n samples are from: divided by n - 1. 0 of fewer than two. */
double bench_stats_deviation(const double *samples, uint32_t n);

double bench_stats_min(const double *samples, uint32_t n);
double bench_stats_max(const double *samples, uint32_t n);

/* n a second, of so many nanoseconds; 0 for no time. */
double bench_stats_rate(double n, uint64_t ns);

#endif
