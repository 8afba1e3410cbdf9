/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_FNV_H
#define PROTO_UTIL_FNV_H

/*
 * FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/): against damage, and to find things.
 * Anybody can make two texts of one hash. Any thread.
 */
#include <stdint.h>

static inline uint64_t fnv_hash(const void *data, uint64_t n_bytes)
{
	const uint8_t *p = data;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (uint64_t i = 0; i < n_bytes; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
