/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/command.h"

#include <errno.h>
#include <stdbool.h>
#include <inttypes.h>
#include <stdlib.h>

#include "vk/command-internal.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"
#include "vk/pipeline-internal.h"
#include "vk/result.h"
#include "vk/submit.h"

/* All the work that is ever recorded: kernels, copies and fills. */
#define WORK_STAGES (VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT)
#define WORK_WRITES (VK_ACCESS_2_SHADER_WRITE_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT)
#define WORK_ACCESS (WORK_WRITES | VK_ACCESS_2_SHADER_READ_BIT | VK_ACCESS_2_TRANSFER_READ_BIT)

enum { MAX_STAMPS = 1 << 16 };

static int make_objects(struct vk_command *c, struct err *ret_err)
{
	struct vk_device *d = c->d;
	VkCommandPoolCreateInfo pool = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
		.queueFamilyIndex = d->queue_family,
	};
	VkCommandBufferAllocateInfo buffer = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
		.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
		.commandBufferCount = 1,
	};
	VkQueryPoolCreateInfo queries = {
		.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
		.queryType = VK_QUERY_TYPE_TIMESTAMP,
		.queryCount = c->n_stamps,
	};

	VkResult r = vk_device_note(d, vkCreateCommandPool(d->device, &pool, NULL, &c->pool));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "command pool");
	buffer.commandPool = c->pool;
	r = vk_device_note(d, vkAllocateCommandBuffers(d->device, &buffer, &c->buffer));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "command buffer");
	if (c->n_stamps == 0)
		return 0;
	c->ticks = calloc(c->n_stamps, sizeof(*c->ticks));
	if (!c->ticks)
		return err_set(
			ret_err, ENOMEM, "command: no memory for %u timestamps", c->n_stamps);
	r = vk_device_note(d, vkCreateQueryPool(d->device, &queries, NULL, &c->queries));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "query pool of %u timestamps", c->n_stamps);
	return 0;
}

int vk_command_new(struct vk_device *d, uint32_t n_stamps, struct err *ret_err,
	struct vk_command **ret_command)
{
	if (n_stamps > MAX_STAMPS)
		return err_set(ret_err, EINVAL, "command: expected at most %d timestamps, found %u",
			MAX_STAMPS, n_stamps);
	if (n_stamps && d->info.ns_per_tick == 0)
		return err_set(
			ret_err, ENOTSUP, "device %s: its queue has no timestamps", d->info.name);
	if (d->is_lost) {
		(void)err_set(ret_err, EIO, "command: the device is lost");
		return VK_DEVICE_LOST;
	}
	struct vk_command *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(ret_err, ENOMEM, "command: no memory");
	c->d = d;
	c->n_stamps = n_stamps;
	int r = make_objects(c, ret_err);
	if (r) {
		vk_command_free(c);
		return r;
	}
	*ret_command = c;
	return 0;
}

struct vk_command *vk_command_free(struct vk_command *c)
{
	if (!c)
		return NULL;
	vkDestroyQueryPool(c->d->device, c->queries, NULL);
	vkDestroyCommandPool(c->d->device, c->pool, NULL);
	free(c->ticks);
	free(c);
	return NULL;
}

/* Keeps the first error of a recording. */
#define fail(c, errnum, ...)                                            \
	do {                                                            \
		(c)->error = err_set(&(c)->err, (errnum), __VA_ARGS__); \
		(c)->state = VK_COMMAND_FAILED;                         \
	} while (0)

static void barrier(struct vk_command *c, VkPipelineStageFlags2 dst_stages, VkAccessFlags2 dst)
{
	VkMemoryBarrier2 memory = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
		.srcStageMask = WORK_STAGES,
		.srcAccessMask = WORK_WRITES,
		.dstStageMask = dst_stages,
		.dstAccessMask = dst,
	};
	VkDependencyInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO,
		.memoryBarrierCount = 1,
		.pMemoryBarriers = &memory,
	};

	vkCmdPipelineBarrier2(c->buffer, &info);
}

void vk_command_begin(struct vk_command *c)
{
	VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};

	c->error = 0;
	c->err = ERR_NULL;
	c->bound = VK_NULL_HANDLE;
	c->n_dispatches = 0;
	c->state = VK_COMMAND_RECORDING;
	if (!vk_submit_is_done(c->d, c->ticket)) {
		fail(c, EBUSY, "command: it still runs");
		if (c->d->is_lost)
			c->error = VK_DEVICE_LOST;
		return;
	}
	c->ticket = 0;
	VkResult r = vk_device_note(c->d, vkResetCommandPool(c->d->device, c->pool, 0));
	if (r == VK_SUCCESS)
		r = vk_device_note(c->d, vkBeginCommandBuffer(c->buffer, &info));
	if (r != VK_SUCCESS) {
		c->error = vk_result_fail(r, &c->err, "command: begin");
		c->state = VK_COMMAND_FAILED;
		return;
	}
	/* Orders this command after whatever was submitted before it, however often it is. */
	barrier(c, WORK_STAGES, WORK_ACCESS);
	if (c->n_stamps)
		vkCmdResetQueryPool(c->buffer, c->queries, 0, c->n_stamps);
}

void vk_command_dispatch(struct vk_command *c, const struct vk_pipeline *p, const void *push,
	uint32_t n_push_bytes, uint32_t n_x, uint32_t n_y, uint32_t n_z)
{
	const uint32_t *max = c->d->max_groups;

	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (n_push_bytes != p->n_push_bytes) {
		fail(c, EINVAL, "kernel %s: push constants: expected %u bytes, found %u", p->name,
			p->n_push_bytes, n_push_bytes);
		return;
	}
	if (n_x > max[0] || n_y > max[1] || n_z > max[2]) {
		fail(c, EINVAL,
			"kernel %s: grid: expected at most %u x %u x %u, found %u x %u x %u",
			p->name, max[0], max[1], max[2], n_x, n_y, n_z);
		return;
	}
	if (c->bound != p->pipeline)
		vkCmdBindPipeline(c->buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p->pipeline);
	c->bound = p->pipeline;
	if (n_push_bytes)
		vkCmdPushConstants(
			c->buffer, p->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, n_push_bytes, push);
	vkCmdDispatch(c->buffer, n_x, n_y, n_z);
	c->n_dispatches++;
}

void vk_command_barrier(struct vk_command *c)
{
	if (c->state == VK_COMMAND_RECORDING)
		barrier(c, WORK_STAGES, WORK_ACCESS);
}

void vk_command_host_barrier(struct vk_command *c)
{
	if (c->state == VK_COMMAND_RECORDING)
		barrier(c, VK_PIPELINE_STAGE_2_HOST_BIT, VK_ACCESS_2_HOST_READ_BIT);
}

static bool check_slice(struct vk_command *c, const struct vk_slice *s, const char *what)
{
	uint64_t end;

	if (s->n_bytes > 0 && !__builtin_add_overflow(s->offset, s->n_bytes, &end) &&
		end <= s->memory->n_bytes)
		return true;
	fail(c, EINVAL,
		"%s memory %s: expected a part of %" PRIu64 " bytes, found %" PRIu64
		" bytes at %" PRIu64,
		what, s->memory->name, s->memory->n_bytes, s->n_bytes, s->offset);
	return false;
}

void vk_command_copy(struct vk_command *c, const struct vk_slice *dst, const struct vk_slice *src)
{
	VkBufferCopy region = {
		.srcOffset = src->offset, .dstOffset = dst->offset, .size = src->n_bytes};

	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (!check_slice(c, dst, "copy to") || !check_slice(c, src, "copy from"))
		return;
	if (dst->n_bytes != src->n_bytes) {
		fail(c, EINVAL,
			"copy from memory %s to %s: expected equal sizes, found %" PRIu64
			" and %" PRIu64,
			src->memory->name, dst->memory->name, src->n_bytes, dst->n_bytes);
		return;
	}
	if (dst->memory == src->memory && dst->offset < src->offset + src->n_bytes &&
		src->offset < dst->offset + dst->n_bytes) {
		fail(c, EINVAL, "copy inside memory %s: the parts overlap", dst->memory->name);
		return;
	}
	vkCmdCopyBuffer(c->buffer, src->memory->buffer, dst->memory->buffer, 1, &region);
}

void vk_command_fill(struct vk_command *c, const struct vk_slice *dst, uint32_t value)
{
	if (c->state != VK_COMMAND_RECORDING || !check_slice(c, dst, "fill of"))
		return;
	if (dst->offset % 4 || dst->n_bytes % 4) {
		fail(c, EINVAL,
			"fill of memory %s: expected multiples of 4, found %" PRIu64
			" bytes at %" PRIu64,
			dst->memory->name, dst->n_bytes, dst->offset);
		return;
	}
	vkCmdFillBuffer(c->buffer, dst->memory->buffer, dst->offset, dst->n_bytes, value);
}

static void transfer_ownership(struct vk_command *c, struct vk_memory *m, bool is_release)
{
	VkBufferMemoryBarrier2 buffer = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER_2,
		.srcStageMask = is_release ? WORK_STAGES : VK_PIPELINE_STAGE_2_NONE,
		.srcAccessMask = is_release ? WORK_WRITES : VK_ACCESS_2_NONE,
		.dstStageMask = is_release ? VK_PIPELINE_STAGE_2_NONE : WORK_STAGES,
		.dstAccessMask = is_release ? VK_ACCESS_2_NONE : WORK_ACCESS,
		.srcQueueFamilyIndex = is_release ? c->d->queue_family : VK_QUEUE_FAMILY_EXTERNAL,
		.dstQueueFamilyIndex = is_release ? VK_QUEUE_FAMILY_EXTERNAL : c->d->queue_family,
		.buffer = m->buffer,
		.size = VK_WHOLE_SIZE,
	};
	VkDependencyInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO,
		.bufferMemoryBarrierCount = 1,
		.pBufferMemoryBarriers = &buffer,
	};

	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (!m->is_external) {
		fail(c, EINVAL, "memory %s: it is not shared, so it has no other owner", m->name);
		return;
	}
	vkCmdPipelineBarrier2(c->buffer, &info);
}

void vk_command_release(struct vk_command *c, struct vk_memory *m)
{
	transfer_ownership(c, m, true);
}

void vk_command_acquire(struct vk_command *c, struct vk_memory *m)
{
	transfer_ownership(c, m, false);
}

void vk_command_stamp(struct vk_command *c, uint32_t stamp)
{
	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (stamp >= c->n_stamps) {
		fail(c, EINVAL, "timestamp: expected a slot below %u, found %u", c->n_stamps,
			stamp);
		return;
	}
	vkCmdWriteTimestamp2(c->buffer, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, c->queries, stamp);
}

int vk_command_end(struct vk_command *c, struct err *ret_err)
{
	if (c->state == VK_COMMAND_RECORDING) {
		VkResult r = vk_device_note(c->d, vkEndCommandBuffer(c->buffer));

		c->state = VK_COMMAND_READY;
		if (r == VK_SUCCESS)
			return 0;
		c->state = VK_COMMAND_FAILED;
		c->error = vk_result_fail(r, &c->err, "command: end");
	}
	if (c->state != VK_COMMAND_FAILED)
		return err_set(ret_err, EINVAL, "command: end without begin");
	c->state = VK_COMMAND_EMPTY;
	(void)err_set(ret_err, EIO, "%s", c->err.text);
	return c->error;
}

int vk_command_get_stamps(struct vk_command *c, uint64_t *ret_ns)
{
	struct vk_device *d = c->d;

	if (c->n_stamps == 0)
		return 0;
	if (d->is_lost)
		return VK_DEVICE_LOST;
	if (!c->ticket)
		return -EAGAIN;
	VkResult r = vk_device_note(d, vkGetQueryPoolResults(d->device, c->queries, 0, c->n_stamps,
					       c->n_stamps * sizeof(*c->ticks), c->ticks,
					       sizeof(*c->ticks), VK_QUERY_RESULT_64_BIT));
	if (r != VK_SUCCESS)
		return vk_result_code(r);
	for (uint32_t i = 0; i < c->n_stamps; i++)
		ret_ns[i] = (uint64_t)((double)(c->ticks[i] & d->stamp_mask) *
				       (double)d->info.ns_per_tick);
	return 0;
}

uint32_t vk_command_get_n_dispatches(const struct vk_command *c)
{
	return c->n_dispatches;
}
