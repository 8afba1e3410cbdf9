/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-client-memory.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"

static int cap(const char *what, size_t n, size_t n_room, struct err *ret_err)
{
	if (n <= n_room)
		return 0;
	return err_set(ret_err, EPROTO, "worker: status: expected at most %zu %s, found %zu",
		n_room, what, n);
}

static int copy(
	const char *what, const char *text, size_t n_room, struct err *ret_err, char *ret_copy)
{
	size_t n = strlen(text);

	if (n >= n_room)
		return err_set(ret_err, EPROTO, "worker: %s: expected at most %zu bytes, found %zu",
			what, n_room - 1, n);
	memcpy(ret_copy, text, n + 1);
	return 0;
}

static int read_role(const Wk__Role *m, struct err *ret_err, struct worker_client_role *ret_role)
{
	struct worker_client_role role = {
		.requested_bytes = m->requested_bytes,
		.placed_bytes = m->placed_bytes,
		.spilled_bytes = m->spilled_bytes,
		.imported_bytes = m->imported_bytes,
		.peak_bytes = m->peak_bytes,
		.n_spills = m->spills,
		.n_heaps = (uint32_t)m->n_heaps,
	};
	int r = copy("role", m->name, sizeof(role.name), ret_err, role.name);

	if (r == 0)
		r = cap("heaps of a role", m->n_heaps, ARRAY_SIZE(role.heaps), ret_err);
	for (uint32_t i = 0; r == 0 && i < role.n_heaps; i++)
		role.heaps[i] = (struct worker_client_role_heap){
			.heap = m->heaps[i]->heap,
			.requested_bytes = m->heaps[i]->requested_bytes,
			.placed_bytes = m->heaps[i]->placed_bytes,
			.spilled_bytes = m->heaps[i]->spilled_bytes,
			.imported_bytes = m->heaps[i]->imported_bytes,
			.peak_bytes = m->heaps[i]->peak_bytes,
		};
	if (r == 0)
		*ret_role = role;
	return r;
}

static int read_slice(
	const Wk__Slice *m, struct err *ret_err, struct worker_client_slice *ret_slice)
{
	struct worker_client_slice slice = {
		.n = m->n,
		.n_bytes = m->n_bytes,
		.total_bytes = m->total_bytes,
		.heap = m->heap,
		.memory_type = m->memory_type,
		.device_local = m->device_local,
		.host_visible = m->host_visible,
		.host_coherent = m->host_coherent,
		.host_cached = m->host_cached,
		.spilled = m->spilled,
	};
	int r = copy("slice", m->name, sizeof(slice.name), ret_err, slice.name);

	if (r == 0)
		r = copy("role", m->role, sizeof(slice.role), ret_err, slice.role);
	if (r == 0)
		*ret_slice = slice;
	return r;
}

static void read_heap(const Wk__Heap *m, struct worker_client_heap *ret_heap)
{
	*ret_heap = (struct worker_client_heap){
		.n_bytes = m->n_bytes,
		.device_local = m->device_local,
		.budget_bytes = m->budget_bytes,
		.usage_bytes = m->usage_bytes,
	};
}

static void read_plan(const Wk__Status *m, struct worker_client_memory *ret)
{
	if (m->scratch) {
		ret->n_values = m->scratch->n_values;
		ret->scratch_peak_bytes = m->scratch->peak_bytes;
		ret->scratch_sum_bytes = m->scratch->sum_bytes;
	}
	if (m->chunk) {
		ret->chunk = m->chunk->tokens;
		ret->asked_chunk = m->chunk->asked_tokens;
		ret->is_chunk_default = m->chunk->defaulted;
		ret->budget_bytes = m->chunk->budget_bytes;
	}
}

int worker_client_memory_read(
	const Wk__Status *m, struct err *ret_err, struct worker_client_status *ret_status)
{
	struct worker_client_role roles[WORKER_CLIENT_MAX_ROLES];
	struct worker_client_memory memory = {
		.n_heaps = (uint32_t)m->n_heaps,
		.n_slices = (uint32_t)m->n_slices,
		.total_slices = m->total_slices,
	};
	int r = cap("roles", m->n_roles, ARRAY_SIZE(roles), ret_err);

	if (r == 0)
		r = cap("heaps", m->n_heaps, ARRAY_SIZE(memory.heaps), ret_err);
	if (r == 0)
		r = cap("slices", m->n_slices, ARRAY_SIZE(memory.slices), ret_err);
	for (size_t i = 0; r == 0 && i < m->n_roles; i++)
		r = read_role(m->roles[i], ret_err, &roles[i]);
	for (size_t i = 0; r == 0 && i < m->n_heaps; i++)
		read_heap(m->heaps[i], &memory.heaps[i]);
	for (size_t i = 0; r == 0 && i < m->n_slices; i++)
		r = read_slice(m->slices[i], ret_err, &memory.slices[i]);
	if (r)
		return r;
	read_plan(m, &memory);
	ret_status->n_roles = (uint32_t)m->n_roles;
	memcpy(ret_status->roles, roles, m->n_roles * sizeof(roles[0]));
	ret_status->memory = memory;
	return 0;
}
