/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrub's pace: a round takes the period, never more than the budget of the device's time, in
 * steps that are short.
 */
#include "tests/case.h"

#include "weightd/checksum.h"
#include "weightd/scrub.h"
#include "weightd/sum.h"

#define SECOND UINT64_C(1000000000)

/* Nanoseconds of a round of n_bytes on a device that sums n_bytes_a_second; steps of it. */
static uint64_t run_round(const struct scrub *s, uint64_t n_bytes, uint64_t n_bytes_a_second,
	uint64_t *ret_busy_ns, uint64_t *ret_n_steps)
{
	uint64_t now_ns = 7 * SECOND, start_ns = now_ns, busy_ns = 0, n_steps = 0;

	for (uint64_t at = 0; at < n_bytes; n_steps++) {
		uint64_t n = (uint64_t)scrub_get_pieces(s, n_bytes) * SUM_PIECE_BYTES;
		if (n > n_bytes - at)
			n = n_bytes - at;
		uint64_t elapsed_ns = (uint64_t)((double)n / (double)n_bytes_a_second * 1e9);
		busy_ns += elapsed_ns;
		uint64_t next_ns = scrub_get_next(s, now_ns, n, n_bytes, elapsed_ns);
		assert_true(next_ns >= now_ns + elapsed_ns);
		now_ns = next_ns;
		at += n;
	}
	*ret_busy_ns = busy_ns;
	*ret_n_steps = n_steps;
	return now_ns - start_ns;
}

static void check_round(uint64_t period_ns, uint32_t percent, uint64_t n_bytes, uint64_t rate)
{
	const struct scrub s = {.period_ns = period_ns, .budget_percent = percent};
	uint64_t busy_ns, n_steps;
	uint64_t ns = run_round(&s, n_bytes, rate, &busy_ns, &n_steps);
	uint64_t wanted_ns = busy_ns * 100 / percent;

	if (wanted_ns < period_ns)
		wanted_ns = period_ns;
	/* A nanosecond a step is lost in rounding. */
	if (ns > wanted_ns + n_steps || ns + n_steps < wanted_ns)
		fail_msg("period %lu, %u %%, %lu bytes: expected %lu ns, found %lu", period_ns,
			percent, n_bytes, wanted_ns, ns);
}

static void test_rounds(void **state)
{
	static const uint64_t sizes[] = {1, 6 << 20, UINT64_C(8) << 30, UINT64_C(500) << 30};

	(void)state;
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		check_round(3600 * SECOND, 1, sizes[i], UINT64_C(4000) << 30); /* fast memory */
		check_round(3600 * SECOND, 1, sizes[i], UINT64_C(1) << 30);    /* too slow */
		check_round(SECOND, 100, sizes[i], UINT64_C(20) << 30);
		check_round(60 * SECOND, 50, sizes[i], UINT64_C(20) << 30);
	}
}

static void test_steps(void **state)
{
	struct scrub s = {.period_ns = 3600 * SECOND, .budget_percent = 1};

	(void)state;
	/* A step a second. */
	assert_int_equal(scrub_get_pieces(&s, UINT64_C(36) << 30), 11); /* 10.24 MiB */
	assert_int_equal(scrub_get_pieces(&s, 1), 1);
	assert_int_equal(scrub_get_pieces(&s, 0), 1);
	assert_int_equal(scrub_get_pieces(&s, UINT64_MAX), CHECKSUM_MAX_PIECES);
	/* At least eight a period. */
	s.period_ns = SECOND;
	assert_int_equal(scrub_get_pieces(&s, 16 << 20), 2);
}

static void test_limits(void **state)
{
	const struct scrub s = {.period_ns = UINT64_MAX >> 1, .budget_percent = 1};

	(void)state;
	/* For ever, not at once. */
	assert_true(scrub_get_next(&s, UINT64_MAX >> 1, 5, 1, 5) == UINT64_MAX);
	assert_true(scrub_get_next(&s, 10, 0, 0, 0) == 10);
	assert_true(scrub_get_next(&s, 10, 0, 0, UINT64_MAX) == UINT64_MAX);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_rounds),
		CASE(test_steps),
		CASE(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
