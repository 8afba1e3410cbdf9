/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_QUEUE_H
#define VK_QUEUE_H

/*
 * The two lines of work of a device. Kernels run on the compute queue; the transfer queue takes
 * copies beside them: a transfer-only family where there is one, else an async compute family, else
 * a second queue of the compute family, else the compute queue itself, where the copies then wait
 * in the same line (info.has_transfer_queue says which).
 */
enum vk_queue {
	VK_QUEUE_COMPUTE,
	VK_QUEUE_TRANSFER,
	VK_QUEUE_N,
};

#endif
