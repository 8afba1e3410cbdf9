/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/unix-path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "proto/util/err.h"

/* Two seconds of waiting for another starter, who holds the lock for microseconds. */
enum { LOCK_TRIES = 100 };
static const struct timespec lock_pause = {.tv_nsec = 20 * 1000 * 1000};

static int unix_path_address(const char *path, struct err *ret_err, struct sockaddr_un *ret_address)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = strlen(path);

	if (n == 0)
		return err_set(
			ret_err, EINVAL, "socket: path: expected one, found an empty string");
	if (n >= sizeof(address.sun_path))
		return err_set(ret_err, ENAMETOOLONG,
			"%s: path: expected at most %zu bytes, found %zu", path,
			sizeof(address.sun_path) - 1, n);
	memcpy(address.sun_path, path, n + 1);
	*ret_address = address;
	return 0;
}

int unix_path_connect(const char *path, int type, struct err *ret_err, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	struct sockaddr_un address;
	int r = unix_path_address(path, ret_err, &address);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(ret_err, errno, "%s: socket: %s", path, strerror(errno));
	do
		r = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_set(ret_err, errno, "%s: connect: %s", path, strerror(errno));
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/*
 * Makes room at the path: nothing there, or a socket whose owner is dead. Two daemons that start
 * at once are kept apart by the caller's lock.
 */
static int unix_path_clear(const char *path, int type, struct err *ret_err)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	struct sockaddr_un address;
	struct stat st;
	int r;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0
				       : err_set(ret_err, errno, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return err_set(ret_err, EEXIST,
			"%s: expected a socket or nothing, found another file", path);
	r = unix_path_address(path, ret_err, &address);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(ret_err, errno, "%s: socket: %s", path, strerror(errno));
	/* Only a refusal says that nobody listens; EAGAIN is a full backlog, EPROTOTYPE another
	 * type of socket, both of a living owner. */
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 &&
		errno == ECONNREFUSED) {
		if (unlink(path) < 0 && errno != ENOENT)
			return err_set(ret_err, errno, "%s: unlink: %s", path, strerror(errno));
		return 0;
	}
	return err_set(ret_err, EADDRINUSE, "%s: another process listens there", path);
}

/* The directory's lock keeps a second starter from unlinking the socket that the first just made.
 */
static int unix_path_lock(const char *path, struct err *ret_err, int *ret_fd)
{
	const char *slash = strrchr(path, '/');
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)] = ".";
	_cleanup_(cleanup_close)
	int fd = -1;

	if (slash) {
		size_t n = slash == path ? 1 : (size_t)(slash - path);

		memcpy(dir, path, n);
		dir[n] = '\0';
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(ret_err, errno, "%s: directory: %s", path, strerror(errno));
	/* Anybody who can open the directory can lock it and keep it so: flock() by itself would
	 * wait for that for ever, without a word. */
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return err_set(ret_err, errno, "%s: lock of the directory: %s", path,
				strerror(errno));
		if (i == LOCK_TRIES)
			return err_set(ret_err, EBUSY,
				"%s: lock of the directory %s: another process holds it", path,
				dir);
		nanosleep(&lock_pause, NULL);
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int unix_path_listen(const char *path, int type, uint32_t mode, struct err *ret_err, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	_cleanup_(cleanup_close)
	int lock = -1;
	struct sockaddr_un address;
	int r = unix_path_address(path, ret_err, &address);

	if (r == 0)
		r = unix_path_lock(path, ret_err, &lock);
	if (r == 0)
		r = unix_path_clear(path, type, ret_err);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_set(ret_err, errno, "%s: socket: %s", path, strerror(errno));
	/* bind() makes the file with the socket inode's mode less the umask: 0600 first, so that
	 * nobody connects in between, then exactly what was asked for. */
	if (fchmod(fd, 0600) < 0 ||
		bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return err_set(ret_err, errno, "%s: bind: %s", path, strerror(errno));
	if (chmod(path, mode) < 0 || listen(fd, SOMAXCONN) < 0) {
		r = err_set(ret_err, errno, "%s: listen: %s", address.sun_path, strerror(errno));
		unlink(path);
		return r;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int unix_path_remember(const char *path, struct err *ret_err, struct unix_path_file *ret_file)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return err_set(ret_err, errno, "%s: %s", path, strerror(errno));
	*ret_file = (struct unix_path_file){.dev = st.st_dev, .inode = st.st_ino};
	return 0;
}

void unix_path_unlink(const char *path, const struct unix_path_file *file)
{
	_cleanup_(cleanup_close)
	int lock = -1;
	struct unix_path_file found;

	/* Without the lock a starter may make its socket between the look and the unlink. Whoever
	 * keeps the directory locked must not keep the file there too: it is tried all the same. */
	if (unix_path_lock(path, NULL, &lock) < 0)
		lock = -1;
	if (unix_path_remember(path, NULL, &found) == 0 && found.dev == file->dev &&
		found.inode == file->inode)
		unlink(path);
}
