/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader from an opened file to what an importer finds behind the descriptors, and everything
 * that goes wrong on the way.
 */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <vulkan/vulkan_core.h>

#include "proto/manifest.h"
#include "tests/vulkan/shipped-export.h"
#include "vk/share.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/loader.h"
#include "weightd/policy.h"
#include "weightd/source.h"

enum { WAIT_MS = 50000, SMALL_HEAP = 40 << 20, WINDOW = 1 << 20 };

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

static volatile int fail_alloc; /* the allocation that fails, from 1; 0: none */

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	if (fail_alloc > 0 && --fail_alloc == 0)
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	return __real_vkAllocateMemory(device, info, allocator, ret);
}

/* Called once on the loader thread at the next submission; what it returns is the answer. */
static VkResult (*volatile at_submit)(void);
static uint64_t heap_bytes; /* of every heap; 0: the truth */
static int file_fd;         /* at_submit's */

VkResult __wrap_vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	VkResult (*fn)(void) = at_submit;

	at_submit = NULL;
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

/* A copy that a test may change. */
static int copy_model(void)
{
	struct stat st;
	int from = shipped_export_open_model();
	int fd = memfd_create("test-loader", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fstat(from, &st), 0);
	uint8_t *data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(pread(from, data, (size_t)st.st_size, 0), st.st_size);
	assert_int_equal(pwrite(fd, data, (size_t)st.st_size, 0), st.st_size);
	free(data);
	close(from);
	return fd;
}

static struct policy policy; /* of the loaders of a case; set before start */
static struct source_account account;

static struct loader *start_with(const struct loader_params *params)
{
	struct loader_params p = *params;
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	p.device = on_device_select();
	p.policy = &policy;
	p.account = &account;
	on_device_check(loader_new(&p, &e, &l), &e, "loader");
	return l;
}

static struct loader *start(uint64_t alloc_bytes, bool use_pread)
{
	return start_with(
		&(struct loader_params){.alloc_bytes = alloc_bytes, .use_pread = use_pread});
}

static void place(const char *rule)
{
	struct err e = ERR_NULL;

	on_device_check(policy_add_rule(&policy, rule, &e), &e, "rule");
}

/* Closes fd. */
static int load_fd(struct loader *l, uint64_t generation, int fd, struct err *ret_err)
{
	struct source *source = NULL;
	int rc = source_new(fd, false, &account, ret_err, &source);

	close(fd);
	if (rc == 0)
		rc = loader_load(l, generation, source, false, ret_err);
	source_unref(source);
	return rc;
}

/* The next result that is no progress. */
static struct loader_result wait_result(struct loader *l)
{
	struct loader_result r;

	for (;;) {
		struct pollfd p = {.fd = loader_get_fd(l), .events = POLLIN};
		while (loader_take_result(l, &r))
			if (r.kind != LOADER_PROGRESS)
				return r;
		assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	}
}

static struct loader_result load(struct loader *l, uint64_t generation, int fd)
{
	struct err e = ERR_NULL;

	on_device_check(load_fd(l, generation, fd, &e), &e, "load");
	struct loader_result r = wait_result(l);
	assert_int_equal(r.generation, generation);
	return r;
}

static struct export *load_ready(struct loader *l, uint64_t generation)
{
	struct loader_result r = load(l, generation, shipped_export_open_model());

	if (r.kind != LOADER_READY)
		fail_msg("load: %d %s", r.code, r.err.text);
	assert_true(r.load_ns > 0);
	return r.export;
}

static uint64_t count_weights(struct loader *l)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights[VK_DEVICE_MAX_HEAPS];
	uint64_t n = 0;

	loader_get_heaps(l, heaps, weights);
	for (uint32_t i = 0; i < loader_get_info(l)->n_heaps; i++)
		n += weights[i];
	return n;
}

/* The account follows the loader thread, some time later. */
static void wait_weights(struct loader *l, uint64_t n_bytes)
{
	for (int i = 0; i < 1000 && count_weights(l) != n_bytes; i++)
		usleep(5000);
	assert_int_equal(count_weights(l), n_bytes);
}

/* The loader's thread frees what was released, in its own time. */
static void wait_nothing_staged(void)
{
	for (int i = 0; i < 1000 && atomic_load(&account.n_staged_bytes); i++)
		usleep(5000);
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
}

static void test_contents(void **state)
{
	/* An odd limit, just above the largest tensor, gives many allocations. */
	static const uint64_t limits[] = {0, 1114113};

	(void)state;
	for (unsigned i = 0; i < 2 * ARRAY_SIZE(limits); i++) {
		struct loader *l = start(limits[i / 2], i % 2);
		struct export *e = load_ready(l, 1);
		assert_string_equal(e->architecture, "qwen3");
		assert_string_equal(e->format, "q8_0");
		assert_true(i < 2 ? e->n_allocs == 1 : e->n_allocs > 4);
		shipped_export_check(e);
		wait_weights(l, e->weights_bytes);
		loader_release(l, e);
		wait_weights(l, 0);
		assert_null(loader_free(l));
	}
}

/* Windows of a megabyte: the embedding, which is larger, is one by itself. */
static void test_host_placements(void **state)
{
	static const struct {
		const char *rule;
		enum export_handle handle;
	} rows[] = {
		{"*=staged", EXPORT_MEMFD}, {"*=pinned", EXPORT_FILE}, {"*=paged", EXPORT_FILE}};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		place(rows[i].rule);
		struct loader *l = start_with(
			&(struct loader_params){.window_bytes = WINDOW, .use_pread = i % 2});
		struct export *e = load_ready(l, 1);
		unsigned n_larger = 0;

		assert_true(e->n_allocs > 5);
		for (uint32_t k = 0; k < e->n_allocs; k++) {
			assert_int_equal(e->allocs[k].file_offset % 4096, 0);
			assert_int_equal(e->allocs[k].n_bytes % 4096, 0);
			n_larger += e->allocs[k].n_bytes > WINDOW;
			/* What is larger than a window cannot be pinned. */
			assert_int_equal(e->allocs[k].handle,
				e->allocs[k].placement == MANIFEST_PLACEMENT_STAGED ? EXPORT_MEMFD
										    : EXPORT_FILE);
		}
		assert_int_equal(n_larger, 1);
		/* Without a probe only a software driver is trusted with the pages of a disk file.
		 */
		bool is_staged_instead =
			strstr(rows[i].rule, "pinned") && !loader_get_info(l)->is_software;
		assert_int_equal(e->allocs[e->n_allocs - 1].handle,
			is_staged_instead ? EXPORT_MEMFD : rows[i].handle);
		assert_int_equal(e->device_bytes, 0);
		shipped_export_check(e);
		wait_weights(l, 0);
		loader_release(l, e);
		loader_free(l);
		/* Everything that was staged is back. */
		assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
		policy = (struct policy){0};
	}
}

/* The budget keeps some layers on the device; the rest is one memfd, whose size is fixed. */
static void test_budget(void **state)
{
	(void)state;
	place("blk.*=staged");
	place("blk.0.*=device");
	policy.vram_budget = 4 << 20;
	struct loader *l = start(0, false);
	struct export *e = load_ready(l, 1);

	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] > 0);
	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] > 0);
	assert_int_equal(e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED], 0);
	assert_true(e->device_bytes <= policy.vram_budget);
	shipped_export_check(e);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		const struct export_alloc *a = &e->allocs[i];
		if (a->handle != EXPORT_MEMFD)
			continue;
		assert_true(a->is_writable);
		assert_int_equal(
			fcntl(a->fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
		assert_int_equal(ftruncate(a->fd, 0), -1);
	}
	/* Only what is staged takes memory. */
	uint64_t staged = atomic_load(&account.n_staged_bytes);
	assert_true(staged >= e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED]);
	assert_true(staged < e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] + (1 << 20));
	loader_release(l, e);
	loader_free(l);
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);

	/* A host budget below that: paged, and counted. */
	policy.host_budget = 1 << 20;
	l = start(0, false);
	e = load_ready(l, 1);
	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] <= policy.host_budget);
	assert_int_equal(e->n_unmet_bytes, e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED]);
	assert_true(e->n_unmet_bytes > 0);
	shipped_export_check(e);
	loader_release(l, e);
	loader_free(l);
	policy = (struct policy){0};
}

static struct export *load_source(
	struct loader *l, uint64_t generation, struct source *source, bool is_foreign)
{
	struct err e = ERR_NULL;

	on_device_check(loader_load(l, generation, source, is_foreign, &e), &e, "load");
	struct loader_result r = wait_result(l);
	if (r.kind != LOADER_READY)
		fail_msg("load: %d %s", r.code, r.err.text);
	assert_int_equal(r.is_foreign, is_foreign);
	return r.export;
}

/* For two devices: what is staged is there once, and the second adds what it lacks. */
static void test_one_memfd_for_all(void **state)
{
	struct source *source = NULL;
	struct err err = ERR_NULL;
	int fd = shipped_export_open_model();

	(void)state;
	place("blk.*=staged");
	struct loader *l = start(0, false);
	assert_int_equal(source_new(fd, false, &account, &err, &source), 0);
	close(fd);
	struct export *here = load_source(l, 1, source, false);
	uint64_t staged = atomic_load(&account.n_staged_bytes);
	struct export *there = load_source(l, 1, source, true);

	assert_int_equal(here->allocs[here->n_allocs - 1].handle, EXPORT_MEMFD);
	assert_int_equal(there->device_bytes, 0);
	assert_true(atomic_load(&account.n_staged_bytes) > staged);
	assert_true(atomic_load(&account.n_staged_bytes) <= 7 << 20);
	for (uint32_t i = 0; i < there->n_allocs; i++) {
		assert_int_equal(there->allocs[i].handle, EXPORT_MEMFD);
		assert_int_equal(there->allocs[i].inode, here->allocs[here->n_allocs - 1].inode);
		assert_int_equal(there->allocs[i].file_offset % (64 << 10), 0);
	}
	shipped_export_check(here);
	shipped_export_check(there);
	loader_release(l, here);
	shipped_export_check(there);
	loader_release(l, there);
	source_unref(source);
	loader_free(l);
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
	policy = (struct policy){0};
}

/* An allocation that fails, wherever it is: less on the device, or a refusal; nothing is left. */
static void test_allocation_fails(void **state)
{
	struct loader *l = start(1 << 20, false);
	unsigned n_ready = 0, n_refused = 0;

	(void)state;
	for (int n = 1; n < 12; n++) {
		fail_alloc = n;
		struct loader_result r = load(l, (uint64_t)n, shipped_export_open_model());
		fail_alloc = 0;
		if (r.kind == LOADER_READY) {
			shipped_export_check(r.export);
			loader_release(l, r.export);
			n_ready++;
		} else {
			assert_int_equal(r.kind, LOADER_FAILED);
			assert_int_equal(r.code, -ENOMEM);
			n_refused++;
		}
		wait_weights(l, 0);
		wait_nothing_staged();
	}
	/* Those before the ring's were placed anew; the ring cannot do without. */
	assert_true(n_ready > 5);
	assert_true(n_refused <= 1);
	loader_free(l);
}

/* What nobody took or released goes with the loader. */
static void test_left(void **state)
{
	struct loader *l = start(0, false);
	struct err e = ERR_NULL;

	(void)state;
	(void)load_ready(l, 1);
	assert_int_equal(load_fd(l, 2, shipped_export_open_model(), &e), 0);
	assert_int_equal(load_fd(l, 3, shipped_export_open_model(), &e), 0);
	loader_free(l);
	assert_null(loader_free(NULL));
}

static void check_refused(struct loader *l, int fd, int code, const char *text)
{
	struct loader_result r = load(l, 9, fd);

	assert_int_equal(r.kind, LOADER_FAILED);
	if (!strstr(r.err.text, text))
		fail_msg("expected \"%s\", found \"%s\"", text, r.err.text);
	assert_int_equal(r.code, code);
	wait_weights(l, 0);
}

static void test_refused(void **state)
{
	struct loader *l = start(0, false);
	struct stat st;

	(void)state;
	check_refused(l, open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY), -EINVAL, "director");
	check_refused(l, memfd_create("empty", MFD_CLOEXEC), -EINVAL, "");
	check_refused(l, open("/dev/null", O_RDONLY | O_CLOEXEC), -EINVAL, "");
	int fd = copy_model();
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(ftruncate(fd, st.st_size - 1000), 0);
	check_refused(l, fd, -EINVAL, "");
	loader_release(l, load_ready(l, 10));
	loader_free(l);

	place("*=device");
	l = start(10000, false);
	check_refused(l, shipped_export_open_model(), -E2BIG, "in one piece");
	loader_free(l);
	policy = (struct policy){0};
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
		struct loader *l = start(0, use_pread);
		int fd = copy_model();

		/* mtime moves in ticks of the kernel's clock: not within the one of the copy. */
		usleep(20000);
		file_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		at_submit = write_file;
		check_refused(l, fd, -ESTALE, "somebody wrote to it");
		at_submit = cut_file;
		struct loader_result r = load(l, 2, fcntl(file_fd, F_DUPFD_CLOEXEC, 0));
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
	struct loader *l = start(0, false);
	struct export *before = load_ready(l, 1);

	(void)state;
	at_submit = lose_device;
	struct loader_result r = load(l, 2, shipped_export_open_model());
	assert_int_equal(r.kind, LOADER_LOST);
	assert_int_equal(r.code, -EIO);
	assert_true(fcntl(before->allocs[0].fd, F_GETFD) >= 0);
	/* A new device serves. */
	struct export *after = load_ready(l, 3);
	shipped_export_check(after);
	loader_release(l, before);
	loader_release(l, after);
	wait_weights(l, 0);
	loader_free(l);
}

static void test_cancel(void **state)
{
	struct loader *l = start(0, false);
	struct err e = ERR_NULL;
	unsigned n_cancelled = 0;

	(void)state;
	for (uint64_t i = 1; i <= 3; i++)
		assert_int_equal(load_fd(l, i, shipped_export_open_model(), &e), 0);
	loader_cancel(l, 3);
	loader_cancel(l, 77);
	for (int i = 0; i < 3; i++) {
		struct loader_result r = wait_result(l);
		if (r.generation == 3) {
			assert_int_equal(r.code, -ECANCELED);
			n_cancelled++;
		} else {
			assert_int_equal(r.kind, LOADER_READY);
		}
	}
	assert_int_equal(n_cancelled, 1);
	loader_free(l);
}

static void test_too_many(void **state)
{
	struct loader *l = start(0, false);
	struct err e = ERR_NULL;
	int rc = 0;

	(void)state;
	for (uint64_t i = 1; i <= 10 * LOADER_MAX_JOBS && rc == 0; i++) {
		rc = load_fd(l, i, shipped_export_open_model(), &e);
	}
	assert_int_equal(rc, -EBUSY);
	loader_free(l);
}

static void test_no_room(void **state)
{
	(void)state;
	heap_bytes = SMALL_HEAP;
	place("*=device");
	struct loader *l = start(0, false);
	uint64_t used = 0;
	struct loader_result r = {0};

	if (loader_get_info(l)->has_memory_budget) {
		loader_free(l);
		heap_bytes = 0;
		policy = (struct policy){0};
		skip();
	}
	for (uint64_t i = 1; i < 20; i++) {
		r = load(l, i, shipped_export_open_model());
		if (r.kind != LOADER_READY)
			break;
		used += r.export->weights_bytes;
		assert_true(used <= SMALL_HEAP);
		wait_weights(l, used);
	}
	char expected[128];
	snprintf(expected, sizeof(expected), "free %llu on ",
		(unsigned long long)(SMALL_HEAP - used));
	assert_int_equal(r.code, -ENOMEM);
	assert_non_null(strstr(r.err.text, expected));
	loader_free(l);
	heap_bytes = 0;
	policy = (struct policy){0};
}

static void test_no_device(void **state)
{
	const struct loader_params params = {
		.device = "999", .policy = &policy, .account = &account};
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(loader_new(&params, &e, &l), -ENODEV);
	assert_true(e.text[0] != '\0');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_contents),
		CASE(test_host_placements),
		CASE(test_budget),
		CASE(test_one_memfd_for_all),
		CASE(test_allocation_fails),
		CASE(test_left),
		CASE(test_refused),
		CASE(test_file_changes),
		CASE(test_device_lost),
		CASE(test_cancel),
		CASE(test_too_many),
		CASE(test_no_room),
		CASE(test_no_device),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
