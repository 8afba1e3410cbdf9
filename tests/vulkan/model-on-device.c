/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/model-on-device.h"

#include <fcntl.h>

#include "proto/manifest.h"
#include "tests/vulkan/on-device.h"
#include "weightd/gguf.h"
#include "weightd/manifest-writer.h"
#include "weightd/validate.h"
#include "workerd/weights.h"

/* Reads all tensors into the image, one behind the other, and says where in offsets. */
static void read_tensors(
	struct model_on_device *m, const struct gguf *g, int file, uint64_t *ret_offsets)
{
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		ret_offsets[i] = m->n_bytes;
		m->n_bytes += (g->tensors[i].n_bytes + 255) / 256 * 256;
	}
	m->image = calloc(1, m->n_bytes);
	assert_non_null(m->image);
	for (uint64_t i = 0; i < g->n_tensors; i++)
		assert_int_equal(pread(file, m->image + ret_offsets[i], g->tensors[i].n_bytes,
					 (off_t)g->tensors[i].offset),
			g->tensors[i].n_bytes);
}

/* With n_allocs 2 the experts are in the second, at the same offsets. */
static struct manifest *describe(
	const struct gguf *g, const uint64_t *offsets, uint64_t n_image_bytes, uint32_t n_allocs)
{
	const struct manifest_alloc allocs[] = {
		{.n_bytes = n_image_bytes, .placement = MANIFEST_PLACEMENT_DEVICE},
		{.n_bytes = n_image_bytes, .placement = MANIFEST_PLACEMENT_STAGED},
	};
	uint32_t *tensor_alloc = calloc(g->n_tensors, sizeof(uint32_t));
	struct manifest_writer_placement placement = {.n_allocs = n_allocs,
		.allocs = allocs,
		.tensor_alloc = tensor_alloc,
		.tensor_offset = offsets};
	struct validate_model model;
	struct err e = ERR_NULL;
	struct manifest *manifest = NULL;
	uint64_t n_bytes = 0;
	int fd = -1;

	assert_non_null(tensor_alloc);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		struct gguf_string name = g->tensors[i].name;
		if (n_allocs > 1 && memmem(name.data, name.n_bytes, "_exps.", 6))
			tensor_alloc[i] = 1;
	}
	on_device_check(validate_model(g, &e, &model), &e, "validate");
	on_device_check(
		manifest_writer_write(g, &model, &placement, 1, &e, &fd, &n_bytes), &e, "manifest");
	on_device_check(manifest_open(fd, &e, &manifest), &e, "manifest");
	close(fd);
	free(tensor_alloc);
	return manifest;
}

static struct vk_memory *upload(struct vk_device *d, const void *data, uint64_t n_bytes)
{
	struct vk_memory *staging = on_device_memory(d, VK_MEMORY_STAGING, n_bytes, false);
	struct vk_memory *memory = on_device_memory(d, VK_MEMORY_WEIGHTS, n_bytes, false);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice dst = on_device_whole(memory), src = on_device_whole(staging);

	memcpy(on_device_map(staging), data, n_bytes);
	vk_command_begin(c);
	vk_command_copy(c, &dst, &src);
	on_device_run(d, c);
	vk_command_free(c);
	vk_memory_free(staging);
	return memory;
}

static struct vk_memory *copy_to_host_memory(
	struct vk_device *d, const void *data, uint64_t n_bytes)
{
	struct vk_memory *memory = on_device_memory(d, VK_MEMORY_STAGING, n_bytes, false);

	memcpy(on_device_map(memory), data, n_bytes);
	return memory;
}

static void attach(
	struct model_on_device *m, struct vk_device *d, const char *path, uint32_t n_allocs)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		fail_msg("%s: %s", path, strerror(errno));
	*m = (struct model_on_device){0};
	on_device_check(gguf_read(file, &e, &g), &e, path);
	uint64_t *offsets = calloc(g->n_tensors, sizeof(uint64_t));
	assert_non_null(offsets);
	read_tensors(m, g, file, offsets);
	close(file);

	m->weights = calloc(1, sizeof(*m->weights));
	assert_non_null(m->weights);
	m->weights->allocs = calloc(n_allocs, sizeof(*m->weights->allocs));
	assert_non_null(m->weights->allocs);
	m->weights->manifest = describe(g, offsets, m->n_bytes, n_allocs);
	m->weights->n_allocs = n_allocs;
	m->weights->manifest_fd = -1;
	m->weights->allocs[0] = (struct weights_alloc){
		.placement = MANIFEST_PLACEMENT_DEVICE,
		.memory = upload(d, m->image, m->n_bytes),
		.fd = -1,
		.kept_fd = -1,
	};
	if (n_allocs > 1)
		m->weights->allocs[1] = (struct weights_alloc){
			.placement = MANIFEST_PLACEMENT_STAGED,
			.memory = copy_to_host_memory(d, m->image, m->n_bytes),
			.fd = -1,
			.kept_fd = -1,
		};
	m->weights->n_bytes = m->n_bytes;
	free(offsets);
	gguf_free(g);
}

void model_on_device_init(struct model_on_device *m, struct vk_device *d, const char *path)
{
	attach(m, d, path, 1);
}

void model_on_device_init_host_experts(
	struct model_on_device *m, struct vk_device *d, const char *path)
{
	attach(m, d, path, 2);
}

void model_on_device_fini(struct model_on_device *m)
{
	weights_free(m->weights);
	free(m->image);
	*m = (struct model_on_device){0};
}
