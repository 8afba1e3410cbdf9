/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_REGISTRY_H
#define WEIGHTD_REGISTRY_H

/*
 * Which models there are, in which generations, and who holds them: one state machine without
 * input, output or Vulkan. Events come in as calls; what they make free comes out of
 * registry_take_freed. The loop thread's.
 *
 *	absent -> loading -> ready -> draining <-> held -> absent
 *	           | |  ^      |         |          |
 *	           | |  |      +---------+----------+----> lost -> absent
 *	           | |  +---> warm (its device memory is given back, it is ready in host memory;
 *	           | |        from ready when nobody has it, to loading when somebody wants it,
 *	           | |        to absent when unloaded, to lost with its file)
 *	           | +-> draining (unloaded while it loads)
 *	           +-> absent     (the load failed)
 *
 * A lease is a peer's hold on a generation and ends with its connection, with a release, or by
 * force. Where the process may still have the memory imported the lease turns into a hold, which
 * ends with the process or when it says that it has let go.
 * A generation goes when nothing loads it, leases it or holds it and it is neither ready nor warm.
 * Of a model at most one generation is ready or warm, and at most one loads.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct registry;

enum {
	REGISTRY_NAME_MAX = 64,
	REGISTRY_MAX_GENERATIONS = 256, /* of all models together */
	REGISTRY_MAX_LEASES = 65536,    /* of all peers together, holds included */
};

/* A condition of registry_acquire: the model is loading, or warm and to be heated; ask again when
 * it is ready. */
enum { REGISTRY_WAIT = 1 };

enum registry_state {
	REGISTRY_ABSENT,
	REGISTRY_LOADING,
	REGISTRY_READY,
	REGISTRY_WARM,
	REGISTRY_DRAINING,
	REGISTRY_HELD,
	REGISTRY_LOST,
	REGISTRY_N_STATES,
};

enum registry_event {
	REGISTRY_LOAD,    /* a load begins */
	REGISTRY_LOADED,  /* it succeeded */
	REGISTRY_FAIL,    /* it failed */
	REGISTRY_RETIRE,  /* unloaded or replaced */
	REGISTRY_HOLD,    /* the last lease ended, processes that had one live */
	REGISTRY_RELEASE, /* nobody has it any more */
	REGISTRY_LOSE,    /* its device or its file lost it */
	REGISTRY_COOL,    /* its device memory goes, or could not be had to heat it */
	REGISTRY_HEAT,    /* it is loaded again, from host memory */
	REGISTRY_RESUME,  /* who held it has a lease again */
	REGISTRY_N_EVENTS,
};

/* The one transition function. An illegal transition asserts. */
enum registry_state registry_next(enum registry_state state, enum registry_event event);

/* May the event happen in the state? */
bool registry_is_legal(enum registry_state state, enum registry_event event);

/* "loading", "ready", ... */
const char *registry_state_name(enum registry_state state);

/* Read by everybody, written by the registry; data is the caller's. */
struct registry_generation {
	uint64_t id; /* rises over all models, from 1 */
	char model[REGISTRY_NAME_MAX + 1];
	enum registry_state state;
	bool is_filling;   /* the loader still works on it */
	bool is_pinned;    /* never idle, whoever has it */
	bool is_returning; /* adopted, and who had it may still come back: see registry_adopt */
	uint32_t n_leases;
	uint32_t n_holds;
	uint64_t used_ns; /* when it became ready, or its last lease ended */
	void *data;
};

struct registry_lease {
	uint64_t peer; /* the connection's id, or that of the holder (its process) when is_hold */
	uint64_t generation;
	uint64_t since_ns;
	bool is_hold;
};

int must_check registry_new(struct registry **ret_registry);

/* Forgets everything; data is not freed. Accepts NULL; returns NULL. */
struct registry *registry_free(struct registry *r);

/* 1 to 64 of [A-Za-z0-9._-], else -EINVAL with ret_err. */
int must_check registry_check_name(const char *name, struct err *ret_err);

/*
 * Begins a generation. -EEXIST: the model is there and replace was not asked for; -EBUSY: it is
 * loading already; -ENOSPC: too many generations; -ENOMEM; -EINVAL: the name.
 */
int must_check registry_load(struct registry *r, const char *name, bool replace, void *data,
	struct err *ret_err, uint64_t *ret_id);

/* The load succeeded: an older generation of the model, ready or warm, retires. */
void registry_loaded(struct registry *r, uint64_t id, uint64_t now_ns);

/* The load failed or was given up. */
void registry_failed(struct registry *r, uint64_t id);

/*
 * A lease for the peer on the newest ready generation; a second one on the same is the same.
 * REGISTRY_WAIT; -ENOENT with the names there are; -EIO: the model was lost;
 * -ENOSPC: too many leases; -ENOMEM.
 */
int must_check registry_acquire(struct registry *r, const char *name, uint64_t peer,
	uint64_t now_ns, struct err *ret_err, uint64_t *ret_id);

/*
 * No new leases: the ready generation drains, a warm one goes, one that loads is given up
 * (registry_is_wanted is false then, and the loader ends it). -ENOENT when the model is not there.
 */
int must_check registry_unload(struct registry *r, const char *name, struct err *ret_err);

/* The same for one generation, which is ready, warm or loading. */
void registry_retire(struct registry *r, uint64_t id);

/* False for a generation whose load goes on for nothing. */
bool registry_is_wanted(const struct registry *r, uint64_t id);

/*
 * The peer's connection ended. holder: 0 when its process is gone, else the id under which
 * registry_exit will tell of the process; the peer's leases become holds of that id.
 */
void registry_close(struct registry *r, uint64_t peer, uint64_t holder, uint64_t now_ns);

/* The peer's lease on the generation ends against its will, and only that; holder as above. Nothing
 * where there is no such lease. */
void registry_expel(
	struct registry *r, uint64_t id, uint64_t peer, uint64_t holder, uint64_t now_ns);

/*
 * The peer has let go of the generation: its lease ends without a hold, and so does the hold that
 * an expelled lease became (holder: of its process, 0: none). -ENOENT: it had neither.
 */
int must_check registry_release(struct registry *r, uint64_t id, uint64_t peer, uint64_t holder,
	uint64_t now_ns, struct err *ret_err);

/* The process behind a holder's id is gone. */
void registry_exit(struct registry *r, uint64_t holder);

/* The generation was lost: with its device, or with the file whose pages it was. */
void registry_lose(struct registry *r, uint64_t id);

/* ---- who goes first ---- */

/* Is it ready, does nobody lease or hold it, is it not pinned, and can nobody come back to it? */
bool registry_is_idle(const struct registry_generation *g);

/* The least recently used idle generation behind `after` in that order; NULL: the first of all.
 * NULL when there is none. Borrowed until the next change. */
struct registry_generation *registry_find_idle(
	struct registry *r, const struct registry_generation *after);

/* The model's generations, and those that follow while one of them can be had, are never idle.
 * -ENOENT when the model is not there. */
int must_check registry_pin(
	struct registry *r, const char *name, bool is_pinned, struct err *ret_err);

/* The ready generation becomes warm. False, and it stays as it is: somebody has it, or may come
 * back to it, or it is not ready any more. */
bool registry_cool(struct registry *r, uint64_t id);

/* A warm generation loads again: registry_loaded, registry_failed or registry_chilled ends it.
 * -EBUSY: another generation of the model loads, which will take its place. */
int must_check registry_heat(struct registry *r, uint64_t id);

/* The heating came to nothing, and the generation is as warm as before. */
void registry_chilled(struct registry *r, uint64_t id);

/* ---- after a restart ---- */

/*
 * A generation known from before: ready, warm, draining or held; later ids go on after the largest.
 * Until registry_end_returns it stays, whoever has it, but where it is warm. -EINVAL: the name, the
 * state, an id that is there, or a second ready or warm one of a model; -ENOSPC; -ENOMEM.
 */
int must_check registry_adopt(struct registry *r, uint64_t id, const char *name,
	enum registry_state state, void *data, uint64_t now_ns, struct err *ret_err);

/* A process that had a lease, or held it, before; it may come back, or registry_exit tells of it.
 * -ENOENT, -ENOSPC, -ENOMEM. */
int must_check registry_adopt_hold(
	struct registry *r, uint64_t id, uint64_t holder, uint64_t now_ns);

/*
 * The peer has its lease on this very generation again, though it is no longer the newest, or lost
 * and to be let go; the hold of its process becomes the lease (holder: 0 where it had none).
 * -ENOENT: it is not to be had back; -ENOSPC; -ENOMEM.
 */
int must_check registry_resume(struct registry *r, uint64_t id, uint64_t peer, uint64_t holder,
	uint64_t now_ns, struct err *ret_err);

/* Nobody is waited for any more. */
void registry_end_returns(struct registry *r);

/* The last id that was given, to whatever became of it. Set: none up to it is given again, for
 * somebody may still ask for what it was. */
uint64_t registry_get_last_id(const struct registry *r);
void registry_set_last_id(struct registry *r, uint64_t id);

/* ---- what there is ---- */

/* A generation that nobody has any more leaves the registry; its data is the caller's to free.
 * False when there is none. */
bool registry_take_freed(struct registry *r, struct registry_generation *ret_generation);

/* Borrowed until the next call that changes the registry; NULL when there is none. */
struct registry_generation *registry_find(struct registry *r, uint64_t id);

/* All generations in order of id, [registry_count]. Borrowed until the next change. */
uint32_t registry_count(const struct registry *r);
struct registry_generation *registry_at(struct registry *r, uint32_t index);

/* All leases and holds, [registry_count_leases]. Borrowed until the next change. */
uint32_t registry_count_leases(const struct registry *r);
const struct registry_lease *registry_lease_at(const struct registry *r, uint32_t index);

/* Has the peer a live lease on the generation? */
bool registry_has_lease(const struct registry *r, uint64_t id, uint64_t peer);

/* Live leases of a peer. */
uint32_t registry_count_peer(const struct registry *r, uint64_t peer);

#endif
