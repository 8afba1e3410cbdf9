/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/notify-fds.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { NOTIFY_FDS_FIRST = 3 }; /* SD_LISTEN_FDS_START */

bool notify_fds_has_store(void)
{
	const char *socket_path = getenv("NOTIFY_SOCKET");
	const char *room = getenv("FDSTORE");

	return socket_path && socket_path[0] && room && strtoul(room, NULL, 10) > 0;
}

/* fd -1: none. */
static int notify_fds_send(const char *text, int fd)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct iovec iov = {.iov_base = (void *)text, .iov_len = strlen(text)};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_name = &address, .msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (!path || !path[0] || strlen(path) >= sizeof(address.sun_path))
		return -EDESTADDRREQ;
	memcpy(address.sun_path, path, strlen(path) + 1);
	msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
	if (path[0] == '@') { /* an abstract one, whose name has no end but its length */
		address.sun_path[0] = '\0';
		msg.msg_namelen--;
	}
	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	_cleanup_(cleanup_close)
	int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -errno;
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Without FDPOLL=0 the manager drops what says POLLERR, as a driver's files may (sd_notify(3)). */
int notify_fds_put(const char *name, int fd)
{
	char text[128];
	int n = snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);

	return n < 0 || (size_t)n >= sizeof(text) ? -ENAMETOOLONG : notify_fds_send(text, fd);
}

int notify_fds_drop(const char *name)
{
	char text[128];
	int n = snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);

	return n < 0 || (size_t)n >= sizeof(text) ? -ENAMETOOLONG : notify_fds_send(text, -1);
}

void notify_fds_take(notify_fds_fn fn, void *userdata)
{
	const char *pid = getenv("LISTEN_PID");
	const char *count = getenv("LISTEN_FDS");
	const char *names = getenv("LISTEN_FDNAMES");
	unsigned long n = count ? strtoul(count, NULL, 10) : 0;

	if (!pid || strtol(pid, NULL, 10) != getpid() || n > NOTIFY_FDS_MAX)
		n = 0;
	for (int i = 0; i < (int)n; i++) {
		char name[NOTIFY_FDS_NAME_BYTES];
		size_t n_name = names ? strcspn(names, ":") : 0;
		snprintf(name, sizeof(name), "%.*s", (int)n_name, names ? names : "");
		if (names)
			names += n_name + (names[n_name] == ':');
		if (fcntl(NOTIFY_FDS_FIRST + i, F_SETFD, FD_CLOEXEC) == 0)
			fn(name, NOTIFY_FDS_FIRST + i, userdata);
	}
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}

static int notify_fds_set_variables(const char *const *names, uint32_t n)
{
	_cleanup_(cleanup_free)
	char *joined = calloc(n + 1, NOTIFY_FDS_NAME_BYTES);
	char text[32];
	size_t at = 0;

	if (!joined)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		at += (size_t)snprintf(joined + at, NOTIFY_FDS_NAME_BYTES, "%s%.*s", i ? ":" : "",
			NOTIFY_FDS_NAME_BYTES - 2, names[i]);
	if (setenv("LISTEN_FDNAMES", joined, 1) < 0)
		return -errno;
	snprintf(text, sizeof(text), "%u", n);
	if (setenv("LISTEN_FDS", text, 1) < 0)
		return -errno;
	snprintf(text, sizeof(text), "%d", (int)getpid());
	return setenv("LISTEN_PID", text, 1) < 0 ? -errno : 0;
}

int notify_fds_hand_over(const char *const *names, const int *fds, uint32_t n)
{
	if (n > NOTIFY_FDS_MAX)
		return -E2BIG;
	int rc = notify_fds_set_variables(names, n);
	_cleanup_(cleanup_free)
	int *high = calloc(n + 1, sizeof(*high));
	if (rc < 0 || !high)
		return rc < 0 ? rc : -ENOMEM;
	/* Above all places, so that none is overwritten before it is moved; the execve closes
	 * these. */
	for (uint32_t i = 0; i < n; i++) {
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, NOTIFY_FDS_FIRST + (int)n);
		if (high[i] < 0)
			return -errno;
	}
	/* A driver's descriptors are not all O_CLOEXEC. */
	if (close_range((unsigned)(NOTIFY_FDS_FIRST + (int)n), ~0u, CLOSE_RANGE_CLOEXEC) < 0)
		return -errno;
	for (uint32_t i = 0; i < n; i++)
		if (dup2(high[i], NOTIFY_FDS_FIRST + (int)i) < 0)
			return -errno;
	return 0;
}
