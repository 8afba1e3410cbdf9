/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_GENERATION_H
#define WEIGHTCTL_GENERATION_H

/*
 * One run of a session's model: its text goes to stdout as it comes, or is kept for one JSON
 * object. Several completions are printed when all are there.
 */
#include <stdint.h>

#include <jansson.h>

#include "proto/util/cleanup.h"
#include "proto/worker-client.h"

struct err;
struct options;

/* Zero is empty. */
struct generation {
	char *text; /* [n_bytes], not NUL-terminated */
	uint64_t n_bytes, n_room;
	uint32_t *ids; /* [n_ids] */
	uint64_t n_ids, n_ids_room;
	json_t *logprobs; /* an array of a row for each token; NULL: none were asked for */
	struct worker_client_finished finished;
};

/* Zero is empty. */
struct generation_list {
	struct generation rows[WORKER_CLIENT_MAX_COMPLETIONS]; /* [n] */
	uint32_t n;
};

void generation_list_fini(struct generation_list *list);

/*
 * Generates o->n completions into *ret_list (empty before). Without --json prints every piece and
 * at the end a line break; several completions with an empty line between. A context that is full
 * is told on stderr. -ECANCELED, -EIO with ret_err when the worker gave up.
 */
int must_check generation_run(const struct options *o, struct worker_client *c, uint64_t session,
	struct err *ret_err, struct generation_list *ret_list);

/* The object of --json, the caller's reference. NULL: no memory. */
json_t *generation_json(const struct generation *g);

/* The same of one; of several an object with their array, "completions". */
json_t *generation_list_json(const struct generation_list *list);

#endif
