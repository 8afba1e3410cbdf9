/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/util/err.h"

void state_generation_fini(struct state_generation *g)
{
	for (uint32_t i = 0; i < g->n_residencies && g->residencies; i++) {
		free(g->residencies[i].allocs);
		free(g->residencies[i].sums.data);
	}
	free(g->residencies);
	free(g->path);
	free(g->lost_why);
	free(g->staged.data);
	free(g->sums.data);
	*g = (struct state_generation){0};
}

void state_holder_fini(struct state_holder *h)
{
	free(h->generations);
	free(h->grants);
	*h = (struct state_holder){0};
}

void state_fini(struct state *s)
{
	for (uint32_t i = 0; i < s->n_generations && s->generations; i++)
		state_generation_fini(&s->generations[i]);
	for (uint32_t i = 0; i < s->n_holders && s->holders; i++)
		state_holder_fini(&s->holders[i]);
	free(s->generations);
	free(s->holders);
	free(s->listens);
	*s = (struct state){0};
}

int state_bytes_set(struct state_bytes *b, const void *data, uint32_t n_bytes)
{
	uint8_t *copy = n_bytes ? calloc(1, n_bytes) : NULL;

	if (n_bytes && !copy)
		return -ENOMEM;
	if (n_bytes && data)
		memcpy(copy, data, n_bytes);
	free(b->data);
	*b = (struct state_bytes){.data = copy, .n_bytes = n_bytes};
	return 0;
}

struct state_file state_file_from_stat(const struct stat *st)
{
	return (struct state_file){.dev = st->st_dev,
		.inode = st->st_ino,
		.n_bytes = (uint64_t)st->st_size,
		.mtime_s = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec};
}

bool state_file_is(const struct state_file *f, const struct stat *st)
{
	return f->dev == st->st_dev && f->inode == st->st_ino &&
	       f->n_bytes == (uint64_t)st->st_size;
}

void state_get_boot_id(char ret_boot_id[64])
{
	_cleanup_(cleanup_close)
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, ret_boot_id, 63);

	ret_boot_id[n > 0 ? n : 0] = '\0';
	ret_boot_id[strcspn(ret_boot_id, "\n")] = '\0';
}

static int state_read_all(int fd, uint64_t n_bytes, struct err *ret_err, uint8_t *data)
{
	for (uint64_t at = 0; at < n_bytes;) {
		ssize_t n = read(fd, data + at, n_bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_set(ret_err, n < 0 ? errno : EBADMSG,
				"expected %llu bytes, found %llu", (unsigned long long)n_bytes,
				(unsigned long long)at);
		at += (uint64_t)n;
	}
	return 0;
}

int state_read(const char *path, struct err *ret_err, struct state *ret_state)
{
	_cleanup_(cleanup_close)
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	char boot_id[64];
	struct stat st;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(ret_err, errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
		return err_set(ret_err, EPERM,
			"%s: expected a file of uid %u, mode 0600, found uid %u, mode 0%o", path,
			(unsigned)geteuid(), (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	if (st.st_size > STATE_MAX_BYTES)
		return err_set(ret_err, EFBIG, "%s: expected at most %d bytes, found %lld", path,
			STATE_MAX_BYTES, (long long)st.st_size);
	data = malloc((size_t)st.st_size + 1);
	if (!data)
		return err_set(ret_err, ENOMEM, "%s: out of memory", path);
	state_get_boot_id(boot_id);
	rc = state_read_all(fd, (uint64_t)st.st_size, ret_err, data);
	if (rc == 0)
		rc = state_parse(data, (uint64_t)st.st_size, boot_id, ret_err, ret_state);
	if (rc < 0)
		err_prefix(ret_err, "%s", path);
	return rc;
}

static int state_write_all(int fd, const uint8_t *data, uint64_t n_bytes)
{
	for (uint64_t at = 0; at < n_bytes;) {
		ssize_t n = pwrite(fd, data + at, n_bytes - at, (off_t)at);

		if (n < 0 && errno != EINTR)
			return -errno;
		at += n > 0 ? (uint64_t)n : 0;
	}
	return ftruncate(fd, (off_t)n_bytes) < 0 ? -errno : 0;
}

/* What is there may be written over: it is a file of ours, under this name alone. */
static bool state_is_spare(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 077) && st.st_nlink == 1;
}

static int state_open_spare(const char *spare)
{
	const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	int fd = open(spare, flags, 0600);

	if (fd >= 0 && state_is_spare(fd))
		return fd;
	cleanup_close(&fd);
	if (unlink(spare) < 0 && errno != ENOENT)
		return -errno;
	fd = open(spare, flags | O_EXCL, 0600);
	return fd < 0 ? -errno : fd;
}

static int state_swap(const char *spare, const char *path)
{
	if (renameat2(AT_FDCWD, spare, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
		return 0;
	/* None is there yet, or the file system or the kernel cannot exchange. */
	return rename(spare, path) < 0 ? -errno : 0;
}

static int state_get_spare(const char *path, struct err *ret_err, char ret_spare[PATH_MAX])
{
	int n = snprintf(ret_spare, PATH_MAX, "%s.new", path);

	if (n < 0 || n >= PATH_MAX)
		return err_set(ret_err, ENAMETOOLONG, "%s: path too long", path);
	return 0;
}

/*
 * Two files take turns. A new one each time would have ext4 put it on the disk before the rename
 * returns, for tens of milliseconds in which nobody is served; one that is written over has its
 * blocks. Not synced: after a crash of the machine there is nothing left that it would describe.
 */
int state_write(const char *path, const void *data, uint64_t n_bytes, struct err *ret_err)
{
	char spare[PATH_MAX];
	int rc = state_get_spare(path, ret_err, spare);

	if (rc < 0)
		return rc;
	_cleanup_(cleanup_close)
	int fd = state_open_spare(spare);
	rc = fd < 0 ? fd : state_write_all(fd, data, n_bytes);
	if (rc == 0)
		rc = state_swap(spare, path);
	if (rc == 0)
		return 0;
	return err_set(ret_err, -rc, "%s: %s", path, strerror(-rc));
}

void state_remove(const char *path)
{
	struct err ignored = ERR_NULL;
	char spare[PATH_MAX];

	unlink(path);
	if (state_get_spare(path, &ignored, spare) == 0)
		unlink(spare);
}
