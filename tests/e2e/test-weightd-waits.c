/* SPDX-License-Identifier: Apache-2.0 */
/* An Acquire that waits is answered whatever becomes of what it waits for. */
#include "tests/e2e/weightd-placement.h"

#include <time.h>

enum { WAITS_BYTES_M = 240 }; /* of a model: what is loaded or copied takes long enough to look */

/* The model m, large, in a file that may be touched; blocks placed so. */
static int start_large(struct site *s, const char *place, const char *const *options)
{
	const char *args[16] = {"--place", place, "--model"};
	char command[600], model[200];
	int n = 4;

	site_init(s);
	snprintf(command, sizeof(command), "%s %s/m.gguf --bytes %dM --layers 4 > %s/made",
		getenv("MKMODEL_BIN"), s->dir, WAITS_BYTES_M, s->dir);
	if (!getenv("MKMODEL_BIN"))
		skip();
	assert_int_equal(system(command), 0);
	snprintf(model, sizeof(model), "m=%s/m.gguf", s->dir);
	args[3] = model;
	while (options && *options)
		args[n++] = *options++;
	site_spawn(s, args, 0);
	site_wait_ready(s);
	snprintf(command, sizeof(command), "%s/m.gguf", s->dir);
	int fd = open(command, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void stop_large(struct site *s, int fd)
{
	char path[100];

	close(fd);
	snprintf(path, sizeof(path), "%s/m.gguf", s->dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/made", s->dir);
	unlink(path);
	site_stop(s);
}

/* Asks, and returns when weightd has the question. change_uuid as for acquire_as. */
static void send_acquire(int sock, struct weights_client *c, uint32_t types, uint8_t change_uuid)
{
	const struct weights_client_device *d = weights_client_get_device(c);
	uint8_t uuid[16], driver_uuid[16];
	Wd__Acquire acquire = WD__ACQUIRE__INIT;
	Wd__List list = WD__LIST__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	memcpy(uuid, d->uuid, sizeof(uuid));
	memcpy(driver_uuid, d->driver_uuid, sizeof(driver_uuid));
	uuid[15] ^= change_uuid;
	acquire.model = (char[]){"m"};
	acquire.handle_types = types;
	acquire.device_uuid = (ProtobufCBinaryData){.data = uuid, .len = 16};
	acquire.driver_uuid = (ProtobufCBinaryData){.data = driver_uuid, .len = 16};
	request.id = 2;
	request.body_case = WD__REQUEST__BODY_ACQUIRE;
	request.acquire = &acquire;
	send_request(sock, &request, NULL);
	request.id = 3;
	request.body_case = WD__REQUEST__BODY_LIST;
	request.list = &list;
	send_request(sock, &request, NULL);
	Wd__Reply *reply = receive(sock);
	assert_int_equal(reply->id, 3);
	wd__reply__free_unpacked(reply, NULL);
}

/* The file is another now; who asks next finds that out, and those who wait learn it too. */
static void lose_while_waiting(uint32_t types, uint8_t change_uuid)
{
	struct weights_client_acquired a;
	struct err e = ERR_NULL;
	struct site s;
	int fd = start_large(&s, "*=pinned", NULL);
	struct weights_client *c = connect_client(&s);
	int waiting[2] = {greeted(&s), greeted(&s)};

	for (unsigned i = 0; i < 2; i++)
		send_acquire(waiting[i], c, types, change_uuid);
	assert_int_equal(futimens(fd, NULL), 0);
	assert_int_equal(acquire_as(c, "m", ALL_HANDLES, 0, &e, &a), -EIO);
	assert_string_equal(e.text, "model m was lost: load it again");
	for (unsigned i = 0; i < 2; i++) {
		expect_error(waiting[i], "model m was lost: load it again");
		close(waiting[i]);
	}
	/* Nothing of it stays, once the loader has seen to it. */
	expect_open(&s, "memfd:", 0);
	weights_client_free(c);
	stop_large(&s, fd);
}

static void test_lost_while_copied(void **state)
{
	(void)state;
	lose_while_waiting(1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_MEMFD, 0);
}

static void test_lost_while_loaded_elsewhere(void **state)
{
	(void)state;
	lose_while_waiting(ALL_HANDLES, 1);
}

static double get_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Until weightd has no memory of it: what was under way is over. */
static double wait_gone(const struct site *s)
{
	double start = get_seconds();

	expect_open(s, "memfd:", 0);
	return get_seconds() - start;
}

/* Does what is loaded or copied for who waits end, half done, when the model is unloaded? */
static bool ends_early(uint32_t types, uint8_t change_uuid)
{
	struct weights_client_acquired a;
	struct err e = ERR_NULL;
	struct site s;
	uint64_t generation;
	int fd = start_large(&s, "*=pinned", NULL);
	struct weights_client *c = connect_client(&s), *other = connect_client(&s);
	int waiting = greeted(&s);

	double start = get_seconds();
	check(acquire_as(other, "m", types, change_uuid, &e, &a), &e, "acquire");
	double n_whole = get_seconds() - start;
	generation = a.generation;
	weights_client_acquired_fini(&a);
	check(weights_client_release(other, generation, &e), &e, "release");
	check(weights_client_unload(c, "m", &e), &e, "unload");
	weights_client_free(other);
	wait_gone(&s);
	check(weights_client_load(c, "m", "p", fd, false, &e, &generation), &e, "load");
	send_acquire(waiting, c, types, change_uuid);
	check(weights_client_unload(c, "m", &e), &e, "unload");
	double n_rest = wait_gone(&s);
	expect_error(waiting, "the model was unloaded while it loaded");
	print_message("%.3f s whole, %.3f s given up\n", n_whole, n_rest);
	close(waiting);
	weights_client_free(c);
	stop_large(&s, fd);
	return n_rest < n_whole / 2;
}

/* Where nobody else wants the CPUs it always does; else one of a few tries shows it. */
static void unload_while_waiting(uint32_t types, uint8_t change_uuid)
{
	enum { N_TRIES = 6 };
	bool is_early = false;

	for (int i = 0; i < N_TRIES && !is_early; i++)
		is_early = ends_early(types, change_uuid);
	assert_true(is_early);
}

static void test_copy_given_up(void **state)
{
	(void)state;
	unload_while_waiting(1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_MEMFD, 0);
}

static void test_load_elsewhere_given_up(void **state)
{
	(void)state;
	unload_while_waiting(ALL_HANDLES, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_lost_while_copied),
		CASE(test_lost_while_loaded_elsewhere),
		CASE(test_copy_given_up),
		CASE(test_load_elsewhere_given_up),
	};

	return site_run_tests(tests, ARRAY_SIZE(tests));
}
