/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/idle.h"

#include <errno.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/loader.h"
#include "weightd/service-internal.h"
#include "weightd/source.h"

/* The exports go; what is staged, or the file, stays. */
static void idle_cool(struct service *s, uint64_t id, const char *where)
{
	struct registry_generation *g;

	/* Somebody took a lease while it was staged. What is staged stays for the next time. */
	if (!registry_cool(s->registry, id))
		return;
	g = registry_find(s->registry, id);
	struct service_generation *data = g->data;
	uint64_t n_bytes = service_release_exports(s, id, data);
	g = registry_find(s->registry, id); /* others may have gone for who waits: it may move */
	log_info("model %s: generation %llu is warm: unused for %.1f s, %llu bytes of devices are "
		 "free, it is ready in %s",
		g->model, (unsigned long long)id, (double)(clock_now_ns() - g->used_ns) / 1e9,
		(unsigned long long)n_bytes, where);
}

static void idle_begin(struct service *s, struct registry_generation *g)
{
	struct service_generation *data = g->data;
	struct err err = ERR_NULL;
	const struct loader_request request = {.goal = LOAD_COOL,
		.generation = g->id,
		.source = data->source,
		.is_foreign = true,
		.room_bytes = UINT64_MAX};

	/* Full of loads: there is another second. */
	if (loader_ask(s->params->loaders[0], &request, &err) == 0)
		data->is_cooling = true;
}

void idle_finish(struct service *s, struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;

	data->is_cooling = false;
	if (r->kind == LOADER_COOL) {
		idle_cool(s, g->id, "host memory");
		return;
	}
	if (r->code == -ECANCELED)
		return;
	if (r->code == -ENOSPC || r->code == -ENOMEM) {
		log_info("model %s: generation %llu: %s: its file's page cache has to do", g->model,
			(unsigned long long)g->id, r->err.text);
		idle_cool(s, g->id, "its file");
		return;
	}
	/* Its file is another now, or cannot be read: what the device has is all there is. */
	data->may_not_cool = true;
	log_warn("model %s: generation %llu stays on its device: %s", g->model,
		(unsigned long long)g->id, r->err.text);
}

static bool idle_is_over(const struct registry_generation *g, uint64_t limit_ns)
{
	return limit_ns > 0 && clock_now_ns() - g->used_ns >= limit_ns;
}

/* One that is to go; 0: none. */
static uint64_t idle_find_end(struct service *s)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		bool may_go = registry_is_idle(g) || (g->state == REGISTRY_WARM && !g->is_pinned);
		may_go = may_go && !service_is_awaited(s, g);
		if (may_go && idle_is_over(g, s->params->idle_unload_ns))
			return g->id;
	}
	return 0;
}

void idle_check(struct service *s)
{
	uint64_t id;

	while ((id = idle_find_end(s))) {
		const struct registry_generation *g = registry_find(s->registry, id);
		log_info("model %s: generation %llu is unloaded: unused for %.1f s", g->model,
			(unsigned long long)id, (double)(clock_now_ns() - g->used_ns) / 1e9);
		registry_retire(s->registry, id);
		service_collect(s);
	}
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		struct registry_generation *g = registry_at(s->registry, i);
		const struct service_generation *data = g->data;
		if (registry_is_idle(g) && idle_is_over(g, s->params->idle_ns) &&
			!data->is_cooling && !data->may_not_cool && !service_is_awaited(s, g))
			idle_begin(s, g);
	}
}
