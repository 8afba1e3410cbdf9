/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <string.h>

#include "workerd/holdback.h"

enum { MAX_PIECE = 64 };

static uint32_t make_stops(const char *const *texts, uint32_t n, struct message_stop *ret)
{
	for (uint32_t i = 0; i < n; i++)
		ret[i] = (struct message_stop){texts[i], (uint32_t)strlen(texts[i])};
	return n;
}

/* Feeds pieces, and compares what comes out after each; '!' at the end: a stop string. */
static void expect(
	const char *const *stops, uint32_t n_stops, const char *const (*rows)[2], uint32_t n_rows)
{
	struct message_stop list[MESSAGE_MAX_STOPS];
	struct holdback h = {0};

	make_stops(stops, n_stops, list);
	assert_int_equal(holdback_start(&h, list, n_stops, MAX_PIECE), 0);
	for (uint32_t i = 0; i < n_rows; i++) {
		char out[512];
		bool is_stop = holdback_add(&h, rows[i][0], (uint32_t)strlen(rows[i][0]));
		uint32_t n = holdback_get_ready(&h, is_stop);

		memcpy(out, h.text, n);
		strcpy(out + n, is_stop ? "!" : "");
		assert_string_equal(out, rows[i][1]);
		holdback_drop(&h, n);
	}
	holdback_fini(&h);
}

static void test_without_stops(void **state)
{
	static const char *const rows[][2] = {{"Paris", "Paris"}, {"", ""}, {" is", " is"},
		{"\xe2", ""}, {"\x82", ""}, {"\xac!", "\xe2\x82\xac!"}, {"\xff", "\xff"},
		{"a\xf0\x9f", "a"}, {"\x98\x80", "\xf0\x9f\x98\x80"}};

	(void)state;
	expect(NULL, 0, rows, ARRAY_SIZE(rows));
}

static void test_stop_over_pieces(void **state)
{
	static const char *const stops[] = {"\nUser:", "END"};
	static const char *const rows[][2] = {{"one", "one"}, {" EN", " "}, {"O", "ENO"},
		{"\nUs", ""}, {"e", ""}, {"d\n", "\nUsed"}, {"User", ""}, {": two", "!"}};

	(void)state;
	expect(stops, 2, rows, ARRAY_SIZE(rows));
}

/* After a false start the true one must still be seen, where both overlap. */
static void test_overlapping_starts(void **state)
{
	static const char *const stops[] = {"aab"};
	static const char *const rows[][2] = {
		{"a", ""}, {"a", ""}, {"a", "a"}, {"a", "a"}, {"b", "!"}};

	(void)state;
	expect(stops, 1, rows, ARRAY_SIZE(rows));
}

/* Several stop strings in one piece: the text ends before the first, in whatever order they are. */
static void test_first_of_several(void **state)
{
	static const char *const stops[] = {"three", "two", "wo th"};
	static const char *const turned[] = {"wo th", "two", "three"};
	static const char *const rows[][2] = {{"one two three", "one !"}};

	(void)state;
	expect(stops, 3, rows, 1);
	expect(turned, 3, rows, 1);
}

static void test_cut_before_stop(void **state)
{
	static const char *const stops[] = {"."};
	static const char *const rows[][2] = {{"x\xe2\x82", "x"}, {".", "!"}};

	(void)state;
	expect(stops, 1, rows, ARRAY_SIZE(rows));
}

/* A cut character and a stop string but for its last byte are held; then the longest piece. */
static void test_longest(void **state)
{
	char stop[MESSAGE_MAX_STOP_BYTES];
	char piece[MAX_PIECE];
	const struct message_stop list = {stop, sizeof(stop)};
	struct holdback h = {0};

	(void)state;
	memset(stop, 's', sizeof(stop));
	memset(piece, 's', sizeof(piece));
	assert_int_equal(holdback_start(&h, &list, 1, MAX_PIECE), 0);
	assert_false(holdback_add(&h, "\xe2\x82", 2));
	for (int i = 0; i < 3; i++)
		assert_false(holdback_add(&h, piece, MAX_PIECE));
	assert_false(holdback_add(&h, piece, MAX_PIECE - 1));
	assert_int_equal(holdback_get_ready(&h, false), 0);
	assert_true(holdback_add(&h, piece, MAX_PIECE));
	assert_int_equal(h.n_bytes, 2);
	holdback_fini(&h);
}

static void test_last_and_clear(void **state)
{
	const struct message_stop list = {"stop", 4};
	struct holdback h = {0};

	(void)state;
	assert_int_equal(holdback_start(&h, &list, 1, MAX_PIECE), 0);
	assert_false(holdback_add(&h, "st\xc3", 3));
	assert_int_equal(holdback_get_ready(&h, false), 2);
	holdback_drop(&h, 2);
	assert_false(holdback_add(&h,
		"\xa9"
		"sto",
		4));
	assert_int_equal(holdback_get_ready(&h, false), 2);
	assert_int_equal(holdback_get_ready(&h, true), 5);
	holdback_clear(&h);
	assert_int_equal(holdback_get_ready(&h, true), 0);
	holdback_fini(&h);
	holdback_fini(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_without_stops),
		CASE(test_stop_over_pieces),
		CASE(test_overlapping_starts),
		CASE(test_first_of_several),
		CASE(test_cut_before_stop),
		CASE(test_longest),
		CASE(test_last_and_clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
