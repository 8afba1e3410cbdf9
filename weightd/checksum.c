/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/checksum.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "shaders/kernels.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/pipeline.h"
#include "vk/submit.h"
#include "weightd/sum.h"

enum {
	CHECKSUM_LOCAL_SIZE = 128, /* what every device has (maxComputeWorkGroupInvocations) */
	CHECKSUM_MIN_SUBGROUP = 8,
	CHECKSUM_MAX_SUBGROUP = 64,
};

struct checksum {
	struct vk_device *device;
	const struct sum_key *key;
	uint32_t n_parts; /* sums a piece */
	uint32_t n_parts_a_group;
	struct vk_pipeline *pipeline;
	struct vk_command *command;
	struct vk_memory *lanes; /* [SUM_LANES] struct abi_checksum_lane */
	/* [CHECKSUM_MAX_PIECES] struct abi_checksum_piece, then [CHECKSUM_MAX_PIECES][n_parts] u64
	 */
	struct vk_memory *io;
	uint8_t *map;
};

enum { CHECKSUM_TABLE_BYTES = CHECKSUM_MAX_PIECES * sizeof(struct abi_checksum_piece) };

static void checksum_cleanup(struct checksum **c)
{
	checksum_free(*c);
}

static int checksum_lost(struct err *ret_err)
{
	err_set(ret_err, EIO, "%s", "the device was lost");
	return CHECKSUM_DEVICE_LOST;
}

static int checksum_wait(struct checksum *c, struct err *ret_err)
{
	uint64_t ticket;
	int rc = vk_command_end(c->command, ret_err);

	if (rc == 0)
		rc = vk_submit(c->device, &c->command, 1, ret_err, &ticket);
	if (rc == 0) {
		rc = vk_submit_wait(c->device, ticket, UINT64_MAX);
		if (rc < 0)
			return err_set(ret_err, -rc, "checksums: %s", strerror(-rc));
	}
	return rc == VK_DEVICE_LOST ? checksum_lost(ret_err) : rc;
}

static int checksum_init_memory(struct checksum *c, struct err *ret_err)
{
	const struct vk_memory_params io = {.role = VK_MEMORY_IO,
		.n_bytes = CHECKSUM_TABLE_BYTES +
			   (uint64_t)CHECKSUM_MAX_PIECES * c->n_parts * sizeof(uint64_t),
		.name = "checksums"};
	/* Read once a piece by every lane: across a bus that would be too much. */
	const struct vk_memory_params lanes = {.role = VK_MEMORY_SCRATCH,
		.n_bytes = sizeof(c->key->lanes),
		.name = "checksum key"};
	void *map = NULL;
	int rc = vk_memory_new(c->device, &io, ret_err, &c->io);

	if (rc == 0)
		rc = vk_memory_map(c->io, ret_err, &map);
	if (rc == 0)
		rc = vk_memory_new(c->device, &lanes, ret_err, &c->lanes);
	if (rc)
		return rc;
	c->map = map;
	static_assert(sizeof(c->key->lanes) <= CHECKSUM_TABLE_BYTES, "the key goes through io");
	memcpy(c->map, c->key->lanes, sizeof(c->key->lanes));
	const struct vk_slice src = {.memory = c->io, .n_bytes = sizeof(c->key->lanes)};
	const struct vk_slice dst = {.memory = c->lanes, .n_bytes = sizeof(c->key->lanes)};
	vk_command_begin(c->command);
	vk_command_copy(c->command, &dst, &src);
	rc = checksum_wait(c, ret_err);
	memset(c->map, 0, sizeof(c->key->lanes));
	return rc;
}

static int checksum_init(struct checksum *c, struct err *ret_err)
{
	const struct vk_device_info *info = vk_device_get_info(c->device);
	const struct kernels_row *row = kernels_get(KERNELS_CHECKSUM);
	struct vk_pipeline_params params = {.name = row->name,
		.spirv = row->spirv,
		.n_spirv_bytes = row->n_spirv_bytes,
		.n_push_bytes = row->n_push_bytes,
		.n_spec = ABI_SPEC_KERNEL,
		.spec = {[ABI_SPEC_LOCAL_SIZE] = CHECKSUM_LOCAL_SIZE,
			[ABI_SPEC_SUBGROUP] = info->subgroup_size}};

	if (info->subgroup_size < CHECKSUM_MIN_SUBGROUP ||
		info->subgroup_size > CHECKSUM_MAX_SUBGROUP)
		return err_set(ret_err, ENOTSUP,
			"device %s: checksums: subgroup size: expected %d to %d, found %u",
			info->name, CHECKSUM_MIN_SUBGROUP, CHECKSUM_MAX_SUBGROUP,
			info->subgroup_size);
	c->n_parts = SUM_LANES / info->subgroup_size;
	c->n_parts_a_group = CHECKSUM_LOCAL_SIZE / info->subgroup_size;
	int rc = vk_pipeline_new(c->device, &params, ret_err, &c->pipeline);
	if (rc == 0)
		rc = vk_command_new(c->device, 0, ret_err, &c->command);
	if (rc == 0)
		rc = checksum_init_memory(c, ret_err);
	return rc == VK_DEVICE_LOST ? checksum_lost(ret_err) : rc;
}

int checksum_new(struct vk_device *d, const struct sum_key *key, struct err *ret_err,
	struct checksum **ret_checksum)
{
	_cleanup_(checksum_cleanup)
	struct checksum *c = calloc(1, sizeof(*c));

	if (!c)
		return err_set(ret_err, ENOMEM, "checksums: out of memory");
	c->device = d;
	c->key = key;
	int rc = checksum_init(c, ret_err);
	if (rc)
		return rc;
	*ret_checksum = TAKE_PTR(c);
	return 0;
}

struct checksum *checksum_free(struct checksum *c)
{
	if (!c)
		return NULL;
	vk_command_free(c->command);
	vk_pipeline_free(c->pipeline);
	vk_memory_free(c->lanes);
	vk_memory_free(c->io);
	free(c);
	return NULL;
}

static void checksum_record(struct checksum *c, struct vk_memory *memory, uint32_t n)
{
	const struct abi_checksum push = {.pieces = vk_memory_get_address(c->io),
		.lanes = vk_memory_get_address(c->lanes),
		.sums = vk_memory_get_address(c->io) + CHECKSUM_TABLE_BYTES,
		.r = {(uint32_t)c->key->r, (uint32_t)(c->key->r >> 32)},
		.n = n};

	vk_command_begin(c->command);
	vk_command_acquire(c->command, memory);
	vk_command_dispatch(c->command, c->pipeline, &push, sizeof(push),
		n * (c->n_parts / c->n_parts_a_group), 1, 1);
	vk_command_host_barrier(c->command);
	vk_command_release(c->command, memory);
}

int checksum_run(struct checksum *c, struct vk_memory *memory, const struct sum_range *pieces,
	uint32_t n, struct err *ret_err, uint64_t *ret_sums)
{
	struct abi_checksum_piece *table = (struct abi_checksum_piece *)c->map;
	const uint64_t *parts = (const uint64_t *)(c->map + CHECKSUM_TABLE_BYTES);

	assert(n > 0 && n <= CHECKSUM_MAX_PIECES);
	for (uint32_t i = 0; i < n; i++)
		table[i] = (struct abi_checksum_piece){
			.data = vk_memory_get_address(memory) + pieces[i].offset,
			.n_bytes = pieces[i].n_bytes};
	checksum_record(c, memory, n);
	int rc = checksum_wait(c, ret_err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t lanes = 0;
		for (uint32_t k = 0; k < c->n_parts; k++)
			lanes += *parts++;
		ret_sums[i] = sum_finish(c->key, lanes, pieces[i].n_bytes);
	}
	return 0;
}
