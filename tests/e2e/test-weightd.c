/* SPDX-License-Identifier: Apache-2.0 */
/* weightd as its clients see it: models come, are shared, drain and go; files are refused. */
#include "tests/e2e/weightd-site.h"

#include <poll.h>
#include <sys/mman.h>

#include "proto/manifest.h"

enum { N_CROWD = 300, N_QUEUED = 60 };

/* ---- what it is for ---- */

static void check_allocs(const struct weights_client_acquired *a)
{
	for (uint32_t i = 0; i < a->n_allocs; i++) {
		struct stat st;
		assert_int_equal(a->allocs[i].index, i);
		assert_int_equal(fstat(a->allocs[i].fd, &st), 0);
		assert_int_equal(st.st_ino, a->allocs[i].inode);
		assert_int_equal(st.st_dev, a->allocs[i].dev);
		assert_int_equal(a->allocs[i].placement, MANIFEST_PLACEMENT_DEVICE);
		assert_int_equal(a->allocs[i].handle_type, WEIGHTS_CLIENT_OPAQUE_FD);
		assert_true(a->allocs[i].buffer_bytes <= a->allocs[i].n_bytes);
	}
}

static void test_acquire(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct manifest *m = NULL;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	struct weights_client_acquired a = acquire(c, "atlas");
	assert_int_equal(a.generation, 1);
	assert_true(a.n_allocs >= 1);
	check_allocs(&a);
	check(manifest_open(a.manifest_fd, &e, &m), &e, "manifest");
	assert_int_equal(m->header->generation, 1);
	assert_int_equal(m->n_allocs, a.n_allocs);

	struct weights_client *other = connect_client(&s);
	struct weights_client_acquired b = acquire(other, "atlas");
	assert_int_equal(b.allocs[0].inode, a.allocs[0].inode);

	struct weights_client_status status = get_status(c);
	assert_int_equal(status.pid, s.pid);
	assert_int_equal(status.n_models, 1);
	const struct weights_client_generation *g = &status.models[0].generations[0];
	assert_string_equal(g->state, "ready");
	assert_string_equal(g->origin, "loaded");
	assert_string_equal(g->architecture, "qwen3");
	assert_string_equal(g->format, "q8_0");
	assert_string_equal(g->path, model_path());
	assert_int_equal(g->n_leases, 2);
	assert_int_equal(g->n_allocs, a.n_allocs);
	assert_int_equal(g->allocs[0].inode, a.allocs[0].inode);
	assert_int_equal(g->n_tensors, m->n_tensors);
	assert_true(g->load_ns > 0 && g->weights_bytes > 0 && g->manifest_bytes > 0);
	assert_int_equal(status.n_peers, 2);
	assert_int_equal(status.peers[0].pid, getpid());
	assert_int_equal(status.peers[0].uid, getuid());
	assert_int_equal(status.peers[0].n_leases, 1);
	assert_string_equal(status.peers[0].leases[0].model, "atlas");
	uint64_t weights = 0;
	for (uint32_t i = 0; i < status.device.n_heaps; i++)
		weights += status.device.heaps[i].weights_bytes;
	assert_int_equal(weights, g->weights_bytes);

	weights_client_status_fini(&status);
	weights_client_acquired_fini(&a);
	weights_client_acquired_fini(&b);
	manifest_free(m);
	weights_client_free(c);
	weights_client_free(other);
	site_stop(&s);
}

static void test_acquire_refused(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client_acquired a;
	uint8_t wrong[16];

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	const struct weights_client_device *d = weights_client_get_device(c);
	assert_int_equal(
		weights_client_acquire(c, "atlas2", d->uuid, d->driver_uuid, &e, &a), -ENOENT);
	assert_string_equal(e.text, "no model atlas2: there is atlas");
	memset(wrong, 0xab, sizeof(wrong));
	assert_int_equal(
		weights_client_acquire(c, "atlas", wrong, d->driver_uuid, &e, &a), -ENODEV);
	assert_non_null(strstr(e.text, "abababababababababababababababab"));
	assert_non_null(strstr(e.text, d->name));
	assert_int_equal(weights_client_acquire(c, "atlas", d->uuid, wrong, &e, &a), -ENODEV);
	assert_non_null(strstr(e.text, "abababababababababababababababab"));
	assert_int_equal(
		weights_client_acquire(c, "../x", d->uuid, d->driver_uuid, &e, &a), -EINVAL);
	weights_client_free(c);
	site_stop(&s);
}

static void test_unload_drains(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	uint64_t generation = 0;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	struct holder h = holder_start(&s, "atlas");
	int fd = open_model();

	assert_int_equal(weights_client_load(c, "atlas", "p", fd, false, &e, &generation), -EEXIST);
	check(weights_client_load(c, "atlas", "p", fd, true, &e, &generation), &e, "replace");
	assert_int_equal(generation, 2);
	assert_string_equal(get_state(c, 1), "draining");
	holder_close(&h);
	wait_state(c, 1, "held");
	assert_string_equal(get_state(c, 2), "ready");
	holder_kill(&h);
	wait_state(c, 1, "gone");

	/* Killed under its lease, nothing is held. */
	h = holder_start(&s, "atlas");
	check(weights_client_unload(c, "atlas", &e), &e, "unload");
	assert_string_equal(get_state(c, 2), "draining");
	assert_int_equal(weights_client_unload(c, "atlas", &e), -ENOENT);
	holder_kill(&h);
	wait_state(c, 2, "gone");
	close(fd);
	weights_client_free(c);
	site_stop(&s);
}

struct events {
	unsigned n[WEIGHTS_CLIENT_DETACHED + 1];
};

static void on_event(const struct weights_client_event *event, void *userdata)
{
	struct events *seen = userdata;

	assert_string_equal(event->model, "atlas");
	seen->n[event->kind]++;
}

static void test_watch(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct events seen = {0};
	uint64_t generation;

	(void)state;
	site_start(&s, NULL, 0);
	struct weights_client *watcher = connect_client(&s);
	struct weights_client *c = connect_client(&s);
	weights_client_set_event_fn(watcher, on_event, &seen);
	check(weights_client_watch(watcher, &e), &e, "watch");
	int fd = open_model();
	check(weights_client_load(c, "atlas", "p", fd, false, &e, &generation), &e, "load");
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(weights_client_load(c, "atlas", "p", null, true, &e, &generation) < 0);
	struct holder h = holder_start(&s, "atlas");
	holder_kill(&h);
	check(weights_client_unload(c, "atlas", &e), &e, "unload");
	for (int i = 0; i < 1000 && !seen.n[WEIGHTS_CLIENT_UNLOADED]; i++) {
		struct pollfd p = {.fd = weights_client_get_fd(watcher), .events = POLLIN};
		poll(&p, 1, 10);
		check(weights_client_dispatch(watcher, &e), &e, "dispatch");
	}
	assert_int_equal(seen.n[WEIGHTS_CLIENT_READY], 1);
	assert_int_equal(seen.n[WEIGHTS_CLIENT_FAILED], 1);
	assert_int_equal(seen.n[WEIGHTS_CLIENT_ATTACHED], 1);
	assert_int_equal(seen.n[WEIGHTS_CLIENT_DETACHED], 1);
	assert_int_equal(seen.n[WEIGHTS_CLIENT_UNLOADED], 1);
	close(fd);
	close(null);
	weights_client_free(watcher);
	weights_client_free(c);
	site_stop(&s);
}

/* A status of many peers takes several packets. */
static void test_crowd(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	struct weights_client *crowd[N_CROWD];
	char path[250];

	(void)state;
	site_start_model(&s);
	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	for (int i = 0; i < N_CROWD; i++) {
		const struct weights_client_report report = {
			.kv_bytes = (uint64_t)i, .n_sessions = 3, .socket = path};
		crowd[i] = connect_client(&s);
		check(weights_client_report(crowd[i], &report, &e), &e, "report");
	}
	struct weights_client_status status = get_status(crowd[0]);
	assert_int_equal(status.n_models, 1);
	assert_int_equal(status.n_peers, N_CROWD);
	for (int i = 0; i < N_CROWD; i++) {
		assert_true(status.peers[i].has_report);
		assert_int_equal(status.peers[i].report.kv_bytes, i);
		assert_string_equal(status.peers[i].report.socket, path);
	}
	weights_client_status_fini(&status);
	for (int i = 0; i < N_CROWD; i++)
		weights_client_free(crowd[i]);
	site_stop(&s);
}

/* ---- files ---- */

/* A copy of the model whose bytes `from` are replaced, once; cut by n_cut bytes at the end. */
static int patched_model(const void *from, const void *to, size_t n, off_t n_cut)
{
	struct stat st;
	int in = open_model();
	int fd = memfd_create("patched", MFD_CLOEXEC);

	assert_int_equal(fstat(in, &st), 0);
	uint8_t *data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(pread(in, data, (size_t)st.st_size, 0), st.st_size);
	if (n) {
		uint8_t *at = memmem(data, (size_t)st.st_size, from, n);
		assert_non_null(at);
		memcpy(at, to, n);
	}
	size_t n_bytes = (size_t)(st.st_size - n_cut);
	assert_int_equal(pwrite(fd, data, n_bytes, 0), n_bytes);
	free(data);
	close(in);
	return fd;
}

/* Name, two dimensions and block format of a tensor in the table: q8_0 becomes iq4_nl. */
static int unsupported_format(void)
{
	static const char name[] = "blk.0.attn_q.weight";
	uint8_t from[256], to[256];
	struct stat st;
	int in = open_model();
	size_t n = sizeof(name) - 1 + 4 + 16 + 4;

	assert_int_equal(fstat(in, &st), 0);
	uint8_t *data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(pread(in, data, (size_t)st.st_size, 0), st.st_size);
	memcpy(from, memmem(data, (size_t)st.st_size, name, sizeof(name) - 1), n);
	memcpy(to, from, n);
	to[n - 4] = 20;
	free(data);
	close(in);
	return patched_model(from, to, n, 0);
}

static void refuse_file(
	const struct site *s, struct weights_client *c, int fd, int code, const char *text)
{
	struct err e = ERR_NULL;
	uint64_t generation;
	unsigned n_lines = count_lines(site_log(s));

	assert_true(fd >= 0);
	int rc = weights_client_load(c, "bad", "bad.gguf", fd, false, &e, &generation);
	close(fd);
	if (!strstr(e.text, text) || strncmp(e.text, "model bad: ", 11))
		fail_msg("expected \"%s\", found \"%s\"", text, e.text);
	assert_int_equal(rc, code);
	/* Once in the log, in the same words. */
	assert_int_equal(count_lines(site_log(s)), n_lines + 1);
	assert_non_null(strstr(site_log(s), e.text));
	assert_string_equal(get_state(c, 1), "ready");
}

static void test_bad_files(void **state)
{
	struct site s;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	refuse_file(&s, c, open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), -EINVAL, "director");
	refuse_file(&s, c, memfd_create("empty", MFD_CLOEXEC), -EINVAL, "empty");
	refuse_file(&s, c, open("/dev/zero", O_RDONLY | O_CLOEXEC), -EINVAL, "regular");
	refuse_file(&s, c, open(model_path(), O_PATH | O_CLOEXEC), -EBADF, "");
	refuse_file(&s, c, patched_model(NULL, NULL, 0, 1000), -EINVAL, "");
	refuse_file(&s, c, patched_model("GGUF", "GGUX", 4, 0), -EINVAL, "");
	refuse_file(&s, c, patched_model("qwen3", "qwen9", 5, 0), -ENOTSUP, "qwen9");
	refuse_file(&s, c, unsupported_format(), -ENOTSUP, "blk.0.attn_q.weight");
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.n_models, 1);
	weights_client_status_fini(&status);
	weights_client_free(c);
	site_stop(&s);
}

static void test_larger_than_allowed(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	uint64_t generation;

	(void)state;
	site_start(&s,
		(const char *const[]){"--alloc-bytes", "100000", "--place", "*=device", NULL}, 0);
	struct weights_client *c = connect_client(&s);
	int fd = open_model();
	assert_int_equal(weights_client_load(c, "atlas", "p", fd, false, &e, &generation), -E2BIG);
	assert_non_null(strstr(e.text, "allocates at most 100000"));
	close(fd);
	weights_client_free(c);
	site_stop(&s);
}

/* ---- the command line ---- */

static void expect_exit(const char *const *args, int status, const char *text)
{
	struct site s;

	site_init(&s);
	site_spawn(&s, args, 0);
	assert_int_equal(site_wait(&s), status);
	if (text && (!strstr(site_log(&s), text) || count_lines(site_log(&s)) != 1))
		fail_msg("expected one line with \"%s\", found \"%s\"", text, site_log(&s));
	site_remove(&s);
}

static void test_command_line(void **state)
{
	(void)state;
	expect_exit((const char *const[]){"--nonsense", NULL}, 2, "--nonsense");
	expect_exit((const char *const[]){"left-over", NULL}, 2, "left-over");
	expect_exit((const char *const[]){"--model", "noequals", NULL}, 2, "NAME=FILE");
	expect_exit((const char *const[]){"--model", "a/b=c", NULL}, 2, "model name");
	expect_exit((const char *const[]){"--place", "*=nowhere", NULL}, 2, "nowhere");
	expect_exit((const char *const[]){"--place", "=staged", NULL}, 2, "PATTERN=PLACEMENT");
	expect_exit((const char *const[]){"--vram-budget", "many", NULL}, 2, "--vram-budget");
	expect_exit((const char *const[]){"--reserve", "-1", NULL}, 2, "--reserve");
	expect_exit((const char *const[]){"--experts", "both", NULL}, 2, "both");
	expect_exit((const char *const[]){"--log-level", "loud", NULL}, 2, "loud");
	expect_exit((const char *const[]){"--model", "a=/nonexistent/file", NULL}, 1,
		"/nonexistent/file");
	expect_exit((const char *const[]){"--model", "a=/", NULL}, 1, "model a: ");
	expect_exit((const char *const[]){"--device", "12345", NULL}, 1, "");
	expect_exit(
		(const char *const[]){"--socket", "/nonexistent/dir/s", NULL}, 1, "/nonexistent");
}

static void test_second_weightd(void **state)
{
	struct site s;

	(void)state;
	site_start(&s, (const char *const[]){"--place", "*=device", "--no-uring", NULL}, 0);
	expect_exit((const char *const[]){"--socket", s.socket, NULL}, 1, s.socket);
	struct weights_client *c = connect_client(&s);
	weights_client_free(c);
	/* A socket file that a killed one left is no obstacle. */
	assert_int_equal(kill(s.pid, SIGKILL), 0);
	assert_int_equal(waitpid(s.pid, NULL, 0), s.pid);
	unlink(s.log);
	site_spawn(&s, NULL, 0);
	site_wait_ready(&s);
	c = connect_client(&s);
	weights_client_free(c);
	site_stop(&s);
}

/* Loads m0, m1, ... all asked for at once by a peer that does not wait for them. */
static int queue_loads(const struct site *s)
{
	int sock = greeted(s);

	for (int i = 0; i < N_QUEUED; i++) {
		Wd__Request request = WD__REQUEST__INIT;
		Wd__Load load = WD__LOAD__INIT;
		char name[16];
		struct fdlist fds = {.n = 1, .fds = {open_model()}};

		snprintf(name, sizeof(name), "m%d", i);
		load.name = name;
		request.id = (uint64_t)i + 2;
		request.n_fds = 1;
		request.body_case = WD__REQUEST__BODY_LOAD;
		request.load = &load;
		send_request(sock, &request, &fds);
		fdlist_fini(&fds);
	}
	return sock;
}

static void wait_model(struct weights_client *c, uint64_t generation)
{
	for (int i = 0; i < 1000 && !strcmp(get_state(c, generation), "gone"); i++)
		usleep(1000);
}

/* Others are answered while loads run; an Acquire waits for its model's. */
static void test_acquire_waits(void **state)
{
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	site_start(&s, NULL, 0);
	struct weights_client *c = connect_client(&s);
	int sock = queue_loads(&s);
	wait_model(c, N_QUEUED);
	struct weights_client_acquired a = acquire(c, "m59");
	assert_int_equal(a.generation, N_QUEUED);
	weights_client_acquired_fini(&a);
	check(weights_client_unload(c, "m59", &e), &e, "unload");
	weights_client_free(c);
	close(sock);
	site_stop(&s);
}

/* A model that is unloaded while it loads, or waits to: who asked and who waits are told. */
static void test_unload_while_loading(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Acquire message = WD__ACQUIRE__INIT;

	(void)state;
	site_start(&s, NULL, 0);
	struct weights_client *c = connect_client(&s);
	const struct weights_client_device *d = weights_client_get_device(c);
	int waiter = greeted(&s);
	int sock = queue_loads(&s);
	wait_model(c, N_QUEUED);
	message.model = (char *)"m59";
	message.device_uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)d->uuid};
	message.driver_uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)d->driver_uuid};
	request.id = 2;
	request.body_case = WD__REQUEST__BODY_ACQUIRE;
	request.acquire = &message;
	send_request(waiter, &request, NULL);
	/* Answered behind it: weightd has read the Acquire. */
	Wd__List list = WD__LIST__INIT;
	request.id = 3;
	request.body_case = WD__REQUEST__BODY_LIST;
	request.list = &list;
	send_request(waiter, &request, NULL);
	Wd__Reply *reply = receive(waiter);
	assert_int_equal(reply->body_case, WD__REPLY__BODY_MODELS);
	wd__reply__free_unpacked(reply, NULL);
	assert_string_equal(get_state(c, N_QUEUED), "loading");
	check(weights_client_unload(c, "m59", &e), &e, "unload");
	expect_error(waiter, "unloaded while it loaded");
	wait_state(c, N_QUEUED, "gone");
	close(waiter);
	close(sock);
	weights_client_free(c);
	site_stop(&s);
}

/* SIGTERM with work under way. */
static void test_stop_while_loading(void **state)
{
	struct site s;

	(void)state;
	site_start(&s, NULL, 0);
	int sock = queue_loads(&s);
	site_stop(&s);
	close(sock);
}

/* A container's seccomp filter: pread, and one line that says so. */
static void test_no_uring(void **state)
{
	struct site s;
	struct err e = ERR_NULL;
	uint64_t generation;

	(void)state;
	site_init(&s);
	s.uring_errnum = EPERM;
	site_spawn(&s, NULL, 0);
	site_wait_ready(&s);
	struct weights_client *c = connect_client(&s);
	int fd = open_model();
	for (int i = 0; i < 2; i++)
		check(weights_client_load(c, "atlas", "p", fd, true, &e, &generation), &e, "load");
	close(fd);
	const char *line = strstr(site_log(&s), "io_uring is refused (Operation not permitted)");
	assert_non_null(line);
	assert_null(strstr(line + 1, "io_uring is refused"));
	assert_non_null(strstr(line, "by pread)"));
	weights_client_free(c);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_acquire),
		CASE(test_acquire_refused),
		CASE(test_acquire_waits),
		CASE(test_unload_drains),
		CASE(test_unload_while_loading),
		CASE(test_watch),
		CASE(test_crowd),
		CASE(test_bad_files),
		CASE(test_larger_than_allowed),
		CASE(test_command_line),
		CASE(test_second_weightd),
		CASE(test_stop_while_loading),
		CASE(test_no_uring),
	};

	signal(SIGPIPE, SIG_IGN);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
