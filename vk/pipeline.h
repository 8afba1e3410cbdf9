/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_PIPELINE_H
#define VK_PIPELINE_H

/*
 * One compute pipeline: a kernel with its specialization constants. There are no descriptor sets;
 * a kernel gets at most 128 bytes of push constants with device addresses in them.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_device;
struct vk_pipeline;

enum { VK_PIPELINE_MAX_PUSH_BYTES = 128, VK_PIPELINE_MAX_SPEC = 20 };

struct vk_pipeline_params {
	const char *name;      /* for errors, profiles and the validation layer; copied */
	const uint32_t *spirv; /* borrowed for the call */
	uint64_t n_spirv_bytes;
	uint32_t n_push_bytes;
	uint32_t n_spec; /* constant_id i gets spec[i] */
	uint32_t spec[VK_PIPELINE_MAX_SPEC];
	bool is_trial; /* it is not for the device's cache, as what is only measured */
};

/*
 * Full subgroups of the device's default size are required where the device can promise them. Any
 * thread.
 */
int must_check vk_pipeline_new(struct vk_device *d, const struct vk_pipeline_params *params,
	struct err *ret_err, struct vk_pipeline **ret_pipeline);
struct vk_pipeline *vk_pipeline_free(struct vk_pipeline *p);
const char *vk_pipeline_get_name(const struct vk_pipeline *p);

#endif
