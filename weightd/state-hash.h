/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_STATE_HASH_H
#define WEIGHTD_STATE_HASH_H

/* The head of a state file, for the state files alone. Any thread. */
#include <stdint.h>
#include <string.h>

enum { STATE_HASH_HEAD_BYTES = 16, STATE_HASH_MAGIC_BYTES = 8 };

static const char state_hash_magic[STATE_HASH_MAGIC_BYTES] = {
	'W', 'D', 'S', 'T', 'A', 'T', 'E', '1'};

/*
 * FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv/): against damage. Malice is kept out
 * by the file's owner and mode.
 */
static inline uint64_t state_hash(const void *data, uint64_t n_bytes)
{
	const uint8_t *p = data;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (uint64_t i = 0; i < n_bytes; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* Little-endian, as the build checks the machine is. */
static inline void state_hash_write_head(uint8_t *head, const void *data, uint64_t n_bytes)
{
	uint64_t hash = state_hash(data, n_bytes);

	memcpy(head, state_hash_magic, STATE_HASH_MAGIC_BYTES);
	memcpy(head + STATE_HASH_MAGIC_BYTES, &hash, sizeof(hash));
}

#endif
