/* SPDX-License-Identifier: Apache-2.0 */
/* What is told to a weightd that came back, with descriptors that outlive the weights. */
#include "tests/case.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "workerd/lease.h"
#include "workerd/weights.h"

static int make_memfd(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static uint64_t get_inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void test_take(void **state)
{
	/* The second is of the file of the first. */
	struct weights_alloc allocs[3] = {{.owner = 0}, {.owner = 0}, {.owner = 2}};
	const struct weights w = {
		.generation = 7, .manifest_fd = make_memfd(), .n_allocs = 3, .allocs = allocs};
	const struct weights_client_report report = {
		.kv_bytes = 5, .n_sessions = 4, .socket = "/run/w"};
	struct lease_copy c;
	struct lease *l = NULL;
	struct err err = ERR_NULL;
	uint64_t inodes[3], serial;

	(void)state;
	allocs[0].kept_fd = allocs[1].kept_fd = make_memfd();
	allocs[2].kept_fd = make_memfd();
	for (int i = 0; i < 3; i++)
		inodes[i] = get_inode(allocs[i].kept_fd);
	assert_int_equal(lease_new(&l), 0);
	lease_set(l, &w, 100, &report);
	serial = lease_get_serial(l);
	assert_int_equal(lease_take(l, &err, &c), 0);
	lease_clear(l);
	close(allocs[0].kept_fd);
	close(allocs[2].kept_fd);
	close(w.manifest_fd);
	assert_int_equal(c.serial, serial);
	assert_int_equal(c.generation, 7);
	assert_int_equal(c.n_granted_bytes, 100);
	assert_int_equal(c.report.kv_bytes, 5);
	assert_int_equal(c.n_allocs, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(get_inode(c.fds[i]), inodes[i]);
	assert_true(fcntl(c.manifest_fd, F_GETFD) & FD_CLOEXEC);
	lease_copy_fini(&c);

	/* Parked: nothing, but that it is there. */
	assert_true(lease_get_serial(l) > serial);
	assert_int_equal(lease_take(l, &err, &c), 0);
	assert_int_equal(c.generation, 0);
	assert_int_equal(c.n_granted_bytes, 0);
	assert_int_equal(c.n_allocs, 0);
	assert_int_equal(c.report.kv_bytes, 0);
	assert_int_equal(c.report.n_sessions, 4);
	assert_string_equal(c.report.socket, "/run/w");
	lease_copy_fini(&c);
	lease_free(l);
	assert_null(lease_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_take),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
