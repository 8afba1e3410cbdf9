/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t vk_store_hash(uint64_t hash, const void *data, size_t n_bytes)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < n_bytes; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

int vk_store_get_dir(char ret_path[PATH_MAX])
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

int vk_store_make_dir(char ret_path[PATH_MAX])
{
	_cleanup_(cleanup_close)
	int fd = -1;
	int r = vk_store_get_dir(ret_path);

	if (!r)
		r = make_dir(ret_path);
	return r ? r : open_dir(ret_path, &fd);
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

int vk_store_read(const char *name, uint64_t max_bytes, void **ret_data, uint64_t *ret_n_bytes)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	_cleanup_(cleanup_close)
	int fd = -1;
	_cleanup_(cleanup_free)
	char *data = NULL;
	char path[PATH_MAX];
	struct stat st;

	int r = vk_store_get_dir(path);
	if (!r)
		r = open_dir(path, &dir);
	if (r)
		return r;
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return -EPERM;
	if (st.st_size < 0 || (uint64_t)st.st_size > max_bytes)
		return -EFBIG;
	uint64_t n_bytes = (uint64_t)st.st_size;
	data = malloc(n_bytes + 1);
	if (!data)
		return -ENOMEM;
	r = read_all(fd, data, n_bytes);
	if (r)
		return r;
	data[n_bytes] = '\0';
	*ret_data = TAKE_PTR(data);
	*ret_n_bytes = n_bytes;
	return 0;
}

int vk_store_write(const char *name, const void *head, uint64_t n_head_bytes, const void *data,
	uint64_t n_bytes)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	_cleanup_(cleanup_close)
	int fd = -1;
	char path[PATH_MAX], temporary[NAME_MAX + 32];
	uint64_t random;

	int r = vk_store_get_dir(path);
	if (!r)
		r = make_dir(path);
	if (!r)
		r = open_dir(path, &dir);
	if (r)
		return r;
	/* Not the process id: containers that share a home have the same ones. */
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -errno;
	snprintf(temporary, sizeof(temporary), ".%s.%016" PRIx64, name, random);
	fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = write_all(fd, head, n_head_bytes);
	if (!r)
		r = write_all(fd, data, n_bytes);
	if (!r && renameat(dir, temporary, dir, name) < 0)
		r = -errno;
	if (r)
		(void)unlinkat(dir, temporary, 0);
	return r;
}
