/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/op-arena.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "proto/manifest.h"
#include "tests/ref/ref-blocks.h"
#include "tests/ref/ref-ops.h"

/* A quiet NaN that no computation makes: whatever reads it shows it. */
static const uint32_t poison = 0x7fc0dead;

uint64_t op_arena_seed(void)
{
	const char *text = getenv("WEIGHTD_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

	fprintf(stderr, "seed: WEIGHTD_TEST_SEED=%" PRIu64 "\n", seed);
	return seed;
}

void op_arena_init(struct op_arena *a, uint64_t n_bytes, uint64_t seed)
{
	struct err e = ERR_NULL;

	*a = (struct op_arena){.n_bytes = n_bytes, .seed = seed, .random = seed};
	a->d = on_device_new();
	on_device_check(op_pool_new(a->d, &e, &a->pool), &e, "pool");
	a->memory = on_device_memory(a->d, VK_MEMORY_IO, n_bytes, false);
	a->map = (uint8_t *)on_device_map(a->memory);
	a->command = on_device_command(a->d, 0);
	a->before = malloc(n_bytes);
	a->is_written = malloc(n_bytes);
	a->is_free = malloc(n_bytes);
	assert_non_null(a->before);
	assert_non_null(a->is_free);
	assert_non_null(a->is_written);
	op_arena_reset(a);
}

void op_arena_fini(struct op_arena *a)
{
	free(a->before);
	free(a->is_written);
	free(a->is_free);
	vk_command_free(a->command);
	op_pool_free(a->pool);
	vk_memory_free(a->memory);
	vk_device_free(a->d);
}

void op_arena_reset(struct op_arena *a)
{
	for (uint64_t i = 0; i < a->n_bytes; i += sizeof(poison))
		memcpy(a->map + i, &poison, sizeof(poison));
	memset(a->is_written, 0, a->n_bytes);
	memset(a->is_free, 0, a->n_bytes);
	a->at = 0;
}

/* splitmix64 (https://prng.di.unimi.it/splitmix64.c). */
static uint64_t next_random(struct op_arena *a)
{
	uint64_t z = a->random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint32_t op_arena_random(struct op_arena *a, uint32_t low, uint32_t high)
{
	return low + (uint32_t)(next_random(a) % ((uint64_t)high - low + 1));
}

float op_arena_random_float(struct op_arena *a)
{
	return (float)(next_random(a) >> 40) * 0x1p-23f - 1.0f;
}

uint64_t op_arena_take(struct op_arena *a, uint64_t n_bytes, uint32_t skew)
{
	uint64_t offset = a->at + skew;

	/* At least 256 bytes of guard, then the next multiple of 256. */
	a->at = (offset + n_bytes + 511) / 256 * 256;
	assert_true(a->at <= a->n_bytes);
	return offset;
}

uint64_t op_arena_take_floats(struct op_arena *a, uint64_t n)
{
	uint64_t offset = op_arena_take(a, n * sizeof(float), 0);

	for (uint64_t i = 0; i < n; i++)
		op_arena_floats(a, offset)[i] = op_arena_random_float(a);
	return offset;
}

uint64_t op_arena_take_u32(struct op_arena *a, uint32_t value)
{
	uint64_t offset = op_arena_take(a, sizeof(value), 0);

	memcpy(a->map + offset, &value, sizeof(value));
	return offset;
}

struct weights_tensor op_arena_take_matrix(
	struct op_arena *a, uint32_t dtype, uint32_t n, uint32_t k, uint32_t skew)
{
	const struct dtype *row = dtype_find(dtype);
	uint64_t n_row_bytes = (uint64_t)k / row->n_block * row->n_bytes;
	uint64_t offset = op_arena_take(a, n * n_row_bytes, skew),
		 rng = op_arena_random(a, 1, UINT32_MAX);

	ref_blocks_fill(dtype, (uint64_t)n * (k / row->n_block), 1, 1, &rng, a->map + offset);
	return (struct weights_tensor){
		.address = op_arena_address(a, offset),
		.dtype = dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, 1, 1},
		.n_bytes = n * n_row_bytes,
	};
}

float *op_arena_dequantize(const struct op_arena *a, const struct weights_tensor *w)
{
	const uint8_t *data = a->map + (w->address - vk_memory_get_address(a->memory));
	uint32_t k = (uint32_t)w->ne[0], n = (uint32_t)w->ne[1];
	float *y = malloc(sizeof(float) * n * k);

	assert_non_null(y);
	for (uint32_t j = 0; j < n; j++)
		ref_ops_dequantize(w->dtype, data + j * (w->n_bytes / n), k, y + (uint64_t)j * k);
	return y;
}

void op_arena_expect(struct op_arena *a, uint64_t offset, uint64_t n_bytes)
{
	memset(a->is_written + offset, 1, n_bytes);
}

struct vk_command *op_arena_begin(struct op_arena *a)
{
	vk_command_begin(a->command);
	return a->command;
}

void op_arena_run(struct op_arena *a)
{
	memcpy(a->before, a->map, a->n_bytes);
	vk_command_host_barrier(a->command);
	on_device_run(a->d, a->command);
	for (uint64_t i = 0; i < a->n_bytes; i++)
		if (!a->is_written[i] && !a->is_free[i] && a->map[i] != a->before[i]) {
			fprintf(stderr, "value %u\n", *(uint32_t *)(a->map + i));
			fail_msg("seed %" PRIu64 ": byte %" PRIu64 " was written", a->seed, i);
		}
	/* A float of poison in an output was not written, or made of what must not be read. */
	for (uint64_t i = 0; i < a->n_bytes; i += sizeof(poison))
		if (a->is_written[i] && !memcmp(a->map + i, &poison, sizeof(poison)))
			fail_msg("seed %" PRIu64 ": byte %" PRIu64 " was not written", a->seed, i);
}

void op_arena_check_near(const struct op_arena *a, float found, float expected, float tolerance,
	const char *what, uint64_t i)
{
	if (!(fabsf(found - expected) <= tolerance))
		fail_msg("seed %" PRIu64 ": %s %" PRIu64 ": expected %.9g +- %.3g, found %.9g",
			a->seed, what, i, (double)expected, (double)tolerance, (double)found);
}
