/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_CANDIDATES_H
#define WORKERD_CANDIDATES_H

/*
 * The tokens that one is drawn from, and the filters that leave fewer of them. Each filter takes
 * the probabilities, a softmax of the logits, of what those before it left; none leaves nothing.
 * Of equal ones the lowest id is the better. Nothing sorts more than it has to keep, and only
 * taking them needs logits. One thread at a time; no allocation but in init.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct candidate {
	float logit;
	float key;    /* what is better has more */
	float weight; /* softmax without its divisor */
	uint32_t id;
};

/* Zero is empty. */
struct candidates {
	struct candidate *list; /* [n_vocab], n in use */
	uint32_t n;
	uint32_t n_vocab;
};

int must_check candidates_init(struct candidates *c, uint32_t n_vocab);
void candidates_fini(struct candidates *c);

/*
 * Begin anew with the n best (top-k), in that order, or all, in the order of ids; finite logits
 * alone. logits: [n_vocab] f32; ids: [n_ids], ascending, the only ones to be looked at
 */
void candidates_take_best(struct candidates *c, const float *logits, uint32_t n);
void candidates_take_best_of(
	struct candidates *c, const float *logits, const uint32_t *ids, uint32_t n_ids, uint32_t n);
void candidates_take_all(struct candidates *c, const float *logits);

/*
 * Locally typical sampling (Meister et al., 2023, https://arxiv.org/abs/2202.00666): leaves the
 * fewest tokens whose -log p is nearest to the entropy -sum p log p and that hold the share.
 */
void candidates_cut_typical(struct candidates *c, float share);

/* Nucleus sampling (Holtzman et al., 2020): leaves the fewest best that hold the share. */
void candidates_cut_top_p(struct candidates *c, float share);

/* Drops what is less probable than share times the most probable, which stays. */
void candidates_cut_min_p(struct candidates *c, float share);

/* Softmax of logits / temperature (> 0), cut at unit, in [0, 1). There must be one. */
uint32_t candidates_draw(struct candidates *c, float temperature, double unit);

#endif
