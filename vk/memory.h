/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_MEMORY_H
#define VK_MEMORY_H

/*
 * One VkDeviceMemory with one VkBuffer over all of it and its 64-bit device address. Everything
 * else is a slice, a value. Nothing here is ever reached through a host pointer except the
 * host-visible roles, mapped for their whole life.
 *
 * Memories are made and freed on any thread, several at a time on one device; one memory is one
 * thread's at a time. The counters may be read meanwhile.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/device.h"
#include "vk/handle.h"

struct err;
struct vk_memory;

/*
 * What memory is for decides its heap:
 *
 * - weights: device-local, or host-visible with is_host; exportable by weightd, imported by workers
 * - kv: device-local, exportable
 * - scratch: device-local, never mappable, never exported
 * - staging: host-visible, coherent: file -> device
 * - io: host-visible, coherent, cached where there is such a type: ids in, logits out
 */
enum vk_memory_role {
	VK_MEMORY_WEIGHTS,
	VK_MEMORY_KV,
	VK_MEMORY_SCRATCH,
	VK_MEMORY_STAGING,
	VK_MEMORY_IO,
	VK_MEMORY_N_ROLES,
};

/* Names for people: "weights", "kv", "scratch", "staging", "io". */
const char *vk_memory_role_name(enum vk_memory_role role);

struct vk_memory_params {
	enum vk_memory_role role;
	uint64_t n_bytes;   /* > 0, at most info.max_alloc_bytes */
	bool is_exportable; /* weights and kv only */
	const char *name;   /* for errors and the validation layer; copied */
	/* Weights only: host-visible, coherent and, where there is such a type, cached memory
	 * instead of device-local, mapped here and by no importer. */
	bool is_host;
	bool is_home_only; /* kv and scratch: -ENOMEM where they do not fit, no spill */
	/* As what it is exportable; a dma-buf's memory as an opaque descriptor too, where the
	 * driver lets one memory be both: vk_memory_can_export. */
	enum vk_handle handle;
};

/*
 * Allocates. For the device-local roles the type with DEVICE_LOCAL and, where there is a choice,
 * without HOST_VISIBLE in the largest heap is taken (a small BAR heap is never taken for the big
 * one). kv and scratch that do not fit there go to host memory and count as spilled, unless
 * is_home_only. Fails with
 * -ENOMEM and figures in ret_err, -EINVAL for bytes beyond the device's limit, -ENOTSUP for a role
 * or an export that the device has no memory for, -ENOTRECOVERABLE when the device is poisoned
 * (vk/device.h), VK_DEVICE_LOST.
 */
int must_check vk_memory_new(struct vk_device *d, const struct vk_memory_params *params,
	struct err *ret_err, struct vk_memory **ret_memory);

/* No submitted work may use it any more. Accepts NULL; returns NULL. */
struct vk_memory *vk_memory_free(struct vk_memory *m);

/* 256-byte aligned; of imported host pages as much as the pages are, which is more. */
uint64_t vk_memory_get_address(const struct vk_memory *m);
uint64_t vk_memory_get_bytes(const struct vk_memory *m);
const char *vk_memory_get_name(const struct vk_memory *m);
uint32_t vk_memory_get_type_index(const struct vk_memory *m);
uint32_t vk_memory_get_heap_index(const struct vk_memory *m);

/* Was it made here so that it can leave as this? */
bool vk_memory_can_export(const struct vk_memory *m, enum vk_handle handle);

/*
 * The host pointer of a staging, io or is_host memory that was made here, valid as long as the
 * memory. For all others -EPERM, and ret_err names the memory.
 */
int must_check vk_memory_map(struct vk_memory *m, struct err *ret_err, void **ret_pointer);

/* A part of a memory, by value; the memory must outlive it. */
struct vk_slice {
	struct vk_memory *memory;
	uint64_t offset;
	uint64_t n_bytes;
};

static inline uint64_t vk_memory_slice_address(const struct vk_slice *s)
{
	return vk_memory_get_address(s->memory) + s->offset;
}

/*
 * Bytes of one device object, as allocated: a driver may round up what was asked for. All but the
 * last two are of what there is now. By role, requested = placed + spilled. By role and heap,
 * requested counts where the memory belongs, the others where it is: what spilled from one heap
 * into another is requested there and spilled here.
 */
struct vk_memory_counter {
	uint64_t requested_bytes;
	uint64_t placed_bytes;
	uint64_t spilled_bytes;
	uint64_t imported_bytes; /* of other processes' memory; not in requested */
	uint64_t peak_bytes;     /* the most that placed + spilled has been */
	uint64_t n_spills;       /* memories that spilled, those that are gone included */
};

void vk_memory_get_counters(
	const struct vk_device *d, struct vk_memory_counter ret_counters[VK_MEMORY_N_ROLES]);

/* The first n_heaps of each role's are valid. */
void vk_memory_get_heap_counters(const struct vk_device *d,
	struct vk_memory_counter ret_counters[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS]);

#endif
