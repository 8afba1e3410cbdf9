/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/weights-client-status.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"

/* Caps of one whole answer; far above what a machine runs, far below what hurts a client. */
enum {
	STATUS_MAX_MODELS = 1024,
	STATUS_MAX_GENERATIONS = 1024, /* of a model */
	STATUS_MAX_PEERS = 4096,
	STATUS_MAX_LEASES = 1024, /* of a peer */
	STATUS_MAX_STRING_BYTES = 4096,
	STATUS_MAX_DEVICES = 64,
};

static const char *const status_states[] = {
	[WD__GENERATION_STATE__GENERATION_STATE_LOADING] = "loading",
	[WD__GENERATION_STATE__GENERATION_STATE_READY] = "ready",
	[WD__GENERATION_STATE__GENERATION_STATE_DRAINING] = "draining",
	[WD__GENERATION_STATE__GENERATION_STATE_HELD] = "held",
	[WD__GENERATION_STATE__GENERATION_STATE_LOST] = "lost",
	[WD__GENERATION_STATE__GENERATION_STATE_WARM] = "warm",
	[WD__GENERATION_STATE__GENERATION_STATE_RETURNING] = "returning",
};

static int must_check status_cap(
	const char *what, size_t n_have, size_t n_more, size_t cap, struct err *ret_err)
{
	if (n_have <= cap && n_more <= cap - n_have)
		return 0;
	return err_set(ret_err, EPROTO, "weightd: status: %s: expected at most %zu, found more",
		what, cap);
}

static int must_check status_string(
	const char *what, const char *s, struct err *ret_err, char **ret_copy)
{
	if (strlen(s) > STATUS_MAX_STRING_BYTES)
		return err_set(ret_err, EPROTO, "weightd: status: %s: expected at most %d bytes",
			what, STATUS_MAX_STRING_BYTES);
	char *copy = strdup(s);
	if (!copy)
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	*ret_copy = copy;
	return 0;
}

/* Room for n_more zeroed rows of n_bytes behind the n_have that *rows has. */
static int must_check status_grow(
	void **rows, size_t n_have, size_t n_more, size_t n_bytes, struct err *ret_err)
{
	uint8_t *grown = reallocarray(*rows, n_have + n_more + 1, n_bytes);

	if (!grown)
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	memset(grown + n_have * n_bytes, 0, (n_more + 1) * n_bytes);
	*rows = grown;
	return 0;
}

static void status_fini_model(struct weights_client_model *m)
{
	for (uint32_t i = 0; i < m->n_generations; i++) {
		struct weights_client_generation *g = &m->generations[i];

		free(g->origin);
		free(g->path);
		free(g->architecture);
		free(g->format);
		free(g->allocs);
	}
	free(m->generations);
	free(m->name);
}

static void status_fini_peer(struct weights_client_peer *p)
{
	for (uint32_t i = 0; i < p->n_leases; i++)
		free(p->leases[i].model);
	free(p->leases);
	free((char *)p->report.socket);
}

void weights_client_status_fini(struct weights_client_status *s)
{
	for (uint32_t i = 0; i < s->n_models; i++)
		status_fini_model(&s->models[i]);
	for (uint32_t i = 0; i < s->n_peers; i++)
		status_fini_peer(&s->peers[i]);
	free(s->models);
	free(s->peers);
	free(s->build);
	free(s->devices);
	*s = (struct weights_client_status){0};
}

static int must_check status_read_abilities(
	const Wd__Device *m, struct err *ret_err, struct weights_client_device *d)
{
	int r = status_cap("abilities", 0, m->n_abilities, ARRAY_SIZE(d->abilities), ret_err);

	for (size_t i = 0; r == 0 && i < m->n_abilities; i++) {
		const Wd__Ability *from = m->abilities[i];
		struct weights_client_ability *to = &d->abilities[d->n_abilities++];

		to->ok = from->ok;
		if (strlen(from->kind) >= sizeof(to->kind) ||
			strlen(from->reason) >= sizeof(to->reason))
			return err_set(ret_err, EPROTO,
				"weightd: device: ability: expected a kind of at most %zu bytes "
				"and a reason of %zu",
				sizeof(to->kind) - 1, sizeof(to->reason) - 1);
		strcpy(to->kind, from->kind);
		strcpy(to->reason, from->reason);
	}
	return r;
}

int weights_client_status_read_device(
	const Wd__Device *m, struct err *ret_err, struct weights_client_device *ret_device)
{
	struct weights_client_device d = {0};

	if (!m)
		return err_set(ret_err, EPROTO, "weightd: device: expected one, found none");
	if (m->uuid.len != sizeof(d.uuid) || m->driver_uuid.len != sizeof(d.driver_uuid))
		return err_set(ret_err, EPROTO,
			"weightd: device: expected uuids of 16 bytes, found %zu and %zu",
			m->uuid.len, m->driver_uuid.len);
	if (strlen(m->name) >= sizeof(d.name))
		return err_set(ret_err, EPROTO, "weightd: device: name: expected at most %zu bytes",
			sizeof(d.name) - 1);
	if (m->n_heaps > ARRAY_SIZE(d.heaps))
		return err_set(ret_err, EPROTO,
			"weightd: device: expected at most %zu heaps, found %zu",
			ARRAY_SIZE(d.heaps), m->n_heaps);
	memcpy(d.uuid, m->uuid.data, sizeof(d.uuid));
	memcpy(d.driver_uuid, m->driver_uuid.data, sizeof(d.driver_uuid));
	strcpy(d.name, m->name);
	d.software = m->software;
	d.n_heaps = (uint32_t)m->n_heaps;
	for (uint32_t i = 0; i < d.n_heaps; i++) {
		const Wd__Heap *heap = m->heaps[i];

		d.heaps[i] = (struct weights_client_heap){
			.n_bytes = heap->n_bytes,
			.device_local = heap->device_local,
			.weights_bytes = heap->weights_bytes,
			.budget_bytes = heap->budget_bytes,
			.usage_bytes = heap->usage_bytes,
		};
	}
	if (m->account) {
		d.has_account = true;
		d.account = (struct weights_client_account){
			.budget_bytes = m->account->budget_bytes,
			.weights_bytes = m->account->weights_bytes,
			.reserved_bytes = m->account->reserved_bytes,
			.n_waiting = m->account->n_waiting,
		};
	}
	int r = status_read_abilities(m, ret_err, &d);
	if (r < 0)
		return r;
	*ret_device = d;
	return 0;
}

void weights_client_status_read_alloc(
	const Wd__Allocation *m, struct weights_client_alloc *ret_alloc)
{
	*ret_alloc = (struct weights_client_alloc){
		.index = m->index,
		.n_bytes = m->n_bytes,
		.buffer_bytes = m->buffer_bytes,
		.handle_type = (uint32_t)m->handle_type,
		.memory_type_index = m->memory_type_index,
		.dedicated = m->dedicated,
		.placement = (uint32_t)m->placement,
		.inode = m->inode,
		.dev = m->dev,
		.file_offset = m->file_offset,
		.writable = m->writable,
		.device = m->device,
		.fd = -1,
	};
}

static int must_check status_read_allocs(
	struct weights_client_generation *g, const Wd__Generation *m, struct err *ret_err)
{
	int r = status_cap("allocations", 0, m->n_allocations, MANIFEST_MAX_ALLOCS, ret_err);

	if (r == 0)
		r = status_grow(
			(void **)&g->allocs, 0, m->n_allocations, sizeof(*g->allocs), ret_err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < m->n_allocations; i++) {
		weights_client_status_read_alloc(m->allocations[i], &g->allocs[g->n_allocs]);
		if (g->allocs[i].placement < MANIFEST_PLACEMENT_DEVICE ||
			g->allocs[i].placement > MANIFEST_PLACEMENT_PAGED)
			return err_set(ret_err, EPROTO,
				"weightd: status: allocation %zu: unknown placement %u", i,
				g->allocs[i].placement);
		g->n_allocs++;
	}
	return 0;
}

/* g is zero and already counted by its model, so that a failure frees what is there. */
static int must_check status_read_generation(
	struct weights_client_generation *g, const Wd__Generation *m, struct err *ret_err)
{
	if (m->state <= 0 || (size_t)m->state >= ARRAY_SIZE(status_states))
		return err_set(ret_err, EPROTO,
			"weightd: status: generation %llu: unknown state %d",
			(unsigned long long)m->id, (int)m->state);
	g->id = m->id;
	g->state = status_states[m->state];
	g->n_parameters = m->n_parameters;
	g->file_bytes = m->file_bytes;
	g->weights_bytes = m->weights_bytes;
	g->manifest_bytes = m->manifest_bytes;
	g->loaded_bytes = m->loaded_bytes;
	g->load_ns = m->load_ns;
	g->n_leases = m->n_leases;
	g->n_tensors = m->n_tensors;
	g->unmet_bytes = m->unmet_bytes;
	g->paged_bytes = m->paged_bytes;
	g->pinned = m->pinned;
	g->idle_ns = m->idle_ns;
	g->n_holds = m->n_holds;
	g->residency = m->residency;
	g->verified_ns = m->verified_ns;
	if (m->identity.len != 0 && m->identity.len != sizeof(g->identity))
		return err_set(ret_err, EPROTO,
			"weightd: status: generation %llu: identity: expected %zu bytes, found %zu",
			(unsigned long long)m->id, sizeof(g->identity), m->identity.len);
	g->has_identity = m->identity.len > 0;
	if (g->has_identity)
		memcpy(g->identity, m->identity.data, sizeof(g->identity));
	int r = status_string("origin", m->origin, ret_err, &g->origin);
	if (r == 0)
		r = status_string("path", m->path, ret_err, &g->path);
	if (r == 0)
		r = status_string("architecture", m->architecture, ret_err, &g->architecture);
	if (r == 0)
		r = status_string("format", m->format, ret_err, &g->format);
	if (r == 0)
		r = status_read_allocs(g, m, ret_err);
	return r;
}

int weights_client_status_read_verified(
	const Wd__Verified *m, struct err *ret_err, struct weights_client_verified *ret_verified)
{
	struct weights_client_verified v = {.generation = m->generation,
		.n_bytes = m->n_bytes,
		.elapsed_ns = m->elapsed_ns,
		.n_tensors = m->n_tensors};
	int r = status_cap(
		"differences", 0, m->n_differences, WEIGHTS_CLIENT_MAX_DIFFERENCES, ret_err);

	if (r < 0)
		return r;
	if (m->n_differences > m->n_tensors)
		return err_set(ret_err, EPROTO,
			"weightd: differences: expected at most one a tensor of %u, found %zu",
			m->n_tensors, m->n_differences);
	for (size_t i = 0; i < m->n_differences; i++) {
		const Wd__Difference *d = m->differences[i];
		struct weights_client_difference *to = &v.differences[v.n_differences++];

		to->allocation = d->allocation;
		to->offset = d->offset;
		to->n_bytes = d->n_bytes;
		if (strlen(d->tensor) >= sizeof(to->tensor))
			return err_set(ret_err, EPROTO,
				"weightd: difference: name: expected below %zu bytes, found %zu",
				sizeof(to->tensor), strlen(d->tensor));
		strcpy(to->tensor, d->tensor);
	}
	*ret_verified = v;
	return 0;
}

int weights_client_status_add_models(
	struct weights_client_status *s, Wd__Model **models, size_t n, struct err *ret_err)
{
	int r = status_cap("models", s->n_models, n, STATUS_MAX_MODELS, ret_err);

	if (r == 0)
		r = status_grow((void **)&s->models, s->n_models, n, sizeof(*s->models), ret_err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		const Wd__Model *m = models[i];
		struct weights_client_model *model = &s->models[s->n_models++];

		r = status_cap("generations", 0, m->n_generations, STATUS_MAX_GENERATIONS, ret_err);
		if (r == 0)
			r = status_string("model", m->name, ret_err, &model->name);
		if (r == 0)
			r = status_grow((void **)&model->generations, 0, m->n_generations,
				sizeof(*model->generations), ret_err);
		for (size_t k = 0; r == 0 && k < m->n_generations; k++)
			r = status_read_generation(&model->generations[model->n_generations++],
				m->generations[k], ret_err);
	}
	return r;
}

static int must_check status_read_report(
	struct weights_client_peer *p, const Wd__WorkerReport *m, struct err *ret_err)
{
	char *path;
	int r = status_string("socket", m->socket, ret_err, &path);

	if (r < 0)
		return r;
	p->has_report = true;
	p->report = (struct weights_client_report){
		.kv_bytes = m->kv_bytes,
		.scratch_bytes = m->scratch_bytes,
		.io_bytes = m->io_bytes,
		.n_sessions = m->n_sessions,
		.attach_ns = m->attach_ns,
		.socket = path,
	};
	return 0;
}

/* p is zero and already counted. */
static int must_check status_read_peer(
	struct weights_client_peer *p, const Wd__Peer *m, struct err *ret_err)
{
	if (m->role < WD__ROLE__ROLE_UNSPECIFIED || m->role > WD__ROLE__ROLE_CONTROL)
		return err_set(ret_err, EPROTO, "weightd: status: peer %d: unknown role %d", m->pid,
			(int)m->role);
	p->pid = m->pid;
	p->uid = m->uid;
	p->gid = m->gid;
	p->role = (uint32_t)m->role;
	p->reserved_bytes = m->reserved_bytes;
	p->is_gone = m->is_gone;
	int r = status_cap("leases", 0, m->n_leases, STATUS_MAX_LEASES, ret_err);
	if (r == 0)
		r = status_grow((void **)&p->leases, 0, m->n_leases, sizeof(*p->leases), ret_err);
	for (size_t i = 0; r == 0 && i < m->n_leases; i++) {
		struct weights_client_lease *lease = &p->leases[p->n_leases++];

		lease->generation = m->leases[i]->generation;
		lease->age_ns = m->leases[i]->age_ns;
		r = status_string("lease", m->leases[i]->model, ret_err, &lease->model);
	}
	if (r == 0 && m->report)
		r = status_read_report(p, m->report, ret_err);
	return r;
}

static int must_check status_read_head(
	struct weights_client_status *s, const Wd__Status *m, struct err *ret_err)
{
	s->pid = m->pid;
	s->uptime_ns = m->uptime_ns;
	int r = weights_client_status_read_device(m->device, ret_err, &s->device);
	if (r == 0)
		r = status_string("build", m->build, ret_err, &s->build);
	if (r == 0)
		r = status_cap("devices", 0, m->n_devices, STATUS_MAX_DEVICES, ret_err);
	if (r == 0)
		r = status_grow(
			(void **)&s->devices, 0, m->n_devices, sizeof(*s->devices), ret_err);
	for (size_t i = 0; r == 0 && i < m->n_devices; i++) {
		r = weights_client_status_read_device(m->devices[i], ret_err, &s->devices[i]);
		s->n_devices += r == 0;
	}
	return r;
}

int weights_client_status_add(
	struct weights_client_status *s, const Wd__Status *m, bool first, struct err *ret_err)
{
	int r = first ? status_read_head(s, m, ret_err) : 0;

	if (r == 0 && m->more && m->n_models == 0 && m->n_peers == 0)
		return err_set(ret_err, EPROTO, "weightd: status: an empty packet before the last");
	if (r == 0)
		r = weights_client_status_add_models(s, m->models, m->n_models, ret_err);
	if (r == 0)
		r = status_cap("peers", s->n_peers, m->n_peers, STATUS_MAX_PEERS, ret_err);
	if (r == 0)
		r = status_grow(
			(void **)&s->peers, s->n_peers, m->n_peers, sizeof(*s->peers), ret_err);
	for (size_t i = 0; r == 0 && i < m->n_peers; i++)
		r = status_read_peer(&s->peers[s->n_peers++], m->peers[i], ret_err);
	return r;
}
