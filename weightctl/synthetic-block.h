/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SYNTHETIC_BLOCK_H
#define WEIGHTCTL_SYNTHETIC_BLOCK_H

/*
 * Random blocks of each format, as quantizing would leave them: every code can occur that a
 * quantizer writes, no other; scales are normal f16. Layouts are those of ggml-common.h. Ids are
 * GGUF's; kept here, because they are written also where proto/dtype.h does not know them yet: then
 * weightd says so.
 */
#include <stdint.h>

enum {
	SYNTHETIC_BLOCK_F32 = 0,
	SYNTHETIC_BLOCK_F16 = 1,
	SYNTHETIC_BLOCK_Q4_0 = 2,
	SYNTHETIC_BLOCK_Q8_0 = 8,
	SYNTHETIC_BLOCK_Q4_K = 12,
	SYNTHETIC_BLOCK_Q6_K = 14,
	SYNTHETIC_BLOCK_TQ2_0 = 35,
	SYNTHETIC_BLOCK_Q1_0 = 41,
	SYNTHETIC_BLOCK_Q2_0 = 42,
};

struct synthetic_block {
	uint32_t dtype;
	uint32_t n_block; /* numbers */
	uint32_t n_bytes;
	/* Makes one block of numbers with mean 0 and standard deviation sigma. */
	void (*fill)(uint64_t *rng, float sigma, uint8_t *ret_block);
};

/* Of one of the ids above. Borrowed, static. Any thread. */
const struct synthetic_block *synthetic_block_find(uint32_t dtype);

/* 64 random bits; any state is a good one (splitmix64). */
uint64_t synthetic_block_draw(uint64_t *rng);

#endif
