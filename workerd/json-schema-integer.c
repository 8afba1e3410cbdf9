/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "workerd/json-schema-internal.h"

enum { MAX_DIGITS = 20 };

#define DEFAULT_MAX 999999999999999ll /* whole numbers of 15 digits are exact in a double */

/*
 * A bound as a whole number: `up`, the least that is not below it, else the largest that is not
 * above it. is_exclusive: nor equal to it.
 */
static int get_bound(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	const char *key, bool up, bool is_exclusive, int64_t *bound)
{
	json_t *value = json_object_get(schema, key);
	int64_t n;

	if (!value)
		return 0;
	if (json_is_integer(value)) {
		n = json_integer_value(value);
	} else if (json_is_real(value) && fabs(json_real_value(value)) <= 9e18) {
		double real = json_real_value(value), whole = up ? ceil(real) : floor(real);

		n = (int64_t)whole;
		is_exclusive = is_exclusive && whole == real;
	} else {
		return json_schema_fail(s, at, key, "expected a number from -9e18 to 9e18");
	}
	if (n == (up ? INT64_MAX : INT64_MIN) && is_exclusive)
		return json_schema_fail(s, at, key, "expected a bound that leaves an integer");
	if (is_exclusive)
		n += up ? 1 : -1;
	if (up ? n > *bound : n < *bound)
		*bound = n;
	return 0;
}

static void write_any(FILE *f, int n_digits)
{
	if (n_digits)
		fprintf(f, " [0-9]{%d}", n_digits);
}

static void write_digit(FILE *f, char first, char last)
{
	if (first == last)
		fprintf(f, "\"%c\"", first);
	else
		fprintf(f, "[%c-%c]", first, last);
}

static bool is_all(const char *digits, char digit)
{
	return strspn(digits, (const char[]){digit, '\0'}) == strlen(digits);
}

/* Numbers of as many digits as low and high have, from one to the other. */
static void write_same(FILE *f, const char *low, const char *high)
{
	static const char zeros[MAX_DIGITS + 1] = "00000000000000000000";
	static const char nines[MAX_DIGITS + 1] = "99999999999999999999";
	int n = (int)strlen(low), n_rest = n - 1;
	char first = low[0], last = high[0];
	bool is_low = false, is_high = false;

	if (!n)
		return;
	if (first == last) {
		write_digit(f, first, last);
		if (n_rest) {
			fputs(" (", f);
			write_same(f, low + 1, high + 1);
			putc(')', f);
		}
		return;
	}
	/* What is cut at the ends, and the whole decades between. */
	if (!is_all(low + 1, '0')) {
		is_low = true;
		write_digit(f, first, first);
		fputs(" (", f);
		write_same(f, low + 1, nines + MAX_DIGITS - n_rest);
		putc(')', f);
		first++;
	}
	is_high = !is_all(high + 1, '9');
	if (is_high)
		last--;
	if (first <= last) {
		fputs(is_low ? " | " : "", f);
		is_low = true;
		write_digit(f, first, last);
		write_any(f, n_rest);
	}
	if (is_high) {
		fputs(is_low ? " | " : "", f);
		write_digit(f, high[0], high[0]);
		fputs(" (", f);
		write_same(f, zeros + MAX_DIGITS - n_rest, high + 1);
		putc(')', f);
	}
}

/* From low to high, by numbers of digits. */
static void write_range(FILE *f, uint64_t low, uint64_t high)
{
	char from[MAX_DIGITS + 1], to[MAX_DIGITS + 1];
	bool is_first = true;

	for (;;) {
		uint64_t largest = 9; /* of as many digits as low has */

		while (largest < low && largest < UINT64_MAX / 10)
			largest = 10 * largest + 9;
		if (largest < low || largest > high)
			largest = high;
		snprintf(from, sizeof(from), "%llu", (unsigned long long)low);
		snprintf(to, sizeof(to), "%llu", (unsigned long long)largest);
		fputs(is_first ? "" : " | ", f);
		write_same(f, from, to);
		is_first = false;
		if (largest == high)
			return;
		low = largest + 1;
	}
}

int json_schema_integer(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	int64_t low = INT64_MIN, high = INT64_MAX;
	int r = get_bound(s, schema, at, "minimum", true, false, &low);

	if (!r)
		r = get_bound(s, schema, at, "exclusiveMinimum", true, true, &low);
	if (!r)
		r = get_bound(s, schema, at, "maximum", false, false, &high);
	if (!r)
		r = get_bound(s, schema, at, "exclusiveMaximum", false, true, &high);
	if (r)
		return r;
	if (low > high)
		return json_schema_fail(s, at, NULL, "expected bounds with an integer between");
	bool has_low =
		json_object_get(schema, "minimum") || json_object_get(schema, "exclusiveMinimum");
	bool has_high =
		json_object_get(schema, "maximum") || json_object_get(schema, "exclusiveMaximum");
	if (!has_low && !has_high) {
		fputs("integer", f);
		return 0;
	}
	if (!has_low && high > -DEFAULT_MAX)
		low = -DEFAULT_MAX;
	if (!has_high && low < DEFAULT_MAX)
		high = DEFAULT_MAX;
	putc('(', f);
	if (low < 0) {
		/* Magnitudes: 0 - INT64_MIN has none in int64_t. */
		fputs("\"-\" (", f);
		write_range(f, high < 0 ? 0 - (uint64_t)high : 1, 0 - (uint64_t)low);
		fputs(high < 0 ? ")" : ") | ", f);
	}
	if (high >= 0)
		write_range(f, low < 0 ? 0 : (uint64_t)low, (uint64_t)high);
	putc(')', f);
	return 0;
}
