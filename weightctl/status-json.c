/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/status-json.h"

#include "proto/manifest.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "weightctl/output.h"
#include "weightctl/sharing.h"
#include "weightctl/status-memory.h"
#include "weightctl/status-names.h"

typedef json_t *(*element_fn)(const void *elements, uint32_t index);

/* An array of n elements; NULL when one of them is. */
static json_t *array_of(const void *elements, uint32_t n, element_fn make)
{
	json_t *array = json_array();

	for (uint32_t i = 0; array && i < n; i++) {
		if (json_array_append_new(array, make(elements, i)) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

static json_t *heap(const void *heaps, uint32_t i)
{
	const struct weights_client_heap *h = (const struct weights_client_heap *)heaps + i;

	return json_pack("{s:I, s:b, s:I, s:I, s:I}", "n_bytes", (json_int_t)h->n_bytes,
		"device_local", h->device_local, "weights_bytes", (json_int_t)h->weights_bytes,
		"budget_bytes", (json_int_t)h->budget_bytes, "usage_bytes",
		(json_int_t)h->usage_bytes);
}

static json_t *ability(const void *abilities, uint32_t i)
{
	const struct weights_client_ability *a =
		(const struct weights_client_ability *)abilities + i;

	return json_pack("{s:o, s:b, s:o}", "kind", output_name(a->kind), "ok", a->ok, "reason",
		output_name(a->reason));
}

/* Takes object, to which it adds value under key. NULL without memory. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
	if (object && json_object_set_new(object, key, value) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static json_t *account(const struct weights_client_account *a)
{
	return json_pack("{s:I, s:I, s:I, s:I}", "budget_bytes", (json_int_t)a->budget_bytes,
		"weights_bytes", (json_int_t)a->weights_bytes, "reserved_bytes",
		(json_int_t)a->reserved_bytes, "n_waiting", (json_int_t)a->n_waiting);
}

static json_t *device(const struct weights_client_device *d)
{
	json_t *o = json_pack("{s:o, s:o, s:o, s:b, s:o, s:o}", "name", output_name(d->name),
		"uuid", output_name(status_names_uuid(d->uuid).text), "driver_uuid",
		output_name(status_names_uuid(d->driver_uuid).text), "software", d->software,
		"heaps", array_of(d->heaps, d->n_heaps, heap), "abilities",
		array_of(d->abilities, d->n_abilities, ability));

	return d->has_account ? with(o, "account", account(&d->account)) : o;
}

static json_t *device_at(const void *devices, uint32_t i)
{
	return device((const struct weights_client_device *)devices + i);
}

static json_t *allocation(const void *allocs, uint32_t i)
{
	const struct weights_client_alloc *a = (const struct weights_client_alloc *)allocs + i;

	return json_pack("{s:I, s:I, s:I, s:s, s:s, s:I, s:b, s:I, s:I, s:I, s:b, s:I}", "index",
		(json_int_t)a->index, "n_bytes", (json_int_t)a->n_bytes, "buffer_bytes",
		(json_int_t)a->buffer_bytes, "placement", status_names_placement(a->placement),
		"handle_type", status_names_handle(a->handle_type), "memory_type_index",
		(json_int_t)a->memory_type_index, "dedicated", a->dedicated, "inode",
		(json_int_t)a->inode, "dev", (json_int_t)a->dev, "file_offset",
		(json_int_t)a->file_offset, "writable", a->writable, "device",
		(json_int_t)a->device);
}

/* The numbers that allocations have as their device. */
static json_t *residency(uint32_t bits)
{
	json_t *array = json_array();

	for (uint32_t i = 0; array && i < 32; i++) {
		if ((bits >> i & 1) && json_array_append_new(array, json_integer(i)) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

static json_t *generation(const void *generations, uint32_t i)
{
	const struct weights_client_generation *g =
		(const struct weights_client_generation *)generations + i;

	json_t *o = json_pack(
		"{s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:b, s:I, s:I, s:o, s:o}",
		"id", (json_int_t)g->id, "state", output_name(g->state), "origin",
		output_name(g->origin), "path", output_name(g->path), "architecture",
		output_name(g->architecture), "format", output_name(g->format), "n_parameters",
		(json_int_t)g->n_parameters, "file_bytes", (json_int_t)g->file_bytes,
		"weights_bytes", (json_int_t)g->weights_bytes, "manifest_bytes",
		(json_int_t)g->manifest_bytes, "loaded_bytes", (json_int_t)g->loaded_bytes,
		"load_ns", (json_int_t)g->load_ns, "n_leases", (json_int_t)g->n_leases, "n_tensors",
		(json_int_t)g->n_tensors, "unmet_bytes", (json_int_t)g->unmet_bytes, "paged_bytes",
		(json_int_t)g->paged_bytes, "pinned", g->pinned, "idle_ns", (json_int_t)g->idle_ns,
		"n_holds", (json_int_t)g->n_holds, "devices", residency(g->residency),
		"allocations", array_of(g->allocs, g->n_allocs, allocation));
	if (!o)
		return NULL;
	if (json_object_set_new(o, "identity",
		    output_name(status_names_identity(g->has_identity, g->identity).text)) < 0 ||
		json_object_set_new(o, "verified_ns", json_integer((json_int_t)g->verified_ns)) <
			0) {
		json_decref(o);
		return NULL;
	}
	return o;
}

static json_t *model(const void *models, uint32_t i)
{
	const struct weights_client_model *m = (const struct weights_client_model *)models + i;

	return json_pack("{s:o, s:o}", "name", output_name(m->name), "generations",
		array_of(m->generations, m->n_generations, generation));
}

json_t *status_json_models(const struct weights_client_status *s)
{
	return array_of(s->models, s->n_models, model);
}

static json_t *lease(const void *leases, uint32_t i)
{
	const struct weights_client_lease *l = (const struct weights_client_lease *)leases + i;

	return json_pack("{s:o, s:I, s:I}", "model", output_name(l->model), "generation",
		(json_int_t)l->generation, "age_ns", (json_int_t)l->age_ns);
}

/* The figures of a worker that has not reported yet are 0. */
static json_t *worker(const struct weights_client_peer *p)
{
	const struct weights_client_report *r = &p->report;

	json_t *o = json_pack("{s:i, s:I, s:I, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "pid",
		p->pid, "uid", (json_int_t)p->uid, "gid", (json_int_t)p->gid, "leases",
		array_of(p->leases, p->n_leases, lease), "has_report", p->has_report, "kv_bytes",
		(json_int_t)r->kv_bytes, "scratch_bytes", (json_int_t)r->scratch_bytes, "io_bytes",
		(json_int_t)r->io_bytes, "n_sessions", (json_int_t)r->n_sessions, "attach_ns",
		(json_int_t)r->attach_ns, "socket", output_name(r->socket));

	return with(o, "reserved_bytes", json_integer((json_int_t)p->reserved_bytes));
}

static json_t *holder(const struct weights_client_peer *p)
{
	return json_pack("{s:i, s:I, s:I, s:o}", "pid", p->pid, "uid", (json_int_t)p->uid, "gid",
		(json_int_t)p->gid, "holds", array_of(p->leases, p->n_leases, lease));
}

/* The workers, or the processes that only hold. */
static json_t *peers(const struct weights_client_status *s, bool is_gone)
{
	json_t *array = json_array();

	for (uint32_t i = 0; array && i < s->n_peers; i++) {
		const struct weights_client_peer *p = &s->peers[i];
		if (p->is_gone != is_gone || (!is_gone && p->role != WEIGHTS_CLIENT_WORKER))
			continue;
		if (json_array_append_new(array, is_gone ? holder(p) : worker(p)) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

json_t *status_json_weightd(const struct weights_client_status *s)
{
	struct sharing sharing = sharing_count(s);

	return json_pack("{s:i, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I}}",
		"pid", s->pid, "version", output_name(s->build), "uptime_ns",
		(json_int_t)s->uptime_ns, "device", device(&s->device), "devices",
		array_of(s->devices, s->n_devices, device_at), "models", status_json_models(s),
		"workers", peers(s, false), "holders", peers(s, true), "sharing", "n_workers",
		(json_int_t)sharing.n_workers, "n_leases", (json_int_t)sharing.n_leases,
		"resident_bytes", (json_int_t)sharing.resident_bytes, "private_bytes",
		(json_int_t)sharing.private_bytes, "separate_bytes",
		(json_int_t)sharing.separate_bytes);
}

static json_t *placed(const void *rows, uint32_t i)
{
	const struct worker_client_placed *p = (const struct worker_client_placed *)rows + i;

	return json_pack("{s:o, s:I}", "placement", output_name(p->placement), "n_bytes",
		(json_int_t)p->n_bytes);
}

static json_t *streaming(const struct worker_client_status *s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "rows", (json_int_t)s->stream_rows, "steps",
		(json_int_t)s->stream_steps, "step_ns", (json_int_t)s->stream_ns, "copied_bytes",
		(json_int_t)s->stream_bytes, "paged_bytes", (json_int_t)s->paged_bytes);
}

static json_t *experts(const struct worker_client_experts *e)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "slots", (json_int_t)e->n_slots, "bytes",
		(json_int_t)e->n_bytes, "found", (json_int_t)e->n_found, "fetched",
		(json_int_t)e->n_fetched, "direct", (json_int_t)e->n_direct);
}

static json_t *session(const void *rows, uint32_t i)
{
	static const char *const states[] = {"", "idle", "prompt", "decoding"};
	const struct worker_client_session *s = (const struct worker_client_session *)rows + i;

	return json_pack("{s:I, s:I, s:I, s:I, s:s, s:f}", "session", (json_int_t)s->session,
		"client", (json_int_t)s->client, "n_tokens", (json_int_t)s->n_tokens, "n_cached",
		(json_int_t)s->n_cached, "state", states[s->state], "tokens_per_second",
		(double)s->tokens_per_second);
}

static json_t *kv_pages(const struct worker_client_status *s)
{
	return json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)s->kv_pages, "used",
		(json_int_t)s->kv_used_pages, "shared", (json_int_t)s->kv_shared_pages, "cached",
		(json_int_t)s->kv_cached_pages);
}

json_t *status_json_worker(const struct worker_client_status *s)
{
	json_t *o = json_pack(
		"{s:i, s:I, s:o, s:I, s:o, s:b, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:b, s:o, s:o, s:o}",
		"pid", s->pid, "uptime_ns", (json_int_t)s->uptime_ns, "model",
		output_name(s->model), "generation", (json_int_t)s->generation, "device",
		output_name(s->device), "software", s->software, "weights_bytes",
		(json_int_t)s->weights_bytes, "roles", status_memory_json_roles(s), "n_sessions",
		(json_int_t)s->n_sessions, "max_sessions", (json_int_t)s->max_sessions, "n_ctx",
		(json_int_t)s->n_ctx, "attach_ns", (json_int_t)s->attach_ns, "ready_ns",
		(json_int_t)s->ready_ns, "first_token_ns", (json_int_t)s->first_token_ns,
		"prompt_tokens", (json_int_t)s->prompt_tokens, "generated_tokens",
		(json_int_t)s->generated_tokens, "n_dispatches", (json_int_t)s->n_dispatches,
		"weightd_connected", s->weightd_connected, "placed_weights",
		array_of(s->placed_weights, s->n_placed_weights, placed), "streaming", streaming(s),
		"experts", experts(&s->experts));

	o = with(o, "memory", status_memory_json(&s->memory));
	o = with(o, "identity",
		output_name(status_names_identity(s->has_identity, s->identity).text));
	o = with(o, "n_queued", json_integer(s->n_queued));
	o = with(o, "kv_pages", kv_pages(s));
	o = with(o, "n_prefixes", json_integer(s->n_prefixes));
	o = with(o, "prefix_bytes", json_integer((json_int_t)s->prefix_bytes));
	o = with(o, "sessions", array_of(s->sessions, s->n_sessions_listed, session));
	return with(o, "state", json_string(s->is_parked ? "parked" : "ready"));
}
