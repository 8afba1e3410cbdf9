/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dma-bufs as other drivers have them: which ways they go, whether one memory is also an opaque
 * descriptor, plain memfds that pass for one, and refusals.
 */
#include "tests/vulkan/on-device.h"

#include <sys/mman.h>

#include "tests/layer/layered.h"
#include "vk/device-internal.h"
#include "vk/share.h"

enum { N_BYTES = 1 << 16 };

#define DMA_BUF VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT

/* Two devices of a file's worth of dma-buf: exported as one, imported as one, same bytes. */
static VkDevice make_dma_device(struct vk_device *d)
{
	static const char *const names[] = {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME,
		VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME};
	float priority = 1.0f;
	VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueCount = 1,
		.pQueuePriorities = &priority};
	VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = 1,
		.pQueueCreateInfos = &queue,
		.enabledExtensionCount = ARRAY_SIZE(names),
		.ppEnabledExtensionNames = names};
	VkDevice device = VK_NULL_HANDLE;

	assert_int_equal(vkCreateDevice(d->physical, &info, NULL, &device), VK_SUCCESS);
	return device;
}

static VkResult import_dma_buf(VkDevice device, int fd, uint32_t type, VkDeviceMemory *ret_memory)
{
	VkImportMemoryFdInfoKHR import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
		.handleType = DMA_BUF,
		.fd = fd};
	VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = &import,
		.allocationSize = N_BYTES,
		.memoryTypeIndex = type};

	*ret_memory = VK_NULL_HANDLE;
	return vkAllocateMemory(device, &info, NULL, ret_memory);
}

/* Writes at one memory's host pointer or reads there, through a map of its own. */
static uint32_t *map(VkDevice device, VkDeviceMemory memory)
{
	void *pointer = NULL;

	assert_int_equal(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &pointer), VK_SUCCESS);
	return pointer;
}

static VkExternalMemoryFeatureFlags dma_buf_features(struct vk_device *d)
{
	VkPhysicalDeviceExternalBufferInfo info = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT,
		.handleType = DMA_BUF};
	VkExternalBufferProperties p = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};

	vkGetPhysicalDeviceExternalBufferProperties(d->physical, &info, &p);
	return p.externalMemoryProperties.externalMemoryFeatures;
}

static void test_dma_buf(void **state)
{
	VkExportMemoryAllocateInfo export = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO, .handleTypes = DMA_BUF};
	VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = &export,
		.allocationSize = N_BYTES,
		.memoryTypeIndex = LAYERED_HOST};
	VkDeviceMemory out = VK_NULL_HANDLE, in;
	int fd = -1;

	(void)state;
	/* Both ways as they are named, whatever the driver has (Mesa 25 imports dma-bufs). */
	layered_set("HEAPS", LAYERED_GPU);
	layered_set("DMA_BUF", "export");
	struct vk_device *d = on_device_new();
	assert_int_equal(dma_buf_features(d), VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT);
	vk_device_free(d);

	layered_set("DMA_BUF", "export,import");
	layered_start_log();
	d = on_device_new();
	assert_int_equal(dma_buf_features(d), VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT |
						      VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT);
	VkDevice device = make_dma_device(d);
	PFN_vkGetMemoryFdKHR get_fd =
		(PFN_vkGetMemoryFdKHR)vkGetDeviceProcAddr(device, "vkGetMemoryFdKHR");
	assert_int_equal(vkAllocateMemory(device, &info, NULL, &out), VK_SUCCESS);
	assert_int_equal(
		get_fd(device,
			&(VkMemoryGetFdInfoKHR){.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
				.memory = out,
				.handleType = DMA_BUF},
			&fd),
		VK_SUCCESS);
	map(device, out)[N_BYTES / 4 - 1] = 4711;
	assert_int_equal(import_dma_buf(device, fd, LAYERED_HOST, &in), VK_SUCCESS);
	assert_int_equal(map(device, in)[N_BYTES / 4 - 1], 4711);
	vkFreeMemory(device, in, NULL);
	vkFreeMemory(device, out, NULL);
	/* A plain memfd is not one of the driver's. */
	fd = memfd_create("plain", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, N_BYTES), 0);
	assert_int_equal(
		import_dma_buf(device, fd, LAYERED_HOST, &in), VK_ERROR_INVALID_EXTERNAL_HANDLE);
	close(fd);
	vkDestroyDevice(device, NULL);
	vk_device_free(d);

	json_t *log = layered_take_log();
	assert_string_equal(json_string_value(json_array_get(
				    json_object_get(json_array_get(log, 0), "export"), 0)),
		"dma-buf");
	assert_string_equal(layered_text(json_array_get(log, 1), "handle"), "dma-buf");
	assert_string_equal(layered_text(json_array_get(log, 2), "import.handle"), "dma-buf");
	json_decref(log);
}

/* Whether one memory can be a dma-buf and opaque is the driver's to say, and the log shows both. */
static void test_dma_buf_and_opaque(void **state)
{
	static const char *const ways[] = {"export,import", "export,import,apart"};
	struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
		.n_bytes = N_BYTES,
		.is_exportable = true,
		.name = "staged",
		.is_host = true,
		.handle = VK_HANDLE_DMA_BUF};

	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	for (unsigned i = 0; i < ARRAY_SIZE(ways); i++) {
		bool is_both = i == 0;
		struct vk_share_params shared;
		struct vk_memory *m = NULL;
		struct err e = ERR_NULL;
		int fds[VK_HANDLE_N] = {-1, -1};

		layered_set("DMA_BUF", ways[i]);
		layered_start_log();
		struct vk_device *d = on_device_new();
		on_device_check(vk_memory_new(d, &params, &e, &m), &e, "memory");
		assert_int_equal(vk_memory_get_type_index(m), LAYERED_CACHED);
		assert_true(vk_memory_can_export(m, VK_HANDLE_DMA_BUF));
		assert_int_equal(vk_memory_can_export(m, VK_HANDLE_OPAQUE_FD), is_both);
		on_device_check(
			vk_share_export(m, &e, &fds[VK_HANDLE_DMA_BUF], &shared), &e, "export");
		assert_int_equal(shared.handle, VK_HANDLE_DMA_BUF);
		assert_int_equal(vk_share_export_as(m, VK_HANDLE_OPAQUE_FD, &e,
					 &fds[VK_HANDLE_OPAQUE_FD], &shared),
			is_both ? 0 : -EPERM);
		for (unsigned h = 0; h < VK_HANDLE_N; h++)
			cleanup_close(&fds[h]);
		json_t *log = layered_take_log();
		assert_int_equal(json_array_size(json_object_get(json_array_get(log, 0), "export")),
			is_both ? 2 : 1);
		assert_int_equal(json_array_size(log), is_both ? 3 : 2);
		assert_string_equal(layered_text(json_array_get(log, 1), "handle"), "dma-buf");
		if (is_both)
			assert_string_equal(
				layered_text(json_array_get(log, 2), "handle"), "opaque-fd");
		json_decref(log);
		layered_set("LOG", "");
		vk_memory_free(m);
		vk_device_free(d);
	}
}

/* A driver that claims dma-bufs and refuses one; what is opaque still comes in. */
static void test_refuse_dma_buf(void **state)
{
	struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
		.n_bytes = N_BYTES,
		.is_exportable = true,
		.name = "staged",
		.is_host = true,
		.handle = VK_HANDLE_DMA_BUF};
	struct vk_memory *m = NULL, *imported = NULL;
	struct vk_share_params shared;
	struct err e = ERR_NULL;
	int fd = -1;

	(void)state;
	layered_set("DMA_BUF", "export,import");
	layered_set("REFUSE", "dma-buf");
	struct vk_device *d = on_device_new();
	on_device_check(vk_memory_new(d, &params, &e, &m), &e, "memory");
	on_device_check(vk_share_export(m, &e, &fd, &shared), &e, "export");
	assert_int_equal(
		vk_share_import(d, fd, &shared, VK_MEMORY_WEIGHTS, "in", &e, &imported), -ENOMEM);
	close(fd);
	on_device_check(vk_share_export_as(m, VK_HANDLE_OPAQUE_FD, &e, &fd, &shared), &e, "export");
	on_device_check(vk_share_import(d, fd, &shared, VK_MEMORY_WEIGHTS, "in", &e, &imported), &e,
		"import");
	vk_memory_free(imported);
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_dma_buf_memfd(void **state)
{
	VkDeviceMemory in;
	VkMemoryFdPropertiesKHR p = {.sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR};

	(void)state;
	layered_set("DMA_BUF", "memfd");
	struct vk_device *d = on_device_new();
	VkDevice device = make_dma_device(d);
	PFN_vkGetMemoryFdPropertiesKHR get = (PFN_vkGetMemoryFdPropertiesKHR)vkGetDeviceProcAddr(
		device, "vkGetMemoryFdPropertiesKHR");
	int fd = memfd_create("plain", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, N_BYTES), 0);
	uint32_t *pages = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(pages, MAP_FAILED);
	pages[N_BYTES / 4 - 1] = 815;
	assert_int_equal(get(device, DMA_BUF, fd, &p), VK_SUCCESS);
	assert_int_equal(p.memoryTypeBits, 1);
	assert_int_equal(import_dma_buf(device, fd, 0, &in), VK_SUCCESS);
	uint32_t *words = map(device, in);
	assert_int_equal(words[N_BYTES / 4 - 1], 815);
	words[0] = 42;
	assert_int_equal(pages[0], 42);
	vkFreeMemory(device, in, NULL);
	vkDestroyDevice(device, NULL);
	vk_device_free(d);
	munmap(pages, N_BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		LAYERED_CASE(test_dma_buf),
		LAYERED_CASE(test_dma_buf_and_opaque),
		LAYERED_CASE(test_refuse_dma_buf),
		LAYERED_CASE(test_dma_buf_memfd),
	};

	layered_require();
	layered_clear();
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
