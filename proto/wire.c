/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/unix-path.h"
#include "proto/util/err.h"

int wire_connect(const char *path, struct err *ret_err, int *ret_fd)
{
	return unix_path_connect(path, SOCK_SEQPACKET, ret_err, ret_fd);
}

int wire_listen(const char *path, uint32_t mode, struct err *ret_err, int *ret_fd)
{
	return unix_path_listen(path, SOCK_SEQPACKET, mode, ret_err, ret_fd);
}

/* Room for one SCM_RIGHTS of FDLIST_MAX; the union aligns it (cmsg(3)). */
union wire_control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int) * FDLIST_MAX)];
};

int wire_send(int sock, const void *data, uint32_t n_bytes, const struct fdlist *fds)
{
	struct iovec iov = {.iov_base = (void *)data, .iov_len = n_bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union wire_control control = {0};
	ssize_t n;

	if (n_bytes == 0 || n_bytes > WIRE_MAX_BYTES)
		return -EMSGSIZE;
	if (fds && fds->n > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * fds->n);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fds->n);
		memcpy(CMSG_DATA(c), fds->fds, sizeof(int) * fds->n);
	}
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? WIRE_AGAIN : -errno;
	return 0;
}

/* Gathers every descriptor of the packet into fds; false for any other ancillary data. */
static bool wire_take_control(struct msghdr *msg, struct fdlist *fds)
{
	bool ok = true;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
			ok = false;
			continue;
		}
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (fdlist_add(fds, fd) < 0)
				ok = false;
		}
	}
	return ok;
}

/* Which of the two it was the kernel does not say. */
static int wire_refuse_cut(struct err *ret_err)
{
	struct rlimit limit = {.rlim_cur = 0};

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		limit.rlim_cur = 0;
	return err_set(ret_err, EBADMSG,
		"packet: descriptors: expected at most %d and all of them, found some cut off: "
		"this "
		"process may have %llu open (RLIMIT_NOFILE, ulimit -n)",
		FDLIST_MAX, (unsigned long long)limit.rlim_cur);
}

int wire_recv(
	int sock, void *data, uint32_t *ret_n_bytes, struct fdlist *ret_fds, struct err *ret_err)
{
	struct iovec iov = {.iov_base = data, .iov_len = WIRE_MAX_BYTES};
	union wire_control control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	ssize_t n;

	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return WIRE_AGAIN;
	if (n < 0 && errno == ECONNRESET)
		return WIRE_END;
	if (n < 0)
		return err_set(ret_err, errno, "socket: receive: %s", strerror(errno));

	if (!wire_take_control(&msg, &fds))
		return err_set(ret_err, EBADMSG,
			"packet: ancillary data: expected at most %d descriptors, found something "
			"else",
			FDLIST_MAX);
	if (msg.msg_flags & MSG_TRUNC)
		return err_set(ret_err, EBADMSG,
			"packet: size: expected at most %d bytes, found more", WIRE_MAX_BYTES);
	/* More descriptors than fit, or the receiver is at its limit: some are lost already. */
	if (msg.msg_flags & MSG_CTRUNC)
		return wire_refuse_cut(ret_err);
	if (n == 0)
		return WIRE_END;
	*ret_n_bytes = (uint32_t)n;
	*ret_fds = fds;
	fds.n = 0;
	return 0;
}
