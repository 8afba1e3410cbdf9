/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/service.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/registry.h"
#include "weightd/rpc-reply.h"

/* An Acquire whose model is loading. */
struct service_wait {
	uint64_t peer;
	uint64_t request;
	char model[REGISTRY_NAME_MAX + 1];
	TAILQ_ENTRY(service_wait) entry;
};

struct service {
	struct registry *registry;
	struct loader *loader;
	const struct peer_list *peers;
	service_own_fn own_fn;
	void *userdata;
	uint64_t start_ns;
	bool has_told_refusal;
	TAILQ_HEAD(, service_wait) waits;
};

uint64_t service_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void service_cleanup(struct service **s)
{
	service_free(*s);
}

int service_new(struct loader *loader, const struct peer_list *peers, service_own_fn own_fn,
	void *userdata, struct service **ret_service)
{
	_cleanup_(service_cleanup)
	struct service *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	TAILQ_INIT(&s->waits);
	s->loader = loader;
	s->peers = peers;
	s->own_fn = own_fn;
	s->userdata = userdata;
	s->start_ns = service_now_ns();
	int rc = registry_new(&s->registry);
	if (rc < 0)
		return rc;
	*ret_service = TAKE_PTR(s);
	return 0;
}

static void service_free_generation(struct service_generation *g)
{
	free(g->path);
	free(g);
}

static void service_drop_wait(struct service *s, struct service_wait *w)
{
	TAILQ_REMOVE(&s->waits, w, entry);
	free(w);
}

struct service *service_free(struct service *s)
{
	struct service_wait *w;

	if (!s)
		return NULL;
	while ((w = TAILQ_FIRST(&s->waits)))
		service_drop_wait(s, w);
	for (uint32_t i = 0; s->registry && i < registry_count(s->registry); i++)
		service_free_generation(registry_at(s->registry, i)->data);
	registry_free(s->registry);
	free(s);
	return NULL;
}

struct registry *service_get_registry(const struct service *s)
{
	return s->registry;
}

struct loader *service_get_loader(const struct service *s)
{
	return s->loader;
}

const struct peer_list *service_get_peers(const struct service *s)
{
	return s->peers;
}

uint64_t service_get_uptime_ns(const struct service *s)
{
	return service_now_ns() - s->start_ns;
}

static void service_tell(struct service *s, const struct rpc_reply_event *event)
{
	struct peer *p;

	TAILQ_FOREACH(p, s->peers, entry)
	if (p->is_watching)
		rpc_reply_event(p, event);
}

/* What the last change freed goes to the loader; the watchers are told. */
static void service_collect(struct service *s)
{
	struct registry_generation g;

	while (registry_take_freed(s->registry, &g)) {
		struct service_generation *data = g.data;
		if (data->export) {
			log_info("model %s: generation %llu is gone, %llu bytes are free", g.model,
				(unsigned long long)g.id,
				(unsigned long long)data->export->weights_bytes);
			loader_release(s->loader, data->export);
			service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_UNLOADED,
						.model = g.model,
						.generation = g.id});
		}
		service_free_generation(data);
	}
}

/* ---- Acquire ---- */

static void service_attach(struct service *s, struct peer *p, uint64_t request, uint64_t id)
{
	const struct registry_generation *g = registry_find(s->registry, id);
	const struct service_generation *data = g->data;

	rpc_reply_acquired(p, request, id, data->export);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_ATTACHED,
				.model = g->model,
				.generation = id,
				.pid = p->pid});
}

/* Acquires that waited for the model: why says what became of its load, NULL when it is ready. */
static void service_wake(struct service *s, const char *model, int code, const struct err *why)
{
	struct service_wait *w = TAILQ_FIRST(&s->waits);

	while (w) {
		struct service_wait *next = TAILQ_NEXT(w, entry);
		struct peer *p = peer_find(s->peers, w->peer);
		struct err err = ERR_NULL;
		uint64_t id;

		if (strcmp(w->model, model)) {
			w = next;
			continue;
		}
		int rc = registry_acquire(s->registry, model, w->peer, service_now_ns(), &err, &id);
		if (rc == REGISTRY_WAIT) {
			w = next;
			continue;
		}
		if (rc == -ENOENT && why) {
			rc = code;
			err = *why;
		}
		p->n_pending--;
		if (rc < 0)
			rpc_reply_error(p, w->request, rc, &err);
		else
			service_attach(s, p, w->request, id);
		service_drop_wait(s, w);
		w = next;
	}
}

/* "0123...": 32 hex digits and a NUL. */
static const char *service_print_uuid(const uint8_t *uuid, char text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", uuid[i]);
	return text;
}

static int service_check_uuids(struct service *s, const uint8_t *device_uuid,
	const uint8_t *driver_uuid, struct err *ret_err)
{
	const struct vk_device_info *info = loader_get_info(s->loader);
	char expected[33], found[33];

	if (memcmp(device_uuid, info->uuid, 16))
		return err_set(ret_err, ENODEV, "device: expected %s (%s), found %s",
			service_print_uuid(info->uuid, expected), info->name,
			service_print_uuid(device_uuid, found));
	if (memcmp(driver_uuid, info->driver_uuid, 16))
		return err_set(ret_err, ENODEV,
			"driver of %s: expected %s, found %s: the memory of one driver means "
			"nothing to another",
			info->name, service_print_uuid(info->driver_uuid, expected),
			service_print_uuid(driver_uuid, found));
	return 0;
}

static int service_check_pending(const struct peer *p, struct err *ret_err)
{
	if (p->n_pending < PEER_MAX_PENDING)
		return 0;
	return err_set(ret_err, EAGAIN, "%u requests of this connection wait already, the most",
		p->n_pending);
}

int service_acquire(struct service *s, struct peer *p, uint64_t request, const char *name,
	const uint8_t *device_uuid, const uint8_t *driver_uuid, struct err *ret_err)
{
	uint64_t id;
	int rc = service_check_uuids(s, device_uuid, driver_uuid, ret_err);

	if (rc == 0)
		rc = service_check_pending(p, ret_err);
	if (rc < 0)
		return rc;
	rc = registry_acquire(s->registry, name, p->id, service_now_ns(), ret_err, &id);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		service_attach(s, p, request, id);
		return 0;
	}
	struct service_wait *w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(ret_err, ENOMEM, "model %s: out of memory", name);
	w->peer = p->id;
	w->request = request;
	snprintf(w->model, sizeof(w->model), "%s", name);
	TAILQ_INSERT_TAIL(&s->waits, w, entry);
	p->n_pending++;
	return 0;
}

/* ---- Load and Unload ---- */

static int service_make_generation(
	const char *path, int fd, struct err *ret_err, struct service_generation **ret_data)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_set(ret_err, errno, "file: fstat: %s", strerror(errno));
	struct service_generation *data = calloc(1, sizeof(*data));
	if (!data)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	data->path = strdup(path);
	if (!data->path) {
		free(data);
		return err_set(ret_err, ENOMEM, "load: out of memory");
	}
	data->file_bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	data->started_ns = service_now_ns();
	*ret_data = data;
	return 0;
}

int service_load(struct service *s, struct peer *p, uint64_t request, const char *name,
	const char *path, int fd, bool replace, struct err *ret_err)
{
	struct service_generation *data = NULL;
	uint64_t id;
	int rc = p ? service_check_pending(p, ret_err) : 0;

	if (rc == 0)
		rc = service_make_generation(path, fd, ret_err, &data);
	if (rc < 0)
		return rc;
	data->is_own = !p;
	data->peer = p ? p->id : 0;
	data->request = request;
	rc = registry_load(s->registry, name, replace, data, ret_err, &id);
	if (rc < 0) {
		service_free_generation(data);
		return rc;
	}
	rc = loader_load(s->loader, id, fd, ret_err);
	if (rc < 0) {
		registry_failed(s->registry, id);
		service_collect(s);
		return rc;
	}
	if (p)
		p->n_pending++;
	return 0;
}

int service_unload(struct service *s, const char *name, struct err *ret_err, uint64_t *ret_id)
{
	const struct registry_generation *g = NULL;
	uint64_t id = 0;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		g = registry_at(s->registry, i);
		if ((g->state == REGISTRY_READY || g->state == REGISTRY_LOADING) &&
			!strcmp(g->model, name))
			id = g->id;
	}
	int rc = registry_unload(s->registry, name, ret_err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		g = registry_at(s->registry, i);
		if (g->is_filling && !registry_is_wanted(s->registry, g->id))
			loader_cancel(s->loader, g->id);
	}
	const struct err why = {.text = "the model was unloaded while it loaded"};
	service_wake(s, name, -ECANCELED, &why);
	service_collect(s);
	*ret_id = id;
	return 0;
}

/* ---- the loader's results ---- */

/* The requester's answer: Done or the sentence. */
static void service_answer_load(struct service *s, uint64_t id,
	const struct service_generation *data, int code, const struct err *err)
{
	struct peer *p = peer_find(s->peers, data->peer);

	if (data->is_own && s->own_fn)
		s->own_fn(code, err, s->userdata);
	if (!p)
		return;
	p->n_pending--;
	if (code < 0)
		rpc_reply_error(p, data->request, code, err);
	else
		rpc_reply_done(p, data->request, id);
}

static void service_on_failed(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	const struct service_generation *data = g->data;
	struct err err = r->err;
	char model[REGISTRY_NAME_MAX + 1];
	int code = r->code;

	snprintf(model, sizeof(model), "%s", g->model);
	if (g->state != REGISTRY_LOADING) /* an unload gave it up, whatever it came to */
		code = err_set(&err, ECANCELED, "it was unloaded while it loaded");
	err_prefix(&err, "model %s", model);
	if (!data->is_own) /* else its one line is that of weightd's end */
		log_warn("%s", err.text);
	service_answer_load(s, g->id, data, code, &err);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_FAILED,
				.model = model,
				.generation = g->id,
				.text = err.text});
	registry_failed(s->registry, g->id);
	if (r->kind == LOADER_LOST)
		registry_lose(s->registry);
	service_wake(s, model, code, &err);
	service_collect(s);
}

static void service_log_ready(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	const struct service_generation *data = g->data;
	const struct export *e = data->export;
	const char *how = "io_uring";

	if (r->refusal > 0 && !s->has_told_refusal)
		log_info("io_uring is refused (%s): files are read by pread", strerror(r->refusal));
	s->has_told_refusal = s->has_told_refusal || r->refusal > 0;
	if (r->refusal)
		how = "pread";
	log_info("model %s: generation %llu is ready: %s %s, %u tensors, %llu bytes in %u "
		 "allocations, %.3f s (%.2f GB/s by %s)",
		g->model, (unsigned long long)g->id, e->architecture, e->format, e->n_tensors,
		(unsigned long long)e->weights_bytes, e->n_allocs, (double)r->load_ns / 1e9,
		(double)e->weights_bytes / (double)r->load_ns, how);
}

static void service_on_ready(
	struct service *s, struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;
	char model[REGISTRY_NAME_MAX + 1];

	snprintf(model, sizeof(model), "%s", g->model);
	data->export = r->export;
	data->loaded_bytes = r->export->weights_bytes;
	data->load_ns = service_now_ns() - data->started_ns;
	if (g->state != REGISTRY_LOADING) {
		struct err err = ERR_NULL;
		int code = err_set(
			&err, ECANCELED, "model %s: it was unloaded while it loaded", model);
		service_answer_load(s, g->id, data, code, &err);
		registry_loaded(s->registry, g->id);
		service_collect(s);
		return;
	}
	service_log_ready(s, g, r);
	registry_loaded(s->registry, g->id);
	service_answer_load(s, g->id, data, 0, NULL);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_READY,
				.model = model,
				.generation = g->id,
				.loaded_bytes = data->loaded_bytes,
				.total_bytes = data->loaded_bytes});
	service_wake(s, model, 0, NULL);
	service_collect(s);
}

static void service_on_progress(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;

	data->loaded_bytes = r->loaded_bytes;
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_PROGRESS,
				.model = g->model,
				.generation = g->id,
				.loaded_bytes = r->loaded_bytes,
				.total_bytes = r->total_bytes});
}

void service_dispatch(struct service *s)
{
	struct loader_result r;

	while (loader_take_result(s->loader, &r)) {
		/* A progress may come behind the end that it was on the way to. */
		struct registry_generation *g = registry_find(s->registry, r.generation);
		if (!g || !g->is_filling)
			continue;
		switch (r.kind) {
		case LOADER_PROGRESS: service_on_progress(s, g, &r); break;
		case LOADER_READY: service_on_ready(s, g, &r); break;
		case LOADER_FAILED:
		case LOADER_LOST: service_on_failed(s, g, &r); break;
		}
	}
}

/* ---- peers ---- */

void service_close(struct service *s, struct peer *p, uint64_t holder)
{
	struct service_wait *w = TAILQ_FIRST(&s->waits);

	while (w) {
		struct service_wait *next = TAILQ_NEXT(w, entry);
		if (w->peer == p->id)
			service_drop_wait(s, w);
		w = next;
	}
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
	registry_close(s->registry, p->id, holder);
	service_collect(s);
}

void service_exit(struct service *s, uint64_t holder)
{
	registry_exit(s->registry, holder);
	service_collect(s);
}
