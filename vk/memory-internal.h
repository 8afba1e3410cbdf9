/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_MEMORY_INTERNAL_H
#define VK_MEMORY_INTERNAL_H

/* Inside vk/ only. */
#include <vulkan/vulkan_core.h>

#include "vk/memory.h"

/* Every buffer has the same usage, so that an importer's buffer asks for what the exporter's did.
 */
#define VK_MEMORY_BUFFER_USAGE                                                   \
	(VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | \
		VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT)

enum { VK_MEMORY_NAME_BYTES = 64 };

struct vk_memory {
	struct vk_device *d;
	VkDeviceMemory memory;
	VkBuffer buffer;
	uint64_t address;
	uint64_t n_bytes;     /* of the buffer */
	uint64_t alloc_bytes; /* of the allocation, >= n_bytes */
	uint32_t type_index;
	enum vk_memory_role role;
	/* Where else the memory may be known: as a descriptor or as host pages; 0: nowhere. */
	VkExternalMemoryHandleTypeFlagBits handle_bit;
	/* A second kind of descriptor that it is exportable as, or 0. */
	VkExternalMemoryHandleTypeFlagBits other_bit;
	bool is_imported;
	bool is_host;   /* weights that were put into host memory */
	bool is_mapped; /* has a host pointer of its own */
	bool is_dedicated;
	bool is_spilled;
	bool is_counted;
	bool is_home_only;
	uint32_t home_heap; /* where it belongs */
	void *map;
	char name[VK_MEMORY_NAME_BYTES];
	struct vk_memory
		*next; /* of the device's books, as the rest from here on: under their lock */
	struct vk_memory *previous;
	struct vk_slice_name *slices; /* [n_slices] */
	uint32_t n_slices;
};

/* What a buffer asks of the memory behind it. */
struct vk_memory_needs {
	uint64_t n_bytes;
	uint32_t type_bits;
	bool wants_dedicated;
};

/* VK_EXTERNAL_MEMORY_HANDLE_TYPE_... of the kind. */
VkExternalMemoryHandleTypeFlagBits vk_memory_handle_bit(enum vk_handle handle);

/* Has it another owner, from whom and to whom ownership goes? Host pages have none. */
bool vk_memory_is_shared(const struct vk_memory *m);

/* A half-built memory: role, name and sizes, no Vulkan object yet. */
int must_check vk_memory_start(struct vk_device *d, enum vk_memory_role role, const char *name,
	uint64_t n_bytes, struct err *ret_err, struct vk_memory **ret_memory);

/* Creates m->buffer. */
int must_check vk_memory_make_buffer(
	struct vk_memory *m, struct err *ret_err, struct vk_memory_needs *ret_needs);

/*
 * Makes m->memory: m->alloc_bytes of m->type_index, with `next` behind what every memory has. One
 * that fails leaves VK_NULL_HANDLE.
 */
VkResult vk_memory_allocate(struct vk_memory *m, const void *next);

/* Binds the buffer to m->memory, takes its address, maps it if m->is_mapped and counts it. */
int must_check vk_memory_finish(struct vk_memory *m, struct err *ret_err);

#endif
