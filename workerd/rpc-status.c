/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-status.h"

#include <unistd.h>

#include "proto/util/clock.h"
#include "workerd/message.h"

static const char *const placements[] = {
	[MANIFEST_PLACEMENT_DEVICE] = "device",
	[MANIFEST_PLACEMENT_PINNED] = "pinned",
	[MANIFEST_PLACEMENT_STAGED] = "staged",
	[MANIFEST_PLACEMENT_PAGED] = "paged",
};

const char *rpc_status_placement_name(enum manifest_placement placement)
{
	return placements[placement];
}

static void fill_streaming(const struct plan_counters *c, Wk__Streaming *ret_streaming)
{
	ret_streaming->rows = c->stream_rows == PLAN_NEVER_STREAM ? 0 : c->stream_rows;
	ret_streaming->steps = c->stream_steps;
	ret_streaming->step_ns = c->stream_ns;
	ret_streaming->copied_bytes = c->stream_bytes;
	ret_streaming->paged_bytes = c->paged_bytes;
}

static void fill_experts(const struct expert_cache_counters *c, Wk__Experts *ret_experts)
{
	ret_experts->slots = c->n_slots;
	ret_experts->bytes = c->n_bytes;
	ret_experts->found = c->n_found;
	ret_experts->fetched = c->n_fetched;
	ret_experts->direct = c->n_direct;
}

/* A row for each placement that has bytes; their number. */
static uint32_t fill_placed(
	const struct rpc_worker *w, Wk__PlacedWeights *ret_rows, Wk__PlacedWeights **ret_list)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < RPC_N_PLACEMENTS; p++) {
		if (!w->placed_bytes[p])
			continue;
		ret_rows[n] = (Wk__PlacedWeights)WK__PLACED_WEIGHTS__INIT;
		ret_rows[n].placement = (char *)placements[p];
		ret_rows[n].n_bytes = w->placed_bytes[p];
		ret_list[n] = &ret_rows[n];
		n++;
	}
	return n;
}

void rpc_status_fill(
	const struct message_status *s, const struct rpc_worker *w, struct rpc_status *ret)
{
	Wk__Status *status = &ret->status;

	*status = (Wk__Status)WK__STATUS__INIT;
	ret->streaming = (Wk__Streaming)WK__STREAMING__INIT;
	ret->experts = (Wk__Experts)WK__EXPERTS__INIT;
	status->pid = getpid();
	status->build = (char *)WEIGHTD_VERSION;
	status->uptime_ns = clock_now_ns() - w->start_ns;
	status->model = (char *)w->model;
	status->generation = w->generation;
	status->device = (char *)w->device;
	status->software = w->is_software;
	status->weights_bytes = w->weights_bytes;
	rpc_memory_fill(s, &ret->memory, status);
	rpc_sessions_fill(s, &ret->sessions, status);
	status->n_prefixes = s->n_prefixes;
	status->prefix_bytes = s->prefix_bytes;
	status->n_sessions = s->n_sessions;
	status->max_sessions = w->max_sessions;
	status->n_ctx = w->n_ctx;
	status->attach_ns = w->attach_ns;
	status->ready_ns = w->ready_ns;
	status->first_token_ns = s->first_token_ns;
	status->prompt_tokens = s->prompt_tokens;
	status->generated_tokens = s->generated_tokens;
	status->n_dispatches = w->n_dispatches;
	status->weightd_connected = w->is_weightd_connected;
	status->parked = w->is_parked;
	if (w->has_identity)
		status->identity = (ProtobufCBinaryData){
			.len = sizeof(w->identity), .data = (uint8_t *)w->identity};
	status->n_placed_weights = fill_placed(w, ret->placed, ret->placed_list);
	status->placed_weights = ret->placed_list;
	fill_streaming(&s->stream, &ret->streaming);
	status->streaming = &ret->streaming;
	if (s->stream.experts.n_slots) {
		fill_experts(&s->stream.experts, &ret->experts);
		status->experts = &ret->experts;
	}
}
