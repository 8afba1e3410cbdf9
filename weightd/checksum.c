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
	CHECKSUM_MIN_SUBGROUP = ABI_CHECKSUM_GROUP, /* a lane for the rest of each piece */
	CHECKSUM_MAX_SUBGROUP = 64,
};

struct checksum {
	struct vk_device *device;
	const struct sum_key *key;
	uint32_t n_subgroups; /* of a workgroup */
	struct vk_pipeline *pipeline;
	struct vk_command *command;
	struct vk_memory *keys; /* [SUM_UNITS][4] u32 */
	/* [CHECKSUM_MAX_PIECES] struct abi_checksum_piece, then
	 * [CHECKSUM_MAX_PIECES][ABI_CHECKSUM_SUMS] u64; the key goes through it at first */
	struct vk_memory *io;
	uint8_t *map;
};

enum {
	CHECKSUM_TABLE_BYTES = CHECKSUM_MAX_PIECES * sizeof(struct abi_checksum_piece),
	CHECKSUM_SUM_BYTES = CHECKSUM_MAX_PIECES * ABI_CHECKSUM_SUMS * sizeof(uint64_t),
	CHECKSUM_IO_BYTES = CHECKSUM_TABLE_BYTES + CHECKSUM_SUM_BYTES,
	CHECKSUM_KEY_BYTES = SUM_PIECE_BYTES,
	CHECKSUM_PART_BYTES = 256 << 10, /* of the key, at a time */
};

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

static int checksum_copy_key(struct checksum *c, struct err *ret_err)
{
	int rc = 0;

	static_assert(CHECKSUM_PART_BYTES <= CHECKSUM_IO_BYTES, "parts go through io");
	for (uint64_t at = 0; at < CHECKSUM_KEY_BYTES && rc == 0; at += CHECKSUM_PART_BYTES) {
		const struct vk_slice src = {.memory = c->io, .n_bytes = CHECKSUM_PART_BYTES};
		const struct vk_slice dst = {
			.memory = c->keys, .offset = at, .n_bytes = CHECKSUM_PART_BYTES};
		memcpy(c->map, (const uint8_t *)c->key->words + at, CHECKSUM_PART_BYTES);
		vk_command_begin(c->command);
		vk_command_copy(c->command, &dst, &src);
		rc = checksum_wait(c, ret_err);
	}
	memset(c->map, 0, CHECKSUM_PART_BYTES);
	return rc;
}

static int checksum_init_memory(struct checksum *c, struct err *ret_err)
{
	const struct vk_memory_params io = {
		.role = VK_MEMORY_IO, .n_bytes = CHECKSUM_IO_BYTES, .name = "checksums"};
	/* Read once a group of pieces: across a bus that would be too much. */
	const struct vk_memory_params keys = {
		.role = VK_MEMORY_SCRATCH, .n_bytes = CHECKSUM_KEY_BYTES, .name = "checksum key"};
	void *map = NULL;
	int rc = vk_memory_new(c->device, &io, ret_err, &c->io);

	if (rc == 0)
		rc = vk_memory_map(c->io, ret_err, &map);
	if (rc == 0)
		rc = vk_memory_new(c->device, &keys, ret_err, &c->keys);
	if (rc)
		return rc;
	c->map = map;
	static_assert(sizeof(c->key->words) == CHECKSUM_KEY_BYTES, "a word for each of a piece");
	return checksum_copy_key(c, ret_err);
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
	c->n_subgroups = CHECKSUM_LOCAL_SIZE / info->subgroup_size;
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
	vk_memory_free(c->keys);
	vk_memory_free(c->io);
	free(c);
	return NULL;
}

static void checksum_record(struct checksum *c, struct vk_memory *memory, uint32_t n)
{
	const struct abi_checksum push = {.pieces = vk_memory_get_address(c->io),
		.keys = vk_memory_get_address(c->keys),
		.sums = vk_memory_get_address(c->io) + CHECKSUM_TABLE_BYTES,
		.n = n};
	uint32_t n_subgroups =
		(n + ABI_CHECKSUM_GROUP - 1) / ABI_CHECKSUM_GROUP * ABI_CHECKSUM_PARTS;

	vk_command_begin(c->command);
	vk_command_acquire(c->command, memory);
	/* Subgroups of a workgroup are a power of two, as the parts are. */
	vk_command_dispatch(
		c->command, c->pipeline, &push, sizeof(push), n_subgroups / c->n_subgroups, 1, 1);
	vk_command_host_barrier(c->command);
	vk_command_release(c->command, memory);
}

static int checksum_fill_table(struct checksum *c, const struct vk_memory *memory,
	const struct sum_range *pieces, uint32_t n, struct err *ret_err)
{
	struct abi_checksum_piece *table = (struct abi_checksum_piece *)c->map;

	assert(n > 0 && n <= CHECKSUM_MAX_PIECES);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t data = vk_memory_get_address(memory) + pieces[i].offset;
		if (data % SUM_UNIT_BYTES)
			return err_set(ret_err, EINVAL,
				"checksums: memory %s: expected offsets that are multiples of %d, "
				"found %llu",
				vk_memory_get_name(memory), SUM_UNIT_BYTES,
				(unsigned long long)pieces[i].offset);
		table[i] = (struct abi_checksum_piece){.data = data, .n_bytes = pieces[i].n_bytes};
	}
	return 0;
}

int checksum_run(struct checksum *c, struct vk_memory *memory, const struct sum_range *pieces,
	uint32_t n, struct err *ret_err, uint64_t *ret_sums)
{
	const uint64_t *parts = (const uint64_t *)(c->map + CHECKSUM_TABLE_BYTES);
	int rc = checksum_fill_table(c, memory, pieces, n, ret_err);

	if (rc < 0)
		return rc;
	checksum_record(c, memory, n);
	rc = checksum_wait(c, ret_err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t units = 0;
		for (uint32_t k = 0; k < ABI_CHECKSUM_SUMS; k++)
			units += *parts++;
		ret_sums[i] = sum_finish(c->key, units, pieces[i].n_bytes);
	}
	return 0;
}
