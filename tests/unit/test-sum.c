/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksum: equal to what tests/ref/sums.py says, which was written from the definition; and
 * different for whatever is not the same.
 */
#include "tests/case.h"

#include <inttypes.h>
#include <string.h>

#include "weightd/sha256.h"
#include "weightd/sum.h"

static struct sum_key key;
static uint8_t data[SUM_PIECE_BYTES];

/* As lcg() of sums.py. */
static void fill(uint32_t seed, uint8_t *ret, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		ret[i] = (uint8_t)(seed >> 24);
	}
}

static void set_key(uint32_t seed)
{
	uint8_t secret[SUM_SECRET_BYTES];

	fill(seed, secret, sizeof(secret));
	sum_key_init(&key, secret);
}

static void test_known_answers(void **state)
{
	uint32_t secret, seed, last = 0, n_lines = 0;
	uint64_t n, expected;
	char path[4096];

	(void)state;
	snprintf(path, sizeof(path), "%s/ref/sums.txt", getenv("WEIGHTD_TEST_DATA"));
	FILE *f = fopen(path, "re");
	assert_non_null(f);
	while (fscanf(f, "%" SCNu32 " %" SCNu32 " %" SCNu64 " %" SCNx64, &secret, &seed, &n,
		       &expected) == 4) {
		if (secret != last)
			set_key(secret);
		last = secret;
		fill(seed, data, n);
		uint64_t found = sum_piece(&key, data, n);
		if (found != expected)
			fail_msg("secret %u, %" PRIu64 " bytes: expected %016" PRIx64
				 ", found %016" PRIx64,
				secret, n, expected, found);
		n_lines++;
	}
	fclose(f);
	assert_true(n_lines > 90);
}

static void test_unaligned(void **state)
{
	static uint8_t moved[5000];

	(void)state;
	set_key(3);
	fill(4, data, 4900);
	for (uint32_t shift = 1; shift < 32; shift++) {
		memcpy(moved + shift, data, 4900);
		assert_int_equal(sum_piece(&key, moved + shift, 4900), sum_piece(&key, data, 4900));
	}
}

static void test_every_byte_counts(void **state)
{
	static const uint64_t lengths[] = {1, 15, 16, 17, 4096, 4111, 9000};

	(void)state;
	set_key(5);
	for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		fill(6 + i, data, lengths[i]);
		uint64_t sum = sum_piece(&key, data, lengths[i]);
		for (uint64_t at = 0; at < lengths[i]; at++) {
			uint8_t bit = (uint8_t)(1 << at % 8);
			data[at] ^= bit;
			assert_int_not_equal(sum_piece(&key, data, lengths[i]), sum);
			data[at] ^= bit;
		}
	}
}

/* A zero more is another length, and what is behind the end does not count. */
static void test_length_counts(void **state)
{
	(void)state;
	set_key(7);
	memset(data, 0, 64);
	for (uint64_t n = 0; n < 40; n++) {
		uint64_t sum = sum_piece(&key, data, n);
		assert_int_not_equal(sum, sum_piece(&key, data, n + 1));
		data[n] = 0xff;
		assert_int_equal(sum, sum_piece(&key, data, n));
		data[n] = 0;
	}
}

static void swap(uint64_t a, uint64_t b)
{
	uint8_t unit[SUM_UNIT_BYTES];

	memcpy(unit, data + a, sizeof(unit));
	memcpy(data + a, data + b, sizeof(unit));
	memcpy(data + b, unit, sizeof(unit));
}

static void test_order_counts(void **state)
{
	const uint64_t n_units = 16384, n = n_units * SUM_UNIT_BYTES;

	(void)state;
	set_key(8);
	fill(9, data, n);
	uint64_t sum = sum_piece(&key, data, n);
	for (uint64_t i = 1; i < n_units; i += i < 600 ? 1 : 97) {
		swap(0, i * SUM_UNIT_BYTES);
		assert_int_not_equal(sum_piece(&key, data, n), sum);
		swap(0, i * SUM_UNIT_BYTES);
	}
	/* Words that trade places inside a unit. */
	for (uint32_t i = 1; i < 4; i++) {
		uint32_t w[4], other;
		memcpy(w, data, sizeof(w));
		other = w[0];
		w[0] = w[i];
		w[i] = other;
		memcpy(data, w, sizeof(w));
		assert_int_not_equal(sum_piece(&key, data, n), sum);
		w[i] = w[0];
		w[0] = other;
		memcpy(data, w, sizeof(w));
	}
	assert_int_equal(sum_piece(&key, data, n), sum);
}

static void test_key_counts(void **state)
{
	(void)state;
	fill(10, data, 100);
	set_key(11);
	uint64_t sum = sum_piece(&key, data, 100);
	set_key(12);
	assert_int_not_equal(sum_piece(&key, data, 100), sum);
}

static void test_pieces(void **state)
{
	(void)state;
	assert_int_equal(sum_count_pieces(0), 0);
	assert_int_equal(sum_count_pieces(1), 1);
	assert_int_equal(sum_count_pieces(SUM_PIECE_BYTES), 1);
	assert_int_equal(sum_count_pieces(SUM_PIECE_BYTES + 1), 2);
	assert_int_equal(sum_count_pieces(UINT64_MAX), (UINT64_MAX >> 20) + 1);
	assert_int_equal(sum_get_piece_bytes(SUM_PIECE_BYTES, 0), SUM_PIECE_BYTES);
	assert_int_equal(sum_get_piece_bytes(SUM_PIECE_BYTES + 1, 0), SUM_PIECE_BYTES);
	assert_int_equal(sum_get_piece_bytes(SUM_PIECE_BYTES + 1, 1), 1);
}

/* FIPS 180-4's examples: one block, two, and a million letters; in parts of any size. */
static void test_sha256(void **state)
{
	static const struct {
		const char *text;
		const char *digest;
	} rows[] = {
		{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
			"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
		{NULL, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t n = rows[i].text ? strlen(rows[i].text) : 1000000;
		uint8_t digest[SHA256_BYTES];
		char text[2 * SHA256_BYTES + 1];
		struct sha256 h;
		memset(data, 'a', 1000000);
		if (rows[i].text)
			memcpy(data, rows[i].text, n);
		for (uint64_t step = 1; step < 200; step += 63) {
			sha256_init(&h);
			for (uint64_t at = 0; at < n; at += step)
				sha256_add(&h, data + at, n - at < step ? n - at : step);
			sha256_end(&h, digest);
			for (uint32_t k = 0; k < SHA256_BYTES; k++)
				snprintf(text + 2 * k, 3, "%02x", digest[k]);
			assert_string_equal(text, rows[i].digest);
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_known_answers),
		CASE(test_unaligned),
		CASE(test_every_byte_counts),
		CASE(test_length_counts),
		CASE(test_order_counts),
		CASE(test_key_counts),
		CASE(test_pieces),
		CASE(test_sha256),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
