/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes at weightd: what it takes for one, who sees and has it, what it costs, when it is gone.
 * Their memory here is that of the weights: weightd never looks into it. */
#include "tests/e2e/listen-site.h"

#include <sys/mman.h>

#include "proto/weights-prefix.h"

enum { N_TOKENS = 64, MEMORY_BYTES = 1 << 20 };

#define MIB (1024ull * 1024)

static const uint8_t layout[] = {1, 2, 3};

/* A worker with a lease. */
struct user {
	struct weights_client *c;
	struct weights_client_acquired a;
};

static void reserve(struct user *u, uint64_t n_bytes)
{
	struct err e = ERR_NULL;
	uint64_t n_got = 0;

	check(weights_client_reserve(u->c, weights_client_get_device(u->c)->uuid, n_bytes, n_bytes,
		      false, &e, &n_got),
		&e, "reserve");
}

static struct user user_new(const struct site *s)
{
	struct user u = {.c = connect_client(s)};

	u.a = acquire(u.c, "atlas");
	return u;
}

static void user_free(struct user *u)
{
	weights_client_acquired_fini(&u->a);
	weights_client_free(u->c);
}

/* An opaque descriptor of the driver, of at least MEMORY_BYTES. */
static int memory_of(const struct user *u)
{
	for (uint32_t i = 0; i < u->a.n_allocs; i++)
		if (u->a.allocs[i].handle_type == WEIGHTS_CLIENT_OPAQUE_FD &&
			u->a.allocs[i].n_bytes >= MEMORY_BYTES)
			return u->a.allocs[i].fd;
	fail_msg("no allocation to take for a prefix");
	return -1;
}

static int make_tokens(uint32_t first, uint32_t n)
{
	uint32_t tokens[N_TOKENS];
	struct err e = ERR_NULL;
	int fd = -1;

	assert_true(n <= N_TOKENS);
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = first + i;
	check(weights_prefix_make_tokens(tokens, n, &e, &fd), &e, "tokens");
	return fd;
}

static struct weights_prefix_publish params_of(const struct user *u)
{
	const struct weights_client_device *d = weights_client_get_device(u->c);

	return (struct weights_prefix_publish){.model = "atlas",
		.generation = u->a.generation,
		.device_uuid = d->uuid,
		.driver_uuid = d->driver_uuid,
		.name = "rules",
		.n_tokens = N_TOKENS,
		.layout = layout,
		.n_layout_bytes = sizeof(layout),
		.memory = {.n_bytes = MEMORY_BYTES, .buffer_bytes = MEMORY_BYTES},
		.tokens_fd = -1,
		.memory_fd = memory_of(u)};
}

static int publish_with(struct user *u, struct weights_prefix_publish *p, uint32_t first,
	struct err *e, uint64_t *ret_id, bool *ret_existed)
{
	int fd = make_tokens(first, p->n_tokens <= N_TOKENS ? p->n_tokens : N_TOKENS);

	p->tokens_fd = fd;
	int r = weights_prefix_publish(u->c, p, e, ret_id, ret_existed);
	close(fd);
	return r;
}

/* Of tokens first and on; they differ by it. */
static uint64_t publish(struct user *u, uint32_t first)
{
	struct weights_prefix_publish p = params_of(u);
	struct err e = ERR_NULL;
	bool existed = true;
	uint64_t id = 0;

	reserve(u, MEMORY_BYTES);
	check(publish_with(u, &p, first, &e, &id, &existed), &e, "publish");
	assert_false(existed);
	return id;
}

static uint32_t list(struct weights_client *c, const char *model, struct weights_prefix *ret_first)
{
	struct weights_prefix *rows = NULL;
	struct err e = ERR_NULL;
	uint32_t n = 0;

	check(weights_prefix_list(c, model, 0, NULL, NULL, 0, &e, &rows, &n), &e, "list");
	if (n && ret_first)
		*ret_first = rows[0];
	free(rows);
	return n;
}

static uint32_t list_for(struct user *u, const uint8_t *its_layout)
{
	struct weights_prefix *rows = NULL;
	struct err e = ERR_NULL;
	uint32_t n = 0;

	check(weights_prefix_list(u->c, "atlas", u->a.generation,
		      weights_client_get_device(u->c)->uuid, its_layout, sizeof(layout), &e, &rows,
		      &n),
		&e, "list");
	free(rows);
	return n;
}

static uint32_t count_leases(struct weights_client *c)
{
	struct weights_prefix row = {0};

	assert_int_equal(list(c, "", &row), 1);
	return row.n_leases;
}

static struct weights_client_account get_account(struct weights_client *c)
{
	struct weights_client_status s = get_status(c);
	struct weights_client_account a = s.devices[0].account;

	assert_true(s.devices[0].has_account);
	weights_client_status_fini(&s);
	return a;
}

/* ---- what is a prefix ---- */

static void expect_refused(
	struct user *u, struct weights_prefix_publish p, int code, const char *text)
{
	struct err e = ERR_NULL;
	bool existed;
	uint64_t id;
	int r = publish_with(u, &p, 0, &e, &id, &existed);

	if (r != code || !strstr(e.text, text))
		fail_msg("expected %d \"%s\", found %d \"%s\"", code, text, r, e.text);
}

static void test_what_is_refused(void **state)
{
	static const uint8_t nobodys[16] = {1, 2, 3}, long_layout[65];
	char name[66];
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user u = user_new(&s);
	const struct weights_prefix_publish good = params_of(&u);
	struct weights_prefix_publish p = good;

	expect_refused(&u, good, -ENOSPC, "to be reserved before, found a reservation of 0");
	reserve(&u, MEMORY_BYTES - 1);
	expect_refused(&u, good, -ENOSPC, "found a reservation of 1048575");
	reserve(&u, MEMORY_BYTES);
	p.model = "other";
	expect_refused(&u, p, -ENOENT, "no lease on generation");
	p = good;
	p.generation += 7;
	expect_refused(&u, p, -ENOENT, "no lease on generation");
	p = good;
	p.device_uuid = nobodys;
	expect_refused(&u, p, -ENOTSUP, "is not weightd's");
	p = good;
	p.n_tokens = 0;
	expect_refused(&u, p, -EINVAL, "tokens, found 0");
	p.n_tokens = (1 << 20) + 1;
	expect_refused(&u, p, -EINVAL, "expected 1 to 1048576 tokens");
	p.n_tokens = N_TOKENS + 1; /* of which N_TOKENS are there */
	expect_refused(&u, p, -EINVAL, "tokens: expected 260 bytes, found 256");
	p = good;
	p.n_layout_bytes = 0;
	expect_refused(&u, p, -EINVAL, "layout: expected 1 to 64 bytes, found 0");
	p.layout = long_layout;
	p.n_layout_bytes = 65;
	expect_refused(&u, p, -EINVAL, "layout");
	memset(name, 'n', 65);
	name[65] = '\0';
	p = good;
	p.name = name;
	expect_refused(&u, p, -EINVAL, "name: expected at most 64 bytes, found 65");
	p = good;
	p.memory.buffer_bytes++;
	expect_refused(&u, p, -EINVAL, "expected a buffer within it");
	p = good;
	p.memory.memory_type_index = 32;
	expect_refused(&u, p, -EINVAL, "type below 32");
	assert_int_equal(list(u.c, "", NULL), 0);
	assert_int_equal(get_account(u.c).reserved_bytes, MEMORY_BYTES);
	user_free(&u);
	site_stop(&s);
}

/* Descriptors that are not what they should be. */
static void test_descriptors(void **state)
{
	struct site s;
	int pair[2];

	(void)state;
	site_start_model(&s);
	struct user u = user_new(&s);
	struct weights_prefix_publish p = params_of(&u);
	struct err e = ERR_NULL;
	bool existed;
	uint64_t id;
	unsigned n_open = count_open(&s, "");

	reserve(&u, MEMORY_BYTES);
	/* Whoever can still write the tokens could make others compare with what was not hashed. */
	p.tokens_fd = memfd_create("tokens", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(p.tokens_fd, N_TOKENS * 4), 0);
	assert_int_equal(weights_prefix_publish(u.c, &p, &e, &id, &existed), -EINVAL);
	assert_int_equal(fcntl(p.tokens_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(weights_prefix_publish(u.c, &p, &e, &id, &existed), -EINVAL);
	assert_non_null(strstr(e.text, "sealed against writing"));
	close(p.tokens_fd);
	p.tokens_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(weights_prefix_publish(u.c, &p, &e, &id, &existed), -EINVAL);
	close(p.tokens_fd);
	p.tokens_fd = make_tokens(0, N_TOKENS);
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	p.memory_fd = pair[0];
	assert_int_equal(weights_prefix_publish(u.c, &p, &e, &id, &existed), -EINVAL);
	assert_non_null(strstr(e.text, "of the device's driver"));
	close(pair[0]);
	close(pair[1]);
	close(p.tokens_fd);
	expect_open(&s, "", n_open); /* none is kept */
	/* Too few. */
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Publish m = WD__PUBLISH__INIT;
	Wd__Allocation memory = WD__ALLOCATION__INIT;
	struct fdlist fds = {.n = 1, .fds = {memory_of(&u)}};
	int sock = greeted(&s);
	memory.n_bytes = memory.buffer_bytes = MEMORY_BYTES;
	m.memory = &memory;
	m.model = (char *)"atlas";
	m.n_tokens = N_TOKENS;
	m.layout = (ProtobufCBinaryData){sizeof(layout), (uint8_t *)layout};
	m.device_uuid = (ProtobufCBinaryData){16, (uint8_t *)weights_client_get_device(u.c)->uuid};
	m.driver_uuid = m.device_uuid;
	request.id = 2;
	request.n_fds = 1;
	request.body_case = WD__REQUEST__BODY_PUBLISH;
	request.publish = &m;
	send_request(sock, &request, &fds);
	expect_error(sock, "expected 2 descriptors, found 1");
	m.device_uuid.len = 15;
	send_request(sock, &request, &fds);
	expect_error(sock, "expected uuids of 16 bytes");
	m.device_uuid.len = 16;
	m.memory = NULL;
	request.n_fds = 0;
	send_request(sock, &request, NULL);
	expect_error(sock, "a memory, found 16, 16 and none");
	close(sock);
	user_free(&u);
	site_stop(&s);
}

/* ---- having ---- */

/* Two that publish the same have one; what it costs comes out of the first one's reservation. */
static void test_same_is_one(void **state)
{
	struct weights_prefix row = {0};
	struct err e = ERR_NULL;
	bool existed = false;
	uint64_t again = 0;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user a = user_new(&s), b = user_new(&s);
	uint64_t n_weights = get_account(a.c).weights_bytes;
	uint64_t id = publish(&a, 0);
	assert_int_equal(get_account(a.c).reserved_bytes, 0);
	assert_int_equal(get_account(a.c).weights_bytes, n_weights + MEMORY_BYTES);
	struct weights_prefix_publish p = params_of(&b);
	unsigned n_open = count_open(&s, "");
	p.name = "by another name";
	check(publish_with(&b, &p, 0, &e, &again, &existed), &e, "again");
	assert_true(existed);
	assert_int_equal(again, id);
	expect_open(&s, "", n_open);
	assert_int_equal(get_account(a.c).weights_bytes, n_weights + MEMORY_BYTES);
	assert_int_equal(list(a.c, "atlas", &row), 1);
	assert_string_equal(row.name, "rules");
	assert_int_equal(row.id, id);
	assert_int_equal(row.n_leases, 2);
	assert_int_equal(row.pid, getpid());
	assert_int_equal(row.n_tokens, N_TOKENS);
	assert_int_equal(row.n_bytes, MEMORY_BYTES);
	assert_false(row.is_shared);
	uint32_t head[WEIGHTS_PREFIX_HEAD_TOKENS];
	for (uint32_t i = 0; i < WEIGHTS_PREFIX_HEAD_TOKENS; i++)
		head[i] = i;
	assert_int_equal(row.head_hash, weights_prefix_hash(head, WEIGHTS_PREFIX_HEAD_TOKENS));
	/* Other tokens are another. */
	uint64_t other = publish(&b, 1);
	assert_int_not_equal(other, id);
	assert_int_equal(list(a.c, "", NULL), 2);
	assert_int_equal(list(a.c, "nobody", NULL), 0);
	assert_int_equal(list_for(&a, layout), 2);
	assert_int_equal(list_for(&a, (const uint8_t[]){3, 2, 1}), 0);
	user_free(&a);
	user_free(&b);
	site_stop(&s);
}

static void test_take_and_drop(void **state)
{
	struct weights_prefix_taken t = {0};
	struct stat mine, its;
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user a = user_new(&s), b = user_new(&s);
	uint64_t id = publish(&a, 5);
	struct weights_client *stranger = connect_client(&s);
	assert_int_equal(weights_prefix_take(stranger, id, &e, &t), -ENOENT); /* without a lease */
	assert_int_equal(weights_prefix_drop(stranger, id, &e), -ENOENT);
	assert_int_equal(weights_prefix_take(b.c, id + 1, &e, &t), -ENOENT);
	for (int i = 0; i < 2; i++) { /* twice is once */
		check(weights_prefix_take(b.c, id, &e, &t), &e, "take");
		assert_int_equal(t.prefix.n_tokens, N_TOKENS);
		assert_int_equal(t.memory.n_bytes, MEMORY_BYTES);
		assert_int_equal(t.memory.buffer_bytes, MEMORY_BYTES);
		for (uint32_t k = 0; k < N_TOKENS; k++)
			assert_int_equal(t.tokens[k], 5 + k);
		assert_int_equal(fstat(t.memory_fd, &its), 0);
		assert_int_equal(fstat(memory_of(&a), &mine), 0);
		assert_true(mine.st_ino == its.st_ino && mine.st_dev == its.st_dev);
		weights_prefix_taken_fini(&t);
		assert_int_equal(count_leases(a.c), 2);
	}
	check(weights_prefix_drop(b.c, id, &e), &e, "drop");
	assert_int_equal(weights_prefix_drop(b.c, id, &e), -ENOENT);
	assert_int_equal(count_leases(a.c), 1);
	weights_client_free(stranger);
	user_free(&a);
	user_free(&b);
	site_stop(&s);
}

/* A process that has the prefix; it closes its connection when told so, and lives on. */
static struct holder taker_start(const struct site *s, uint64_t id)
{
	struct holder h;
	int down[2], up[2];
	char byte;

	assert_int_equal(pipe2(down, O_CLOEXEC), 0);
	assert_int_equal(pipe2(up, O_CLOEXEC), 0);
	h.pid = fork();
	assert_true(h.pid >= 0);
	if (h.pid == 0) {
		struct weights_prefix_taken t = {0};
		struct err e = ERR_NULL;
		struct user u = user_new(s);
		if (weights_prefix_take(u.c, id, &e, &t) || write(up[1], "x", 1) != 1 ||
			read(down[0], &byte, 1) != 1)
			_exit(1);
		weights_client_free(u.c);
		pause();
		_exit(0);
	}
	close(up[1]);
	assert_int_equal(read(up[0], &byte, 1), 1);
	close(down[0]);
	close(up[0]);
	h.tell = down[1];
	return h;
}

static void wait_leases(struct weights_client *c, uint32_t n)
{
	for (int i = 0; i < 2000 && count_leases(c) != n; i++)
		usleep(5000);
	assert_int_equal(count_leases(c), n);
}

/* What a process may have imported it has until it ends, whatever became of its connection. */
static void test_holders(void **state)
{
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user a = user_new(&s);
	uint64_t n_weights = get_account(a.c).weights_bytes;
	uint64_t id = publish(&a, 0);
	struct holder killed = taker_start(&s, id), closed = taker_start(&s, id);
	assert_int_equal(count_leases(a.c), 3);
	holder_kill(&killed);
	wait_leases(a.c, 2);
	holder_close(&closed);
	usleep(100000);
	assert_int_equal(count_leases(a.c), 2);
	/* Removed while it is held: nobody gets it, and it counts until the last one is gone. */
	check(weights_prefix_remove(a.c, id, &e), &e, "remove");
	assert_int_equal(weights_prefix_remove(a.c, id, &e), -ENOENT);
	assert_int_equal(list(a.c, "", NULL), 0);
	struct weights_prefix_taken t = {0};
	assert_int_equal(weights_prefix_take(a.c, id, &e, &t), -ENOENT);
	check(weights_prefix_drop(a.c, id, &e), &e, "drop");
	assert_int_equal(get_account(a.c).weights_bytes, n_weights + MEMORY_BYTES);
	holder_kill(&closed);
	for (int i = 0; i < 2000 && get_account(a.c).weights_bytes != n_weights; i++)
		usleep(5000);
	assert_int_equal(get_account(a.c).weights_bytes, n_weights);
	/* The same again is another one. */
	assert_int_not_equal(publish(&a, 0), id);
	user_free(&a);
	site_stop(&s);
}

static void on_event(const struct weights_client_event *event, void *userdata)
{
	unsigned *n = userdata;

	n[0] += event->kind == WEIGHTS_CLIENT_PREFIXES;
	n[1] += event->kind == WEIGHTS_CLIENT_PRESSURE;
}

/* Who has the generation hears of each change. */
static void test_told(void **state)
{
	unsigned n[2] = {0};
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user a = user_new(&s), b = user_new(&s);
	weights_client_set_event_fn(b.c, on_event, n);
	uint64_t id = publish(&a, 0);
	assert_int_equal(list(b.c, "", NULL), 1); /* events come before the answer */
	assert_int_equal(n[0], 1);
	check(weights_prefix_remove(a.c, id, &e), &e, "remove");
	assert_int_equal(list(b.c, "", NULL), 0);
	assert_int_equal(n[0], 2);
	user_free(&a);
	user_free(&b);
	site_stop(&s);
}

/* Whoever needs room gets that of what nobody has, the one used longest ago first; what somebody
 * has stays. */
static void test_makes_room(void **state)
{
	struct weights_prefix row = {0};
	char model[4200];
	struct err e = ERR_NULL;
	uint64_t ids[3], n_got = 0;
	struct site s;

	(void)state;
	snprintf(model, sizeof(model), "atlas=%s", model_path());
	site_start(&s, (const char *const[]){"--model", model, "--device-budget", "64M", NULL}, 0);
	struct user a = user_new(&s);
	for (uint32_t i = 0; i < 3; i++)
		ids[i] = publish(&a, i);
	/* Dropped in another order than published; the last one is kept. */
	check(weights_prefix_drop(a.c, ids[1], &e), &e, "drop");
	check(weights_prefix_drop(a.c, ids[0], &e), &e, "drop");
	uint64_t n_free = 64 * MIB - get_account(a.c).weights_bytes;
	reserve(&a, n_free);
	assert_int_equal(list(a.c, "", NULL), 3);
	reserve(&a, n_free + 1);
	assert_int_equal(list(a.c, "", &row), 2);
	assert_int_equal(weights_prefix_remove(a.c, ids[1], &e), -ENOENT);
	reserve(&a, n_free + 2 * MEMORY_BYTES);
	assert_int_equal(list(a.c, "", &row), 1);
	assert_int_equal(row.id, ids[2]);
	assert_int_equal(weights_client_reserve(a.c, weights_client_get_device(a.c)->uuid,
				 n_free + 2 * MEMORY_BYTES + 1, n_free + 2 * MEMORY_BYTES + 1,
				 false, &e, &n_got),
		-ENOMEM);
	assert_int_equal(list(a.c, "", NULL), 1);
	user_free(&a);
	site_stop(&s);
}

/* While somebody waits for room: a prefix is its publisher's before it is anybody's to evict. */
static void test_published_while_others_wait(void **state)
{
	struct err e = ERR_NULL;
	char model[4200];
	struct site s;

	(void)state;
	snprintf(model, sizeof(model), "atlas=%s", model_path());
	site_start(&s, (const char *const[]){"--model", model, "--device-budget", "64M", NULL}, 0);
	struct user a = user_new(&s), b = user_new(&s);
	reserve(&a, MEMORY_BYTES);
	reserve(&b, 64 * MIB - MEMORY_BYTES - get_account(a.c).weights_bytes);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) { /* it waits for a and b to park, which they do not */
		struct weights_client *c = connect_client(&s);
		uint64_t n_got = 0;
		_exit(weights_client_reserve(c, weights_client_get_device(c)->uuid, 8 * MIB,
			      8 * MIB, false, &e, &n_got) == -ENOMEM
				? 0
				: 1);
	}
	for (int i = 0; i < 2000 && get_account(a.c).n_waiting == 0; i++)
		usleep(1000);
	assert_int_equal(get_account(a.c).n_waiting, 1);
	struct weights_prefix_publish p = params_of(&a);
	bool existed = true;
	uint64_t id = 0;
	check(publish_with(&a, &p, 0, &e, &id, &existed), &e, "publish");
	assert_int_equal(get_account(a.c).n_waiting, 1);
	assert_int_equal(count_leases(a.c), 1);
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	user_free(&a);
	user_free(&b);
	site_stop(&s);
}

static void test_gone_with_its_generation(void **state)
{
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct user a = user_new(&s);
	struct weights_client *c = connect_client(&s);
	uint64_t id = publish(&a, 0);
	check(weights_prefix_drop(a.c, id, &e), &e, "drop");
	check(weights_client_unload(a.c, "atlas", &e), &e, "unload");
	assert_int_equal(list(c, "", NULL), 1); /* it drains */
	check(weights_client_release(a.c, a.a.generation, &e), &e, "release");
	user_free(&a);
	for (int i = 0; i < 2000 && list(c, "", NULL); i++)
		usleep(5000);
	assert_int_equal(list(c, "", NULL), 0);
	for (int i = 0; i < 2000 && get_account(c).weights_bytes; i++)
		usleep(5000);
	assert_int_equal(get_account(c).weights_bytes, 0);
	weights_client_free(c);
	site_stop(&s);
}

/* ---- sockets ---- */

static void test_sockets(void **state)
{
	struct weights_prefix_taken t = {0};
	struct weights_prefix row = {0};
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	listen_start(&s, (const char *const[]){"a,models=atlas", "b,models=atlas", NULL});
	struct site at_a = listen_at(&s, "a"), at_b = listen_at(&s, "b");
	struct user a = user_new(&at_a), a2 = user_new(&at_a), b = user_new(&at_b),
		    m = user_new(&s);
	uint64_t own = publish(&a, 0);
	assert_int_equal(list(a2.c, "", NULL), 1);
	assert_int_equal(list(b.c, "", NULL), 0);
	assert_int_equal(list_for(&b, layout), 0);
	assert_int_equal(weights_prefix_take(b.c, own, &e, &t), -ENOENT);
	assert_int_equal(weights_prefix_remove(b.c, own, &e), -ENOENT);
	check(weights_prefix_take(a2.c, own, &e, &t), &e, "take");
	weights_prefix_taken_fini(&t);
	/* The same of another tenant is another one. */
	uint64_t others = publish(&b, 0);
	assert_int_not_equal(others, own);
	/* Nor does a refusal tell of it. */
	char text[64];
	uint64_t n_got = 0;
	assert_int_equal(weights_client_reserve(b.c, weights_client_get_device(b.c)->uuid,
				 1ull << 60, 1ull << 60, false, &e, &n_got),
		-ENOMEM);
	snprintf(text, sizeof(text), "a shared prefix of atlas (id %llu) %d",
		(unsigned long long)others, MEMORY_BYTES);
	assert_non_null(strstr(e.text, text));
	snprintf(text, sizeof(text), "%llu)", (unsigned long long)own);
	assert_null(strstr(e.text, text));
	struct weights_prefix_publish p = params_of(&a);
	p.is_shared = true;
	expect_refused(&a, p, -EPERM, "without control, is not allowed");
	/* One of a socket with control may be for all; they see it, and cannot remove it. */
	p = params_of(&m);
	p.is_shared = true;
	reserve(&m, MEMORY_BYTES);
	uint64_t shared = 0;
	bool existed = true;
	check(publish_with(&m, &p, 0, &e, &shared, &existed), &e, "shared");
	assert_false(existed);
	assert_int_equal(list(b.c, "", &row), 2);
	assert_true(row.id == shared && row.is_shared);
	check(weights_prefix_take(b.c, shared, &e, &t), &e, "take");
	weights_prefix_taken_fini(&t);
	assert_int_equal(weights_prefix_remove(b.c, shared, &e), -ENOENT);
	check(weights_prefix_remove(m.c, shared, &e), &e, "remove");
	assert_int_equal(list(b.c, "", NULL), 1);
	for (int i = 0; i < 4; i++)
		user_free((struct user *[]){&a, &a2, &b, &m}[i]);
	for (int i = 0; i < 2; i++)
		unlink(i ? at_a.socket : at_b.socket);
	site_stop(&s);
}

/* A socket's bytes: its prefixes count, also when their publisher is gone. */
static void test_quota(void **state)
{
	struct err e = ERR_NULL;
	uint64_t n_got = 0;
	struct site s;

	(void)state;
	listen_start(&s, (const char *const[]){"a,bytes=8M", NULL});
	struct site at_a = listen_at(&s, "a");
	struct user a = user_new(&at_a), b = user_new(&at_a);
	uint64_t n_left = 8 * MIB;
	for (uint32_t i = 0; i < a.a.n_allocs; i++)
		n_left -= a.a.allocs[i].n_bytes;
	(void)publish(&a, 0);
	const uint8_t *uuid = weights_client_get_device(b.c)->uuid;
	assert_int_equal(weights_client_reserve(b.c, uuid, n_left - MEMORY_BYTES + 1,
				 n_left - MEMORY_BYTES + 1, false, &e, &n_got),
		-EDQUOT);
	user_free(&a);
	assert_int_equal(weights_client_reserve(b.c, uuid, n_left - MEMORY_BYTES + 1,
				 n_left - MEMORY_BYTES + 1, false, &e, &n_got),
		-EDQUOT);
	check(weights_client_reserve(
		      b.c, uuid, n_left - MEMORY_BYTES, n_left - MEMORY_BYTES, false, &e, &n_got),
		&e, "reserve");
	user_free(&b);
	unlink(at_a.socket);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_what_is_refused),
		CASE(test_descriptors),
		CASE(test_same_is_one),
		CASE(test_take_and_drop),
		CASE(test_holders),
		CASE(test_told),
		CASE(test_makes_room),
		CASE(test_published_while_others_wait),
		CASE(test_gone_with_its_generation),
		CASE(test_sockets),
		CASE(test_quota),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
