/* SPDX-License-Identifier: Apache-2.0 */
/* Which queues of a device's table are taken. Needs no device. */
#include "tests/case.h"

#include "vk/queue-internal.h"

enum {
	G = VK_QUEUE_GRAPHICS_BIT,
	C = VK_QUEUE_COMPUTE_BIT,
	T = VK_QUEUE_TRANSFER_BIT,
	S = VK_QUEUE_SPARSE_BINDING_BIT,
	P = VK_QUEUE_PROTECTED_BIT,
	D = 0x20, /* VK_QUEUE_VIDEO_DECODE_BIT_KHR */
	E = 0x40, /* VK_QUEUE_VIDEO_ENCODE_BIT_KHR */
	F = 0x100 /* VK_QUEUE_OPTICAL_FLOW_BIT_NV */
};

struct family {
	VkQueueFlags flags;
	uint32_t n_queues;
};

static const struct row {
	const char *name;
	struct family families[6];
	int compute; /* family; -1: none */
	int transfer;
	int transfer_index;
} rows[] = {
	{"nvidia", {{G | C | T | S, 16}, {T | S, 2}, {C | T | S, 8}, {D | T | S, 1}, {E | T, 3}}, 0,
		1, 0},
	{"video engines come first", {{G | C | T, 1}, {D | T, 1}, {E | T, 1}, {F | T, 1}, {T, 1}},
		0, 4, 0},
	{"amd", {{G | C | T | S, 1}, {C | T | S, 4}, {S, 1}}, 0, 1, 0},
	{"amd with sdma", {{G | C | T | S, 1}, {C | T | S, 4}, {T | S | P, 1}}, 0, 2, 0},
	{"intel", {{G | C | T | S, 1}}, 0, 0, 0},
	{"one family, many queues", {{G | C | T, 16}}, 0, 0, 1},
	{"lavapipe", {{G | C | T, 1}}, 0, 0, 0},
	{"only async compute", {{C | T, 4}}, 0, 0, 1},
	{"graphics before compute", {{G, 1}, {C, 1}, {G | C, 1}}, 1, 1, 0},
	{"a family without queues", {{C | T, 0}, {G | C | T, 2}, {T, 0}}, 1, 1, 1},
	{"no compute", {{G | T, 1}, {T, 1}}, -1, 0, 0},
	{"nothing", {{0, 0}}, -1, 0, 0},
};

static void test_choose(void **state)
{
	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct vk_queue_state queues[VK_QUEUE_N] = {0};
		VkQueueFamilyProperties families[6] = {0};

		for (int k = 0; k < 6; k++) {
			families[k].queueFlags = rows[i].families[k].flags;
			families[k].queueCount = rows[i].families[k].n_queues;
		}
		bool is_found = vk_queue_choose(families, 6, queues);
		if (is_found != (rows[i].compute >= 0))
			fail_msg("%s: found %d", rows[i].name, is_found);
		if (!is_found)
			continue;
		if ((int)queues[VK_QUEUE_COMPUTE].family != rows[i].compute ||
			queues[VK_QUEUE_COMPUTE].index != 0)
			fail_msg("%s: compute is %u.%u", rows[i].name,
				queues[VK_QUEUE_COMPUTE].family, queues[VK_QUEUE_COMPUTE].index);
		if ((int)queues[VK_QUEUE_TRANSFER].family != rows[i].transfer ||
			(int)queues[VK_QUEUE_TRANSFER].index != rows[i].transfer_index)
			fail_msg("%s: transfer is %u.%u", rows[i].name,
				queues[VK_QUEUE_TRANSFER].family, queues[VK_QUEUE_TRANSFER].index);
	}
}

static void test_no_families(void **state)
{
	struct vk_queue_state queues[VK_QUEUE_N];

	(void)state;
	assert_false(vk_queue_choose(NULL, 0, queues));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_choose),
		CASE(test_no_families),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
