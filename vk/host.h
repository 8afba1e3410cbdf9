/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_HOST_H
#define VK_HOST_H

/*
 * Pages of this process in the device: VK_EXT_external_memory_host. Which mappings a driver takes
 * cannot be known without trying, and trying is not free of harm: vk/probe.h tries beforehand.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"

struct err;
struct vk_device;

/*
 * The driver refuses the pages; its error is in ret_err. The device is poisoned then
 * (vk_device_is_poisoned): the caller frees it and makes it anew. Any other driver's error of an
 * import is this condition too: which ones do no harm is not known.
 */
enum { VK_HOST_REFUSED = 2 };

/*
 * A memory over n_bytes at pointer, with a buffer and an address as any other, counted as imported.
 * Both are multiples of info.import_align and n_bytes is at most info.max_alloc_bytes (-EINVAL).
 * The mapping stays the caller's: vk_memory_map gives no pointer, and the pages must stay mapped,
 * and a file behind them long enough, until the memory is freed. Every role but scratch. -ENOTSUP
 * where the device imports no host pages or cannot bind a buffer to them, -ENOTRECOVERABLE
 * (vk/device.h), -ENOMEM, VK_HOST_REFUSED, VK_DEVICE_LOST.
 *
 * Imports may run on several threads at once. After a refusal of one, the others' outcomes mean
 * nothing: what the driver poisons it poisons for all.
 *
 * What the host wrote before a submission is seen by it. Host pages have no other owner: there is
 * nothing to acquire or release.
 */
int must_check vk_host_import(struct vk_device *d, void *pointer, uint64_t n_bytes,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory);

#endif
