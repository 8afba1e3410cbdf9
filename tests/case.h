/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CASE_H
#define TESTS_CASE_H

/*
 * What every test case is held to: it ends in time, and it leaves as many file descriptors open as
 * it found. Of those of devices, a driver may have fewer in the end: NVIDIA's keeps one less for a
 * device that was made anew. Use CASE(f) for a row of the cmocka table. WEIGHTD_TEST_FILTER says
 * which cases are run, as a shell pattern.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { CASE_SECONDS = 240 };
#else
enum { CASE_SECONDS = 60 };
#endif
enum { CASE_SKIP = 77 };

struct case_fds {
	int n_device; /* of files in /dev */
	int n_other;
};

static struct case_fds case_fds_before;

static inline struct case_fds case_get_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct case_fds n = {0};
	struct dirent *entry;
	char target[8];

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		ssize_t n_bytes = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target));
		if (n_bytes >= 5 && !memcmp(target, "/dev/", 5))
			n.n_device++;
		else
			n.n_other++;
	}
	closedir(dir);
	return n;
}

static inline int case_count_fds(void)
{
	struct case_fds n = case_get_fds();

	return n.n_device + n.n_other;
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
	case_fds_before = case_get_fds();
	alarm(CASE_SECONDS);
	return 0;
}

static inline int case_teardown(void **state)
{
	(void)state;
	alarm(0);
	struct case_fds n = case_get_fds();
	if (n.n_other != case_fds_before.n_other || n.n_device > case_fds_before.n_device) {
		fprintf(stderr,
			"file descriptors leaked: %d and %d of devices before, %d and %d after\n",
			case_fds_before.n_other, case_fds_before.n_device, n.n_other, n.n_device);
		case_print_fds();
		return -1;
	}
	return 0;
}

/* cmocka 1.1 has the filter, but nothing that asks the environment for it. */
__attribute__((constructor)) static inline void case_filter(void)
{
	const char *pattern = getenv("WEIGHTD_TEST_FILTER");

	if (pattern && *pattern)
		cmocka_set_test_filter(pattern);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, case_setup, case_teardown)

#endif
