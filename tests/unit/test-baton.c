/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of a device: one at a time and in the order of asking, as long as everybody plays; and who
 * dies, does not hand on, or writes anything into the common memory holds nobody up for long.
 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/baton.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "workerd/baton.h"

#define MS UINT64_C(1000000)

enum { TURN_MS = 4, N_THREADS = 4 };

static int memory_fd;
static struct baton_memory *memory;

static int setup(void **state)
{
	(void)case_setup(state);
	memory_fd = memfd_create("baton", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(memory_fd, BATON_BYTES), 0);
	assert_int_equal(fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	memory = mmap(NULL, BATON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return 0;
}

static int teardown(void **state)
{
	munmap(memory, BATON_BYTES);
	close(memory_fd);
	return case_teardown(state);
}

static struct baton *new_baton(void)
{
	struct err e = ERR_NULL;
	struct baton *b = NULL;

	if (baton_new(fcntl(memory_fd, F_DUPFD_CLOEXEC, 0), TURN_MS * MS, &e, &b))
		fail_msg("%s", e.text);
	return b;
}

static void sleep_ns(uint64_t ns)
{
	const struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	nanosleep(&t, NULL);
}

static void expect_refused(int fd)
{
	struct err e = ERR_NULL;
	struct baton *b = NULL;

	assert_true(fd >= 0);
	assert_int_equal(baton_new(fd, MS, &e, &b), -EPROTO);
	assert_string_not_equal(e.text, "");
	assert_null(b);
	assert_int_equal(close(fd), 0); /* it is still the caller's */
}

static void test_refused(void **state)
{
	int fd = memfd_create("baton", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	(void)state;
	assert_int_equal(ftruncate(fd, BATON_BYTES), 0);
	expect_refused(fd);
	fd = memfd_create("baton", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, BATON_BYTES - 1), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	expect_refused(fd);
	expect_refused(open("/dev/null", O_RDWR | O_CLOEXEC));
}

static void test_none(void **state)
{
	struct baton_counters c;

	(void)state;
	assert_int_equal(baton_begin(NULL, true), 0);
	assert_true(baton_may_go_on(NULL, true));
	baton_end(NULL, MS, true);
	baton_rest(NULL);
	baton_get_counters(NULL, &c);
	assert_int_equal(c.n_turns, 0);
	assert_null(baton_free(NULL));
}

/* One turn as long as nobody else is there; long steps and rest give it back. */
static void test_alone(void **state)
{
	struct baton *b = new_baton();
	struct baton_counters c;

	(void)state;
	for (int i = 0; i < 100; i++) {
		assert_int_equal(baton_begin(b, true), 0);
		assert_true(baton_may_go_on(b, true));
		baton_end(b, TURN_MS * MS, true);
		assert_true(memory->holder != 0);
	}
	baton_get_counters(b, &c);
	assert_int_equal(c.n_turns, 1);
	assert_int_equal(c.n_waits, 0);
	assert_int_equal(baton_begin(b, false), 0);
	assert_int_equal(memory->holder, 0);
	assert_true(baton_is_short(b, TURN_MS * MS));
	assert_false(baton_is_short(b, 5 * TURN_MS * MS));
	(void)baton_begin(b, true);
	assert_true(memory->holder != 0);
	baton_rest(b);
	assert_int_equal(memory->holder, 0);
	(void)baton_begin(b, true);
	baton_free(b);
	assert_int_equal(memory->holder, 0);
}

/* ---- several ---- */

struct player {
	pthread_t thread;
	struct baton *baton;
	uint64_t until_ns;
	uint32_t n_steps;
	uint32_t place; /* in which it came */
};

static _Atomic uint32_t n_computing, n_most_computing, n_came;

static void compute(uint64_t ns)
{
	uint32_t n = atomic_fetch_add(&n_computing, 1) + 1, most = n_most_computing;

	while (n > most && !atomic_compare_exchange_weak(&n_most_computing, &most, n))
		;
	sleep_ns(ns);
	atomic_fetch_sub(&n_computing, 1);
}

static void *play(void *userdata)
{
	struct player *p = userdata;

	while (clock_now_ns() < p->until_ns) {
		uint64_t start_ns;

		(void)baton_begin(p->baton, true);
		start_ns = clock_now_ns();
		compute(MS / 2);
		p->n_steps++;
		baton_end(p->baton, clock_now_ns() - start_ns, true);
	}
	baton_rest(p->baton);
	return NULL;
}

/* Never two at a time, and to each its part. */
static void test_turns(void **state)
{
	struct player players[N_THREADS] = {0};
	uint32_t n_steps = 0, n_least = UINT32_MAX;
	struct baton_counters c;

	(void)state;
	n_computing = n_most_computing = 0;
	for (int i = 0; i < N_THREADS; i++) {
		players[i] = (struct player){
			.baton = new_baton(), .until_ns = clock_now_ns() + 400 * MS};
		assert_int_equal(pthread_create(&players[i].thread, NULL, play, &players[i]), 0);
	}
	for (int i = 0; i < N_THREADS; i++) {
		pthread_join(players[i].thread, NULL);
		n_steps += players[i].n_steps;
		n_least = players[i].n_steps < n_least ? players[i].n_steps : n_least;
		baton_get_counters(players[i].baton, &c);
		/* Several steps in a turn. */
		assert_true(c.n_turns <= players[i].n_steps);
		baton_free(players[i].baton);
	}
	if (n_most_computing != 1)
		fail_msg("%u computed at a time", n_most_computing);
	if (n_least * N_THREADS * 2 < n_steps)
		fail_msg("of %u steps one of %d had %u", n_steps, N_THREADS, n_least);
	assert_int_equal(memory->holder, 0);
}

static void *come(void *userdata)
{
	struct player *p = userdata;

	(void)baton_begin(p->baton, true);
	p->place = atomic_fetch_add(&n_came, 1);
	baton_rest(p->baton);
	return NULL;
}

static void wait_for_waiters(uint32_t n)
{
	for (uint32_t found = 0; found < n; sleep_ns(MS / 10)) {
		found = 0;
		for (uint32_t i = 0; i < BATON_N_PLACES; i++)
			found += memory->places[i].worker != 0;
	}
	sleep_ns(2 * MS); /* its arrival is written a moment later */
}

static void test_order(void **state)
{
	struct player players[N_THREADS] = {0};
	struct baton *b = new_baton();

	(void)state;
	n_came = 0;
	(void)baton_begin(b, true);
	for (uint32_t i = 0; i < N_THREADS; i++) {
		players[i].baton = new_baton();
		assert_int_equal(pthread_create(&players[i].thread, NULL, come, &players[i]), 0);
		wait_for_waiters(i + 1);
	}
	assert_int_equal(n_came, 0);
	baton_rest(b);
	for (uint32_t i = 0; i < N_THREADS; i++) {
		pthread_join(players[i].thread, NULL);
		assert_int_equal(players[i].place, i);
		baton_free(players[i].baton);
	}
	baton_free(b);
}

/* When somebody waits, a turn ends with the step behind which another does not fit. */
static void test_length(void **state)
{
	struct player player = {.baton = new_baton()};
	struct baton *b = new_baton();

	(void)state;
	n_came = 0;
	(void)baton_begin(b, true);
	baton_end(b, MS / 100, true);
	assert_int_equal(pthread_create(&player.thread, NULL, come, &player), 0);
	wait_for_waiters(1);
	/* The turn is half over. */
	sleep_ns(2 * MS);
	assert_int_equal(n_came, 0);
	baton_end(b, TURN_MS * MS, false); /* another is under way */
	assert_false(baton_may_go_on(b, true));
	assert_int_equal(n_came, 0);
	baton_end(b, TURN_MS * MS, true);
	pthread_join(player.thread, NULL);
	assert_int_equal(n_came, 1);
	baton_free(player.baton);
	baton_free(b);
}

/* ---- who does not play ---- */

static pid_t start_child(bool holds)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct baton *b = new_baton();

		(void)baton_begin(b, true);
		if (holds)
			_exit(0); /* without a word */
		for (;;)
			pause();
	}
	return pid;
}

static void test_dead_holder(void **state)
{
	struct baton *b = new_baton();
	struct baton_counters c;

	(void)state;
	assert_int_equal(waitpid(start_child(true), NULL, 0) > 0, 1);
	assert_true(memory->holder != 0);
	uint64_t waited_ns = baton_begin(b, true);
	assert_in_range(waited_ns, BATON_PATIENCE_NS, BATON_PATIENCE_NS + 500 * MS);
	baton_get_counters(b, &c);
	assert_int_equal(c.n_passed, 1);
	baton_rest(b);
	assert_int_equal(baton_begin(b, true), 0);
	baton_free(b);
}

static void test_dead_waiter(void **state)
{
	struct baton *b = new_baton();

	(void)state;
	(void)baton_begin(b, true);
	pid_t pid = start_child(false);
	wait_for_waiters(1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	/* It is its turn, and nobody comes. */
	baton_rest(b);
	assert_true(memory->holder != 0);
	uint64_t waited_ns = baton_begin(b, true);
	assert_in_range(waited_ns, BATON_PATIENCE_NS, BATON_PATIENCE_NS + 500 * MS);
	baton_rest(b);
	/* And it is not asked again. */
	assert_int_equal(memory->holder, 0);
	baton_free(b);
}

/* Who passes others by again and again goes on without. */
static void test_nobody_hands_on(void **state)
{
	struct baton *b = new_baton();

	(void)state;
	for (int i = 0; i < 2; i++) {
		memory->holder = 77;
		assert_true(baton_begin(b, true) >= BATON_PATIENCE_NS);
	}
	memory->holder = 77;
	uint64_t start_ns = clock_now_ns();
	for (int i = 0; i < 100; i++)
		assert_int_equal(baton_begin(b, true), 0);
	assert_true(clock_now_ns() - start_ns < BATON_PATIENCE_NS);
	assert_true(baton_may_go_on(b, true));
	assert_int_equal(memory->holder, 77);
	baton_free(b);
	assert_int_equal(memory->holder, 77);
}

/* Who was passed by itself goes on with a turn of its own, not beside another's. */
static void test_passed_by(void **state)
{
	struct baton *b = new_baton();

	(void)state;
	assert_int_equal(baton_begin(b, true), 0);
	assert_true(baton_may_go_on(b, true));
	memory->holder = 77;
	assert_false(baton_may_go_on(b, true));
	assert_true(baton_would_wait(b));
	memory->holder = 0;
	assert_false(baton_may_go_on(b, true));
	assert_false(baton_would_wait(b));
	assert_int_equal(baton_begin(b, true), 0);
	assert_true(baton_may_go_on(b, true));
	/* Behind a long step, which needs none, a short one asks. */
	assert_int_equal(baton_begin(b, false), 0);
	assert_true(baton_may_go_on(b, false));
	assert_false(baton_may_go_on(b, true));
	baton_free(b);
}

static void *flip(void *userdata)
{
	const _Atomic bool *is_on = userdata;

	/* A new holder before patience is over, and a turn now and then. */
	for (uint32_t i = 78; *is_on; i++) {
		uint32_t victim = 0;
		for (uint32_t k = 0; k < BATON_N_PLACES && !victim; k++)
			victim = memory->places[k].worker;
		memory->holder = i % 16 || !victim ? i : victim;
		syscall(SYS_futex, &memory->holder, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		sleep_ns(20 * MS);
	}
	return NULL;
}

/* However a neighbour makes it wait: soon it computes without it, for about a second. */
static void test_made_to_wait(void **state)
{
	struct baton *b = new_baton();
	_Atomic bool is_on = true;
	pthread_t thread;
	uint64_t start_ns = clock_now_ns(), waited_at_ns = start_ns, free_ns = 0;
	bool has_waited = false;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, flip, &is_on), 0);
	while (free_ns < 900 * MS && clock_now_ns() - start_ns < 10000 * MS) {
		if (baton_begin(b, true)) {
			has_waited = true;
			waited_at_ns = clock_now_ns();
		}
		sleep_ns(3 * MS);
		baton_end(b, 3 * MS, true);
		free_ns = has_waited ? clock_now_ns() - waited_at_ns : 0;
	}
	is_on = false;
	pthread_join(thread, NULL);
	assert_true(free_ns >= 900 * MS);
	baton_free(b);
}

static _Atomic bool is_scribbling;

static void *scribble(void *userdata)
{
	uint32_t *words = userdata, x = 1;

	while (is_scribbling) {
		for (uint32_t i = 0; i < BATON_BYTES / 4; i++) {
			x = x * 1664525 + 1013904223;
			__atomic_store_n(&words[i], x | 1, __ATOMIC_RELAXED);
		}
		sleep_ns(MS);
	}
	return NULL;
}

/* Anything may be written there, at any time: a bounded wait, then it goes on without. */
static void test_scribbles(void **state)
{
	struct baton *b = new_baton();
	pthread_t thread;

	(void)state;
	is_scribbling = true;
	assert_int_equal(pthread_create(&thread, NULL, scribble, memory), 0);
	sleep_ns(5 * MS);
	uint64_t waited_ns = 0;
	for (int i = 0; i < 200; i++) {
		waited_ns += baton_begin(b, true);
		(void)baton_may_go_on(b, true);
		baton_end(b, MS, true);
	}
	is_scribbling = false;
	pthread_join(thread, NULL);
	assert_in_range(waited_ns, 0, 18 * BATON_PATIENCE_NS);
	baton_free(b);
}

#define BATON_CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		BATON_CASE(test_refused),
		BATON_CASE(test_none),
		BATON_CASE(test_alone),
		BATON_CASE(test_turns),
		BATON_CASE(test_order),
		BATON_CASE(test_length),
		BATON_CASE(test_dead_holder),
		BATON_CASE(test_dead_waiter),
		BATON_CASE(test_nobody_hands_on),
		BATON_CASE(test_passed_by),
		BATON_CASE(test_made_to_wait),
		BATON_CASE(test_scribbles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
