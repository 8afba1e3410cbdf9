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
struct export;
struct holders;
struct loader;
struct policy;
struct registry;
struct restart;
struct service;
struct source;
struct source_account;

enum { SERVICE_MAX_PATH_BYTES = 1024, SERVICE_MAX_DEVICES = 16 };

#define SERVICE_NO_TIMEOUT UINT64_MAX

/* What a generation that did not survive an earlier weightd had, and processes still have. */
struct service_remnant {
	uint64_t n_device_bytes;
	uint64_t manifest_inode; /* 0: it had nothing here */
};

/* A generation's memory for one device. */
struct service_residency {
	struct export *export; /* NULL: not there */
	struct service_remnant remnant;
	bool is_loading;    /* on demand; the first load is the registry's matter */
	bool is_copying;    /* windows of the file, for importers that do not take them */
	uint32_t copy_from; /* the first window that is copied */
};

/* What people are told of a generation, from when it is ready on: warm, it has no export. */
struct service_summary {
	char architecture[64]; /* "": it was never ready */
	char format[16];
	uint64_t n_parameters;
	uint32_t n_tensors;
};

/* A generation's data in the registry. */
struct service_generation {
	char *path; /* where the requester found the file; for people */
	uint64_t file_bytes;
	uint64_t loaded_bytes;
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	uint64_t load_ns;    /* request to ready; 0 before */
	uint64_t waits_for;  /* its load begins when this generation is gone; 0: it has begun */
	uint64_t expel_ns;   /* CLOCK_MONOTONIC: its leases end then; 0: by themselves */
	bool is_heating;     /* it loads, and was warm before */
	bool is_second_heat; /* the device was lost at the first */
	bool is_cooling;     /* ready, and the loader stages it */
	bool may_not_cool;   /* its file is not what it was */
	bool has_displaced;  /* what it replaces has left, or drains, for it */
	struct service_summary summary;
	char *lost_why;         /* when it is lost; NULL: without memory for it */
	bool is_corrupt;        /* its bytes were changed, later than: */
	uint64_t clean_ns;      /* CLOCK_MONOTONIC */
	uint64_t n_memfd_bytes; /* of a remnant: in host memory, that its processes still have */
	uint64_t peer;          /* who waits for Done; 0: nobody, or weightd itself */
	uint64_t request;
	bool is_own;           /* of the command line */
	bool is_adopted;       /* from an earlier weightd: nothing was read for it */
	struct source *source; /* a reference */
	/* By index of the loader; [n_loaders]: for devices that are not weightd's. The first is
	 * there when the generation is ready, the others when somebody asked for them. */
	struct service_residency residencies[SERVICE_MAX_DEVICES + 1];
};

/* A load of the command line has ended: code 0, or < 0 with the sentence. */
typedef void (*service_own_fn)(int code, const struct err *err, void *userdata);

/* socket: peer_get_socket. Watches a process for service_exit, under the id that is returned; 0: it
 * is gone or cannot be. */
typedef uint64_t (*service_hold_fn)(
	int32_t pid, uint32_t uid, uint64_t start_ticks, uint32_t socket, void *userdata);

/* All borrowed while the service lives. */
struct service_params {
	struct loader *const *loaders; /* [n_loaders], at least one; the first is the default */
	uint32_t n_loaders;
	const struct peer_list *peers;
	struct holders *holders;
	uint64_t idle_ns;        /* unused that long a generation becomes warm; 0: never */
	uint64_t idle_unload_ns; /* and that long it goes; 0: never */
	struct source_account *account;
	const struct policy *policy;
	const char *const *pin_writable; /* [n_pin_writable] models whose file may leave writable */
	uint32_t n_pin_writable;
	service_own_fn own_fn; /* may be NULL */
	service_hold_fn hold_fn;
	struct restart *restart; /* may be NULL */
	void *userdata;
};

int must_check service_new(const struct service_params *params, struct service **ret_service);

/* The exports stay the loader's. Accepts NULL; returns NULL. */
struct service *service_free(struct service *s);

struct registry *service_get_registry(const struct service *s);
const struct service_params *service_get_params(const struct service *s);
uint32_t service_get_foreign_slot(const struct service *s); /* of residencies */
uint64_t service_get_uptime_ns(const struct service *s);

/*
 * Begins a load; the answer (Done or Error with `request`) goes to the peer when it has ended.
 * p NULL: weightd's own. fd is borrowed. Errors of registry_load and loader_load; -EAGAIN when the
 * peer waits for too much.
 */
int must_check service_load(struct service *s, struct peer *p, uint64_t request, const char *name,
	const char *path, int fd, bool replace, struct err *ret_err);

/*
 * Begins the load of a generation again, in place of another that had left for it when the weightd
 * before ended; nobody waits for its answer. As service_load.
 */
int must_check service_load_again(struct service *s, const char *name, const char *path, int fd,
	bool is_pinned, struct err *ret_err);

/* Errors of registry_unload. timeout_ns: leases that have not drained by then end; 0: at once;
 * SERVICE_NO_TIMEOUT: never. ret_id: the newest generation that it met. */
int must_check service_unload(struct service *s, const char *name, uint64_t timeout_ns,
	struct err *ret_err, uint64_t *ret_id);

/* Does weightd have to know when the peer's process is gone? */
bool service_has_claims(const struct service *s, const struct peer *p);

/* The peer is about to be freed. holder as for registry_close. */
void service_close(struct service *s, struct peer *p, uint64_t holder);

/* The process behind the holder's id is gone. */
void service_exit(struct service *s, uint64_t holder);

/*
 * Generations that need the model file as it was are lost when it is not: it was cut, or somebody
 * wrote to it. To be called now and then; service_check_file for one of them: true when it was lost
 * just now.
 */
void service_check_files(struct service *s);
bool service_check_file(struct service *s, uint64_t id);

/* Ends what waits too long for memory. To be called every second or so. */
void service_tick(struct service *s);

#endif
