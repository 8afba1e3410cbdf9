/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-memory.h"

#include "workerd/message.h"

static bool is_touched(const struct vk_memory_counter *c)
{
	return c->requested_bytes || c->placed_bytes || c->spilled_bytes || c->imported_bytes ||
	       c->peak_bytes;
}

static uint32_t fill_role_heaps(
	const struct ledger *l, uint32_t role, Wk__RoleHeap *rows, Wk__RoleHeap **ret_list)
{
	uint32_t n = 0;

	for (uint32_t heap = 0; heap < l->n_heaps; heap++) {
		const struct vk_memory_counter *c = &l->by_heap[role][heap];

		if (!is_touched(c))
			continue;
		rows[n] = (Wk__RoleHeap)WK__ROLE_HEAP__INIT;
		rows[n].heap = heap;
		rows[n].requested_bytes = c->requested_bytes;
		rows[n].placed_bytes = c->placed_bytes;
		rows[n].spilled_bytes = c->spilled_bytes;
		rows[n].imported_bytes = c->imported_bytes;
		rows[n].peak_bytes = c->peak_bytes;
		ret_list[n] = &rows[n];
		n++;
	}
	return n;
}

static void fill_roles(const struct ledger *l, struct rpc_memory *m, Wk__Status *status)
{
	for (uint32_t i = 0; i < VK_MEMORY_N_ROLES; i++) {
		const struct vk_memory_counter *c = &l->roles[i];
		Wk__Role *role = &m->roles[i];

		*role = (Wk__Role)WK__ROLE__INIT;
		role->name = (char *)l->role_names[i];
		role->requested_bytes = c->requested_bytes;
		role->placed_bytes = c->placed_bytes;
		role->spilled_bytes = c->spilled_bytes;
		role->imported_bytes = c->imported_bytes;
		role->peak_bytes = c->peak_bytes;
		role->spills = c->n_spills;
		role->n_heaps = fill_role_heaps(l, i, m->role_heaps[i], m->role_heap_list[i]);
		role->heaps = m->role_heap_list[i];
		m->role_list[i] = role;
	}
	status->n_roles = VK_MEMORY_N_ROLES;
	status->roles = m->role_list;
}

static void fill_heaps(const struct ledger *l, struct rpc_memory *m, Wk__Status *status)
{
	for (uint32_t i = 0; i < l->n_heaps; i++) {
		m->heaps[i] = (Wk__Heap)WK__HEAP__INIT;
		m->heaps[i].n_bytes = l->heaps[i].n_bytes;
		m->heaps[i].device_local = l->heaps[i].device_local;
		m->heaps[i].budget_bytes = l->heaps[i].budget_bytes;
		m->heaps[i].usage_bytes = l->heaps[i].usage_bytes;
		m->heap_list[i] = &m->heaps[i];
	}
	status->n_heaps = l->n_heaps;
	status->heaps = m->heap_list;
}

static void fill_slices(const struct ledger *l, struct rpc_memory *m, Wk__Status *status)
{
	uint32_t n = l->n_slices < LEDGER_MAX_SLICES ? l->n_slices : LEDGER_MAX_SLICES;

	for (uint32_t i = 0; i < n; i++) {
		const struct vk_slice_place *p = &l->slices[i];
		Wk__Slice *s = &m->slices[i];

		*s = (Wk__Slice)WK__SLICE__INIT;
		s->name = (char *)p->name;
		s->role = (char *)l->role_names[p->role];
		s->n = p->n;
		s->n_bytes = p->n_bytes;
		s->total_bytes = p->n_total_bytes;
		s->heap = p->heap;
		s->memory_type = p->type;
		s->device_local = p->flags & VK_SLICE_DEVICE_LOCAL;
		s->host_visible = p->flags & VK_SLICE_HOST_VISIBLE;
		s->host_coherent = p->flags & VK_SLICE_HOST_COHERENT;
		s->host_cached = p->flags & VK_SLICE_HOST_CACHED;
		s->spilled = p->is_spilled;
		m->slice_list[i] = s;
	}
	status->n_slices = n;
	status->slices = m->slice_list;
	status->total_slices = l->n_slices;
}

void rpc_memory_fill(
	const struct message_status *s, struct rpc_memory *ret_memory, Wk__Status *status)
{
	const struct plan_scratch *scratch = &s->stream.scratch;
	const struct ledger_chunk *chunk = &s->memory.chunk;
	struct rpc_memory *m = ret_memory;

	fill_roles(&s->memory, m, status);
	fill_heaps(&s->memory, m, status);
	fill_slices(&s->memory, m, status);
	if (!chunk->n_asked)
		return;
	m->scratch = (Wk__Scratch)WK__SCRATCH__INIT;
	m->scratch.n_values = scratch->n_values;
	m->scratch.peak_bytes = scratch->peak_bytes;
	m->scratch.sum_bytes = scratch->sum_bytes;
	status->scratch = &m->scratch;
	m->chunk = (Wk__Chunk)WK__CHUNK__INIT;
	m->chunk.tokens = chunk->n_rows;
	m->chunk.asked_tokens = chunk->n_asked;
	m->chunk.defaulted = chunk->is_default;
	m->chunk.budget_bytes = chunk->budget_bytes;
	status->chunk = &m->chunk;
}
