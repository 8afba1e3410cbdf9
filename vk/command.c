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

/*
 * All the work that is ever recorded for a queue: kernels, copies and fills. A queue that only
 * copies knows no other stages, and where it shares its queue with kernels, copies need not wait
 * for them.
 */
struct work {
	VkPipelineStageFlags2 stages;
	VkAccessFlags2 writes;
	VkAccessFlags2 accesses;
};
#define COPY_ACCESSES (VK_ACCESS_2_TRANSFER_WRITE_BIT | VK_ACCESS_2_TRANSFER_READ_BIT)
#define SHADER_ACCESSES (VK_ACCESS_2_SHADER_WRITE_BIT | VK_ACCESS_2_SHADER_READ_BIT)
static const struct work queue_work[VK_QUEUE_N] = {
	[VK_QUEUE_COMPUTE] = {VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT |
				      VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT,
		VK_ACCESS_2_SHADER_WRITE_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT,
		SHADER_ACCESSES | COPY_ACCESSES},
	[VK_QUEUE_TRANSFER] = {VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT, VK_ACCESS_2_TRANSFER_WRITE_BIT,
		COPY_ACCESSES},
};

enum { MAX_STAMPS = 1 << 16, MAX_REGIONS = 512 };

static int make_objects(struct vk_command *c, struct err *ret_err)
{
	struct vk_device *d = c->d;
	VkCommandPoolCreateInfo pool = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
		.queueFamilyIndex = d->queues[c->queue].family,
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

int vk_command_new_on(struct vk_device *d, enum vk_queue queue, uint32_t n_stamps,
	struct err *ret_err, struct vk_command **ret_command)
{
	if ((unsigned)queue >= VK_QUEUE_N)
		return err_set(ret_err, EINVAL, "command: no queue %u", (unsigned)queue);
	if (n_stamps > MAX_STAMPS)
		return err_set(ret_err, EINVAL, "command: expected at most %d timestamps, found %u",
			MAX_STAMPS, n_stamps);
	if (n_stamps && (queue != VK_QUEUE_COMPUTE || d->info.ns_per_tick == 0))
		return err_set(ret_err, ENOTSUP, "device %s: its %s queue has no timestamps",
			d->info.name, queue == VK_QUEUE_COMPUTE ? "compute" : "transfer");
	if (d->is_lost) {
		(void)err_set(ret_err, EIO, "command: the device is lost");
		return VK_DEVICE_LOST;
	}
	struct vk_command *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(ret_err, ENOMEM, "command: no memory");
	c->d = d;
	c->queue = queue;
	c->n_stamps = n_stamps;
	int r = make_objects(c, ret_err);
	if (r) {
		vk_command_free(c);
		return r;
	}
	*ret_command = c;
	return 0;
}

int vk_command_new(struct vk_device *d, uint32_t n_stamps, struct err *ret_err,
	struct vk_command **ret_command)
{
	return vk_command_new_on(d, VK_QUEUE_COMPUTE, n_stamps, ret_err, ret_command);
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
		.srcStageMask = queue_work[c->queue].stages,
		.srcAccessMask = queue_work[c->queue].writes,
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

/* What follows on this queue sees what went before on it. */
static void work_barrier(struct vk_command *c)
{
	barrier(c, queue_work[c->queue].stages, queue_work[c->queue].accesses);
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
	work_barrier(c);
	if (c->n_stamps)
		vkCmdResetQueryPool(c->buffer, c->queries, 0, c->n_stamps);
}

void vk_command_dispatch(struct vk_command *c, const struct vk_pipeline *p, const void *push,
	uint32_t n_push_bytes, uint32_t n_x, uint32_t n_y, uint32_t n_z)
{
	const uint32_t *max = c->d->max_groups;

	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (c->queue != VK_QUEUE_COMPUTE) {
		fail(c, EINVAL, "kernel %s: the transfer queue runs no kernels", p->name);
		return;
	}
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
		work_barrier(c);
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

/* The bytes from the first row's first to the last row's last; false when there is no such number.
 */
static bool get_extent(
	const struct vk_command_rows *rows, uint64_t n_rows, uint64_t n_row_bytes, uint64_t *ret)
{
	uint64_t last;

	if (n_rows == 0 || n_row_bytes == 0 || (n_rows > 1 && rows->stride < n_row_bytes))
		return false;
	return !__builtin_mul_overflow(n_rows - 1, n_rows > 1 ? rows->stride : 0, &last) &&
	       !__builtin_add_overflow(last, n_row_bytes, ret);
}

static bool check_rows(struct vk_command *c, const struct vk_command_rows *rows, uint64_t n_rows,
	uint64_t n_row_bytes, const char *what, uint64_t *ret_n_bytes)
{
	uint64_t end;

	if (get_extent(rows, n_rows, n_row_bytes, ret_n_bytes) &&
		!__builtin_add_overflow(rows->offset, *ret_n_bytes, &end) &&
		end <= rows->memory->n_bytes)
		return true;
	fail(c, EINVAL,
		"%s memory %s: expected rows within %" PRIu64 " bytes, found %" PRIu64
		" of %" PRIu64 " bytes, %" PRIu64 " apart, at %" PRIu64,
		what, rows->memory->name, rows->memory->n_bytes, n_rows, n_row_bytes, rows->stride,
		rows->offset);
	return false;
}

void vk_command_copy_2d(struct vk_command *c, const struct vk_command_rows *dst,
	const struct vk_command_rows *src, uint64_t n_rows, uint64_t n_row_bytes)
{
	VkBufferCopy regions[MAX_REGIONS];
	uint64_t n_dst_bytes, n_src_bytes;

	if (c->state != VK_COMMAND_RECORDING)
		return;
	if (!check_rows(c, dst, n_rows, n_row_bytes, "copy to", &n_dst_bytes) ||
		!check_rows(c, src, n_rows, n_row_bytes, "copy from", &n_src_bytes))
		return;
	if (dst->memory == src->memory && dst->offset < src->offset + n_src_bytes &&
		src->offset < dst->offset + n_dst_bytes) {
		fail(c, EINVAL, "copy inside memory %s: the rows overlap", dst->memory->name);
		return;
	}
	/* Rows without gaps are one long row. */
	if (n_dst_bytes == n_src_bytes && n_dst_bytes == n_rows * n_row_bytes) {
		n_rows = 1;
		n_row_bytes = n_dst_bytes;
	}
	for (uint64_t first = 0; first < n_rows; first += MAX_REGIONS) {
		uint64_t left = n_rows - first;
		uint32_t n = left < MAX_REGIONS ? (uint32_t)left : MAX_REGIONS;

		for (uint32_t i = 0; i < n; i++)
			regions[i] =
				(VkBufferCopy){.srcOffset = src->offset + (first + i) * src->stride,
					.dstOffset = dst->offset + (first + i) * dst->stride,
					.size = n_row_bytes};
		vkCmdCopyBuffer(c->buffer, src->memory->buffer, dst->memory->buffer, n, regions);
	}
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
	const struct work *work = &queue_work[c->queue];
	/* A buffer of both families has no owner among them to name. */
	uint32_t family = vk_device_is_concurrent(c->d) ? VK_QUEUE_FAMILY_IGNORED
							: c->d->queues[c->queue].family;
	VkBufferMemoryBarrier2 buffer = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER_2,
		.srcStageMask = is_release ? work->stages : VK_PIPELINE_STAGE_2_NONE,
		.srcAccessMask = is_release ? work->writes : VK_ACCESS_2_NONE,
		.dstStageMask = is_release ? VK_PIPELINE_STAGE_2_NONE : work->stages,
		.dstAccessMask = is_release ? VK_ACCESS_2_NONE : work->accesses,
		.srcQueueFamilyIndex = is_release ? family : VK_QUEUE_FAMILY_EXTERNAL,
		.dstQueueFamilyIndex = is_release ? VK_QUEUE_FAMILY_EXTERNAL : family,
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
	if (!vk_memory_is_shared(m)) {
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
