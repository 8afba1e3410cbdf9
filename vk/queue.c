/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/queue-internal.h"

/* What a family of copies alone may have: video engines move bytes too, but slowly. */
#define COPY_FLAGS (VK_QUEUE_TRANSFER_BIT | VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT)

static bool is_copy_family(const VkQueueFamilyProperties *f)
{
	return f->queueCount > 0 && (f->queueFlags & VK_QUEUE_TRANSFER_BIT) &&
	       !(f->queueFlags & ~(VkQueueFlags)COPY_FLAGS);
}

static bool is_compute_family(const VkQueueFamilyProperties *f)
{
	return f->queueCount > 0 && (f->queueFlags & VK_QUEUE_COMPUTE_BIT);
}

bool vk_queue_choose(const VkQueueFamilyProperties *families, uint32_t n_families,
	struct vk_queue_state ret_queues[VK_QUEUE_N])
{
	uint32_t compute = 0, transfer;

	/* The first: on the GPUs known, it has the same compute rate as any other. */
	while (compute < n_families && !is_compute_family(&families[compute]))
		compute++;
	if (compute == n_families)
		return false;
	for (transfer = 0; transfer < n_families; transfer++)
		if (is_copy_family(&families[transfer]))
			break;
	if (transfer == n_families)
		for (transfer = 0; transfer < n_families; transfer++)
			if (transfer != compute && is_compute_family(&families[transfer]) &&
				!(families[transfer].queueFlags & VK_QUEUE_GRAPHICS_BIT))
				break;
	ret_queues[VK_QUEUE_COMPUTE].family = compute;
	ret_queues[VK_QUEUE_COMPUTE].index = 0;
	ret_queues[VK_QUEUE_TRANSFER].family = transfer < n_families ? transfer : compute;
	ret_queues[VK_QUEUE_TRANSFER].index =
		transfer == n_families && families[compute].queueCount > 1 ? 1 : 0;
	return true;
}
