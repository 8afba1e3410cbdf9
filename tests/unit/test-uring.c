/* SPDX-License-Identifier: Apache-2.0 */
/* Every case runs over io_uring where the kernel has it, and over pread. */
#include "tests/case.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/deny-uring.h"
#include "weightd/uring.h"

struct io_uring;
int io_uring_submit(struct io_uring *ring);

static unsigned n_fail_submits;

/* Found before the library's. */
int io_uring_submit(struct io_uring *ring)
{
	int (*next)(struct io_uring *) =
		(int (*)(struct io_uring *))dlsym(RTLD_NEXT, "io_uring_submit");

	if (n_fail_submits == 0)
		return next(ring);
	n_fail_submits--;
	return -EBUSY;
}

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

static int start(
	struct uring *u, int fd, void *data, uint64_t n_bytes, uint64_t offset, uint64_t tag)
{
	const struct uring_read_params params = {
		.fd = fd, .data = data, .n_bytes = n_bytes, .offset = offset, .tag = tag};

	return uring_read(u, &params);
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
		assert_int_equal(start(u, fd, data[i], PIECE, next, i), 0);
	}
	assert_int_equal(start(u, fd, data[0], PIECE, 0, 0), -EAGAIN);
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
		assert_int_equal(start(u, fd, data[tag], n, next, tag), 0);
		next += n;
	}
	assert_int_equal(uring_get_n_in_flight(u), 0);
	close(fd);
}

static uint64_t count_blocks(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks;
}

/* Pages of [data, data + n_bytes) that are in this process's mapping (proc_pid_pagemap(5)). */
static uint64_t count_mapped(const uint8_t *data, uint64_t n_bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	for (uint64_t i = 0; i < n_bytes / page; i++) {
		uint64_t entry;
		off_t at = (off_t)(((uintptr_t)data / page + i) * sizeof(entry));
		assert_int_equal(pread(fd, &entry, sizeof(entry), at), sizeof(entry));
		n += entry >> 63;
	}
	close(fd);
	return n;
}

/* Into a hole of a mapped file, at no multiple of a page: only what is read takes memory, and the
 * pages leave the mapping again. The last half of the mapping has no file behind it. */
static void read_fresh(struct uring *u)
{
	enum { FRESH = 4 * PIECE, AT = PIECE + 100 };
	struct uring_read_params params = {
		.fd = make_file(), .n_bytes = PIECE, .offset = 11, .is_fresh = true, .tag = 3};
	int memfd = memfd_create("test-uring-fresh", MFD_CLOEXEC);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), tag = 99;

	assert_true(memfd >= 0);
	assert_int_equal(ftruncate(memfd, FRESH), 0);
	uint8_t *map = mmap(NULL, 2 * FRESH, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	assert_true(map != MAP_FAILED);
	params.data = map + AT;
	assert_int_equal(uring_read(u, &params), 0);
	assert_int_equal(uring_wait(u, &tag), 0);
	assert_int_equal(tag, 3);
	assert_int_equal(count_blocks(memfd) * 512, PIECE + page);
	assert_int_equal(count_mapped(map, FRESH), 0);
	for (uint64_t i = 0; i < FRESH; i++) {
		bool is_read = i >= AT && i < AT + PIECE;
		if (map[i] != (is_read ? byte_at(params.offset + i - AT) : 0))
			fail_msg("byte %llu", (unsigned long long)i);
	}

	/* No page can be made: an error and no signal, also where the first ones can. */
	for (uint64_t i = 0; i < 2; i++) {
		params.data = map + FRESH - i * page;
		assert_int_equal(uring_read(u, &params), 0);
		assert_int_equal(uring_wait(u, &tag), -ENOMEM);
	}
	assert_int_equal(uring_get_n_in_flight(u), 0);
	munmap(map, 2 * FRESH);
	close(memfd);
	close(params.fd);
}

/* Without waiting: first nothing, then the read. */
static void poll_one(struct uring *u)
{
	static uint8_t data[PIECE];
	uint64_t tag = 99;
	int fds[2], rc;

	assert_int_equal(uring_poll(u, &tag), -EINVAL);
	/* By io_uring a socket reads too, and then nothing comes for as long as one likes. */
	if (uring_get_refusal(u) == 0) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		assert_int_equal(start(u, fds[0], data, 1, 0, 5), 0);
		assert_int_equal(uring_poll(u, &tag), -EAGAIN);
		assert_int_equal(tag, 99);
		close(fds[1]);
		assert_int_equal(uring_wait(u, &tag), -ENODATA);
		close(fds[0]);
	}
	int fd = make_file();
	assert_int_equal(start(u, fd, data, PIECE, PIECE, 6), 0);
	while ((rc = uring_poll(u, &tag)) == -EAGAIN)
		usleep(100);
	assert_int_equal(rc, 0);
	assert_int_equal(tag, 6);
	assert_int_equal(data[1], byte_at(PIECE + 1));
	close(fd);
}

static void read_errors(struct uring *u)
{
	static uint8_t data[PIECE];
	uint64_t tag = 99;
	int fd = make_file();

	assert_int_equal(uring_wait(u, &tag), -EINVAL);
	assert_int_equal(start(u, fd, data, 0, 0, 1), -EINVAL);
	assert_int_equal(start(u, fd, data, 1ull << 31, 0, 1), -EINVAL);

	/* The file ends inside the read: the bytes that are there come first, then the end. */
	assert_int_equal(start(u, fd, data, TAIL + 1, (uint64_t)N_PIECES * PIECE, 7), 0);
	assert_int_equal(uring_wait(u, &tag), -ENODATA);
	assert_int_equal(tag, 7);
	close(fd);

	fd = open(".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	assert_int_equal(start(u, fd, data, PIECE, 0, 8), 0);
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
		assert_int_equal(start(u, fd, data[i], PIECE, i * PIECE, i), 0);
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

static void test_fresh(void **state)
{
	(void)state;
	run(false, read_fresh);
	run(true, read_fresh);
}

static void test_poll(void **state)
{
	(void)state;
	run(false, poll_one);
	run(true, poll_one);
}

static unsigned count_tasks(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned n = 0;

	assert_non_null(dir);
	for (struct dirent *d = readdir(dir); d; d = readdir(dir))
		n += d->d_name[0] != '.';
	closedir(dir);
	return n;
}

/* Threads that read, without a ring: as many as CPUs, from 8 to 16, and no more than reads. */
/* Threads that have ended, the kernel's own for a ring among them, are listed for a moment. */
static void expect_tasks(unsigned n)
{
	for (int i = 0; i < 5000 && count_tasks() != n; i++)
		usleep(1000);
	assert_int_equal(count_tasks(), n);
}

static void test_threads(void **state)
{
	struct uring *u;
	cpu_set_t cpus;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	unsigned n = (unsigned)CPU_COUNT(&cpus);
	expect_tasks(1);
	assert_int_equal(uring_new(URING_MAX_DEPTH, true, &u), 0);
	expect_tasks(1 + (n < 8 ? 8 : n > 16 ? 16 : n));
	uring_free(u);
	assert_int_equal(uring_new(2, true, &u), 0);
	expect_tasks(1 + 2);
	uring_free(u);
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

/* A read that was refused is not made later, into a buffer that is another's by then. */
static void test_submit_fails(void **state)
{
	static uint8_t refused[PIECE], data[PIECE];
	int fd = make_file();
	uint64_t tag = 0;

	(void)state;
	for (uint32_t depth = 1; depth <= 2; depth++) {
		struct uring *u = NULL;

		assert_int_equal(uring_new(depth, false, &u), 0);
		if (uring_get_refusal(u)) {
			uring_free(u);
			close(fd);
			skip();
		}
		for (int i = 0; i < 5; i++) {
			n_fail_submits = 1;
			assert_int_equal(start(u, fd, refused, PIECE, PIECE, 1), -EBUSY);
			assert_int_equal(uring_get_n_in_flight(u), 0);
			n_fail_submits = 0;
			memset(data, 0, sizeof(data));
			assert_int_equal(start(u, fd, data, PIECE, 3 * PIECE, 2), 0);
			assert_int_equal(uring_wait(u, &tag), 0);
			assert_int_equal(tag, 2);
			assert_int_equal(data[PIECE - 1], byte_at(4 * PIECE - 1));
			assert_int_equal(data[0], byte_at(3 * PIECE));
			assert_int_equal(uring_poll(u, &tag), -EINVAL);
		}
		for (unsigned i = 0; i < PIECE; i++)
			assert_int_equal(refused[i], 0);
		uring_free(u);
	}
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_depth),
		CASE(test_submit_fails),
		CASE(test_whole),
		CASE(test_errors),
		CASE(test_fresh),
		CASE(test_poll),
		CASE(test_threads),
		CASE(test_leave),
		CASE(test_denied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
