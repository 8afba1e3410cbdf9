/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/plan-sample.h"

#include <inttypes.h>

#include "proto/util/clock.h"
#include "proto/util/log.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/submit.h"
#include "workerd/fetch.h"
#include "workerd/kv.h"
#include "workerd/mirror.h"
#include "workerd/plan-internal.h"
#include "workerd/stream.h"

/*
 * With so many rows at most (more read each weight so often that copying pays wherever it ever
 * does), of tokens far apart, the best of some runs (the first may compile).
 */
enum { MAX_SAMPLE_ROWS = 64, SAMPLE_STRIDE = 7919, N_SAMPLE_RUNS = 3 };

/* The shortest of some runs of the layers before end_op, streamed or not. */
static int time_sample(struct plan *p, uint32_t bucket, uint32_t end_op, struct vk_command *direct,
	struct err *ret_err, uint64_t *ret_ns)
{
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < N_SAMPLE_RUNS; i++) {
		uint64_t ticket = 0, start_ns = clock_now_ns();
		int r = direct ? vk_submit(p->d, &direct, 1, ret_err, &ticket)
			       : stream_submit(p->stream, bucket, false, end_op, ret_err, &ticket);

		if (!r)
			r = vk_submit_wait(p->d, ticket, UINT64_MAX);
		if (r)
			return r;
		uint64_t ns = clock_now_ns() - start_ns;
		if (ns < best_ns)
			best_ns = ns;
	}
	*ret_ns = best_ns;
	return 0;
}

static int compare(struct plan *p, uint32_t bucket, struct err *ret_err, bool *ret_is_better)
{
	uint32_t end_op = stream_get_sample_end(p->stream);
	const struct record_range range = {.end = end_op};
	struct record_addresses addresses = p->addresses;
	uint64_t direct_ns = 0, stream_ns = 0;
	struct vk_command *c = NULL;

	struct vk_command *mirror = NULL;
	uint64_t ticket = 0;

	/* A sample's experts would all be in the cache at its second run, unlike a prompt's. */
	addresses.expert_caches = NULL;
	int r = mirror_get_command(
		p->mirror, 0, bucket, kv_get_table_version(p->kv), ret_err, &mirror);
	if (!r)
		r = vk_command_new(p->d, 0, ret_err, &c);
	if (!r)
		r = record_graph(&p->graph, &addresses, p->pool, 1u << bucket, &range, ret_err, c);
	if (!r)
		r = vk_submit(p->d, &mirror, 1, ret_err, &ticket);
	if (!r)
		r = time_sample(p, bucket, end_op, c, ret_err, &direct_ns);
	vk_command_free(c);
	if (!r)
		r = stream_prepare(p->stream, bucket, false, ret_err);
	if (!r)
		r = time_sample(p, bucket, end_op, NULL, ret_err, &stream_ns);
	if (r)
		return r;
	log_debug("weights in host memory: %u rows: %" PRIu64 " us where they are, %" PRIu64
		  " us copied",
		1u << bucket, direct_ns / 1000, stream_ns / 1000);
	*ret_is_better = stream_ns < direct_ns;
	return 0;
}

/* From how many rows on copying pays on this device, with rows of a slot that nobody has yet. */
int plan_sample_measure(struct plan *p, struct err *ret_err)
{
	const struct kv_params *k = kv_get_params(p->kv);
	uint32_t n_max = p->params.n_rows < MAX_SAMPLE_ROWS ? p->params.n_rows : MAX_SAMPLE_ROWS;
	bool is_better = !stream_get_sample_end(p->stream);
	struct lane *l = &p->lanes[0];
	uint32_t slot, bucket = 0;

	n_max = n_max < k->n_ctx ? n_max : k->n_ctx;
	int r = kv_open(p->kv, ret_err, &slot);
	if (r)
		return r;
	r = kv_reserve(p->kv, slot, n_max, ret_err);
	l->is_spread = false; /* all are of one session */
	for (uint32_t i = 0; i < n_max; i++)
		l->rows[i] = (struct abi_row){
			.token = i * SAMPLE_STRIDE % p->n_vocab, .position = i, .slot = slot};
	for (; !r && !is_better && 1u << bucket <= n_max; bucket++) {
		l->step->n_rows = 1u << bucket;
		lane_fill_spans(l, 1u << bucket);
		r = compare(p, bucket, ret_err, &is_better);
	}
	kv_close(p->kv, slot);
	fetch_reset_counters(stream_get_fetch(p->stream));
	/* The bucket that was better, or the one behind those that were not. */
	p->counters.stream_rows = is_better && bucket ? 1u << (bucket - 1) : 1u << bucket;
	return r;
}
