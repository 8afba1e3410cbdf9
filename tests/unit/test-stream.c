/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

#include "proto/stream.h"
#include "proto/unix-path.h"
#include "proto/util/err.h"
#include "proto/wire.h"
#include "tests/unit/socket-dir.h"

static void open_pair(int pair[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
}

static void parses_headers(void **state)
{
	static const struct {
		uint8_t header[4];
		int r;
		uint32_t n;
	} rows[] = {
		{{1, 0, 0, 0}, 0, 1},
		{{0, 1, 0, 0}, 0, 256},
		{{0, 0, 16, 0}, 0, STREAM_MAX_BYTES},
		{{0, 0, 0, 0}, -EBADMSG, 7},
		{{1, 0, 16, 0}, -EBADMSG, 7},
		{{0, 0, 0, 0x80}, -EBADMSG, 7},
		{{0xff, 0xff, 0xff, 0xff}, -EBADMSG, 7},
		{{'G', 'E', 'T', ' '}, -EBADMSG, 7},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_NULL;
		uint32_t n = 7;

		assert_int_equal(stream_parse_header(rows[i].header, &e, &n), rows[i].r);
		assert_int_equal(n, rows[i].n);
		assert_int_equal(e.text[0] != '\0', rows[i].r < 0);
	}
}

static void makes_headers(void **state)
{
	uint8_t header[4];

	(void)state;
	stream_make_header(0x000a0b0c, header);
	assert_memory_equal(header, "\x0c\x0b\x0a\x00", 4);
}

static void carries_messages(void **state)
{
	struct err e = ERR_NULL;
	uint8_t *data;
	uint32_t n;
	int pair[2];

	(void)state;
	open_pair(pair);
	assert_int_equal(stream_send(pair[0], "one", 3), 0);
	assert_int_equal(stream_send(pair[0], "second", 6), 0);
	assert_int_equal(stream_send(pair[0], "", 0), -EMSGSIZE);
	assert_int_equal(stream_send(pair[0], "", STREAM_MAX_BYTES + 1), -EMSGSIZE);
	close(pair[0]);
	assert_int_equal(stream_recv(pair[1], &e, &data, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(data, "one", 3);
	free(data);
	assert_int_equal(stream_recv(pair[1], &e, &data, &n), 0);
	assert_int_equal(n, 6);
	assert_memory_equal(data, "second", 6);
	free(data);
	assert_int_equal(stream_recv(pair[1], &e, &data, &n), STREAM_END);
	assert_int_equal(stream_send(pair[1], "x", 1), -EPIPE);
	close(pair[1]);
}

static void *send_largest(void *arg)
{
	uint8_t *data = malloc(STREAM_MAX_BYTES);
	int *sock = arg;

	for (uint32_t i = 0; i < STREAM_MAX_BYTES; i++)
		data[i] = (uint8_t)(i * 7 + i / 251);
	int r = stream_send(*sock, data, STREAM_MAX_BYTES);
	free(data);
	return r == 0 ? arg : NULL;
}

/* Larger than any socket buffer here: both ends go through partial writes and reads. */
static void carries_the_largest(void **state)
{
	struct err e = ERR_NULL;
	pthread_t thread;
	uint8_t *data;
	uint32_t n;
	int pair[2], small = 4096;
	void *sent;

	(void)state;
	open_pair(pair);
	assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	assert_int_equal(pthread_create(&thread, NULL, send_largest, &pair[0]), 0);
	assert_int_equal(stream_recv(pair[1], &e, &data, &n), 0);
	assert_int_equal(pthread_join(thread, &sent), 0);
	assert_non_null(sent);
	assert_int_equal(n, STREAM_MAX_BYTES);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(data[i], (uint8_t)(i * 7 + i / 251));
	free(data);
	close(pair[0]);
	close(pair[1]);
}

static void *send_bytewise(void *arg)
{
	static const uint8_t bytes[] = {3, 0, 0, 0, 'a', 'b', 'c'};
	int *sock = arg;

	for (size_t i = 0; i < sizeof(bytes); i++) {
		if (send(*sock, &bytes[i], 1, MSG_NOSIGNAL) != 1)
			return NULL;
		usleep(1000);
	}
	return arg;
}

static void joins_split_reads(void **state)
{
	struct err e = ERR_NULL;
	pthread_t thread;
	uint8_t *data;
	uint32_t n;
	int pair[2];
	void *sent;

	(void)state;
	open_pair(pair);
	assert_int_equal(pthread_create(&thread, NULL, send_bytewise, &pair[0]), 0);
	assert_int_equal(stream_recv(pair[1], &e, &data, &n), 0);
	assert_int_equal(pthread_join(thread, &sent), 0);
	assert_non_null(sent);
	assert_int_equal(n, 3);
	assert_memory_equal(data, "abc", 3);
	free(data);
	close(pair[0]);
	close(pair[1]);
}

/* Cut in the header, after it, in the body; and lengths that must not be believed. */
static void refuses_cut_and_oversize(void **state)
{
	static const struct {
		const char *bytes;
		uint32_t n;
	} rows[] = {
		{"\x03\x00", 2},
		{"\x03\x00\x00\x00", 4},
		{"\x03\x00\x00\x00"
		 "ab",
			6},
		{"\x00\x00\x00\x00", 4},
		{"\x00\x00\x00\x80", 4},
		{"\xff\xff\xff\xff"
		 "abcd",
			8},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_NULL;
		uint8_t *data = NULL;
		uint32_t n;
		int pair[2];

		open_pair(pair);
		assert_int_equal(send(pair[0], rows[i].bytes, rows[i].n, 0), rows[i].n);
		close(pair[0]);
		assert_int_equal(stream_recv(pair[1], &e, &data, &n), -EBADMSG);
		assert_null(data);
		assert_string_not_equal(e.text, "");
		close(pair[1]);
	}
}

static void listens_apart_from_the_wire(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	struct stat st;
	int listener, client, other = -1;

	(void)state;
	assert_int_equal(stream_listen(dir.path, 0640, &e, &listener), 0);
	assert_int_equal(stat(dir.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(stream_connect(dir.path, &e, &client), 0);
	close(client);
	assert_int_equal(wire_connect(dir.path, &e, &other), -EPROTOTYPE);
	assert_int_equal(wire_listen(dir.path, 0600, &e, &other), -EADDRINUSE);
	assert_int_equal(stream_listen(dir.path, 0600, &e, &other), -EADDRINUSE);
	assert_int_equal(other, -1);
	close(listener);
	/* Stale sockets are replaced whatever their type was. */
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), 0);
	close(listener);
	socket_dir_free(&dir);
}

/* Anybody can lock a directory like /tmp: starting there must not hang. */
static void waits_for_a_locked_directory_not_for_ever(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	int other = -1, lock = open(dir.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)state;
	assert_int_equal(flock(lock, LOCK_EX), 0);
	alarm(20);
	assert_int_equal(stream_listen(dir.path, 0600, &e, &other), -EBUSY);
	alarm(0);
	assert_non_null(strstr(e.text, "lock of the directory"));
	assert_int_equal(other, -1);
	close(lock);
	socket_dir_free(&dir);
}

static void unlinks_its_own_file_alone(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct unix_path_file file;
	struct err e = ERR_NULL;
	int first, second;

	(void)state;
	assert_int_equal(stream_listen(dir.path, 0600, &e, &first), 0);
	assert_int_equal(unix_path_remember(dir.path, &e, &file), 0);
	assert_int_equal(unlink(dir.path), 0);
	unix_path_unlink(dir.path, &file); /* nothing there */
	assert_int_equal(stream_listen(dir.path, 0600, &e, &second), 0);
	unix_path_unlink(dir.path, &file);
	assert_int_equal(access(dir.path, F_OK), 0);
	assert_int_equal(unix_path_remember(dir.path, &e, &file), 0);
	unix_path_unlink(dir.path, &file);
	assert_int_equal(access(dir.path, F_OK), -1);
	close(first);
	close(second);
	socket_dir_free(&dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(parses_headers),
		CASE(makes_headers),
		CASE(carries_messages),
		CASE(carries_the_largest),
		CASE(joins_split_reads),
		CASE(refuses_cut_and_oversize),
		CASE(listens_apart_from_the_wire),
		CASE(waits_for_a_locked_directory_not_for_ever),
		CASE(unlinks_its_own_file_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
