/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_ROOFLINE_H
#define WEIGHTCTL_BENCH_ROOFLINE_H

/*
 * A roofline in characters: how much arithmetic work has for each byte that it reads, against the
 * rate at which it is done. Nothing is above the roof, which is what memory gives on its slope and
 * what arithmetic gives on its ridge; both axes are logarithmic. Dots are the ridge of what does
 * not use matrices.
 */
#include <stdint.h>
#include <stdio.h>

enum { BENCH_ROOFLINE_MAX_POINTS = 26 }; /* letters */

struct bench_roofline_point {
	double intensity; /* operations a byte */
	double rate;      /* operations a second */
};

struct bench_roofline {
	double read;      /* bytes a second */
	double flops;     /* operations a second, of the ridge */
	double f32_flops; /* of a second, lower ridge, for work without matrices; 0: none */
	uint32_t n_points;
	struct bench_roofline_point points[BENCH_ROOFLINE_MAX_POINTS]; /* 'a' and on */
};

/* Points without bytes, operations or time are left out. Nothing without both ceilings. */
void bench_roofline_print(FILE *out, const struct bench_roofline *r);

/* What the roof allows at an intensity: operations a second. */
double bench_roofline_get_roof(const struct bench_roofline *r, double intensity);

#endif
