/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/cleanup.h"
#include "tests/ref/gguf-build.h"
#include "tests/ref/ref-blocks.h"

/* Rounds toward zero; below the smallest normal number it is 0. */
static uint16_t to_f16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	if (magnitude < 0x38800000) /* 2^-14 */
		return (uint16_t)sign;
	return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

static void fill_q8_0(float sigma, uint64_t *rng, uint8_t *block)
{
	/* Uniform -127 .. 127 has deviation 73.3. */
	uint16_t h = to_f16(sigma / 73.3f * (1 + 0.25f * ref_blocks_random_unit(rng)));

	memcpy(block, &h, sizeof(h));
	for (uint32_t at = 2; at < 34; at += 8) {
		uint64_t bits = ref_blocks_random(rng);
		memcpy(block + at, &bits, 8);
	}
	for (uint32_t at = 2; at < 34; at++)
		if (block[at] == 0x80) /* -128: no quantizer writes it */
			block[at] = 0;
}

/*
 * Numbers and scales within the block are any, its f16 scales of either sign, which evens out what
 * the numbers' mean is beside 0.
 */
static void fill_block(uint32_t type, float sigma, uint64_t *rng, uint8_t *block)
{
	/* The deviation of such numbers with a d of 1, and the dmin that puts their mean at 0. */
	static const struct {
		uint32_t type;
		float deviation, min;
	} formats[] = {
		{DTYPE_Q4_0, 4.637f, 0},
		{DTYPE_Q4_K, 258.3f, 7.5f},
		{DTYPE_Q5_K, 526.9f, 15.5f},
		{DTYPE_Q6_K, 1365.7f, 0},
		{DTYPE_TQ2_0, 0.7071f, 0},
		{DTYPE_Q2_0, 0.7071f, 0},
		{DTYPE_Q1_0, 1, 0},
	};
	const uint32_t n_bytes = dtype_find(type)->n_bytes;
	size_t i = 0;

	while (i < ARRAY_SIZE(formats) && formats[i].type != type)
		i++;
	if (i == ARRAY_SIZE(formats)) {
		memset(block, 0, n_bytes);
		return;
	}
	float d = sigma / formats[i].deviation * (1 + 0.25f * ref_blocks_random_unit(rng));
	if (ref_blocks_random(rng) >> 63)
		d = -d;
	ref_blocks_put_codes(type, rng, block);
	/* -1, 0 and 1 alone, as ternary models have them. */
	for (uint32_t b = 0; (type == DTYPE_TQ2_0 || type == DTYPE_Q2_0) && b < n_bytes; b++)
		block[b] &= (uint8_t) ~((block[b] & block[b] >> 1 & 0x55) << 1);
	ref_blocks_put_scales(type, d, d * formats[i].min, block);
}

void gguf_build_fill(
	uint32_t type, float mean, float sigma, uint64_t n_blocks, uint64_t *rng, uint8_t *ret)
{
	const float span = sigma * 1.7320508f; /* sqrt(3): the deviation of a uniform in [-1, 1) */
	const struct dtype *dtype = dtype_find(type);

	for (uint64_t i = 0; i < n_blocks; i++) {
		uint8_t *block = ret + i * dtype->n_bytes;
		float f = mean + span * ref_blocks_random_unit(rng);
		uint16_t h = to_f16(f);

		switch (type) {
		case DTYPE_F32: memcpy(block, &f, sizeof(f)); break;
		case DTYPE_F16: memcpy(block, &h, sizeof(h)); break;
		case DTYPE_BF16: memcpy(block, (uint8_t *)&f + 2, 2); break;
		case DTYPE_Q8_0: fill_q8_0(sigma, rng, block); break;
		default: fill_block(type, sigma, rng, block);
		}
	}
}
