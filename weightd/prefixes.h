/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PREFIXES_H
#define WEIGHTD_PREFIXES_H

/*
 * Shared prefixes: keys and values that a worker computed for the beginning of a prompt, copied
 * into an allocation of their own and published. What there is, whose it is, and who has it; the
 * descriptors are kept here, the memory is the driver's. Pure but for those. Loop thread.
 *
 * A lease is a peer's and ends with its connection, or when it says so; where the process may still
 * have the memory imported it becomes a hold of that process. What is removed while somebody has
 * it is given to nobody any more and counts until the last one lets go.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/registry.h"
#include "weightd/sha256.h"

struct err;
struct prefixes;

enum {
	PREFIXES_MAX = 256,                     /* each is two descriptors */
	PREFIXES_MAX_SOCKET = PREFIXES_MAX / 2, /* by one --listen's publishers */
	PREFIXES_MAX_LEASES = 16384,
	PREFIXES_MAX_SOCKET_LEASES = PREFIXES_MAX_LEASES / 2, /* of one --listen's peers */
	PREFIXES_MAX_LAYOUT_BYTES = 64,
	PREFIXES_MAX_TOKENS = 1 << 20,
	PREFIXES_HEAD_TOKENS = 32, /* whose hash says whether a prefix can be a prompt's */
};

/* Ids are above all of generations: both have rows in the account of a device. */
#define PREFIXES_FIRST_ID (UINT64_C(1) << 62)

/* What Vulkan makes an importer repeat; see Allocation in weightd.proto. */
struct prefix_memory {
	uint64_t n_bytes;
	uint64_t buffer_bytes;
	uint32_t memory_type_index;
	bool is_dedicated;
};

struct prefix {
	uint64_t id; /* prefixes_add sets it */
	uint64_t generation;
	char model[REGISTRY_NAME_MAX + 1];
	char name[REGISTRY_NAME_MAX + 1]; /* for people; may be "" */
	uint32_t slot;                    /* of the device */
	uint32_t socket;                  /* of the publisher, peer_get_socket */
	int32_t pid;                      /* the publisher's */
	bool is_shared;                   /* other sockets that show the model may have it */
	uint8_t layout[PREFIXES_MAX_LAYOUT_BYTES]; /* of the pages; only equal ones understand them
						    */
	uint32_t n_layout_bytes;
	uint32_t n_tokens;
	uint8_t digest[SHA256_BYTES]; /* SHA-256 of the tokens */
	uint64_t head_hash;           /* of the first PREFIXES_HEAD_TOKENS */
	int tokens_fd;                /* owned: [n_tokens] u32, little-endian, a sealed memfd */
	int memory_fd;                /* owned: an opaque descriptor */
	struct prefix_memory memory;
	uint64_t used_ns;  /* when somebody last took or dropped it */
	uint32_t n_leases; /* and holds */
	bool is_removed;
};

/*
 * Nobody has it any more: its descriptors are closed, its bytes are free. It is in no list by then,
 * and fn may remove others.
 */
typedef void (*prefixes_freed_fn)(const struct prefix *p, void *userdata);

int must_check prefixes_new(prefixes_freed_fn fn, void *userdata, struct prefixes **ret_prefixes);

/* Without a word to fn. Accepts NULL; returns NULL. */
struct prefixes *prefixes_free(struct prefixes *p);

/*
 * Takes the descriptors of values on success alone, and gives it an id that was never used before.
 * -ENOSPC with the figure beyond PREFIXES_MAX.
 */
int must_check prefixes_add(
	struct prefixes *p, const struct prefix *values, struct err *ret_err, uint64_t *ret_id);

/* One that can be had, by id; NULL. Good until the next change. */
const struct prefix *prefixes_find(const struct prefixes *p, uint64_t id);

/* One that can be had and is of the same tokens, generation, device, layout and readers. */
const struct prefix *prefixes_find_same(const struct prefixes *p, const struct prefix *values);

/* All, with those that are removed and still held; in order of id. */
uint32_t prefixes_count(const struct prefixes *p);
const struct prefix *prefixes_at(const struct prefixes *p, uint32_t index);

/* The peer has it; once, however often it asks. -ENOENT; -ENOSPC beyond PREFIXES_MAX_LEASES, or
 * PREFIXES_MAX_SOCKET_LEASES of one socket. */
int must_check prefixes_take(
	struct prefixes *p, uint64_t id, uint64_t peer, uint64_t now_ns, struct err *ret_err);

/* The peer has let go. -ENOENT when it had none. */
int must_check prefixes_drop(
	struct prefixes *p, uint64_t id, uint64_t peer, uint64_t now_ns, struct err *ret_err);

bool prefixes_has(const struct prefixes *p, uint64_t id, uint64_t peer);

/* Does the peer have any? */
bool prefixes_has_any(const struct prefixes *p, uint64_t peer);

/* The peer is gone. holder as for registry_close: 0 when its process is too. */
void prefixes_close(struct prefixes *p, uint64_t peer, uint64_t holder, uint64_t now_ns);
void prefixes_exit(struct prefixes *p, uint64_t holder, uint64_t now_ns);

/* -ENOENT. */
int must_check prefixes_remove(struct prefixes *p, uint64_t id, struct err *ret_err);

/* Everything that belongs to the generation. How many could be had until then. */
uint32_t prefixes_remove_generation(struct prefixes *p, uint64_t generation);

/* The one on the device that nobody has and that was used least recently; NULL. */
const struct prefix *prefixes_find_idle(const struct prefixes *p, uint32_t slot);

/*
 * Which one is to be removed before one more of the socket's is added: of those that nobody has the
 * one that was used least recently, one of the socket's own where it has its share. NULL: none
 * needs to be. -ENOSPC with the figures: all are in use.
 */
int must_check prefixes_find_spare(const struct prefixes *p, uint32_t socket, struct err *ret_err,
	const struct prefix **ret_prefix);

/* Of a socket's publishers, what is not yet free. */
uint64_t prefixes_count_bytes(const struct prefixes *p, uint32_t socket);

#endif
