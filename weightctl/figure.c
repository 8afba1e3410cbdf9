/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/figure.h"

#include <inttypes.h>
#include <stdio.h>

struct figure figure_bytes(uint64_t n_bytes)
{
	double mib = (double)n_bytes / 0x1p20;
	struct figure f;

	if (mib * 1024 < 1023.95)
		snprintf(f.text, sizeof(f.text), "%.1f KiB", mib * 1024);
	else if (mib < 1023.95) /* what would be rounded to 1024.0 is a GiB */
		snprintf(f.text, sizeof(f.text), "%.1f MiB", mib);
	else
		snprintf(f.text, sizeof(f.text), "%.1f GiB", mib / 1024);
	return f;
}

struct figure figure_time(uint64_t ns)
{
	uint64_t s = ns / 1000000000;
	struct figure f;

	if (ns < 999950000)
		snprintf(f.text, sizeof(f.text), "%.1f ms", (double)ns / 1e6);
	else if (ns < 59950000000)
		snprintf(f.text, sizeof(f.text), "%.1f s", (double)ns / 1e9);
	else if (s < 3600)
		snprintf(f.text, sizeof(f.text), "%" PRIu64 " min %02" PRIu64 " s", s / 60, s % 60);
	else
		snprintf(f.text, sizeof(f.text), "%" PRIu64 " h %02" PRIu64 " min", s / 3600,
			s / 60 % 60);
	return f;
}

struct figure figure_count(uint64_t n)
{
	struct figure f;

	if (n < 999950)
		snprintf(f.text, sizeof(f.text), "%" PRIu64, n);
	else if (n < 999950000)
		snprintf(f.text, sizeof(f.text), "%.1f M", (double)n / 1e6);
	else
		snprintf(f.text, sizeof(f.text), "%.1f B", (double)n / 1e9);
	return f;
}
