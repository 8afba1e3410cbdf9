/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

#include <vulkan/vulkan_core.h>

VkResult __real_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __real_vkBindBufferMemory(
	VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset);
VkResult __wrap_vkBindBufferMemory(
	VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset);
void __real_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret);
void __wrap_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret);
void __real_vkGetPhysicalDeviceMemoryProperties(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties *ret);
void __wrap_vkGetPhysicalDeviceMemoryProperties(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties *ret);
void __real_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *ret);
void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *ret);

/*
 * Once fake_types is set, the device seems to have one plain device-local type and one of host
 * memory; both are type 0 of the software driver.
 */
static bool fake_types;
static uint64_t fake_device_bytes = (uint64_t)1 << 30, fake_host_bytes = (uint64_t)1 << 30;
static uint32_t refuse_types; /* a bit a type: its allocations fail with refuse_with */
static VkResult refuse_with, refuse_bind;
static uint32_t n_allocations;

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	VkMemoryAllocateInfo copy = *info;

	n_allocations++;
	if (refuse_types >> info->memoryTypeIndex & 1)
		return refuse_with;
	if (fake_types)
		copy.memoryTypeIndex = 0;
	return __real_vkAllocateMemory(device, &copy, allocator, ret);
}

VkResult __wrap_vkBindBufferMemory(
	VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset)
{
	return refuse_bind ? refuse_bind
			   : __real_vkBindBufferMemory(device, buffer, memory, offset);
}

void __wrap_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret)
{
	__real_vkGetBufferMemoryRequirements2(device, info, ret);
	if (fake_types)
		ret->memoryRequirements.memoryTypeBits = 3;
}

static void fill_types(VkPhysicalDeviceMemoryProperties *ret)
{
	*ret = (VkPhysicalDeviceMemoryProperties){
		.memoryHeapCount = 2,
		.memoryHeaps = {{fake_device_bytes, VK_MEMORY_HEAP_DEVICE_LOCAL_BIT},
			{fake_host_bytes, 0}},
		.memoryTypeCount = 2,
		.memoryTypes = {{VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0},
			{VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
				1}},
	};
}

void __wrap_vkGetPhysicalDeviceMemoryProperties(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties *ret)
{
	__real_vkGetPhysicalDeviceMemoryProperties(physical, ret);
	if (fake_types)
		fill_types(ret);
}

void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *ret)
{
	__real_vkGetPhysicalDeviceMemoryProperties2(physical, ret);
	if (!fake_types)
		return;
	fill_types(&ret->memoryProperties);
	for (VkBaseOutStructure *s = ret->pNext; s; s = s->pNext)
		if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
			*(VkPhysicalDeviceMemoryBudgetPropertiesEXT *)s =
				(VkPhysicalDeviceMemoryBudgetPropertiesEXT){.sType = s->sType,
					.pNext = s->pNext,
					.heapBudget = {fake_device_bytes, fake_host_bytes}};
}

static void check_none(const struct vk_memory_counter *c)
{
	assert_int_equal(c->requested_bytes, 0);
	assert_int_equal(c->placed_bytes, 0);
	assert_int_equal(c->spilled_bytes, 0);
	assert_int_equal(c->imported_bytes, 0);
}

static void check_no_counts(const struct vk_device *d)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];

	vk_memory_get_counters(d, counters);
	vk_memory_get_heap_counters(d, heaps);
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++) {
		check_none(&counters[i]);
		for (int heap = 0; heap < VK_DEVICE_MAX_HEAPS; heap++)
			check_none(&heaps[i][heap]);
	}
}

static void test_roles(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory *memories[VK_MEMORY_N_ROLES];

	(void)state;
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++) {
		uint64_t n_bytes = (uint64_t)(i + 1) << 20;
		struct vk_memory *m = on_device_memory(d, (enum vk_memory_role)i, n_bytes, false);

		memories[i] = m;
		assert_int_equal(vk_memory_get_bytes(m), n_bytes);
		assert_string_equal(vk_memory_get_name(m), "test");
		assert_true(vk_memory_get_address(m) != 0);
		assert_int_equal(vk_memory_get_address(m) % 256, 0);
		assert_true(vk_memory_get_heap_index(m) < vk_device_get_info(d)->n_heaps);
		vk_memory_get_counters(d, counters);
		assert_true(counters[i].requested_bytes >= n_bytes);
		assert_int_equal(counters[i].placed_bytes, counters[i].requested_bytes);
		assert_int_equal(counters[i].spilled_bytes, 0);
		assert_int_equal(counters[i].imported_bytes, 0);
	}
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++)
		assert_null(vk_memory_free(memories[i]));
	check_no_counts(d);
	vk_device_free(d);
}

static void test_map(void **state)
{
	struct vk_device *d = on_device_new();

	(void)state;
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++) {
		struct vk_memory_params params = {
			.role = (enum vk_memory_role)i, .n_bytes = 65536, .name = "layer 3 pool"};
		bool is_host = i == VK_MEMORY_STAGING || i == VK_MEMORY_IO;
		struct vk_memory *m = NULL;
		struct err e = ERR_NULL;
		void *pointer = d, *again = NULL;

		assert_int_equal(vk_memory_new(d, &params, &e, &m), 0);
		int r = vk_memory_map(m, &e, &pointer);
		assert_int_equal(r, is_host ? 0 : -EPERM);
		if (is_host) {
			memset(pointer, 0x5a, 65536);
			assert_int_equal(vk_memory_map(m, &e, &again), 0);
			assert_ptr_equal(again, pointer);
		} else {
			assert_non_null(strstr(e.text, "layer 3 pool"));
			assert_non_null(strstr(e.text, vk_memory_role_name(params.role)));
			assert_ptr_equal(pointer, d);
		}
		vk_memory_free(m);
	}
	vk_device_free(d);
}

static int try_memory(struct vk_device *d, enum vk_memory_role role, uint64_t n_bytes,
	bool is_exportable, struct err *ret_err)
{
	struct vk_memory_params params = {
		.role = role, .n_bytes = n_bytes, .is_exportable = is_exportable, .name = "pool"};
	struct vk_memory *m = NULL;

	*ret_err = ERR_NULL;
	int r = vk_memory_new(d, &params, ret_err, &m);
	vk_memory_free(m);
	return r;
}

/* Refused before Vulkan hears of it. */
static void test_sizes(void **state)
{
	struct vk_device *d = on_device_new();
	uint64_t max = vk_device_get_info(d)->max_alloc_bytes;
	struct err e;

	(void)state;
	n_allocations = 0;
	assert_int_equal(try_memory(d, VK_MEMORY_KV, 0, false, &e), -EINVAL);
	assert_non_null(strstr(e.text, "pool"));
	assert_int_equal(try_memory(d, VK_MEMORY_KV, max + 1, false, &e), -EINVAL);
	assert_int_equal(try_memory(d, VK_MEMORY_KV, UINT64_MAX, false, &e), -EINVAL);
	assert_int_equal(try_memory(d, VK_MEMORY_N_ROLES, 1, false, &e), -EINVAL);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 4096, true, &e), -EINVAL);
	assert_int_equal(try_memory(d, VK_MEMORY_IO, 4096, true, &e), -EINVAL);
	assert_int_equal(n_allocations, 0);
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 1, true, &e), 0);
	assert_int_equal(n_allocations, 1);
	check_no_counts(d);
	vk_device_free(d);
}

/* Larger than maxStorageBufferRange of the software driver (128 MiB): addresses have no such end.
 */
static void test_large(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 160 << 20, false);
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, 4096, false);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice end = {.memory = m, .offset = (160 << 20) - 4096, .n_bytes = 4096};
	struct vk_slice whole = on_device_whole(io);

	(void)state;
	vk_command_begin(c);
	vk_command_fill(c, &end, 0xfeedbeef);
	vk_command_barrier(c);
	vk_command_copy(c, &whole, &end);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	assert_int_equal(on_device_map(io)[1023], 0xfeedbeef);
	vk_command_free(c);
	vk_memory_free(io);
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_out_of_memory(void **state)
{
	struct vk_device *d = on_device_new();
	struct err e;

	(void)state;
	refuse_types = ~0u;
	refuse_with = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	int r = try_memory(d, VK_MEMORY_WEIGHTS, 12345 << 8, true, &e);
	refuse_types = 0;
	assert_int_equal(r, -ENOMEM);
	assert_non_null(strstr(e.text, "pool (weights): wanted 3160320 bytes of heap"));
	assert_non_null(strstr(e.text, "budget"));
	assert_non_null(strstr(e.text, "VK_ERROR_OUT_OF_DEVICE_MEMORY"));
	check_no_counts(d);
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 4096, true, &e), 0);
	vk_device_free(d);
}

static void test_half_built(void **state)
{
	struct vk_device *d = on_device_new();
	struct err e;

	(void)state;
	refuse_bind = VK_ERROR_OUT_OF_HOST_MEMORY;
	int r = try_memory(d, VK_MEMORY_IO, 4096, false, &e);
	refuse_bind = VK_SUCCESS;
	assert_int_equal(r, -ENOMEM);
	check_no_counts(d);
	vk_device_free(d);
}

/* A MiB that heap 0 was asked for and that heap 1 has. */
static void check_spill_by_heap(const struct vk_device *d)
{
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	const struct vk_memory_counter *home = &heaps[VK_MEMORY_KV][0];
	const struct vk_memory_counter *here = &heaps[VK_MEMORY_KV][1];

	vk_memory_get_heap_counters(d, heaps);
	assert_int_equal(home->requested_bytes, 1 << 20);
	assert_int_equal(home->placed_bytes + home->spilled_bytes, 0);
	assert_int_equal(home->peak_bytes, 0);
	assert_int_equal(here->requested_bytes, 0);
	assert_int_equal(here->spilled_bytes, 1 << 20);
	assert_int_equal(here->placed_bytes, 0);
	assert_int_equal(here->peak_bytes, 1 << 20);
	assert_int_equal(here->n_spills, 1);
}

/* Heap 0 refuses; nothing lands in heap 1, and nothing is counted. */
static void check_home_only(struct vk_device *d)
{
	struct vk_memory_params params = {.role = VK_MEMORY_SCRATCH,
		.n_bytes = 1 << 20,
		.name = "pool",
		.is_home_only = true};
	struct vk_memory_counter before[VK_MEMORY_N_ROLES], after[VK_MEMORY_N_ROLES];
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	vk_memory_get_counters(d, before);
	assert_int_equal(vk_memory_new(d, &params, &e, &m), -ENOMEM);
	assert_null(m);
	assert_non_null(strstr(e.text, "memory pool (scratch): wanted 1048576 bytes of heap 0"));
	vk_memory_get_counters(d, after);
	assert_memory_equal(before, after, sizeof(before));
}

/* The most that there was at a time, not the sum of all there ever was. */
static void test_peak(void **state)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	struct vk_device *d = on_device_new();
	struct vk_memory *a = on_device_memory(d, VK_MEMORY_SCRATCH, 65536, false);
	struct vk_memory *b = on_device_memory(d, VK_MEMORY_SCRATCH, 2 * 65536, false);
	uint32_t heap = vk_memory_get_heap_index(a);

	(void)state;
	vk_memory_free(a);
	a = on_device_memory(d, VK_MEMORY_SCRATCH, 65536 / 2, false);
	vk_memory_get_counters(d, counters);
	vk_memory_get_heap_counters(d, heaps);
	assert_int_equal(counters[VK_MEMORY_SCRATCH].placed_bytes, 65536 / 2 * 5);
	assert_int_equal(counters[VK_MEMORY_SCRATCH].peak_bytes, 65536 * 3);
	assert_memory_equal(
		&heaps[VK_MEMORY_SCRATCH][heap], &counters[VK_MEMORY_SCRATCH], sizeof(counters[0]));
	assert_int_equal(counters[VK_MEMORY_KV].peak_bytes, 0);
	vk_memory_free(a);
	vk_memory_free(b);
	check_no_counts(d);
	vk_device_free(d);
}

static void test_spill(void **state)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory *m;
	struct err e;

	(void)state;
	fake_types = true;
	struct vk_device *d = on_device_new();
	refuse_types = 1;
	refuse_with = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	m = on_device_memory(d, VK_MEMORY_KV, 1 << 20, true);
	assert_int_equal(vk_memory_get_type_index(m), 1);
	assert_int_equal(vk_memory_get_heap_index(m), 1);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_KV].requested_bytes, 1 << 20);
	assert_int_equal(counters[VK_MEMORY_KV].spilled_bytes, 1 << 20);
	assert_int_equal(counters[VK_MEMORY_KV].placed_bytes, 0);
	check_spill_by_heap(d);
	vk_memory_free(m);
	check_no_counts(d);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_KV].peak_bytes, 1 << 20);
	assert_int_equal(counters[VK_MEMORY_KV].n_spills, 1);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 4096, false, &e), 0);
	check_home_only(d);
	/* Weights never spill, and what fails for another reason does not either. */
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 4096, true, &e), -ENOMEM);
	refuse_with = VK_ERROR_OUT_OF_HOST_MEMORY;
	assert_int_equal(try_memory(d, VK_MEMORY_KV, 4096, false, &e), -ENOMEM);
	refuse_types = 0;
	m = on_device_memory(d, VK_MEMORY_KV, 4096, false);
	assert_int_equal(vk_memory_get_heap_index(m), 0);
	vk_memory_free(m);
	vk_device_free(d);
	fake_types = false;
}

/* A heap that is smaller than what is wanted is not even asked. */
static void test_small_heap(void **state)
{
	struct err e;

	(void)state;
	fake_types = true;
	fake_device_bytes = 1 << 20;
	struct vk_device *d = on_device_new();
	n_allocations = 0;
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 2 << 20, false, &e), -ENOMEM);
	assert_non_null(strstr(e.text, "heap 1048576"));
	assert_int_equal(n_allocations, 0);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 2 << 20, false, &e), 0);
	assert_int_equal(n_allocations, 1);
	fake_host_bytes = 1 << 20;
	vk_device_free(d);
	d = on_device_new();
	n_allocations = 0;
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 2 << 20, false, &e), -ENOMEM);
	assert_non_null(strstr(e.text, "of heap 0"));
	assert_int_equal(n_allocations, 0);
	vk_device_free(d);
	fake_types = false;
}

/* Weights that are put into host memory: mapped, not device-local, never beyond the heap. */
static void test_host_weights(void **state)
{
	struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
		.n_bytes = 1 << 20,
		.is_exportable = true,
		.name = "experts",
		.is_host = true};
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	(void)state;
	/* A device with host memory apart shows its own; no other type of its can be mapped. */
	fake_types = !strcmp(on_device_select(), "software");
	fake_device_bytes = fake_host_bytes = (uint64_t)1 << 30;
	struct vk_device *d = on_device_new();
	on_device_check(vk_memory_new(d, &params, &e, &m), &e, "host weights");
	uint32_t type = vk_memory_get_type_index(m), heap = vk_memory_get_heap_index(m);
	if (fake_types)
		assert_int_equal(heap, 1);
	/* An integrated GPU may have no other than its own. */
	if (vk_device_get_info(d)->n_heaps > 1)
		assert_false(vk_device_get_info(d)->heaps[heap].device_local);
	memset(on_device_map(m), 0x5a, 1 << 20);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_WEIGHTS].placed_bytes, 1 << 20);
	assert_int_equal(counters[VK_MEMORY_WEIGHTS].spilled_bytes, 0);
	m = vk_memory_free(m);
	check_no_counts(d);
	refuse_types = UINT32_C(1) << type;
	refuse_with = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	assert_int_equal(vk_memory_new(d, &params, &e, &m), -ENOMEM);
	refuse_types = 0;
	assert_non_null(strstr(e.text, "experts (weights): wanted 1048576 bytes of heap"));
	if (fake_types) {
		fake_host_bytes = 1 << 19;
		assert_int_equal(vk_memory_new(d, &params, &e, &m), -ENOMEM);
		fake_host_bytes = (uint64_t)1 << 30;
	}
	/* The other roles have no choice. */
	params.role = VK_MEMORY_KV;
	assert_int_equal(vk_memory_new(d, &params, &e, &m), -EINVAL);
	params.role = VK_MEMORY_WEIGHTS;
	params.handle = VK_HANDLE_N;
	assert_int_equal(vk_memory_new(d, &params, &e, &m), -EINVAL);
	assert_null(m);
	vk_device_free(d);
	fake_types = false;
}

static void test_lost(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_command *c = NULL;
	struct err e;

	(void)state;
	refuse_types = ~0u;
	refuse_with = VK_ERROR_DEVICE_LOST;
	assert_int_equal(try_memory(d, VK_MEMORY_KV, 4096, false, &e), VK_DEVICE_LOST);
	refuse_types = 0;
	/* Once lost, lost for all. */
	n_allocations = 0;
	assert_int_equal(try_memory(d, VK_MEMORY_KV, 4096, false, &e), VK_DEVICE_LOST);
	assert_non_null(strstr(e.text, "lost"));
	assert_int_equal(n_allocations, 0);
	assert_int_equal(vk_command_new(d, 0, &e, &c), VK_DEVICE_LOST);
	assert_null(c);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_roles),
		CASE(test_map),
		CASE(test_sizes),
		CASE(test_large),
		CASE(test_out_of_memory),
		CASE(test_half_built),
		CASE(test_peak),
		CASE(test_spill),
		CASE(test_small_heap),
		CASE(test_host_weights),
		CASE(test_lost),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
