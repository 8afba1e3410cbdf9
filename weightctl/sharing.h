/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SHARING_H
#define WEIGHTCTL_SHARING_H

/*
 * What sharing saves, out of weightd's status.
 */
#include <stdint.h>

#include "proto/weights-client.h"

struct sharing {
	uint32_t n_workers;
	uint32_t n_leases;
	uint64_t resident_bytes; /* weights of all generations, once each */
	uint64_t private_bytes;  /* KV, scratch and io of all workers */
	uint64_t separate_bytes; /* weights, had every lease a copy of its own */
};

struct sharing sharing_count(const struct weights_client_status *s);

/* NULL: no such generation. Borrowed. */
const struct weights_client_generation *sharing_find_generation(
	const struct weights_client_status *s, uint64_t id);

#endif
