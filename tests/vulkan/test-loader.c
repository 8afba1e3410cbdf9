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
#include "vk/share.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/loader.h"

enum { WAIT_MS = 50000, SMALL_HEAP = 40 << 20 };

VkResult __real_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
VkResult __wrap_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
void __real_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);
void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);

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

static int open_model(void)
{
	char path[4096];

	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/* A copy that a test may change. */
static int copy_model(void)
{
	struct stat st;
	int from = open_model();
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

static struct loader *start(uint64_t alloc_bytes, bool use_pread)
{
	const struct loader_params params = {
		.device = on_device_select(), .alloc_bytes = alloc_bytes, .use_pread = use_pread};
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	on_device_check(loader_new(&params, &e, &l), &e, "loader");
	return l;
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

	on_device_check(loader_load(l, generation, fd, &e), &e, "load");
	struct loader_result r = wait_result(l);
	assert_int_equal(r.generation, generation);
	return r;
}

static struct export *load_ready(struct loader *l, uint64_t generation)
{
	struct loader_result r = load(l, generation, open_model());

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

/* What another process gets: each allocation imported and read whole. */
static uint8_t **import_all(struct vk_device *d, const struct export *e)
{
	uint8_t **data = calloc(e->n_allocs, sizeof(*data));
	struct err err = ERR_NULL;

	assert_non_null(data);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		const struct export_alloc *a = &e->allocs[i];
		const struct vk_share_params params = {.n_bytes = a->n_bytes,
			.buffer_bytes = a->buffer_bytes,
			.memory_type_index = a->memory_type_index,
			.is_dedicated = a->is_dedicated};
		struct vk_memory *m = NULL;
		struct stat st;
		int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);

		assert_int_equal(fstat(a->fd, &st), 0);
		assert_int_equal(a->inode, st.st_ino);
		assert_int_equal(a->dev, st.st_dev);
		on_device_check(
			vk_share_import(d, fd, &params, VK_MEMORY_WEIGHTS, "import", &err, &m),
			&err, "import");
		struct vk_command *c = on_device_command(d, 0);
		vk_command_begin(c);
		vk_command_acquire(c, m);
		on_device_run(d, c);
		vk_command_free(c);
		data[i] = (uint8_t *)on_device_read(d, m);
		vk_memory_free(m);
	}
	return data;
}

static uint64_t count_zeros(const uint8_t *data, uint64_t n_bytes)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < n_bytes; i++)
		n += data[i] == 0;
	return n;
}

/* Every tensor is byte for byte what the file says; every byte that is no tensor's is zero. */
static void check_contents(const struct export *e)
{
	struct vk_device *d = on_device_new();
	uint8_t **data = import_all(d, e);
	int fd = open_model();
	struct gguf *g = NULL;
	struct manifest *m = NULL;
	struct err err = ERR_NULL;
	uint64_t n_tensor_bytes = 0, n_alloc_bytes = 0, n_zeros = 0, n_tensor_zeros = 0;

	on_device_check(gguf_read(fd, &err, &g), &err, "gguf");
	on_device_check(manifest_open(e->manifest_fd, &err, &m), &err, "manifest");
	assert_int_equal(m->n_allocs, e->n_allocs);
	assert_int_equal(m->n_tensors, g->n_tensors);
	assert_int_equal(e->n_tensors, g->n_tensors);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[i];
		char name[128];
		snprintf(name, sizeof(name), "%.*s", (int)t->name.n_bytes, t->name.data);
		const struct manifest_tensor *mt = manifest_find_tensor(m, name);
		assert_non_null(mt);
		uint8_t *expected = malloc(t->n_bytes);
		assert_non_null(expected);
		assert_int_equal(
			pread(fd, expected, t->n_bytes, (off_t)t->offset), (ssize_t)t->n_bytes);
		assert_memory_equal(expected, data[mt->alloc] + mt->offset, t->n_bytes);
		n_tensor_bytes += t->n_bytes;
		n_tensor_zeros += count_zeros(expected, t->n_bytes);
		free(expected);
	}
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		assert_int_equal(m->allocs[i].n_bytes, e->allocs[i].buffer_bytes);
		n_alloc_bytes += e->allocs[i].buffer_bytes;
		n_zeros += count_zeros(data[i], e->allocs[i].buffer_bytes);
		free(data[i]);
	}
	assert_int_equal(n_zeros - n_tensor_zeros, n_alloc_bytes - n_tensor_bytes);
	free(data);
	manifest_free(m);
	gguf_free(g);
	close(fd);
	vk_device_free(d);
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
		check_contents(e);
		wait_weights(l, e->weights_bytes);
		loader_release(l, e);
		wait_weights(l, 0);
		assert_null(loader_free(l));
	}
}

/* What nobody took or released goes with the loader. */
static void test_left(void **state)
{
	struct loader *l = start(0, false);
	struct err e = ERR_NULL;

	(void)state;
	(void)load_ready(l, 1);
	assert_int_equal(loader_load(l, 2, open_model(), &e), 0);
	assert_int_equal(loader_load(l, 3, open_model(), &e), 0);
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

	l = start(10000, false);
	check_refused(l, open_model(), -E2BIG, "in one piece");
	loader_free(l);
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
		check_refused(l, fd, -ESTALE, "changed while it was read");
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
	struct loader_result r = load(l, 2, open_model());
	assert_int_equal(r.kind, LOADER_LOST);
	assert_int_equal(r.code, -EIO);
	assert_true(fcntl(before->allocs[0].fd, F_GETFD) >= 0);
	/* A new device serves. */
	struct export *after = load_ready(l, 3);
	check_contents(after);
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
		assert_int_equal(loader_load(l, i, open_model(), &e), 0);
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
		int fd = open_model();
		rc = loader_load(l, i, fd, &e);
		if (rc < 0)
			close(fd);
	}
	assert_int_equal(rc, -EBUSY);
	loader_free(l);
}

static void test_no_room(void **state)
{
	(void)state;
	heap_bytes = SMALL_HEAP;
	struct loader *l = start(0, false);
	uint64_t used = 0;
	struct loader_result r = {0};

	if (loader_get_info(l)->has_memory_budget) {
		loader_free(l);
		heap_bytes = 0;
		skip();
	}
	for (uint64_t i = 1; i < 20; i++) {
		r = load(l, i, open_model());
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
}

static void test_no_device(void **state)
{
	const struct loader_params params = {.device = "999"};
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
