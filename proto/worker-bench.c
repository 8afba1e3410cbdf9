/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-bench.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/worker-link.h"

static int call(struct worker_client *c, Wk__Request *request, Wk__Reply__BodyCase body,
	struct err *ret_err, Wk__Reply **ret_reply)
{
	struct worker_link *link = worker_client_get_link(c);
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	int r = worker_link_send(link, request, ret_err);

	if (r == 0)
		r = worker_link_recv(link, request->id, WORKER_LINK_FOREVER, ret_err, &reply);
	if (r)
		return r;
	if (reply->body_case != body)
		return err_set(ret_err, EPROTO, "worker: bench: expected reply %d, found %d",
			(int)body, (int)reply->body_case);
	*ret_reply = TAKE_PTR(reply);
	return 0;
}

int worker_bench_begin(struct worker_client *c, const struct worker_bench_params *params,
	struct err *ret_err, struct worker_bench_ready *ret_ready)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Bench m = WK__BENCH__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	m.n_sessions = params->n_sessions;
	m.n_depth = params->n_depth;
	m.n_prompt = params->n_prompt;
	m.n_generate = params->n_generate;
	m.seed = params->seed;
	request.body_case = WK__REQUEST__BODY_BENCH;
	request.bench = &m;
	int r = call(c, &request, WK__REPLY__BODY_BENCH_READY, ret_err, &reply);
	if (r == 0)
		*ret_ready = (struct worker_bench_ready){.n_rows = reply->bench_ready->n_rows,
			.n_dispatches = reply->bench_ready->n_dispatches};
	return r;
}

static void read_phase(const Wk__BenchPhase *m, struct worker_bench_phase *ret_phase)
{
	if (!m)
		return;
	*ret_phase = (struct worker_bench_phase){.n_tokens = m->n_tokens,
		.n_steps = m->n_steps,
		.ns = m->ns,
		.median_ns = m->median_ns,
		.p99_ns = m->p99_ns,
		.record_ns = m->record_ns,
		.submit_ns = m->submit_ns,
		.wait_ns = m->wait_ns,
		.end_ns = m->end_ns,
		.busy_ns = m->busy_ns,
		.stamped_ns = m->stamped_ns};
}

static int copy_text(const char *from, char *to, size_t n_bytes, struct err *ret_err)
{
	size_t n = strlen(from);

	if (n >= n_bytes)
		return err_set(ret_err, EPROTO,
			"worker: bench: kernel: expected a name of at most %zu bytes, found %zu",
			n_bytes - 1, n);
	memcpy(to, from, n + 1);
	return 0;
}

static int read_kernel(
	const Wk__BenchKernel *m, struct err *ret_err, struct worker_bench_kernel *ret_kernel)
{
	struct worker_bench_kernel *k = ret_kernel;
	int r = copy_text(m->name, k->name, sizeof(k->name), ret_err);

	if (!r)
		r = copy_text(m->shape, k->shape, sizeof(k->shape), ret_err);
	k->is_prompt = m->is_prompt;
	k->n_calls = m->n_calls;
	k->ns = m->ns;
	k->weight_bytes = m->weight_bytes;
	k->kv_bytes = m->kv_bytes;
	k->flops = m->flops;
	return r;
}

/* A number that can be divided by; what a peer says may be any. */
static double read_rate(double value)
{
	return isfinite(value) && value > 0 ? value : 0;
}

static int read_ran(
	const Wk__BenchRan *m, struct err *ret_err, struct worker_bench_result *ret_result)
{
	struct worker_bench_result *result = ret_result;
	int r = 0;

	*result = (struct worker_bench_result){.start_ns = m->start_ns};
	if (m->n_kernels > WORKER_BENCH_MAX_KERNELS)
		return err_set(ret_err, EPROTO,
			"worker: bench: expected at most %d kernels, found %zu",
			WORKER_BENCH_MAX_KERNELS, m->n_kernels);
	read_phase(m->prompt, &result->prompt);
	read_phase(m->generate, &result->generate);
	for (size_t i = 0; !r && i < m->n_kernels; i++)
		r = read_kernel(m->kernels[i], ret_err, &result->kernels[i]);
	result->n_kernels = (uint32_t)m->n_kernels;
	if (m->ceilings)
		result->ceilings = (struct worker_bench_ceilings){
			.read_bytes = read_rate(m->ceilings->read_bytes_per_second),
			.fma_flops = read_rate(m->ceilings->fma_flops_per_second),
			.matrix_flops = read_rate(m->ceilings->matrix_flops_per_second)};
	return r;
}

int worker_bench_run(struct worker_client *c, uint64_t start_ns, bool is_profile,
	struct err *ret_err, struct worker_bench_result *ret_result)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__BenchRun m = WK__BENCH_RUN__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	m.start_ns = start_ns;
	m.profile = is_profile;
	request.body_case = WK__REQUEST__BODY_BENCH_RUN;
	request.bench_run = &m;
	int r = call(c, &request, WK__REPLY__BODY_BENCH_RAN, ret_err, &reply);
	return r ? r : read_ran(reply->bench_ran, ret_err, ret_result);
}
