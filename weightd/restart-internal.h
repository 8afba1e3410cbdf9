/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RESTART_INTERNAL_H
#define WEIGHTD_RESTART_INTERNAL_H

/* For the restart files alone. Loop thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "weightd/adopt.h"
#include "weightd/state.h"

/* A generation on its way back. */
struct restart_generation {
	struct adopt *adopt;
	struct service_generation *data; /* made when it is imported */
	uint32_t n_importing;            /* results that will come */
	bool is_due;                     /* nothing is missing but a loader's time */
	bool has_claim;                  /* of the command line: */
	int claim_fd;
	char *claim_path;
	TAILQ_ENTRY(restart_generation) entry;
};

TAILQ_HEAD(restart_generations, restart_generation);

/* A Resume whose answer waits. */
struct restart_wait {
	uint64_t peer;
	int32_t pid; /* the peer's: it has its lease to come by another connection too */
	uint64_t start_ticks;
	uint32_t uid;
	uint64_t request;
	uint64_t generation;
	TAILQ_ENTRY(restart_wait) entry;
};

struct restart_held {
	struct stash_name name;
	int fd;
};

struct restart {
	struct service *service;
	char *state_path;
	char *keeper_path;
	struct stash *stash;
	struct event_base *base;
	struct event *tick;
	uint64_t deadline_ns; /* for those that are waited for */
	bool has_begun;
	bool has_found; /* generations on record, at the start */
	char boot_id[64];
	uint64_t last_id;
	bool has_secret;
	uint8_t secret[STATE_SECRET_BYTES];
	struct restart_generations coming;
	/* Processes that held something and have not come back: holders[i].generations are those
	 * that are missing. */
	uint32_t n_absent;
	struct state_holder *absent;
	bool are_absent_held; /* their memory is accounted as held */
	TAILQ_HEAD(, restart_wait) waits;
	bool has_fingerprint;
	uint64_t fingerprint; /* of what was saved: record_fingerprint */
	uint8_t *saved;       /* what the state file holds */
	uint64_t n_saved_bytes;
	bool is_save_failing; /* and that was told */
	uint32_t n_held;
	struct restart_held *held;
};

struct restart_generation *restart_find_generation(const struct restart *r, uint64_t id);

/* Drops the process at the index, or the generation of it. */
void restart_drop_absent(struct restart *r, uint32_t index);
void restart_drop_absent_generation(struct restart *r, uint32_t index, uint64_t generation);

#endif
