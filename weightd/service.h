/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SERVICE_H
#define WEIGHTD_SERVICE_H

/*
 * What weightd does, without sockets: models come, are leased, go. It joins the registry (what may
 * happen), the loader (what happens to memory) and the answers that peers wait for. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/peer.h"

struct err;
struct loader;
struct registry;
struct service;

enum { SERVICE_MAX_PATH_BYTES = 1024 };

/* A generation's data in the registry. */
struct service_generation {
	char *path; /* where the requester found the file; for people */
	uint64_t file_bytes;
	uint64_t loaded_bytes;
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uint64_t load_ns;    /* request to ready; 0 before */
	uint64_t peer;       /* who waits for Done; 0: nobody, or weightd itself */
	uint64_t request;
	bool is_own;           /* of the command line */
	struct export *export; /* NULL before ready */
};

/* A load of the command line has ended: code 0, or < 0 with the sentence. */
typedef void (*service_own_fn)(int code, const struct err *err, void *userdata);

/* Both borrowed while the service lives. */
int must_check service_new(struct loader *loader, const struct peer_list *peers,
	service_own_fn own_fn, void *userdata, struct service **ret_service);

/* The exports stay the loader's. Accepts NULL; returns NULL. */
struct service *service_free(struct service *s);

struct registry *service_get_registry(const struct service *s);
struct loader *service_get_loader(const struct service *s);
const struct peer_list *service_get_peers(const struct service *s);
uint64_t service_get_uptime_ns(const struct service *s);
uint64_t service_now_ns(void);

/*
 * Begins a load; the answer (Done or Error with `request`) goes to the peer when it has ended.
 * p NULL: weightd's own. Takes fd on success. Errors of registry_load and loader_load; -EAGAIN when
 * the peer waits for too much.
 */
int must_check service_load(struct service *s, struct peer *p, uint64_t request, const char *name,
	const char *path, int fd, bool replace, struct err *ret_err);

/*
 * Begins a lease; the answer (Acquired or Error) goes to the peer at once or when the model has
 * loaded. The uuids are the peer's device's, 16 bytes each: -ENODEV with both when they are not
 * weightd's. Errors of registry_acquire; -EAGAIN.
 */
int must_check service_acquire(struct service *s, struct peer *p, uint64_t request,
	const char *name, const uint8_t *device_uuid, const uint8_t *driver_uuid,
	struct err *ret_err);

/* Errors of registry_unload. ret_id: the newest generation that it met. */
int must_check service_unload(
	struct service *s, const char *name, struct err *ret_err, uint64_t *ret_id);

/* The peer is about to be freed. holder as for registry_close. */
void service_close(struct service *s, struct peer *p, uint64_t holder);

/* The process behind the holder's id is gone. */
void service_exit(struct service *s, uint64_t holder);

/* The loader has results. */
void service_dispatch(struct service *s);

#endif
