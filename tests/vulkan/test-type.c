/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory types the roles take on machines of several kinds. */
#include "tests/case.h"

#include <string.h>

#include "vk/type.h"

enum {
	D = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
	V = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
	C = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
	A = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
};
#define GIB ((uint64_t)1 << 30)

/* One heap of each kind as NVIDIA's driver reports them, and a 256 MiB BAR heap. */
static const VkPhysicalDeviceMemoryProperties discrete = {
	.memoryHeapCount = 3,
	.memoryHeaps = {{.size = 24 * GIB}, {.size = 64 * GIB}, {.size = GIB / 4}},
	.memoryTypeCount = 6,
	.memoryTypes = {{0, 1}, {D, 0}, {V | C, 1}, {V | C | A, 1}, {D | V | C, 2},
		{D | VK_MEMORY_PROPERTY_PROTECTED_BIT, 0}},
};

/* A BAR over all of the device's memory, listed before the plain type. */
static const VkPhysicalDeviceMemoryProperties large_bar = {
	.memoryHeapCount = 2,
	.memoryHeaps = {{.size = 24 * GIB}, {.size = 64 * GIB}},
	.memoryTypeCount = 4,
	.memoryTypes = {{D | V | C, 0}, {D, 0}, {V | C | A, 1},
		{D | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT, 0}},
};

static const VkPhysicalDeviceMemoryProperties unified = {
	.memoryHeapCount = 1,
	.memoryHeaps = {{.size = 2 * GIB}},
	.memoryTypeCount = 1,
	.memoryTypes = {{D | V | C | A, 0}},
};

static void expect(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed,
	enum vk_memory_role role, int home, int spill)
{
	struct vk_type_list list;
	uint32_t at = 0;

	vk_type_rank(types, allowed, role, &list);
	assert_int_equal(list.n_home, home >= 0);
	assert_int_equal(list.n, (home >= 0) + (spill >= 0));
	if (home >= 0)
		assert_int_equal(list.indices[at++], home);
	if (spill >= 0)
		assert_int_equal(list.indices[at++], spill);
}

static void test_discrete(void **state)
{
	(void)state;
	expect(&discrete, ~0u, VK_MEMORY_WEIGHTS, 1, -1);
	expect(&discrete, ~0u, VK_MEMORY_KV, 1, 0);
	expect(&discrete, ~0u, VK_MEMORY_SCRATCH, 1, 0);
	expect(&discrete, ~0u, VK_MEMORY_STAGING, 2, -1);
	expect(&discrete, ~0u, VK_MEMORY_IO, 3, -1);
}

static void test_large_bar(void **state)
{
	(void)state;
	expect(&large_bar, ~0u, VK_MEMORY_WEIGHTS, 1, -1);
	expect(&large_bar, ~0u, VK_MEMORY_SCRATCH, 1, 2);
	expect(&large_bar, ~0u, VK_MEMORY_STAGING, 2, -1);
	expect(&large_bar, ~0u, VK_MEMORY_IO, 2, -1);
}

static void test_unified(void **state)
{
	(void)state;
	for (unsigned role = 0; role < VK_MEMORY_N_ROLES; role++)
		expect(&unified, ~0u, (enum vk_memory_role)role, 0, -1);
}

/* What a buffer does not allow is never in the list. */
static void test_allowed(void **state)
{
	(void)state;
	expect(&discrete, 1 << 2 | 1 << 4, VK_MEMORY_WEIGHTS, 4, -1);
	expect(&discrete, 1 << 2, VK_MEMORY_WEIGHTS, -1, -1);
	expect(&discrete, 1 << 2, VK_MEMORY_KV, -1, 2);
	expect(&discrete, 1 << 2, VK_MEMORY_IO, 2, -1);
	/* Host-visible only where it is device-local too: better than nothing. */
	expect(&discrete, 1 << 1 | 1 << 4, VK_MEMORY_IO, 4, -1);
	expect(&discrete, 1 << 1, VK_MEMORY_IO, -1, -1);
	expect(&discrete, 1 << 5, VK_MEMORY_WEIGHTS, -1, -1);
	expect(&discrete, 0, VK_MEMORY_KV, -1, -1);
}

static void test_plain(void **state)
{
	(void)state;
	assert_int_equal(vk_type_plain_bits(&discrete), 0x1f);
	assert_int_equal(vk_type_plain_bits(&large_bar), 0x7);
	assert_int_equal(vk_type_plain_bits(&unified), 0x1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_discrete),
		CASE(test_large_bar),
		CASE(test_unified),
		CASE(test_allowed),
		CASE(test_plain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
