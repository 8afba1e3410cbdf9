/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/request.h"

#include "tests/layer/chain.h"

void request_read(const VkMemoryAllocateInfo *info, struct request *ret_request)
{
	const VkMemoryAllocateFlagsInfo *flags =
		chain_find(info->pNext, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO);
	const VkExportMemoryAllocateInfo *export =
		chain_find(info->pNext, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
	const VkImportMemoryFdInfoKHR *fd =
		chain_find(info->pNext, VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR);
	const VkImportMemoryHostPointerInfoEXT *host =
		chain_find(info->pNext, VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT);
	struct request *r = ret_request;
	int found = 0;

	*r = (struct request){.info = info, .fd = -1};
	if (flags)
		r->flags = flags->flags;
	r->is_dedicated = chain_find(info->pNext, VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO);
	if (export)
		r->export_types = export->handleTypes;
	/* A handle type of 0 is no import; Vulkan 1.3, VkImportMemoryFdInfoKHR. */
	if (fd && fd->handleType) {
		r->import_type = fd->handleType;
		r->fd = fd->fd;
		found = mapping_of_fd(fd->fd, &r->mapping);
	} else if (host && host->handleType) {
		r->import_type = host->handleType;
		r->pointer = host->pHostPointer;
		found = mapping_find(host->pHostPointer, info->allocationSize, &r->mapping);
	}
	/* Without /proc, or for no open descriptor: of no kind, and refused as such. */
	if (found < 0)
		r->mapping = (struct mapping){.kinds = mapping_bit(MAPPING_NONE, false)};
}
