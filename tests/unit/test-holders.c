/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of one process that ends them while it lives: watched once. */
#include "tests/case.h"

#include <event2/event.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "weightd/holders.h"
#include "weightd/peer.h"
#include "weightd/process.h"

static void ignore_exit(uint64_t id, void *userdata)
{
	(void)id;
	(void)userdata;
}

/* A connection of this process that comes and goes. pid: what is known of it. */
static uint64_t add(struct holders *h, uint64_t id, bool has_pid, bool has_process)
{
	struct peer *p = NULL;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(peer_new(pair[0], id, &p), 0);
	if (!has_pid)
		p->pid = 0;
	if (!has_process)
		p->process = 0;
	uint64_t holder = holders_add(h, p);
	peer_free(p);
	close(pair[1]);
	return holder;
}

static bool has_pidfs(void)
{
	struct peer *p = NULL;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(peer_new(pair[0], 1, &p), 0);
	bool has = p->process != 0;
	peer_free(p);
	close(pair[1]);
	return has;
}

static void test_one_process(void **state)
{
	struct event_base *base = event_base_new();
	struct holders *h = NULL;

	(void)state;
	assert_int_equal(holders_new(base, ignore_exit, NULL, &h), 0);
	assert_int_equal(add(h, 1, true, false), 1);
	assert_int_equal(add(h, 2, true, false), 1);
	if (has_pidfs()) {
		/* Told apart by its pidfd alone. */
		assert_int_equal(add(h, 3, false, true), 3);
		assert_int_equal(add(h, 4, false, true), 3);
		assert_int_equal(add(h, 5, true, true), 3);
	}
	holders_free(h);
	event_base_free(base);
}

/* A connection that goes on after its lease was taken: it is found again, and so is its process. */
static void test_connection_goes_on(void **state)
{
	struct event_base *base = event_base_new();
	struct holders *h = NULL;
	struct peer *p = NULL;
	int pair[2];

	(void)state;
	assert_int_equal(holders_new(base, ignore_exit, NULL, &h), 0);
	for (uint64_t id = 1; id <= 2; id++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		assert_int_equal(peer_new(pair[0], id, &p), 0);
		if (id == 2) /* nothing tells of it but its connection */
			p->process = 0, p->pid = 0;
		assert_int_equal(holders_find(h, p), 0);
		assert_int_equal(holders_add(h, p), id);
		assert_true(p->pidfd >= 0);
		assert_int_equal(holders_find(h, p), id);
		assert_int_equal(holders_add(h, p), id);
		assert_int_equal(holders_find_process(h, id)->pid, p->pid);
		assert_int_equal(holders_find_process(h, id)->uid, getuid());
		assert_null(holders_find_process(h, 7));
		peer_free(p);
		close(pair[1]);
	}
	holders_free(h);
	event_base_free(base);
}

/* Nothing tells them apart: there is a most. */
static void test_unknown(void **state)
{
	enum { N = 300 };
	struct event_base *base = event_base_new();
	struct holders *h = NULL;
	uint64_t n = 0;

	(void)state;
	assert_int_equal(holders_new(base, ignore_exit, NULL, &h), 0);
	for (uint64_t i = 1; i <= N; i++)
		n += add(h, i, false, false) != 0;
	assert_in_range(n, 1, N - 1);
	assert_int_equal(add(h, N + 1, true, false), N + 1);
	holders_free(h);
	event_base_free(base);
}

static void test_by_pid(void **state)
{
	struct event_base *base = event_base_new();
	uint64_t ticks = process_get_start_ticks(getpid());
	struct holders *h = NULL;

	(void)state;
	assert_int_equal(holders_new(base, ignore_exit, NULL, &h), 0);
	/* A process that has the pid by now is another. */
	assert_int_equal(holders_add_pid(h, 1, getpid(), 0, ticks + 1), 0);
	assert_int_equal(holders_add_pid(h, 1, getpid(), 0, 0), 0);
	assert_int_equal(holders_add_pid(h, 1, 0, 0, ticks), 0);
	assert_int_equal(holders_add_pid(h, 1, getpid(), 0, ticks), 1);
	/* Told of again, it is the same one; by another socket it is not. */
	assert_int_equal(holders_add_pid(h, 4, getpid(), 0, ticks), 1);
	assert_int_equal(
		holders_add_pid(h, peer_make_id(1, 4), getpid(), 0, ticks), peer_make_id(1, 4));
	assert_true(holders_find_process(h, 1)->start_ticks == ticks);
	/* And a connection of it is known by it. */
	assert_int_equal(add(h, 2, true, has_pidfs()), 1);
	holders_free(h);
	event_base_free(base);
}

static uint64_t exited;

static void note_exit(uint64_t id, void *userdata)
{
	(void)userdata;
	exited = id;
}

static void test_by_pid_until_it_exits(void **state)
{
	struct event_base *base = event_base_new();
	struct holders *h = NULL;
	pid_t pid = fork();

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) {
		pause();
		_exit(0);
	}
	assert_int_equal(holders_new(base, note_exit, NULL, &h), 0);
	assert_int_equal(holders_add_pid(h, 5, pid, 0, process_get_start_ticks(pid)), 5);
	assert_int_equal(event_base_loop(base, EVLOOP_NONBLOCK), 0);
	assert_int_equal(exited, 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_true(event_base_loop(base, EVLOOP_ONCE) >= 0);
	assert_int_equal(exited, 5);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	holders_free(h);
	event_base_free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_one_process),
		CASE(test_connection_goes_on),
		CASE(test_unknown),
		CASE(test_by_pid),
		CASE(test_by_pid_until_it_exits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
