/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_SHIPPED_EXPORT_H
#define TESTS_VULKAN_SHIPPED_EXPORT_H

/* The model of this repository, as weightd's loader exports it. What fails ends the case. */

struct export;

/* The caller's. */
int shipped_export_open_model(void);

/*
 * What importers find behind the descriptors: every tensor is byte for byte what the file says;
 * every byte of device memory that is no tensor's is zero.
 */
void shipped_export_check(const struct export *e);

#endif
