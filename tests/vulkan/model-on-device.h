/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_MODEL_ON_DEVICE_H
#define TESTS_VULKAN_MODEL_ON_DEVICE_H

/*
 * A model file in the device's memory without a weightd in between: parsed, judged and described by
 * weightd's own code, uploaded here, attached as a worker attaches it. Errors fail the test.
 */
#include <stdint.h>

struct vk_device;
struct weights;

struct model_on_device {
	struct weights *weights;
	uint8_t *image; /* what each of its memories holds, tensors at their manifest offsets */
	uint64_t n_bytes;
};

void model_on_device_init(struct model_on_device *m, struct vk_device *d, const char *path);

/* The experts of a mixture are read from host memory. */
void model_on_device_init_host_experts(
	struct model_on_device *m, struct vk_device *d, const char *path);
void model_on_device_fini(struct model_on_device *m);

#endif
