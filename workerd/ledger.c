/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ledger.h"

#include <inttypes.h>
#include <stdio.h>

void ledger_take(const struct vk_device *d, struct ledger *ret_ledger)
{
	for (int role = 0; role < VK_MEMORY_N_ROLES; role++)
		ret_ledger->role_names[role] = vk_memory_role_name((enum vk_memory_role)role);
	vk_memory_get_counters(d, ret_ledger->roles);
	vk_memory_get_heap_counters(d, ret_ledger->by_heap);
	ret_ledger->n_heaps = vk_device_get_info(d)->n_heaps;
	vk_device_query_heaps(d, ret_ledger->heaps);
	ret_ledger->n_slices = vk_slice_get_places(d, ret_ledger->slices, LEDGER_MAX_SLICES);
}

uint64_t ledger_count_spills(const struct vk_device *d)
{
	struct vk_memory_counter roles[VK_MEMORY_N_ROLES];
	uint64_t n = 0;

	vk_memory_get_counters(d, roles);
	for (int role = 0; role < VK_MEMORY_N_ROLES; role++)
		n += roles[role].n_spills;
	return n;
}

void ledger_describe_spills(const struct vk_device *d, char *ret_line, uint32_t n_bytes)
{
	struct vk_memory_counter roles[VK_MEMORY_N_ROLES];
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	uint32_t n_heaps = vk_device_get_info(d)->n_heaps;
	uint32_t n = 0;

	vk_memory_get_counters(d, roles);
	vk_memory_get_heap_counters(d, heaps);
	ret_line[0] = '\0';
	for (int role = 0; role < VK_MEMORY_N_ROLES; role++) {
		for (uint32_t heap = 0; heap < n_heaps && n < n_bytes; heap++) {
			if (!heaps[role][heap].spilled_bytes)
				continue;
			n += (uint32_t)snprintf(ret_line + n, n_bytes - n,
				"%s%s %" PRIu64 " of %" PRIu64 " bytes into heap %u", n ? ", " : "",
				vk_memory_role_name((enum vk_memory_role)role),
				heaps[role][heap].spilled_bytes, roles[role].requested_bytes, heap);
		}
	}
}
