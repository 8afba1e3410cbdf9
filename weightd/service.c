/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/service.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/admit.h"
#include "weightd/batons.h"
#include "weightd/export.h"
#include "weightd/leave.h"
#include "weightd/loader.h"
#include "weightd/publish.h"
#include "weightd/restart.h"
#include "weightd/service-internal.h"
#include "weightd/shown.h"
#include "weightd/source.h"
#include "weightd/verify.h"

static void service_cleanup(struct service **s)
{
	service_free(*s);
}

int service_new(const struct service_params *params, struct service **ret_service)
{
	_cleanup_(service_cleanup)
	struct service *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	TAILQ_INIT(&s->waits);
	TAILQ_INIT(&s->verifies);
	batons_init(s);
	s->params = params;
	s->restart = params->restart;
	s->start_ns = clock_now_ns();
	int rc = registry_new(&s->registry);
	if (rc == 0)
		rc = publish_init(s);
	if (rc < 0)
		return rc;
	*ret_service = TAKE_PTR(s);
	return 0;
}

void service_free_generation(struct service_generation *g)
{
	source_unref(g->source);
	free(g->path);
	free(g->lost_why);
	free(g);
}

struct service *service_free(struct service *s)
{
	struct service_wait *w;

	if (!s)
		return NULL;
	while ((w = TAILQ_FIRST(&s->waits))) {
		TAILQ_REMOVE(&s->waits, w, entry);
		free(w);
	}
	verify_forget(s, NULL);
	for (uint32_t i = 0; s->registry && i < registry_count(s->registry); i++)
		service_free_generation(registry_at(s->registry, i)->data);
	registry_free(s->registry);
	publish_fini(s);
	admission_fini(s);
	batons_fini(s);
	free(s);
	return NULL;
}

struct registry *service_get_registry(const struct service *s)
{
	return s->registry;
}

const struct service_params *service_get_params(const struct service *s)
{
	return s->params;
}

uint32_t service_get_foreign_slot(const struct service *s)
{
	return s->params->n_loaders;
}

uint64_t service_get_uptime_ns(const struct service *s)
{
	return clock_now_ns() - s->start_ns;
}

const struct export *service_get_export(
	const struct service *s, const struct service_generation *data)
{
	uint8_t identity[IDENTITY_BYTES];
	const struct export *any = NULL;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++) {
		const struct export *e = data->residencies[i].export;
		if (e && e->check && check_get_identity(e->check, identity))
			return e;
		any = any ? any : e;
	}
	return any;
}

void service_tell(struct service *s, const struct rpc_reply_event *event)
{
	struct peer *p;

	TAILQ_FOREACH(p, s->params->peers, entry)
	{
		struct rpc_reply_event told = *event;
		if (!p->is_watching || !shown_event(p, event->model, event->pid))
			continue;
		if (event->discreet_text && !shown_pids(p))
			told.text = event->discreet_text;
		rpc_reply_event(p, &told);
	}
}

void service_tell_holders(
	struct service *s, uint64_t generation, const struct rpc_reply_event *event)
{
	enum { WORKER = 1 }; /* Role of weightd.proto */
	struct peer *p;

	TAILQ_FOREACH(p, s->params->peers, entry)
	if (p->role == WORKER && registry_has_lease(s->registry, generation, p->id) &&
		!(event->kind == RPC_REPLY_LOST && p->is_watching)) /* watchers hear of that */
		rpc_reply_event(p, event);
}

bool service_is_awaited(const struct service *s, const struct registry_generation *g)
{
	const struct service_generation *data = g->data;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		if (data->residencies[i].is_loading || data->residencies[i].is_copying)
			return true;
	return false;
}

uint64_t service_release_exports(struct service *s, uint64_t id, struct service_generation *data)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++) {
		struct export *e = data->residencies[i].export;
		n_bytes += admission_drop_remnant(s, id, i, &data->residencies[i].remnant);
		if (!e)
			continue;
		n_bytes += e->device_bytes;
		loader_release(s->params->loaders[i % s->params->n_loaders], e);
		data->residencies[i] = (struct service_residency){.export = NULL};
		admission_leave(s, id, i);
	}
	return n_bytes;
}

/* What is under way for it, on whichever device, is for nobody. */
static void service_cancel(const struct service *s, const struct registry_generation *g)
{
	const struct service_generation *data = g->data;
	uint32_t n = s->params->n_loaders;
	bool is_busy[SERVICE_MAX_DEVICES] = {g->is_filling || data->is_cooling};

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		is_busy[i % n] |=
			data->residencies[i].is_loading || data->residencies[i].is_copying;
	for (uint32_t i = 0; i < n; i++)
		if (is_busy[i])
			loader_cancel(s->params->loaders[i], g->id);
}

static void service_cancel_unwanted(const struct service *s)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		if (g->state != REGISTRY_LOADING && g->state != REGISTRY_READY &&
			g->state != REGISTRY_WARM)
			service_cancel(s, g);
	}
}

void service_collect(struct service *s)
{
	struct registry_generation g;

	service_cancel_unwanted(s);
	while (registry_take_freed(s->registry, &g)) {
		struct service_generation *data = g.data;
		service_cancel(s, &g);
		publish_forget(s, g.id);
		/* Counted once, whatever it is resident for. */
		uint64_t n_bytes = source_get_staged_bytes(data->source) + data->n_memfd_bytes;
		n_bytes += service_release_exports(s, g.id, data);
		if (data->summary.architecture[0]) {
			log_info("model %s: generation %llu is gone, %llu bytes are free", g.model,
				(unsigned long long)g.id, (unsigned long long)n_bytes);
			service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_UNLOADED,
						.model = g.model,
						.generation = g.id});
			/* It was there to wait for, for another device or a copy. */
			acquire_wake(s, g.model, 0, NULL);
		}
		loader_drop_source(s->params->loaders[0], TAKE_PTR(data->source));
		service_free_generation(data);
	}
	admit_resume(s);
}

int service_say_lost(const char *model, struct err *ret_err)
{
	return err_set(ret_err, EIO, "model %s was lost: load it again", model);
}

void service_lose(struct service *s, uint64_t id, const char *why)
{
	const struct registry_generation *g = registry_find(s->registry, id);
	char model[REGISTRY_NAME_MAX + 1];
	struct err err = ERR_NULL;

	if (!g || g->is_filling || !registry_is_legal(g->state, REGISTRY_LOSE))
		return;
	log_warn("model %s: generation %llu is lost: %s", g->model, (unsigned long long)id, why);
	/* For those who come back for it later. */
	struct service_generation *data = g->data;
	free(data->lost_why);
	data->lost_why = strdup(why);
	const struct rpc_reply_event event = {.kind = RPC_REPLY_LOST,
		.model = g->model,
		.generation = id,
		.text = why,
		.export = service_get_export(s, g->data)};
	service_tell(s, &event);
	service_tell_holders(s, id, &event);
	snprintf(model, sizeof(model), "%s", g->model); /* g may move */
	registry_lose(s->registry, id);
	publish_forget(s, id);
	acquire_wake(s, model, service_say_lost(model, &err), &err);
	service_collect(s);
}

bool service_check_file(struct service *s, uint64_t id)
{
	const struct registry_generation *g = registry_find(s->registry, id);
	const struct service_generation *data = g->data;
	struct err err = ERR_NULL;
	bool uses_file = false;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		uses_file |= data->residencies[i].export &&
			     export_uses_file(data->residencies[i].export);
	/* Warm, and only its file has it. */
	uses_file |= g->state == REGISTRY_WARM && source_get_memfd(data->source) < 0;
	if (!uses_file || g->is_filling || !registry_is_legal(g->state, REGISTRY_LOSE) ||
		source_check(data->source, &err) == 0)
		return false;
	service_lose(s, id, err.text);
	return true;
}

void service_check_files(struct service *s)
{
	/* A generation that is lost may be gone at once; the next one is then at its place. */
	for (uint32_t i = 0; i < registry_count(s->registry);)
		if (!service_check_file(s, registry_at(s->registry, i)->id))
			i++;
}

int service_check_pending(const struct peer *p, struct err *ret_err)
{
	if (p->n_pending < PEER_MAX_PENDING)
		return 0;
	return err_set(ret_err, EAGAIN, "%u requests of this connection wait already, the most",
		p->n_pending);
}

/* ---- Load and Unload ---- */

static bool service_may_pin_writable(const struct service *s, const char *name)
{
	for (uint32_t i = 0; i < s->params->n_pin_writable; i++)
		if (!strcmp(s->params->pin_writable[i], name))
			return true;
	return false;
}

/* Takes source on success. */
static int service_make_generation(const char *path, struct source *source, struct err *ret_err,
	struct service_generation **ret_data)
{
	struct service_generation *data = calloc(1, sizeof(*data));

	if (data)
		data->path = strdup(path);
	if (!data || !data->path) {
		free(data);
		return err_set(ret_err, ENOMEM, "load: out of memory");
	}
	data->source = source;
	data->file_bytes = source_get_bytes(source);
	data->started_ns = clock_now_ns();
	*ret_data = data;
	return 0;
}

/* Takes data. */
static int service_begin(struct service *s, const char *name, struct service_generation *data,
	bool replace, struct err *ret_err)
{
	uint64_t id;
	int rc = registry_load(s->registry, name, replace, data, ret_err, &id);

	if (rc < 0) {
		service_free_generation(data);
		return rc;
	}
	rc = admission_load(s, id, 0, ret_err);
	if (rc < 0) {
		registry_failed(s->registry, id);
		service_collect(s);
	}
	return rc;
}

static int service_begin_load(struct service *s, struct peer *p, uint64_t request, const char *name,
	const char *path, int fd, bool replace, bool is_own, struct err *ret_err)
{
	struct service_generation *data = NULL;
	struct source *source = NULL;
	int rc = p ? service_check_pending(p, ret_err) : 0;

	if (rc == 0 && restart_is_awaited(s->restart, name))
		rc = err_set(ret_err, EBUSY, "model %s: it is on its way back", name);
	if (rc == 0)
		rc = source_new(fd, service_may_pin_writable(s, name), s->params->account, ret_err,
			&source);
	if (rc == 0)
		rc = service_make_generation(path, source, ret_err, &data);
	if (rc < 0) {
		source_unref(source);
		return rc;
	}
	data->is_own = is_own;
	data->peer = p ? p->id : 0;
	data->request = request;
	rc = service_begin(s, name, data, replace, ret_err);
	if (rc == 0 && p)
		p->n_pending++;
	return rc;
}

int service_load(struct service *s, struct peer *p, uint64_t request, const char *name,
	const char *path, int fd, bool replace, struct err *ret_err)
{
	return service_begin_load(s, p, request, name, path, fd, replace, !p, ret_err);
}

int service_load_again(struct service *s, const char *name, const char *path, int fd,
	bool is_pinned, struct err *ret_err)
{
	int rc = service_begin_load(s, NULL, 0, name, path, fd, true, false, ret_err);

	for (uint32_t i = 0; i < registry_count(s->registry) && rc == 0; i++) {
		struct registry_generation *g = registry_at(s->registry, i);
		if (g->state != REGISTRY_LOADING || strcmp(g->model, name) != 0)
			continue;
		g->is_pinned = is_pinned;
		((struct service_generation *)g->data)->has_displaced = true;
	}
	return rc;
}

int service_reload(struct service *s, const struct registry_generation *g, struct err *ret_err)
{
	const struct service_generation *data = g->data;
	char model[REGISTRY_NAME_MAX + 1];

	snprintf(model, sizeof(model), "%s", g->model); /* g may move */
	return service_begin_load(
		s, NULL, 0, model, data->path, source_get_fd(data->source), true, false, ret_err);
}

int service_recover(struct service *s, const struct registry_generation *g, struct err *ret_err)
{
	const struct service_generation *lost = g->data;
	char model[REGISTRY_NAME_MAX + 1];
	struct service_generation *data = NULL;
	struct source *source = NULL;
	int rc = source_recover(lost->source, ret_err, &source);

	snprintf(model, sizeof(model), "%s", g->model); /* g may move */
	if (rc == 0)
		rc = service_make_generation(lost->path, source, ret_err, &data);
	if (rc < 0) {
		source_unref(source);
		return rc;
	}
	return service_begin(s, model, data, true, ret_err);
}

int service_unload(struct service *s, const char *name, uint64_t timeout_ns, struct err *ret_err,
	uint64_t *ret_id)
{
	const struct registry_generation *g = NULL;
	uint64_t id = restart_unload(s->restart, name, leave_get_end(timeout_ns));
	bool is_returning = id;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		g = registry_at(s->registry, i);
		if ((g->state == REGISTRY_READY || g->state == REGISTRY_WARM ||
			    g->state == REGISTRY_LOADING) &&
			!strcmp(g->model, name))
			id = g->id;
	}
	int rc = registry_unload(s->registry, name, ret_err);
	if (rc < 0 && !is_returning)
		return rc;
	leave_set_timeout(s, name, timeout_ns);
	for (uint32_t i = 0; i < registry_count(s->registry);) {
		g = registry_at(s->registry, i++);
		if (!g->is_filling || registry_is_wanted(s->registry, g->id))
			continue;
		if (admission_cancel(s, g->id))
			i = 0; /* the list has changed */
		else
			loader_cancel(s->params->loaders[0], g->id);
	}
	const struct err why = {.text = "the model was unloaded while it loaded"};
	acquire_wake(s, name, -ECANCELED, &why);
	service_collect(s);
	if (timeout_ns == 0) /* nobody waits for the next look */
		leave_check(s);
	*ret_id = id;
	return 0;
}

/* ---- peers ---- */

bool service_has_claims(const struct service *s, const struct peer *p)
{
	return registry_count_peer(s->registry, p->id) > 0 || admission_count_grants(s, p) > 0 ||
	       prefixes_has_any(s->prefixes, p->id);
}

void service_close(struct service *s, struct peer *p, uint64_t holder)
{
	acquire_forget(s, p);
	verify_forget(s, p);
	restart_forget_peer(s->restart, p);
	p->is_watching = false;
	for (uint32_t i = 0; i < registry_count_leases(s->registry); i++) {
		const struct registry_lease *l = registry_lease_at(s->registry, i);
		if (l->is_hold || l->peer != p->id)
			continue;
		service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_DETACHED,
					.model = registry_find(s->registry, l->generation)->model,
					.generation = l->generation,
					.pid = p->pid});
	}
	registry_close(s->registry, p->id, holder, clock_now_ns());
	publish_close(s, p, holder);
	service_collect(s);
	admission_close(s, p, holder); /* what it leased may be evicted for who waits */
}

void service_exit(struct service *s, uint64_t holder)
{
	registry_exit(s->registry, holder);
	publish_exit(s, holder);
	service_collect(s);
	admission_exit(s, holder);
}

void service_tick(struct service *s)
{
	admission_tick(s);
	admit_tick(s);
}
