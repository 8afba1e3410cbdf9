/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TUNING_H
#define WORKERD_TUNING_H

/*
 * How matrix products are cut, as measured on one device (workerd/cuts.h): a choice for each kind
 * of product and number of rows. Ops ask for theirs when commands are recorded (op_pool_set_tuning)
 * and check it as they check their own, so a choice can make them slow and never wrong. Text of it
 * is a line for each choice. Any one thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "shaders/abi.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/matvec.h"

struct op_matmul_params;
struct tuning;

/* What products must have in common. No padding: compared as bytes. */
struct tuning_key {
	uint32_t n_parts;
	uint32_t dtype[ABI_MATMUL_MAX_PARTS]; /* of each part, others 0 */
	uint32_t n[ABI_MATMUL_MAX_PARTS];     /* its rows of W, others 0 */
	uint32_t k;
	uint32_t finish;    /* enum op_matmul_finish */
	uint32_t has_norm;  /* 0 or 1, as the next two */
	uint32_t is_staged; /* by the op before it: op_matvec_chain */
	uint32_t has_next;  /* it stages for another op */
	uint32_t n_rows;    /* of x: the power of two that is not below */
};

enum tuning_kind { TUNING_MATVEC, TUNING_MATRIX };

struct tuning_choice {
	enum tuning_kind kind;
	union {
		struct op_matvec_shape shape;
		struct op_matrix_tile tile;
	};
};

enum { TUNING_MAX_ENTRIES = 1024, TUNING_TEXT_BYTES = 256 };

struct tuning *tuning_new(void); /* NULL: no memory */
struct tuning *tuning_free(struct tuning *t);

void tuning_get_key(const struct op_matmul_params *p, struct tuning_key *ret_key);

/* Replaces the key's choice; of a full table the oldest goes. -EINVAL: no device can have it. */
int must_check tuning_set(
	struct tuning *t, const struct tuning_key *key, const struct tuning_choice *choice);

/* NULL where there is none of this kind, or no table: t may be NULL. Until the next tuning_set. */
const struct tuning_choice *tuning_find(
	const struct tuning *t, const struct op_matmul_params *p, enum tuning_kind kind);

bool tuning_is_same(const struct tuning_choice *a, const struct tuning_choice *b);

uint32_t tuning_count(const struct tuning *t);

/* Lines, which the caller frees. -ENOMEM. */
int must_check tuning_encode(const struct tuning *t, char **ret_text, size_t *ret_n_bytes);

/* Takes the choices of what tuning_encode wrote; returns how many lines were none and left out. */
uint32_t tuning_decode(struct tuning *t, const char *text);

/* For people: what a product is, and how it is cut; one line each, the second as in the text. */
void tuning_describe_key(const struct tuning_key *key, char ret_text[TUNING_TEXT_BYTES]);
void tuning_describe_choice(const struct tuning_choice *choice, char ret_text[TUNING_TEXT_BYTES]);

#endif
