/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RESTART_INTERNAL_H
#define WEIGHTD_RESTART_INTERNAL_H

/* For the restart files alone. Loop thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/err.h"
#include "weightd/adopt.h"
#include "weightd/registry.h"
#include "weightd/state.h"

/* A generation on its way back. */
struct restart_generation {
	struct adopt *adopt;
	struct service_generation *data; /* made when it is imported */
	uint32_t n_importing;            /* results that will come */
	bool is_due;                     /* nothing is missing but a loader's time */
	bool is_corrupt;                 /* bytes are not those that were loaded */
	struct err failure;              /* of an import */
	bool has_claim;                  /* of the command line: */
	int claim_fd;                    /* -1: of the very file */
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
	uint32_t n_listens;
	char (*listens)[ACCESS_MAX_PATH_BYTES]; /* of this weightd */
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

/* Off the list, and freed. */
void restart_free_generation(struct restart *r, struct restart_generation *g);

/* Which of our devices has what this residency was for; the others' slot for others' devices. */
bool restart_find_device(
	const struct restart *r, const struct state_residency *residency, uint32_t *ret_slot);

/* g->data, without exports. */
int must_check restart_make_data(
	struct restart *r, struct restart_generation *g, struct err *ret_err);

/* Does a process that had the generation still have to come back? */
bool restart_is_missed(const struct restart *r, uint64_t generation);

/* Every Resume that waits for it: why NULL: it is there. */
void restart_answer(struct restart *r, uint64_t id, const struct err *why);

/*
 * It cannot be brought back. Who has its memory is a lessee or a holder of a lost generation all
 * the same; what takes its place is loaded. Frees g.
 */
void restart_lose(struct restart *r, struct restart_generation *g, const struct err *why);

/* The command line is told, or a load for it begins. is_there: the generation came back. False: it
 * had not claimed it. */
bool restart_settle_claim(struct restart *r, struct restart_generation *g, bool is_there);

/* Drops the process at the index, or the generation of it. */
void restart_drop_absent(struct restart *r, uint32_t index);
void restart_drop_absent_generation(struct restart *r, uint32_t index, uint64_t generation);

/* Is the generation among those of the row? */
bool restart_has_held(const struct state_holder *h, uint64_t generation);

/* ---- weightd/restart-recall: what processes had that have not come back ---- */

/* What they were granted counts again, before anybody is granted or loads anything. */
void restart_recall_grants(struct restart *r);

/* The generation is there: those that held it before hold it. */
void restart_recall_holds(struct restart *r, uint64_t generation);

/* Nobody is waited for any more: what the others leased, they hold. Who is watched for that is not
 * absent any more. */
void restart_recall_leases(struct restart *r);

/* ---- weightd/restart-again: replacements that had not ended ---- */

/* Has the model a generation that is ready or warm? */
bool restart_has_current(const struct restart *r, const char *model);

/* May the generation be what the model is served with? */
bool restart_may_serve(const struct restart_generation *g);

/* What becomes of the generation depends on another that is on its way. */
bool restart_must_follow(const struct restart *r, const struct restart_generation *g);

/* In which state a generation comes back: one that is ready already, or an unload, leaves it to
 * those who have it; one that drained for another that is not there serves again. */
enum registry_state restart_get_state(
	const struct restart *r, const struct state_generation *record);

/* What has nobody was unloaded on its way: it is not to come back. */
bool restart_is_unwanted(const struct state_generation *record);
void restart_drop_unwanted(struct restart *r, struct restart_generation *g);

/* Of a load that had not ended: it begins again where nothing serves in its place. */
void restart_load_again(struct restart *r, struct restart_generation *g);

#endif
