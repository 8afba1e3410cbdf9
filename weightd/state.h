/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_STATE_H
#define WEIGHTD_STATE_H

/*
 * What one weightd leaves for the next (proto/weightd-state.proto): generations, where their memory
 * is, who held them. A reader judges it like any file from outside. Loop thread, or before there is
 * one.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"
#include "weightd/access.h"
#include "weightd/placement.h"
#include "weightd/registry.h"
#include "weightd/service.h"

struct err;

enum {
	STATE_MAX_BYTES = 32 << 20,
	STATE_MAX_HOLDERS = 4096,
	STATE_MAX_TENSORS = 1 << 20,
	STATE_MAX_SUMS_BYTES = 16 << 20, /* of a residency */
	STATE_SECRET_BYTES = 32,
	STATE_MAX_WHY_BYTES = 2048,
	STATE_MAX_LISTENS = 64,
};

struct state_file {
	uint64_t dev;
	uint64_t inode;
	uint64_t n_bytes;
	int64_t mtime_s;
	uint32_t mtime_ns;
};

struct state_bytes {
	uint8_t *data; /* owned by the state; NULL when n_bytes is 0 */
	uint32_t n_bytes;
};

struct state_alloc {
	uint32_t handle; /* enum export_handle */
	uint64_t n_bytes;
	uint64_t buffer_bytes;
	uint32_t memory_type_index;
	bool is_dedicated;
	uint32_t placement; /* enum manifest_placement */
	uint64_t file_offset;
	bool is_writable;
	uint64_t dev;
	uint64_t inode;
	bool has_opaque; /* a dma-buf, and beside it an opaque descriptor: */
	uint64_t opaque_dev;
	uint64_t opaque_inode;
};

struct state_residency {
	uint32_t slot; /* in names of descriptors, see stash_name_alloc */
	bool is_foreign;
	uint8_t device_uuid[16];
	uint8_t driver_uuid[16];
	struct state_file manifest;
	char architecture[64];
	char format[16];
	uint64_t n_parameters;
	uint32_t n_tensors;
	uint64_t n_unmet_bytes;
	uint64_t n_placed_bytes[PLACEMENT_N];
	uint64_t n_lost_bytes; /* of the device, of a lost generation */
	uint32_t n_allocs;     /* at least 1; 0 of a lost one */
	struct state_alloc *allocs;
	struct state_bytes sums;
};

struct state_generation {
	uint64_t id;
	char model[REGISTRY_NAME_MAX + 1];
	char *path;
	bool is_draining;
	bool is_pinned;
	uint64_t expel_ns; /* see service_generation */
	/* No residencies: its file, and the memfd if there is one, are all that it has. */
	bool is_warm;
	/* No residencies and no memfd: a load that had not ended when what it replaces had left. */
	bool is_loading;
	char *lost_why;  /* NULL: it is not lost; else it drains too, and the rows have no allocs */
	bool is_corrupt; /* see service_generation */
	uint64_t clean_ns;              /* the same */
	bool is_replaced;               /* it drains for one that took its place, or was to */
	struct service_summary summary; /* of a warm one */
	struct state_bytes sums;        /* of a warm one, sums_pack */
	struct state_file file;
	bool is_file_writable;
	bool has_memfd;
	struct state_file memfd;
	struct state_bytes staged; /* bits, lowest first */
	uint32_t n_tensors;
	uint32_t n_residencies; /* at least 1 but where it is warm or loading, slots rise */
	struct state_residency *residencies;
};

struct state_grant {
	uint8_t device_uuid[16];
	uint64_t n_bytes;
	char model[REGISTRY_NAME_MAX + 1]; /* for people */
};

/* With a generation or a grant at least. */
struct state_holder {
	int32_t pid;
	uint64_t start_ticks;
	uint32_t uid;
	uint32_t socket; /* peer_get_socket: one of the state's listens, from 1 on */
	uint32_t n_generations;
	uint64_t *generations;
	bool is_hold; /* its leases had ended, and it lived */
	uint32_t n_grants;
	struct state_grant *grants;
};

struct state {
	uint64_t last_id;
	bool has_secret;
	uint8_t secret[STATE_SECRET_BYTES]; /* of the sums */
	uint32_t n_generations;
	struct state_generation *generations; /* ids rise, last_id is no less */
	uint32_t n_holders;
	struct state_holder *holders;
	uint32_t n_listens;
	char (*listens)[ACCESS_MAX_PATH_BYTES]; /* [n_listens] */
};

/* Frees what is in it, not itself. */
void state_fini(struct state *s);
void state_generation_fini(struct state_generation *g);
void state_holder_fini(struct state_holder *h);

/* data NULL for n_bytes of zeros. -ENOMEM. */
int must_check state_bytes_set(struct state_bytes *b, const void *data, uint32_t n_bytes);

struct state_file state_file_from_stat(const struct stat *st);

/* Both are the same file; mtime is not looked at. */
bool state_file_is(const struct state_file *f, const struct stat *st);

/* The file's bytes, allocated: the caller frees them. -ENOMEM; -EFBIG above STATE_MAX_BYTES. */
int must_check state_pack(
	const struct state *s, const char *boot_id, uint8_t **ret_data, uint64_t *ret_n_bytes);

/*
 * Every count, size, name and string is inside the caps above afterwards. -EINVAL, -EBADMSG,
 * -ENOMEM with ret_err; -ESTALE: of another boot (boot_id NULL: not compared).
 */
int must_check state_parse(const void *data, uint64_t n_bytes, const char *boot_id,
	struct err *ret_err, struct state *ret_state);

/* "/proc/sys/kernel/random/boot_id", or "" where it cannot be read. */
void state_get_boot_id(char ret_boot_id[64]);

/* The file at path. -ENOENT when there is none; -EPERM when it is not this uid's alone. */
int must_check state_read(const char *path, struct err *ret_err, struct state *ret_state);

/* Replaces the file by these bytes, all or nothing. What was there before is then path.new. */
int must_check state_write(
	const char *path, const void *data, uint64_t n_bytes, struct err *ret_err);

/* Both. */
void state_remove(const char *path);

#endif
