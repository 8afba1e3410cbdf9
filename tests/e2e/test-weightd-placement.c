/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where weightd puts weights, as its clients see it: budgets and rules, what a client gets that
 * imports less or is on another device, files that change under their users.
 */
#include "tests/e2e/weightd-placement.h"

#include <poll.h>

/* ---- what a client gets ---- */

static void test_budget_and_rules(void **state)
{
	struct site s;

	(void)state;
	start(&s, OPTIONS("--vram-budget", "3M", "--place", "blk.5.*=staged", "--window", "1M"));
	struct weights_client *c = connect_client(&s);
	struct weights_client_acquired a = get(c, ALL_HANDLES, 0);
	struct sums n = sum(&a);

	assert_true(n.n_bytes[MANIFEST_PLACEMENT_DEVICE] <= 3 << 20);
	assert_true(n.n_bytes[MANIFEST_PLACEMENT_DEVICE] > 2 << 20);
	assert_true(n.n_bytes[MANIFEST_PLACEMENT_STAGED] > 800000);
	assert_true(n.n_bytes[MANIFEST_PLACEMENT_PINNED] > 1000000);
	assert_int_equal(n.n_bytes[MANIFEST_PLACEMENT_PAGED], 0);
	check_windows(&a);
	/* Said aloud. */
	assert_non_null(strstr(site_log(&s), "bytes of tensors: device "));
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.n_devices, 1);
	assert_true(status.devices[0].n_abilities > 5);
	assert_int_equal(status.models[0].generations[0].unmet_bytes, 0);
	assert_int_equal(status.models[0].generations[0].allocs[0].device, 1);
	weights_client_status_fini(&status);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* Each client gets what it can import, in the same layout, and the rest to copy. */
static void test_offers(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client_acquired a;

	(void)state;
	start(&s, OPTIONS("--place", "blk.[0-2].*=staged", "--place", "blk.[34].*=pinned"));
	struct weights_client *c = connect_client(&s);
	a = get(c, ALL_HANDLES, 0);
	struct sums all = sum(&a);
	weights_client_acquired_fini(&a);
	assert_true(all.n_bytes[MANIFEST_PLACEMENT_STAGED] > 0);
	assert_true(all.n_bytes[MANIFEST_PLACEMENT_PINNED] > 0);
	a = get(c, NO_MEMFD, 0);
	struct sums n = sum(&a);
	assert_int_equal(
		n.n_bytes[MANIFEST_PLACEMENT_PAGED], all.n_bytes[MANIFEST_PLACEMENT_STAGED]);
	assert_int_equal(
		n.n_bytes[MANIFEST_PLACEMENT_PINNED], all.n_bytes[MANIFEST_PLACEMENT_PINNED]);
	check_windows(&a);
	weights_client_acquired_fini(&a);
	a = get(c, 1 << WEIGHTS_CLIENT_OPAQUE_FD, 0);
	n = sum(&a);
	assert_int_equal(n.n_bytes[MANIFEST_PLACEMENT_PAGED],
		all.n_bytes[MANIFEST_PLACEMENT_STAGED] + all.n_bytes[MANIFEST_PLACEMENT_PINNED]);
	for (uint32_t i = 0; i < a.n_allocs; i++)
		if (a.allocs[i].placement == MANIFEST_PLACEMENT_PAGED)
			assert_int_equal(a.allocs[i].handle_type, WEIGHTS_CLIENT_FILE);
	check_windows(&a);
	weights_client_acquired_fini(&a);
	/* One of before there was anything else is told so. */
	assert_int_equal(acquire_as(c, "atlas", 0, 0, &e, &a), -ENOTSUP);
	assert_non_null(strstr(e.text, "does not import"));
	weights_client_free(c);
	site_stop(&s);
}

/* A device that weightd does not have: host memory alone, which a first client's may be too. */
static void test_foreign_device(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client_acquired a, b;
	uint64_t inode = 0;

	(void)state;
	start(&s, OPTIONS("--place", "blk.0.*=staged"));
	struct weights_client *c = connect_client(&s);
	struct weights_client *other = connect_client(&s);
	assert_int_equal(acquire_as(c, "atlas", NO_MEMFD, 1, &e, &a), -ENODEV);
	a = get(c, ALL_HANDLES, 0);
	for (uint32_t i = 0; i < a.n_allocs; i++)
		if (a.allocs[i].handle_type == WEIGHTS_CLIENT_MEMFD)
			inode = a.allocs[i].inode;
	assert_int_equal(get_residency(c), 1 << 1);
	uint64_t n_bytes = verify(c);
	b = get(other, ALL_HANDLES, 1);
	assert_int_equal(get_residency(c), 1 << 1 | 1 << 0);
	for (uint32_t i = 0; i < b.n_allocs; i++) {
		assert_int_equal(b.allocs[i].placement, MANIFEST_PLACEMENT_STAGED);
		assert_int_equal(b.allocs[i].inode, inode);
	}
	check_windows(&b);
	assert_int_equal(verify(c), 2 * n_bytes);
	assert_int_equal(b.generation, a.generation);
	struct weights_client_status status = get_status(c);
	const struct weights_client_generation *g = &status.models[0].generations[0];
	assert_int_equal(g->n_leases, 2);
	assert_int_equal(g->n_allocs, a.n_allocs + b.n_allocs);
	assert_int_equal(g->allocs[g->n_allocs - 1].device, 0);
	weights_client_status_fini(&status);
	weights_client_acquired_fini(&a);
	weights_client_acquired_fini(&b);
	weights_client_free(c);
	weights_client_free(other);
	site_stop(&s);
}

/* The same of what is read rather than imported: for want of room, by a rule, or as it is large. */
static void test_foreign_device_reads(void **state)
{
	static const char *const options[][4] = {{"--place", "*=paged"}, {"--host-budget", "1"},
		{"--place", "*=staged", "--alloc-bytes", "64K"}};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(options); i++) {
		struct site s;

		start(&s, OPTIONS(options[i][0], options[i][1], options[i][2], options[i][3]));
		struct weights_client *c = connect_client(&s);
		struct weights_client_acquired a = get(c, ALL_HANDLES, 1);
		assert_true(sum(&a).n_bytes[MANIFEST_PLACEMENT_PAGED] > 1 << 20);
		check_windows(&a);
		weights_client_acquired_fini(&a);
		weights_client_free(c);
		site_stop(&s);
	}
}

/* One copy in host memory serves all devices: its budget is spent once. */
static void test_budget_of_one_copy(void **state)
{
	struct site s;

	(void)state;
	start(&s, OPTIONS("--place", "*=staged", "--host-budget", "9M"));
	struct weights_client *c = connect_client(&s), *other = connect_client(&s);
	struct weights_client_acquired a = get(c, ALL_HANDLES, 0);
	struct weights_client_acquired b = get(other, ALL_HANDLES, 1);
	assert_int_equal(sum(&a).n_bytes[MANIFEST_PLACEMENT_PAGED], 0);
	assert_int_equal(sum(&b).n_bytes[MANIFEST_PLACEMENT_PAGED], 0);
	assert_int_equal(sum(&b).n_bytes[MANIFEST_PLACEMENT_STAGED],
		sum(&a).n_bytes[MANIFEST_PLACEMENT_STAGED]);
	weights_client_acquired_fini(&a);
	weights_client_acquired_fini(&b);
	weights_client_free(c);
	weights_client_free(other);
	site_stop(&s);
}

/* The budget is that of all models, wherever in host memory they are, and what goes comes back. */
static void test_budget_of_all_models(void **state)
{
	static const struct {
		const char *place, *refuse;
		uint32_t placement;
	} rows[] = {{"*=pinned", NULL, MANIFEST_PLACEMENT_PINNED},
		{"*=staged", NULL, MANIFEST_PLACEMENT_STAGED},
		{"*=staged", "all", MANIFEST_PLACEMENT_STAGED}};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct weights_client_acquired a;
		struct err e = ERR_NULL;
		struct site s;
		uint64_t generation, n_more = 0;
		int fd = open_model();

		if (rows[i].refuse) {
			assert_int_equal(setenv("WEIGHTD_LAYER_REFUSE", rows[i].refuse, 1), 0);
			/* What it finds out is not to be what those after it find. */
			assert_int_equal(setenv("WEIGHTD_PROBE", "fresh", 1), 0);
		}
		start(&s, OPTIONS("--place", rows[i].place, "--host-budget", "9M"));
		unsetenv("WEIGHTD_LAYER_REFUSE");
		struct weights_client *c = connect_client(&s), *other = connect_client(&s);
		check(weights_client_describe(c, "atlas", &e, &a), &e, "describe");
		uint64_t n_first = sum(&a).n_bytes[rows[i].placement];
		assert_true(n_first > 6000000);
		weights_client_acquired_fini(&a);
		for (int k = 0; k < 2; k++) {
			check(weights_client_load(c, "more", "p", fd, true, &e, &generation), &e,
				"load");
			check(weights_client_describe(other, "more", &e, &a), &e, "describe");
			n_more = sum(&a).n_bytes[rows[i].placement];
			weights_client_acquired_fini(&a);
			if (k == 1)
				break;
			/* Windows take gaps along, which are nobody's. */
			assert_true(n_first + n_more <= (9 << 20) + (64 << 10));
			assert_true(n_more > 1 << 20);
			check(weights_client_unload(c, "atlas", &e), &e, "unload");
			check(weights_client_unload(c, "more", &e), &e, "unload");
			wait_state(c, generation, "gone");
		}
		assert_int_equal(n_more, n_first);
		close(fd);
		weights_client_free(c);
		weights_client_free(other);
		site_stop(&s);
	}
}

/* Whoever imports a copy of the file's windows can write to it: what differs there is found, and
 * the file is as good as before. */
static void test_written_copy(void **state)
{
	struct weights_client_verified v;
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	start(&s, OPTIONS("--place", "*=pinned", "--scrub", "0"));
	struct weights_client *c = connect_client(&s), *other = connect_client(&s);
	struct weights_client_acquired a =
		get(c, 1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_MEMFD, 0);
	assert_int_equal(a.allocs[0].handle_type, WEIGHTS_CLIENT_MEMFD);
	uint64_t n_bytes = verify(other);
	/* Both the file and the copy. */
	assert_true(n_bytes > 2 * 6000000);
	uint64_t at = a.allocs[0].file_offset + a.allocs[0].buffer_bytes / 2;
	uint8_t byte;
	assert_int_equal(pread(a.allocs[0].fd, &byte, 1, (off_t)at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(a.allocs[0].fd, &byte, 1, (off_t)at), 1);
	check(weights_client_verify(other, "atlas", &e, &v), &e, "verify");
	assert_int_equal(v.n_tensors, 1);
	assert_string_equal(get_state(other, a.generation), "lost");
	struct weights_client_acquired b = get(other, ALL_HANDLES, 0);
	assert_true(b.generation > a.generation);
	weights_client_acquired_fini(&a);
	weights_client_acquired_fini(&b);
	weights_client_free(c);
	weights_client_free(other);
	site_stop(&s);
}

static void test_describe(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client_acquired a;
	struct manifest *m = NULL;

	(void)state;
	start(&s, OPTIONS("--place", "blk.0.*=staged"));
	struct weights_client *c = connect_client(&s);
	assert_int_equal(weights_client_describe(c, "nobody", &e, &a), -ENOENT);
	check(weights_client_describe(c, "atlas", &e, &a), &e, "describe");
	assert_true(sum(&a).n_bytes[MANIFEST_PLACEMENT_STAGED] > 0);
	assert_int_equal(a.allocs[0].fd, -1);
	check(manifest_open(a.manifest_fd, &e, &m), &e, "manifest");
	assert_int_equal(m->n_allocs, a.n_allocs);
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.models[0].generations[0].n_leases, 0);
	weights_client_status_fini(&status);
	manifest_free(m);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* ---- what comes back ---- */

static void test_unload_returns_everything(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	uint64_t generation;

	(void)state;
	site_start(&s, OPTIONS("--place", "blk.*=staged", "--window", "2M"), 0);
	struct weights_client *c = connect_client(&s);
	unsigned n_fds = count_open(&s, "");
	int fd = open_model();
	check(weights_client_load(c, "atlas", "p", fd, false, &e, &generation), &e, "load");
	pid_t pid = fork();
	if (pid == 0) {
		struct weights_client *child = connect_client(&s);
		struct weights_client_acquired a = get(child, ALL_HANDLES, 0);
		unsigned n_windows = 0;
		for (uint32_t k = 0; k < a.n_allocs; k++)
			n_windows += a.allocs[k].handle_type == WEIGHTS_CLIENT_MEMFD;
		_exit((int)n_windows);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
	assert_int_equal(count_open(&s, "memfd:weightd-weights"), 1);
	check(weights_client_unload(c, "atlas", &e), &e, "unload");
	wait_state(c, generation, "gone");
	expect_open(&s, "", n_fds);
	expect_open(&s, "memfd:weightd-weights", 0);
	/* The account follows the loader, some time later. */
	uint64_t n_bytes = 1;
	for (int i = 0; i < 1000 && n_bytes > 0; i++) {
		struct weights_client_status after = get_status(c);
		n_bytes = after.device.heaps[0].weights_bytes;
		weights_client_status_fini(&after);
		usleep(5000);
	}
	assert_int_equal(n_bytes, 0);
	close(fd);
	weights_client_free(c);
	site_stop(&s);
}

/* ---- files ---- */

/* A copy of the model in a file that the test may change. */
static int copy_model(const char *path)
{
	int in = open_model();
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct stat st;

	assert_true(fd >= 0);
	assert_int_equal(fstat(in, &st), 0);
	uint8_t *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, in, 0);
	assert_true(data != MAP_FAILED);
	assert_int_equal(write(fd, data, (size_t)st.st_size), st.st_size);
	munmap(data, (size_t)st.st_size);
	close(in);
	return fd;
}

struct lost {
	unsigned n;
	char text[300];
};

static void on_event(const struct weights_client_event *event, void *userdata)
{
	struct lost *lost = userdata;

	if (event->kind != WEIGHTS_CLIENT_LOST)
		return;
	lost->n++;
	snprintf(lost->text, sizeof(lost->text), "%s: %s", event->model, event->text);
}

static void test_truncated_while_pinned(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct lost lost = {0};
	struct weights_client_acquired a;
	char path[100];
	uint64_t generation;

	(void)state;
	start(&s, OPTIONS("--place", "blk.*=pinned"));
	snprintf(path, sizeof(path), "%s/model", s.dir);
	int fd = copy_model(path);
	int ro = open(path, O_RDONLY | O_CLOEXEC);
	struct weights_client *watcher = connect_client(&s);
	struct weights_client *c = connect_client(&s);
	weights_client_set_event_fn(watcher, on_event, &lost);
	check(weights_client_watch(watcher, &e), &e, "watch");
	check(weights_client_load(c, "cut", path, ro, false, &e, &generation), &e, "load");
	check(acquire_as(c, "cut", ALL_HANDLES, 0, &e, &a), &e, "acquire");
	assert_true(sum(&a).n_bytes[MANIFEST_PLACEMENT_PINNED] > 0);
	weights_client_acquired_fini(&a);
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	for (int i = 0; i < 500 && lost.n == 0; i++) {
		struct pollfd p = {.fd = weights_client_get_fd(watcher), .events = POLLIN};
		poll(&p, 1, 10);
		check(weights_client_dispatch(watcher, &e), &e, "dispatch");
	}
	assert_int_equal(lost.n, 1);
	assert_non_null(strstr(lost.text, "cut: file: it changed: expected "));
	assert_string_equal(get_state(c, generation), "lost");
	assert_int_equal(acquire_as(c, "cut", ALL_HANDLES, 0, &e, &a), -EIO);
	/* The other model is as before, from the same kind of memory. */
	a = get(watcher, ALL_HANDLES, 0);
	check_windows(&a);
	weights_client_acquired_fini(&a);
	/* A changed file is found at the next Acquire at the latest. */
	assert_int_equal(unlink(path), 0);
	close(fd);
	close(ro);
	fd = copy_model(path);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	check(weights_client_load(c, "cut", path, ro, false, &e, &generation), &e, "load");
	usleep(20000); /* times of files move in ticks */
	assert_int_equal(pwrite(fd, "x", 1, 2 << 20), 1);
	assert_true(acquire_as(watcher, "cut", ALL_HANDLES, 0, &e, &a) < 0);
	close(fd);
	close(ro);
	unlink(path);
	weights_client_free(watcher);
	weights_client_free(c);
	site_stop(&s);
}

/* What leaves weightd is for reading, unless that model's file may be written to. */
static void test_pin_writable(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client_acquired a;
	uint64_t generation;

	(void)state;
	site_start(&s, OPTIONS("--place", "blk.*=pinned", "--pin-writable", "open"), 0);
	struct weights_client *c = connect_client(&s);
	int fd = copy_model("/dev/shm/weightd-test-model");
	unlink("/dev/shm/weightd-test-model");
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "open" : "closed";
		check(weights_client_load(c, name, "p", fd, false, &e, &generation), &e, "load");
		check(acquire_as(c, name, ALL_HANDLES, 0, &e, &a), &e, "acquire");
		unsigned n_files = 0;
		for (uint32_t k = 0; k < a.n_allocs; k++) {
			if (a.allocs[k].handle_type != WEIGHTS_CLIENT_FILE)
				continue;
			assert_int_equal(a.allocs[k].writable, i);
			assert_int_equal(
				fcntl(a.allocs[k].fd, F_GETFL) & O_ACCMODE, i ? O_RDWR : O_RDONLY);
			n_files++;
		}
		assert_true(n_files > 0);
		check_windows(&a);
		weights_client_acquired_fini(&a);
	}
	close(fd);
	weights_client_free(c);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_budget_and_rules),
		CASE(test_offers),
		CASE(test_foreign_device),
		CASE(test_foreign_device_reads),
		CASE(test_budget_of_one_copy),
		CASE(test_budget_of_all_models),
		CASE(test_written_copy),
		CASE(test_describe),
		CASE(test_unload_returns_everything),
		CASE(test_truncated_while_pinned),
		CASE(test_pin_writable),
	};

	return site_run_tests(tests, ARRAY_SIZE(tests));
}
