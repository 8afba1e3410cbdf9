/* SPDX-License-Identifier: Apache-2.0 */
/* All that a worker's Status says of its memory, to the last row there is room for. */
#include "proto/worker-client-memory.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

static Wk__RoleHeap role_heap, *role_heaps[WORKER_CLIENT_MAX_HEAPS + 1];
static Wk__Role role, *roles[WORKER_CLIENT_MAX_ROLES + 1];
static Wk__Heap heap, *heaps[WORKER_CLIENT_MAX_HEAPS + 1];
static Wk__Slice slice, *slices[WORKER_CLIENT_MAX_SLICES + 1];
static Wk__Scratch scratch;
static Wk__Chunk chunk;
static Wk__Status status;

static void fill_roles(void)
{
	role_heap = (Wk__RoleHeap)WK__ROLE_HEAP__INIT;
	role_heap.heap = 4;
	role_heap.requested_bytes = 5;
	role_heap.placed_bytes = 6;
	role_heap.spilled_bytes = 7;
	role_heap.imported_bytes = 8;
	role_heap.peak_bytes = 1ull << 40;
	for (int i = 0; i <= WORKER_CLIENT_MAX_HEAPS; i++)
		role_heaps[i] = &role_heap;
	role = (Wk__Role)WK__ROLE__INIT;
	role.name = (char *)"kv";
	role.requested_bytes = 9;
	role.placed_bytes = 10;
	role.spilled_bytes = 11;
	role.imported_bytes = 1;
	role.peak_bytes = 2;
	role.spills = 3;
	role.n_heaps = WORKER_CLIENT_MAX_HEAPS;
	role.heaps = role_heaps;
	for (int i = 0; i <= WORKER_CLIENT_MAX_ROLES; i++)
		roles[i] = &role;
}

static void fill_slices(void)
{
	slice = (Wk__Slice)WK__SLICE__INIT;
	slice.name = (char *)"qkv";
	slice.role = (char *)"scratch";
	slice.n = 12;
	slice.n_bytes = 13;
	slice.total_bytes = 14;
	slice.heap = 15;
	slice.memory_type = 16;
	slice.device_local = slice.host_coherent = true;
	for (int i = 0; i <= WORKER_CLIENT_MAX_SLICES; i++)
		slices[i] = &slice;
}

static int fill(void **state)
{
	(void)state;
	fill_roles();
	fill_slices();
	heap = (Wk__Heap)WK__HEAP__INIT;
	heap.n_bytes = 1ull << 40;
	heap.device_local = true;
	heap.budget_bytes = 20;
	heap.usage_bytes = 21;
	for (int i = 0; i <= WORKER_CLIENT_MAX_HEAPS; i++)
		heaps[i] = &heap;
	scratch = (Wk__Scratch)WK__SCRATCH__INIT;
	scratch.n_values = 17;
	scratch.peak_bytes = 18;
	scratch.sum_bytes = 19;
	chunk = (Wk__Chunk)WK__CHUNK__INIT;
	chunk.tokens = 22;
	chunk.asked_tokens = 23;
	chunk.defaulted = true;
	chunk.budget_bytes = 24;
	status = (Wk__Status)WK__STATUS__INIT;
	status.n_roles = WORKER_CLIENT_MAX_ROLES;
	status.roles = roles;
	status.n_heaps = WORKER_CLIENT_MAX_HEAPS;
	status.heaps = heaps;
	status.n_slices = WORKER_CLIENT_MAX_SLICES;
	status.slices = slices;
	status.total_slices = 100;
	status.scratch = &scratch;
	status.chunk = &chunk;
	return case_setup(state);
}

#define FILLED(f) cmocka_unit_test_setup_teardown(f, fill, case_teardown)

static void test_roles(void **state)
{
	struct worker_client_status s = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(worker_client_memory_read(&status, &e, &s), 0);
	assert_int_equal(s.n_roles, WORKER_CLIENT_MAX_ROLES);
	const struct worker_client_role *r = &s.roles[WORKER_CLIENT_MAX_ROLES - 1];
	const struct worker_client_role_heap *h = &r->heaps[WORKER_CLIENT_MAX_HEAPS - 1];
	assert_string_equal(r->name, "kv");
	assert_true(r->requested_bytes == 9 && r->placed_bytes == 10 && r->spilled_bytes == 11);
	assert_true(r->imported_bytes == 1 && r->peak_bytes == 2 && r->n_spills == 3);
	assert_int_equal(r->n_heaps, WORKER_CLIENT_MAX_HEAPS);
	assert_true(h->heap == 4 && h->requested_bytes == 5 && h->placed_bytes == 6);
	assert_true(h->spilled_bytes == 7 && h->imported_bytes == 8);
	assert_true(h->peak_bytes == 1ull << 40);
}

static void test_heaps_and_slices(void **state)
{
	struct worker_client_status s = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(worker_client_memory_read(&status, &e, &s), 0);
	const struct worker_client_heap *h = &s.memory.heaps[WORKER_CLIENT_MAX_HEAPS - 1];
	const struct worker_client_slice *l = &s.memory.slices[WORKER_CLIENT_MAX_SLICES - 1];
	assert_int_equal(s.memory.n_heaps, WORKER_CLIENT_MAX_HEAPS);
	assert_true(h->n_bytes == 1ull << 40 && h->device_local);
	assert_true(h->budget_bytes == 20 && h->usage_bytes == 21);
	assert_int_equal(s.memory.n_slices, WORKER_CLIENT_MAX_SLICES);
	assert_int_equal(s.memory.total_slices, 100);
	assert_string_equal(l->name, "qkv");
	assert_string_equal(l->role, "scratch");
	assert_true(l->n == 12 && l->n_bytes == 13 && l->total_bytes == 14 && l->heap == 15);
	assert_true(l->memory_type == 16 && l->device_local && l->host_coherent);
	assert_false(l->host_visible || l->host_cached || l->spilled);
}

static void test_plan(void **state)
{
	struct worker_client_status s = {0};
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(worker_client_memory_read(&status, &e, &s), 0);
	assert_true(s.memory.n_values == 17 && s.memory.scratch_peak_bytes == 18);
	assert_int_equal(s.memory.scratch_sum_bytes, 19);
	assert_true(s.memory.chunk == 22 && s.memory.asked_chunk == 23);
	assert_true(s.memory.is_chunk_default && s.memory.budget_bytes == 24);
	/* What a parked worker says, or one of an older build. */
	status.scratch = NULL;
	status.chunk = NULL;
	status.n_heaps = status.n_slices = status.n_roles = 0;
	assert_int_equal(worker_client_memory_read(&status, &e, &s), 0);
	assert_int_equal(s.memory.chunk, 0);
	assert_int_equal(s.memory.n_values, 0);
	assert_int_equal(s.n_roles, 0);
}

/* One row more of any, or one byte more of a name; and nothing of it is kept. */
static void test_refused(void **state)
{
	static const char *const whats[] = {"heaps of a role", "roles", "heaps", "slices"};
	size_t *counts[] = {&role.n_heaps, &status.n_roles, &status.n_heaps, &status.n_slices};
	char **names[] = {&role.name, &slice.name, &slice.role};
	struct worker_client_status s = {.n_roles = 77};
	struct err e;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(counts); i++) {
		e = ERR_NULL;
		++*counts[i];
		assert_int_equal(worker_client_memory_read(&status, &e, &s), -EPROTO);
		assert_non_null(strstr(e.text, "expected at most"));
		assert_non_null(strstr(e.text, whats[i]));
		--*counts[i];
	}
	for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
		char *good = *names[i];
		*names[i] = (char *)"a name that is longer than any of ours could ever get";
		assert_int_equal(worker_client_memory_read(&status, &e, &s), -EPROTO);
		*names[i] = good;
	}
	assert_int_equal(s.n_roles, 77);
	assert_int_equal(worker_client_memory_read(&status, &e, &s), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILLED(test_roles),
		FILLED(test_heaps_and_slices),
		FILLED(test_plan),
		FILLED(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
