/* SPDX-License-Identifier: Apache-2.0 */
/* Where weightd puts weights on devices that are not like the software driver, and on two. */
#include "tests/e2e/weightd-placement.h"

/* For the next weightd; what it finds out is forgotten, and so is what others did. */
static void layer(const char *name, const char *value)
{
	assert_int_equal(setenv(name, value, 1), 0);
	assert_int_equal(setenv("WEIGHTD_PROBE", "fresh", 1), 0);
}

/* As NVIDIA's: files are refused, memfds are not. */
static void test_refused_files(void **state)
{
	struct site s;

	(void)state;
	layer("WEIGHTD_LAYER_REFUSE", "file,tmpfs-ro,memfd-ro");
	layer("WEIGHTD_LAYER_POISON", "1");
	start(&s, OPTIONS("--place", "blk.*=pinned"));
	unsetenv("WEIGHTD_LAYER_REFUSE");
	unsetenv("WEIGHTD_LAYER_POISON");
	struct weights_client *c = connect_client(&s);
	struct weights_client_acquired a = get(c, ALL_HANDLES, 0);
	assert_int_equal(sum(&a).n_bytes[MANIFEST_PLACEMENT_PINNED], 0);
	assert_true(sum(&a).n_bytes[MANIFEST_PLACEMENT_STAGED] > 0);
	check_windows(&a);
	const char *line = strstr(site_log(&s), "does not import mappings of kind disk-read-only");
	assert_non_null(line);
	assert_non_null(strstr(line, "VK_ERROR_OUT_OF_DEVICE_MEMORY"));
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* As amdgpu: no file pages at all. Host memory of the device's own, exported. */
static void test_refused_memfds(void **state)
{
	struct site s;

	(void)state;
	layer("WEIGHTD_LAYER_REFUSE", "all");
	start(&s, OPTIONS("--place", "blk.*=staged"));
	unsetenv("WEIGHTD_LAYER_REFUSE");
	struct weights_client *c = connect_client(&s);
	struct weights_client_acquired a = get(c, ALL_HANDLES, 0);
	unsigned n_staged = 0;
	for (uint32_t i = 0; i < a.n_allocs; i++) {
		assert_int_equal(a.allocs[i].handle_type, WEIGHTS_CLIENT_OPAQUE_FD);
		n_staged += a.allocs[i].placement == MANIFEST_PLACEMENT_STAGED;
	}
	assert_int_equal(n_staged, 1);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* The same where the driver exports host memory as dma-bufs too: those, to who imports them. */
static void test_staged_as_dma_buf(void **state)
{
	enum { OPAQUE = 1 << WEIGHTS_CLIENT_OPAQUE_FD, DMA_BUF = 1 << WEIGHTS_CLIENT_DMA_BUF };
	static const char *const ways[] = {
		"export,import", "export,import,apart", "export", "import"};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(ways); i++) {
		bool is_dma_buf = i < 2, is_both = i == 0;
		struct err e = ERR_NULL;
		struct weights_client_acquired a, b;
		struct site s;

		layer("WEIGHTD_LAYER_REFUSE", "all");
		layer("WEIGHTD_LAYER_DMA_BUF", ways[i]);
		start(&s, OPTIONS("--place", "blk.*=staged"));
		unsetenv("WEIGHTD_LAYER_REFUSE");
		unsetenv("WEIGHTD_LAYER_DMA_BUF");
		struct weights_client *c = connect_client(&s), *other = connect_client(&s);
		a = get(c, ALL_HANDLES | DMA_BUF, 0);
		assert_true(sum(&a).n_bytes[MANIFEST_PLACEMENT_STAGED] > 1 << 20);
		for (uint32_t k = 0; k < a.n_allocs; k++) {
			bool is_staged = a.allocs[k].placement == MANIFEST_PLACEMENT_STAGED;

			assert_int_equal(a.allocs[k].handle_type,
				is_staged && is_dma_buf ? WEIGHTS_CLIENT_DMA_BUF
							: WEIGHTS_CLIENT_OPAQUE_FD);
		}
		if (!is_dma_buf || is_both) {
			b = get(other, OPAQUE, 0);
			for (uint32_t k = 0; k < b.n_allocs; k++) {
				assert_int_equal(b.allocs[k].handle_type, WEIGHTS_CLIENT_OPAQUE_FD);
				/* Underneath, the simulated dma-buf is the same file. */
				assert_int_equal(b.allocs[k].inode, a.allocs[k].inode);
				assert_int_equal(b.allocs[k].n_bytes, a.allocs[k].n_bytes);
			}
			weights_client_acquired_fini(&b);
		} else {
			assert_int_equal(acquire_as(other, "atlas", OPAQUE, 0, &e, &b), -ENOTSUP);
			assert_non_null(strstr(e.text, "does not import"));
		}
		weights_client_acquired_fini(&a);
		weights_client_free(c);
		weights_client_free(other);
		site_stop(&s);
	}
}

/* The budget shrinks with every look at it, the allocations are small, and one of them fails. */
static void test_small_and_shrinking(void **state)
{
	struct site s;

	(void)state;
	layer("WEIGHTD_LAYER_BUDGET", "4M-1M");
	layer("WEIGHTD_LAYER_MAX_ALLOC", "1M");
	start(&s, OPTIONS("--window", "1M"));
	unsetenv("WEIGHTD_LAYER_BUDGET");
	unsetenv("WEIGHTD_LAYER_MAX_ALLOC");
	struct weights_client *c = connect_client(&s);
	struct weights_client_acquired a = get(c, ALL_HANDLES, 0);
	struct sums n = sum(&a);
	assert_true(n.n_bytes[MANIFEST_PLACEMENT_DEVICE] <= 4 << 20);
	/* The embedding is larger than any allocation. */
	assert_true(n.n_bytes[MANIFEST_PLACEMENT_PAGED] > 1 << 20);
	for (uint32_t i = 0; i < a.n_allocs; i++)
		if (a.allocs[i].placement != MANIFEST_PLACEMENT_PAGED)
			assert_true(a.allocs[i].n_bytes <= 1 << 20);
	check_windows(&a);
	assert_non_null(strstr(site_log(&s), "found no place that a device reads"));
	struct weights_client_status status = get_status(c);
	assert_true(status.models[0].generations[0].unmet_bytes > 1 << 20);
	weights_client_status_fini(&status);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* Two manifests of the driver, of which the second device has another UUID. */
static void write_manifests(const char *dir)
{
	static const char *const paths[] = {"/usr/share/vulkan/icd.d/lvp_icd.x86_64.json",
		"/usr/share/vulkan/icd.d/lvp_icd.json"};
	char text[4096], path[200], files[500];
	ssize_t n = -1;

	for (unsigned i = 0; i < 2 && n < 0; i++) {
		int fd = open(paths[i], O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? -1 : read(fd, text, sizeof(text));
		if (fd >= 0)
			close(fd);
	}
	if (n < 0)
		skip();
	for (char name = 'a'; name <= 'b'; name++) {
		snprintf(path, sizeof(path), "%s/%c.json", dir, name);
		int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(write(fd, text, (size_t)n), n);
		close(fd);
	}
	snprintf(files, sizeof(files), "%s/a.json:%s/b.json", dir, dir);
	layer("VK_DRIVER_FILES", files);
	layer("VK_ICD_FILENAMES", files); /* loaders before 1.3.207 */
}

static void test_two_devices(void **state)
{
	struct site s;
	char model[4200], path[200];
	struct weights_client_acquired a, b;
	uint64_t inodes[2] = {0};

	(void)state;
	if (!getenv("SECOND_UUID"))
		skip();
	write_manifests(cache_dir);
	layer("LD_PRELOAD", getenv("SECOND_UUID"));
	snprintf(model, sizeof(model), "atlas=%s", model_path());
	site_init(&s);
	site_spawn_plain(&s,
		OPTIONS("--device", "0", "--device", "1", "--model", model, "--place",
			"blk.0.*=staged"),
		0);
	unsetenv("LD_PRELOAD");
	unsetenv("VK_DRIVER_FILES");
	unsetenv("VK_ICD_FILENAMES");
	site_wait_ready(&s);
	struct weights_client *c = connect_client(&s);
	struct weights_client *other = connect_client(&s);
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.n_devices, 2);
	assert_true(status.devices[0].heaps[0].weights_bytes > 0);
	assert_int_equal(status.devices[1].heaps[0].weights_bytes, 0);
	weights_client_status_fini(&status);
	assert_int_equal(get_residency(c), 1 << 1);
	a = get(c, ALL_HANDLES, 0);
	uint64_t n_bytes = verify(c);
	b = get(other, ALL_HANDLES, 0xff);
	assert_int_equal(verify(other), 2 * n_bytes);
	assert_int_equal(get_residency(c), 1 << 1 | 1 << 2);
	assert_int_equal(a.n_allocs, b.n_allocs);
	for (uint32_t i = 0; i < a.n_allocs; i++) {
		assert_int_equal(a.allocs[i].placement, b.allocs[i].placement);
		bool is_memfd = a.allocs[i].handle_type == WEIGHTS_CLIENT_MEMFD;
		/* One in host memory, one on each device. */
		assert_int_equal(a.allocs[i].inode == b.allocs[i].inode, is_memfd);
		inodes[is_memfd] = a.allocs[i].inode;
	}
	assert_true(inodes[0] && inodes[1]);
	check_windows(&b);
	status = get_status(c);
	assert_int_equal(
		status.devices[0].heaps[0].weights_bytes, status.devices[1].heaps[0].weights_bytes);
	const struct weights_client_generation *g = &status.models[0].generations[0];
	assert_int_equal(g->n_allocs, 2 * a.n_allocs);
	assert_int_equal(g->allocs[0].device, 1);
	assert_int_equal(g->allocs[a.n_allocs].device, 2);
	weights_client_status_fini(&status);
	weights_client_acquired_fini(&a);
	weights_client_acquired_fini(&b);
	weights_client_free(c);
	weights_client_free(other);
	site_stop(&s);
	for (char name = 'a'; name <= 'b'; name++) {
		snprintf(path, sizeof(path), "%s/%c.json", cache_dir, name);
		unlink(path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_two_devices),
		CASE(test_refused_files),
		CASE(test_refused_memfds),
		CASE(test_staged_as_dma_buf),
		CASE(test_small_and_shrinking),
	};

	return site_run_tests(tests, ARRAY_SIZE(tests));
}
