/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_FIGURE_H
#define WEIGHTCTL_FIGURE_H

/*
 * Figures for people, as values: printf("%s\n", figure_bytes(n).text).
 */
#include <stdint.h>

struct figure {
	char text[32];
};

struct figure figure_bytes(uint64_t n_bytes); /* "0.3 KiB", "5.9 MiB", "4.6 GiB" */
struct figure figure_time(uint64_t ns);       /* "12.3 ms", "3.4 s", "5 min 03 s", "2 h 05 min" */
struct figure figure_count(uint64_t n);       /* "980", "3.1 M", "7.6 B" (10^9) */

#endif
