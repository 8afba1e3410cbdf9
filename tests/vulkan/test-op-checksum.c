/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksum kernel against weightd/sum: all short lengths, lengths about a piece, addresses of
 * every alignment that allocations have; and what must change the sum: any byte, units, parts and
 * pieces that trade places. What is behind the end is poison.
 */
#include <inttypes.h>

#include "tests/vulkan/op-arena.h"
#include "weightd/sum.h"

enum { N_SUBGROUPS = 2, MAX_PIECES = 512, ARENA_BYTES = 12 << 20 };

static uint64_t seed;

struct job {
	struct op_arena a;
	struct sum_key *key;
	uint32_t n;
	uint64_t at[MAX_PIECES]; /* in the arena */
	uint32_t n_bytes[MAX_PIECES];
	uint64_t sums[MAX_PIECES]; /* of the last run */
};

static void new_key(struct job *j)
{
	uint8_t secret[SUM_SECRET_BYTES];

	for (uint32_t i = 0; i < sizeof(secret); i++)
		secret[i] = (uint8_t)op_arena_random(&j->a, 0, 255);
	sum_key_init(j->key, secret);
}

static void init(struct job *j)
{
	static struct sum_key key;

	op_arena_init(&j->a, ARENA_BYTES, seed);
	j->key = &key;
	new_key(j);
	j->n = 0;
}

static void add(struct job *j, uint32_t n_bytes, uint32_t skew)
{
	assert_true(j->n < MAX_PIECES);
	j->at[j->n] = op_arena_take(&j->a, n_bytes, skew);
	j->n_bytes[j->n] = n_bytes;
	for (uint32_t i = 0; i < n_bytes; i++)
		j->a.map[j->at[j->n] + i] = (uint8_t)op_arena_random(&j->a, 0, 255);
	j->n++;
}

/* Sums of all pieces by the kernel, in tables and sums of their own behind what is there. */
static void run(struct job *j)
{
	struct op_arena *a = &j->a;
	uint32_t n_groups = (j->n + ABI_CHECKSUM_GROUP - 1) / ABI_CHECKSUM_GROUP;
	uint64_t n_sum_bytes = (uint64_t)j->n * ABI_CHECKSUM_SUMS * 8, before = a->at;
	uint64_t keys = op_arena_take(a, sizeof(j->key->words), 0);
	uint64_t table = op_arena_take(a, j->n * sizeof(struct abi_checksum_piece), 0);
	uint64_t sums = op_arena_take(a, n_sum_bytes, 0);
	struct op_pool_kernel kernel = {.id = KERNELS_CHECKSUM, .n_subgroups = N_SUBGROUPS};
	struct abi_checksum push = {.pieces = op_arena_address(a, table),
		.keys = op_arena_address(a, keys),
		.sums = op_arena_address(a, sums),
		.n = j->n};
	struct err e = ERR_NULL;

	memcpy(a->map + keys, j->key->words, sizeof(j->key->words));
	for (uint32_t i = 0; i < j->n; i++)
		((struct abi_checksum_piece *)(a->map + table))[i] = (struct abi_checksum_piece){
			.data = op_arena_address(a, j->at[i]), .n_bytes = j->n_bytes[i]};
	memset(a->is_written, 0, a->n_bytes);
	op_arena_expect(a, sums, n_sum_bytes);
	for (uint64_t i = 0; i < n_sum_bytes / 4; i++)
		((uint32_t *)(a->map + sums))[i] = 0x7fc0dead;
	on_device_check(op_pool_dispatch(a->pool, op_arena_begin(a), &kernel, &push,
				n_groups * ABI_CHECKSUM_PARTS, 1, &e),
		&e, "dispatch");
	op_arena_run(a);
	for (uint32_t i = 0; i < j->n; i++) {
		uint64_t sum = 0;
		for (uint32_t k = 0; k < ABI_CHECKSUM_SUMS; k++)
			sum += ((uint64_t *)(a->map + sums))[i * ABI_CHECKSUM_SUMS + k];
		j->sums[i] = sum_finish(j->key, sum, j->n_bytes[i]);
	}
	a->at = before;
}

static void check(struct job *j)
{
	run(j);
	for (uint32_t i = 0; i < j->n; i++) {
		uint64_t expected = sum_piece(j->key, j->a.map + j->at[i], j->n_bytes[i]);
		if (j->sums[i] != expected)
			fail_msg("seed %" PRIu64 ": piece %u of %u bytes at %" PRIu64
				 ": expected %016" PRIx64 ", found %016" PRIx64,
				seed, i, j->n_bytes[i], j->at[i] % 256, expected, j->sums[i]);
	}
}

static void test_short(void **state)
{
	struct job j;

	(void)state;
	init(&j);
	for (uint32_t n = 1; n <= 200; n++)
		add(&j, n, 0);
	check(&j);
	op_arena_fini(&j.a);
}

/* As tensors lie in allocations and in windows of files. */
static void test_skewed(void **state)
{
	struct job j;

	(void)state;
	init(&j);
	for (uint32_t skew = 0; skew < 256; skew += 16) {
		add(&j, op_arena_random(&j.a, 1, 200), skew);
		add(&j, op_arena_random(&j.a, 4000, 9000), skew);
	}
	check(&j);
	op_arena_fini(&j.a);
}

/* Groups that are not full, of long pieces and short ones. */
static void test_groups(void **state)
{
	struct job j;

	(void)state;
	for (uint32_t n = 1; n <= 2 * ABI_CHECKSUM_GROUP + 1; n++) {
		init(&j);
		for (uint32_t i = 0; i < n; i++)
			add(&j, op_arena_random(&j.a, 1, i % 3 ? 40 : 60000), 0);
		check(&j);
		op_arena_fini(&j.a);
	}
}

static void test_about_a_piece(void **state)
{
	static const int near[] = {-4097, -4096, -17, -16, -15, -1, 0};
	struct job j;

	(void)state;
	init(&j);
	for (uint32_t i = 0; i < ARRAY_SIZE(near); i++)
		add(&j, (uint32_t)(SUM_PIECE_BYTES + near[i]), i % 2 ? 16 : 0);
	for (uint32_t i = 1; i < 5; i++)
		add(&j, 4096 * i + op_arena_random(&j.a, 0, 40) - 20, 0);
	check(&j);
	op_arena_fini(&j.a);
}

/* One bit of each byte of a piece, in copies of it. */
static void test_any_byte(void **state)
{
	enum { N_BYTES = 411 };
	struct job j;

	(void)state;
	init(&j);
	add(&j, N_BYTES, 0);
	for (uint32_t i = 0; i < N_BYTES; i++) {
		add(&j, N_BYTES, 0);
		memcpy(j.a.map + j.at[j.n - 1], j.a.map + j.at[0], N_BYTES);
		j.a.map[j.at[j.n - 1] + i] ^= (uint8_t)(1 << op_arena_random(&j.a, 0, 7));
	}
	check(&j);
	for (uint32_t i = 1; i < j.n; i++)
		if (j.sums[i] == j.sums[0])
			fail_msg("seed %" PRIu64 ": byte %u does not count", seed, i - 1);
	op_arena_fini(&j.a);
}

static void swap_bytes(struct job *j, uint32_t piece, uint32_t a, uint32_t b, uint32_t n)
{
	uint8_t *data = j->a.map + j->at[piece];

	for (uint32_t i = 0; i < n; i++) {
		uint8_t byte = data[a + i];
		data[a + i] = data[b + i];
		data[b + i] = byte;
	}
}

static void test_places_count(void **state)
{
	const uint32_t row = ABI_CHECKSUM_PARTS * 8 * SUM_UNIT_BYTES, n = 32 * row;
	struct job j;

	(void)state;
	init(&j);
	for (uint32_t i = 0; i < 6; i++) {
		add(&j, n, 0);
		memcpy(j.a.map + j.at[i], j.a.map + j.at[0], n);
	}
	swap_bytes(&j, 1, 0, 8 * row, SUM_UNIT_BYTES);        /* units of one lane */
	swap_bytes(&j, 2, 0, SUM_UNIT_BYTES, SUM_UNIT_BYTES); /* of two lanes */
	swap_bytes(&j, 3, 0, 3 * row, row);                   /* rows of all lanes */
	for (uint32_t i = 0; i < 32; i++)                     /* all of two parts */
		swap_bytes(&j, 4, i * row, i * row + row / 2, row / 8);
	for (uint32_t i = 0; i < n; i++) /* another piece */
		j.a.map[j.at[5] + i] = (uint8_t)op_arena_random(&j.a, 0, 255);
	check(&j);
	for (uint32_t i = 1; i < j.n; i++)
		assert_int_not_equal(j.sums[i], j.sums[0]);
	/* Two pieces that trade places trade their sums. */
	uint64_t at = j.at[0], first = j.sums[0], last = j.sums[5];
	j.at[0] = j.at[5];
	j.at[5] = at;
	run(&j);
	assert_int_equal(j.sums[0], last);
	assert_int_equal(j.sums[5], first);
	op_arena_fini(&j.a);
}

/* Words of all ones and sums that carry into the upper half. */
static void test_carries(void **state)
{
	struct job j;

	(void)state;
	init(&j);
	for (uint32_t i = 0; i < 8; i++) {
		add(&j, 20000 + 13 * i, 0);
		memset(j.a.map + j.at[i], i % 2 ? 0xff : 0, j.n_bytes[i]);
	}
	for (uint32_t i = 0; i < 8; i++) {
		check(&j);
		new_key(&j);
	}
	op_arena_fini(&j.a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_short),
		CASE(test_skewed),
		CASE(test_groups),
		CASE(test_about_a_piece),
		CASE(test_any_byte),
		CASE(test_places_count),
		CASE(test_carries),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
