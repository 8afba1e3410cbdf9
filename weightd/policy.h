/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_POLICY_H
#define WEIGHTD_POLICY_H

/*
 * What the administrator wants of placement: budgets, and rules by tensor name. Values only; what
 * they lead to is weightd/placement's. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

enum { POLICY_MAX_RULES = 64, POLICY_MAX_PATTERN_BYTES = 128 };

enum policy_experts {
	POLICY_EXPERTS_AUTO,   /* the first to leave the device, from the last layer on */
	POLICY_EXPERTS_DEVICE, /* they leave with their layers */
	POLICY_EXPERTS_HOST,   /* never on the device */
};

struct policy_rule {
	char pattern[POLICY_MAX_PATTERN_BYTES]; /* fnmatch(3) on tensor names */
	uint32_t placement;                     /* enum manifest_placement */
};

struct policy {
	uint64_t vram_budget;   /* bytes of weights on a device; 0: what is free */
	uint64_t device_budget; /* of a device in all, workers among them; 0: the driver's */
	uint64_t host_budget;   /* bytes of weights in host memory; 0: what is free */
	uint64_t reserve_bytes; /* of what is free on a device, left to others */
	enum policy_experts experts;
	uint32_t n_rules;
	struct policy_rule rules[POLICY_MAX_RULES];
};

/* "512M": a number above 0 with K, M, G or T (1024 each) behind it, or none. -EINVAL with ret_err.
 */
int must_check policy_parse_bytes(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes);

/* The same for what may be nothing: the budgets, of which 0 becomes a byte, less than any tensor,
 * for in struct policy 0 is what is free; and the reserve. -EINVAL. */
int must_check policy_parse_budget(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes);
int must_check policy_parse_reserve(
	const char *option, const char *text, struct err *ret_err, uint64_t *ret_bytes);

/* "auto", "device" or "host". -EINVAL. */
int must_check policy_parse_experts(
	const char *text, struct err *ret_err, enum policy_experts *ret_experts);

/* Adds PATTERN=PLACEMENT. -EINVAL; -E2BIG for one rule too many. */
int must_check policy_add_rule(struct policy *p, const char *text, struct err *ret_err);

/* Does the rule of this index name the tensor? */
bool policy_names(const struct policy *p, uint32_t rule, const char *tensor);

/* The placement of the last rule that matches; 0: none does. */
uint32_t policy_find(const struct policy *p, const char *tensor);

#endif
