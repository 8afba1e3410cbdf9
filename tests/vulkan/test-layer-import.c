/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports as other drivers see them: host pointers refused by what they map, the poison after it,
 * and the log by which a test knows what was imported. Plain Vulkan on vk_device's
 * objects, so that the vk room's own care is out of the way.
 */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include "tests/layer/layered.h"
#include "vk/device-internal.h"
#include "vk/share.h"

enum { N_BYTES = 1 << 16 };

#define HOST VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT

/* One mapping of a kind that /proc/self/maps tells apart. */
struct region {
	const char *kind;      /* as the log names it */
	const char *access;    /* rw, ro */
	const char *directory; /* of a file; NULL: none */
	bool is_memfd;
	int flags;
	bool nvidia_refuses; /* file,tmpfs-ro,memfd-ro */
};

static const struct region regions[] = {
	{"anon", "rw", NULL, false, MAP_PRIVATE | MAP_ANONYMOUS, false},
	{"anon", "rw", NULL, false, MAP_SHARED | MAP_ANONYMOUS, false},
	{"memfd", "rw", NULL, true, MAP_SHARED, false},
	{"memfd", "ro", NULL, true, MAP_SHARED, true},
	{"private", "rw", NULL, true, MAP_PRIVATE, false},
	{"tmpfs", "rw", "/dev/shm", false, MAP_SHARED, false},
	{"tmpfs", "ro", "/dev/shm", false, MAP_SHARED, true},
	{"file", "rw", "/var/tmp", false, MAP_SHARED, true},
	{"file", "ro", "/var/tmp", false, MAP_SHARED, true},
	{"file", "ro", "/var/tmp", false, MAP_PRIVATE, true},
};

static bool is_on_tmpfs(const char *directory)
{
	struct statfs fs;

	return statfs(directory, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

/* False where this machine's directory is not of the kind. ret_path: of a file, "" otherwise. */
static bool map_region(const struct region *r, void **ret_pointer, char ret_path[64])
{
	int protection = PROT_READ | (strcmp(r->access, "ro") ? PROT_WRITE : 0), fd = -1;

	*ret_path = '\0';
	if (r->directory) {
		if (is_on_tmpfs(r->directory) != !strcmp(r->kind, "tmpfs"))
			return false;
		snprintf(ret_path, 64, "%s/weightd \"layer\"-XXXXXX", r->directory);
		fd = mkstemp(ret_path);
	} else if (r->is_memfd) {
		fd = memfd_create("layer", MFD_CLOEXEC);
	}
	if (fd < 0)
		assert_true(r->flags & MAP_ANONYMOUS);
	else
		assert_int_equal(ftruncate(fd, 2 * N_BYTES), 0);
	/* Not from the file's first byte. */
	*ret_pointer = mmap(NULL, N_BYTES, protection, r->flags, fd, fd < 0 ? 0 : N_BYTES);
	assert_ptr_not_equal(*ret_pointer, MAP_FAILED);
	if (fd >= 0)
		close(fd);
	return true;
}

static uint32_t pointer_type(struct vk_device *d, const void *pointer)
{
	VkMemoryHostPointerPropertiesEXT p = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
	PFN_vkGetMemoryHostPointerPropertiesEXT get =
		(PFN_vkGetMemoryHostPointerPropertiesEXT)vkGetDeviceProcAddr(
			d->device, "vkGetMemoryHostPointerPropertiesEXT");

	assert_non_null(get);
	/* It succeeds, whatever comes after. */
	assert_int_equal(get(d->device, HOST, pointer, &p), VK_SUCCESS);
	assert_int_not_equal(p.memoryTypeBits, 0);
	return (uint32_t)__builtin_ctz(p.memoryTypeBits);
}

static VkResult import_pointer(
	struct vk_device *d, void *pointer, uint64_t n_bytes, VkDeviceMemory *ret_memory)
{
	VkImportMemoryHostPointerInfoEXT import = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
		.handleType = HOST,
		.pHostPointer = pointer,
	};
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = &import,
		.allocationSize = n_bytes,
		.memoryTypeIndex = pointer_type(d, pointer),
	};

	*ret_memory = VK_NULL_HANDLE;
	return vkAllocateMemory(d->device, &info, NULL, ret_memory);
}

static VkResult allocate_plain(struct vk_device *d)
{
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = N_BYTES};
	VkDeviceMemory memory = VK_NULL_HANDLE;

	VkResult r = vkAllocateMemory(d->device, &info, NULL, &memory);
	vkFreeMemory(d->device, memory, NULL);
	return r;
}

/* Every kind is told from the others, and refused where NVIDIA refuses it. */
static void check_kinds(const char *refuse)
{
	char path[64];
	unsigned n_seen = 0;

	layered_start_log();
	if (refuse)
		layered_set("REFUSE", refuse);
	struct vk_device *d = on_device_new();
	for (unsigned i = 0; i < ARRAY_SIZE(regions); i++) {
		const struct region *r = &regions[i];
		bool is_refused = refuse && r->nvidia_refuses;
		VkDeviceMemory memory;
		void *pointer;

		if (!map_region(r, &pointer, path))
			continue;
		VkResult result = import_pointer(d, pointer, N_BYTES, &memory);
		if (result != (is_refused ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS))
			fail_msg("%s %s: VkResult %d", r->kind, r->access, result);
		json_t *log = layered_read_log();
		const json_t *line = json_array_get(log, n_seen);
		assert_non_null(line);
		assert_string_equal(layered_text(line, "import.handle"), "host-allocation");
		assert_string_equal(layered_text(line, "import.kind"), r->kind);
		assert_string_equal(layered_text(line, "import.access"), r->access);
		assert_string_equal(layered_text(line, "result"),
			is_refused ? "VK_ERROR_OUT_OF_DEVICE_MEMORY" : "VK_SUCCESS");
		assert_string_equal(layered_text(line, "reason"), is_refused ? "refuse" : "");
		if (*path) {
			assert_string_equal(layered_text(line, "import.path"), path);
			assert_int_equal(
				layered_number(json_object_get(line, "import"), "offset"), N_BYTES);
		}
		n_seen += is_refused ? 1 : 2;
		json_decref(log);
		vkFreeMemory(d->device, memory, NULL);
		munmap(pointer, N_BYTES);
		if (*path)
			unlink(path);
	}
	assert_true(n_seen >= 8);
	vk_device_free(d);
	json_decref(layered_take_log());
}

static void test_kinds(void **state)
{
	(void)state;
	check_kinds(NULL);
}

static void test_refuse(void **state)
{
	(void)state;
	check_kinds("file,tmpfs-ro,memfd-ro");
}

/* A refused page in the middle of a range refuses all of it, and a gap always does. */
static void test_mixed_range(void **state)
{
	VkDeviceMemory memory;

	(void)state;
	layered_set("REFUSE", "all-ro");
	struct vk_device *d = on_device_new();
	char *pages =
		mmap(NULL, 4 * N_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(pages, MAP_FAILED);
	assert_int_equal(import_pointer(d, pages, 4 * N_BYTES, &memory), VK_SUCCESS);
	vkFreeMemory(d->device, memory, NULL);
	assert_int_equal(mprotect(pages + 2 * N_BYTES, N_BYTES, PROT_READ), 0);
	assert_int_equal(
		import_pointer(d, pages, 4 * N_BYTES, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	assert_int_equal(import_pointer(d, pages, 2 * N_BYTES, &memory), VK_SUCCESS);
	vkFreeMemory(d->device, memory, NULL);
	munmap(pages + N_BYTES, N_BYTES);
	assert_int_equal(
		import_pointer(d, pages, 2 * N_BYTES, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	munmap(pages, 4 * N_BYTES);
	vk_device_free(d);
}

static void test_poison(void **state)
{
	struct vk_device *other = NULL;
	VkDeviceMemory memory, kept;
	const struct region *good = &regions[0], *bad = &regions[3];
	void *good_pointer, *bad_pointer;
	char path[64];

	(void)state;
	layered_start_log();
	layered_set("REFUSE", "memfd-ro");
	layered_set("POISON", "1");
	assert_true(map_region(good, &good_pointer, path));
	assert_true(map_region(bad, &bad_pointer, path));
	struct vk_device *d = on_device_new();
	assert_int_equal(import_pointer(d, good_pointer, N_BYTES, &kept), VK_SUCCESS);
	assert_int_equal(allocate_plain(d), VK_SUCCESS);
	assert_int_equal(
		import_pointer(d, bad_pointer, N_BYTES, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	/* The rest of the instance's life. */
	assert_int_equal(
		import_pointer(d, good_pointer, N_BYTES, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	assert_int_equal(allocate_plain(d), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	/* Another instance is another matter, and so is this one made anew. */
	other = on_device_new();
	assert_int_equal(allocate_plain(other), VK_SUCCESS);
	vk_device_free(other);
	vkFreeMemory(d->device, kept, NULL);
	vk_device_free(d);
	d = on_device_new();
	assert_int_equal(import_pointer(d, good_pointer, N_BYTES, &memory), VK_SUCCESS);
	vkFreeMemory(d->device, memory, NULL);
	vk_device_free(d);

	json_t *log = layered_take_log();
	assert_string_equal(layered_text(json_array_get(log, 3), "reason"), "refuse");
	assert_string_equal(layered_text(json_array_get(log, 4), "reason"), "poison");
	assert_string_equal(layered_text(json_array_get(log, 5), "reason"), "poison");
	json_decref(log);
	munmap(good_pointer, N_BYTES);
	munmap(bad_pointer, N_BYTES);
}

/* A device of the poisoned instance that is made afterwards is no better. */
static void test_poison_is_of_the_instance(void **state)
{
	VkDeviceMemory memory;
	VkDevice second = VK_NULL_HANDLE;
	float priority = 1.0f;
	void *bad_pointer;
	char path[64];
	VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueCount = 1,
		.pQueuePriorities = &priority};
	VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.queueCreateInfoCount = 1,
		.pQueueCreateInfos = &queue};
	VkMemoryAllocateInfo plain = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = N_BYTES};

	(void)state;
	layered_set("REFUSE", "all-ro");
	layered_set("POISON", "1");
	assert_true(map_region(&regions[3], &bad_pointer, path));
	struct vk_device *d = on_device_new();
	assert_int_equal(
		import_pointer(d, bad_pointer, N_BYTES, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	assert_int_equal(vkCreateDevice(d->physical, &info, NULL, &second), VK_SUCCESS);
	assert_int_equal(
		vkAllocateMemory(second, &plain, NULL, &memory), VK_ERROR_OUT_OF_DEVICE_MEMORY);
	vkDestroyDevice(second, NULL);
	vk_device_free(d);
	munmap(bad_pointer, N_BYTES);
}

/* In the middle of a region: the first windows are in, the rest are not. */
static void test_refuse_from(void **state)
{
	enum { N_WINDOWS = 5 };
	VkDeviceMemory memory[N_WINDOWS];

	(void)state;
	layered_set("REFUSE", "memfd");
	layered_set("REFUSE_FROM", "3");
	struct vk_device *d = on_device_new();
	int fd = memfd_create("windows", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, N_WINDOWS * N_BYTES), 0);
	char *pages = mmap(NULL, N_WINDOWS * N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	assert_ptr_not_equal(pages, MAP_FAILED);
	for (int i = 0; i < N_WINDOWS; i++)
		assert_int_equal(import_pointer(d, pages + i * N_BYTES, N_BYTES, &memory[i]),
			i < 2 ? VK_SUCCESS : VK_ERROR_OUT_OF_DEVICE_MEMORY);
	/* Without poison nothing else is touched. */
	assert_int_equal(allocate_plain(d), VK_SUCCESS);
	for (int i = 0; i < N_WINDOWS; i++)
		vkFreeMemory(d->device, memory[i], NULL);
	vk_device_free(d);
	munmap(pages, N_WINDOWS * N_BYTES);
}

static const json_t *find_line(const json_t *log, const char *call, long long id)
{
	size_t i;
	json_t *line;

	json_array_foreach(log, i, line) if (!strcmp(layered_text(line, "call"), call) &&
					     layered_number(line, "id") == id) return line;
	return NULL;
}

/* An export and its import: both in the log, with heaps and handle types, and their ends. */
static void test_log(void **state)
{
	struct vk_share_params params;
	struct vk_memory *imported = NULL;
	struct err e = ERR_NULL;
	struct stat st;
	int fd = -1;

	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	layered_start_log();
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_WEIGHTS, N_BYTES, true);
	on_device_check(vk_share_export(m, &e, &fd, &params), &e, "export");
	assert_int_equal(fstat(fd, &st), 0);
	on_device_check(vk_share_import(d, fd, &params, VK_MEMORY_WEIGHTS, "in", &e, &imported), &e,
		"import");
	assert_int_equal(vk_memory_get_heap_index(imported), 0);
	vk_memory_free(imported);
	vk_memory_free(m);
	vk_device_free(d);

	json_t *log = layered_take_log();
	assert_int_equal(json_array_size(log), 5);
	const json_t *out = json_array_get(log, 0), *in = json_array_get(log, 2);
	const json_t *gone = json_array_get(log, 1);
	assert_string_equal(layered_text(gone, "call"), "export");
	assert_string_equal(layered_text(gone, "handle"), "opaque-fd");
	assert_int_equal(layered_number(gone, "id"), layered_number(out, "id"));
	assert_int_equal(layered_number(gone, "inode"), (long long)st.st_ino);
	assert_string_equal(layered_text(out, "call"), "allocate");
	assert_int_equal(layered_number(out, "pid"), getpid());
	assert_int_equal(layered_number(out, "size"), params.n_bytes);
	assert_int_equal(layered_number(out, "type"), LAYERED_VRAM);
	assert_int_equal(layered_number(out, "heap"), 0);
	assert_int_equal(layered_number(out, "flags"), VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT);
	assert_true(json_is_false(json_object_get(out, "dedicated")));
	assert_string_equal(
		json_string_value(json_array_get(json_object_get(out, "export"), 0)), "opaque-fd");
	assert_string_equal(json_string_value(json_array_get(json_object_get(out, "next"), 0)),
		"VkMemoryAllocateFlagsInfo");
	assert_string_equal(layered_text(in, "import.handle"), "opaque-fd");
	assert_string_equal(layered_text(in, "import.kind"), "memfd");
	assert_int_equal(
		layered_number(json_object_get(in, "import"), "inode"), (long long)st.st_ino);
	assert_int_equal(layered_number(in, "heap"), 0);
	assert_null(json_object_get(in, "reason"));
	assert_non_null(find_line(log, "free", layered_number(in, "id")));
	assert_non_null(find_line(log, "free", layered_number(out, "id")));
	json_decref(log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		LAYERED_CASE(test_kinds),
		LAYERED_CASE(test_refuse),
		LAYERED_CASE(test_mixed_range),
		LAYERED_CASE(test_poison),
		LAYERED_CASE(test_poison_is_of_the_instance),
		LAYERED_CASE(test_refuse_from),
		LAYERED_CASE(test_log),
	};

	layered_require();
	layered_clear();
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
