/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_PROBE_CHILD_H
#define VK_PROBE_CHILD_H

/* The trial itself, in the process that may be spoilt by it. Inside vk/ only. */
#include "vk/probe.h"

/* Makes devices of its own and leaves nothing behind. dir: for the disk kinds. */
void vk_probe_child_run(const char *select, enum vk_probe_kind kind, const char *dir,
	struct vk_probe_result *ret_result);

#endif
