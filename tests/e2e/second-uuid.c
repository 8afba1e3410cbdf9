/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: the second physical device of an instance gets another UUID than the first. Two
 * manifests of the software driver give two devices, which have the same one.
 */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

enum { MAX_SEEN = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static VkPhysicalDevice seconds[MAX_SEEN];
static uint32_t n_seconds;

VKAPI_ATTR VkResult VKAPI_CALL vkEnumeratePhysicalDevices(
	VkInstance instance, uint32_t *n, VkPhysicalDevice *devices);
VKAPI_ATTR void VKAPI_CALL vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties);

VkResult vkEnumeratePhysicalDevices(VkInstance instance, uint32_t *n, VkPhysicalDevice *devices)
{
	PFN_vkEnumeratePhysicalDevices next =
		(PFN_vkEnumeratePhysicalDevices)dlsym(RTLD_NEXT, "vkEnumeratePhysicalDevices");
	VkResult r = next(instance, n, devices);

	pthread_mutex_lock(&mutex);
	if (devices && *n > 1 && n_seconds < MAX_SEEN)
		seconds[n_seconds++] = devices[1];
	pthread_mutex_unlock(&mutex);
	return r;
}

static bool is_second(VkPhysicalDevice device)
{
	bool is = false;

	pthread_mutex_lock(&mutex);
	for (uint32_t i = 0; i < n_seconds; i++)
		is |= seconds[i] == device;
	pthread_mutex_unlock(&mutex);
	return is;
}

void vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties)
{
	PFN_vkGetPhysicalDeviceProperties2 next = (PFN_vkGetPhysicalDeviceProperties2)dlsym(
		RTLD_NEXT, "vkGetPhysicalDeviceProperties2");

	next(device, properties);
	for (VkBaseOutStructure *s = properties->pNext; s && is_second(device); s = s->pNext) {
		if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES)
			((VkPhysicalDeviceIDProperties *)s)->deviceUUID[15] ^= 0xff;
		if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)
			((VkPhysicalDeviceVulkan11Properties *)s)->deviceUUID[15] ^= 0xff;
	}
}
