/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/digest.h"

#include <string.h>

#include "tests/case.h"

enum { N_BYTES = 200 };

static uint8_t data[N_BYTES];

static void take(const void *bytes, uint64_t n_bytes, uint8_t ret[DIGEST_BYTES])
{
	struct digest d;

	digest_init(&d);
	digest_add(&d, bytes, n_bytes);
	digest_get(&d, ret);
}

static void fill(void)
{
	for (unsigned i = 0; i < N_BYTES; i++)
		data[i] = (uint8_t)(i * 37 + i / 7);
}

static void is_of_all_bytes_however_divided(void **state)
{
	uint8_t whole[DIGEST_BYTES], parts[DIGEST_BYTES];

	(void)state;
	fill();
	take(data, N_BYTES, whole);
	for (uint64_t a = 0; a <= N_BYTES; a++)
		for (uint64_t b = a; b <= N_BYTES; b += 13) {
			struct digest d;

			digest_init(&d);
			digest_add(&d, data, a);
			digest_add(&d, data + a, b - a);
			digest_add(&d, data + b, N_BYTES - b);
			digest_get(&d, parts);
			assert_memory_equal(parts, whole, DIGEST_BYTES);
		}
}

/* In every 64 bits of the result: none of it is blind to any bit. */
static void every_bit_counts(void **state)
{
	uint8_t before[DIGEST_BYTES], after[DIGEST_BYTES];

	(void)state;
	fill();
	take(data, N_BYTES, before);
	for (unsigned bit = 0; bit < 8 * N_BYTES; bit++) {
		data[bit / 8] ^= 1 << bit % 8;
		take(data, N_BYTES, after);
		data[bit / 8] ^= 1 << bit % 8;
		for (unsigned lane = 0; lane < DIGEST_BYTES; lane += 8)
			assert_memory_not_equal(after + lane, before + lane, 8);
	}
}

static void length_and_order_count(void **state)
{
	static const uint8_t zeros[N_BYTES];
	uint8_t digests[N_BYTES + 1][DIGEST_BYTES], swapped[DIGEST_BYTES];

	(void)state;
	for (unsigned n = 0; n <= N_BYTES; n++) {
		take(zeros, n, digests[n]);
		for (unsigned i = 0; i < n; i++)
			assert_memory_not_equal(digests[i], digests[n], DIGEST_BYTES);
	}
	fill();
	take(data, N_BYTES, digests[0]);
	for (unsigned i = 32; i + 32 <= N_BYTES; i += 32) {
		uint8_t block[32];

		memcpy(block, data, 32);
		memcpy(data, data + i, 32);
		memcpy(data + i, block, 32);
		take(data, N_BYTES, swapped);
		assert_memory_not_equal(swapped, digests[0], DIGEST_BYTES);
		fill();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(is_of_all_bytes_however_divided),
		CASE(every_bit_counts),
		CASE(length_and_order_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
