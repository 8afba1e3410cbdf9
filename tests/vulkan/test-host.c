/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of this process in the device. The software driver takes every mapping, so refusals are the
 * wrap's there; on a real device that refuses a file on disk the refusal is real.
 */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <vulkan/vulkan_core.h>

#include "vk/host.h"
#include "vk/share.h"

enum { N_BYTES = 1 << 20, N_WORDS = N_BYTES / 4 };

VkResult __real_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
void __real_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret);
void __wrap_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret);
VkResult __real_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret);
VkResult __wrap_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret);

static VkResult refuse_with;
static uint32_t n_allocations;
static uint64_t n_extra_bytes;
static bool hide_host_import, hide_types;

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	n_allocations++;
	return refuse_with ? refuse_with : __real_vkAllocateMemory(device, info, allocator, ret);
}

void __wrap_vkGetBufferMemoryRequirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret)
{
	__real_vkGetBufferMemoryRequirements2(device, info, ret);
	ret->memoryRequirements.size += n_extra_bytes;
	if (hide_types)
		ret->memoryRequirements.memoryTypeBits = 0;
}

VkResult __wrap_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret)
{
	VkResult r = __real_vkEnumerateDeviceExtensionProperties(physical, layer, n, ret);

	for (uint32_t i = 0; ret && hide_host_import && i < *n; i++)
		if (!strcmp(ret[i].extensionName, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
			strcpy(ret[i].extensionName, "VK_EXT_hidden");
	return r;
}

/* The device, or the end of the test where host pages are not imported at all. */
static struct vk_device *device_new(void)
{
	struct vk_device *d = on_device_new();

	refuse_with = VK_SUCCESS;
	n_extra_bytes = 0;
	hide_types = false;
	if (vk_device_get_info(d)->has_import_host)
		return d;
	vk_device_free(d);
	skip();
	return NULL;
}

static void *map_anonymous(uint64_t n_bytes)
{
	void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void fill(void *p, uint32_t seed)
{
	for (uint32_t i = 0; i < N_WORDS; i++)
		((uint32_t *)p)[i] = seed + 5 * i;
}

static void check(struct vk_device *d, struct vk_memory *m, uint32_t seed)
{
	uint32_t *data = on_device_read(d, m);

	for (uint32_t i = 0; i < N_WORDS; i++)
		if (data[i] != seed + 5 * i)
			fail_msg("word %u: expected %u, found %u", i, seed + 5 * i, data[i]);
	free(data);
}

static struct vk_memory *import(struct vk_device *d, void *p)
{
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	on_device_check(
		vk_host_import(d, p, N_BYTES, VK_MEMORY_WEIGHTS, "pages", &e, &m), &e, "import");
	return m;
}

static void test_pages(void **state)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_device *d = device_new();
	struct vk_command *c = on_device_command(d, 0);
	uint32_t *p = map_anonymous(N_BYTES);
	struct err e = ERR_NULL;
	void *pointer = NULL;

	(void)state;
	fill(p, 100);
	struct vk_memory *m = import(d, p);
	assert_int_equal(vk_memory_get_bytes(m), N_BYTES);
	assert_string_equal(vk_memory_get_name(m), "pages");
	assert_true(vk_memory_get_address(m) != 0);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_WEIGHTS].imported_bytes, N_BYTES);
	assert_int_equal(counters[VK_MEMORY_WEIGHTS].requested_bytes, 0);
	check(d, m, 100);
	/* The same pages, not a copy: either side's writes are seen by the other. */
	fill(p, 200);
	check(d, m, 200);
	vk_command_begin(c);
	vk_command_fill(c, &(struct vk_slice){m, 4096, 8}, 0xabcdabcd);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	assert_int_equal(p[1023], 200 + 5 * 1023);
	assert_int_equal(p[1024], 0xabcdabcd);
	assert_int_equal(p[1025], 0xabcdabcd);
	assert_int_equal(p[1026], 200 + 5 * 1026);
	/* The mapping is the caller's; there is no other owner and nothing to export. */
	assert_int_equal(vk_memory_map(m, &e, &pointer), -EPERM);
	vk_command_begin(c);
	vk_command_acquire(c, m);
	assert_int_equal(vk_command_end(c, &e), -EINVAL);
	struct vk_share_params params;
	int fd = -1;
	assert_int_equal(vk_share_export(m, &e, &fd, &params), -EPERM);
	vk_memory_free(m);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_WEIGHTS].imported_bytes, 0);
	assert_false(vk_device_is_poisoned(d));
	assert_int_equal(p[0], 200);
	munmap(p, N_BYTES);
	vk_command_free(c);
	vk_device_free(d);
}

/* What staged weights are: one memfd, imported here twice, as two workers would. */
static void test_staged_memfd(void **state)
{
	struct vk_device *d = device_new();
	int fd = memfd_create("staged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *maps[2];
	struct vk_memory *m[2];

	(void)state;
	assert_int_equal(ftruncate(fd, N_BYTES), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_GROW | F_SEAL_SHRINK), 0);
	for (int i = 0; i < 2; i++) {
		maps[i] = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_true(maps[i] != MAP_FAILED);
		m[i] = import(d, maps[i]);
	}
	close(fd);
	fill(maps[0], 9);
	check(d, m[0], 9);
	check(d, m[1], 9);
	for (int i = 0; i < 2; i++) {
		vk_memory_free(m[i]);
		munmap(maps[i], N_BYTES);
	}
	vk_device_free(d);
}

static void expect(struct vk_device *d, void *p, uint64_t n_bytes, enum vk_memory_role role,
	int code, const char *text)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	int r = vk_host_import(d, p, n_bytes, role, "layer 7", &e, &m);
	if (r != code || !strstr(e.text, "layer 7") || !strstr(e.text, text))
		fail_msg("expected %d \"%s\", found %d \"%s\"", code, text, r, e.text);
	assert_null(m);
	vk_memory_get_counters(d, counters);
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++)
		assert_int_equal(counters[i].imported_bytes, 0);
}

static void test_bad_values(void **state)
{
	struct vk_device *d = device_new();
	uint64_t align = vk_device_get_info(d)->import_align;
	uint64_t max = vk_device_get_info(d)->max_alloc_bytes;
	char *p = map_anonymous(N_BYTES);
	uint32_t n_before = n_allocations;

	(void)state;
	expect(d, p + 256, N_BYTES - align, VK_MEMORY_WEIGHTS, -EINVAL, "multiples of");
	expect(d, p, N_BYTES - 256, VK_MEMORY_WEIGHTS, -EINVAL, "multiples of");
	expect(d, NULL, N_BYTES, VK_MEMORY_WEIGHTS, -EINVAL, "multiples of");
	expect(d, p, 0, VK_MEMORY_WEIGHTS, -EINVAL, "no bytes");
	expect(d, p, (max / align + 1) * align, VK_MEMORY_WEIGHTS, -EINVAL, "at most");
	expect(d, p, UINT64_MAX / align * align, VK_MEMORY_WEIGHTS, -EINVAL, "at most");
	expect(d, p, N_BYTES, VK_MEMORY_SCRATCH, -EINVAL, "scratch");
	expect(d, p, N_BYTES, VK_MEMORY_N_ROLES, -EINVAL, "role");
	n_extra_bytes = 256;
	expect(d, p, N_BYTES, VK_MEMORY_WEIGHTS, -ENOTSUP, "wants");
	n_extra_bytes = 0;
	hide_types = true;
	expect(d, p, N_BYTES, VK_MEMORY_WEIGHTS, -ENOTSUP, "no memory type");
	hide_types = false;
	/* None of it reached the driver, so nothing is poisoned. */
	assert_int_equal(n_allocations, n_before);
	assert_false(vk_device_is_poisoned(d));
	vk_memory_free(import(d, p));
	munmap(p, N_BYTES);
	vk_device_free(d);
}

static void test_no_extension(void **state)
{
	struct err e = ERR_NULL;
	struct vk_memory *m = NULL;
	void *p = map_anonymous(N_BYTES);

	(void)state;
	hide_host_import = true;
	struct vk_device *d = on_device_new();
	hide_host_import = false;
	assert_int_equal(vk_device_get_info(d)->import_align, 0);
	assert_false(vk_device_get_info(d)->has_import_host);
	assert_int_equal(
		vk_host_import(d, p, N_BYTES, VK_MEMORY_WEIGHTS, "pages", &e, &m), -ENOTSUP);
	munmap(p, N_BYTES);
	vk_device_free(d);
}

/* A poisoned device makes and imports nothing more, and says why; what it has still works. */
static void check_poisoned(struct vk_device *d, struct vk_memory *earlier, uint32_t seed)
{
	struct vk_memory_params params = {.role = VK_MEMORY_IO, .n_bytes = 4096, .name = "logits"};
	struct vk_command *c = on_device_command(d, 0);
	struct vk_memory *m = NULL;
	struct vk_share_params shared = {.n_bytes = 4096, .buffer_bytes = 4096};
	struct err e = ERR_NULL;
	uint32_t n_before = n_allocations;
	uint32_t *words = on_device_map(earlier);

	assert_true(vk_device_is_poisoned(d));
	assert_int_equal(vk_memory_new(d, &params, &e, &m), -ENOTRECOVERABLE);
	assert_non_null(strstr(e.text, "logits"));
	assert_non_null(strstr(e.text, "made anew"));
	void *p = map_anonymous(N_BYTES);
	assert_int_equal(vk_host_import(d, p, N_BYTES, VK_MEMORY_WEIGHTS, "pages", &e, &m),
		-ENOTRECOVERABLE);
	munmap(p, N_BYTES);
	int fd = memfd_create("any", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(vk_share_import(d, fd, &shared, VK_MEMORY_WEIGHTS, "peer's", &e, &m),
		-ENOTRECOVERABLE);
	close(fd);
	assert_int_equal(n_allocations, n_before);
	vk_command_begin(c);
	vk_command_fill(c, &(struct vk_slice){earlier, 0, 4}, seed);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	assert_int_equal(words[0], seed);
	vk_command_free(c);
}

static void test_refused(void **state)
{
	static const VkResult answers[] = {VK_ERROR_OUT_OF_DEVICE_MEMORY,
		VK_ERROR_INVALID_EXTERNAL_HANDLE, VK_ERROR_OUT_OF_HOST_MEMORY};
	void *p = map_anonymous(N_BYTES);

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(answers); i++) {
		struct vk_device *d = device_new();
		struct vk_memory *earlier = on_device_memory(d, VK_MEMORY_IO, 4096, false);

		refuse_with = answers[i];
		expect(d, p, N_BYTES, VK_MEMORY_WEIGHTS, VK_HOST_REFUSED, "VK_ERROR_");
		refuse_with = VK_SUCCESS;
		check_poisoned(d, earlier, i + 1);
		vk_memory_free(earlier);
		vk_device_free(d);
		/* Made anew it is as good as ever. */
		d = device_new();
		assert_false(vk_device_is_poisoned(d));
		fill(p, 3 + i);
		struct vk_memory *m = import(d, p);
		check(d, m, 3 + i);
		vk_memory_free(m);
		vk_device_free(d);
	}
	munmap(p, N_BYTES);
}

/* A loss is a loss, not a refusal. */
static void test_lost(void **state)
{
	struct vk_device *d = device_new();
	void *p = map_anonymous(N_BYTES);

	(void)state;
	refuse_with = VK_ERROR_DEVICE_LOST;
	expect(d, p, N_BYTES, VK_MEMORY_WEIGHTS, VK_DEVICE_LOST, "VK_ERROR_DEVICE_LOST");
	refuse_with = VK_SUCCESS;
	assert_false(vk_device_is_poisoned(d));
	expect(d, p, N_BYTES, VK_MEMORY_WEIGHTS, VK_DEVICE_LOST, "lost");
	munmap(p, N_BYTES);
	vk_device_free(d);
}

/* A file on disk, which real drivers refuse: then everything works again in a device made anew. */
static void test_disk_file(void **state)
{
	char path[] = "/var/tmp/weightd-test-XXXXXX";
	struct vk_device *d = device_new();
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;
	int fd = mkostemp(path, O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	assert_int_equal(ftruncate(fd, N_BYTES), 0);
	void *p = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	close(fd);
	fill(p, 42);
	for (int i = 0; i < 3; i++) {
		int r = vk_host_import(d, p, N_BYTES, VK_MEMORY_WEIGHTS, "file", &e, &m);
		if (!r) {
			check(d, m, 42);
			vk_memory_free(m);
			continue;
		}
		fprintf(stderr, "refused: %s\n", e.text);
		assert_int_equal(r, VK_HOST_REFUSED);
		assert_true(vk_device_is_poisoned(d));
		vk_device_free(d);
		d = on_device_new();
		void *good = map_anonymous(N_BYTES);
		fill(good, 43);
		m = import(d, good);
		check(d, m, 43);
		vk_memory_free(m);
		munmap(good, N_BYTES);
	}
	munmap(p, N_BYTES);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_pages),
		CASE(test_staged_memfd),
		CASE(test_bad_values),
		CASE(test_no_extension),
		CASE(test_refused),
		CASE(test_lost),
		CASE(test_disk_file),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
