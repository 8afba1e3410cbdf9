/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "proto/unix-path.h"
#include "proto/util/err.h"

int stream_parse_header(
	const uint8_t header[STREAM_HEADER_BYTES], struct err *ret_err, uint32_t *ret_n_bytes)
{
	uint32_t n;

	memcpy(&n, header, sizeof(n));
	if (n == 0 || n > STREAM_MAX_BYTES)
		return err_set(ret_err, EBADMSG,
			"message: length: expected 1 to %d bytes, found %u", STREAM_MAX_BYTES, n);
	*ret_n_bytes = n;
	return 0;
}

void stream_make_header(uint32_t n_bytes, uint8_t ret_header[STREAM_HEADER_BYTES])
{
	memcpy(ret_header, &n_bytes, STREAM_HEADER_BYTES);
}

int stream_connect(const char *path, struct err *ret_err, int *ret_fd)
{
	return unix_path_connect(path, SOCK_STREAM, ret_err, ret_fd);
}

int stream_listen(const char *path, uint32_t mode, struct err *ret_err, int *ret_fd)
{
	return unix_path_listen(path, SOCK_STREAM, mode, ret_err, ret_fd);
}

int stream_send(int sock, const void *data, uint32_t n_bytes)
{
	uint8_t header[STREAM_HEADER_BYTES];
	struct iovec iov[2] = {
		{.iov_base = header, .iov_len = sizeof(header)},
		{.iov_base = (void *)data, .iov_len = n_bytes},
	};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	if (n_bytes == 0 || n_bytes > STREAM_MAX_BYTES)
		return -EMSGSIZE;
	stream_make_header(n_bytes, header);
	while (msg.msg_iovlen > 0) {
		ssize_t n = sendmsg(sock, &msg, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		while (msg.msg_iovlen > 0 && (size_t)n >= msg.msg_iov->iov_len) {
			n -= (ssize_t)msg.msg_iov->iov_len;
			msg.msg_iov++;
			msg.msg_iovlen--;
		}
		if (msg.msg_iovlen > 0) {
			msg.msg_iov->iov_base = (uint8_t *)msg.msg_iov->iov_base + n;
			msg.msg_iov->iov_len -= (size_t)n;
		}
	}
	return 0;
}

/* Reads n bytes whole. STREAM_END when the peer closed before the first. */
static int must_check stream_read(int sock, uint8_t *data, uint32_t n, struct err *ret_err)
{
	uint32_t done = 0;

	while (done < n) {
		ssize_t got = recv(sock, data + done, n - done, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_set(ret_err, errno, "socket: receive: %s", strerror(errno));
		if (got == 0 && done == 0)
			return STREAM_END;
		if (got == 0)
			return err_set(ret_err, EBADMSG,
				"message: expected %u bytes, found %u and the end", n, done);
		done += (uint32_t)got;
	}
	return 0;
}

int stream_recv(int sock, struct err *ret_err, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	uint8_t header[STREAM_HEADER_BYTES];
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	uint32_t n_bytes;
	int r = stream_read(sock, header, sizeof(header), ret_err);

	if (r != 0)
		return r;
	r = stream_parse_header(header, ret_err, &n_bytes);
	if (r < 0)
		return r;
	data = malloc(n_bytes);
	if (!data)
		return err_set(ret_err, ENOMEM, "message: no memory for %u bytes", n_bytes);
	r = stream_read(sock, data, n_bytes, ret_err);
	if (r == STREAM_END)
		return err_set(
			ret_err, EBADMSG, "message: expected %u bytes, found the end", n_bytes);
	if (r < 0)
		return r;
	*ret_data = TAKE_PTR(data);
	*ret_n_bytes = n_bytes;
	return 0;
}
