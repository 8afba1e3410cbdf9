/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-bench.h"

#include "workerd/message.h"

void rpc_bench_decode(const Wk__Bench *b, struct message *m)
{
	m->bench.n_sessions = b->n_sessions;
	m->bench.n_depth = b->n_depth;
	m->bench.n_prompt = b->n_prompt;
	m->bench.n_generate = b->n_generate;
	m->bench.seed = b->seed;
}

static void fill_phase(const struct bencher_phase *p, Wk__BenchPhase *ret_phase)
{
	*ret_phase = (Wk__BenchPhase)WK__BENCH_PHASE__INIT;
	ret_phase->n_tokens = p->n_tokens;
	ret_phase->n_steps = p->n_steps;
	ret_phase->ns = p->ns;
	ret_phase->median_ns = p->median_ns;
	ret_phase->p99_ns = p->p99_ns;
	ret_phase->record_ns = p->record_ns;
	ret_phase->submit_ns = p->submit_ns;
	ret_phase->wait_ns = p->wait_ns;
	ret_phase->end_ns = p->end_ns;
	ret_phase->busy_ns = p->busy_ns;
	ret_phase->stamped_ns = p->stamped_ns;
}

static void fill_kernel(const struct profile_kernel *k, Wk__BenchKernel *ret_kernel)
{
	*ret_kernel = (Wk__BenchKernel)WK__BENCH_KERNEL__INIT;
	ret_kernel->name = (char *)k->name;
	ret_kernel->shape = (char *)k->cost.shape;
	ret_kernel->is_prompt = k->is_prompt;
	ret_kernel->n_calls = k->n_calls;
	ret_kernel->ns = k->ns;
	ret_kernel->weight_bytes = k->cost.n_weight_bytes;
	ret_kernel->kv_bytes = k->cost.n_kv_bytes;
	ret_kernel->flops = k->cost.n_flops;
}

void rpc_bench_fill(
	const struct bencher_result *result, struct rpc_bench *rpc, Wk__BenchRan *ret_ran)
{
	*ret_ran = (Wk__BenchRan)WK__BENCH_RAN__INIT;
	ret_ran->start_ns = result->start_ns;
	fill_phase(&result->prompt, &rpc->prompt);
	fill_phase(&result->generate, &rpc->generate);
	if (result->prompt.n_steps)
		ret_ran->prompt = &rpc->prompt;
	if (result->generate.n_steps)
		ret_ran->generate = &rpc->generate;
	if (!result->n_kernels)
		return;
	for (uint32_t i = 0; i < result->n_kernels; i++) {
		fill_kernel(&result->kernels[i], &rpc->kernels[i]);
		rpc->list[i] = &rpc->kernels[i];
	}
	ret_ran->n_kernels = result->n_kernels;
	ret_ran->kernels = rpc->list;
	rpc->ceilings = (Wk__BenchCeilings)WK__BENCH_CEILINGS__INIT;
	rpc->ceilings.read_bytes_per_second = result->ceilings.read_bytes;
	rpc->ceilings.fma_flops_per_second = result->ceilings.fma_flops;
	rpc->ceilings.matrix_flops_per_second = result->ceilings.matrix_flops;
	ret_ran->ceilings = &rpc->ceilings;
}
