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
			.weights = {1, 2, 3},
			.tokens = {4, 5, 6},
		},
	.n_tokens = 70,
	.n_cached = 65,
};

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
	assert_memory_equal(&s, &valid, sizeof(s));
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
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(own); i++)
		own[i] = valid.shape;
	assert_int_equal(snapshot_compare(&valid, &own[0], &e), 0);
	assert_true(e.text[0] == '\0');
	own[1].tokens[31] ^= 1;
	assert_int_equal(snapshot_compare(&valid, &own[1], &e), -ESTALE);
	own[2].weights[31] ^= 1;
	assert_int_equal(snapshot_compare(&valid, &own[2], &e), SNAPSHOT_TOKENS_ONLY);
	assert_string_equal(e.text, "its keys and values are of other weights");
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
		CASE(sizes_belong_to_the_file),
		CASE(tells_what_can_be_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
