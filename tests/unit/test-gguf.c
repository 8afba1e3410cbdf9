/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/ref/gguf-build.h"

static struct gguf_build *new_tiny(void)
{
	return gguf_build_new_qwen3(&(struct gguf_build_shape){.type = DTYPE_F32});
}

/* Over a copy of the prefix that ends where it ends, so that a sanitizer sees one byte too far. */
static int parse_prefix(const uint8_t *data, uint64_t n_bytes, uint64_t n_file_bytes, struct err *e,
	struct gguf **ret)
{
	uint8_t *copy = malloc(n_bytes ? n_bytes : 1);

	assert_non_null(copy);
	memcpy(copy, data, n_bytes);
	int r = gguf_parse(copy, n_bytes, n_file_bytes, e, ret);
	if (r == 0)
		(*ret)->metadata = copy;
	else
		free(copy);
	return r;
}

/* The metadata alone: the data are not there to be read. */
static int parse_build(const struct gguf_build *b, struct err *e, struct gguf **ret)
{
	uint64_t n;
	uint8_t *data = gguf_build_metadata(b, &n);
	int r = parse_prefix(data, n, n + gguf_build_data_bytes(b), e, ret);

	free(data);
	return r;
}

/* Refused, with one line that has each of the words. */
#define refuse(b, ...) refuse_build(b, __LINE__, (const char *const[]){__VA_ARGS__, NULL})
static void refuse_build(const struct gguf_build *b, int line, const char *const *words)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	int r = parse_build(b, &e, &g);

	if (r != -EINVAL)
		fail_msg("line %d: expected -EINVAL, found %d: %s", line, r, e.text);
	assert_null(g);
	for (; *words; words++)
		if (!strstr(e.text, *words))
			fail_msg("line %d: expected \"%s\" in: %s", line, *words, e.text);
}

static struct gguf *parse_valid(const struct gguf_build *b)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	int r = parse_build(b, &e, &g);

	if (r != 0)
		fail_msg("expected 0, found %d: %s", r, e.text);
	return g;
}

static void test_valid(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf *g = parse_valid(b);
	uint64_t n;

	free(gguf_build_metadata(b, &n));
	assert_int_equal(g->version, 3);
	assert_int_equal(g->alignment, 32);
	assert_int_equal(g->data_offset, n);
	assert_int_equal(g->n_kv, b->n_kv);
	assert_int_equal(g->n_tensors, b->n_tensors);
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_tensor *t = gguf_find_tensor(g, b->tensors[i].name);
		assert_ptr_equal(t, &g->tensors[i]);
		assert_int_equal(t->dtype->id, b->tensors[i].type);
		assert_int_equal(t->n_dims, b->tensors[i].n_dims);
		assert_int_equal(t->ne[0], b->tensors[i].ne[0]);
		assert_int_equal(t->ne[3], 1);
		assert_int_equal(t->offset, n + b->tensors[i].offset);
		assert_int_equal(t->n_bytes, b->tensors[i].n_bytes);
	}
	for (uint32_t i = 0; i < b->n_kv; i++) {
		char key[128];
		snprintf(key, sizeof(key), "%.*s", (int)b->kv[i].n_key_bytes, b->kv[i].key);
		assert_ptr_equal(gguf_find(g, key), &g->kv[i]);
	}
	assert_null(gguf_find(g, "general.nam"));
	assert_null(gguf_find(g, "general.named"));
	assert_null(gguf_find_tensor(g, "output.weight"));
	gguf_free(g);
	b->version = 2;
	gguf_free(parse_valid(b));
	gguf_build_free(b);
	assert_null(gguf_free(NULL));
}

static void set_ne(struct gguf_build_tensor *t, uint32_t n_dims, const uint64_t *ne)
{
	t->n_dims = n_dims;
	memcpy(t->ne, ne, n_dims * sizeof(*ne));
}

/* Classes 1, 2, 3: what overflows where. */
static void test_sizes(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "output_norm.weight");

	set_ne(t, 2, (uint64_t[]){INT64_MAX, 2});
	refuse(b, "tensor output_norm.weight: element count overflows", "9223372036854775807, 2");
	set_ne(t, 3, (uint64_t[]){4, (1ull << 30) - 1, (1ull << 30) + 1});
	refuse(b, "tensor output_norm.weight: padded size overflows", "f32");
	set_ne(t, 2, (uint64_t[]){1ull << 32, 1ull << 32});
	refuse(b, "tensor output_norm.weight: element count overflows");
	set_ne(t, 4, (uint64_t[]){1ull << 32, 1ull << 32, 1ull << 32, 1ull << 32});
	refuse(b, "tensor output_norm.weight: element count overflows");
	set_ne(t, 1, (uint64_t[]){1ull << 60});
	refuse(b, "tensor output_norm.weight: data beyond end of file");
	set_ne(t, 1, (uint64_t[]){1ull << 61});
	refuse(b, "tensor output_norm.weight: padded size overflows");
	set_ne(t, 2, (uint64_t[]){48, 2});
	t->type = DTYPE_Q8_0;
	refuse(b, "tensor output_norm.weight: row length", "multiple of 32 (q8_0)", "found 48");
	gguf_build_free(b);
}

/* Classes 4, 5, 17: where the data are. */
static void test_offsets(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf_build_tensor *last = &b->tensors[b->n_tensors - 1];
	uint64_t n_data = gguf_build_data_bytes(b);

	last->ne[0] = (1 << 20) / sizeof(float);
	last->ne[1] = 1;
	refuse(b, last->name, "data beyond end of file", "expected 1048576 bytes");
	last->ne[0] = 64;
	last->ne[1] = 32;
	gguf_free(parse_valid(b));
	last->offset += 32;
	last->n_bytes -= 32;
	assert_int_equal(gguf_build_data_bytes(b), n_data);
	refuse(b, last->name, "data beyond end of file");
	last->offset = UINT64_MAX - 95;
	refuse(b, last->name, "data beyond end of file");
	last->offset = n_data - 16;
	refuse(b, last->name, "offset", "multiple of 32");
	gguf_build_free(b);
}

/* Leaves room for some megabytes more than there are. */
static struct rlimit limit_memory(void)
{
	struct rlimit old, little;
	unsigned long n_pages;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu", &n_pages), 1);
	fclose(f);
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	little = (struct rlimit){.rlim_cur = n_pages * 4096 + (64 << 20), .rlim_max = old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &little), 0);
	return old;
}

/* Class 6, with too little memory for whoever believes the counts. */
static void test_counts(void **state)
{
	(void)state;
	const uint64_t counts[] = {1ull << 60, UINT64_MAX, 1 << 16, 4};
	struct rlimit old = limit_memory();
	uint8_t file[64] = "GGUF\3";

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		for (size_t at = 8; at <= 16; at += 8) {
			struct err e = ERR_NULL;
			struct gguf *g = NULL;
			memset(file + 8, 0, 16);
			memcpy(file + at, &counts[i], 8);
			assert_int_equal(
				parse_prefix(file, sizeof(file), sizeof(file), &e, &g), -EINVAL);
			assert_non_null(strstr(e.text, at == 8 ? "tensor count" : "key count"));
			/* The same start of a large file. */
			int r = parse_prefix(file, sizeof(file), 1ull << 40, NULL, &g);
			assert_int_equal(r, counts[i] > 1 << 16 ? -EINVAL : GGUF_MORE);
		}
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
}

/* Class 7: a string that claims more than there is. */
static void test_strings(void **state)
{
	(void)state;
	const uint64_t lengths[] = {UINT64_MAX - 15, UINT64_MAX, 1ull << 63, 5};
	struct gguf_build *b = gguf_build_new();

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint8_t value[12] = {0};
		memcpy(value, &lengths[i], 8);
		/* 12 bytes: a length and four characters, one fewer than the last claims. */
		b->alignment = 1;
		gguf_build_set(b, "a.text", GGUF_STRING, value, sizeof(value));
		refuse(b, "key a.text: beyond end of file");
	}
	/* The same as the length of a key, nine characters before the end. */
	uint8_t key[24 + 8 + 9] = "GGUF\3";
	key[16] = 1;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct err e = ERR_NULL;
		struct gguf *g = NULL;
		uint64_t length = lengths[i] == 5 ? 10 : lengths[i];
		memcpy(key + 24, &length, 8);
		assert_int_equal(parse_prefix(key, sizeof(key), sizeof(key), &e, &g), -EINVAL);
		assert_non_null(strstr(e.text, "key 0: "));
		assert_non_null(strstr(e.text, "found"));
	}
	gguf_build_free(b);
}

/* Class 8. */
static void test_alignment(void **state)
{
	(void)state;
	const uint32_t refused[] = {0, 1, 3, 4, 33, 1u << 31, UINT32_MAX};
	struct gguf_build *b = new_tiny();
	int32_t i32 = 32;

	gguf_build_set(b, "general.alignment", GGUF_I32, &i32, sizeof(i32));
	refuse(b, "key general.alignment: expected u32, found i32");
	gguf_build_set_string(b, "general.alignment", "32");
	refuse(b, "key general.alignment: expected u32, found string");
	gguf_build_set_array(b, "general.alignment", GGUF_U32, &i32, 1, 4);
	refuse(b, "key general.alignment: expected u32, found array of u32");
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		char found[32];
		snprintf(found, sizeof(found), "found %" PRIu32, refused[i]);
		gguf_build_set_u32(b, "general.alignment", refused[i]);
		refuse(b, "key general.alignment: expected a power of two", found);
	}
	gguf_build_free(b);
}

/* An array of n_levels arrays around one u8. */
static void set_nested(struct gguf_build *b, uint32_t n_levels)
{
	uint8_t *value = malloc(12 * (size_t)n_levels + 1), *at = value;
	uint64_t one = 1;

	assert_non_null(value);
	for (uint32_t i = 0; i < n_levels; i++, at += 12) {
		uint32_t type = i + 1 < n_levels ? GGUF_ARRAY : GGUF_U8;
		memcpy(at, &type, 4);
		memcpy(at + 4, &one, 8);
	}
	*at++ = 7;
	gguf_build_set(b, "a.nest", GGUF_ARRAY, value, (uint64_t)(at - value));
	free(value);
}

/* Class 9. */
static void test_nesting(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new();

	set_nested(b, 4);
	gguf_free(parse_valid(b));
	set_nested(b, 5);
	refuse(b, "key a.nest: array: expected at most 4 levels");
	set_nested(b, 200000);
	refuse(b, "key a.nest: array: expected at most 4 levels");
	gguf_build_free(b);
}

/* Class 11. */
static void test_twice(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf_build_tensor *k = gguf_build_find_tensor(b, "blk.0.attn_k.weight");
	struct gguf_build_tensor *v = gguf_build_find_tensor(b, "blk.0.attn_v.weight");

	v->offset -= 32;
	refuse(b, "tensor blk.0.attn_v.weight: overlaps tensor blk.0.attn_k.weight");
	v->offset = k->offset;
	refuse(b, "overlaps");
	v->offset += k->n_bytes;
	gguf_free(parse_valid(b));
	strcpy(v->name, k->name);
	refuse(b, "tensor blk.0.attn_k.weight: expected once, found twice");
	strcpy(v->name, "blk.0.attn_v.weight");
	gguf_build_add(b, "general.name", 12, GGUF_U8, "\1", 1);
	refuse(b, "key general.name: expected once, found twice");
	gguf_build_free(b);
}

/* Class 12. */
static void test_types(void **state)
{
	(void)state;
	const uint32_t refused[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 1u << 31, UINT32_MAX};
	struct gguf_build *b = new_tiny();
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "output_norm.weight");

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		char found[32];
		snprintf(found, sizeof(found), "found %" PRIu32, refused[i]);
		t->type = refused[i];
		refuse(b, "tensor output_norm.weight: block format", found);
	}
	t->type = DTYPE_F32;
	gguf_build_set(b, "a.odd", 13, "", 0);
	refuse(b, "key a.odd: type", "found 13");
	gguf_build_set_array(b, "a.odd", 13, "", 0, 1);
	refuse(b, "key a.odd: type", "found 13");
	gguf_build_set(b, "a.odd", GGUF_BOOL, "\2", 1);
	refuse(b, "key a.odd: bool: expected 0 or 1, found 2");
	gguf_build_set_array(b, "a.odd", GGUF_BOOL, "\0\1\xff", 3, 1);
	refuse(b, "key a.odd: bool: expected 0 or 1, found 255");
	gguf_build_free(b);
}

/* Class 13. */
static void test_dimensions(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "output_norm.weight");

	set_ne(t, 0, (uint64_t[]){0});
	refuse(b, "tensor output_norm.weight: dimensions: expected 1 to 4, found 0");
	set_ne(t, 5, (uint64_t[]){32, 1, 1, 1, 1});
	refuse(b, "tensor output_norm.weight: dimensions: expected 1 to 4, found 5");
	set_ne(t, 1, (uint64_t[]){0});
	refuse(b, "tensor output_norm.weight: dimension 0: expected at least 1, found 0");
	set_ne(t, 4, (uint64_t[]){32, 1, 1, 0});
	refuse(b, "tensor output_norm.weight: dimension 3: expected at least 1, found 0");
	set_ne(t, 1, (uint64_t[]){32});
	t->name[0] = '\0';
	refuse(b, "tensor 1: name: expected 1 to 64 bytes");
	memset(t->name, 'n', 65);
	t->name[65] = '\0';
	refuse(b, "tensor 1: expected at most 64 bytes, found 65");
	t->name[64] = '\0';
	gguf_free(parse_valid(b));
	gguf_build_free(b);
}

/* Class 15. */
static void test_versions(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();

	memcpy(b->magic, "GGJT", 4);
	refuse(b, "magic: expected \"GGUF\", found \"GGJT\"");
	memcpy(b->magic, "\n\0\x1b\xff", 4);
	refuse(b, "magic: expected \"GGUF\", found \"????\"");
	memcpy(b->magic, "GGUF", 4);
	b->version = 0;
	refuse(b, "version: expected 2 or 3, found 0");
	b->version = 1;
	refuse(b, "version: expected 2 or 3, found 1");
	b->version = 4;
	refuse(b, "version: expected 2 or 3, found 4");
	b->version = __builtin_bswap32(3);
	refuse(b, "version: expected 2 or 3 in little-endian order, found 3 in big-endian order");
	gguf_build_free(b);
}

/* Class 16, and what a reader of growing prefixes is told. */
static void test_cut(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	uint64_t n_metadata, n_file;
	uint8_t *file = gguf_build_file(b, &n_file);
	struct gguf *g = parse_valid(b);
	uint64_t n_needed = g->data_offset - 31; /* the table's end is in the last 32 bytes */

	gguf_free(g);
	free(gguf_build_metadata(b, &n_metadata));
	assert_true(n_file > 4096 && n_needed > 4096);
	for (uint64_t i = 0; i < n_file; i += i < n_metadata + 64 ? 1 : 97) {
		struct err e = ERR_NULL;
		g = NULL;
		assert_int_equal(parse_prefix(file, i, i, &e, &g), -EINVAL);
		assert_non_null(strstr(e.text, "expected"));
		assert_null(strchr(e.text, '\n'));
		int r = parse_prefix(file, i, n_file, &e, &g);
		if (i < n_needed)
			assert_int_equal(r, GGUF_MORE);
		if (i >= n_metadata)
			assert_int_equal(r, 0);
		gguf_free(g);
	}
	free(file);
	gguf_build_free(b);
}

/* Every byte of the metadata, a few values each: anything but a crash, a hang or a lost byte. */
static void test_mutations(void **state)
{
	(void)state;
	const uint8_t masks[] = {0xff, 0x80, 0x01, 0x40};
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.type = DTYPE_F32, .no_tokenizer = true});
	uint64_t n, n_file;

	gguf_build_set_array(b, "a.array", GGUF_U16, "\1\0\2", 2, 2);
	free(gguf_build_metadata(b, &n));
	uint8_t *data = gguf_build_file(b, &n_file);
	for (uint64_t i = 0; i < n; i++)
		for (size_t j = 0; j < sizeof(masks); j++) {
			struct err e = ERR_NULL;
			struct gguf *g = NULL;
			data[i] ^= masks[j];
			int r = parse_prefix(data, n_file, n_file, &e, &g);
			assert_true(r == 0 || (r == -EINVAL && e.text[0]));
			gguf_free(g);
			data[i] ^= masks[j];
		}
	free(data);
	gguf_build_free(b);
}

/* Class 20. */
static void test_odd_keys(void **state)
{
	(void)state;
	static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
	static const uint8_t zeroes[64], empty_arrays[24];
	struct gguf_build *b = new_tiny();
	char *long_key = malloc(65536);

	assert_non_null(long_key);
	memset(long_key, 'k', 65536);
	gguf_build_add(b, long_key, 65535, GGUF_U8, zeroes, 1);
	gguf_build_add(b, "", 0, GGUF_U8, zeroes, 1);
	gguf_build_add(b, "\0\xff\n", 3, GGUF_U8, zeroes, 1);
	gguf_build_set_string(b, "a.empty", "");
	for (uint32_t type = GGUF_U8; type <= GGUF_F64; type++) {
		char key[32];
		snprintf(key, sizeof(key), "a.value.%" PRIu32, type);
		if (type != GGUF_STRING && type != GGUF_ARRAY)
			gguf_build_set(b, key, type, zeroes, sizes[type]);
		snprintf(key, sizeof(key), "a.array.%" PRIu32, type);
		gguf_build_set_array(b, key, type, zeroes, 0, 1);
		snprintf(key, sizeof(key), "a.array3.%" PRIu32, type);
		if (type == GGUF_ARRAY)
			gguf_build_set_array(b, key, type, empty_arrays, 2, 12);
		else
			gguf_build_set_array(
				b, key, type, zeroes, 3, type == GGUF_STRING ? 8 : sizes[type]);
	}
	struct gguf *g = parse_valid(b);
	assert_int_equal(gguf_find(g, "a.array3.8")->n_elements, 3);
	assert_int_equal(gguf_find(g, "a.array3.9")->element_type, GGUF_ARRAY);
	assert_int_equal(gguf_find(g, "a.array3.12")->n_bytes, 24);
	gguf_free(g);
	gguf_build_add(b, long_key, 65536, GGUF_U8, zeroes, 1);
	refuse(b, "expected at most 65535 bytes, found 65536");
	free(long_key);
	gguf_build_free(b);
}

/* Class 21. */
static void test_odd_placement(void **state)
{
	(void)state;
	const uint32_t alignments[] = {8, 32, 64, 4096};
	for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
		struct gguf_build *b = new_tiny();
		b->alignment = alignments[i];
		gguf_build_set_u32(b, "general.alignment", alignments[i]);
		/* From the back, with a gap before each. */
		uint64_t at = alignments[i];
		for (uint32_t t = b->n_tensors; t-- > 0;) {
			b->tensors[t].offset = at;
			at += b->tensors[t].n_bytes + alignments[i];
			at = (at + alignments[i] - 1) / alignments[i] * alignments[i];
		}
		struct gguf *g = parse_valid(b);
		assert_int_equal(g->alignment, alignments[i]);
		assert_int_equal(g->data_offset % alignments[i], 0);
		assert_true(g->tensors[0].offset > g->tensors[1].offset);
		gguf_free(g);
		gguf_build_free(b);
	}
}

/* As many keys as there may be, in time that does not grow with their square. */
static void test_many_keys(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new();
	char key[32];

	b->kv = calloc(GGUF_MAX_KV + 2, sizeof(*b->kv));
	assert_non_null(b->kv);
	for (uint32_t i = 0; i < GGUF_MAX_KV; i++) {
		int n = snprintf(key, sizeof(key), "key.%" PRIu32, i * 7919 % GGUF_MAX_KV);
		b->kv[i] = (struct gguf_build_kv){.key = strdup(key),
			.n_key_bytes = (uint64_t)n,
			.value = calloc(1, 1),
			.n_value_bytes = 1};
	}
	b->n_kv = GGUF_MAX_KV;
	struct gguf *g = parse_valid(b);
	assert_non_null(gguf_find(g, "key.0"));
	assert_non_null(gguf_find(g, "key.65535"));
	assert_null(gguf_find(g, "key.65536"));
	gguf_free(g);
	strcpy(b->kv[5].key, "key.0");
	b->kv[5].n_key_bytes = 5;
	refuse(b, "key key.0: expected once, found twice");
	gguf_build_add(b, "one more", 8, GGUF_U8, "", 1);
	refuse(b, "key count: expected at most 65536, found 65537");
	gguf_build_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_valid),
		CASE(test_sizes),
		CASE(test_offsets),
		CASE(test_counts),
		CASE(test_strings),
		CASE(test_alignment),
		CASE(test_nesting),
		CASE(test_twice),
		CASE(test_types),
		CASE(test_dimensions),
		CASE(test_versions),
		CASE(test_cut),
		CASE(test_mutations),
		CASE(test_odd_keys),
		CASE(test_odd_placement),
		CASE(test_many_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
