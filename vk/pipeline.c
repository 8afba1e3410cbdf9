/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/pipeline.h"

#include <errno.h>
#include <stdbool.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "vk/device-internal.h"
#include "vk/pipeline-internal.h"
#include "vk/result.h"
#include "vk/spirv.h"
#include "vk/statistics.h"

static int check_params(const struct vk_device *d, const struct vk_pipeline_params *params,
	struct err *ret_err, uint32_t ret_size[3])
{
	uint32_t size[3] = {0};

	if (params->n_push_bytes > VK_PIPELINE_MAX_PUSH_BYTES || params->n_push_bytes % 4)
		return err_set(ret_err, EINVAL,
			"push constants: expected a multiple of 4 up to %d bytes, found %u",
			VK_PIPELINE_MAX_PUSH_BYTES, params->n_push_bytes);
	if (params->n_spec > VK_PIPELINE_MAX_SPEC)
		return err_set(ret_err, EINVAL,
			"specialization constants: expected at most %d, found %u",
			VK_PIPELINE_MAX_SPEC, params->n_spec);
	int r = vk_spirv_get_group_size(
		params->spirv, params->n_spirv_bytes, params->spec, params->n_spec, ret_err, size);
	if (r)
		return r;
	uint64_t n = 1;
	for (int i = 0; i < 3; i++) {
		if (size[i] == 0 || size[i] > d->max_group_size[i])
			return err_set(ret_err, EINVAL,
				"workgroup dimension %d: expected 1 to %u, found %u", i,
				d->max_group_size[i], size[i]);
		n *= size[i];
		if (n > d->info.max_invocations)
			return err_set(ret_err, EINVAL,
				"workgroup of %u x %u x %u: expected at most %u invocations",
				size[0], size[1], size[2], d->info.max_invocations);
	}
	for (int i = 0; i < 3; i++)
		ret_size[i] = size[i];
	return 0;
}

static int make_layout(struct vk_pipeline *p, struct err *ret_err)
{
	VkPushConstantRange range = {
		.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = p->n_push_bytes};
	VkPipelineLayoutCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
		.pushConstantRangeCount = p->n_push_bytes > 0,
		.pPushConstantRanges = &range,
	};

	VkResult r =
		vk_device_note(p->d, vkCreatePipelineLayout(p->d->device, &info, NULL, &p->layout));
	return r == VK_SUCCESS ? 0 : vk_result_fail(r, ret_err, "layout");
}

static VkResult make_pipeline(struct vk_pipeline *p, VkShaderModule module,
	const struct vk_pipeline_params *params, const uint32_t size[3])
{
	const struct vk_device *d = p->d;
	VkSpecializationMapEntry entries[VK_PIPELINE_MAX_SPEC];
	VkSpecializationInfo spec = {
		.mapEntryCount = params->n_spec,
		.pMapEntries = entries,
		.dataSize = params->n_spec * sizeof(uint32_t),
		.pData = params->spec,
	};
	VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
		.requiredSubgroupSize = d->info.subgroup_size,
	};
	uint64_t n_invocations = (uint64_t)size[0] * size[1] * size[2];
	/* Vulkan allows the two requirements only for workgroups of these shapes. */
	bool requires_size = d->can_require_size &&
			     n_invocations <= (uint64_t)d->info.subgroup_size * d->max_subgroups;
	bool requires_full =
		d->can_require_full && requires_size && size[0] % d->info.subgroup_size == 0;
	VkComputePipelineCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
		.flags = d->wants_statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0,
		.stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
			.pNext = requires_size ? &required : NULL,
			.flags =
				requires_full
					? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
					: 0,
			.stage = VK_SHADER_STAGE_COMPUTE_BIT,
			.module = module,
			.pName = "main",
			.pSpecializationInfo = params->n_spec ? &spec : NULL},
		.layout = p->layout,
	};

	for (uint32_t i = 0; i < params->n_spec; i++)
		entries[i] = (VkSpecializationMapEntry){.constantID = i,
			.offset = i * (uint32_t)sizeof(uint32_t),
			.size = sizeof(uint32_t)};
	return vkCreateComputePipelines(d->device, params->is_trial ? VK_NULL_HANDLE : d->cache, 1,
		&info, NULL, &p->pipeline);
}

static int build(
	struct vk_pipeline *p, const struct vk_pipeline_params *params, struct err *ret_err)
{
	VkShaderModuleCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
		.codeSize = params->n_spirv_bytes,
		.pCode = params->spirv,
	};
	VkShaderModule module;
	uint32_t size[3] = {0};

	int code = check_params(p->d, params, ret_err, size);
	if (!code)
		code = make_layout(p, ret_err);
	if (code)
		return code;
	VkResult r = vk_device_note(p->d, vkCreateShaderModule(p->d->device, &info, NULL, &module));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "shader module");
	r = vk_device_note(p->d, make_pipeline(p, module, params, size));
	vkDestroyShaderModule(p->d->device, module, NULL);
	if (r != VK_SUCCESS) {
		p->pipeline = VK_NULL_HANDLE;
		return vk_result_fail(r, ret_err, "compute pipeline");
	}
	if (p->d->wants_statistics)
		vk_statistics_print(p->d->device, p->pipeline, p->name);
	vk_device_name(p->d, VK_OBJECT_TYPE_PIPELINE, (uint64_t)(uintptr_t)p->pipeline, p->name);
	return 0;
}

int vk_pipeline_new(struct vk_device *d, const struct vk_pipeline_params *params,
	struct err *ret_err, struct vk_pipeline **ret_pipeline)
{
	int r = VK_DEVICE_LOST;
	struct vk_pipeline *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(ret_err, ENOMEM, "kernel %s: no memory", params->name);
	p->d = d;
	p->n_push_bytes = params->n_push_bytes;
	snprintf(p->name, sizeof(p->name), "%s", params->name);
	if (d->is_lost)
		(void)err_set(ret_err, EIO, "the device is lost");
	else
		r = build(p, params, ret_err);
	if (r) {
		err_prefix(ret_err, "kernel %s", p->name);
		vk_pipeline_free(p);
		return r;
	}
	*ret_pipeline = p;
	return 0;
}

struct vk_pipeline *vk_pipeline_free(struct vk_pipeline *p)
{
	if (!p)
		return NULL;
	vkDestroyPipeline(p->d->device, p->pipeline, NULL);
	vkDestroyPipelineLayout(p->d->device, p->layout, NULL);
	free(p);
	return NULL;
}

const char *vk_pipeline_get_name(const struct vk_pipeline *p)
{
	return p->name;
}
