/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/leave.h"

#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/holders.h"
#include "weightd/restart.h"
#include "weightd/service-internal.h"

static void leave_tell_detached(struct service *s, const struct peer *p, uint64_t generation)
{
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_DETACHED,
				.model = registry_find(s->registry, generation)->model,
				.generation = generation,
				.pid = p->pid});
}

int leave_release(struct service *s, struct peer *p, uint64_t generation, struct err *ret_err)
{
	struct err err = ERR_NULL;

	peer_end_loans(p);
	bool had_lease = registry_has_lease(s->registry, generation, p->id);
	/* Of a lease that it had of the weightd before, and nobody has here yet. */
	bool was_absent = restart_on_return(s->restart, p, generation);
	int rc = registry_release(s->registry, generation, p->id,
		holders_find(s->params->holders, p), clock_now_ns(), &err);

	if (rc < 0 && !was_absent) {
		*ret_err = err;
		return rc;
	}
	if (had_lease)
		leave_tell_detached(s, p, generation);
	service_collect(s);
	return 0;
}

uint64_t leave_get_end(uint64_t timeout_ns)
{
	uint64_t end;

	return __builtin_add_overflow(clock_now_ns(), timeout_ns, &end) ? 0 : end;
}

void leave_set_timeout(struct service *s, const char *model, uint64_t timeout_ns)
{
	uint64_t end = leave_get_end(timeout_ns);

	if (!end)
		return;
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		if (g->state == REGISTRY_DRAINING && !strcmp(g->model, model))
			((struct service_generation *)g->data)->expel_ns = end;
	}
}

static void leave_expel(struct service *s, uint64_t generation, struct peer *p)
{
	const struct registry_generation *g = registry_find(s->registry, generation);

	peer_end_loans(p);
	leave_tell_detached(s, p, generation);
	rpc_reply_event(p, &(struct rpc_reply_event){.kind = RPC_REPLY_EXPELLED,
				   .model = g->model,
				   .generation = generation,
				   .text = "the model was unloaded and did not drain in time"});
	/* 0, where nothing can tell of the process: then there is nothing to wait for. */
	registry_expel(
		s->registry, generation, p->id, holders_add(s->params->holders, p), clock_now_ns());
}

/* The next generation behind `after` whose time has come; 0: none. */
static uint64_t leave_find(struct service *s, uint64_t after, uint64_t now_ns)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		const struct service_generation *data = g->data;
		if (g->id > after && g->state == REGISTRY_DRAINING && g->n_leases > 0 &&
			data->expel_ns && data->expel_ns <= now_ns)
			return g->id;
	}
	return 0;
}

void leave_check(struct service *s)
{
	uint64_t id = 0;

	/* The time stays: a worker that could not be reached may come back for its lease. */
	while ((id = leave_find(s, id, clock_now_ns()))) {
		const struct registry_generation *g = registry_find(s->registry, id);
		struct peer *p;

		log_warn("model %s: generation %llu has not drained in time: %u leases end",
			g->model, (unsigned long long)id, g->n_leases);
		TAILQ_FOREACH(p, s->params->peers, entry)
		if (registry_has_lease(s->registry, id, p->id))
			leave_expel(s, id, p);
		service_collect(s);
	}
}
