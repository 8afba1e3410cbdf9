/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/shown.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/access.h"
#include "weightd/peer.h"
#include "weightd/registry.h"

static bool shown_can_be_had(const struct registry_generation *g)
{
	return g->state == REGISTRY_READY || g->state == REGISTRY_LOADING ||
	       g->state == REGISTRY_WARM;
}

/* Is it the first generation of its model that can be had? A name is said once. */
static bool shown_is_first(struct registry *r, uint32_t index)
{
	const struct registry_generation *g = registry_at(r, index);

	if (!shown_can_be_had(g))
		return false;
	for (uint32_t i = 0; i < index; i++) {
		const struct registry_generation *other = registry_at(r, i);
		if (shown_can_be_had(other) && !strcmp(other->model, g->model))
			return false;
	}
	return true;
}

int shown_refuse(
	struct registry *r, const struct peer *p, const char *model, int code, struct err *ret_err)
{
	char names[ERR_TEXT_BYTES] = "";
	size_t n = 0;

	if (code != -ENOENT || !access_hides(p->access))
		return code;
	for (uint32_t i = 0; i < registry_count(r) && n < sizeof(names); i++)
		if (shown_is_first(r, i) && access_shows(p->access, registry_at(r, i)->model))
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "",
				registry_at(r, i)->model);
	return err_set(ret_err, ENOENT, "no model %.64s on this socket: it has %s", model,
		n ? names : "none");
}

int shown_check(struct registry *r, const struct peer *p, const char *model, struct err *ret_err)
{
	return access_shows(p->access, model) ? 0 : shown_refuse(r, p, model, -ENOENT, ret_err);
}

bool shown_holder(const struct peer *p, uint64_t holder)
{
	return !p->access || p->access->is_owner ||
	       peer_get_socket(p->id) == peer_get_socket(holder);
}

bool shown_peer(const struct peer *p, const struct peer *other)
{
	return shown_holder(p, other->id);
}

bool shown_pids(const struct peer *p)
{
	return !p->access || p->access->has_control;
}

bool shown_event(const struct peer *p, const char *model, int32_t pid)
{
	if (pid && !shown_pids(p))
		return false;
	return !model || access_shows(p->access, model);
}
