/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TUNER_H
#define WORKERD_TUNER_H

/*
 * Tunes a plan for whoever asks (proto/workerd.proto, Tune): workerd/cuts.h a cut at a time between
 * the steps of others; at the end the choices are kept on disk and the plan goes on with them. One
 * at a time; it ends with the connection and when the stack goes.
 *
 * Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct engine;
struct err;
struct message;

enum { TUNER_TEXT_BYTES = 256 };

struct tuner_row {
	char op[TUNER_TEXT_BYTES];
	char choice[TUNER_TEXT_BYTES];
	uint32_t n_rows;     /* of x */
	uint64_t default_ns; /* a product, of the ops' own choice */
	uint64_t best_ns;
};

/* The answer. */
struct tuner_result {
	uint64_t ns; /* that it took */
	bool is_saved;
	uint32_t n_done;     /* products that have been measured */
	uint32_t n_products; /* that there are */
	uint32_t n_rows;     /* all that have been measured; of a MESSAGE_TUNING the last one */
	struct tuner_row rows[];
};

/*
 * MESSAGE_TUNE: takes m on success and sends it when it is done. -EBUSY: another one is under way;
 * errors of plan_make_cuts.
 */
int must_check tuner_begin(struct engine *e, struct message *m, struct err *ret_err);

/* Of this client, if there is one. */
void tuner_end(struct engine *e, uint64_t client);

/* Measures a cut, if one is to be measured. */
void tuner_attend(struct engine *e);
bool tuner_is_due(const struct engine *e);

/* The stack is about to go, or the engine: who waits is refused. */
void tuner_stop(struct engine *e, const char *why);

#endif
