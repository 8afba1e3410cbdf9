/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-json.h"

#include <stdint.h>

#include "weightctl/bench-profile.h"
#include "weightctl/bench-result.h"
#include "weightctl/bench-stats.h"
#include "weightctl/output.h"

/* Takes both; NULL when either is. */
static json_t *append(json_t *array, json_t *item)
{
	if (array && !json_array_append_new(array, item))
		return array;
	json_decref(array);
	return NULL;
}

static json_t *set(json_t *object, const char *key, json_t *value)
{
	if (object && !json_object_set_new(object, key, value))
		return object;
	json_decref(object);
	return NULL;
}

static json_t *get_phase(const struct worker_bench_phase *p)
{
	return json_pack("{s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "t_s",
		bench_stats_rate((double)p->n_tokens, p->ns), "tokens", (json_int_t)p->n_tokens,
		"steps", (json_int_t)p->n_steps, "ns", (json_int_t)p->ns, "step_median_ns",
		(json_int_t)p->median_ns, "step_p99_ns", (json_int_t)p->p99_ns, "record_ns",
		(json_int_t)p->record_ns, "submit_ns", (json_int_t)p->submit_ns, "wait_ns",
		(json_int_t)p->wait_ns);
}

static json_t *get_sample(const struct bench_result *r, uint32_t sample)
{
	json_t *workers = json_array();

	for (uint32_t i = 0; i < r->n_workers; i++)
		workers = append(workers, get_phase(bench_result_get_phase(r, sample, i)));
	return json_pack("{s:f, s:I, s:o}", "t_s", r->rates[sample], "start_ns",
		(json_int_t)r->starts[sample], "workers", workers);
}

static json_t *get_samples(const struct bench_result *r)
{
	json_t *samples = json_array();

	for (uint32_t i = 0; i < r->n_samples; i++)
		samples = append(samples, get_sample(r, i));
	return samples;
}

static json_t *get_kernel(const struct worker_bench_result *p, const struct worker_bench_kernel *k)
{
	double bytes = bench_profile_get_bytes_rate(k), flops = bench_profile_get_flops_rate(k);
	double ridge = bench_profile_get_ridge(p), read = p->ceilings.read_bytes;

	return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "name",
		output_name(k->name), "shape", output_name(k->shape), "calls",
		(json_int_t)k->n_calls, "ns", (json_int_t)k->ns, "weight_bytes",
		(json_int_t)k->weight_bytes, "kv_bytes", (json_int_t)k->kv_bytes, "flops",
		(json_int_t)k->flops, "gb_s", bytes / 1e9, "read_share",
		read > 0 ? bytes / read : 0, "tflop_s", flops / 1e12, "flop_share",
		ridge > 0 ? flops / ridge : 0);
}

static json_t *get_profile(const struct bench_result *r)
{
	const struct worker_bench_result *p = r->profile;
	const struct worker_bench_phase *phase = r->n_prompt ? &p->prompt : &p->generate;
	json_t *kernels = json_array();
	json_t *object = get_phase(phase);

	for (uint32_t i = 0; i < p->n_kernels; i++)
		kernels = append(kernels, get_kernel(p, &p->kernels[i]));
	object = set(object, "busy_ns", json_integer((json_int_t)phase->busy_ns));
	object = set(object, "stamped_ns", json_integer((json_int_t)phase->stamped_ns));
	object = set(object, "ceilings",
		json_pack("{s:f, s:f, s:f}", "read_gb_s", p->ceilings.read_bytes / 1e9,
			"fma_tflop_s", p->ceilings.fma_flops / 1e12, "matrix_tflop_s",
			p->ceilings.matrix_flops / 1e12));
	return set(object, "kernels", kernels);
}

json_t *bench_json_get_result(const struct bench_result *r)
{
	json_t *object = json_pack(
		"{s:o, s:I, s:o, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}",
		"model", output_name(r->model.name), "weights_bytes",
		(json_int_t)r->model.weights_bytes, "device", output_name(r->model.device),
		"software", r->model.software, "test", bench_result_label(r).text, "n_prompt",
		(json_int_t)r->n_prompt, "n_gen", (json_int_t)r->n_generate, "n_depth",
		(json_int_t)r->n_depth, "sessions", (json_int_t)r->n_sessions, "workers",
		(json_int_t)r->n_workers, "step_rows", (json_int_t)r->ready.n_rows, "dispatches",
		(json_int_t)r->ready.n_dispatches, "seed", (json_int_t)r->seed, "avg_t_s",
		bench_stats_mean(r->rates, r->n_samples), "stddev_t_s",
		bench_stats_deviation(r->rates, r->n_samples), "samples", get_samples(r));

	return r->profile ? set(object, "profile", get_profile(r)) : object;
}
