/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WEIGHTS_CLIENT_H
#define PROTO_WEIGHTS_CLIENT_H

/*
 * The client of weightd's socket: workerd's, weightctl's and anybody's. Blocking calls on one
 * connection, plain C structs out; a client belongs to one thread at a time. Every string and array
 * a call returns belongs to its result, whose _fini frees it.
 *
 * Errors of every call: -EPROTO, -EBADMSG (the peer broke the protocol), -ECONNRESET (weightd
 * went), -ETIMEDOUT, or the code of weightd's refusal; ret_err has the sentence for the user. After
 * any of these but a refusal the client is good for weights_client_free only.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct weights_client;

enum weights_client_role { WEIGHTS_CLIENT_WORKER = 1, WEIGHTS_CLIENT_CONTROL = 2 };

struct weights_client_heap {
	uint64_t n_bytes;
	bool device_local;
	uint64_t weights_bytes;
	uint64_t budget_bytes; /* 0: the driver does not say */
	uint64_t usage_bytes;
};

/* weightd's own account of a device; see Account in weightd.proto. */
struct weights_client_account {
	uint64_t budget_bytes;
	uint64_t weights_bytes;
	uint64_t reserved_bytes;
	uint32_t n_waiting;
};

enum { WEIGHTS_CLIENT_MAX_ABILITIES = 32 };

/* One question of weightd's probe and its answer. */
struct weights_client_ability {
	char kind[32];
	bool ok;
	char reason[256]; /* the driver's error when not ok */
};

struct weights_client_device {
	uint8_t uuid[16];
	uint8_t driver_uuid[16];
	char name[256];
	bool software;
	uint32_t n_heaps;
	struct weights_client_heap heaps[16];
	bool has_account; /* in a status's devices */
	struct weights_client_account account;
	uint32_t n_abilities; /* 0 before the probe has run */
	struct weights_client_ability abilities[WEIGHTS_CLIENT_MAX_ABILITIES];
};

enum weights_client_handle {
	WEIGHTS_CLIENT_OPAQUE_FD = 1,
	WEIGHTS_CLIENT_MEMFD = 2,
	WEIGHTS_CLIENT_FILE = 3,
	WEIGHTS_CLIENT_DMA_BUF = 4,
	WEIGHTS_CLIENT_N_HANDLES, /* beyond each of them */
};

/* Windows of memfds and files start and end at multiples of this, and of the kernel's pages where
 * those are larger; only a file's last may end behind its end, inside its last page. */
enum { WEIGHTS_CLIENT_PAGE_BYTES = 4096 };

/* What an importer must repeat to Vulkan; see Allocation in weightd.proto. */
struct weights_client_alloc {
	uint32_t index;
	uint64_t n_bytes;
	uint64_t buffer_bytes;
	uint32_t handle_type; /* enum weights_client_handle */
	uint32_t memory_type_index;
	bool dedicated;
	uint32_t placement; /* enum manifest_placement */
	uint64_t inode;
	uint64_t dev;
	uint64_t file_offset; /* memfd and file: where the window starts, a page boundary */
	bool writable;        /* memfd and file: the mapping is to be read-write */
	uint32_t device;      /* in a status: 1 + index in its devices; 0: of none of them */
	int fd;               /* owned by the holder of this struct until taken; -1 in status */
};

/* What a generation holds; see Acquired in weightd.proto. */
struct weights_client_contents {
	bool has_identity;
	bool has_file;
	uint8_t identity[32];
	uint8_t file[32]; /* the file identity */
};

/* Known to be the same: nobody can tell by the weights which of the two computes. */
bool weights_client_has_same_contents(
	const struct weights_client_contents *a, const struct weights_client_contents *b);

/* A lease's worth of a generation. */
struct weights_client_acquired {
	uint64_t generation;
	struct weights_client_contents contents;
	int manifest_fd;
	uint32_t n_allocs;
	struct weights_client_alloc *allocs;
};

void weights_client_acquired_fini(struct weights_client_acquired *a);

struct weights_client_generation {
	uint64_t id;
	const char *state; /* "loading", "ready", "warm", "draining", "held", "lost" */
	char *origin;
	char *path;
	char *architecture;
	char *format;
	uint64_t n_parameters;
	uint64_t file_bytes;
	uint64_t weights_bytes;
	uint64_t manifest_bytes;
	uint64_t loaded_bytes;
	uint64_t load_ns;
	uint32_t n_leases;
	uint32_t n_tensors;
	uint64_t unmet_bytes; /* paged for want of a better placement */
	uint64_t paged_bytes; /* in the file, read by every worker for itself; not in weights_bytes
			       */
	uint32_t residency;   /* bit d: for weights_client_alloc.device d */
	uint8_t identity[32]; /* of the contents */
	bool has_identity;
	uint64_t verified_ns; /* see Generation.verified_ns */
	bool pinned;
	uint64_t idle_ns; /* since the last lease ended; 0 while there is one */
	uint32_t n_holds; /* processes without a lease that may still have it imported */
	uint32_t n_allocs;
	struct weights_client_alloc *allocs;
};

struct weights_client_model {
	char *name;
	uint32_t n_generations;
	struct weights_client_generation *generations;
};

struct weights_client_lease {
	char *model;
	uint64_t generation;
	uint64_t age_ns;
};

struct weights_client_report {
	uint64_t kv_bytes;
	uint64_t scratch_bytes;
	uint64_t io_bytes;
	uint32_t n_sessions;
	uint64_t attach_ns;
	const char *socket; /* NULL in a status of a peer without a report */
};

struct weights_client_peer {
	int32_t pid;
	uint32_t uid;
	uint32_t gid;
	uint32_t role; /* enum weights_client_role, 0 before Hello */
	uint32_t n_leases;
	struct weights_client_lease *leases;
	struct weights_client_report report;
	bool has_report;
	uint64_t reserved_bytes; /* granted to it */
	bool is_gone; /* a process that holds without a lease: leases are what it holds */
};

struct weights_client_status {
	int32_t pid;
	char *build;
	uint64_t uptime_ns;
	struct weights_client_device device;
	uint32_t n_devices; /* all that weightd serves, device among them */
	struct weights_client_device *devices;
	uint32_t n_models;
	struct weights_client_model *models;
	uint32_t n_peers;
	struct weights_client_peer *peers;
};

void weights_client_status_fini(struct weights_client_status *s);

enum weights_client_event_kind {
	WEIGHTS_CLIENT_PROGRESS = 1,
	WEIGHTS_CLIENT_READY,
	WEIGHTS_CLIENT_FAILED,
	WEIGHTS_CLIENT_UNLOADED,
	WEIGHTS_CLIENT_ATTACHED,
	WEIGHTS_CLIENT_DETACHED,
	WEIGHTS_CLIENT_LOST, /* text says why */
	/* As LOST, to the worker that they concern without weights_client_watch: */
	WEIGHTS_CLIENT_PRESSURE,   /* others need memory: who is idle parks */
	WEIGHTS_CLIENT_REPLACED,   /* generation is newer, and ready */
	WEIGHTS_CLIENT_CORRUPT,    /* text names tensors; since_ns: how long it may be so */
	WEIGHTS_CLIENT_EXPELLED,   /* the lease has ended */
	WEIGHTS_CLIENT_IDENTIFIED, /* contents have an identity now */
	WEIGHTS_CLIENT_PREFIXES,   /* see proto/weights-prefix.h: what may be had has changed */
};

/* Strings are borrowed for the time of the callback. */
struct weights_client_event {
	enum weights_client_event_kind kind;
	const char *model;
	uint64_t generation;
	uint64_t loaded_bytes;
	uint64_t total_bytes;
	const char *text;
	int32_t pid;
	uint64_t since_ns;
	struct weights_client_contents contents; /* of generation */
};

typedef void (*weights_client_event_fn)(const struct weights_client_event *event, void *userdata);

/* Connects and says Hello. path NULL: weights_client_default_path. */
int must_check weights_client_new(const char *path, enum weights_client_role role,
	struct err *ret_err, struct weights_client **ret_client);

/* The same over a connected SOCK_SEQPACKET socket, which it owns (closed on failure too). */
int must_check weights_client_new_connected(int fd, enum weights_client_role role,
	struct err *ret_err, struct weights_client **ret_client);

/* Closes the connection, which ends its leases. Accepts NULL; returns NULL. */
struct weights_client *weights_client_free(struct weights_client *c);

/* $WEIGHTD_SOCKET, else $XDG_RUNTIME_DIR/weightd.sock, else /run/weightd/weightd.sock. */
int must_check weights_client_default_path(char *ret_path, uint32_t n_bytes);

/* weightd's device, as Hello said. Borrowed. */
const struct weights_client_device *weights_client_get_device(const struct weights_client *c);

/* The connection's fd, for a poll loop: readable means weights_client_dispatch has something. */
int weights_client_get_fd(const struct weights_client *c);

/* Where events go that arrive during any call. The function must not call the client. */
void weights_client_set_event_fn(
	struct weights_client *c, weights_client_event_fn fn, void *userdata);

/* Bit h set: acquire may bring enum weights_client_handle h. 0, as at first: opaque fds alone. */
void weights_client_set_handle_types(struct weights_client *c, uint32_t mask);

/*
 * The driver refused to import allocation `index` as this enum weights_client_handle: from it on
 * acquire brings nothing of that type. Told again with a lower index, that one counts; a higher one
 * changes nothing. -EINVAL: no such type.
 */
int must_check weights_client_add_refusal(
	struct weights_client *c, uint32_t handle_type, uint32_t index);

/* A lease on the newest ready generation; waits while it loads. uuids are 16 bytes each. */
int must_check weights_client_acquire(struct weights_client *c, const char *model,
	const uint8_t *device_uuid, const uint8_t *driver_uuid, struct err *ret_err,
	struct weights_client_acquired *ret_acquired);

/*
 * What the caller will have on the device in all, for itself; 0 gives everything back. Waits some
 * seconds where others have to make room; with is_modest for the least alone. *ret_n_bytes is what
 * it may have, n_least_bytes (at most n_bytes) or more; -ENOMEM with who holds what.
 */
int must_check weights_client_reserve(struct weights_client *c, const uint8_t *device_uuid,
	uint64_t n_bytes, uint64_t n_least_bytes, bool is_modest, struct err *ret_err,
	uint64_t *ret_n_bytes);
/* A lease of an earlier connection and what was imported with it; all borrowed. */
struct weights_client_held {
	const char *model;
	uint64_t generation;
	const uint8_t *device_uuid; /* [16] */
	const uint8_t *driver_uuid; /* [16] */
	uint64_t n_reserved_bytes;
	int manifest_fd;
	uint32_t n_allocs;
	const int *fds; /* [n_allocs] by index, as they came */
};

/*
 * The lease again, of a weightd that may be another by now: where it has lost its descriptors, it
 * gets these. Waits until the generation is there or lost. ret_gave: it wanted them. ret_contents:
 * as far as they are known by now.
 */
int must_check weights_client_resume(struct weights_client *c,
	const struct weights_client_held *held, struct err *ret_err, bool *ret_gave,
	struct weights_client_contents *ret_contents);

/* The manifest and the allocations of the newest generation, without their fds and without a lease.
 */
int must_check weights_client_describe(struct weights_client *c, const char *model,
	struct err *ret_err, struct weights_client_acquired *ret_acquired);

/* fd (borrowed): the opened model file. Returns when the model is ready. */
int must_check weights_client_load(struct weights_client *c, const char *name, const char *path,
	int fd, bool replace, struct err *ret_err, uint64_t *ret_generation);

int must_check weights_client_unload(
	struct weights_client *c, const char *name, struct err *ret_err);

enum { WEIGHTS_CLIENT_MAX_DIFFERENCES = 64 };

/* Bytes of a tensor that are not what was loaded. */
struct weights_client_difference {
	char tensor[80];
	uint32_t allocation;
	uint64_t offset;  /* of the first piece that differs, from the tensor's start */
	uint64_t n_bytes; /* of the pieces that differ */
};

struct weights_client_verified {
	uint64_t generation;
	uint64_t n_bytes; /* that were read */
	uint64_t elapsed_ns;
	uint32_t n_tensors; /* that differ */
	uint32_t n_differences;
	struct weights_client_difference differences[WEIGHTS_CLIENT_MAX_DIFFERENCES];
};

/* Every checksum of the newest generation made anew; returns when that is done. */
int must_check weights_client_verify(struct weights_client *c, const char *model,
	struct err *ret_err, struct weights_client_verified *ret_verified);

/* As weights_client_unload; leases that have not drained within timeout_ns end (0: at once). */
int must_check weights_client_unload_within(
	struct weights_client *c, const char *name, uint64_t timeout_ns, struct err *ret_err);

/* A pinned model is never evicted, cooled or ended by its idle time. */
int must_check weights_client_pin(
	struct weights_client *c, const char *model, bool pinned, struct err *ret_err);

/* What was imported of the generation has been dropped: its lease ends, or its hold. */
int must_check weights_client_release(
	struct weights_client *c, uint64_t generation, struct err *ret_err);

/* models alone are filled by list; everything by status. */
int must_check weights_client_list(
	struct weights_client *c, struct err *ret_err, struct weights_client_status *ret_status);
int must_check weights_client_status(
	struct weights_client *c, struct err *ret_err, struct weights_client_status *ret_status);

int must_check weights_client_watch(struct weights_client *c, struct err *ret_err);

int must_check weights_client_report(
	struct weights_client *c, const struct weights_client_report *report, struct err *ret_err);

/* Reads what is there without blocking and calls the event function; -ECONNRESET: weightd went. */
int must_check weights_client_dispatch(struct weights_client *c, struct err *ret_err);

#endif
