/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_DEVICE_H
#define VK_DEVICE_H

/*
 * One Vulkan instance, physical and logical device and its queues. Every Vk* type stays inside vk/;
 * the rest of the project sees addresses, bytes and tickets.
 *
 * A device and all that is made from it belongs to one thread at a time; but imports
 * (vk_host_import, vk_share_import) may run on several threads at once, beside nothing else, and
 * one thread may make memory (vk_memory_new) beside all that the device's does.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_device;

/* The one condition of this room: the GPU was reset or lost; everything must be made anew. */
enum { VK_DEVICE_LOST = 1 };

enum { VK_DEVICE_MAX_HEAPS = 16, VK_DEVICE_MAX_MATRICES = 4 };

struct vk_device_heap {
	uint64_t n_bytes;
	bool device_local;
	uint64_t budget_bytes; /* VK_EXT_memory_budget, else n_bytes */
	uint64_t usage_bytes;  /* this process's; 0 where the driver does not say */
};

/* A [m][k] times [k][n] of f16 into f32 that a subgroup multiplies at once. */
struct vk_device_matrix {
	uint32_t m;
	uint32_t n;
	uint32_t k;
};

struct vk_device_info {
	char name[256];
	char driver[256]; /* name and version, for people */
	uint8_t uuid[16];
	uint8_t driver_uuid[16];
	uint32_t vendor_id;
	bool is_software;
	uint32_t subgroup_size;
	uint32_t n_cores; /* that run workgroups beside each other; 0: the driver does not say */
	uint32_t max_invocations; /* of a workgroup */
	uint32_t max_push_bytes;
	uint32_t max_shared_bytes;
	uint64_t max_alloc_bytes; /* maxMemoryAllocationSize, also capped by maxBufferSize */
	uint64_t import_align;    /* minImportedHostPointerAlignment, 0 without the extension */
	bool has_memory_budget;
	/* What the driver claims of our buffers; vk/probe.h finds out what is true. */
	bool has_export_fd; /* opaque fds export and import */
	bool has_export_dma_buf;
	bool has_import_dma_buf;
	bool has_import_host;    /* host pages, vk/host.h */
	bool has_transfer_queue; /* copies on VK_QUEUE_TRANSFER run beside kernels */
	/* Kernels may have matrices of these shapes (VK_KHR_cooperative_matrix), the best first. */
	uint32_t n_matrices; /* 0: none */
	struct vk_device_matrix matrices[VK_DEVICE_MAX_MATRICES];
	float ns_per_tick; /* timestamps; 0 where the queue has none */
	uint32_t n_heaps;
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
};

/*
 * select: "auto" (discrete, then integrated, then software), "software", a number (index in
 * vkEnumeratePhysicalDevices), or a device UUID of 32 hex digits, dashes allowed. Refused with a
 * sentence that lists what is there: -ENODEV (none fits, no loader or driver), -EINVAL (select is
 * none of these), -ENOTSUP (a required feature is missing, named: Vulkan 1.3 compute with
 * bufferDeviceAddress, timelineSemaphore, 8- and 16-bit storage, shaderFloat16, shaderInt8,
 * subgroup shuffle, VK_KHR_external_memory_fd).
 * "auto" does not pass over a device that lacks something: the refusal is heard.
 *
 * With WEIGHTD_VALIDATION=1 in the environment the validation layer is on and its errors go to
 * stderr as "validation: ..."; with =abort the first one ends the process. -ENOENT where the layer
 * is not installed.
 */
int must_check vk_device_new(
	const char *select, struct err *ret_err, struct vk_device **ret_device);

/*
 * Everything made from it must be gone. Waits until idle. Accepts NULL; returns NULL. The driver's
 * library stays loaded for the next device, unless this one was poisoned.
 */
struct vk_device *vk_device_free(struct vk_device *d);

/*
 * Has the driver refused to import host memory (VK_HOST_REFUSED, vk/host.h)? Then nothing that it
 * says of memory is to be trusted until the device is made anew: on NVIDIA 580 every later import
 * and allocation fails. Making or importing memory is -ENOTRECOVERABLE from then on; what is there
 * can still be used, waited for and freed. Free everything and the device, and call vk_device_new.
 */
bool vk_device_is_poisoned(const struct vk_device *d);

const struct vk_device_info *vk_device_get_info(const struct vk_device *d);

/* Asks the driver again for budget and usage. ret_heaps has info.n_heaps rows. */
void vk_device_query_heaps(
	const struct vk_device *d, struct vk_device_heap ret_heaps[VK_DEVICE_MAX_HEAPS]);

#endif
