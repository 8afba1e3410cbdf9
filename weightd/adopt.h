/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ADOPT_H
#define WEIGHTD_ADOPT_H

/*
 * A generation on its way back: what the state file says of it, and the descriptors that came so
 * far, from wherever. Each is judged against the state as it comes; a worker's word counts for
 * nothing. Out come the source and the exports, as a load would have made them. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/stash.h"
#include "weightd/state.h"

struct err;
struct export;
struct source;
struct source_account;

struct adopt_residency {
	int manifest_fd; /* owned, as all here until an export has them; -1 until it comes */
	int *fds;        /* [n_allocs], of memory; -1 for windows */
	int *opaques;    /* [n_allocs], beside dma-bufs, each of them enough; else -1 */
	bool is_lent;    /* they are the export's, and lent by it */
};

struct adopt {
	struct state_generation record;
	int file_fd;
	int memfd;
	bool is_source_lent;                 /* both are the source's, and lent by it */
	struct adopt_residency *residencies; /* [record.n_residencies] */
};

/* Takes what is in *record on success. -ENOMEM. */
int must_check adopt_new(struct state_generation *record, struct adopt **ret_adopt);

/* Closes what is not in exports yet. Accepts NULL; returns NULL. */
struct adopt *adopt_free(struct adopt *a);

/*
 * A descriptor of that name, which it takes (closed on failure too, and where one is there
 * already). An allocation that is a window brings the memfd or the file that it is a window of.
 * -EINVAL with ret_err: it is not what the state says.
 */
int must_check adopt_give(
	struct adopt *a, const struct stash_name *name, int fd, struct err *ret_err);

/* Is it the same file, in the same state? fd is borrowed. */
bool adopt_is_same_file(const struct adopt *a, int fd);

/* Every descriptor that the residency (an index into those of the record) needs is there. */
bool adopt_is_whole(const struct adopt *a, uint32_t residency);

/* Calls fn with every descriptor that is there; they are lent. */
typedef void (*adopt_fn)(const struct stash_name *name, int fd, void *userdata);
void adopt_visit(const struct adopt *a, adopt_fn fn, void *userdata);

/*
 * The source, and the export of a whole residency, its memory not yet imported. They own their
 * descriptors from here on, so that no more are open than after a load, and lend them to this,
 * which they must outlive: see adopt_forget. -errno, and nothing has changed.
 */
int must_check adopt_make_source(struct adopt *a, struct source_account *account,
	struct err *ret_err, struct source **ret_source);
int must_check adopt_make_export(struct adopt *a, uint32_t residency, struct source *source,
	struct err *ret_err, struct export **ret_export);

/* The residency's export is about to go: what it lent is not here any more. */
void adopt_forget(struct adopt *a, uint32_t residency);

#endif
