/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/restart-internal.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/clock.h"
#include "proto/util/log.h"
#include "weightd/admission.h"
#include "weightd/registry.h"
#include "weightd/service-internal.h"

/* The id under which the process is watched from here on; 0: it is gone, or nothing can tell. */
static uint64_t recall_watch(const struct restart *r, const struct state_holder *h)
{
	const struct service_params *params = r->service->params;

	if (h->pid == 0 || !params->hold_fn)
		return 0;
	return params->hold_fn(h->pid, h->uid, h->start_ticks, h->socket, params->userdata);
}

void restart_recall_grants(struct restart *r)
{
	for (uint32_t i = r->n_absent; i > 0; i--) {
		struct state_holder *h = &r->absent[i - 1];
		uint64_t holder = h->n_grants > 0 ? recall_watch(r, h) : 0;
		for (uint32_t k = 0; k < h->n_grants && holder; k++)
			admission_recall(r->service, holder, h->pid, h->grants[k].device_uuid,
				h->grants[k].n_bytes, h->grants[k].model);
		/* They are the account's, and on record from there. */
		h->n_grants = 0;
		if (h->n_generations == 0)
			restart_drop_absent(r, i - 1);
	}
}

/* Of the absent process at the index; it stays among them. False: it could not be made a holder. */
static bool recall_hold(struct restart *r, uint32_t index, uint64_t generation, const char *why)
{
	const struct state_holder *h = &r->absent[index];
	uint64_t holder = recall_watch(r, h);
	int rc = -ESRCH;

	if (holder)
		rc = registry_adopt_hold(r->service->registry, generation, holder, clock_now_ns());
	if (rc == 0)
		log_info("pid %d %s and may still have generation %" PRIu64, (int)h->pid, why,
			generation);
	return rc == 0 || rc == -ENOENT; /* there is nothing left of it that anybody could hold */
}

void restart_recall_holds(struct restart *r, uint64_t generation)
{
	for (uint32_t i = r->n_absent; i > 0; i--) {
		if (!r->absent[i - 1].is_hold || !restart_has_held(&r->absent[i - 1], generation))
			continue;
		(void)recall_hold(r, i - 1, generation, "held it before");
		restart_drop_absent_generation(r, i - 1, generation);
	}
}

void restart_recall_leases(struct restart *r)
{
	for (uint32_t i = r->n_absent; i > 0; i--) {
		struct state_holder *h = &r->absent[i - 1];
		uint32_t n_left = 0;

		/* From here on the registry knows who has what, and when he lets go. Of who cannot
		 * be seen nothing will ever tell. */
		for (uint32_t k = 0; k < h->n_generations && h->pid; k++) {
			uint64_t id = h->generations[k];
			if (!recall_hold(r, i - 1, id, "did not come back"))
				h->generations[n_left++] = id;
		}
		h->n_generations = n_left;
		if (n_left == 0)
			restart_drop_absent(r, i - 1);
	}
}
