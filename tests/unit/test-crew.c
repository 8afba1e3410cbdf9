/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of one call on several threads: each once, begun in order, none behind one that failed. */
#include "workerd/crew.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "proto/util/cleanup.h"
#include "tests/case.h"

enum { N_JOBS = 500 };

struct log {
	atomic_uint n_done[N_JOBS];
	pthread_t thread[N_JOBS];
	uint32_t failing; /* the first job that fails */
	pthread_barrier_t *barrier;
};

static int note(uint32_t i, void *userdata)
{
	struct log *log = userdata;

	if (log->barrier)
		pthread_barrier_wait(log->barrier);
	atomic_fetch_add(&log->n_done[i], 1);
	log->thread[i] = pthread_self();
	return i >= log->failing ? -EIO : 0;
}

static void does_each_once(void **state)
{
	static const uint32_t threads[] = {0, 1, 2, CREW_MAX_THREADS, 100};

	(void)state;
	for (unsigned t = 0; t < ARRAY_SIZE(threads); t++) {
		struct log log = {.failing = N_JOBS};

		crew_run(N_JOBS, threads[t], note, &log);
		for (uint32_t i = 0; i < N_JOBS; i++)
			assert_int_equal(log.n_done[i], 1);
	}
	crew_run(0, CREW_MAX_THREADS, note, NULL);
}

/* One thread is the caller's own. */
static void starts_no_thread_for_one(void **state)
{
	struct log log = {.failing = N_JOBS};

	(void)state;
	crew_run(N_JOBS, 1, note, &log);
	for (uint32_t i = 0; i < N_JOBS; i++)
		assert_true(pthread_equal(log.thread[i], pthread_self()));
	crew_run(1, CREW_MAX_THREADS, note, &log);
	assert_true(pthread_equal(log.thread[0], pthread_self()));
}

/* As many at a time as were asked for: one fewer would wait for ever. */
static void works_side_by_side(void **state)
{
	pthread_barrier_t barrier;
	struct log log = {.failing = N_JOBS, .barrier = &barrier};

	(void)state;
	assert_int_equal(pthread_barrier_init(&barrier, NULL, CREW_MAX_THREADS), 0);
	crew_run(CREW_MAX_THREADS, CREW_MAX_THREADS, note, &log);
	pthread_barrier_destroy(&barrier);
	for (uint32_t i = 0; i < CREW_MAX_THREADS; i++)
		for (uint32_t k = 0; k < i; k++)
			assert_false(pthread_equal(log.thread[i], log.thread[k]));
}

/* Everything before the first failure is done; each thread goes at most one job beyond it. */
static void ends_with_a_failure(void **state)
{
	static const uint32_t threads[] = {1, 2, CREW_MAX_THREADS};

	(void)state;
	for (unsigned t = 0; t < ARRAY_SIZE(threads); t++) {
		struct log log = {.failing = 100};

		crew_run(N_JOBS, threads[t], note, &log);
		for (uint32_t i = 0; i <= 100; i++)
			assert_int_equal(log.n_done[i], 1);
		for (uint32_t i = 100 + threads[t]; i < N_JOBS; i++)
			assert_int_equal(log.n_done[i], 0);
	}
}

static void counts_cores(void **state)
{
	(void)state;
	assert_in_range(crew_count_cores(CREW_MAX_THREADS), 1, CREW_MAX_THREADS);
	assert_int_equal(crew_count_cores(1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(does_each_once),
		CASE(starts_no_thread_for_one),
		CASE(works_side_by_side),
		CASE(ends_with_a_failure),
		CASE(counts_cores),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
