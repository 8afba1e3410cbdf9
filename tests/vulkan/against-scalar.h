/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_AGAINST_SCALAR_H
#define TESTS_VULKAN_AGAINST_SCALAR_H

/*
 * Models of random weights, computed by a plan in steps of several rows and by the scalar model
 * token by token. Errors fail the test.
 */
#include <stdint.h>

#include "workerd/kv-layout.h"

struct gguf_build;
struct manifest;
struct model_on_device;
struct vk_device;

enum { AGAINST_SCALAR_TOKENS = 150 };

/* The file of b, which is freed; path: mkstemp's. */
void against_scalar_write(struct gguf_build *b, char *path);

/* The token at position i. */
uint32_t against_scalar_token(uint32_t i, uint32_t n_vocab);

/*
 * The largest difference of any logit at any position from the scalar model's; *ret_largest grows
 * to the largest logit.
 */
float against_scalar_compare(struct vk_device *d, const struct model_on_device *m,
	enum kv_layout_type type, float *ret_largest);

/* The same with f16, m's image described by another manifest than the one that the plan has. */
float against_scalar_compare_with(struct vk_device *d, const struct model_on_device *m,
	const struct manifest *of_image, float *ret_largest);

#endif
