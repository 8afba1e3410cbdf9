/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>

#include "proto/fdlist.h"

static int open_null(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static void closes_what_nobody_took(void **state)
{
	struct fdlist l = FDLIST_NULL;
	int fds[3], taken;

	(void)state;
	for (int i = 0; i < 3; i++) {
		fds[i] = open_null();
		assert_int_equal(fdlist_add(&l, fds[i]), 0);
	}
	taken = fdlist_take(&l, 1);
	assert_int_equal(taken, fds[1]);
	assert_int_equal(fdlist_take(&l, 1), -1);
	assert_int_equal(fdlist_take(&l, 3), -1);
	fdlist_fini(&l);
	assert_int_equal(l.n, 0);
	assert_int_equal(fcntl(fds[0], F_GETFD), -1);
	assert_int_equal(fcntl(fds[2], F_GETFD), -1);
	assert_true(fcntl(taken, F_GETFD) >= 0);
	close(taken);
	fdlist_fini(&l);
}

static void closes_what_does_not_fit(void **state)
{
	struct fdlist l = FDLIST_NULL;
	int fd;

	(void)state;
	for (int i = 0; i < FDLIST_MAX; i++)
		assert_int_equal(fdlist_add(&l, open_null()), 0);
	fd = open_null();
	assert_int_equal(fdlist_add(&l, fd), -E2BIG);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(l.n, FDLIST_MAX);
	fdlist_fini(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(closes_what_nobody_took),
		CASE(closes_what_does_not_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
