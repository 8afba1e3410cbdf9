/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vk/device-internal.h"
#include "vk/result.h"

enum { CACHE_MAX_BYTES = 64 << 20 };
#define CACHE_MAGIC UINT64_C(0x31454843414b5657) /* "WVKACHE1" */

/* What stands before the driver's bytes in the file. */
struct cache_header {
	uint64_t magic;
	uint64_t n_bytes; /* that follow */
	uint64_t hash;    /* of them */
};

/* FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv/): against damage, not against malice;
 * malice is kept out by the directory's owner and mode. */
#define FNV_BASIS UINT64_C(0xcbf29ce484222325)
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n_bytes)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < n_bytes; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* The directory's path; -ENOENT when the environment names none. */
static int get_dir_path(char ret_path[PATH_MAX])
{
	const char *own = getenv("WEIGHTD_CACHE");
	const char *cache = getenv("XDG_CACHE_HOME");
	const char *home = getenv("HOME");
	int n;

	if (own && *own)
		n = snprintf(ret_path, PATH_MAX, "%s", own);
	else if (cache && *cache == '/')
		n = snprintf(ret_path, PATH_MAX, "%s/weightd", cache);
	else if (home && *home == '/')
		n = snprintf(ret_path, PATH_MAX, "%s/.cache/weightd", home);
	else
		return -ENOENT;
	return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Opens the directory if it is ours alone: -EPERM if not. */
static int open_dir(const char *path, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return -EPERM;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* Makes the directory and those above it. */
static int make_dir(char path[PATH_MAX])
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		int r = mkdir(path, 0700);
		*slash = '/';
		if (r < 0 && errno != EEXIST)
			return -errno;
	}
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

/* A new driver build gets a new file: its old code is of no use to it. */
static void get_file_name(const struct vk_device *d, char ret_name[NAME_MAX])
{
	char uuid[2 * VK_UUID_SIZE + 1];
	uint64_t hash = hash_bytes(FNV_BASIS, d->info.driver_uuid, sizeof(d->info.driver_uuid));

	hash = hash_bytes(hash, d->info.driver, strlen(d->info.driver));
	for (unsigned i = 0; i < VK_UUID_SIZE; i++)
		snprintf(uuid + 2 * i, 3, "%02x", d->info.uuid[i]);
	snprintf(ret_name, NAME_MAX, "%s-%016" PRIx64 ".cache", uuid, hash);
}

static int read_all(int fd, void *data, uint64_t n_bytes)
{
	uint8_t *p = data;

	while (n_bytes > 0) {
		ssize_t n = read(fd, p, n_bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		p += n;
		n_bytes -= (uint64_t)n;
	}
	return 0;
}

static int write_all(int fd, const void *data, uint64_t n_bytes)
{
	const uint8_t *p = data;

	while (n_bytes > 0) {
		ssize_t n = write(fd, p, n_bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		n_bytes -= (uint64_t)n;
	}
	return 0;
}

/* -EBADMSG for a file that is not what vk_cache_save wrote. */
static int read_file(const struct vk_device *d, uint8_t **ret_data, uint64_t *ret_n_bytes)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	_cleanup_(cleanup_close)
	int fd = -1;
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	char path[PATH_MAX], name[NAME_MAX];
	struct cache_header header;
	struct stat st;

	int r = get_dir_path(path);
	if (!r)
		r = open_dir(path, &dir);
	if (r)
		return r;
	get_file_name(d, name);
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return -EPERM;
	r = read_all(fd, &header, sizeof(header));
	if (r)
		return r;
	if (header.magic != CACHE_MAGIC || header.n_bytes > CACHE_MAX_BYTES ||
		(uint64_t)st.st_size != sizeof(header) + header.n_bytes)
		return -EBADMSG;
	data = malloc(header.n_bytes + 1);
	if (!data)
		return -ENOMEM;
	r = read_all(fd, data, header.n_bytes);
	if (r)
		return r;
	if (hash_bytes(FNV_BASIS, data, header.n_bytes) != header.hash)
		return -EBADMSG;
	*ret_data = TAKE_PTR(data);
	*ret_n_bytes = header.n_bytes;
	return 0;
}

int vk_cache_load(struct vk_device *d)
{
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
	VkPipelineCache cache;
	uint64_t n_bytes;

	if (d->is_lost)
		return VK_DEVICE_LOST;
	int r = read_file(d, &data, &n_bytes);
	if (r == -ENOMEM)
		return r;
	if (r)
		return 0;
	info.initialDataSize = n_bytes;
	info.pInitialData = data;
	VkResult result = vk_device_note(d, vkCreatePipelineCache(d->device, &info, NULL, &cache));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	vkDestroyPipelineCache(d->device, d->cache, NULL);
	d->cache = cache;
	d->cache_bytes = n_bytes;
	return 0;
}

static int write_file(
	int dir, const char *name, const struct cache_header *header, const void *data)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	char temporary[NAME_MAX + 32];
	uint64_t random;

	/* Not the process id: containers that share a home have the same ones. */
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -errno;
	snprintf(temporary, sizeof(temporary), ".%s.%016" PRIx64, name, random);
	fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = write_all(fd, header, sizeof(*header));
	if (!r)
		r = write_all(fd, data, header->n_bytes);
	if (!r && renameat(dir, temporary, dir, name) < 0)
		r = -errno;
	if (r)
		(void)unlinkat(dir, temporary, 0);
	return r;
}

int vk_cache_save(struct vk_device *d)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	_cleanup_(cleanup_free)
	void *data = NULL;
	char path[PATH_MAX], name[NAME_MAX];
	size_t n_bytes = 0;

	if (d->is_lost)
		return VK_DEVICE_LOST;
	VkResult result =
		vk_device_note(d, vkGetPipelineCacheData(d->device, d->cache, &n_bytes, NULL));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	if (n_bytes <= d->cache_bytes)
		return 0;
	if (n_bytes > CACHE_MAX_BYTES)
		return -EFBIG;
	data = malloc(n_bytes);
	if (!data)
		return -ENOMEM;
	result = vk_device_note(d, vkGetPipelineCacheData(d->device, d->cache, &n_bytes, data));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	int r = get_dir_path(path);
	if (!r)
		r = make_dir(path);
	if (!r)
		r = open_dir(path, &dir);
	if (r)
		return r;
	struct cache_header header = {
		.magic = CACHE_MAGIC,
		.n_bytes = n_bytes,
		.hash = hash_bytes(FNV_BASIS, data, n_bytes),
	};
	get_file_name(d, name);
	r = write_file(dir, name, &header, data);
	if (!r)
		d->cache_bytes = n_bytes;
	return r;
}
