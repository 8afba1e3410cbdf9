/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/statistics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/cleanup.h"

/* Executables of a compute pipeline, and what a driver says of one: few; more are left out. */
enum { MAX_EXECUTABLES = 4, MAX_STATISTICS = 32 };

bool vk_statistics_is_wanted(void)
{
	const char *text = getenv("WEIGHTD_PIPELINE_STATISTICS");

	return text && !strcmp(text, "1");
}

static void print_one(const VkPipelineExecutableStatisticKHR *s)
{
	fprintf(stderr, ", %s ", s->name);
	switch (s->format) {
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
		fprintf(stderr, "%s", s->value.b32 ? "yes" : "no");
		return;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
		fprintf(stderr, "%" PRId64, s->value.i64);
		return;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
		fprintf(stderr, "%" PRIu64, s->value.u64);
		return;
	case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR:
		fprintf(stderr, "%g", s->value.f64);
		return;
	default: fprintf(stderr, "?");
	}
}

void vk_statistics_print(VkDevice device, VkPipeline pipeline, const char *name)
{
	PFN_vkGetPipelineExecutablePropertiesKHR get_executables =
		(PFN_vkGetPipelineExecutablePropertiesKHR)vkGetDeviceProcAddr(
			device, "vkGetPipelineExecutablePropertiesKHR");
	PFN_vkGetPipelineExecutableStatisticsKHR get_statistics =
		(PFN_vkGetPipelineExecutableStatisticsKHR)vkGetDeviceProcAddr(
			device, "vkGetPipelineExecutableStatisticsKHR");
	VkPipelineInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline};
	VkPipelineExecutablePropertiesKHR executables[MAX_EXECUTABLES] = {0};
	VkPipelineExecutableStatisticKHR statistics[MAX_STATISTICS] = {0};
	uint32_t n = ARRAY_SIZE(executables);

	if (!get_executables || !get_statistics)
		return;
	for (uint32_t i = 0; i < ARRAY_SIZE(executables); i++)
		executables[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
	for (uint32_t i = 0; i < ARRAY_SIZE(statistics); i++)
		statistics[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
	if (get_executables(device, &info, &n, executables) < 0)
		return;
	for (uint32_t i = 0; i < n; i++) {
		VkPipelineExecutableInfoKHR one = {
			.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
			.pipeline = pipeline,
			.executableIndex = i};
		uint32_t n_statistics = ARRAY_SIZE(statistics);
		if (get_statistics(device, &one, &n_statistics, statistics) < 0)
			continue;
		fprintf(stderr, "kernel %s: subgroup %u", name, executables[i].subgroupSize);
		for (uint32_t s = 0; s < n_statistics; s++)
			print_one(&statistics[s]);
		fputc('\n', stderr);
	}
}
