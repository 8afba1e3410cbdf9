/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

static const uint32_t step[] =
#include "step.comp.inc"
	;

struct step_push {
	uint64_t words;
	uint32_t addend;
	uint32_t n_rounds;
};

/* What step.comp computes from value. */
static uint32_t expect_step(uint32_t value, uint32_t addend)
{
	return value * 3 + addend;
}

/*
 * Time-consuming work. A kernel has at most 65,535 rounds of loops on the software driver, which
 * leaves a loop there without a word (Mesa, gallivm: LP_MAX_TGSI_LOOP_ITERATIONS).
 */
static void dispatch_slow(
	struct vk_command *c, const struct vk_pipeline *p, struct vk_memory *m, int n_times)
{
	struct step_push push = {.words = vk_memory_get_address(m), .addend = 1, .n_rounds = 60000};

	for (int i = 0; i < n_times; i++) {
		vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
		vk_command_barrier(c);
	}
}

static void test_dispatch_order(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, 64, false);
	struct vk_command *c = on_device_command(d, 0);
	struct step_push push = {.words = vk_memory_get_address(io), .n_rounds = 1};
	uint32_t expected = 1;

	(void)state;
	on_device_map(io)[0] = 1;
	vk_command_begin(c);
	for (uint32_t i = 0; i < 200; i++) {
		/* push is copied: what is put there later must not matter. */
		push.addend = i;
		vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
		vk_command_barrier(c);
		expected = expect_step(expected, i);
	}
	vk_command_host_barrier(c);
	assert_int_equal(vk_command_get_n_dispatches(c), 200);
	on_device_run(d, c);
	assert_int_equal(on_device_map(io)[0], expected);
	vk_command_begin(c);
	assert_int_equal(vk_command_get_n_dispatches(c), 0);
	vk_command_free(c);
	vk_memory_free(io);
	vk_pipeline_free(p);
	vk_device_free(d);
}

static void test_copy_and_fill(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 4096, false);
	struct vk_memory *staging = on_device_memory(d, VK_MEMORY_STAGING, 4096, false);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice all = on_device_whole(m), source = on_device_whole(staging);

	(void)state;
	for (uint32_t i = 0; i < 1024; i++)
		on_device_map(staging)[i] = i * 17;
	vk_command_begin(c);
	vk_command_copy(c, &all, &source);
	vk_command_barrier(c);
	vk_command_fill(c, &(struct vk_slice){m, 400, 8}, 0xa5a5a5a5);
	/* Parts of one memory that touch but do not overlap; odd bytes are allowed. */
	vk_command_copy(c, &(struct vk_slice){m, 0, 3}, &(struct vk_slice){m, 3, 3});
	on_device_run(d, c);
	uint32_t *data = on_device_read(d, m);
	assert_int_equal(data[99], 99 * 17);
	assert_int_equal(data[100], 0xa5a5a5a5);
	assert_int_equal(data[101], 0xa5a5a5a5);
	for (uint32_t i = 102; i < 1024; i++)
		assert_int_equal(data[i], i * 17);
	/* Bytes 3..5 of the source are 0, 17, 0. */
	assert_int_equal(data[0], 17 << 8);
	free(data);
	vk_command_free(c);
	vk_memory_free(staging);
	vk_memory_free(m);
	vk_device_free(d);
}

enum bad {
	BAD_RANGE,
	BAD_OVERFLOW,
	BAD_EMPTY,
	BAD_SIZES,
	BAD_OVERLAP,
	BAD_FILL,
	BAD_STAMP,
	BAD_GRID,
	BAD_PUSH,
	BAD_OWNER,
	N_BAD
};

static void record_bad(struct vk_command *c, enum bad bad, struct vk_memory *m,
	const struct vk_pipeline *p, const struct step_push *push)
{
	struct vk_slice low = {m, 0, 64}, high = {m, 64, 64};

	switch (bad) {
	case BAD_RANGE: vk_command_copy(c, &(struct vk_slice){m, 4090, 64}, &low); break;
	case BAD_OVERFLOW: vk_command_fill(c, &(struct vk_slice){m, UINT64_MAX - 3, 8}, 0); break;
	case BAD_EMPTY: vk_command_fill(c, &(struct vk_slice){m, 0, 0}, 0); break;
	case BAD_SIZES: vk_command_copy(c, &(struct vk_slice){m, 64, 32}, &low); break;
	case BAD_OVERLAP:
		high.offset = 63;
		vk_command_copy(c, &low, &high);
		break;
	case BAD_FILL: vk_command_fill(c, &(struct vk_slice){m, 2, 8}, 0); break;
	case BAD_STAMP: vk_command_stamp(c, 1); break;
	case BAD_GRID: vk_command_dispatch(c, p, push, sizeof(*push), 1, UINT32_MAX, 1); break;
	case BAD_PUSH: vk_command_dispatch(c, p, push, 12, 1, 1, 1); break;
	case BAD_OWNER: vk_command_acquire(c, m); break;
	case N_BAD: break;
	}
}

static void test_errors_are_kept(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 4096, false);
	struct vk_command *c = on_device_command(d, 1);
	struct step_push push = {.words = vk_memory_get_address(m)};
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(vk_command_end(c, &e), -EINVAL);
	for (int bad = 0; bad < N_BAD; bad++) {
		e = ERR_NULL;
		vk_command_begin(c);
		record_bad(c, (enum bad)bad, m, p, &push);
		/* Nothing after it matters, and the first one is told. */
		vk_command_dispatch(c, p, &push, 16, 1, 1, 1);
		vk_command_stamp(c, 77);
		assert_int_equal(vk_command_end(c, &e), -EINVAL);
		assert_true(*e.text);
		assert_null(strstr(e.text, "77"));
		assert_int_equal(vk_submit(d, &c, 1, &e, &ticket), -EINVAL);
		assert_int_equal(ticket, 0);
	}
	/* A failed recording does not spoil the next. */
	vk_command_begin(c);
	vk_command_stamp(c, 0);
	on_device_run(d, c);
	vk_command_free(c);
	vk_command_free(NULL);
	vk_memory_free(m);
	vk_pipeline_free(p);
	vk_device_free(d);
}

static void test_stamps(void **state)
{
	struct vk_device *d = on_device_new();
	struct err e = ERR_NULL;
	uint64_t ns[3] = {0};

	(void)state;
	if (vk_device_get_info(d)->ns_per_tick == 0) {
		vk_device_free(d);
		skip();
	}
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 4096, false);
	struct vk_command *c = on_device_command(d, 3);
	assert_int_equal(vk_command_get_stamps(c, ns), -EAGAIN);
	for (int round = 0; round < 2; round++) {
		vk_command_begin(c);
		vk_command_stamp(c, 0);
		vk_command_stamp(c, 1);
		dispatch_slow(c, p, m, 20);
		vk_command_stamp(c, 2);
		on_device_run(d, c);
		assert_int_equal(vk_command_get_stamps(c, ns), 0);
		assert_true(ns[0] > 0 && ns[0] <= ns[1] && ns[1] < ns[2]);
		/* Twenty times 60,000 dependent rounds: a millisecond at the very least. */
		assert_true(ns[2] - ns[1] > 1000000);
	}
	/* A slot that was not written spoils them all, and nothing is put out. */
	ns[0] = 42;
	vk_command_begin(c);
	vk_command_stamp(c, 0);
	vk_command_stamp(c, 2);
	on_device_run(d, c);
	assert_int_equal(vk_command_get_stamps(c, ns), -EAGAIN);
	assert_int_equal(ns[0], 42);
	vk_command_free(c);
	assert_int_equal(vk_command_new(d, 1u << 31, &e, &c), -EINVAL);
	vk_memory_free(m);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* A recorded command is submitted as often as one likes, each time after the time before. */
static void test_resubmission(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, 64, false);
	struct vk_command *c = on_device_command(d, 0);
	struct step_push push = {.words = vk_memory_get_address(io), .addend = 5, .n_rounds = 1};
	uint32_t expected = 2;
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	on_device_map(io)[0] = 2;
	vk_command_begin(c);
	vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
	vk_command_host_barrier(c);
	assert_int_equal(vk_command_end(c, &e), 0);
	for (int i = 0; i < 100; i++) {
		expected = expect_step(expected, 5);
		assert_int_equal(vk_submit(d, &c, 1, &e, &ticket), 0);
		assert_int_equal(vk_submit_wait(d, ticket, UINT64_MAX), 0);
		assert_int_equal(on_device_map(io)[0], expected);
	}
	vk_command_free(c);
	vk_memory_free(io);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* While it runs it can be neither submitted nor recorded again. */
static void test_in_flight(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, step, sizeof(struct step_push));
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 64, false);
	struct vk_command *c = on_device_command(d, 0);
	uint64_t ticket = 0;
	struct err e = ERR_NULL;

	(void)state;
	vk_command_begin(c);
	dispatch_slow(c, p, m, 200);
	assert_int_equal(vk_command_end(c, &e), 0);
	assert_int_equal(vk_submit(d, &c, 1, &e, &ticket), 0);
	assert_int_equal(vk_submit(d, &c, 1, &e, &ticket), -EBUSY);
	vk_command_begin(c);
	assert_int_equal(vk_command_end(c, &e), -EBUSY);
	assert_int_equal(vk_submit_wait(d, ticket, UINT64_MAX), 0);
	vk_command_begin(c);
	on_device_run(d, c);
	vk_command_free(c);
	vk_memory_free(m);
	vk_pipeline_free(p);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_dispatch_order),
		CASE(test_copy_and_fill),
		CASE(test_errors_are_kept),
		CASE(test_stamps),
		CASE(test_resubmission),
		CASE(test_in_flight),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
