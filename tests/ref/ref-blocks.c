/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/ref-blocks.h"

#include <math.h>
#include <string.h>

#include "proto/dtype.h"
#include "shaders/abi.h"
#include "tests/ref/ref-ops.h"

uint64_t ref_blocks_random(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

float ref_blocks_random_unit(uint64_t *rng)
{
	return (float)(int32_t)(ref_blocks_random(rng) >> 32) * 0x1p-31f;
}

void ref_blocks_put_codes(uint32_t dtype, uint64_t *rng, uint8_t *ret_block)
{
	uint32_t n_bytes = dtype_find(dtype)->n_bytes;

	for (uint32_t at = 0; at < n_bytes; at += 8) {
		uint64_t bits = ref_blocks_random(rng);
		memcpy(ret_block + at, &bits, n_bytes - at < 8 ? n_bytes - at : 8);
	}
}

void ref_blocks_put_scales(uint32_t dtype, float d, float min, uint8_t *ret_block)
{
	uint32_t at[REF_OPS_MAX_SCALES], n_scales = ref_ops_get_scales(dtype, at);

	for (uint32_t i = 0; i < n_scales; i++) {
		uint16_t half = ref_ops_to_half(i == 0 ? d : min);
		memcpy(ret_block + at[i], &half, sizeof(half));
	}
}

static float draw_scale(float top, uint64_t *rng)
{
	float v = top * ref_blocks_random_unit(rng);

	return ref_blocks_random(rng) >> 61 ? v : v * 0x1p-15f;
}

void ref_blocks_fill(
	uint32_t dtype, uint64_t n, float d, float min, uint64_t *rng, void *ret_blocks)
{
	uint32_t n_bytes = dtype_find(dtype)->n_bytes;
	uint8_t *block = ret_blocks;

	for (uint64_t i = 0; i < n; i++, block += n_bytes) {
		float v = d * ref_blocks_random_unit(rng), e;
		uint16_t half = ref_ops_to_half(v);

		switch (dtype) {
		case DTYPE_F32: memcpy(block, &v, sizeof(v)); break;
		case DTYPE_F16: memcpy(block, &half, sizeof(half)); break;
		case DTYPE_BF16: memcpy(block, (uint8_t *)&v + 2, 2); break;
		default:
			ref_blocks_put_codes(dtype, rng, block);
			v = draw_scale(d, rng);
			e = draw_scale(min, rng);
			ref_blocks_put_scales(dtype, v, e, block);
		}
	}
}

void ref_blocks_dequantize(
	uint32_t dtype, const void *row, uint32_t k, float *ret_w, float *ret_reach)
{
	ref_ops_dequantize(dtype, row, k, ret_w);
	for (uint32_t i = 0; ret_reach && i < k; i++) {
		struct ref_ops_number n = ref_ops_get_number(dtype, row, i);
		ret_reach[i] = fabsf(n.scale * (float)n.code) + fabsf(n.scale * (float)n.zero) +
			       fabsf(n.min);
	}
}

/* Which number of 32 byte b of word w is. */
static uint32_t number_of(uint32_t order, uint32_t w, uint32_t b)
{
	switch (order) {
	case ABI_QUANT_ORDER_BY4: return 16 * (w / 4) + 4 * b + w % 4;
	case ABI_QUANT_ORDER_BY8: return 8 * b + w;
	default: return 4 * w + b;
	}
}

void ref_blocks_unstage(
	uint32_t order, const void *row, uint32_t k, float *ret_a, float *ret_scales)
{
	const uint8_t *bytes = row;

	for (uint32_t i = 0; i < k; i++) {
		uint32_t block = i / 32, unit = i / 64, byte = i % 32;
		uint32_t w = byte / 4, quad = block % 2 * 2 + w / 4;
		int8_t q = (int8_t)bytes[(quad * (k / 64) + unit) * 16 + w % 4 * 4 + byte % 4];
		float scale;

		memcpy(&scale, bytes + k + (block % 2 * (k / 64) + unit) * 8, sizeof(scale));
		ret_a[32 * block + number_of(order, w, byte % 4)] = scale * (float)q;
		if (ret_scales)
			ret_scales[block] = scale;
	}
}
