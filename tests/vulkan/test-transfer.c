/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer queue beside the compute queue, and rows of bytes copied on both. */
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

/* What the driver was last told to wait for. */
static uint32_t n_seen_waits;
static uint64_t seen_wait;
static VkSemaphore seen_semaphore, seen_signal;

VkResult __wrap_vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	n_seen_waits = infos->waitSemaphoreInfoCount;
	seen_signal = infos->pSignalSemaphoreInfos[0].semaphore;
	if (n_seen_waits) {
		seen_wait = infos->pWaitSemaphoreInfos[0].value;
		seen_semaphore = infos->pWaitSemaphoreInfos[0].semaphore;
	}
	return __real_vkQueueSubmit2(queue, n, infos, fence);
}

static struct vk_command *command_on(struct vk_device *d, enum vk_queue queue)
{
	struct vk_command *c = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_command_new_on(d, queue, 0, &e, &c), &e, "command");
	return c;
}

static uint64_t submit_on(
	struct vk_device *d, enum vk_queue queue, struct vk_command *c, uint64_t wait)
{
	struct err e = ERR_NULL;
	uint64_t ticket = 0;

	on_device_check(vk_command_end(c, &e), &e, "end");
	on_device_check(vk_submit_on(d, queue, &c, 1, &wait, 1, &e, &ticket), &e, "submit");
	return ticket;
}

static void run_on(struct vk_device *d, enum vk_queue queue, struct vk_command *c)
{
	assert_int_equal(vk_submit_wait(d, submit_on(d, queue, c, 0), UINT64_MAX), 0);
}

/*
 * A kernel steps a word of one memory, a copy takes it to the other, a hundred times, all enqueued
 * before anything is waited for.
 */
static void test_ping_pong(void **state)
{
	enum { N_ROUNDS = 100 };
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *memories[2];
	struct vk_command *steps[N_ROUNDS], *copies[N_ROUNDS];
	uint64_t ticket = 0, done_copy = 0;
	uint32_t expected = 7;

	(void)state;
	for (int i = 0; i < 2; i++)
		memories[i] = on_device_memory(d, VK_MEMORY_IO, 64, false);
	on_device_map(memories[0])[0] = expected;
	on_device_map(memories[1])[0] = 0xdead;
	for (uint32_t i = 0; i < N_ROUNDS; i++) {
		struct vk_memory *from = memories[i % 2], *to = memories[(i + 1) % 2];
		struct vk_slice src = on_device_whole(from), dst = on_device_whole(to);
		struct step_push push = {
			.words = vk_memory_get_address(from), .addend = i, .n_rounds = 1};

		steps[i] = command_on(d, VK_QUEUE_COMPUTE);
		vk_command_begin(steps[i]);
		vk_command_dispatch(steps[i], p, &push, sizeof(push), 1, 1, 1);
		ticket = submit_on(d, VK_QUEUE_COMPUTE, steps[i], done_copy);
		assert_int_equal(ticket, i + 1);
		assert_int_equal(n_seen_waits, i > 0 ? 1 : 0);
		VkSemaphore compute = seen_signal;

		copies[i] = command_on(d, VK_QUEUE_TRANSFER);
		vk_command_begin(copies[i]);
		vk_command_copy(copies[i], &dst, &src);
		vk_command_host_barrier(copies[i]);
		done_copy = submit_on(d, VK_QUEUE_TRANSFER, copies[i], ticket);
		assert_true(done_copy == (VK_SUBMIT_TRANSFER_TICKET | (i + 1)));
		/* That the result is right proves little where the device has one queue only. */
		assert_int_equal(n_seen_waits, 1);
		assert_int_equal(seen_wait, i + 1);
		assert_true(seen_semaphore == compute && seen_signal != compute);
		expected = expected * 3 + i;
	}
	assert_int_equal(vk_submit_wait(d, done_copy, UINT64_MAX), 0);
	assert_true(vk_submit_is_done(d, ticket));
	assert_int_equal(on_device_map(memories[N_ROUNDS % 2])[0], expected);
	for (int i = 0; i < N_ROUNDS; i++) {
		vk_command_free(steps[i]);
		vk_command_free(copies[i]);
	}
	for (int i = 0; i < 2; i++)
		vk_memory_free(memories[i]);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* Of many tickets the last of the other queue is waited for; those of one's own need no waiting. */
static void test_many_waits(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_command *copy = command_on(d, VK_QUEUE_TRANSFER);
	uint64_t waits[7] = {0}, ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	for (int i = 0; i < 3; i++)
		on_device_check(vk_submit(d, NULL, 0, &e, &waits[i]), &e, "submit");
	for (int i = 3; i < 6; i++)
		on_device_check(vk_submit_on(d, VK_QUEUE_TRANSFER, NULL, 0, NULL, 0, &e, &waits[i]),
			&e, "submit");
	vk_command_begin(copy);
	on_device_check(vk_command_end(copy, &e), &e, "end");
	on_device_check(
		vk_submit_on(d, VK_QUEUE_TRANSFER, &copy, 1, waits, 7, &e, &ticket), &e, "submit");
	assert_int_equal(n_seen_waits, 1);
	assert_int_equal(seen_wait, 3);
	on_device_check(
		vk_submit_on(d, VK_QUEUE_COMPUTE, NULL, 0, waits, 7, &e, &ticket), &e, "submit");
	assert_int_equal(n_seen_waits, 1);
	assert_int_equal(seen_wait, 3);
	assert_int_equal(ticket, 4);
	assert_int_equal(vk_submit_wait(d, ticket, UINT64_MAX), 0);
	assert_int_equal(vk_submit_wait(d, waits[5] + 1, UINT64_MAX), 0);
	vk_command_free(copy);
	vk_device_free(d);
}

static void test_refused(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_command *c = command_on(d, VK_QUEUE_TRANSFER), *none = NULL;
	uint64_t ticket = 77, future = 1;
	struct step_push push = {.n_rounds = 1};
	struct err e = ERR_NULL;

	(void)state;
	vk_command_begin(c);
	on_device_check(vk_command_end(c, &e), &e, "end");
	/* A command of the other queue. */
	assert_int_equal(vk_submit(d, &c, 1, &e, &ticket), -EINVAL);
	assert_non_null(strstr(e.text, "other queue"));
	/* What was never given cannot be waited for, of either queue. */
	assert_int_equal(
		vk_submit_on(d, VK_QUEUE_TRANSFER, &c, 1, &future, 1, &e, &ticket), -EINVAL);
	future |= VK_SUBMIT_TRANSFER_TICKET;
	assert_int_equal(
		vk_submit_on(d, VK_QUEUE_TRANSFER, &c, 1, &future, 1, &e, &ticket), -EINVAL);
	assert_non_null(strstr(e.text, "never given"));
	assert_int_equal(vk_submit_wait(d, future, 0), -EINVAL);
	assert_int_equal(vk_submit_wait(d, VK_SUBMIT_TRANSFER_TICKET, 0), 0);
	assert_int_equal(vk_submit_on(d, VK_QUEUE_N, NULL, 0, NULL, 0, &e, &ticket), -EINVAL);
	assert_int_equal(vk_command_new_on(d, VK_QUEUE_N, 0, &e, &none), -EINVAL);
	assert_int_equal(vk_command_new_on(d, VK_QUEUE_TRANSFER, 1, &e, &none), -ENOTSUP);
	assert_null(none);
	assert_int_equal(ticket, 77);
	/* No kernels there, whatever the device could. */
	vk_command_begin(c);
	vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
	assert_int_equal(vk_command_end(c, &e), -EINVAL);
	assert_non_null(strstr(e.text, "runs no kernels"));
	vk_command_free(c);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* A copy of rows as the CPU does it, beside the one under test, bytes between rows included. */
static void check_rows(struct vk_device *d, enum vk_queue queue, struct vk_command_rows dst,
	struct vk_command_rows src, uint64_t n_rows, uint64_t n_row_bytes)
{
	enum { N_BYTES = 1 << 16 };
	struct vk_memory *from = on_device_memory(d, VK_MEMORY_STAGING, N_BYTES, false);
	struct vk_memory *to = on_device_memory(d, VK_MEMORY_IO, N_BYTES, false);
	struct vk_command *c = command_on(d, queue);
	uint8_t *in = (uint8_t *)on_device_map(from), *out = (uint8_t *)on_device_map(to);
	static uint8_t expected[N_BYTES];

	for (uint32_t i = 0; i < N_BYTES; i++) {
		in[i] = (uint8_t)(i * 7 + i / 256);
		expected[i] = out[i] = 0xee;
	}
	for (uint64_t i = 0; i < n_rows; i++)
		memcpy(expected + dst.offset + i * dst.stride, in + src.offset + i * src.stride,
			n_row_bytes);
	dst.memory = to;
	src.memory = from;
	vk_command_begin(c);
	vk_command_copy_2d(c, &dst, &src, n_rows, n_row_bytes);
	vk_command_host_barrier(c);
	run_on(d, queue, c);
	assert_memory_equal(out, expected, N_BYTES);
	vk_command_free(c);
	vk_memory_free(to);
	vk_memory_free(from);
}

static void test_rows(void **state)
{
	struct vk_device *d = on_device_new();

	(void)state;
	for (int q = 0; q < VK_QUEUE_N; q++) {
#define CHECK(dst_offset, dst_stride, src_offset, src_stride, n_rows, n_row_bytes)              \
	check_rows(d, (enum vk_queue)q, (struct vk_command_rows){NULL, dst_offset, dst_stride}, \
		(struct vk_command_rows){NULL, src_offset, src_stride}, n_rows, n_row_bytes)
		CHECK(100, 64, 12, 160, 20, 48);
		/* Odd everything. */
		CHECK(3, 7, 5, 11, 33, 5);
		/* Packed on one side, and on both. */
		CHECK(0, 16, 0, 64, 1024, 16);
		CHECK(8, 32, 16, 32, 100, 32);
		/* More rows than one call to the driver takes, up to the last byte. */
		CHECK(65536 - 1535 * 20 - 12, 20, 65536 - 1535 * 24 - 12, 24, 1536, 12);
		CHECK(0, 12, 0, 13, 513, 12);
		/* One row: its stride is nothing. */
		CHECK(65535, 0, 0, UINT64_MAX, 1, 1);
#undef CHECK
	}
	vk_device_free(d);
}

static void test_rows_refused(void **state)
{
	enum { N_BYTES = 4096 };
	struct vk_device *d = on_device_new();
	struct vk_memory *a = on_device_memory(d, VK_MEMORY_SCRATCH, N_BYTES, false);
	struct vk_memory *b = on_device_memory(d, VK_MEMORY_SCRATCH, 2 * N_BYTES, false);
	struct vk_command *c = command_on(d, VK_QUEUE_TRANSFER);
	const struct {
		struct vk_command_rows dst, src;
		uint64_t n_rows, n_row_bytes;
		const char *text;
	} bad[] = {
		{{a, 0, 64}, {b, 0, 64}, 0, 64, "rows within"},
		{{a, 0, 64}, {b, 0, 64}, 4, 0, "rows within"},
		{{a, 0, 63}, {b, 0, 64}, 4, 64, "copy to"},
		{{a, 0, 64}, {b, 0, 63}, 4, 64, "copy from"},
		{{a, 0, 0}, {b, 0, 64}, 4, 64, "copy to"},
		/* One byte too far, by the last row, by the offset. */
		{{a, 1, 64}, {b, 0, 64}, 64, 64, "copy to"},
		{{a, 0, 64}, {b, 1, 128}, 64, 128, "copy to"},
		{{b, 0, 64}, {a, 33, 64}, 64, 32, "copy from"},
		{{b, 0, 64}, {a, N_BYTES, 64}, 1, 1, "copy from"},
		{{b, 2 * N_BYTES + 1, 64}, {a, 0, 64}, 1, 1, "copy to"},
		/* Numbers that go round. */
		{{a, 0, UINT64_MAX / 2 + 1}, {b, 0, 64}, 3, 64, "copy to"},
		{{a, 0, UINT64_MAX - 62}, {b, 0, 64}, 2, 64, "copy to"},
		{{a, UINT64_MAX, 64}, {b, 0, 64}, 1, 64, "copy to"},
		{{a, UINT64_MAX - 63, 64}, {b, 0, 64}, 1, 64, "copy to"},
		{{b, 0, 64}, {a, 0, 64}, UINT64_MAX, 64, "rows within"},
		{{b, 0, 64}, {a, 0, 64}, UINT64_MAX / 64 + 2, 64, "rows within"},
		{{a, 0, 64}, {b, 0, 64}, 1, UINT64_MAX, "copy to"},
		/* Over each other. */
		{{a, 0, 64}, {a, 192, 64}, 4, 64, "overlap"},
		{{a, 192, 64}, {a, 0, 64}, 4, 64, "overlap"},
		{{a, 0, 128}, {a, 64, 128}, 2, 64, "overlap"},
	};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		struct err e = ERR_NULL;

		vk_command_begin(c);
		vk_command_copy_2d(c, &bad[i].dst, &bad[i].src, bad[i].n_rows, bad[i].n_row_bytes);
		/* What follows does not hide it. */
		vk_command_barrier(c);
		int r = vk_command_end(c, &e);
		if (r != -EINVAL || !strstr(e.text, bad[i].text))
			fail_msg("%u: %d %s", i, r, e.text);
	}
	/* Beside each other in one memory. */
	vk_command_begin(c);
	vk_command_copy_2d(c, &(struct vk_command_rows){a, 0, 64},
		&(struct vk_command_rows){a, 256, 64}, 4, 64);
	run_on(d, VK_QUEUE_TRANSFER, c);
	vk_command_free(c);
	vk_memory_free(b);
	vk_memory_free(a);
	vk_device_free(d);
}

/* What a worker does with weights: the transfer queue acquires, releases and fills, too. */
static void test_shared_memory(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_WEIGHTS, 4096, true);
	struct vk_command *c = command_on(d, VK_QUEUE_TRANSFER);
	struct vk_slice all = on_device_whole(m);

	(void)state;
	vk_command_begin(c);
	vk_command_fill(c, &all, 0x12345678);
	vk_command_release(c, m);
	run_on(d, VK_QUEUE_TRANSFER, c);
	vk_command_begin(c);
	vk_command_acquire(c, m);
	run_on(d, VK_QUEUE_TRANSFER, c);
	uint32_t *data = on_device_read(d, m);
	for (int i = 0; i < 1024; i++)
		assert_int_equal(data[i], 0x12345678);
	free(data);
	vk_command_free(c);
	vk_memory_free(m);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_ping_pong),
		CASE(test_many_waits),
		CASE(test_refused),
		CASE(test_rows),
		CASE(test_rows_refused),
		CASE(test_shared_memory),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
