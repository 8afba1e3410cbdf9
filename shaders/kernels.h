/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_KERNELS_H
#define SHADERS_KERNELS_H

/*
 * The kernels of kernels.def as SPIR-V, part of the program: nothing to find at run time.
 */
#include <stdbool.h>
#include <stdint.h>

enum kernels_id {
#define KERNEL(name, source, push, definition) KERNELS_##name,
#define KERNEL_MATRIX KERNEL
#include "shaders/kernels.def"
#undef KERNEL
#undef KERNEL_MATRIX
	KERNELS_N,
};

struct kernels_row {
	const char *name;
	const uint32_t *spirv; /* NULL: see kernels_has */
	uint64_t n_spirv_bytes;
	uint32_t n_push_bytes; /* of its struct in abi.h */
};

/* Did this build's glslc know what the kernel is written in? Others have no SPIR-V. Any thread. */
bool kernels_has(enum kernels_id id);

/* id < KERNELS_N. Borrowed, static. Any thread. */
const struct kernels_row *kernels_get(enum kernels_id id);

#endif
