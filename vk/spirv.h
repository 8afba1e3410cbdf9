/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SPIRV_H
#define VK_SPIRV_H

/* The few things that must be known of a compute module before Vulkan gets it. */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/*
 * The workgroup size that the module has with these specialization constants (constant_id i has
 * spec[i]); SPIR-V specification, sections 2.3 and 3.6. The module is borrowed. -EINVAL when it is
 * no SPIR-V or states no size.
 */
int must_check vk_spirv_get_group_size(const uint32_t *words, uint64_t n_bytes,
	const uint32_t *spec, uint32_t n_spec, struct err *ret_err, uint32_t ret_size[3]);

#endif
