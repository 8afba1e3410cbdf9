/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_TABLE_H
#define WEIGHTCTL_BENCH_TABLE_H

/*
 * Results as a markdown table, a row as soon as it is there.
 */
#include <stdio.h>

struct bench_result;

void bench_table_print_head(FILE *out);

/*
 * Rates are means of the runs, with the deviation of one; of several workers what all reach
 * together, and then each one's. A step's time is the mean of the runs' medians, and the longest
 * 99th percentile.
 */
void bench_table_print_row(FILE *out, const struct bench_result *r);

#endif
