/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-profile.h"

#include <inttypes.h>

#include "weightctl/bench-result.h"
#include "weightctl/bench-roofline.h"
#include "weightctl/bench-stats.h"

double bench_profile_get_bytes_rate(const struct worker_bench_kernel *k)
{
	return bench_stats_rate((double)(k->weight_bytes + k->kv_bytes), k->ns);
}

double bench_profile_get_flops_rate(const struct worker_bench_kernel *k)
{
	return bench_stats_rate((double)k->flops, k->ns);
}

double bench_profile_get_ridge(const struct worker_bench_result *p)
{
	const struct worker_bench_ceilings *c = &p->ceilings;

	return c->matrix_flops > c->fma_flops ? c->matrix_flops : c->fma_flops;
}

static double share(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

static void print_steps(FILE *out, const struct bench_result *r, const struct worker_bench_phase *p)
{
	double n = p->n_steps ? p->n_steps : 1;

	fprintf(out,
		"\n%s, %u session%s: %u steps of %.3f ms: record %.3f, submit %.3f, wait %.3f; GPU "
		"busy %.3f (%.1f %%), %.3f with timestamps\n",
		bench_result_label(r).text, r->n_sessions, r->n_sessions == 1 ? "" : "s",
		p->n_steps, (double)p->ns / n / 1e6, (double)p->record_ns / n / 1e6,
		(double)p->submit_ns / n / 1e6, (double)p->wait_ns / n / 1e6,
		(double)p->busy_ns / n / 1e6, share((double)p->busy_ns, (double)p->ns),
		(double)p->stamped_ns / n / 1e6);
}

/* Three digits that say something, from 4,600 GB/s to a software driver's thousandths. */
static int count_decimals(double value)
{
	return value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 4;
}

static void print_rate(FILE *out, double rate, double unit, double ceiling)
{
	if (rate > 0)
		fprintf(out, " %9.*f %5.1f", count_decimals(rate / unit), rate / unit,
			share(rate, ceiling));
	else
		fprintf(out, " %9s %5s", "-", "-");
}

static void print_kernel(FILE *out, const struct worker_bench_result *p, uint32_t i, double all_ns)
{
	const struct worker_bench_kernel *k = &p->kernels[i];

	fprintf(out, "%c %-22s %-24s %8" PRIu64 " %10.1f %9.2f %5.1f",
		i < BENCH_ROOFLINE_MAX_POINTS ? (char)('a' + i) : ' ', k->name, k->shape,
		k->n_calls, (double)k->ns / 1e3,
		(double)k->ns / 1e3 / (double)(k->n_calls ? k->n_calls : 1),
		share((double)k->ns, all_ns));
	print_rate(out, bench_profile_get_bytes_rate(k), 1e9, p->ceilings.read_bytes);
	print_rate(out, bench_profile_get_flops_rate(k), 1e12, bench_profile_get_ridge(p));
	fputc('\n', out);
}

static void print_ceilings(FILE *out, const struct worker_bench_ceilings *c)
{
	fprintf(out,
		"ceilings, measured in this run: reading %.1f GB/s, f32 in registers %.3f TFLOP/s",
		c->read_bytes / 1e9, c->fma_flops / 1e12);
	if (c->matrix_flops > 0)
		fprintf(out, ", f16 matrices in registers %.*f TFLOP/s",
			count_decimals(c->matrix_flops / 1e12), c->matrix_flops / 1e12);
	else
		fputs(", no matrices: arithmetic is held against f32", out);
	fputc('\n', out);
}

static void print_roofline(FILE *out, const struct worker_bench_result *p)
{
	struct bench_roofline r = {.read = p->ceilings.read_bytes,
		.flops = bench_profile_get_ridge(p),
		.f32_flops = p->ceilings.fma_flops};

	for (; r.n_points < p->n_kernels && r.n_points < BENCH_ROOFLINE_MAX_POINTS; r.n_points++) {
		const struct worker_bench_kernel *k = &p->kernels[r.n_points];
		double n_bytes = (double)(k->weight_bytes + k->kv_bytes);

		r.points[r.n_points] = (struct bench_roofline_point){
			.intensity = n_bytes > 0 ? (double)k->flops / n_bytes : 0,
			.rate = bench_profile_get_flops_rate(k)};
	}
	bench_roofline_print(out, &r);
}

void bench_profile_print(FILE *out, const struct bench_result *r)
{
	const struct worker_bench_result *p = r->profile;
	const struct worker_bench_phase *phase = r->n_prompt ? &p->prompt : &p->generate;
	double all_ns = 0;

	for (uint32_t i = 0; i < p->n_kernels; i++)
		all_ns += (double)p->kernels[i].ns;
	print_steps(out, r, phase);
	fprintf(out, "  %-22s %-24s %8s %10s %9s %5s %9s %5s %9s %5s\n", "KERNEL", "SHAPE", "CALLS",
		"US", "US/CALL", "%", "GB/S", "%", "TFLOP/S", "%");
	for (uint32_t i = 0; i < p->n_kernels; i++)
		print_kernel(out, p, i, all_ns);
	print_ceilings(out, &p->ceilings);
	print_roofline(out, p);
	fputc('\n', out);
}
