/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_H
#define WORKERD_PLAN_H

/*
 * A model made executable: every kernel, fusion and scratch offset decided once, the commands of
 * each shape bucket recorded once, at its first use, and re-submitted. What changes from step to
 * step (tokens, positions, slots, pages, which rows want logits) is read from io memory. Engine
 * thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv;
struct plan;
struct vk_device;
struct weights;

struct plan_params {
	uint32_t n_rows;       /* most rows a step */
	uint32_t n_logit_rows; /* most rows with logits a step */
};

/* One token of one session in a step. */
struct plan_row {
	uint32_t token;
	uint32_t position; /* in its session; its KV entry is written, and all up to it are read */
	uint32_t slot;     /* of kv */
};

/* w and kv are borrowed for the plan's life. -ENOTSUP: no such architecture; -ENOMEM. */
int must_check plan_new(struct vk_device *d, const struct weights *w, struct kv *kv,
	const struct plan_params *params, struct err *ret_err, struct plan **ret_plan);
struct plan *plan_free(struct plan *p);

/*
 * Computes rows[0..n_rows). Rows of one session are consecutive and in order of position, and
 * kv_reserve has been called for them. want[0..n_want) are indices into rows whose logits are
 * wanted, ascending. *ret_logits: [n_want][n_vocab] f32, valid until the next step; NULL when
 * n_want is 0. -EINVAL for a token or position out of range; VK_DEVICE_LOST.
 */
int must_check plan_step(struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err, const float **ret_logits);

uint32_t plan_get_n_dispatches(const struct plan *p); /* of a step of one row with logits */
uint32_t plan_get_n_vocab(const struct plan *p);

#endif
