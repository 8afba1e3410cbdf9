/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <poll.h>
#include <pthread.h>

#include "proto/util/clock.h"
#include "workerd/queue.h"

struct item {
	struct queue_node node;
	uint32_t producer;
	uint32_t number;
};

static bool is_readable(const struct queue *q)
{
	struct pollfd p = {.fd = queue_get_fd(q), .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void test_order_and_fd(void **state)
{
	struct item items[3] = {{.number = 0}, {.number = 1}, {.number = 2}};
	struct queue *q;

	(void)state;
	assert_int_equal(queue_new(&q), 0);
	assert_null(queue_take(q));
	assert_false(is_readable(q));
	for (int i = 0; i < 3; i++)
		queue_push(q, &items[i].node);
	for (int i = 0; i < 3; i++) {
		assert_true(is_readable(q));
		assert_ptr_equal(queue_take(q), &items[i].node);
	}
	assert_false(is_readable(q));
	assert_null(queue_take(q));
	/* A node may come again. */
	queue_push(q, &items[0].node);
	assert_true(is_readable(q));
	assert_ptr_equal(queue_take(q), &items[0].node);
	assert_false(is_readable(q));
	queue_free(q);
}

enum { N_PRODUCERS = 4, N_ITEMS = 5000 };

struct producer {
	struct queue *q;
	struct item items[N_ITEMS];
	pthread_t thread;
};

static void *produce(void *userdata)
{
	struct producer *p = userdata;

	for (uint32_t i = 0; i < N_ITEMS; i++)
		queue_push(p->q, &p->items[i].node);
	return NULL;
}

/* Each producer's nodes arrive once and in its order, and a sleeping taker is woken for each. */
static void test_many_producers(void **state)
{
	static struct producer producers[N_PRODUCERS];
	uint32_t next[N_PRODUCERS] = {0};
	struct queue *q;

	(void)state;
	assert_int_equal(queue_new(&q), 0);
	for (uint32_t k = 0; k < N_PRODUCERS; k++) {
		producers[k].q = q;
		for (uint32_t i = 0; i < N_ITEMS; i++)
			producers[k].items[i] = (struct item){.producer = k, .number = i};
	}
	for (uint32_t k = 0; k < N_PRODUCERS; k++)
		assert_int_equal(
			pthread_create(&producers[k].thread, NULL, produce, &producers[k]), 0);
	for (uint32_t n = 0; n < N_PRODUCERS * N_ITEMS; n++) {
		queue_wait(q);
		struct item *item = (struct item *)queue_take(q);
		assert_non_null(item);
		assert_int_equal(item->number, next[item->producer]++);
	}
	assert_null(queue_take(q));
	assert_false(is_readable(q));
	for (uint32_t k = 0; k < N_PRODUCERS; k++)
		pthread_join(producers[k].thread, NULL);
	queue_free(q);
}

static void test_wait_until(void **state)
{
	enum { MS = 1000 * 1000 };
	struct item item = {.number = 1};
	struct queue *q;

	(void)state;
	assert_int_equal(queue_new(&q), 0);
	uint64_t start_ns = clock_now_ns();
	queue_wait_until(q, start_ns + 30 * MS);
	assert_true(clock_now_ns() >= start_ns + 30 * MS);
	queue_wait_until(q, 1); /* long ago */
	queue_push(q, &item.node);
	queue_wait_until(q, UINT64_MAX);
	start_ns = clock_now_ns();
	queue_wait_until(q, start_ns + 20000ull * MS);
	assert_true(clock_now_ns() < start_ns + 10000ull * MS);
	assert_non_null(queue_take(q));
	queue_free(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_order_and_fd),
		CASE(test_many_producers),
		CASE(test_wait_until),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
