/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_DISPATCH_H
#define TESTS_LAYER_DISPATCH_H

/*
 * What the layer knows of every instance, physical device and device, and the calls of whatever
 * comes next below it. Handles are found by the loader's table pointer, their first word, which an
 * instance shares with its physical devices and a device with its command buffers. Any thread;
 * an object lasts as long as its handle.
 */
#include <stdint.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan_core.h>

#include "tests/layer/config.h"
#include "tests/layer/heaps.h"
#include "tests/layer/log.h"
#include "tests/layer/memory-list.h"
#include "tests/layer/refusal.h"

struct queues;

#define DISPATCH_INSTANCE_CALLS(X)                   \
	X(DestroyInstance)                           \
	X(EnumerateDeviceExtensionProperties)        \
	X(GetPhysicalDeviceExternalBufferProperties) \
	X(GetPhysicalDeviceFeatures)                 \
	X(GetPhysicalDeviceFeatures2)                \
	X(GetPhysicalDeviceMemoryProperties)         \
	X(GetPhysicalDeviceMemoryProperties2)        \
	X(GetPhysicalDeviceProperties2)              \
	X(GetPhysicalDeviceQueueFamilyProperties)    \
	X(GetPhysicalDeviceQueueFamilyProperties2)

#define DISPATCH_DEVICE_CALLS(X)             \
	X(AllocateMemory)                    \
	X(CmdPipelineBarrier)                \
	X(CmdPipelineBarrier2)               \
	X(CreateBuffer)                      \
	X(CreateCommandPool)                 \
	X(CreateSemaphore)                   \
	X(DestroyDevice)                     \
	X(DestroySemaphore)                  \
	X(DeviceWaitIdle)                    \
	X(FreeMemory)                        \
	X(GetBufferMemoryRequirements)       \
	X(GetBufferMemoryRequirements2)      \
	X(GetDeviceBufferMemoryRequirements) \
	X(GetDeviceQueue)                    \
	X(MapMemory)                         \
	X(QueueSubmit2)                      \
	X(QueueWaitIdle)                     \
	X(SignalSemaphore)

/* Calls of extensions, NULL where they are not enabled. */
#define DISPATCH_EXTENSION_CALLS(X) \
	X(GetMemoryFdKHR)           \
	X(GetMemoryFdPropertiesKHR) \
	X(GetMemoryHostPointerPropertiesEXT)

#define DISPATCH_MEMBER(name) PFN_vk##name name;

struct dispatch_physical {
	struct dispatch_physical *next;
	VkPhysicalDevice handle;
	struct heaps heaps;
};

struct dispatch_instance {
	struct dispatch_instance *next;
	void *key;
	VkInstance handle;
	PFN_vkGetInstanceProcAddr get_proc;
	struct {
		DISPATCH_INSTANCE_CALLS(DISPATCH_MEMBER)
	} calls;
	struct config config;
	struct log log;
	struct refusal refusal;
	struct dispatch_physical *physicals;
};

struct dispatch_device {
	struct dispatch_device *next;
	void *key;
	VkDevice handle;
	PFN_vkGetDeviceProcAddr get_proc;
	struct {
		DISPATCH_DEVICE_CALLS(DISPATCH_MEMBER)
		DISPATCH_EXTENSION_CALLS(DISPATCH_MEMBER)
	} calls;
	struct dispatch_instance *instance;
	struct dispatch_physical *physical;
	struct memory_list memories;
	struct queues *queues; /* NULL: not simulated */
};

/* Fills key and calls from handle and get_proc, and takes the object into the list. */
void dispatch_add_instance(struct dispatch_instance *i);
void dispatch_add_device(struct dispatch_device *d);

/* Out of the list; the caller frees it. Of an instance its physical devices are freed. */
void dispatch_remove_instance(struct dispatch_instance *i);
void dispatch_remove_device(struct dispatch_device *d);

/* Of a VkInstance or VkPhysicalDevice, of a VkDevice or VkCommandBuffer. They end the process for a
 * handle that is not theirs: the loader passes no other. */
struct dispatch_instance *dispatch_instance_of(const void *handle);
struct dispatch_device *dispatch_device_of(const void *handle);

/* Made at its first use. */
struct dispatch_physical *dispatch_physical_of(VkPhysicalDevice handle);

#endif
