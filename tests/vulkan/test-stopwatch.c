/* SPDX-License-Identifier: Apache-2.0 */
/* Commands are run as often as is said, those to be compared in turn; the longer one takes longer.
 */
#include "tests/vulkan/on-device.h"
#include "workerd/stopwatch.h"

static const uint32_t step_spirv[] =
#include "step.comp.inc"
	;

enum { N_RUNS = 5, N_LONG = 30, LONG_ROUNDS = 60000 };

struct step_push {
	uint64_t words;
	uint32_t addend;
	uint32_t n_rounds;
};

/* at[0] = at[0] * 3 + addend, n_rounds times, n_dispatches times. */
static struct vk_command *make_command(struct vk_device *d, struct vk_pipeline *p,
	struct vk_memory *memory, uint32_t addend, uint32_t n_rounds, uint32_t n_dispatches)
{
	const struct step_push push = {
		.words = vk_memory_get_address(memory), .addend = addend, .n_rounds = n_rounds};
	struct vk_command *c = on_device_command(d, STOPWATCH_N_STAMPS);
	struct err e = ERR_NULL;

	vk_command_begin(c);
	vk_command_barrier(c);
	vk_command_stamp(c, 0);
	for (uint32_t i = 0; i < n_dispatches; i++) {
		vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
		vk_command_barrier(c);
	}
	vk_command_stamp(c, 1);
	vk_command_host_barrier(c);
	on_device_check(vk_command_end(c, &e), &e, "end");
	return c;
}

static void test_turns(void **state)
{
	struct stopwatch *watch = NULL;
	struct err e = ERR_NULL;
	uint64_t ns[2] = {0};
	uint32_t expected = 0;

	(void)state;
	struct vk_device *d = on_device_new();
	struct vk_memory *memory = on_device_memory(d, VK_MEMORY_IO, 4096, false);
	uint32_t *words = on_device_map(memory);
	words[0] = 0;
	struct vk_pipeline *p =
		ON_DEVICE_PIPELINE(d, step_spirv, sizeof(struct step_push), .n_spec = 0);
	/* Some milliseconds beside some microseconds. */
	struct vk_command *commands[2] = {make_command(d, p, memory, 1, LONG_ROUNDS, N_LONG),
		make_command(d, p, memory, 2, 1, 1)};
	on_device_check(stopwatch_new(d, &e, &watch), &e, "stopwatch");
	on_device_check(stopwatch_time(watch, commands, 2, N_RUNS, &e, ns), &e, "time");
	assert_true(ns[0] > ns[1]);
	for (uint32_t i = 0; i < 1 + N_RUNS; i++) {
		for (uint32_t k = 0; k < N_LONG * LONG_ROUNDS; k++)
			expected = expected * 3 + 1;
		expected = expected * 3 + 2;
	}
	assert_int_equal(words[0], expected);
	uint64_t one_ns = 0;
	on_device_check(stopwatch_time(watch, commands + 1, 1, 1, &e, &one_ns), &e, "time");
	expected = (expected * 3 + 2) * 3 + 2;
	assert_int_equal(words[0], expected);
	stopwatch_free(watch);
	assert_null(stopwatch_free(NULL));
	vk_command_free(commands[0]);
	vk_command_free(commands[1]);
	vk_pipeline_free(p);
	vk_memory_free(memory);
	vk_device_free(d);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_turns),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
