/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RESTART_H
#define WEIGHTD_RESTART_H

/*
 * Dying and coming back without reading a model again. While weightd lives, it keeps the state file
 * and the stash as they would have to be if it died now. When it starts, what both hold is adopted:
 * generations whose descriptors are all there at once, the others when the workers that held them
 * come back and bring theirs (weightd/resume.h), or never. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/stash.h"
#include "weightd/state.h"

struct access;
struct err;
struct event_base;
struct fdlist;
struct loader_result;
struct peer;
struct restart;
struct service;

enum { RESTART_WAIT_MS = 5000, RESTART_KEEP_SECONDS = 60 };

/*
 * Reads the state beside the socket (its path is borrowed) and takes what descriptors there are.
 * The socket must be this process's: whose it is, its state is. listens: the others, by whose paths
 * processes that come back are told apart; copied. n_keep_seconds: see stash_new.
 * Before there are other threads. -ENOMEM.
 */
int must_check restart_new(const char *socket, const struct access *listens, uint32_t n_listens,
	unsigned n_keep_seconds, struct restart **ret_restart);

/* The secret that the sums on record were made with. False: there are none. */
bool restart_get_secret(const struct restart *r, uint8_t ret_secret[STATE_SECRET_BYTES]);

/* Those that are made from here on. */
void restart_set_secret(struct restart *r, const uint8_t secret[STATE_SECRET_BYTES]);

/* What is kept stays kept. Accepts NULL; returns NULL. */
struct restart *restart_free(struct restart *r);

/* The service that generations come back to; it and base are borrowed. -ENOMEM. */
int must_check restart_attach(struct restart *r, struct event_base *base, struct service *s);

/*
 * A model of the command line. True: a generation of it is on its way back, and own_fn will be told
 * when it is there, be it the same file, or when what takes its place has been loaded. fd is
 * borrowed.
 */
bool restart_claim(struct restart *r, const char *name, const char *path, int fd);

/* Begins to adopt. */
void restart_begin(struct restart *r);

/* Something may have changed: the state file and the stash follow. */
void restart_save(struct restart *r);

/* The keeper is looked after. To be called now and then. */
void restart_check(struct restart *r);

/* Did the weightd before leave anything? */
bool restart_has_found(const struct restart *r);

/* A clean end: nothing is kept. */
void restart_forget(struct restart *r);

/* Is the model's generation on its way back? Then Acquire and Load wait. r may be NULL. */
bool restart_is_awaited(const struct restart *r, const char *model);

/* Draining from when it is there on; expel_ns: see service_generation. The newest generation that
 * this meant; 0: none of the model is on its way back. r may be NULL. */
uint64_t restart_unload(struct restart *r, const char *model, uint64_t expel_ns);

/* Pinned, or not, from when it is there on; and so is what is loaded in its place. False: it is not
 * on its way back. r may be NULL. */
bool restart_pin(struct restart *r, const char *model, bool is_pinned);

/* What is on its way back. n_missed: processes that had a lease on it and have not got that back.
 * r may be NULL. */
typedef void (*restart_fn)(
	const struct state_generation *generation, uint32_t n_missed, void *userdata);
uint32_t restart_count(const struct restart *r);
void restart_visit(const struct restart *r, restart_fn fn, void *userdata);

/* True when the result was of an adoption. r may be NULL. */
bool restart_take_result(struct restart *r, uint32_t loader, const struct loader_result *result);

/* The peer has a lease on the generation, or has let go of it: its process is not waited for any
 * longer. False: it was not. r may be NULL. */
bool restart_on_return(struct restart *r, const struct peer *p, uint64_t generation);

/* The peer is about to be freed. */
void restart_forget_peer(struct restart *r, const struct peer *p);

/* ---- for weightd/resume ---- */

enum restart_where {
	RESTART_NOWHERE, /* it is not on its way back; it may be there */
	RESTART_LACKING, /* descriptors are missing */
	RESTART_COMING,  /* it will be there or lost in a moment */
};
enum restart_where restart_find(const struct restart *r, uint64_t generation);

/* Was this process recorded as a holder of the generation, and has not got its lease yet? */
bool restart_is_holder(const struct restart *r, const struct peer *p, uint64_t generation);

/* Is a generation of that id and model on its way back? */
bool restart_is_of_model(const struct restart *r, uint64_t generation, const char *model);

/* The slot in names of what a device with these uuids had of the generation; false: nothing. */
bool restart_find_slot(const struct restart *r, uint64_t generation, const uint8_t *device_uuid,
	const uint8_t *driver_uuid, uint32_t *ret_slot);

/* One descriptor of a worker, which it takes. -EINVAL with ret_err. */
int must_check restart_give(
	struct restart *r, const struct stash_name *name, int fd, struct err *ret_err);

/*
 * The worker has brought all that it had: what is whole is imported. The request is answered when
 * the generation is there or lost.
 */
int must_check restart_await(
	struct restart *r, struct peer *p, uint64_t request, uint64_t generation);

/* ---- the next weightd in this process ---- */

/*
 * Duplicates of all that is kept, so that the service may go before restart_execute. -EMFILE,
 * -E2BIG: there is no room for them, or will not be; nothing is changed, and weightd can go on.
 */
int must_check restart_hold(struct restart *r);

/*
 * SIGHUP, SIGINT and SIGTERM wait, over the execution too: between the handlers of this weightd and
 * those of the next one they would kill it. The calling thread's.
 */
void restart_block_signals(bool is_blocked);

/* Executes the program at path with these arguments; returns only when that fails: -errno. */
int must_check restart_execute(struct restart *r, const char *path, char *const argv[]);

#endif
