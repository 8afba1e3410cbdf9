/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_MATRIX_H
#define VK_MATRIX_H

/*
 * Matrices that a subgroup multiplies together: VK_KHR_cooperative_matrix. Inside vk/ only.
 *
 * Headers before 1.3.255 (Debian 12) do not know the extension. What is used of it is then declared
 * here, from the extension's page of the Vulkan specification, so that there is one C side.
 */
#include <vulkan/vulkan_core.h>

#include "vk/device.h"

#ifndef VK_KHR_cooperative_matrix
#define VK_KHR_cooperative_matrix 1
#define VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME "VK_KHR_cooperative_matrix"
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR \
	((VkStructureType)1000506000)
#define VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR ((VkStructureType)1000506001)

typedef enum VkComponentTypeKHR {
	VK_COMPONENT_TYPE_FLOAT16_KHR = 0,
	VK_COMPONENT_TYPE_FLOAT32_KHR = 1,
	VK_COMPONENT_TYPE_MAX_ENUM_KHR = 0x7fffffff
} VkComponentTypeKHR;

typedef enum VkScopeKHR {
	VK_SCOPE_SUBGROUP_KHR = 3,
	VK_SCOPE_MAX_ENUM_KHR = 0x7fffffff
} VkScopeKHR;

typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
	VkStructureType sType;
	void *pNext;
	VkBool32 cooperativeMatrix;
	VkBool32 cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;

typedef struct VkCooperativeMatrixPropertiesKHR {
	VkStructureType sType;
	void *pNext;
	uint32_t MSize;
	uint32_t NSize;
	uint32_t KSize;
	VkComponentTypeKHR AType;
	VkComponentTypeKHR BType;
	VkComponentTypeKHR CType;
	VkComponentTypeKHR ResultType;
	VkBool32 saturatingAccumulation;
	VkScopeKHR scope;
} VkCooperativeMatrixPropertiesKHR;

typedef VkResult(VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(
	VkPhysicalDevice physical, uint32_t *n, VkCooperativeMatrixPropertiesKHR *ret);
#endif

/* The version of the API that the extension came with. */
#define VK_MATRIX_API_VERSION VK_MAKE_API_VERSION(0, 1, 3, 255)

/*
 * The shapes in which a subgroup of the device multiplies f16 by f16 into f32, the widest K first,
 * of equal ones the largest. Returns how many were written; 0 where the driver does not say.
 */
uint32_t vk_matrix_list(VkInstance instance, VkPhysicalDevice physical,
	struct vk_device_matrix ret_shapes[VK_DEVICE_MAX_MATRICES]);

#endif
