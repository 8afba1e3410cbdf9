/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-stats.h"

#include <math.h>

double bench_stats_mean(const double *samples, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += samples[i];
	return n ? sum / n : 0;
}

double bench_stats_deviation(const double *samples, uint32_t n)
{
	double mean = bench_stats_mean(samples, n), squares = 0;

	for (uint32_t i = 0; i < n; i++)
		squares += (samples[i] - mean) * (samples[i] - mean);
	return n > 1 ? sqrt(squares / (n - 1)) : 0;
}

double bench_stats_min(const double *samples, uint32_t n)
{
	double min = n ? samples[0] : 0;

	for (uint32_t i = 1; i < n; i++)
		min = samples[i] < min ? samples[i] : min;
	return min;
}

double bench_stats_max(const double *samples, uint32_t n)
{
	double max = n ? samples[0] : 0;

	for (uint32_t i = 1; i < n; i++)
		max = samples[i] > max ? samples[i] : max;
	return max;
}

double bench_stats_rate(double n, uint64_t ns)
{
	return ns ? n * 1e9 / (double)ns : 0;
}
