/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WEIGHTS_PREFIX_H
#define PROTO_WEIGHTS_PREFIX_H

/*
 * Shared prefixes over a client of weightd (proto/weights-client.h, whose errors, threads and rules
 * hold here): keys and values of the beginning of a prompt that one worker computed and others
 * import. See Prefix in weightd.proto.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct weights_client;

enum {
	WEIGHTS_PREFIX_NAME_BYTES = 65, /* with the NUL */
	WEIGHTS_PREFIX_MODEL_BYTES = 65,
	WEIGHTS_PREFIX_HEAD_TOKENS = 32, /* that head_hash is of */
	WEIGHTS_PREFIX_MAX_ROWS = 1024,  /* of a list */
};

struct weights_prefix {
	uint64_t id;
	char model[WEIGHTS_PREFIX_MODEL_BYTES];
	uint64_t generation;
	char name[WEIGHTS_PREFIX_NAME_BYTES];
	uint32_t n_tokens;
	uint64_t n_bytes;
	bool is_shared;
	int32_t pid;
	uint32_t n_leases;
	uint64_t head_hash; /* weights_prefix_hash of the first tokens; 0: there are fewer */
};

/* What Vulkan makes an importer repeat. */
struct weights_prefix_memory {
	uint64_t n_bytes;
	uint64_t buffer_bytes;
	uint32_t memory_type_index;
	bool is_dedicated;
};

/* All borrowed. */
struct weights_prefix_publish {
	const char *model;
	uint64_t generation;        /* that the connection has a lease on */
	const uint8_t *device_uuid; /* [16] */
	const uint8_t *driver_uuid; /* [16] */
	const char *name;
	bool is_shared; /* with other sockets */
	uint32_t n_tokens;
	const uint8_t *layout;
	uint32_t n_layout_bytes;
	struct weights_prefix_memory memory;
	int tokens_fd; /* see weights_prefix_make_tokens */
	int memory_fd;
};

/* fnv_hash of the ids as little-endian bytes: what weightd says of the first of a prefix. */
uint64_t weights_prefix_hash(const uint32_t *tokens, uint32_t n_tokens);

/* A sealed memfd of them, the caller's. */
int must_check weights_prefix_make_tokens(
	const uint32_t *tokens, uint32_t n_tokens, struct err *ret_err, int *ret_fd);

/* *ret_existed: the same one was there, and is the connection's now in place of this one. */
int must_check weights_prefix_publish(struct weights_client *c,
	const struct weights_prefix_publish *params, struct err *ret_err, uint64_t *ret_id,
	bool *ret_existed);

/* Those of a layout, for a worker; without (layout NULL) all of the model, or with model "" all.
 * The rows are the caller's, to be freed with free(3); NULL where there are none. */
int must_check weights_prefix_list(struct weights_client *c, const char *model, uint64_t generation,
	const uint8_t *device_uuid, const uint8_t *layout, uint32_t n_layout_bytes,
	struct err *ret_err, struct weights_prefix **ret_rows, uint32_t *ret_n);

struct weights_prefix_taken {
	struct weights_prefix prefix;
	struct weights_prefix_memory memory;
	uint32_t *tokens; /* [prefix.n_tokens], owned */
	int memory_fd;    /* owned; -1 once taken */
};

/* A lease on it. -ENOENT: it is gone. */
int must_check weights_prefix_take(struct weights_client *c, uint64_t id, struct err *ret_err,
	struct weights_prefix_taken *ret_taken);
void weights_prefix_taken_fini(struct weights_prefix_taken *t);

/* Its imports have been dropped. -ENOENT. */
int must_check weights_prefix_drop(struct weights_client *c, uint64_t id, struct err *ret_err);

/* It is given to nobody any more. -ENOENT. */
int must_check weights_prefix_remove(struct weights_client *c, uint64_t id, struct err *ret_err);

#endif
