/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, and readers of daemons that say nothing. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "tests/case.h"
#include "tests/unit/socket-dir.h"
#include "weightctl/top-reader.h"
#include "weightctl/top-terminal.h"

static void test_keys(void **state)
{
	static const struct {
		const char *bytes;
		uint32_t n, n_taken;
		enum top_terminal_key key;
	} rows[] = {
		{"q", 1, 1, TOP_TERMINAL_QUIT},
		{"Q", 1, 1, TOP_TERMINAL_QUIT},
		{"jk", 2, 1, TOP_TERMINAL_DOWN},
		{"k", 1, 1, TOP_TERMINAL_UP},
		{"\033[A", 3, 3, TOP_TERMINAL_UP},
		{"\033OB", 3, 3, TOP_TERMINAL_DOWN},
		{"\033[Cq", 4, 3, TOP_TERMINAL_NONE},
		{"\033", 1, 1, TOP_TERMINAL_NONE},
		{"\033[", 2, 1, TOP_TERMINAL_NONE},
		{"\033q", 2, 1, TOP_TERMINAL_NONE},
		{"\0", 1, 1, TOP_TERMINAL_NONE},
		{"x", 1, 1, TOP_TERMINAL_NONE},
	};

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		uint32_t n_taken = 0;

		assert_int_equal(
			top_terminal_parse_key(rows[i].bytes, rows[i].n, &n_taken), rows[i].key);
		assert_int_equal(n_taken, rows[i].n_taken);
	}
}

static void wait_for(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	eventfd_t n;

	assert_int_equal(poll(&p, 1, -1), 1);
	assert_int_equal(eventfd_read(fd, &n), 0);
}

static int listen_at(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static bool take(struct top_reader *r, bool is_weightd, struct err *ret_err, int *ret_r)
{
	static struct worker_client_status worker;
	struct weights_client_status weightd = {0};

	if (is_weightd)
		return top_reader_take_weightd(r, ret_err, ret_r, &weightd);
	return top_reader_take_worker(r, ret_err, ret_r, &worker);
}

/* Nobody, then somebody who accepts and says nothing until it closes. */
static void check_reader(const char *path, bool is_weightd)
{
	int n_fds = case_count_fds();
	int wake_fd = eventfd(0, EFD_CLOEXEC);
	struct top_reader *reader = NULL;
	struct err e = ERR_NULL;
	int answer = 1;

	assert_int_equal((is_weightd ? top_reader_new_weightd : top_reader_new_worker)(
				 path, wake_fd, &e, &reader),
		0);
	assert_false(take(reader, is_weightd, &e, &answer));
	top_reader_ask(reader);
	wait_for(wake_fd);
	assert_true(take(reader, is_weightd, &e, &answer));
	assert_int_equal(answer, -ENOENT);
	assert_non_null(strstr(e.text, path));
	assert_false(take(reader, is_weightd, &e, &answer));

	int listening = listen_at(path, is_weightd ? SOCK_SEQPACKET : SOCK_STREAM);
	top_reader_ask(reader);
	int peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	assert_true(peer >= 0);
	top_reader_ask(reader); /* it is being asked */
	assert_false(take(reader, is_weightd, &e, &answer));
	close(peer);
	wait_for(wake_fd);
	assert_true(take(reader, is_weightd, &e, &answer));
	assert_int_equal(answer, -ECONNRESET);
	/* Dropped while it asks: the thread ends when it can, and closes what it has. */
	top_reader_ask(reader);
	peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	assert_true(peer >= 0);
	assert_null(top_reader_free(reader));
	close(peer);
	wait_for(wake_fd);
	close(listening);
	unlink(path);
	/* The client is closed behind the answer; a moment later the thread is gone. */
	while (case_count_fds() > n_fds + 1)
		usleep(1000);
	close(wake_fd);
}

static void test_readers(void **state)
{
	struct socket_dir dir = socket_dir_new();

	(void)state;
	check_reader(dir.path, false);
	check_reader(dir.path, true);
	socket_dir_free(&dir);
	assert_null(top_reader_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_keys),
		CASE(test_readers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
