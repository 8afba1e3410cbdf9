/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_OP_ARENA_H
#define TESTS_VULKAN_OP_ARENA_H

/*
 * What the tests of single kernels share: one io memory filled with a NaN pattern, out of which
 * inputs and outputs are taken with a guard behind each. After a run every byte that the kernel was
 * expected to write must have changed and no other byte may have.
 *
 * Shapes and numbers are random from a seed of the day; WEIGHTD_TEST_SEED repeats one.
 */
#include "tests/vulkan/on-device.h"

#include "proto/dtype.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"
#include "workerd/weights.h"

struct op_arena {
	struct vk_device *d;
	struct op_pool *pool;
	struct vk_memory *memory;
	struct vk_command *command;
	uint8_t *map;        /* [n_bytes] */
	uint8_t *before;     /* [n_bytes] the image that the kernel finds */
	uint8_t *is_written; /* [n_bytes] 1: the kernel is to write it */
	uint8_t *is_free;    /* [n_bytes] 1: it may */
	uint64_t n_bytes;
	uint64_t at;
	uint64_t seed;
	uint64_t random; /* state */
};

/* The seed of this run, printed once. For main. */
uint64_t op_arena_seed(void);

void op_arena_init(struct op_arena *a, uint64_t n_bytes, uint64_t seed);
void op_arena_fini(struct op_arena *a);

/* Empty and poisoned again; pipelines stay. */
void op_arena_reset(struct op_arena *a);

/* Uniform in [low, high]. */
uint32_t op_arena_random(struct op_arena *a, uint32_t low, uint32_t high);

/* Uniform in [-1, 1). */
float op_arena_random_float(struct op_arena *a);

/* n_bytes at an address that is `skew` more than a multiple of 256; the offset. */
uint64_t op_arena_take(struct op_arena *a, uint64_t n_bytes, uint32_t skew);

static inline uint64_t op_arena_address(const struct op_arena *a, uint64_t offset)
{
	return vk_memory_get_address(a->memory) + offset;
}

static inline float *op_arena_floats(const struct op_arena *a, uint64_t offset)
{
	return (float *)(a->map + offset);
}

/* n random floats; the offset. */
uint64_t op_arena_take_floats(struct op_arena *a, uint64_t n);

/* One u32. */
uint64_t op_arena_take_u32(struct op_arena *a, uint32_t value);

/* A matrix [n][k] of random numbers in the block format, as a tensor in the arena. */
struct weights_tensor op_arena_take_matrix(
	struct op_arena *a, uint32_t dtype, uint32_t n, uint32_t k, uint32_t skew);

/* The matrix as floats [n][k]; the caller frees. */
float *op_arena_dequantize(const struct op_arena *a, const struct weights_tensor *w);

/* The kernel is to write these bytes. */
void op_arena_expect(struct op_arena *a, uint64_t offset, uint64_t n_bytes);

/* Starts recording; the test records, then runs. */
struct vk_command *op_arena_begin(struct op_arena *a);

/* Runs what was recorded and checks which bytes changed. */
void op_arena_run(struct op_arena *a);

/* Fails unless |found - expected| <= tolerance; what and i say where. */
void op_arena_check_near(const struct op_arena *a, float found, float expected, float tolerance,
	const char *what, uint64_t i);

#endif
