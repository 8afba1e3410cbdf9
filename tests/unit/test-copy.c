/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of a file in a memfd: what is there stays, and what failed takes no memory. */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "weightd/copy.h"

enum { PAGE = 4096, N = 64, TAIL = 100 };

/* N pages and a little more; page i has bytes of i. */
static int make_file(void)
{
	int fd = memfd_create("model", MFD_CLOEXEC);
	uint8_t page[PAGE];

	assert_true(fd >= 0);
	for (unsigned i = 0; i <= N; i++) {
		memset(page, (int)i, sizeof(page));
		assert_int_equal(pwrite(fd, page, i < N ? PAGE : TAIL, (off_t)i * PAGE),
			i < N ? PAGE : TAIL);
	}
	return fd;
}

static int add(struct copy *c, int file, uint64_t page, uint64_t n_pages, bool use_pread,
	const atomic_bool *is_given_up)
{
	const struct copy_params params = {.file = file,
		.n_file_bytes = N * PAGE + TAIL,
		.offset = page * PAGE,
		.n_bytes = n_pages * PAGE,
		.use_pread = use_pread,
		.is_given_up = is_given_up};
	struct err e = ERR_NULL;
	int rc = copy_add(c, &params, &e);

	assert_int_equal(rc < 0, e.text[0] != '\0');
	return rc;
}

static unsigned count_pages(const struct copy *c)
{
	struct stat st;

	assert_int_equal(fstat(c->fd, &st), 0);
	return (unsigned)(st.st_blocks * 512 / PAGE);
}

static uint8_t get_byte(const struct copy *c, uint64_t page)
{
	uint8_t byte;

	assert_int_equal(pread(c->fd, &byte, 1, (off_t)(page * PAGE + 50)), 1);
	return byte;
}

static void test_any_order(void **state)
{
	int file = make_file();
	uint64_t seed = 7;

	(void)state;
	for (int round = 0; round < 50; round++) {
		bool is_there[N + 1] = {false};
		struct copy c;

		copy_init(&c);
		for (int i = 0; i < 12; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			uint64_t page = (seed >> 33) % (N + 1);
			uint64_t n = 1 + (seed >> 45) % 9, n_missing = 0;
			n = n > N + 1 - page ? N + 1 - page : n;
			for (uint64_t k = page; k < page + n; k++)
				n_missing += !is_there[k];
			assert_int_equal(
				copy_count_missing(&c, page * PAGE, n * PAGE), n_missing * PAGE);
			assert_int_equal(add(&c, file, page, n, round % 2, NULL), 0);
			assert_int_equal(copy_count_missing(&c, page * PAGE, n * PAGE), 0);
			memset(is_there + page, true, n);
		}
		unsigned n_pages = 0;
		for (unsigned k = 0; k <= N; k++) {
			n_pages += is_there[k];
			assert_int_equal(get_byte(&c, k), is_there[k] ? k : 0);
		}
		assert_int_equal(count_pages(&c), n_pages);
		for (uint32_t i = 1; i < c.n_ranges; i++)
			assert_true(c.ranges[i - 1].end < c.ranges[i].begin);
		copy_fini(&c);
	}
	close(file);
}

/* A worker reads them: a file that changed must not show through. */
static void test_what_is_there_stays(void **state)
{
	int file = make_file();
	struct copy c;

	(void)state;
	copy_init(&c);
	assert_int_equal(add(&c, file, 8, 4, false, NULL), 0);
	for (uint64_t i = 0; i < N; i++)
		assert_int_equal(pwrite(file, "\xff", 1, (off_t)(i * PAGE + 50)), 1);
	assert_int_equal(add(&c, file, 4, 8, false, NULL), 0);
	assert_int_equal(get_byte(&c, 7), 0xff);
	for (unsigned i = 8; i < 12; i++)
		assert_int_equal(get_byte(&c, i), i);
	copy_fini(&c);
	close(file);
}

static void test_failures_take_nothing(void **state)
{
	atomic_bool is_given_up;
	int file = make_file();
	struct copy c;

	(void)state;
	copy_init(&c);
	atomic_init(&is_given_up, true);
	for (int use_pread = 0; use_pread < 2; use_pread++) {
		assert_int_equal(add(&c, file, 0, N, use_pread, &is_given_up), -ECANCELED);
		assert_int_equal(count_pages(&c), 0);
	}
	assert_int_equal(add(&c, file, 0, 2, false, NULL), 0);
	assert_int_equal(ftruncate(file, 10 * PAGE), 0);
	assert_int_equal(add(&c, file, 0, N, false, NULL), -ENODATA);
	assert_int_equal(count_pages(&c), 2);
	assert_int_equal(copy_count_missing(&c, 0, N * PAGE), (N - 2) * PAGE);
	assert_int_equal(add(&c, file, 4, 6, false, NULL), 0);
	assert_int_equal(get_byte(&c, 9), 9);
	assert_int_equal(add(&c, file, N + 1, 1, false, NULL), -EINVAL);
	copy_fini(&c);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_any_order),
		CASE(test_what_is_there_stays),
		CASE(test_failures_take_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
