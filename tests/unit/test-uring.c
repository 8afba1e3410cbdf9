/* SPDX-License-Identifier: Apache-2.0 */
/* Every case runs over io_uring where the kernel has it, and over pread. */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/deny-uring.h"
#include "weightd/uring.h"

enum { DEPTH = 8, PIECE = 64 * 1024, N_PIECES = 40, TAIL = 1234 };

static uint8_t byte_at(uint64_t offset)
{
	return (uint8_t)((offset * 2654435761u) >> 13);
}

/* A memfd of N_PIECES pieces and a short tail. */
static int make_file(void)
{
	static uint8_t piece[PIECE];
	int fd = memfd_create("test-uring", MFD_CLOEXEC);

	assert_true(fd >= 0);
	for (uint64_t i = 0; i <= N_PIECES; i++) {
		size_t n = i == N_PIECES ? TAIL : PIECE;
		for (uint64_t j = 0; j < n; j++)
			piece[j] = byte_at(i * PIECE + j);
		assert_int_equal(write(fd, piece, n), n);
	}
	return fd;
}

static void read_whole(struct uring *u)
{
	static uint8_t data[DEPTH][PIECE];
	uint64_t offsets[DEPTH];
	uint64_t n_read = 0;
	uint64_t next = 0;
	uint64_t n_total = (uint64_t)N_PIECES * PIECE + TAIL;
	int fd = make_file();

	for (uint32_t i = 0; i < DEPTH; i++, next += PIECE) {
		offsets[i] = next;
		assert_int_equal(uring_read(u, fd, data[i], PIECE, next, i), 0);
	}
	assert_int_equal(uring_read(u, fd, data[0], PIECE, 0, 0), -EAGAIN);
	while (n_read < n_total) {
		uint64_t tag;
		assert_int_equal(uring_wait(u, &tag), 0);
		assert_true(tag < DEPTH);
		uint64_t n = n_total - offsets[tag] < PIECE ? n_total - offsets[tag] : PIECE;
		for (uint64_t j = 0; j < n; j++)
			if (data[tag][j] != byte_at(offsets[tag] + j))
				fail_msg("byte %llu", (unsigned long long)(offsets[tag] + j));
		n_read += n;
		if (next >= n_total)
			continue;
		offsets[tag] = next;
		n = n_total - next < PIECE ? n_total - next : PIECE;
		assert_int_equal(uring_read(u, fd, data[tag], n, next, tag), 0);
		next += n;
	}
	assert_int_equal(uring_get_n_in_flight(u), 0);
	close(fd);
}

static void read_errors(struct uring *u)
{
	static uint8_t data[PIECE];
	uint64_t tag = 99;
	int fd = make_file();

	assert_int_equal(uring_wait(u, &tag), -EINVAL);
	assert_int_equal(uring_read(u, fd, data, 0, 0, 1), -EINVAL);
	assert_int_equal(uring_read(u, fd, data, 1ull << 31, 0, 1), -EINVAL);

	/* The file ends inside the read: the bytes that are there come first, then the end. */
	assert_int_equal(uring_read(u, fd, data, TAIL + 1, (uint64_t)N_PIECES * PIECE, 7), 0);
	assert_int_equal(uring_wait(u, &tag), -ENODATA);
	assert_int_equal(tag, 7);
	close(fd);

	fd = open(".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	assert_int_equal(uring_read(u, fd, data, PIECE, 0, 8), 0);
	assert_int_equal(uring_wait(u, &tag), -EISDIR);
	assert_int_equal(tag, 8);
	close(fd);
	assert_int_equal(uring_get_n_in_flight(u), 0);
}

/* Reads in flight when it goes are waited for. */
static void leave_in_flight(struct uring *u)
{
	static uint8_t data[DEPTH][PIECE];
	int fd = make_file();

	for (uint32_t i = 0; i < DEPTH; i++)
		assert_int_equal(uring_read(u, fd, data[i], PIECE, i * PIECE, i), 0);
	close(fd);
}

static void run(bool use_pread, void (*fn)(struct uring *))
{
	struct uring *u;

	assert_int_equal(uring_new(DEPTH, use_pread, &u), 0);
	if (use_pread)
		assert_int_equal(uring_get_refusal(u), -1);
	else if (uring_get_refusal(u))
		print_message("io_uring refused: %s\n", strerror(uring_get_refusal(u)));
	fn(u);
	assert_null(uring_free(u));
}

static void test_whole(void **state)
{
	(void)state;
	run(false, read_whole);
	run(true, read_whole);
}

static void test_errors(void **state)
{
	(void)state;
	run(false, read_errors);
	run(true, read_errors);
}

static void test_leave(void **state)
{
	(void)state;
	run(false, leave_in_flight);
	run(true, leave_in_flight);
	assert_null(uring_free(NULL));
}

static void test_depth(void **state)
{
	struct uring *u;

	(void)state;
	assert_int_equal(uring_new(0, true, &u), -EINVAL);
	assert_int_equal(uring_new(URING_MAX_DEPTH + 1, true, &u), -EINVAL);
}

static int child_denied(int errnum)
{
	struct uring *u;

	if (deny_uring(errnum) < 0)
		return CASE_SKIP;
	if (uring_new(DEPTH, false, &u) < 0 || uring_get_refusal(u) != errnum)
		return 1;
	read_whole(u);
	uring_free(u);
	return 0;
}

static void test_denied(void **state)
{
	static const int errnums[] = {EPERM, ENOSYS};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(errnums); i++) {
		int status;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			_exit(child_denied(errnums[i]));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) == CASE_SKIP)
			skip();
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_depth),
		CASE(test_whole),
		CASE(test_errors),
		CASE(test_leave),
		CASE(test_denied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
