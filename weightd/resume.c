/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/resume.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/fdlist.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/export.h"
#include "weightd/holders.h"
#include "weightd/peer.h"
#include "weightd/quota.h"
#include "weightd/registry.h"
#include "weightd/restart.h"
#include "weightd/rpc-reply.h"
#include "weightd/service-internal.h"
#include "weightd/shown.h"

/* The manifest of any of its devices: which one it was for does not matter to the lease. */
static bool resume_has_manifest(const struct service *s, const struct registry_generation *g,
	const struct resume_params *params)
{
	const struct service_generation *data = g->data;
	struct stat st;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++) {
		const struct export *e = data->residencies[i].export;
		const struct service_remnant *remnant = &data->residencies[i].remnant;
		if (remnant->manifest_inode && remnant->manifest_inode == params->manifest_inode)
			return true;
		if (e && fstat(e->manifest_fd, &st) == 0 && st.st_ino == params->manifest_inode)
			return true;
	}
	return false;
}

void resume_tell_replaced(struct service *s, struct peer *p, uint64_t generation)
{
	const char *model = registry_find(s->registry, generation)->model;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		if (g->id > generation && g->state == REGISTRY_READY && !strcmp(g->model, model))
			rpc_reply_event(p, &(struct rpc_reply_event){.kind = RPC_REPLY_REPLACED,
						   .model = g->model,
						   .generation = g->id,
						   .export = service_get_export(s, g->data)});
	}
}

/* What it missed, or what nobody could tell anybody: as if it happened now. */
static void resume_tell_lost(struct service *s, struct peer *p, uint64_t generation)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	const struct service_generation *data = g->data;
	struct rpc_reply_event event = {.kind = RPC_REPLY_CORRUPT,
		.model = g->model,
		.generation = generation,
		.text = data->lost_why ? data->lost_why : "it was lost"};

	if (g->state != REGISTRY_LOST)
		return;
	event.since_ns = clock_now_ns() - data->clean_ns;
	if (data->is_corrupt)
		rpc_reply_event(p, &event);
	event.kind = RPC_REPLY_LOST;
	event.since_ns = 0;
	rpc_reply_event(p, &event);
}

/* In the words of registry_resume, whatever it is that is missing: who may not have a generation
 * does not learn whether there is one. */
static int resume_refuse(uint64_t generation, struct err *ret_err)
{
	return err_set(ret_err, ENOENT, "generation %llu is not to be had back",
		(unsigned long long)generation);
}

/* It is there, or was never on its way. */
static int resume_lease(
	struct service *s, struct peer *p, const struct resume_params *params, struct err *ret_err)
{
	const struct registry_generation *g = registry_find(s->registry, params->generation);

	if (g && (strcmp(g->model, params->model) || !resume_has_manifest(s, g, params)))
		return resume_refuse(params->generation, ret_err);
	int rc = g ? quota_check_lease(s->registry, s->params->peers, s->params->holders,
			     s->prefixes, p, params->generation, acquire_get_bytes, ret_err)
		   : 0;
	if (rc == 0)
		rc = registry_resume(s->registry, params->generation, p->id,
			holders_find(s->params->holders, p), clock_now_ns(), ret_err);
	if (rc < 0)
		return rc;
	(void)restart_on_return(s->restart, p, params->generation);
	restart_save(s->restart);
	rpc_reply_resumed(p, params->request, params->generation,
		service_get_export(s, registry_find(s->registry, params->generation)->data));
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_ATTACHED,
				.model = params->model,
				.generation = params->generation,
				.pid = p->pid});
	resume_tell_lost(s, p, params->generation);
	resume_tell_replaced(s, p, params->generation);
	return 0;
}

static int resume_take(struct service *s, const struct resume_params *params, struct fdlist *fds,
	struct err *ret_err)
{
	struct stash_name name = {
		.kind = STASH_MANIFEST, .generation = params->generation, .index = params->first};
	uint32_t at = 0;
	int rc = 0;

	if (!restart_find_slot(s->restart, params->generation, params->device_uuid,
		    params->driver_uuid, &name.slot))
		return err_set(ret_err, ENODEV, "generation %llu was not there for this device",
			(unsigned long long)params->generation);
	if (params->has_manifest)
		rc = restart_give(s->restart, &name, fdlist_take(fds, at++), ret_err);
	name.kind = STASH_ALLOC;
	for (; at < fds->n && rc == 0; at++, name.index++)
		rc = restart_give(s->restart, &name, fdlist_take(fds, at), ret_err);
	return rc;
}

/* It had a lease on the generation, of this weightd or of one before. */
static bool resume_is_known(
	const struct service *s, const struct peer *p, uint64_t holder, uint64_t generation)
{
	if (restart_is_holder(s->restart, p, generation))
		return true;
	for (uint32_t i = 0; i < registry_count_leases(s->registry) && holder; i++) {
		const struct registry_lease *l = registry_lease_at(s->registry, i);
		if (l->is_hold && l->peer == holder && l->generation == generation)
			return true;
	}
	return false;
}

/* Its memory is there, whatever becomes of the lease. */
static int resume_grant(
	struct service *s, struct peer *p, const struct resume_params *params, struct err *ret_err)
{
	uint64_t holder = holders_find(s->params->holders, p);
	const struct admission_params grant = {.device_uuid = params->device_uuid,
		.model = params->model,
		.n_bytes = params->n_reserved_bytes};

	return admission_resume(
		s, p, holder, resume_is_known(s, p, holder, params->generation), &grant, ret_err);
}

int resume_handle(struct service *s, struct peer *p, const struct resume_params *params,
	struct fdlist *fds, struct err *ret_err)
{
	enum restart_where where = restart_find(s->restart, params->generation);
	int rc = shown_check(s->registry, p, params->model, ret_err);

	if (rc == 0)
		rc = resume_grant(s, p, params, ret_err);
	if (rc < 0)
		return rc;
	/* What comes too late is closed with the packet. The last of several is answered. */
	if (where == RESTART_NOWHERE)
		return params->more ? 0 : resume_lease(s, p, params, ret_err);
	/* The leases of those that had it are all that waits: others ask again when it is there. */
	if (!restart_is_holder(s->restart, p, params->generation) ||
		!restart_is_of_model(s->restart, params->generation, params->model))
		return resume_refuse(params->generation, ret_err);
	if (where == RESTART_LACKING && fds->n == 0) {
		rpc_reply_wants_descriptors(p, params->request, params->generation);
		return 0;
	}
	rc = service_check_pending(p, ret_err);
	if (rc == 0 && where == RESTART_LACKING)
		rc = resume_take(s, params, fds, ret_err);
	if (rc < 0 || params->more)
		return rc;
	rc = restart_await(s->restart, p, params->request, params->generation);
	if (rc < 0)
		err_set(ret_err, -rc, "Resume: out of memory");
	return rc;
}
