/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TUNING_FILE_H
#define WORKERD_TUNING_FILE_H

/*
 * Choices on disk, beside the pipeline cache and under its rules (vk/store.h): one small text file
 * for each device and driver, replaced by rename. Its first line says which device, driver and
 * kernels they were measured with, and what the rest's hash is.
 */
#include "proto/util/cleanup.h"

struct tuning;
struct vk_device;

/*
 * Adds what the file has to t. A missing file, one of another device, driver or build, and a
 * damaged one have nothing: that costs some speed and is a line of the debug log, no error.
 */
void tuning_file_load(const struct vk_device *d, struct tuning *t);

/* -errno: of the directory or the file, or -ENOMEM. */
int must_check tuning_file_save(const struct vk_device *d, const struct tuning *t);

#endif
