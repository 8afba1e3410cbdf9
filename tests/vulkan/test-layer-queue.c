/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated queue families: a transfer queue beside the compute queue, in any order of submission.
 */
#include "tests/vulkan/on-device.h"

#include <pthread.h>

#include "tests/layer/layered.h"
#include "vk/device-internal.h"

enum { TRANSFER, MAIN, N_FAMILIES, N_BYTES = 1 << 16, N_ROUNDS = 100 };

/* The first family computes nothing: who takes family 0 unseen fails. */
#define FAMILIES "transfer:2;graphics+compute+transfer:1"

static const uint32_t pattern[] =
#include "pattern.comp.inc"
	;

struct pattern_push {
	uint64_t words;
	uint32_t n;
	uint32_t seed;
	uint32_t step;
	uint32_t pad;
};

/* A device of its own with both families, on a vk_device's instance. */
struct rig {
	struct vk_device *d;
	VkDevice device;
	VkQueue queues[N_FAMILIES];
	VkCommandPool pools[N_FAMILIES];
	VkSemaphore timeline;
	VkBuffer buffer;
	VkDeviceMemory memory;
	uint32_t *words;
};

static void make_buffer(struct rig *r, VkSharingMode sharing)
{
	const uint32_t families[N_FAMILIES] = {TRANSFER, MAIN};
	VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.size = N_BYTES,
		.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
		.sharingMode = sharing,
		.queueFamilyIndexCount = N_FAMILIES,
		.pQueueFamilyIndices = families};
	VkMemoryAllocateInfo allocate = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = N_BYTES};
	void *pointer;

	assert_int_equal(vkCreateBuffer(r->device, &info, NULL, &r->buffer), VK_SUCCESS);
	assert_int_equal(vkAllocateMemory(r->device, &allocate, NULL, &r->memory), VK_SUCCESS);
	VkMemoryRequirements needs;
	vkGetBufferMemoryRequirements(r->device, r->buffer, &needs);
	assert_true(needs.size <= N_BYTES);
	assert_int_equal(vkBindBufferMemory(r->device, r->buffer, r->memory, 0), VK_SUCCESS);
	assert_int_equal(vkMapMemory(r->device, r->memory, 0, N_BYTES, 0, &pointer), VK_SUCCESS);
	r->words = pointer;
}

static struct rig make_rig(VkSharingMode sharing)
{
	struct rig r = {.d = on_device_new()};
	float priorities[2] = {1.0f, 0.5f};
	VkDeviceQueueCreateInfo queues[N_FAMILIES];
	VkPhysicalDeviceVulkan13Features v13 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
		.synchronization2 = VK_TRUE};
	VkPhysicalDeviceVulkan12Features v12 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
		.pNext = &v13,
		.timelineSemaphore = VK_TRUE};
	VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.pNext = &v12,
		.queueCreateInfoCount = N_FAMILIES,
		.pQueueCreateInfos = queues};
	VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
		.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
	VkSemaphoreCreateInfo semaphore = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};

	for (uint32_t f = 0; f < N_FAMILIES; f++)
		queues[f] = (VkDeviceQueueCreateInfo){
			.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
			.queueFamilyIndex = f,
			.queueCount = f == TRANSFER ? 2 : 1,
			.pQueuePriorities = priorities};
	assert_int_equal(vkCreateDevice(r.d->physical, &info, NULL, &r.device), VK_SUCCESS);
	for (uint32_t f = 0; f < N_FAMILIES; f++) {
		VkCommandPoolCreateInfo pool = {
			.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = f};

		vkGetDeviceQueue(r.device, f, 0, &r.queues[f]);
		assert_int_equal(
			vkCreateCommandPool(r.device, &pool, NULL, &r.pools[f]), VK_SUCCESS);
	}
	assert_int_equal(vkCreateSemaphore(r.device, &semaphore, NULL, &r.timeline), VK_SUCCESS);
	make_buffer(&r, sharing);
	return r;
}

static void end_rig(struct rig *r)
{
	assert_int_equal(vkDeviceWaitIdle(r->device), VK_SUCCESS);
	vkDestroyBuffer(r->device, r->buffer, NULL);
	vkFreeMemory(r->device, r->memory, NULL);
	vkDestroySemaphore(r->device, r->timeline, NULL);
	for (int f = 0; f < N_FAMILIES; f++)
		vkDestroyCommandPool(r->device, r->pools[f], NULL);
	vkDestroyDevice(r->device, NULL);
	vk_device_free(r->d);
}

/* Half of a hand-over of the buffer between families; the other command buffer has the same. */
static void give(const struct rig *r, VkCommandBuffer command, uint32_t from, uint32_t to)
{
	VkBufferMemoryBarrier2 buffer = {.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER_2,
		.srcStageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
		.srcAccessMask = VK_ACCESS_2_MEMORY_WRITE_BIT,
		.dstStageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
		.dstAccessMask = VK_ACCESS_2_MEMORY_READ_BIT | VK_ACCESS_2_MEMORY_WRITE_BIT,
		.srcQueueFamilyIndex = from,
		.dstQueueFamilyIndex = to,
		.buffer = r->buffer,
		.size = VK_WHOLE_SIZE};
	VkDependencyInfo info = {.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO,
		.bufferMemoryBarrierCount = 1,
		.pBufferMemoryBarriers = &buffer};

	vkCmdPipelineBarrier2(command, &info);
}

static VkCommandBuffer begin(const struct rig *r, uint32_t family)
{
	VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
		.commandPool = r->pools[family],
		.commandBufferCount = 1};
	VkCommandBufferBeginInfo start = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
	VkCommandBuffer command;

	assert_int_equal(vkAllocateCommandBuffers(r->device, &info, &command), VK_SUCCESS);
	assert_int_equal(vkBeginCommandBuffer(command, &start), VK_SUCCESS);
	return command;
}

/* Waits for one value of a timeline (0: for none), and signals another. */
static void submit(VkQueue queue, VkSemaphore timeline, uint64_t wait, uint64_t signal,
	VkCommandBuffer command)
{
	VkSemaphoreSubmitInfo waits = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
		.semaphore = timeline,
		.value = wait,
		.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
	VkSemaphoreSubmitInfo signals = waits;
	VkCommandBufferSubmitInfo commands = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, .commandBuffer = command};
	VkSubmitInfo2 info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
		.waitSemaphoreInfoCount = wait > 0,
		.pWaitSemaphoreInfos = &waits,
		.commandBufferInfoCount = !!command,
		.pCommandBufferInfos = &commands,
		.signalSemaphoreInfoCount = 1,
		.pSignalSemaphoreInfos = &signals};

	signals.value = signal;
	assert_int_equal(vkQueueSubmit2(queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
}

static VkResult wait_value(const struct rig *r, uint64_t value, uint64_t timeout_ns)
{
	VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &r->timeline,
		.pValues = &value};

	return vkWaitSemaphores(r->device, &info, timeout_ns);
}

static void test_families(void **state)
{
	VkQueueFamilyProperties families[4];
	VkQueueFamilyProperties2 families2[4] = {
		{.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2},
		{.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2}};
	uint32_t n = 0;

	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct vk_device *d = on_device_new();
	vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, NULL);
	assert_int_equal(n, N_FAMILIES);
	vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
	assert_int_equal(families[TRANSFER].queueFlags, VK_QUEUE_TRANSFER_BIT);
	assert_int_equal(families[TRANSFER].queueCount, 2);
	assert_int_equal(families[MAIN].queueFlags,
		VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT);
	n = 1;
	vkGetPhysicalDeviceQueueFamilyProperties2(d->physical, &n, families2);
	assert_int_equal(n, 1);
	assert_int_equal(families2[0].queueFamilyProperties.queueCount, 2);
	assert_int_equal(d->queues[VK_QUEUE_COMPUTE].family, MAIN);
	vk_device_free(d);
}

/* The vk room on a family that is not the first: kernels, copies, tickets, ownership. */
static void test_room(void **state)
{
	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_WEIGHTS, N_BYTES, true);
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, pattern, sizeof(struct pattern_push));
	struct vk_command *c = on_device_command(d, 0);
	struct pattern_push push = {
		.words = vk_memory_get_address(m), .n = N_BYTES / 4, .seed = 5, .step = 3};

	vk_command_begin(c);
	vk_command_dispatch(c, p, &push, sizeof(push), N_BYTES / 4 / 64, 1, 1);
	vk_command_release(c, m);
	on_device_run(d, c);
	vk_command_begin(c);
	vk_command_acquire(c, m);
	on_device_run(d, c);
	uint32_t *data = on_device_read(d, m);
	for (uint32_t i = 0; i < N_BYTES / 4; i++)
		assert_int_equal(data[i], 5 + 3 * i);
	free(data);
	vk_command_free(c);
	vk_pipeline_free(p);
	vk_memory_free(m);
	vk_device_free(d);
}

/* The transfer queue fills and releases, the main one acquires and goes on. */
static void test_ownership(void **state)
{
	VkBufferCopy copy = {.dstOffset = N_BYTES / 2, .size = 4};

	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct rig r = make_rig(VK_SHARING_MODE_EXCLUSIVE);
	VkCommandBuffer first = begin(&r, TRANSFER), second = begin(&r, MAIN);

	vkCmdFillBuffer(first, r.buffer, 0, N_BYTES / 2, 7);
	give(&r, first, TRANSFER, MAIN);
	assert_int_equal(vkEndCommandBuffer(first), VK_SUCCESS);
	give(&r, second, TRANSFER, MAIN);
	vkCmdCopyBuffer(second, r.buffer, r.buffer, 1, &copy);
	assert_int_equal(vkEndCommandBuffer(second), VK_SUCCESS);
	submit(r.queues[TRANSFER], r.timeline, 0, 1, first);
	submit(r.queues[MAIN], r.timeline, 1, 2, second);
	assert_int_equal(wait_value(&r, 2, UINT64_MAX), VK_SUCCESS);
	assert_int_equal(r.words[0], 7);
	assert_int_equal(r.words[N_BYTES / 8], 7);
	end_rig(&r);
}

/*
 * The main queue is given work that waits for a value which the transfer queue signals later: with
 * one queue underneath, a hang, were it passed on as it comes.
 */
static void test_wait_before_signal(void **state)
{
	VkBufferCopy copy = {.dstOffset = N_BYTES / 2, .size = 4};
	uint64_t value = 0;

	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct rig r = make_rig(VK_SHARING_MODE_CONCURRENT);
	VkCommandBuffer first = begin(&r, TRANSFER), second = begin(&r, MAIN);

	vkCmdFillBuffer(first, r.buffer, 0, N_BYTES / 2, 8);
	vkCmdCopyBuffer(second, r.buffer, r.buffer, 1, &copy);
	assert_int_equal(vkEndCommandBuffer(first), VK_SUCCESS);
	assert_int_equal(vkEndCommandBuffer(second), VK_SUCCESS);
	submit(r.queues[MAIN], r.timeline, 1, 2, second);
	assert_int_equal(wait_value(&r, 2, 20000000), VK_TIMEOUT);
	submit(r.queues[TRANSFER], r.timeline, 0, 1, first);
	assert_int_equal(wait_value(&r, 2, UINT64_MAX), VK_SUCCESS);
	assert_int_equal(r.words[N_BYTES / 8], 8);
	assert_int_equal(vkGetSemaphoreCounterValue(r.device, r.timeline, &value), VK_SUCCESS);
	assert_int_equal(value, 2);
	end_rig(&r);
}

/* Work that waits for the host goes on when the host says so. */
static void test_host_signal(void **state)
{
	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct rig r = make_rig(VK_SHARING_MODE_EXCLUSIVE);

	submit(r.queues[TRANSFER], r.timeline, 1, 2, VK_NULL_HANDLE);
	submit(r.queues[MAIN], r.timeline, 2, 3, VK_NULL_HANDLE);
	assert_int_equal(wait_value(&r, 2, 20000000), VK_TIMEOUT);
	assert_int_equal(
		vkSignalSemaphore(r.device,
			&(VkSemaphoreSignalInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
				.semaphore = r.timeline,
				.value = 1}),
		VK_SUCCESS);
	assert_int_equal(vkQueueWaitIdle(r.queues[MAIN]), VK_SUCCESS);
	assert_int_equal(wait_value(&r, 3, 0), VK_SUCCESS);
	end_rig(&r);
}

/* The older call, with binary semaphores between the queues and a fence at the end. */
static void test_binary(void **state)
{
	VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
	VkFenceCreateInfo fence_info = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
	VkSemaphore semaphore;
	VkFence fence;

	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct rig r = make_rig(VK_SHARING_MODE_EXCLUSIVE);
	assert_int_equal(vkCreateSemaphore(r.device, &info, NULL, &semaphore), VK_SUCCESS);
	assert_int_equal(vkCreateFence(r.device, &fence_info, NULL, &fence), VK_SUCCESS);
	for (uint32_t i = 0; i < 3; i++) {
		VkCommandBuffer command = begin(&r, TRANSFER);
		VkSubmitInfo first = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
			.commandBufferCount = 1,
			.pCommandBuffers = &command,
			.signalSemaphoreCount = 1,
			.pSignalSemaphores = &semaphore};
		VkSubmitInfo second = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
			.waitSemaphoreCount = 1,
			.pWaitSemaphores = &semaphore,
			.pWaitDstStageMask = &stage};

		vkCmdFillBuffer(command, r.buffer, 0, N_BYTES, i + 1);
		assert_int_equal(vkEndCommandBuffer(command), VK_SUCCESS);
		assert_int_equal(
			vkQueueSubmit(r.queues[TRANSFER], 1, &first, VK_NULL_HANDLE), VK_SUCCESS);
		assert_int_equal(vkQueueSubmit(r.queues[MAIN], 1, &second, fence), VK_SUCCESS);
		assert_int_equal(
			vkWaitForFences(r.device, 1, &fence, true, UINT64_MAX), VK_SUCCESS);
		assert_int_equal(r.words[N_BYTES / 4 - 1], i + 1);
		assert_int_equal(vkResetFences(r.device, 1, &fence), VK_SUCCESS);
	}
	/* A fence with nothing before it. */
	assert_int_equal(vkQueueSubmit(r.queues[TRANSFER], 0, NULL, fence), VK_SUCCESS);
	assert_int_equal(vkWaitForFences(r.device, 1, &fence, true, UINT64_MAX), VK_SUCCESS);
	vkDestroyFence(r.device, fence, NULL);
	vkDestroySemaphore(r.device, semaphore, NULL);
	end_rig(&r);
}

/* One thread a queue, each round waiting for the other's: the main one takes the even values. */
struct player {
	const struct rig *r;
	VkQueue queue;
	uint64_t first;
};

static void *play(void *arg)
{
	const struct player *p = arg;

	for (uint64_t i = 0; i < N_ROUNDS; i++)
		submit(p->queue, p->r->timeline, p->first + 2 * i - 1, p->first + 2 * i,
			VK_NULL_HANDLE);
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t threads[2];

	(void)state;
	layered_set("QUEUES", FAMILIES);
	struct rig r = make_rig(VK_SHARING_MODE_EXCLUSIVE);
	struct player players[2] = {
		{&r, r.queues[TRANSFER], 1},
		{&r, r.queues[MAIN], 2},
	};

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(wait_value(&r, 2 * N_ROUNDS, UINT64_MAX), VK_SUCCESS);
	end_rig(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		LAYERED_CASE(test_families),
		LAYERED_CASE(test_room),
		LAYERED_CASE(test_ownership),
		LAYERED_CASE(test_wait_before_signal),
		LAYERED_CASE(test_host_signal),
		LAYERED_CASE(test_binary),
		LAYERED_CASE(test_threads),
	};

	layered_require();
	layered_clear();
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
