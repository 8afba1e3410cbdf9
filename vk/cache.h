/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_CACHE_H
#define VK_CACHE_H

/*
 * The device's pipeline cache on disk: DIR/<uuid>-<driver hash>.cache, DIR of mode 0700 owned by
 * this uid (else it is not used: another uid's cache is code for our GPU), contents checked by a
 * hash before the driver sees them, replaced by rename.
 */
#include "proto/util/cleanup.h"

struct vk_device;

/* $XDG_CACHE_HOME/weightd or ~/.cache/weightd; WEIGHTD_CACHE overrides. A missing or foreign file
 * is an empty cache, not an error. Called once after vk_device_new. */
int must_check vk_cache_load(struct vk_device *d);

/* Writes the cache if it grew. Failure costs the next start some time only. */
int must_check vk_cache_save(struct vk_device *d);

#endif
