/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-roofline.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Powers of two a column, of ten a row. */
enum { N_COLUMNS = 64, N_ROWS = 15 };
static const double columns_per_octave = 4, rows_per_decade = 3;
static const double first_octave = -2; /* 1/4 operation a byte; the last column is 2^14 */

double bench_roofline_get_roof(const struct bench_roofline *r, double intensity)
{
	double slope = intensity * r->read;

	return slope < r->flops ? slope : r->flops;
}

static double get_intensity(int column)
{
	return exp2(first_octave + column / columns_per_octave);
}

static int get_column(double intensity)
{
	double column = (log2(intensity) - first_octave) * columns_per_octave;

	return column < 0 ? 0 : column > N_COLUMNS - 1 ? N_COLUMNS - 1 : (int)lrint(column);
}

/* Rows count from the ridge down; what is below the last is on it. */
static int get_row(const struct bench_roofline *r, double rate)
{
	double row = log10(r->flops / rate) * rows_per_decade;

	return row < 0 ? 0 : row > N_ROWS - 1 ? N_ROWS - 1 : (int)lrint(row);
}

static bool is_drawn(const struct bench_roofline_point *p)
{
	return p->intensity > 0 && isfinite(p->intensity) && p->rate > 0 && isfinite(p->rate);
}

/* Two at one place: '*'. */
static void draw_point(char *at, char letter)
{
	*at = strchr(" /-.", *at) ? letter : '*';
}

/* Where the roof is above it. */
static void draw_f32(const struct bench_roofline *r, char cells[N_ROWS][N_COLUMNS])
{
	int row = r->f32_flops > 0 ? get_row(r, r->f32_flops) : 0;

	if (r->f32_flops <= 0 || r->f32_flops >= r->flops)
		return;
	for (int i = 0; i < N_COLUMNS; i++)
		if (bench_roofline_get_roof(r, get_intensity(i)) > r->f32_flops &&
			cells[row][i] == ' ')
			cells[row][i] = '.';
}

static void print_row(FILE *out, const struct bench_roofline *r, int row, const char *cells)
{
	double rate = r->flops / pow(10, row / rows_per_decade);
	int n = N_COLUMNS;

	while (n > 0 && cells[n - 1] == ' ')
		n--;
	if (row % (int)rows_per_decade == 0)
		fprintf(out, "%9.3g |%.*s\n", rate / 1e12, n, cells);
	else
		fprintf(out, "%9s |%.*s\n", "", n, cells);
}

void bench_roofline_print(FILE *out, const struct bench_roofline *r)
{
	char cells[N_ROWS][N_COLUMNS];

	if (!(r->read > 0 && r->flops > 0))
		return;
	memset(cells, ' ', sizeof(cells));
	for (int i = 0; i < N_COLUMNS; i++) {
		double roof = bench_roofline_get_roof(r, get_intensity(i));
		int row = get_row(r, roof);

		if (roof * pow(10, N_ROWS / rows_per_decade) > r->flops)
			cells[row][i] = roof < r->flops ? '/' : '-';
	}
	draw_f32(r, cells);
	for (uint32_t i = 0; i < r->n_points && i < BENCH_ROOFLINE_MAX_POINTS; i++) {
		const struct bench_roofline_point *p = &r->points[i];

		if (is_drawn(p))
			draw_point(&cells[get_row(r, p->rate)][get_column(p->intensity)],
				(char)('a' + i));
	}
	fputs("  TFLOP/s\n", out);
	for (int row = 0; row < N_ROWS; row++)
		print_row(out, r, row, cells[row]);
	fprintf(out, "%9s +", "");
	for (int i = 0; i < N_COLUMNS; i++)
		fputc(i % 8 == 0 ? '+' : '-', out);
	/* Every second octave. */
	fprintf(out, "\n%11s", "");
	for (int i = 0; i < N_COLUMNS; i += 8)
		fprintf(out, "%-8.4g", get_intensity(i));
	fputs(" FLOP a byte\n", out);
}
