/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/matrix.h"

#include <stdbool.h>
#include <stdlib.h>

#include "proto/util/cleanup.h"

static bool is_ours(const VkCooperativeMatrixPropertiesKHR *p)
{
	return p->scope == VK_SCOPE_SUBGROUP_KHR && !p->saturatingAccumulation &&
	       p->AType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
	       p->BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
	       p->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
	       p->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR;
}

static bool is_better(const struct vk_device_matrix *a, const struct vk_device_matrix *b)
{
	return a->k != b->k ? a->k > b->k : a->m * a->n > b->m * b->n;
}

/* Keeps the list sorted; of equal ones the first stays before the second. */
static uint32_t insert(struct vk_device_matrix *shapes, uint32_t n, struct vk_device_matrix shape)
{
	uint32_t at = 0;

	while (at < n && !is_better(&shape, &shapes[at]))
		at++;
	if (at == VK_DEVICE_MAX_MATRICES)
		return n;
	if (n < VK_DEVICE_MAX_MATRICES)
		n++;
	for (uint32_t i = n - 1; i > at; i--)
		shapes[i] = shapes[i - 1];
	shapes[at] = shape;
	return n;
}

uint32_t vk_matrix_list(VkInstance instance, VkPhysicalDevice physical,
	struct vk_device_matrix ret_shapes[VK_DEVICE_MAX_MATRICES])
{
	PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
		(PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
			instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
	_cleanup_(cleanup_free)
	VkCooperativeMatrixPropertiesKHR *have = NULL;
	uint32_t n = 0, n_shapes = 0;

	if (!get || get(physical, &n, NULL) != VK_SUCCESS || n == 0)
		return 0;
	have = calloc(n, sizeof(*have));
	if (!have)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		have[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
	VkResult r = get(physical, &n, have);
	if (r != VK_SUCCESS && r != VK_INCOMPLETE)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (is_ours(&have[i]))
			n_shapes = insert(ret_shapes, n_shapes,
				(struct vk_device_matrix){.m = have[i].MSize,
					.n = have[i].NSize,
					.k = have[i].KSize});
	return n_shapes;
}
