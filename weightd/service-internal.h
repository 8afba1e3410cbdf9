/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SERVICE_INTERNAL_H
#define WEIGHTD_SERVICE_INTERNAL_H

/* The service, for weightd/service, weightd/acquire, weightd/outcome, weightd/verify and
 * weightd/corrupt alone. Loop thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "weightd/export.h"
#include "weightd/registry.h"
#include "weightd/rpc-reply.h"
#include "weightd/service.h"

/* An Acquire whose model is loading, or its memory on the peer's device. */
struct service_wait {
	uint64_t peer;
	uint64_t request;
	char model[REGISTRY_NAME_MAX + 1];
	uint32_t slot; /* of service_generation.residencies */
	struct export_importer importer;
	bool has_no_copy; /* the one that it waited for failed: there was no room */
	bool is_due;      /* something has changed: it is to be tried again */
	TAILQ_ENTRY(service_wait) entry;
};

struct account;
struct prefixes;
struct verify;

/* A device's account and where it belongs. */
struct service_room {
	struct service *service;
	uint32_t slot;
	struct account *account;
};

struct service {
	const struct service_params *params;
	struct registry *registry;
	struct restart *restart; /* params' */
	uint64_t start_ns;
	bool has_told_refusal;
	TAILQ_HEAD(, service_wait) waits;
	struct prefixes *prefixes;                      /* weightd/publish's */
	struct service_room rooms[SERVICE_MAX_DEVICES]; /* weightd/admission's */
	int batons[SERVICE_MAX_DEVICES];                /* weightd/batons's; -1: nobody has asked */
	TAILQ_HEAD(, verify) verifies;                  /* weightd/verify */
	uint64_t last_verify;
};

/* One that knows the generation's identity, else any; NULL: it has none. Constant as exports are.
 */
const struct export *service_get_export(
	const struct service *s, const struct service_generation *data);

/* To every watcher. */
void service_tell(struct service *s, const struct rpc_reply_event *event);

/* To the workers that have a lease on the generation. */
void service_tell_holders(
	struct service *s, uint64_t generation, const struct rpc_reply_event *event);

/* Each export of generation id back to the loader that made it. The bytes of devices that this
 * gives back. */
uint64_t service_release_exports(struct service *s, uint64_t id, struct service_generation *data);

/* What the last change freed goes to the loaders; the watchers are told, and who waits for it
 * tries again. */
void service_collect(struct service *s);

/* Its exports are released, or nobody's any more. */
void service_free_generation(struct service_generation *g);

/* The generation is lost, for the reason; log, watchers, who waits for it. It may be gone
 * afterwards. */
void service_lose(struct service *s, uint64_t id, const char *why);

/* Does it load for another device, or is it copied, for somebody who has no lease before that? */
bool service_is_awaited(const struct service *s, const struct registry_generation *g);

/* -EIO, in the words of registry_acquire, where the generation is not there to say it. */
int must_check service_say_lost(const char *model, struct err *ret_err);

/* A new generation of the model, in new memory, of the file that this one has open. Errors of
 * service_load. */
int must_check service_reload(
	struct service *s, const struct registry_generation *g, struct err *ret_err);

/* The same of what this one has in its memfd, whatever became of the file. Errors of
 * source_recover too. */
int must_check service_recover(
	struct service *s, const struct registry_generation *g, struct err *ret_err);

/* -EAGAIN when the peer waits for too much. */
int must_check service_check_pending(const struct peer *p, struct err *ret_err);

#endif
