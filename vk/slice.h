/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SLICE_H
#define VK_SLICE_H

/*
 * Named parts of a memory, and where each of them lives. A memory whose parts have no names is one
 * part with the memory's own. Names are for people and tests: kernels have addresses. Any thread,
 * also beside one that makes memory; a memory is not freed meanwhile.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"

struct err;
struct vk_device;

enum { VK_SLICE_NAME_BYTES = 48 };

/* Parts may overlap: of a pool whose places are used again, each user is one. */
struct vk_slice_name {
	char name[VK_SLICE_NAME_BYTES];
	uint64_t offset;
	uint64_t n_bytes; /* > 0 */
};

/*
 * Names m's parts, once. The names are copied. -EINVAL for a part that is not in m or a second
 * time, -ENOMEM.
 */
int must_check vk_slice_set_names(struct vk_memory *m, const struct vk_slice_name *names,
	uint32_t n_names, struct err *ret_err);

/* The first part of that name; -ENOENT. */
int must_check vk_slice_find(
	struct vk_memory *m, const char *name, struct err *ret_err, struct vk_slice *ret_slice);

/*
 * The host pointer to the slice, valid as long as its memory. -EPERM where vk_memory_map has none,
 * and ret_err names the slice: by its name, else by its offset; -EINVAL for one that is not in its
 * memory.
 */
int must_check vk_slice_map(const struct vk_slice *s, struct err *ret_err, void **ret_pointer);

/* What the type of memory can do. */
enum {
	VK_SLICE_DEVICE_LOCAL = 1,
	VK_SLICE_HOST_VISIBLE = 2,
	VK_SLICE_HOST_COHERENT = 4,
	VK_SLICE_HOST_CACHED = 8,
};

/* Where parts of one name live: those of one memory, or of several that lie alike. */
struct vk_slice_place {
	char name[VK_SLICE_NAME_BYTES];
	enum vk_memory_role role;
	uint32_t n;       /* such parts */
	uint64_t n_bytes; /* of the largest */
	uint64_t n_total_bytes;
	uint32_t heap;
	uint32_t type;
	uint32_t flags; /* VK_SLICE_... */
	bool is_spilled;
};

/*
 * The places of all that was made on the device, imports not among them, by age. Returns how many
 * there are; the first n_room of them are in ret_places.
 */
uint32_t vk_slice_get_places(
	const struct vk_device *d, struct vk_slice_place *ret_places, uint32_t n_room);

#endif
