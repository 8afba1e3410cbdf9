/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_STATE_HASH_H
#define WEIGHTD_STATE_HASH_H

/*
 * The head of a state file, for the state files alone: its hash is against damage, malice is kept
 * out by the file's owner and mode. Any thread.
 */
#include <stdint.h>
#include <string.h>

#include "proto/util/fnv.h"

enum { STATE_HASH_HEAD_BYTES = 16, STATE_HASH_MAGIC_BYTES = 8 };

static const char state_hash_magic[STATE_HASH_MAGIC_BYTES] = {
	'W', 'D', 'S', 'T', 'A', 'T', 'E', '1'};

/* Little-endian, as the build checks the machine is. */
static inline void state_hash_write_head(uint8_t *head, const void *data, uint64_t n_bytes)
{
	uint64_t hash = fnv_hash(data, n_bytes);

	memcpy(head, state_hash_magic, STATE_HASH_MAGIC_BYTES);
	memcpy(head + STATE_HASH_MAGIC_BYTES, &hash, sizeof(hash));
}

#endif
