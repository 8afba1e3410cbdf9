/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ACCOUNT_H
#define WEIGHTD_ACCOUNT_H

/*
 * The account of one device's memory: what weights take by generation, what was granted to workers
 * for their KV, scratch and io, and who waits for more. Pure: no clock, no sockets, no Vulkan.
 *
 * Bytes count from the moment they are granted or charged, before anybody allocates them, until
 * they are known to be free again. So however many ask at once, the sum never passes the budget.
 *
 * A request that does not fit: others are asked to park and what nobody has is evicted, at once and
 * again each ACCOUNT_PRESS_NS; it waits for that at most wait_ns, behind those that came before it;
 * then it takes as little as its least, or is refused with who holds what. With nobody to ask and
 * nothing on its way out there is nothing to wait for. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct account;
struct err;

enum {
	ACCOUNT_MAX_ROWS = 4096,      /* grants, weights and waiters, each */
	ACCOUNT_MAX_MODEL_BYTES = 65, /* with the NUL */
};

#define ACCOUNT_WAIT_NS 5000000000ull
#define ACCOUNT_PRESS_NS 500000000ull

/* A condition of account_request: it waits, and account_params.answer follows. */
enum { ACCOUNT_WAIT = 1 };

enum account_kind {
	ACCOUNT_GRANT,   /* of a worker; id is the peer's */
	ACCOUNT_WEIGHTS, /* id is the generation's */
};

struct account_request {
	enum account_kind kind;
	uint64_t id;
	uint64_t request; /* for the answer; the account does not look at it */
	/* What it will have in all; it replaces what the id had, and counts beside it until then.
	 */
	uint64_t n_bytes;
	uint64_t n_least_bytes; /* it takes so little rather than nothing; at most n_bytes */
	bool is_modest; /* beyond the least it takes only what is free: nobody is asked for it */
	int32_t pid;    /* of a worker; for refusals */
	char model[ACCOUNT_MAX_MODEL_BYTES];
};

/* press must not call the account; evict calls account_leave and account_freed alone. */
struct account_params {
	const char *device; /* its name, for refusals; borrowed */
	uint64_t n_budget_bytes;
	uint64_t wait_ns;
	void *userdata;
	/* May a row stand in the refusal of the request? NULL: all may. */
	bool (*shows)(void *userdata, const struct account_request *request, enum account_kind kind,
		uint64_t id, const char *model);
	/* Asks idle workers to park, but not the peer `except` (0: none): how many could. */
	uint32_t (*press)(void *userdata, uint64_t except);
	/*
	 * Gives up weights that nobody has, until n_bytes of them are on their way out or there are
	 * no more.
	 */
	void (*evict)(void *userdata, uint64_t n_bytes);
	/* Of a request that waited: code 0 and what it has now in all, or -ENOMEM with err. */
	void (*answer)(void *userdata, const struct account_request *request, int code,
		uint64_t n_bytes, const struct err *err);
};

int must_check account_new(const struct account_params *params, struct account **ret_account);

/* Who waits is not answered. Accepts NULL; returns NULL. */
struct account *account_free(struct account *a);

/* What is above it already stays; who waits may be served. */
void account_set_budget(struct account *a, uint64_t n_bytes, uint64_t now_ns);

/*
 * Grants or charges; *ret_n_bytes is what the id has in all then, n_bytes or, when there is nothing
 * to wait for, as little as the least. Less than it had is always granted, also ahead of who waits.
 * ACCOUNT_WAIT; -ENOMEM with who holds what; -ENOSPC beyond ACCOUNT_MAX_ROWS; -EBUSY: the id waits
 * already.
 */
int must_check account_request(struct account *a, const struct account_request *request,
	uint64_t now_ns, struct err *ret_err, uint64_t *ret_n_bytes);

/*
 * As much of n_bytes as is free, and what others wait for is not: nobody is asked, nobody waits.
 * Returns what the id has then. 0 beyond ACCOUNT_MAX_ROWS too.
 */
uint64_t account_take(struct account *a, const struct account_request *request);

/* What the generation's memory has turned out to be: without asking, for it is there. */
void account_set_weights(struct account *a, uint64_t generation, uint64_t n_bytes, uint64_t now_ns);

/* The generation's row goes, its bytes count until account_freed. How many those are; 0: nothing
 * was there. */
uint64_t account_leave(struct account *a, uint64_t generation, uint64_t now_ns);

/* n_bytes of weights that left are free by now. */
void account_freed(struct account *a, uint64_t n_bytes, uint64_t now_ns);

/*
 * The peer's connection ended: it waits no more, and its grant goes, or becomes that of the process
 * behind holder (0: gone too), adding to what that has.
 */
void account_close(struct account *a, uint64_t peer, uint64_t holder, uint64_t now_ns);

/* The process behind a holder's id is gone, and its grant. */
void account_exit(struct account *a, uint64_t holder, uint64_t now_ns);

/*
 * The process is back as this peer: it has the grant that its process had. True: that was of
 * account_recall, and what the process says itself is newer.
 */
bool account_resume(struct account *a, uint64_t holder, uint64_t peer);

/* The id has n_bytes from before this account began: they count, whatever the budget is. */
void account_restore(struct account *a, const struct account_request *request);

/*
 * What the process behind a holder's id was granted before this account began, beside what the id
 * has already: it counts, whatever the budget is, until account_exit or account_resume. 0 is
 * nothing.
 */
void account_recall(struct account *a, const struct account_request *request);

/* Has the holder's id a grant of account_recall, or one that went through account_resume since and
 * whose connection has ended again? */
bool account_is_recalled(const struct account *a, uint64_t holder);

/* Asks again, and ends waits that have lasted too long. To be called now and then. */
void account_tick(struct account *a, uint64_t now_ns);

struct account_figures {
	uint64_t n_budget_bytes;
	uint64_t n_weights_bytes; /* those on their way out among them */
	uint64_t n_granted_bytes;
	uint32_t n_waiting;
};

void account_get_figures(const struct account *a, struct account_figures *ret_figures);

/* Granted to a peer (or holder); 0: nothing. */
uint64_t account_get_grant(const struct account *a, uint64_t id);

/* Calls fn with each grant, of peers and of holders. */
typedef void (*account_grant_fn)(uint64_t id, uint64_t n_bytes, const char *model, void *userdata);
void account_visit_grants(const struct account *a, account_grant_fn fn, void *userdata);

/* Does a request of the id wait? */
bool account_is_waiting(const struct account *a, enum account_kind kind, uint64_t id);

/* "granted: pid 12 (model a) 5000" behind the text that is there; nothing where nothing is. */
void account_list_grants(const struct account *a, struct err *err);

#endif
