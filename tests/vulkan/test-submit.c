/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/clock.h"
#include "tests/vulkan/on-device.h"

#include <vulkan/vulkan_core.h>

static const uint32_t step[] =
#include "step.comp.inc"
	;

struct step_push {
	uint64_t words;
	uint32_t addend;
	uint32_t n_rounds;
};

VkResult __real_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
VkResult __wrap_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
VkResult __real_vkWaitSemaphores(
	VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout_ns);
VkResult __wrap_vkWaitSemaphores(
	VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout_ns);
VkResult __real_vkGetSemaphoreCounterValue(
	VkDevice device, VkSemaphore semaphore, uint64_t *ret_value);
VkResult __wrap_vkGetSemaphoreCounterValue(
	VkDevice device, VkSemaphore semaphore, uint64_t *ret_value);

/* What the driver says in place of the truth. */
static VkResult submit_says, wait_says, counter_says;
static uint64_t counter_value;
static int n_driver_calls;
static VkDevice seen_device;
static VkSemaphore seen_semaphore;

VkResult __wrap_vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	n_driver_calls++;
	return submit_says ? submit_says : __real_vkQueueSubmit2(queue, n, infos, fence);
}

VkResult __wrap_vkWaitSemaphores(
	VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout_ns)
{
	n_driver_calls++;
	return wait_says ? wait_says : __real_vkWaitSemaphores(device, info, timeout_ns);
}

VkResult __wrap_vkGetSemaphoreCounterValue(
	VkDevice device, VkSemaphore semaphore, uint64_t *ret_value)
{
	n_driver_calls++;
	seen_device = device;
	seen_semaphore = semaphore;
	if (counter_says)
		return counter_says;
	if (!counter_value)
		return __real_vkGetSemaphoreCounterValue(device, semaphore, ret_value);
	*ret_value = counter_value;
	return VK_SUCCESS;
}

/* A device with one word of io memory and a command a test may submit. */
struct bench {
	struct vk_device *d;
	struct vk_pipeline *p;
	struct vk_memory *io;
};

static struct bench bench_new(void)
{
	struct bench b = {.d = on_device_new()};

	submit_says = wait_says = counter_says = VK_SUCCESS;
	counter_value = 0;
	b.p = ON_DEVICE_PIPELINE(b.d, step, sizeof(struct step_push));
	b.io = on_device_memory(b.d, VK_MEMORY_IO, 64, false);
	on_device_map(b.io)[0] = 1;
	return b;
}

static void bench_free(struct bench *b)
{
	vk_memory_free(b->io);
	vk_pipeline_free(b->p);
	vk_device_free(b->d);
}

/*
 * n_times dispatches of n_rounds. A kernel has at most 65,535 rounds of loops on the software
 * driver, which leaves a loop there without a word (Mesa, gallivm: LP_MAX_TGSI_LOOP_ITERATIONS).
 */
static struct vk_command *record(struct bench *b, uint32_t addend, uint32_t n_rounds, int n_times)
{
	struct vk_command *c = on_device_command(b->d, 0);
	struct step_push push = {
		.words = vk_memory_get_address(b->io), .addend = addend, .n_rounds = n_rounds};
	struct err e = ERR_NULL;

	vk_command_begin(c);
	for (int i = 0; i < n_times; i++) {
		vk_command_dispatch(c, b->p, &push, sizeof(push), 1, 1, 1);
		vk_command_barrier(c);
	}
	vk_command_host_barrier(c);
	on_device_check(vk_command_end(c, &e), &e, "end");
	return c;
}

/* Neither commands of one submission nor submissions overlap or change places. */
static void test_order(void **state)
{
	enum { N_COMMANDS = 8, N_SUBMITS = 25 };
	struct bench b = bench_new();
	struct vk_command *commands[N_COMMANDS];
	uint32_t expected = 1;
	uint64_t ticket = 0, last = 0;
	struct err e = ERR_NULL;

	(void)state;
	for (uint32_t i = 0; i < N_COMMANDS; i++)
		commands[i] = record(&b, i * i + 1, 1, 1);
	for (int i = 0; i < N_SUBMITS; i++) {
		on_device_check(
			vk_submit(b.d, commands, N_COMMANDS / 2, &e, &ticket), &e, "submit");
		assert_true(ticket > last);
		last = ticket;
		/* The second half is in flight beside the first. */
		on_device_check(
			vk_submit(b.d, commands + N_COMMANDS / 2, N_COMMANDS / 2, &e, &ticket), &e,
			"submit");
		assert_true(ticket > last);
		last = ticket;
		assert_int_equal(vk_submit_wait(b.d, ticket, UINT64_MAX), 0);
		assert_true(vk_submit_is_done(b.d, ticket));
		assert_true(vk_submit_is_done(b.d, ticket - 1));
		for (uint32_t k = 0; k < N_COMMANDS; k++)
			expected = expected * 3 + k * k + 1;
		assert_int_equal(on_device_map(b.io)[0], expected);
	}
	for (uint32_t i = 0; i < N_COMMANDS; i++)
		vk_command_free(commands[i]);
	bench_free(&b);
}

static void test_timeout(void **state)
{
	struct bench b = bench_new();
	struct vk_command *c = record(&b, 1, 60000, 200);
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(vk_submit(b.d, &c, 1, &e, &ticket), 0);
	assert_int_equal(vk_submit_wait(b.d, ticket, 0), -ETIMEDOUT);
	assert_false(vk_submit_is_done(b.d, ticket));
	assert_int_equal(vk_submit_wait(b.d, ticket, 1000000), -ETIMEDOUT);
	assert_int_equal(vk_submit_wait(b.d, ticket, UINT64_MAX), 0);
	assert_int_equal(vk_submit_wait(b.d, ticket, 0), 0);
	vk_command_free(c);
	bench_free(&b);
}

static void test_refused(void **state)
{
	struct bench b = bench_new();
	struct vk_command *c = record(&b, 1, 1, 1), *empty = on_device_command(b.d, 0);
	struct vk_command *twice[2] = {c, c};
	struct vk_command *many[VK_SUBMIT_MAX_COMMANDS + 1];
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(many); i++)
		many[i] = c;
	assert_int_equal(vk_submit(b.d, &empty, 1, &e, &ticket), -EINVAL);
	assert_int_equal(vk_submit(b.d, twice, 2, &e, &ticket), -EINVAL);
	assert_int_equal(vk_submit(b.d, many, ARRAY_SIZE(many), &e, &ticket), -EINVAL);
	assert_int_equal(ticket, 0);
	assert_int_equal(vk_submit_wait(b.d, 1, 0), -EINVAL);
	assert_int_equal(vk_submit_wait(b.d, 0, 0), 0);
	submit_says = VK_ERROR_OUT_OF_HOST_MEMORY;
	assert_int_equal(vk_submit(b.d, &c, 1, &e, &ticket), -ENOMEM);
	submit_says = VK_SUCCESS;
	/* The ticket that failed is given again, and its command is free. */
	assert_int_equal(vk_submit(b.d, &c, 1, &e, &ticket), 0);
	assert_int_equal(ticket, 1);
	/* None at all is a ticket for what went before. */
	assert_int_equal(vk_submit(b.d, NULL, 0, &e, &ticket), 0);
	assert_int_equal(ticket, 2);
	assert_int_equal(vk_submit_wait(b.d, ticket, UINT64_MAX), 0);
	vk_command_free(empty);
	vk_command_free(c);
	bench_free(&b);
}

/* After a loss every call says so without asking the driver. */
static void check_lost(struct bench *b, struct vk_command *c, uint64_t ticket)
{
	struct vk_memory_params params = {.role = VK_MEMORY_IO, .n_bytes = 64};
	struct vk_memory *m = NULL;
	uint64_t new_ticket = 77;
	struct err e = ERR_NULL;

	submit_says = wait_says = counter_says = VK_SUCCESS;
	counter_value = 0;
	n_driver_calls = 0;
	assert_int_equal(vk_submit_wait(b->d, ticket, UINT64_MAX), VK_DEVICE_LOST);
	assert_false(vk_submit_is_done(b->d, ticket));
	assert_int_equal(vk_submit(b->d, &c, 1, &e, &new_ticket), VK_DEVICE_LOST);
	assert_non_null(strstr(e.text, "lost"));
	assert_int_equal(new_ticket, 77);
	assert_int_equal(vk_memory_new(b->d, &params, &e, &m), VK_DEVICE_LOST);
	vk_command_begin(c);
	assert_int_equal(vk_command_end(c, &e), VK_DEVICE_LOST);
	assert_int_equal(n_driver_calls, 0);
}

static void test_lost_at_submit(void **state)
{
	struct bench b = bench_new();
	struct vk_command *c = record(&b, 1, 1, 1);
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	on_device_check(vk_submit(b.d, &c, 1, &e, &ticket), &e, "submit");
	assert_int_equal(vk_submit_wait(b.d, ticket, UINT64_MAX), 0);
	submit_says = VK_ERROR_DEVICE_LOST;
	assert_int_equal(vk_submit(b.d, &c, 1, &e, &ticket), VK_DEVICE_LOST);
	assert_non_null(strstr(e.text, "VK_ERROR_DEVICE_LOST"));
	check_lost(&b, c, ticket);
	vk_command_free(c);
	bench_free(&b);
}

/* Expected when it is done, long before, never, or as soon as it is not: done when it returns. */
static void test_wait_due(void **state)
{
	static const int64_t offsets_ns[] = {0, -1000000000, 1000, 400000, 3000000, 30000000};
	struct bench b = bench_new();
	struct vk_command *c = record(&b, 1, 1000, 100);
	struct err e = ERR_NULL;
	uint64_t ticket = 0;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(offsets_ns); i++) {
		uint64_t start_ns = clock_now_ns();

		on_device_check(vk_submit(b.d, &c, 1, &e, &ticket), &e, "submit");
		assert_int_equal(
			vk_submit_wait_due(b.d, ticket, start_ns + (uint64_t)offsets_ns[i]), 0);
		assert_true(vk_submit_is_done(b.d, ticket));
		/* It is no wait for a time. */
		on_device_check(vk_submit(b.d, &c, 1, &e, &ticket), &e, "submit");
		assert_int_equal(
			vk_submit_wait_due(b.d, ticket, start_ns + UINT64_C(60000000000)), 0);
		assert_true(clock_now_ns() - start_ns < UINT64_C(20000000000));
	}
	assert_int_equal(vk_submit_wait_due(b.d, ticket + 1, 0), -EINVAL);
	vk_command_free(c);
	bench_free(&b);
}

static void test_lost_at_wait(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	/* As the wait says, as the counter says, and as a counter from nowhere tells. */
	for (int way = 0; way < 3; way++) {
		struct bench b = bench_new();
		struct vk_command *c = record(&b, 1, 60000, 100);
		uint64_t ticket = 0;

		on_device_check(vk_submit(b.d, &c, 1, &e, &ticket), &e, "submit");
		wait_says = way == 0 ? VK_ERROR_DEVICE_LOST : VK_SUCCESS;
		counter_says = way == 1 ? VK_ERROR_DEVICE_LOST : VK_SUCCESS;
		counter_value = way == 2 ? UINT64_MAX : 0;
		assert_int_equal(vk_submit_wait(b.d, ticket, UINT64_MAX), VK_DEVICE_LOST);
		check_lost(&b, c, ticket);
		/* It is not lost in truth, and its work must end before the command goes. */
		VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
			.semaphoreCount = 1,
			.pSemaphores = &seen_semaphore,
			.pValues = &ticket};
		assert_int_equal(__real_vkWaitSemaphores(seen_device, &info, UINT64_MAX), 0);
		vk_command_free(c);
		bench_free(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_order),
		CASE(test_timeout),
		CASE(test_refused),
		CASE(test_wait_due),
		CASE(test_lost_at_submit),
		CASE(test_lost_at_wait),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
