/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_CHOICE_H
#define WEIGHTD_CHOICE_H

/* The first half of weightd/placement: which placement each tensor gets. Any thread. */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct placement_limits;
struct policy;

struct choice {
	uint64_t n_unmet_bytes;
	uint64_t n_short_bytes; /* with CHOICE_SHORT, and then alone */
	uint8_t *placement;     /* [n_tensors] by tensor index: enum manifest_placement; owned */
};

/* As PLACEMENT_SHORT. */
enum { CHOICE_SHORT = 1 };

/* order: tensor indices by file offset, [n_tensors]. Errors of placement_new. */
int must_check choice_init(const struct gguf *g, const uint32_t *order,
	const struct placement_limits *limits, const struct policy *policy, struct err *ret_err,
	struct choice *ret_choice);

void choice_fini(struct choice *c);

#endif
