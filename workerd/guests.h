/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GUESTS_H
#define WORKERD_GUESTS_H

/*
 * Prefixes that workers share (proto/weights-prefix.h), as this one uses them: which there are, and
 * the memory of those that a prompt of this worker began with, whose pages are in the KV cache as
 * long as anybody wants them (kv_lend). What is imported is let go of when no session has a page of
 * it and others need memory, weightd says that it is removed, the worker parks, or nobody wanted it
 * for GUESTS_IDLE_NS. A weightd that came back without its prefixes gets them again.
 *
 * Engine thread, between steps: nothing on the device uses a page then.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-prefix.h"

struct engine;
struct err;
struct guests;
struct vk_memory;

#define GUESTS_IDLE_NS 600000000000ull

int must_check guests_new(struct guests **ret_guests);

/* None is imported: guests_clear before it. Accepts NULL; returns NULL. */
struct guests *guests_free(struct guests *g);

/* weightd says that there are others now. */
void guests_note_changed(struct guests *g);

/* It is back from an absence: it may know none of them. */
void guests_note_back(struct guests *g);

/*
 * What is to be done between steps; with or without a stack. is_pressed: others need memory.
 */
void guests_attend(struct engine *e, bool is_pressed);

/* A prompt is about to be looked for: what can be its beginning is imported. There is a stack. */
void guests_seek(struct engine *e, const uint32_t *tokens, uint32_t n_tokens);

/* The stack is about to go, and no slot is open: so do imports. */
void guests_clear(struct engine *e);

/* weightd hears what was let go of; before the lease on the generation ends. The client is the
 * engine's. */
void guests_tell_dropped(struct engine *e);

/* When there is something to do though nothing comes, CLOCK_MONOTONIC. */
uint64_t guests_get_deadline(const struct engine *e);

/* Is there one of just these tokens that weightd knows? *ret_n_bytes: of its memory. */
bool guests_has(const struct guests *g, const uint32_t *tokens, uint32_t n_tokens, bool is_shared,
	uint64_t *ret_id, uint64_t *ret_n_bytes);

/* How the pages of a stack's KV cache are made; only equal ones are shared. */
enum {
	GUESTS_LAYOUT_VERSION = 1, /* another with each change of what kernels write into a page */
	GUESTS_LAYOUT_BYTES = 40,
};
void guests_get_layout(const struct engine *e, uint8_t ret_layout[GUESTS_LAYOUT_BYTES]);

/* One that this worker has published. */
struct guests_own {
	uint64_t id;
	const char *name;
	bool is_shared;
	const uint32_t *tokens; /* [n_tokens], copied */
	uint32_t n_tokens;
	struct vk_memory *memory;
	int fd; /* of the memory */
	struct weights_prefix_memory shape;
};

/*
 * Takes memory and fd on success; sessions find it from here on. On failure weightd is told that
 * this worker does not have it. -ENOSPC, VK_DEVICE_LOST.
 */
int must_check guests_add(struct engine *e, const struct guests_own *own, struct err *ret_err);

/* Gives own to weightd (its memory member is not looked at): id and existed as
 * weights_prefix_publish, whose errors these are. */
int must_check guests_publish(struct engine *e, struct weights_client *c,
	const struct guests_own *own, struct err *ret_err, uint64_t *ret_id, bool *ret_existed);

void guests_count(const struct guests *g, uint32_t *ret_n, uint64_t *ret_n_bytes);

#endif
