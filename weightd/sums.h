/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SUMS_H
#define WEIGHTD_SUMS_H

/*
 * The checksums of a generation's tensors, in the order of its manifest: a table tensor -> pieces.
 * A tensor's sums become known from the front; a piece that is not known has none to compare with.
 * One thread at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

enum {
	SUMS_MAX_TENSORS = 1 << 16, /* as GGUF_MAX_TENSORS */
};

/* 256 TiB of weights; keeps sizes of tables far from overflow. */
#define SUMS_MAX_PIECES (UINT64_C(1) << 28)

struct sums_tensor {
	uint64_t n_bytes;
	uint64_t first;   /* index into values */
	uint64_t n_known; /* pieces; the others' values are 0 */
};

struct sums {
	uint32_t n_tensors;
	uint64_t n_pieces;
	struct sums_tensor *tensors; /* [n_tensors] */
	uint64_t *values;            /* [n_pieces] */
};

/* Nothing known. n_bytes: of the tensors, [n_tensors]. -ENOMEM; -E2BIG beyond the caps. */
int must_check sums_new(uint32_t n_tensors, const uint64_t *n_bytes, struct sums **ret_sums);

/* The same table, and all that is known. -ENOMEM. */
int must_check sums_copy(const struct sums *s, struct sums **ret_sums);

/* Accepts NULL; returns NULL. */
struct sums *sums_free(struct sums *s);

/*
 * The sum that was found for a piece: false when another one is known. The first one of a piece,
 * behind those that are known, is kept.
 */
bool sums_put(struct sums *s, uint32_t tensor, uint64_t piece, uint64_t value);

/* Every piece is known. */
bool sums_is_complete(const struct sums *s);

/*
 * As bytes, for weightd's own state file alone: sums are secret (weightd/sum.h). Little-endian:
 *
 *	u64 SUMS_MAGIC
 *	u32 n_tensors, u32 0
 *	u64 n_pieces
 *	[n_tensors] u64 n_bytes, u64 n_known
 *	[n_pieces]  u64 value
 *	u8[32]      SHA-256 of all before: against damage
 *
 * The caller frees *ret_data. -ENOMEM.
 */
#define SUMS_MAGIC 0x31534d5553445700ull /* "\0WDSUMS1" */
int must_check sums_pack(const struct sums *s, uint8_t **ret_data, uint64_t *ret_n_bytes);

/*
 * What sums_pack wrote, and nothing else: -EINVAL with ret_err for another size, a count that does
 * not fit, a value where none is known, damage. -ENOMEM.
 */
int must_check sums_unpack(
	const uint8_t *data, uint64_t n_bytes, struct err *ret_err, struct sums **ret_sums);

#endif
