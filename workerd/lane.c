/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/lane.h"

#include "shaders/abi.h"
#include "vk/command.h"
#include "workerd/graph.h"
#include "workerd/ops/attention.h"
#include "workerd/plan-layout.h"
#include "workerd/plan.h"
#include "workerd/record.h"

uint32_t lane_find_bucket(uint32_t n_rows)
{
	uint32_t i = 0;

	while (n_rows > 1u << i)
		i++;
	return i;
}

void lane_fill_spans(struct lane *l, uint32_t n_rows)
{
	if (l->n_tile_rows)
		op_attention_fill_spans(l->rows, n_rows, l->n_tile_rows, l->n_span_rows, l->spans);
}

/* Rows that are each of another session, and see few keys in all. */
static bool is_spread(const struct plan_row *rows, uint32_t n_rows)
{
	uint64_t n_keys = 0;

	for (uint32_t i = 0; i < n_rows; i++) {
		n_keys += rows[i].position + 1;
		if (i > 0 && rows[i].slot == rows[i - 1].slot)
			return false;
	}
	return n_keys <= OP_ATTENTION_FUSED_KEYS;
}

void lane_write(struct lane *l, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want)
{
	l->n_rows = l->step->n_rows = n_rows;
	l->n_want = l->step->n_want = n_want;
	l->is_spread = l->may_spread && is_spread(rows, n_rows);
	for (uint32_t i = 0; i < n_rows; i++)
		l->rows[i] = (struct abi_row){
			.token = rows[i].token, .position = rows[i].position, .slot = rows[i].slot};
	lane_fill_spans(l, n_rows);
	for (uint32_t i = 0; i < n_want; i++) {
		l->want[i] = want[i] & ~PLAN_FIRST;
		l->asked[i] = want[i] & PLAN_FIRST ? 1 : ABI_BEST_N;
	}
}

int lane_get_command(struct lane *l, const struct lane_recorder *recorder, uint32_t bucket,
	bool is_head, struct err *ret_err, struct vk_command **ret_command)
{
	bool is_spread = !is_head && l->is_spread;
	struct vk_command **command = is_head     ? &l->head[bucket]
				      : is_spread ? &l->spread[bucket]
						  : &l->body[bucket];

	if (!*command) {
		const struct record_range range = {
			.end = recorder->graph->n_ops, .is_head = is_head, .is_spread = is_spread};
		struct record_addresses addresses = *recorder->addresses;
		struct vk_command *c = NULL;

		addresses.best = l->best_address;
		addresses.logits = l->logits_address;
		int r = vk_command_new(recorder->device, 0, ret_err, &c);

		if (!r)
			r = record_graph(recorder->graph, &addresses, recorder->pool, 1u << bucket,
				&range, ret_err, c);
		if (r) {
			vk_command_free(c);
			return r;
		}
		*command = c;
	}
	*ret_command = *command;
	return 0;
}

void lane_drop_commands(struct lane *l)
{
	for (int i = 0; i < LANE_MAX_BUCKETS; i++) {
		l->body[i] = vk_command_free(l->body[i]);
		l->spread[i] = vk_command_free(l->spread[i]);
		l->head[i] = vk_command_free(l->head[i]);
	}
}
