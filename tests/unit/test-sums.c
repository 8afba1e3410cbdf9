/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of sums: what is known and what differs; as bytes and back, with every byte of them
 * checked.
 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "weightd/sha256.h"
#include "weightd/sum.h"
#include "weightd/sums.h"

static const uint64_t n_bytes[] = {1, SUM_PIECE_BYTES, 3 * SUM_PIECE_BYTES + 5, 0, 77};

enum { N_PIECES = 1 + 1 + 4 + 0 + 1 };

static struct sums *make(void)
{
	struct sums *s = NULL;

	assert_int_equal(sums_new(ARRAY_SIZE(n_bytes), n_bytes, &s), 0);
	return s;
}

/* All but the last n pieces of the third tensor. */
static struct sums *make_known(uint64_t n)
{
	struct sums *s = make();

	for (uint32_t i = 0; i < s->n_tensors; i++)
		for (uint64_t k = 0; k < sum_count_pieces(n_bytes[i]) - (i == 2 ? n : 0); k++)
			assert_true(sums_put(s, i, k, 1000 * i + k + 1));
	return s;
}

static void test_layout(void **state)
{
	struct sums *s = make();

	(void)state;
	assert_int_equal(s->n_pieces, N_PIECES);
	assert_int_equal(s->tensors[2].first, 2);
	assert_int_equal(s->tensors[3].first, 6);
	assert_int_equal(s->tensors[4].first, 6);
	sums_free(s);
	assert_null(sums_free(NULL));
}

static void test_put(void **state)
{
	struct sums *s = make_known(1);

	(void)state;
	assert_false(sums_is_complete(s));
	assert_true(sums_put(s, 2, 0, 2001));
	assert_false(sums_put(s, 2, 0, 2002));
	assert_true(sums_put(s, 2, 0, 2001)); /* what is known stays */
	assert_true(sums_put(s, 2, 3, 5));
	assert_true(sums_is_complete(s));
	assert_false(sums_put(s, 2, 3, 6));
	sums_free(s);
}

static void test_too_many(void **state)
{
	uint64_t large[] = {SUM_PIECE_BYTES * SUMS_MAX_PIECES, 1};
	struct sums *s = NULL;

	(void)state;
	assert_int_equal(sums_new(2, large, &s), -E2BIG);
	assert_int_equal(sums_new(SUMS_MAX_TENSORS + 1, large, &s), -E2BIG);
	assert_null(s);
}

static void test_pack_and_unpack(void **state)
{
	(void)state;
	for (uint64_t n = 0; n <= 4; n++) {
		struct sums *s = make_known(n), *t = NULL;
		struct err e = ERR_NULL;
		uint8_t *data = NULL;
		uint64_t n_packed;
		assert_int_equal(sums_pack(s, &data, &n_packed), 0);
		assert_int_equal(sums_unpack(data, n_packed, &e, &t), 0);
		assert_int_equal(t->n_tensors, s->n_tensors);
		assert_int_equal(t->n_pieces, s->n_pieces);
		for (uint32_t i = 0; i < s->n_tensors; i++) {
			assert_int_equal(t->tensors[i].n_bytes, s->tensors[i].n_bytes);
			assert_int_equal(t->tensors[i].first, s->tensors[i].first);
			assert_int_equal(t->tensors[i].n_known, s->tensors[i].n_known);
		}
		assert_memory_equal(t->values, s->values, 8 * s->n_pieces);
		assert_int_equal(sums_is_complete(t), n == 0);
		struct sums *u = NULL;
		assert_int_equal(sums_copy(t, &u), 0);
		sums_free(t);
		assert_memory_equal(u->values, s->values, 8 * s->n_pieces);
		assert_memory_equal(u->tensors, s->tensors, s->n_tensors * sizeof(*s->tensors));
		t = u;
		free(data);
		sums_free(s);
		sums_free(t);
	}
}

static void refuse(const uint8_t *data, uint64_t n, const char *words)
{
	struct sums *t = NULL;
	struct err e = ERR_NULL;

	assert_int_equal(sums_unpack(data, n, &e, &t), -EINVAL);
	assert_null(t);
	if (!strstr(e.text, words))
		fail_msg("expected \"%s\", found \"%s\"", words, e.text);
}

static void test_damage(void **state)
{
	struct sums *s = make_known(2);
	uint8_t *data = NULL;
	uint64_t n;

	(void)state;
	assert_int_equal(sums_pack(s, &data, &n), 0);
	for (uint64_t i = 0; i < n; i++) {
		data[i] ^= 0x10;
		refuse(data, n, "checksums: ");
		data[i] ^= 0x10;
	}
	for (uint64_t i = 0; i < n; i++)
		refuse(data, i, "checksums: ");
	free(data);
	sums_free(s);
}

/* A digest that is right does not make the rest so. */
static void refuse_forged(uint8_t *data, uint64_t n, uint64_t at, uint64_t value, const char *words)
{
	uint64_t before;
	struct sha256 h;

	memcpy(&before, data + at, 8);
	memcpy(data + at, &value, 8);
	sha256_init(&h);
	sha256_add(&h, data, n - SHA256_BYTES);
	sha256_end(&h, data + n - SHA256_BYTES);
	refuse(data, n, words);
	memcpy(data + at, &before, 8);
}

static void test_forged(void **state)
{
	enum { HEAD = 24, VALUES = HEAD + 16 * ARRAY_SIZE(n_bytes) };
	struct sums *s = make_known(2);
	uint8_t *data = NULL;
	uint64_t n;

	(void)state;
	assert_int_equal(sums_pack(s, &data, &n), 0);
	refuse_forged(data, n, 0, SUMS_MAGIC + 1, "magic");
	refuse_forged(data, n, 8, SUMS_MAX_TENSORS + 1, "at most");
	refuse_forged(data, n, 8, UINT64_MAX, "at most");
	refuse_forged(data, n, 16, SUMS_MAX_PIECES + 1, "at most");
	refuse_forged(data, n, 16, N_PIECES + 1, "bytes");
	refuse_forged(data, n, HEAD, 2 * SUM_PIECE_BYTES, "pieces");
	refuse_forged(data, n, HEAD, UINT64_MAX, "pieces");
	refuse_forged(data, n, HEAD, 0, "pieces");
	refuse_forged(data, n, HEAD + 8, 2, "known");
	refuse_forged(data, n, VALUES + 8 * 4, 7, "expected no sum");
	free(data);
	sums_free(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_layout),
		CASE(test_put),
		CASE(test_too_many),
		CASE(test_pack_and_unpack),
		CASE(test_damage),
		CASE(test_forged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
