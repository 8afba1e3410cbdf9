/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LEDGER_H
#define WORKERD_LEDGER_H

/*
 * What memory a worker has: by role, by role and heap, and each named part with where it lives. A
 * copy, taken at one moment: whoever shows it (Status, metrics) needs no device.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/slice.h"

enum { LEDGER_MAX_SLICES = 64 };

/* The tokens of a step; asked 0: there is no stack. */
struct ledger_chunk {
	uint32_t n_rows;
	uint32_t n_asked;
	bool is_default;       /* nobody asked */
	uint64_t budget_bytes; /* granted by weightd for KV, scratch and io */
};

struct ledger {
	const char *role_names[VK_MEMORY_N_ROLES]; /* static */
	struct vk_memory_counter roles[VK_MEMORY_N_ROLES];
	uint32_t n_heaps;
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	struct vk_memory_counter by_heap[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	uint32_t n_slices; /* that there are; the first LEDGER_MAX_SLICES are in slices */
	struct vk_slice_place slices[LEDGER_MAX_SLICES];
	struct ledger_chunk chunk; /* the stack's, which ledger_take leaves alone */
};

/* Of everything made on d. Any thread, as vk/slice.h. */
void ledger_take(const struct vk_device *d, struct ledger *ret_ledger);

/* Memories that spilled on d since it was made. */
uint64_t ledger_count_spills(const struct vk_device *d);

/*
 * One line, "kv 1 of 2 bytes into heap 1, scratch ...", of what is not where it belongs; empty
 * where all is. Cut where it is too long.
 */
void ledger_describe_spills(const struct vk_device *d, char *ret_line, uint32_t n_bytes);

#endif
