/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/util/err.h"

enum {
	/* "uid-4294967295" */
	DIR_NAME_BYTES = 16,
	/* ".NAME.PID" */
	TEMP_NAME_BYTES = STORE_MAX_NAME_BYTES + 16,
	LEFT_OVER_SECONDS = 3600,
};

struct store {
	int fd;
};

int store_new(const char *dir, struct err *ret_err, struct store **ret_store)
{
	struct store *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->fd < 0) {
		int r = err_set(ret_err, errno, "--sessions-dir: %s: %s", dir, strerror(errno));

		free(s);
		return r;
	}
	*ret_store = s;
	return 0;
}

struct store *store_free(struct store *s)
{
	if (s)
		close(s->fd);
	free(s);
	return NULL;
}

static int store_check_name(const char *name, struct err *ret_err)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-";
	size_t n = strlen(name);

	if (!n || n > STORE_MAX_NAME_BYTES || name[0] == '.' || strspn(name, allowed) != n)
		return err_set(ret_err, EINVAL,
			"session file: expected a name of 1 to %d of A-Z a-z 0-9 . _ -, not "
			"beginning with a dot, found \"%.80s\"",
			STORE_MAX_NAME_BYTES, name);
	return 0;
}

/* Of the user, made where is_made; the caller's. */
static int store_open_user(const struct store *s, uint64_t scope, const char *name, bool is_made,
	struct err *ret_err, int *ret_fd)
{
	char dir[DIR_NAME_BYTES];
	struct stat st;
	int r = store_check_name(name, ret_err);

	if (r)
		return r;
	if (scope >> 32 != 1)
		return err_set(ret_err, EACCES,
			"session file: whose it would be is not known: the client's user has no "
			"number here");
	snprintf(dir, sizeof(dir), "uid-%" PRIu32, (uint32_t)scope);
	if (is_made && mkdirat(s->fd, dir, 0700) && errno != EEXIST)
		return err_set(ret_err, errno, "session file: %s: %s", dir, strerror(errno));
	_cleanup_(cleanup_close)
	int fd = openat(s->fd, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return err_set(ret_err, ENOENT, "session file: %s: there is none", name);
	if (fd < 0 || fstat(fd, &st))
		return err_set(ret_err, errno, "session file: %s: %s", dir, strerror(errno));
	/* Made by somebody else, where others may write to --sessions-dir too. */
	if (st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
		return err_set(ret_err, EACCES,
			"session file: %s: expected a directory of user %u that nobody else writes "
			"to, found one of user %u and mode %03o",
			dir, (unsigned)geteuid(), (unsigned)st.st_uid, (unsigned)st.st_mode & 0777);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* The process's own: two workers may write the same name. */
static void store_get_temp_name(const char *name, char ret[TEMP_NAME_BYTES])
{
	snprintf(ret, TEMP_NAME_BYTES, ".%s.%d", name, (int)getpid());
}

/*
 * ".NAME.PID" that nobody has written to for long: who began it is gone. Whether a process of that
 * number lives says nothing, for workers of several containers may save here.
 */
static bool store_is_left_over(int dir, const char *name)
{
	struct stat st;

	return name[0] == '.' && name[1] && name[1] != '.' &&
	       !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
	       time(NULL) - st.st_mtime > LEFT_OVER_SECONDS;
}

/* Files that are whole, but the one of the name. */
static int store_count(int dir, const char *but, struct err *ret_err, uint32_t *ret_n)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	uint32_t n = 0;

	if (!list) {
		int r = err_set(
			ret_err, errno, "session file: the user's directory: %s", strerror(errno));

		cleanup_close(&fd);
		return r;
	}
	while ((entry = readdir(list))) {
		if (entry->d_name[0] != '.')
			n += strcmp(entry->d_name, but) != 0;
		else if (store_is_left_over(dir, entry->d_name))
			(void)unlinkat(dir, entry->d_name, 0);
	}
	closedir(list);
	*ret_n = n;
	return 0;
}

int store_create(
	struct store *s, uint64_t scope, const char *name, struct err *ret_err, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	char temp[TEMP_NAME_BYTES];
	uint32_t n_files = 0;
	int r = store_open_user(s, scope, name, true, ret_err, &dir);

	if (!r)
		r = store_count(dir, name, ret_err, &n_files);
	if (r)
		return r;
	if (n_files >= STORE_MAX_FILES)
		return err_set(ret_err, EDQUOT,
			"session file: %s: this user has %" PRIu32 " others, the most is %d", name,
			n_files, STORE_MAX_FILES);
	store_get_temp_name(name, temp);
	/* Of a process that had this number and ended amid a save. */
	(void)unlinkat(dir, temp, 0);
	int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_set(ret_err, errno, "session file: %s: %s", name, strerror(errno));
	*ret_fd = fd;
	return 0;
}

int store_commit(struct store *s, uint64_t scope, const char *name, struct err *ret_err)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	char temp[TEMP_NAME_BYTES];
	int r = store_open_user(s, scope, name, false, ret_err, &dir);

	if (r)
		return r;
	store_get_temp_name(name, temp);
	if (renameat(dir, temp, dir, name))
		return err_set(ret_err, errno, "session file: %s: %s", name, strerror(errno));
	return 0;
}

void store_abandon(struct store *s, uint64_t scope, const char *name)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	struct err ignored = ERR_NULL;
	char temp[TEMP_NAME_BYTES];

	if (store_open_user(s, scope, name, false, &ignored, &dir))
		return;
	store_get_temp_name(name, temp);
	(void)unlinkat(dir, temp, 0);
}

int store_open(struct store *s, uint64_t scope, const char *name, struct err *ret_err, int *ret_fd,
	uint64_t *ret_n_bytes)
{
	_cleanup_(cleanup_close)
	int dir = -1;
	_cleanup_(cleanup_close)
	int fd = -1;
	struct stat st;
	int r = store_open_user(s, scope, name, false, ret_err, &dir);

	if (r)
		return r;
	/* Without waiting, whatever it is: a pipe without a writer would hold the thread. */
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return err_set(ret_err, ENOENT, "session file: %s: there is none", name);
	if (fd < 0 || fstat(fd, &st))
		return err_set(ret_err, errno, "session file: %s: %s", name, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(ret_err, EINVAL, "session file: %s: it is no file", name);
	*ret_n_bytes = (uint64_t)st.st_size;
	*ret_fd = TAKE_FD(fd);
	return 0;
}
