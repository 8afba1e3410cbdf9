/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/snapshot.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

static const struct snapshot valid = {
	.shape =
		{
			.type = 1,
			.n_layers = 2,
			.n_head_kv = 3,
			.head_dim = 64,
			.n_page_tokens = 32,
			.n_page_bytes = 4096,
			.contents = {true, true, {1, 2, 3}, {7, 8}},
			.tokens = {4, 5, 6},
		},
	.n_tokens = 70,
	.n_cached = 65,
};

static void expect_same(const struct snapshot *a, const struct snapshot *b)
{
	const struct weights_client_contents *x = &a->shape.contents, *y = &b->shape.contents;

	assert_int_equal(a->n_tokens, b->n_tokens);
	assert_int_equal(a->n_cached, b->n_cached);
	assert_int_equal(a->shape.type, b->shape.type);
	assert_int_equal(a->shape.n_layers, b->shape.n_layers);
	assert_int_equal(a->shape.n_head_kv, b->shape.n_head_kv);
	assert_int_equal(a->shape.head_dim, b->shape.head_dim);
	assert_int_equal(a->shape.n_page_tokens, b->shape.n_page_tokens);
	assert_int_equal(a->shape.n_page_bytes, b->shape.n_page_bytes);
	assert_memory_equal(a->shape.tokens, b->shape.tokens, DIGEST_BYTES);
	assert_int_equal(x->has_identity, y->has_identity);
	assert_int_equal(x->has_file, y->has_file);
	assert_memory_equal(x->identity, y->identity, DIGEST_BYTES);
	assert_memory_equal(x->file, y->file, DIGEST_BYTES);
}

static void is_read_as_it_was_written(void **state)
{
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	struct snapshot s = {0};
	struct err e = ERR_NULL;

	(void)state;
	snapshot_write_header(&valid, header);
	assert_memory_equal(header, "WDSESSN\0\1\0\0\0\xc0\0\0\0\x46\0\0\0\x41\0\0\0\1\0\0\0", 28);
	assert_int_equal(snapshot_get_token_bytes(&valid), 288);
	assert_int_equal(snapshot_get_n_pages(&valid), 3);
	assert_int_equal(snapshot_get_bytes(&valid), 192 + 288 + 3 * 4096 + 32);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), snapshot_get_bytes(&valid), &e, &s),
		0);
	expect_same(&s, &valid);
}

static void finds_every_bit_that_flips(void **state)
{
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	uint64_t n_bytes = snapshot_get_bytes(&valid);
	struct snapshot s;

	(void)state;
	snapshot_write_header(&valid, header);
	for (unsigned bit = 0; bit < 8 * sizeof(header); bit++) {
		struct err e = ERR_NULL;

		header[bit / 8] ^= 1 << bit % 8;
		int r = snapshot_read_header(header, sizeof(header), n_bytes, &e, &s);
		header[bit / 8] ^= 1 << bit % 8;
		assert_true(r == -EBADMSG || (r == -ENOTSUP && bit / 32 == 2));
		assert_true(e.text[0] != '\0');
	}
	for (unsigned n = 0; n < sizeof(header); n++) {
		struct err e = ERR_NULL;

		assert_int_equal(snapshot_read_header(header, n, n, &e, &s), -EBADMSG);
	}
}

/* What is not said is zeros: a header has one form. */
static void knows_what_it_does_not_know(void **state)
{
	static const struct {
		unsigned at;
		uint8_t value;
	} wrong[] = {{44, 4}, {47, 0x80}, {56, 1}, {87, 1}, {120, 1}, {151, 1}, {152, 1}, {159, 1}};
	struct snapshot s = valid, found = {0};
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	struct err e = ERR_NULL;
	struct digest d;

	(void)state;
	memset(&s.shape.contents, 0, sizeof(s.shape.contents));
	snapshot_write_header(&s, header);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), snapshot_get_bytes(&s), &e, &found),
		0);
	expect_same(&found, &s);
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		snapshot_write_header(&s, header);
		header[wrong[i].at] ^= wrong[i].value;
		digest_init(&d);
		digest_add(&d, header, sizeof(header) - DIGEST_BYTES);
		digest_get(&d, header + sizeof(header) - DIGEST_BYTES);
		assert_int_equal(snapshot_read_header(header, sizeof(header),
					 snapshot_get_bytes(&s), &e, &found),
			-EBADMSG);
		assert_string_equal(e.text, "session file: its header is damaged");
	}
}

/* Of a right digest: what the sizes say has to be what the file is. */
static void sizes_belong_to_the_file(void **state)
{
	struct snapshot s = valid, found;
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	struct err e = ERR_NULL;
	uint64_t n_bytes = snapshot_get_bytes(&valid);

	(void)state;
	snapshot_write_header(&s, header);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), n_bytes + 1, &e, &found), -EBADMSG);
	assert_string_equal(e.text,
		"session file: 70 tokens and 3 pages of 4096 bytes are not the 12801 bytes that it "
		"has");
	s.n_cached = s.n_tokens + 1;
	snapshot_write_header(&s, header);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), n_bytes, &e, &found), -EBADMSG);
	s = valid;
	s.n_tokens = s.n_cached = SNAPSHOT_MAX_TOKENS + 1;
	snapshot_write_header(&s, header);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), n_bytes, &e, &found), -EBADMSG);
	/* Sizes that are right only where a product wraps. */
	s = valid;
	s.n_cached = 64;
	s.shape.n_page_bytes = (1ull << 63) + 3 * 2048;
	snapshot_write_header(&s, header);
	assert_int_equal(snapshot_get_bytes(&s), n_bytes);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), n_bytes, &e, &found), -EBADMSG);
	s = valid;
	s.shape.n_page_tokens = 0;
	snapshot_write_header(&s, header);
	assert_int_equal(
		snapshot_read_header(header, sizeof(header), n_bytes, &e, &found), -EBADMSG);
}

static void tells_what_can_be_used(void **state)
{
	struct snapshot_shape own[9];
	struct snapshot s = valid;
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(own); i++)
		own[i] = valid.shape;
	assert_int_equal(snapshot_compare(&valid, &own[0], &e), 0);
	assert_true(e.text[0] == '\0');
	own[1].tokens[31] ^= 1;
	assert_int_equal(snapshot_compare(&valid, &own[1], &e), -ESTALE);
	own[2].contents.identity[31] ^= 1;
	assert_int_equal(snapshot_compare(&valid, &own[2], &e), SNAPSHOT_TOKENS_ONLY);
	assert_string_equal(
		e.text, "its keys and values are of weights that are not known to be the same");
	/* Where one of the two does not know its identity, the file's counts. */
	s.shape.contents.has_identity = false;
	assert_int_equal(snapshot_compare(&s, &own[2], &e), 0);
	own[2].contents.file[0] ^= 1;
	assert_int_equal(snapshot_compare(&s, &own[2], &e), SNAPSHOT_TOKENS_ONLY);
	s.shape.contents.has_file = false;
	assert_int_equal(snapshot_compare(&s, &own[0], &e), SNAPSHOT_TOKENS_ONLY);
	/* Where there are none, they are nothing to differ in. */
	s.n_cached = 0;
	assert_int_equal(snapshot_compare(&s, &own[0], &e), 0);
	assert_int_equal(snapshot_compare(&s, &own[1], &e), -ESTALE);
	own[3].type++;
	own[4].n_layers++;
	own[5].n_head_kv++;
	own[6].head_dim++;
	own[7].n_page_tokens++;
	own[8].n_page_bytes++;
	for (unsigned i = 3; i < ARRAY_SIZE(own); i++)
		assert_int_equal(snapshot_compare(&valid, &own[i], &e), SNAPSHOT_TOKENS_ONLY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(is_read_as_it_was_written),
		CASE(finds_every_bit_that_flips),
		CASE(knows_what_it_does_not_know),
		CASE(sizes_belong_to_the_file),
		CASE(tells_what_can_be_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
