/* SPDX-License-Identifier: Apache-2.0 */
/* Loads whose file, memory or device is not what it was taken for. */
#include "tests/vulkan/on-loader.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <vulkan/vulkan_core.h>

#include "weightd/export.h"

enum { SMALL_HEAP = 40 << 20 };

VkResult __real_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
VkResult __wrap_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
void __real_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);
void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);

VkResult __real_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);

int __real_ftruncate64(int fd, off_t n_bytes);
int __wrap_ftruncate64(int fd, off_t n_bytes);

enum { HOLD_MS = 10000 };

static atomic_int fail_export;       /* the exportable one that fails, from 1; 0: none */
static atomic_int fail_from;         /* the first of all that fail, as above */
static atomic_bool fails_ring;       /* those that are not exportable fail */
static atomic_int hold_export;       /* the exportable one that waits for a submission, as above */
static atomic_bool fails_after_hold; /* and what becomes of it then */
static atomic_bool is_held_in_vain;
static atomic_uint n_submits;
static atomic_bool cuts_memfd; /* files that get a size get half of it */

int __wrap_ftruncate64(int fd, off_t n_bytes)
{
	return __real_ftruncate64(fd, cuts_memfd ? n_bytes / 2 : n_bytes);
}

static bool is_exportable(const VkMemoryAllocateInfo *info)
{
	const VkBaseInStructure *s = info->pNext;

	while (s && s->sType != VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO)
		s = s->pNext;
	return s;
}

/* On the thread that makes weights. */
static VkResult hold(void)
{
	for (int i = 0; i < HOLD_MS && n_submits == 0; i++)
		usleep(1000);
	is_held_in_vain = n_submits == 0;
	return fails_after_hold ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS;
}

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	VkResult r = VK_SUCCESS;

	if (!is_exportable(info))
		r = fails_ring ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_SUCCESS;
	else if (fail_from == 1)
		r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	else if (fail_from > 1)
		atomic_fetch_sub(&fail_from, 1);
	else if (fail_export > 0 && atomic_fetch_sub(&fail_export, 1) == 1)
		r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
	else if (hold_export > 0 && atomic_fetch_sub(&hold_export, 1) == 1)
		r = hold();
	return r ? r : __real_vkAllocateMemory(device, info, allocator, ret);
}

/* Called once on the loader thread at the next submission; what it returns is the answer. */
static VkResult (*volatile at_submit)(void);
static uint64_t heap_bytes; /* of every heap; 0: the truth */
static int file_fd;         /* at_submit's */

VkResult __wrap_vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	VkResult (*fn)(void) = at_submit;

	at_submit = NULL;
	n_submits++;
	VkResult r = fn ? fn() : VK_SUCCESS;
	return r ? r : __real_vkQueueSubmit2(queue, n, infos, fence);
}

void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret)
{
	__real_vkGetPhysicalDeviceMemoryProperties2(device, ret);
	for (uint32_t i = 0; heap_bytes && i < ret->memoryProperties.memoryHeapCount; i++)
		ret->memoryProperties.memoryHeaps[i].size = heap_bytes;
}

/* Weights' memory that fails, whichever it is: less on the device; nothing else is left. */
static void test_allocation_fails(void **state)
{
	struct loader *l = on_loader_start(1 << 20, false);
	unsigned n_less = 0;

	(void)state;
	for (int n = 1; n < 12; n++) {
		fail_export = n;
		struct export *e = on_loader_load_ready(l, (uint64_t)n);
		n_less += e->device_bytes < e->weights_bytes;
		fail_export = 0;
		on_loader_check_contents(e);
		loader_release(l, e);
		on_loader_wait_weights(l, 0);
		on_loader_wait_nothing_staged();
	}
	assert_true(n_less > 5);

	loader_free(l);

	/* A load cannot do without the ring, and makes one when there was none before. */
	fails_ring = true;
	l = on_loader_start(1 << 20, false);
	struct loader_result r = on_loader_load(l, 20, on_loader_open_model());
	fails_ring = false;
	assert_int_equal(r.kind, LOADER_FAILED);
	assert_int_equal(r.code, -ENOMEM);
	loader_release(l, on_loader_load_ready(l, 21));
	on_loader_wait_weights(l, 0);
	on_loader_wait_nothing_staged();
	loader_free(l);
}

static void check_refused(struct loader *l, int fd, int code, const char *text)
{
	struct loader_result r = on_loader_load(l, 9, fd);

	assert_int_equal(r.kind, LOADER_FAILED);
	if (!strstr(r.err.text, text))
		fail_msg("expected \"%s\", found \"%s\"", text, r.err.text);
	assert_int_equal(r.code, code);
	on_loader_wait_weights(l, 0);
}

/* What is there is filled while the next is made; if that fails, all is placed anew in less. */
static void test_fill_beside_allocation(void **state)
{
	uint64_t whole_bytes = 0;

	(void)state;
	for (int i = 0; i < 4; i++) {
		/* So many that the first piece of the file needs less than all of them. */
		struct loader *l = on_loader_start(1 << 20, i / 2);

		n_submits = 0;
		fails_after_hold = i % 2;
		hold_export = 5;
		struct loader_result r = on_loader_load(l, 1, on_loader_open_model());
		assert_int_equal(hold_export, 0);
		assert_false(is_held_in_vain);
		assert_int_equal(r.kind, LOADER_READY);
		if (i == 0)
			whole_bytes = r.export->device_bytes;
		assert_int_equal(r.export->device_bytes < whole_bytes, i % 2);
		on_loader_check_contents(r.export);
		loader_release(l, r.export);
		on_loader_wait_weights(l, 0);
		on_loader_wait_nothing_staged();
		hold_export = 0;
		loader_free(l);
	}
}

/* Memory for the memfd ends in the middle: the kernel does to a page behind a file's end what it
 * does to one that it has no memory for. */
static void test_no_host_memory(void **state)
{
	(void)state;
	on_loader_place("*=staged");
	for (int use_pread = 0; use_pread < 2; use_pread++) {
		struct loader *l = on_loader_start(0, use_pread);

		cuts_memfd = true;
		check_refused(l, on_loader_open_model(), -ENOMEM,
			"staged weights: the host has no memory for ");
		cuts_memfd = false;
		on_loader_wait_nothing_staged();
		struct export *e = on_loader_load_ready(l, 2);
		on_loader_check_contents(e);
		loader_release(l, e);
		loader_free(l);
	}
	on_loader_policy = (struct policy){0};
}

/* Memory of the host's that the device exports ends: the rest is read, not refused. */
static void test_no_exported_host_memory(void **state)
{
	static struct vk_probe probe;

	(void)state;
	probe.kinds[VK_PROBE_FD_HOST].is_ok = true;
	on_loader_place("*=staged");
	for (int n = 1; n <= 3; n++) {
		struct loader *l = on_loader_start(1 << 20, false);

		loader_set_probe(l, &probe);
		fail_from = n;
		struct export *e = on_loader_load_ready(l, 1);
		fail_from = 0;
		assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED] > 0);
		assert_true(e->n_unmet_bytes > 0);
		loader_release(l, e);
		loader_free(l);
	}
	on_loader_policy = (struct policy){0};
}

static void test_refused(void **state)
{
	struct loader *l = on_loader_start(0, false);
	struct stat st;

	(void)state;
	check_refused(l, open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY), -EINVAL, "director");
	check_refused(l, memfd_create("empty", MFD_CLOEXEC), -EINVAL, "");
	check_refused(l, open("/dev/null", O_RDONLY | O_CLOEXEC), -EINVAL, "");
	int fd = on_loader_copy_model();
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(ftruncate(fd, st.st_size - 1000), 0);
	check_refused(l, fd, -EINVAL, "");
	loader_release(l, on_loader_load_ready(l, 10));
	loader_free(l);

	on_loader_place("*=device");
	l = on_loader_start(10000, false);
	check_refused(l, on_loader_open_model(), -E2BIG, "in one piece");
	loader_free(l);
	on_loader_policy = (struct policy){0};
}

static VkResult cut_file(void)
{
	if (ftruncate(file_fd, 1 << 20) < 0)
		abort(); /* no assertions on this thread */
	return VK_SUCCESS;
}

static VkResult write_file(void)
{
	if (pwrite(file_fd, "x", 1, 1 << 20) != 1)
		abort();
	return VK_SUCCESS;
}

static void test_file_changes(void **state)
{
	(void)state;
	for (int use_pread = 0; use_pread < 2; use_pread++) {
		struct loader *l = on_loader_start(0, use_pread);
		int fd = on_loader_copy_model();

		/* mtime moves in ticks of the kernel's clock: not within the one of the copy. */
		usleep(20000);
		file_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		at_submit = write_file;
		check_refused(l, fd, -ESTALE, "somebody wrote to it");
		at_submit = cut_file;
		struct loader_result r = on_loader_load(l, 2, fcntl(file_fd, F_DUPFD_CLOEXEC, 0));
		assert_int_equal(r.kind, LOADER_FAILED);
		/* With every read done before the cut it is the size that tells. */
		assert_true(r.code == -ESTALE || r.code == -ENODATA);
		close(file_fd);
		loader_free(l);
	}
}

static VkResult lose_device(void)
{
	return VK_ERROR_DEVICE_LOST;
}

static void test_device_lost(void **state)
{
	struct loader *l = on_loader_start(0, false);
	struct export *before = on_loader_load_ready(l, 1);

	(void)state;
	at_submit = lose_device;
	struct loader_result r = on_loader_load(l, 2, on_loader_open_model());
	assert_int_equal(r.kind, LOADER_LOST);
	assert_int_equal(r.code, -EIO);
	assert_true(fcntl(before->allocs[0].main.fd, F_GETFD) >= 0);
	/* A new device serves. */
	struct export *after = on_loader_load_ready(l, 3);
	on_loader_check_contents(after);
	loader_release(l, before);
	loader_release(l, after);
	on_loader_wait_weights(l, 0);
	loader_free(l);
}

static void test_no_room(void **state)
{
	(void)state;
	heap_bytes = SMALL_HEAP;
	on_loader_place("*=device");
	struct loader *l = on_loader_start(0, false);
	uint64_t used = 0;
	struct loader_result r = {0};

	if (loader_get_info(l)->has_memory_budget) {
		loader_free(l);
		heap_bytes = 0;
		on_loader_policy = (struct policy){0};
		skip();
	}
	for (uint64_t i = 1; i < 20; i++) {
		r = on_loader_load(l, i, on_loader_open_model());
		if (r.kind != LOADER_READY)
			break;
		used += r.export->weights_bytes;
		assert_true(used <= SMALL_HEAP);
		on_loader_wait_weights(l, used);
	}
	char expected[128];
	snprintf(expected, sizeof(expected), "free %llu on ",
		(unsigned long long)(SMALL_HEAP - used));
	assert_int_equal(r.code, -ENOMEM);
	assert_non_null(strstr(r.err.text, expected));
	loader_free(l);
	heap_bytes = 0;
	on_loader_policy = (struct policy){0};
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_allocation_fails),
		CASE(test_fill_beside_allocation),
		CASE(test_no_host_memory),
		CASE(test_refused),
		CASE(test_no_exported_host_memory),
		CASE(test_file_changes),
		CASE(test_device_lost),
		CASE(test_no_room),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
