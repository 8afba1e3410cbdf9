/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/chain.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/cleanup.h"

/* What may follow VkMemoryAllocateInfo and VkBufferCreateInfo in Vulkan 1.3. */
static const struct {
	VkStructureType type;
	const char *name;
	size_t n_bytes;
} rows[] = {
#define ROW(type, name)                                       \
	{                                                     \
		VK_STRUCTURE_TYPE_##type, #name, sizeof(name) \
	}
	ROW(MEMORY_ALLOCATE_FLAGS_INFO, VkMemoryAllocateFlagsInfo),
	ROW(MEMORY_DEDICATED_ALLOCATE_INFO, VkMemoryDedicatedAllocateInfo),
	ROW(MEMORY_OPAQUE_CAPTURE_ADDRESS_ALLOCATE_INFO, VkMemoryOpaqueCaptureAddressAllocateInfo),
	ROW(MEMORY_PRIORITY_ALLOCATE_INFO_EXT, VkMemoryPriorityAllocateInfoEXT),
	ROW(EXPORT_MEMORY_ALLOCATE_INFO, VkExportMemoryAllocateInfo),
	ROW(IMPORT_MEMORY_FD_INFO_KHR, VkImportMemoryFdInfoKHR),
	ROW(IMPORT_MEMORY_HOST_POINTER_INFO_EXT, VkImportMemoryHostPointerInfoEXT),
	ROW(EXTERNAL_MEMORY_BUFFER_CREATE_INFO, VkExternalMemoryBufferCreateInfo),
	ROW(BUFFER_OPAQUE_CAPTURE_ADDRESS_CREATE_INFO, VkBufferOpaqueCaptureAddressCreateInfo),
#undef ROW
};

/* Room for the largest of them. */
enum { LINK_BYTES = 64 };

const void *chain_find(const void *next, VkStructureType type)
{
	for (const VkBaseInStructure *s = next; s; s = s->pNext)
		if (s->sType == type)
			return s;
	return NULL;
}

void *chain_find_out(void *next, VkStructureType type)
{
	for (VkBaseOutStructure *s = next; s; s = s->pNext)
		if (s->sType == type)
			return s;
	return NULL;
}

const char *chain_name(VkStructureType type)
{
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++)
		if (rows[i].type == type)
			return rows[i].name;
	return NULL;
}

void *chain_copy(const void *next)
{
	VkBaseOutStructure *head = NULL, **tail = &head;

	for (const VkBaseInStructure *s = next; s; s = s->pNext) {
		unsigned i = 0;

		while (i < ARRAY_SIZE(rows) && rows[i].type != s->sType)
			i++;
		*tail = calloc(1, LINK_BYTES);
		if (i == ARRAY_SIZE(rows) || rows[i].n_bytes > LINK_BYTES || !*tail) {
			fprintf(stderr, "weightd layer: no copy of structure type %d in a chain\n",
				(int)s->sType);
			abort();
		}
		memcpy(*tail, s, rows[i].n_bytes);
		(*tail)->pNext = NULL;
		tail = &(*tail)->pNext;
	}
	return head;
}

void *chain_free(void *copy)
{
	while (copy) {
		VkBaseOutStructure *s = copy;

		copy = s->pNext;
		free(s);
	}
	return NULL;
}
