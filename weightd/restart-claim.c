/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line wants of a model that is on its way back. */
#include "weightd/restart.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/restart-internal.h"
#include "weightd/service-internal.h"

bool restart_claim(struct restart *r, const char *name, const char *path, int fd)
{
	struct restart_generation *g;

	TAILQ_FOREACH(g, &r->coming, entry)
	if (!g->has_claim && restart_may_serve(g) && !strcmp(g->adopt->record.model, name) &&
		!restart_must_follow(r, g))
		break;
	if (!g)
		return false;
	/* The same file is open once. */
	int *at = adopt_is_same_file(g->adopt, fd) ? &g->adopt->file_fd : &g->claim_fd;
	if (*at < 0)
		*at = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	g->claim_path = strdup(path);
	g->has_claim = *at >= 0 && g->claim_path;
	if (!g->has_claim) {
		cleanup_close(&g->claim_fd);
		free(g->claim_path);
		g->claim_path = NULL;
		return false;
	}
	return true;
}

bool restart_settle_claim(struct restart *r, struct restart_generation *g, bool is_there)
{
	const struct service_params *params = r->service->params;
	const char *model = g->adopt->record.model;
	struct err err = ERR_NULL;
	int rc;

	if (!g->has_claim)
		return false;
	if (is_there && g->claim_fd < 0) {
		params->own_fn(0, NULL, params->userdata);
		return true;
	}
	if (!restart_may_serve(g)) { /* by now: it is not wanted any more */
		rc = err_set(&err, ECANCELED, "model %s: it was unloaded on its way back", model);
		params->own_fn(rc, &err, params->userdata);
		return true;
	}
	/* In place of what came back, or of what did not. */
	rc = service_load(r->service, NULL, 0, model, g->claim_path,
		g->claim_fd >= 0 ? g->claim_fd : g->adopt->file_fd, true, &err);
	if (rc < 0)
		params->own_fn(rc, &err, params->userdata);
	return true;
}
