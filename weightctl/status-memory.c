/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/status-memory.h"

#include <inttypes.h>
#include <stdio.h>

#include "proto/worker-client.h"
#include "weightctl/figure.h"
#include "weightctl/output.h"

/* Takes value. False without memory. */
static bool append(json_t *array, json_t *value)
{
	return array && json_array_append_new(array, value) == 0;
}

/* array when it is whole, else NULL, and it is gone. */
static json_t *finish(json_t *array, bool is_whole)
{
	if (is_whole)
		return array;
	json_decref(array);
	return NULL;
}

static json_t *json_role_heaps(const struct worker_client_role *r)
{
	json_t *array = json_array();
	bool is_whole = array;

	for (uint32_t i = 0; is_whole && i < r->n_heaps; i++) {
		const struct worker_client_role_heap *h = &r->heaps[i];

		is_whole = append(array,
			json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "heap", (json_int_t)h->heap,
				"requested_bytes", (json_int_t)h->requested_bytes, "placed_bytes",
				(json_int_t)h->placed_bytes, "spilled_bytes",
				(json_int_t)h->spilled_bytes, "imported_bytes",
				(json_int_t)h->imported_bytes, "peak_bytes",
				(json_int_t)h->peak_bytes));
	}
	return finish(array, is_whole);
}

json_t *status_memory_json_roles(const struct worker_client_status *s)
{
	json_t *array = json_array();
	bool is_whole = array;

	for (uint32_t i = 0; is_whole && i < s->n_roles; i++) {
		const struct worker_client_role *r = &s->roles[i];

		is_whole = append(
			array, json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "name",
				       output_name(r->name), "requested_bytes",
				       (json_int_t)r->requested_bytes, "placed_bytes",
				       (json_int_t)r->placed_bytes, "spilled_bytes",
				       (json_int_t)r->spilled_bytes, "imported_bytes",
				       (json_int_t)r->imported_bytes, "peak_bytes",
				       (json_int_t)r->peak_bytes, "spills", (json_int_t)r->n_spills,
				       "heaps", json_role_heaps(r)));
	}
	return finish(array, is_whole);
}

static json_t *json_heaps(const struct worker_client_memory *m)
{
	json_t *array = json_array();
	bool is_whole = array;

	for (uint32_t i = 0; is_whole && i < m->n_heaps; i++)
		is_whole =
			append(array, json_pack("{s:I, s:b, s:I, s:I}", "n_bytes",
					      (json_int_t)m->heaps[i].n_bytes, "device_local",
					      m->heaps[i].device_local, "budget_bytes",
					      (json_int_t)m->heaps[i].budget_bytes, "usage_bytes",
					      (json_int_t)m->heaps[i].usage_bytes));
	return finish(array, is_whole);
}

static json_t *json_slices(const struct worker_client_memory *m)
{
	json_t *array = json_array();
	bool is_whole = array;

	for (uint32_t i = 0; is_whole && i < m->n_slices; i++) {
		const struct worker_client_slice *s = &m->slices[i];

		is_whole = append(array,
			json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b, s:b}",
				"name", output_name(s->name), "role", output_name(s->role), "n",
				(json_int_t)s->n, "n_bytes", (json_int_t)s->n_bytes, "total_bytes",
				(json_int_t)s->total_bytes, "heap", (json_int_t)s->heap,
				"memory_type", (json_int_t)s->memory_type, "device_local",
				s->device_local, "host_visible", s->host_visible, "host_coherent",
				s->host_coherent, "host_cached", s->host_cached, "spilled",
				s->spilled));
	}
	return finish(array, is_whole);
}

json_t *status_memory_json(const struct worker_client_memory *m)
{
	return json_pack("{s:o, s:o, s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:b, s:I}}", "heaps",
		json_heaps(m), "slices", json_slices(m), "total_slices",
		(json_int_t)m->total_slices, "scratch", "n_values", (json_int_t)m->n_values,
		"peak_bytes", (json_int_t)m->scratch_peak_bytes, "sum_bytes",
		(json_int_t)m->scratch_sum_bytes, "chunk", "tokens", (json_int_t)m->chunk,
		"asked_tokens", (json_int_t)m->asked_chunk, "defaulted", m->is_chunk_default,
		"budget_bytes", (json_int_t)m->budget_bytes);
}

static void print_chunk(const struct worker_client_memory *m)
{
	printf("  chunk %" PRIu32 " tokens", m->chunk);
	if (m->chunk < m->asked_chunk)
		printf(" of %" PRIu32 " %s", m->asked_chunk,
			m->is_chunk_default ? "by default" : "asked for");
	printf(", %s granted; values of a step %s, %s if each had a place of its own\n",
		figure_bytes(m->budget_bytes).text, figure_bytes(m->scratch_peak_bytes).text,
		figure_bytes(m->scratch_sum_bytes).text);
}

static void print_role(const struct worker_client_role *r)
{
	printf("  ");
	output_clean(r->name);
	printf(" %s, %s spilled, at most %s", figure_bytes(r->requested_bytes).text,
		figure_bytes(r->spilled_bytes).text, figure_bytes(r->peak_bytes).text);
	if (r->imported_bytes)
		printf(", %s imported", figure_bytes(r->imported_bytes).text);
	for (uint32_t i = 0; i < r->n_heaps; i++) {
		uint64_t n_bytes = r->heaps[i].placed_bytes + r->heaps[i].spilled_bytes +
				   r->heaps[i].imported_bytes;
		if (n_bytes)
			printf("; heap %" PRIu32 ": %s", r->heaps[i].heap,
				figure_bytes(n_bytes).text);
	}
	putchar('\n');
}

static void print_slice(const struct worker_client_slice *s)
{
	printf("    ");
	output_clean(s->role);
	putchar('/');
	output_clean(s->name);
	printf(" %s", figure_bytes(s->n_bytes).text);
	if (s->n > 1)
		printf(" and %" PRIu32 " more, %s", s->n - 1, figure_bytes(s->total_bytes).text);
	printf(" in heap %" PRIu32 ", type %" PRIu32 ":%s%s%s%s%s\n", s->heap, s->memory_type,
		s->device_local ? " device" : "", s->host_visible ? " host" : "",
		s->host_coherent ? " coherent" : "", s->host_cached ? " cached" : "",
		s->spilled ? ", spilled" : "");
}

void status_memory_print(const struct worker_client_status *s)
{
	const struct worker_client_memory *m = &s->memory;

	if (m->chunk)
		print_chunk(m);
	for (uint32_t i = 0; i < s->n_roles; i++)
		print_role(&s->roles[i]);
	for (uint32_t i = 0; i < m->n_slices; i++)
		print_slice(&m->slices[i]);
	if (m->total_slices > m->n_slices)
		printf("    and %" PRIu32 " more slices\n", m->total_slices - m->n_slices);
}
