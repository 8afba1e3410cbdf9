/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-result.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "weightctl/bench-crew.h"
#include "weightctl/bench-stats.h"

double bench_result_join(
	const struct worker_bench_phase *phases, const uint64_t *starts, uint32_t n)
{
	uint64_t first_ns = UINT64_MAX, last_ns = 0, n_tokens = 0;

	if (n == 1)
		return bench_stats_rate((double)phases[0].n_tokens, phases[0].ns);
	for (uint32_t i = 0; i < n; i++) {
		first_ns = starts[i] < first_ns ? starts[i] : first_ns;
		last_ns = phases[i].end_ns > last_ns ? phases[i].end_ns : last_ns;
		n_tokens += phases[i].n_tokens;
	}
	return last_ns > first_ns ? bench_stats_rate((double)n_tokens, last_ns - first_ns) : 0;
}

static const struct worker_bench_phase *choose_phase(
	const struct bench_result *r, const struct worker_bench_result *from)
{
	return r->n_prompt ? &from->prompt : &from->generate;
}

int bench_result_add(struct bench_result *r, const struct bench_crew *crew)
{
	uint64_t starts[BENCH_OPTIONS_MAX_WORKERS];
	size_t n_before = (size_t)r->n_samples * r->n_workers;
	struct worker_bench_phase *phases =
		reallocarray(r->phases, n_before + r->n_workers, sizeof(*phases));

	if (!phases)
		return -ENOMEM;
	r->phases = phases;
	r->starts[r->n_samples] = UINT64_MAX;
	for (uint32_t i = 0; i < r->n_workers; i++) {
		const struct worker_bench_result *from = bench_crew_get_result(crew, i);

		phases[n_before + i] = *choose_phase(r, from);
		starts[i] = from->start_ns;
		if (starts[i] < r->starts[r->n_samples])
			r->starts[r->n_samples] = starts[i];
	}
	r->rates[r->n_samples++] = bench_result_join(phases + n_before, starts, r->n_workers);
	return 0;
}

int bench_result_set_profile(struct bench_result *r, const struct bench_crew *crew)
{
	r->profile = malloc(sizeof(*r->profile));
	if (!r->profile)
		return -ENOMEM;
	*r->profile = *bench_crew_get_result(crew, 0);
	return 0;
}

void bench_result_fini(struct bench_result *r)
{
	free(r->phases);
	free(r->profile);
	r->phases = NULL;
	r->profile = NULL;
}

const struct worker_bench_phase *bench_result_get_phase(
	const struct bench_result *r, uint32_t sample, uint32_t worker)
{
	return &r->phases[(size_t)sample * r->n_workers + worker];
}

double bench_result_get_rate(const struct bench_result *r, uint32_t sample, uint32_t worker)
{
	const struct worker_bench_phase *p = bench_result_get_phase(r, sample, worker);

	return bench_stats_rate((double)p->n_tokens, p->ns);
}

struct bench_result_label bench_result_label(const struct bench_result *r)
{
	struct bench_result_label label;
	int n = r->n_prompt ? snprintf(label.text, sizeof(label.text), "pp%u", r->n_prompt)
			    : snprintf(label.text, sizeof(label.text), "tg%u", r->n_generate);

	if (r->n_depth)
		snprintf(label.text + n, sizeof(label.text) - (size_t)n, " @ d%u", r->n_depth);
	return label;
}
