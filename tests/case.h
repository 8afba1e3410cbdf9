/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CASE_H
#define TESTS_CASE_H

/*
 * What every test case is held to: it ends in time, and it leaves as many file descriptors open as
 * it found. Use CASE(f) for a row of the cmocka table.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { CASE_SECONDS = 60, CASE_SKIP = 77 };

static int case_n_fds_before;

static inline int case_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* What is open now; those of before are the lowest of it, as a rule. */
static inline void case_print_fds(void)
{
	char path[32], target[256];

	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof(target));
		if (n >= 0)
			fprintf(stderr, "  %d: %.*s\n", fd, (int)n, target);
	}
}

static inline int case_setup(void **state)
{
	(void)state;
	case_n_fds_before = case_count_fds();
	alarm(CASE_SECONDS);
	return 0;
}

static inline int case_teardown(void **state)
{
	(void)state;
	alarm(0);
	int n = case_count_fds();
	if (n != case_n_fds_before) {
		fprintf(stderr, "file descriptors leaked: %d before, %d after\n", case_n_fds_before,
			n);
		case_print_fds();
		return -1;
	}
	return 0;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, case_setup, case_teardown)

#endif
