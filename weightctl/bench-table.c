/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-table.h"

#include <stdint.h>
#include <string.h>

#include "weightctl/bench-result.h"
#include "weightctl/bench-stats.h"
#include "weightctl/figure.h"

enum { MAX_LISTED = 4 }; /* workers whose rates are listed; of more the least and the most */

void bench_table_print_head(FILE *out)
{
	fputs("| model | weights | device | workers | sessions | test | t/s | of each worker | "
	      "step "
	      "ms, p99 |\n"
	      "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: |\n",
		out);
}

/* What would end a cell, or a line, is written as '?': names come from files and drivers. */
static void print_cell(FILE *out, const char *text)
{
	fputs("| ", out);
	for (; *text; text++)
		fputc(*text == '|' || (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text,
			out);
	fputc(' ', out);
}

static double get_worker_mean(const struct bench_result *r, uint32_t worker)
{
	double rates[BENCH_OPTIONS_MAX_REPEATS];

	for (uint32_t i = 0; i < r->n_samples; i++)
		rates[i] = bench_result_get_rate(r, i, worker);
	return bench_stats_mean(rates, r->n_samples);
}

static void print_workers(FILE *out, const struct bench_result *r)
{
	double rates[BENCH_OPTIONS_MAX_WORKERS];

	for (uint32_t i = 0; i < r->n_workers; i++)
		rates[i] = get_worker_mean(r, i);
	fputs("| ", out);
	if (r->n_workers > MAX_LISTED) {
		fprintf(out, "%.2f to %.2f ", bench_stats_min(rates, r->n_workers),
			bench_stats_max(rates, r->n_workers));
		return;
	}
	for (uint32_t i = 0; i < r->n_workers; i++)
		fprintf(out, "%.2f%s", rates[i], i + 1 < r->n_workers ? ", " : " ");
}

static void print_steps(FILE *out, const struct bench_result *r)
{
	double medians[BENCH_OPTIONS_MAX_REPEATS], p99 = 0;

	for (uint32_t i = 0; i < r->n_samples; i++) {
		double sum = 0;

		for (uint32_t k = 0; k < r->n_workers; k++) {
			const struct worker_bench_phase *p = bench_result_get_phase(r, i, k);

			sum += (double)p->median_ns;
			p99 = (double)p->p99_ns > p99 ? (double)p->p99_ns : p99;
		}
		medians[i] = sum / r->n_workers;
	}
	fprintf(out, "| %.3f, %.3f |\n", bench_stats_mean(medians, r->n_samples) / 1e6, p99 / 1e6);
}

void bench_table_print_row(FILE *out, const struct bench_result *r)
{
	print_cell(out, r->model.name);
	print_cell(out, figure_bytes(r->model.weights_bytes).text);
	print_cell(out, r->model.device);
	fprintf(out, "| %u | %u | %s | %.2f ± %.2f ", r->n_workers, r->n_sessions,
		bench_result_label(r).text, bench_stats_mean(r->rates, r->n_samples),
		bench_stats_deviation(r->rates, r->n_samples));
	print_workers(out, r);
	print_steps(out, r);
}
