/* SPDX-License-Identifier: Apache-2.0 */
/* The client of weightd goes to the engine and back; never is it in two hands. */
#include "tests/case.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "proto/util/err.h"
#include "workerd/loan.h"

enum { N_LOANS = 2000 };

static struct loan *loan;
static char client_bytes;
static struct weights_client *const client = (struct weights_client *)&client_bytes;
static atomic_int n_hands; /* that have it beside the loop's */
static atomic_int last_code;

static void *borrow(void *userdata)
{
	uint32_t n = *(uint32_t *)userdata;

	for (uint32_t i = 0; i < n; i++) {
		struct err e = ERR_NULL;
		struct weights_client *c = NULL;
		int r = loan_take(loan, &e, &c);

		last_code = r;
		if (r) {
			assert_string_equal(e.text, "weightd is gone");
			break;
		}
		assert_ptr_equal(c, client);
		assert_int_equal(n_hands++, 0);
		n_hands--;
		loan_give_back(loan);
	}
	return NULL;
}

static void wait_news(void)
{
	struct pollfd p = {.fd = loan_get_fd(loan), .events = POLLIN};

	assert_int_equal(poll(&p, 1, 10000), 1);
}

static void test_there_and_back(void **state)
{
	uint32_t n = N_LOANS, n_lent = 0;
	pthread_t thread;

	(void)state;
	assert_int_equal(loan_new(&loan), 0);
	assert_int_equal(loan_settle(loan), LOAN_NOTHING);
	assert_int_equal(pthread_create(&thread, NULL, borrow, &n), 0);
	bool is_home = true;
	while (n_lent < N_LOANS || !is_home) {
		wait_news();
		switch (loan_settle(loan)) {
		case LOAN_IS_WANTED:
			/* The loop has it until here. */
			assert_int_equal(n_hands, 0);
			is_home = false;
			n_lent++;
			loan_lend(loan, client);
			break;
		case LOAN_IS_BACK: is_home = true; break;
		case LOAN_NOTHING: break;
		}
	}
	pthread_join(thread, NULL);
	assert_int_equal(last_code, 0);
	assert_int_equal(n_lent, N_LOANS);
	loan = loan_free(loan);
}

static void test_closed(void **state)
{
	uint32_t n = 1;
	pthread_t thread;
	struct err e = ERR_NULL;

	(void)state;
	/* Who waits for it hears that it never comes. */
	assert_int_equal(loan_new(&loan), 0);
	assert_int_equal(pthread_create(&thread, NULL, borrow, &n), 0);
	wait_news();
	assert_false(loan_close(loan));
	pthread_join(thread, NULL);
	assert_int_equal(last_code, -ENOTCONN);
	struct weights_client *c;
	assert_int_equal(loan_take(loan, &e, &c), -ENOTCONN);
	assert_int_equal(loan_settle(loan), LOAN_NOTHING);
	loan_lend(loan, client);
	/* There is a weightd again. */
	loan_open(loan);
	assert_int_equal(pthread_create(&thread, NULL, borrow, &n), 0);
	wait_news();
	assert_int_equal(loan_settle(loan), LOAN_IS_WANTED);
	loan_lend(loan, client);
	pthread_join(thread, NULL);
	assert_int_equal(last_code, 0);
	assert_int_equal(loan_settle(loan), LOAN_IS_BACK);
	loan = loan_free(loan);
}

static void *hold(void *userdata)
{
	struct weights_client *c;
	struct err e = ERR_NULL;

	last_code = loan_take(loan, &e, &c);
	n_hands++;
	while (*(atomic_bool *)userdata)
		;
	n_hands--;
	loan_give_back(loan);
	return NULL;
}

static void test_closed_while_lent(void **state)
{
	atomic_bool holds = true;
	pthread_t thread;

	(void)state;
	assert_int_equal(loan_new(&loan), 0);
	assert_int_equal(pthread_create(&thread, NULL, hold, &holds), 0);
	wait_news();
	assert_int_equal(loan_settle(loan), LOAN_IS_WANTED);
	loan_lend(loan, client);
	while (n_hands == 0)
		;
	assert_true(loan_close(loan));
	holds = false;
	pthread_join(thread, NULL);
	assert_int_equal(last_code, 0);
	loan = loan_free(loan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_there_and_back),
		CASE(test_closed),
		CASE(test_closed_while_lent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
