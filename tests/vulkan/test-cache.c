/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <vulkan/vulkan_core.h>

#include "vk/cache.h"

VkResult __real_vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkPipelineCache *ret);
VkResult __wrap_vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkPipelineCache *ret);
VkResult __real_vkGetPipelineCacheData(
	VkDevice device, VkPipelineCache cache, size_t *n_bytes, void *data);
VkResult __wrap_vkGetPipelineCacheData(
	VkDevice device, VkPipelineCache cache, size_t *n_bytes, void *data);

/* Bytes that the last created cache began with, and how many more than it has the cache claims. */
static size_t n_given, n_extra;

VkResult __wrap_vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkPipelineCache *ret)
{
	n_given = info->initialDataSize;
	return __real_vkCreatePipelineCache(device, info, allocator, ret);
}

VkResult __wrap_vkGetPipelineCacheData(
	VkDevice device, VkPipelineCache cache, size_t *n_bytes, void *data)
{
	size_t n_true = data ? *n_bytes - n_extra : 0;
	VkResult r = __real_vkGetPipelineCacheData(device, cache, &n_true, data);

	if (data)
		memset((char *)data + n_true, 0x77, n_extra);
	*n_bytes = n_true + n_extra;
	return r;
}

static char root[] = "/tmp/weightd-test-cache-XXXXXX";
static char dir[64], file[PATH_MAX];

/* The one file of the directory, its path in `file`; false when there is none. */
static bool find_file(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	if (!d)
		return false;
	for (struct dirent *entry; (entry = readdir(d));)
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
			snprintf(file, sizeof(file), "%s/%s", dir, entry->d_name);
			n++;
		}
	closedir(d);
	assert_true(n <= 1);
	return n == 1;
}

/* What a device that loads the cache gives the driver, in bytes. */
static size_t load(void)
{
	struct vk_device *d = on_device_new();

	n_given = 0;
	assert_int_equal(vk_cache_load(d), 0);
	size_t n = n_given;
	vk_device_free(d);
	return n;
}

/* A fresh directory with a saved cache in it. */
static void save(void)
{
	static int n_dirs;
	struct vk_device *d = on_device_new();

	snprintf(dir, sizeof(dir), "%s/%d/deep", root, n_dirs++);
	setenv("WEIGHTD_CACHE", dir, 1);
	assert_int_equal(vk_cache_load(d), 0);
	assert_int_equal(vk_cache_save(d), 0);
	vk_device_free(d);
	assert_true(find_file());
}

static void test_round(void **state)
{
	struct stat st;

	(void)state;
	save();
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(load(), st.st_size - 24);
	/* The pipeline cache header of Vulkan alone is 32 bytes. */
	assert_true(st.st_size >= 24 + 32);
}

static void test_saves_only_growth(void **state)
{
	struct vk_device *d;

	(void)state;
	save();
	d = on_device_new();
	assert_int_equal(vk_cache_load(d), 0);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(vk_cache_save(d), 0);
	assert_false(find_file());
	n_extra = 100;
	assert_int_equal(vk_cache_save(d), 0);
	assert_true(find_file());
	n_extra = (64 << 20) + 1;
	assert_int_equal(vk_cache_save(d), -EFBIG);
	n_extra = 0;
	vk_device_free(d);
}

/* Changes one byte, or cuts or lengthens the file: the driver sees none of it. */
static void test_damage(void **state)
{
	(void)state;
	for (off_t at = 0; at < 56; at += 5) {
		unsigned char byte;

		save();
		int fd = open(file, O_RDWR | O_CLOEXEC);
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= 0x10;
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		close(fd);
		assert_int_equal(load(), 0);
	}
	for (int n_bytes = 0; n_bytes < 60; n_bytes += 11) {
		save();
		assert_int_equal(truncate(file, n_bytes), 0);
		assert_int_equal(load(), 0);
	}
	save();
	assert_int_equal(truncate(file, 1 << 20), 0);
	assert_int_equal(load(), 0);
}

static void test_foreign_dir(void **state)
{
	char target[128];
	struct vk_device *d;

	(void)state;
	/* Others may write it. */
	save();
	assert_int_equal(chmod(dir, 0770), 0);
	assert_int_equal(load(), 0);
	d = on_device_new();
	assert_int_equal(vk_cache_save(d), -EPERM);
	vk_device_free(d);
	assert_int_equal(chmod(dir, 0700), 0);
	assert_true(load() > 0);
	/* It is another's. */
	if (geteuid() == 0) {
		assert_int_equal(chown(dir, 12345, 12345), 0);
		assert_int_equal(load(), 0);
		assert_int_equal(chown(dir, 0, 0), 0);
		assert_int_equal(chown(file, 12345, 12345), 0);
		assert_int_equal(load(), 0);
		assert_int_equal(chown(file, 0, 0), 0);
	}
	/* It is a link. */
	snprintf(target, sizeof(target), "%s-moved", dir);
	assert_int_equal(rename(dir, target), 0);
	assert_int_equal(symlink(target, dir), 0);
	assert_int_equal(load(), 0);
	assert_int_equal(unlink(dir), 0);
	assert_int_equal(rename(target, dir), 0);
	assert_true(load() > 0);
}

static void test_foreign_file(void **state)
{
	char target[PATH_MAX + 8];

	(void)state;
	save();
	snprintf(target, sizeof(target), "%s/%s", root, "elsewhere");
	assert_int_equal(rename(file, target), 0);
	assert_int_equal(symlink(target, file), 0);
	assert_int_equal(load(), 0);
	assert_int_equal(unlink(file), 0);
	/* A pipe must not make the load wait for a writer. */
	assert_int_equal(mkfifo(file, 0600), 0);
	assert_int_equal(load(), 0);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkdir(file, 0700), 0);
	assert_int_equal(load(), 0);
}

static void test_places(void **state)
{
	struct vk_device *d = on_device_new();
	char path[PATH_MAX];
	struct stat st;

	(void)state;
	unsetenv("WEIGHTD_CACHE");
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HOME");
	assert_int_equal(vk_cache_load(d), 0);
	assert_int_equal(vk_cache_save(d), -ENOENT);
	/* A relative XDG_CACHE_HOME is to be ignored (XDG base directory specification). */
	setenv("XDG_CACHE_HOME", "relative", 1);
	assert_int_equal(vk_cache_save(d), -ENOENT);
	setenv("HOME", root, 1);
	assert_int_equal(vk_cache_save(d), 0);
	snprintf(path, sizeof(path), "%s/.cache/weightd", root);
	assert_int_equal(stat(path, &st), 0);
	/* The driver and the layers, which do not ignore it, save their own caches on the way out.
	 */
	unsetenv("XDG_CACHE_HOME");
	vk_device_free(d);
	d = on_device_new();
	snprintf(path, sizeof(path), "%s/xdg", root);
	setenv("XDG_CACHE_HOME", path, 1);
	assert_int_equal(vk_cache_save(d), 0);
	snprintf(path, sizeof(path), "%s/xdg/weightd", root);
	assert_int_equal(stat(path, &st), 0);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_round),
		CASE(test_saves_only_growth),
		CASE(test_damage),
		CASE(test_foreign_dir),
		CASE(test_foreign_file),
		CASE(test_places),
	};
	char command[128];

	on_device_warm_up();
	if (!mkdtemp(root))
		return 1;
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command) ? 1 : r;
}
