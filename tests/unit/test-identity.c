/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The identity of a generation: moved by whatever a worker can see, and by nothing else.
 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"
#include "weightd/identity.h"
#include "weightd/sum.h"
#include "weightd/sums.h"

struct identity {
	uint8_t bytes[IDENTITY_BYTES];
};

static struct gguf_build *build(void)
{
	return gguf_build_new_qwen3(&(struct gguf_build_shape){.n_layers = 1});
}

/* Frees b. */
static struct identity describe(struct gguf_build *b)
{
	uint64_t n_bytes = 0;
	uint8_t *file = gguf_build_file(b, &n_bytes);
	struct identity id;
	struct gguf *g = NULL;
	struct err e = ERR_NULL;

	if (gguf_parse(file, n_bytes, n_bytes, &e, &g))
		fail_msg("%s", e.text);
	identity_describe(g, id.bytes);
	gguf_free(g);
	gguf_build_free(b);
	free(file);
	return id;
}

static void assert_same(struct identity a, struct identity b)
{
	assert_memory_equal(a.bytes, b.bytes, IDENTITY_BYTES);
}

static void assert_other(struct identity a, struct identity b)
{
	assert_memory_not_equal(a.bytes, b.bytes, IDENTITY_BYTES);
}

static void test_metadata(void **state)
{
	struct identity first = describe(build());
	struct gguf_build *b = build();

	(void)state;
	assert_same(first, describe(b));
	b = build();
	gguf_build_set_string(b, "general.name", "another");
	struct identity named = describe(b);
	assert_other(first, named);
	b = build();
	gguf_build_set_string(b, "general.name", "anothes");
	assert_other(named, describe(b));
	b = build();
	gguf_build_set_u32(b, "weightd.test", 1);
	struct identity with_u32 = describe(b);
	assert_other(first, with_u32);
	b = build(); /* the same bytes of another type */
	gguf_build_set_f32(b, "weightd.test", 0x1p-149f);
	assert_other(with_u32, describe(b));
}

static void test_tensors(void **state)
{
	struct identity first = describe(build());
	struct gguf_build *b = build();

	(void)state;
	uint64_t n = b->tensors[0].ne[0];
	b->tensors[0].ne[0] = b->tensors[0].ne[1];
	b->tensors[0].ne[1] = n;
	assert_other(first, describe(b));
	b = build();
	b->tensors[1].name[0] ^= 1;
	assert_other(first, describe(b));
}

/* Files whose tensors and keys lie in another order, at other offsets, hold the same. */
static void test_order(void **state)
{
	struct identity first = describe(build());
	struct gguf_build *b = build();

	(void)state;
	struct gguf_build_kv kv = b->kv[0];
	b->kv[0] = b->kv[1];
	b->kv[1] = kv;
	assert_same(first, describe(b));
	b = build();
	struct gguf_build_tensor t = b->tensors[0];
	b->tensors[0] = b->tensors[1];
	b->tensors[1] = t;
	assert_same(first, describe(b));
}

static struct sums *make_sums(void)
{
	static const uint64_t n_bytes[] = {5, 2 * SUM_PIECE_BYTES, 9};
	struct sums *s = NULL;

	assert_int_equal(sums_new(3, n_bytes, &s), 0);
	for (uint32_t i = 0; i < 3; i++)
		for (uint64_t k = 0; k < sum_count_pieces(n_bytes[i]); k++)
			assert_true(sums_put(s, i, k, 10 * i + k));
	return s;
}

static struct identity make(const struct sum_key *key, struct identity description, struct sums *s)
{
	struct identity id;

	assert_int_equal(identity_make(key, description.bytes, s, id.bytes), 0);
	return id;
}

static void test_file(void **state)
{
	static struct sum_key key, other_key;
	const struct stat st = {
		.st_dev = 1, .st_ino = 2, .st_size = 3, .st_mtim = {.tv_sec = 4, .tv_nsec = 5}};
	struct stat changed[5];
	const struct identity description = {{1}}, other = {{2}};
	struct identity first, id;

	(void)state;
	sum_key_init(&key, (const uint8_t[SUM_SECRET_BYTES]){1});
	sum_key_init(&other_key, (const uint8_t[SUM_SECRET_BYTES]){2});
	identity_make_file(&key, description.bytes, &st, first.bytes);
	identity_make_file(&key, description.bytes, &st, id.bytes);
	assert_same(first, id);
	for (unsigned i = 0; i < 5; i++)
		changed[i] = st;
	changed[0].st_dev++;
	changed[1].st_ino++;
	changed[2].st_size++;
	changed[3].st_mtim.tv_sec++;
	changed[4].st_mtim.tv_nsec++;
	for (unsigned i = 0; i < 5; i++) {
		identity_make_file(&key, description.bytes, &changed[i], id.bytes);
		assert_other(first, id);
	}
	identity_make_file(&key, other.bytes, &st, id.bytes);
	assert_other(first, id);
	identity_make_file(&other_key, description.bytes, &st, id.bytes);
	assert_other(first, id);
}

static void test_contents(void **state)
{
	static struct sum_key key, other_key;
	struct identity description = {{1}}, other = {{2}}, id;
	struct sums *s = make_sums();

	(void)state;
	sum_key_init(&key, (const uint8_t[SUM_SECRET_BYTES]){1});
	sum_key_init(&other_key, (const uint8_t[SUM_SECRET_BYTES]){2});
	struct identity first = make(&key, description, s);
	assert_same(first, make(&key, description, s));
	assert_other(first, make(&other_key, description, s));
	assert_other(first, make(&key, other, s));
	for (uint64_t i = 0; i < s->n_pieces; i++) {
		s->values[i]++;
		assert_other(first, make(&key, description, s));
		s->values[i]--;
	}
	s->tensors[0].n_bytes++;
	assert_other(first, make(&key, description, s));
	s->tensors[0].n_bytes--;
	s->tensors[1].n_known--;
	assert_int_equal(identity_make(&key, description.bytes, s, id.bytes), -EAGAIN);
	sums_free(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_metadata),
		CASE(test_tensors),
		CASE(test_order),
		CASE(test_contents),
		CASE(test_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
