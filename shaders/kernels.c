/* SPDX-License-Identifier: Apache-2.0 */
#include "shaders/kernels.h"

#include <assert.h>
#include <stddef.h>

#include "shaders/abi.h"
#include "shaders/kernels-spirv.h"

#define KERNEL(name, source, push, definition)                                          \
	static_assert(sizeof(struct push) <= 128, #push ": more than Vulkan promises"); \
	static_assert(sizeof(struct push) % 8 == 0, #push ": padded unlike std430");
#include "shaders/kernels.def"
#undef KERNEL

static const struct kernels_row rows[KERNELS_N] = {
#define KERNEL(name, source, push, definition) \
	[KERNELS_##name] = {#name, spirv_##name, sizeof(spirv_##name), sizeof(struct push)},
#if !KERNELS_HAS_MATRIX
#define KERNEL_MATRIX(name, source, push, definition) \
	[KERNELS_##name] = {#name, NULL, 0, sizeof(struct push)},
#endif
#include "shaders/kernels.def"
#undef KERNEL
};

const struct kernels_row *kernels_get(enum kernels_id id)
{
	assert(id < KERNELS_N);
	return &rows[id];
}

bool kernels_has(enum kernels_id id)
{
	return kernels_get(id)->spirv;
}
