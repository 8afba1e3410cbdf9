/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_HANDLE_H
#define VK_HANDLE_H

/*
 * What a descriptor of memory is. The numbers travel between processes: they are never reused.
 *	opaque fd  the same driver on the same device; every device of ours has it
 *	dma-buf    where the driver says so; a memfd may pass for one there
 */
enum vk_handle {
	VK_HANDLE_OPAQUE_FD = 0,
	VK_HANDLE_DMA_BUF = 1,
	VK_HANDLE_N,
};

#endif
