/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_STASH_H
#define WEIGHTD_STASH_H

/*
 * Descriptors that outlive weightd, by name. Behind it is the service manager's store where there
 * is one, else the keeper (weightd/keeper.h), else nothing. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct stash;

enum { STASH_NAME_BYTES = 64 };

/* STASH_OPAQUE: beside an allocation that is a dma-buf. */
enum stash_kind { STASH_MANIFEST, STASH_ALLOC, STASH_OPAQUE, STASH_MEMFD, STASH_FILE };

/* "g7.manifest.0", "g7.alloc.0.3", "g7.opaque.0.3", "g7.memfd", "g7.file". */
struct stash_name {
	enum stash_kind kind;
	uint64_t generation;
	uint32_t slot;  /* of manifest, alloc and opaque: the residency's */
	uint32_t index; /* of alloc and opaque */
};

void stash_name_print(const struct stash_name *name, char ret_text[STASH_NAME_BYTES]);

/* -EINVAL for anything that stash_name_print would not write. */
int must_check stash_name_parse(const char *text, struct stash_name *ret_name);

/* path: of the keeper's socket; n_seconds: that it waits for a weightd, 0: no keeper. */
int must_check stash_new(const char *path, unsigned n_seconds, struct stash **ret_stash);

/* What is kept stays kept. Accepts NULL; returns NULL. */
struct stash *stash_free(struct stash *s);

/* fd is fn's. False: it is of no use, and is not kept any longer. */
typedef bool (*stash_fn)(const struct stash_name *name, int fd, void *userdata);

/*
 * What the weightd before this one left, from the service manager or a keeper, or both: a name may
 * come twice. Names that are none of ours are closed. Once, before there are other threads.
 */
void stash_take_all(struct stash *s, stash_fn fn, void *userdata);

/*
 * Brings what is kept to what is wanted, between begin and end: what is wanted and not kept is
 * put, what is kept and not wanted is dropped. fd is borrowed. A keeper is started when there is
 * something to put and none is there, and ends when nothing is kept.
 */
void stash_begin(struct stash *s);
void stash_want(struct stash *s, const struct stash_name *name, int fd);
void stash_end(struct stash *s);

/* Nothing of the generation is kept from here on: names of it may mean other descriptors now. */
void stash_drop_generation(struct stash *s, uint64_t generation);

/* Readable when the keeper went: stash_begin then starts another. -1: there is none. */
int stash_get_fd(const struct stash *s);

/* A clean end: nothing is kept any more, the keeper's process is gone. */
void stash_forget_all(struct stash *s);

#endif
