/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/manifest-writer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif

enum { N_SMALL = 12 };

/* Tensors in two allocations by turns, 256-byte aligned. */
static int write_manifest(const struct gguf *g, struct err *e, int *ret_fd, uint64_t *ret_n_bytes)
{
	struct validate_model model;
	uint32_t *alloc = calloc(g->n_tensors + 1, sizeof(*alloc));
	uint64_t *offset = calloc(g->n_tensors + 1, sizeof(*offset));
	struct manifest_alloc allocs[2] = {
		{.placement = MANIFEST_PLACEMENT_DEVICE}, {.placement = MANIFEST_PLACEMENT_STAGED}};
	struct manifest_writer_placement placement = {
		.n_allocs = 2, .allocs = allocs, .tensor_alloc = alloc, .tensor_offset = offset};

	assert_non_null(alloc);
	assert_non_null(offset);
	int r = validate_model(g, e, &model);
	if (r != 0)
		fail_msg("%d: %s", r, e->text);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		alloc[i] = i % 2;
		offset[i] = allocs[i % 2].n_bytes;
		allocs[i % 2].n_bytes += (g->tensors[i].n_bytes + 255) / 256 * 256;
	}
	r = manifest_writer_write(g, &model, &placement, 42, e, ret_fd, ret_n_bytes);
	free(alloc);
	free(offset);
	return r;
}

static struct gguf *parse(const struct gguf_build *b)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	uint64_t n;
	uint8_t *data = gguf_build_metadata(b, &n);
	int r = gguf_parse(data, n, n + gguf_build_data_bytes(b), &e, &g);

	if (r != 0)
		fail_msg("%d: %s", r, e.text);
	g->metadata = data;
	return g;
}

/* Written, sealed, and found good by the reader. */
static struct manifest *write_and_open(const struct gguf *g)
{
	struct err e = ERR_NULL;
	struct manifest *m = NULL;
	uint64_t n_bytes = 0;
	int fd = -1;
	int r = write_manifest(g, &e, &fd, &n_bytes);

	if (r == 0)
		r = manifest_open(fd, &e, &m);
	if (r != 0)
		fail_msg("%d: %s", r, e.text);
	assert_int_equal(
		fcntl(fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(m->n_bytes, n_bytes);
	close(fd);
	return m;
}

static bool string_equals(const struct manifest *m, struct manifest_string s, const char *text)
{
	return s.n_bytes == strlen(text) && memcmp(manifest_get_string(m, s), text, s.n_bytes) == 0;
}

static void test_tensors(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.n_layers = 12, .type = DTYPE_Q8_0, .untied = true});
	struct gguf *g = parse(b);
	struct manifest *m = write_and_open(g);
	uint64_t next[2] = {0, 0};

	assert_int_equal(m->header->generation, 42);
	assert_int_equal(m->n_tensors, g->n_tensors);
	assert_int_equal(m->n_allocs, 2);
	assert_int_equal(m->allocs[0].placement, MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(m->allocs[1].placement, MANIFEST_PLACEMENT_STAGED);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		char name[GGUF_MAX_NAME_BYTES + 1];
		snprintf(name, sizeof(name), "%.*s", (int)g->tensors[i].name.n_bytes,
			g->tensors[i].name.data);
		const struct manifest_tensor *t = manifest_find_tensor(m, name);
		assert_non_null(t);
		assert_int_equal(t->dtype, g->tensors[i].dtype->id);
		assert_int_equal(t->n_dims, g->tensors[i].n_dims);
		assert_memory_equal(t->ne, g->tensors[i].ne, sizeof(t->ne));
		assert_int_equal(t->n_bytes, g->tensors[i].n_bytes);
		assert_int_equal(t->layout, MANIFEST_LAYOUT_RAW);
		assert_int_equal(t->alloc, i % 2);
		assert_int_equal(t->offset, next[i % 2]);
		next[i % 2] += (t->n_bytes + 255) / 256 * 256;
	}
	assert_null(manifest_find_tensor(m, "blk.12.attn_q.weight"));
	assert_true(string_equals(m, m->hparams->architecture, "qwen3"));
	assert_true(string_equals(m, m->hparams->name, "random weights"));
	assert_int_equal(m->hparams->n_layers, 12);
	assert_int_equal(m->hparams->tied_embeddings, 0);
	manifest_free(m);
	gguf_free(g);
	gguf_build_free(b);
}

static void test_tokens(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.type = DTYPE_F32, .n_vocab = 5000});
	struct gguf *g = parse(b);
	struct manifest *m = write_and_open(g);

	assert_int_equal(m->n_vocab, 5000);
	for (uint32_t i = 0; i < 256; i++) {
		uint8_t byte = (uint8_t)i;
		/* The builder's first tokens are the bytes in order. */
		assert_int_equal(m->byte_tokens[i], i);
		assert_int_equal(m->tokens[i].bytes.n_bytes, 1);
		assert_int_equal(*manifest_get_string(m, m->tokens[i].bytes), i);
		assert_int_equal(manifest_find_token(m, &byte, 1), i);
	}
	for (uint32_t i = 0; i < m->n_vocab; i++) {
		struct manifest_string s = m->tokens[i].bytes;
		assert_int_equal(manifest_find_token(m, manifest_get_string(m, s), s.n_bytes), i);
	}
	/* A token is its longest prefix and its last letter. */
	assert_int_equal(m->tokenizer->n_merges, 5000 - 3 - 256);
	for (uint32_t i = 256; i < 5000 - 3; i++) {
		const uint8_t *text = manifest_get_string(m, m->tokens[i].bytes);
		uint32_t n = m->tokens[i].bytes.n_bytes;
		const struct manifest_merge *merge =
			manifest_find_merge(m, manifest_find_token(m, text, n - 1), text[n - 1]);
		assert_non_null(merge);
		assert_int_equal(merge->rank, i - 256);
		assert_int_equal(merge->result, i);
	}
	assert_null(manifest_find_merge(m, 4998, 4999));
	assert_null(manifest_find_merge(m, 'a', ' '));
	assert_int_equal(m->n_specials, 3);
	assert_true(string_equals(m, m->tokens[m->specials[0]].bytes, "<|endoftext|>"));
	assert_true(string_equals(m, m->tokens[m->specials[1]].bytes, "<|im_start|>"));
	assert_true(string_equals(m, m->tokens[m->specials[2]].bytes, "<|im_end|>"));
	assert_true(manifest_is_eog(m, 4999) && manifest_is_eog(m, 4997));
	assert_false(manifest_is_eog(m, 4998));
	manifest_free(m);
	gguf_free(g);
	gguf_build_free(b);
}

/* "A" "B" "AB" " " "\n" and control, user, unused and unknown tokens; UTF-8 spelled in octal. */
static const char *const small_tokens[N_SMALL] = {"A", "B", "AB", "\304\240", "\304\212",
	"\303\205\304\202", "<|longest token|>", "\304\240u", "\n", "pad", "??", "ABA"};
static const int32_t small_types[N_SMALL] = {1, 1, 1, 1, 1, 1, 3, 4, 3, 5, 2, 1};

static struct gguf_build *new_small(const char *const *tokens, const int32_t *types,
	const char *const *merges, uint32_t n_merges)
{
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){
		.type = DTYPE_F32, .n_vocab = N_SMALL, .no_tokenizer = true});
	float scores[N_SMALL] = {[3] = -1.5f};

	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", tokens, N_SMALL);
	if (types)
		gguf_build_set_array(b, "tokenizer.ggml.token_type", GGUF_I32, types, N_SMALL, 4);
	gguf_build_set_array(b, "tokenizer.ggml.scores", GGUF_F32, scores, N_SMALL, 4);
	if (merges)
		gguf_build_set_strings(b, "tokenizer.ggml.merges", merges, n_merges);
	return b;
}

static void test_bytes(void **state)
{
	(void)state;
	struct gguf_build *b =
		new_small(small_tokens, small_types, (const char *const[]){"AB A", "A B"}, 2);
	struct gguf *g = parse(b);
	struct manifest *m = write_and_open(g);

	assert_true(string_equals(m, m->tokens[3].bytes, " "));
	assert_true(string_equals(m, m->tokens[4].bytes, "\n"));
	assert_true(string_equals(m, m->tokens[5].bytes, "\xc5\x02"));
	/* Not byte-level: text as it is. */
	assert_true(string_equals(m, m->tokens[6].bytes, "<|longest token|>"));
	assert_true(string_equals(m, m->tokens[7].bytes, "\304\240u"));
	assert_true(string_equals(m, m->tokens[8].bytes, "\n"));
	assert_int_equal(m->tokens[9].type, MANIFEST_TOKEN_UNUSED);
	assert_true(m->tokens[3].score == -1.5f && m->tokens[4].score == 0);
	/* Of a normal and a control token with the same bytes the normal one is found. */
	assert_int_equal(manifest_find_token(m, "\n", 1), 4);
	assert_int_equal(m->byte_tokens['\n'], 4);
	assert_int_equal(m->byte_tokens['A'], 0);
	assert_int_equal(m->byte_tokens['C'], MANIFEST_NONE);
	assert_int_equal(m->n_specials, 3);
	assert_int_equal(m->specials[0], 6);
	assert_int_equal(m->specials[1], 7);
	assert_int_equal(m->specials[2], 8);
	assert_int_equal(manifest_find_merge(m, 2, 0)->rank, 0);
	assert_int_equal(manifest_find_merge(m, 2, 0)->result, 11);
	assert_int_equal(manifest_find_merge(m, 0, 1)->rank, 1);
	assert_int_equal(m->tokenizer->chat_template.n_bytes, 0);
	manifest_free(m);
	gguf_free(g);
	gguf_build_free(b);
}

/* Frees b. */
static void refuse(struct gguf_build *b, const char *words)
{
	struct err e = ERR_NULL;
	struct gguf *g = parse(b);
	uint64_t n_bytes;
	int fd = -1;
	int r = write_manifest(g, &e, &fd, &n_bytes);

	if (r != -EINVAL || !strstr(e.text, words))
		fail_msg("expected -EINVAL and \"%s\", found %d: %s", words, r, e.text);
	assert_int_equal(fd, -1);
	gguf_free(g);
	gguf_build_free(b);
}

static void refuse_token(uint32_t id, const char *text, const char *words)
{
	const char *tokens[N_SMALL];

	memcpy(tokens, small_tokens, sizeof(tokens));
	tokens[id] = text;
	refuse(new_small(tokens, small_types, NULL, 0), words);
}

static void test_tokens_refused(void **state)
{
	(void)state;
	refuse_token(1, "A", "token 1: expected a text of its own, found \"A\" of token 0");
	refuse_token(7, "\n", ": expected a text of its own, found \"?\" of token ");
	refuse_token(9, "AB", "token 9: expected a text of its own, found \"AB\" of token 2");
	refuse_token(1, "a b", "token 1: expected byte-level text, found \"a b\"");
	refuse_token(1, "\xc2\xa0", "token 1: expected byte-level text"); /* U+00A0 */
	refuse_token(1, "\xc5\x84", "token 1: expected byte-level text"); /* U+0144: one too far */
	refuse_token(1, "\xe4\xb8\xad", "token 1: expected byte-level text");
	refuse_token(1, "\xc4", "token 1: expected byte-level text");
	refuse_token(1, "\xc4\xc4", "token 1: expected byte-level text");
	refuse_token(1, "\x80", "token 1: expected byte-level text");
	refuse_token(1, "\xc1\x81", "token 1: expected byte-level text"); /* "A", overlong */
}

static void refuse_merge(const char *text, const char *words)
{
	refuse(new_small(small_tokens, small_types, (const char *const[]){"A B", text}, 2), words);
}

/* Class 14: merges. */
static void test_merges_refused(void **state)
{
	(void)state;
	refuse_merge("AB", "merge 1: expected two tokens with a space between them, found \"AB\"");
	refuse_merge("", "merge 1: expected two tokens");
	refuse_merge("A  B", "merge 1: expected byte-level text");
	refuse_merge("A B ", "merge 1: expected byte-level text");
	refuse_merge(" A", "merge 1: expected two known tokens");
	refuse_merge("A ", "merge 1: expected two known tokens");
	refuse_merge("A C", "merge 1: expected two known tokens, found \"A C\"");
	refuse_merge("A pad", "merge 1: expected two known tokens");
	refuse_merge("B A", "merge 1: expected a known token as result, found \"B A\"");
	refuse_merge("A B", "merge 1: expected a pair of its own, found \"A B\"");
}

/* Tokens whose hashes agree below: whoever makes such a file gets an answer, not a wait. */
static void test_hash_flood(void **state)
{
	(void)state;
	enum { N = 4096, N_FLOOD = 1100 };
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.type = DTYPE_F32, .n_vocab = N, .no_tokenizer = true});
	const char **tokens = calloc(N, sizeof(*tokens));
	uint32_t n = 0;

	assert_non_null(tokens);
	for (uint32_t i = 0; n < N; i++) {
		char text[16];
		int length = snprintf(text, sizeof(text), "%u", i);
		bool low = (manifest_hash_bytes(text, (uint32_t)length) & 8191) < 16;
		if (low || n >= N_FLOOD)
			tokens[n++] = strdup(text);
	}
	/* The first ones again must not come twice. */
	for (uint32_t i = N_FLOOD; i < N; i++) {
		char text[32];
		snprintf(text, sizeof(text), "x%s", tokens[i]);
		free((void *)(uintptr_t)tokens[i]);
		tokens[i] = strdup(text);
	}
	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", tokens, N);
	refuse(b, "expected spread hashes");
	for (uint32_t i = 0; i < N; i++)
		free((void *)(uintptr_t)tokens[i]);
	free(tokens);
}

static void test_no_tokenizer(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.type = DTYPE_F16, .no_tokenizer = true});
	struct gguf *g = parse(b);
	struct manifest *m = write_and_open(g);

	assert_int_equal(m->tokenizer->model, MANIFEST_TOKENIZER_NONE);
	assert_int_equal(m->n_vocab, 0);
	assert_int_equal(m->hparams->n_vocab, 4);
	assert_int_equal(manifest_find_token(m, "a", 1), MANIFEST_NONE);
	manifest_free(m);
	gguf_free(g);
	gguf_build_free(b);
}

static double read_clock_ms(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/*
 * A vocabulary as large as real ones is written in well under 200 ms: of the processor, because the
 * writer never waits and a busy machine would only add what others do.
 */
static void test_large(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.type = DTYPE_Q8_0, .n_vocab = 151936});
	struct gguf *g = parse(b);
	double best_cpu = INFINITY, best_wall = INFINITY;

	for (int i = 0; i < 5; i++) {
		struct err e = ERR_NULL;
		double cpu = read_clock_ms(CLOCK_PROCESS_CPUTIME_ID);
		double wall = read_clock_ms(CLOCK_MONOTONIC);
		uint64_t n_bytes;
		int fd = -1;
		assert_int_equal(write_manifest(g, &e, &fd, &n_bytes), 0);
		cpu = read_clock_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		wall = read_clock_ms(CLOCK_MONOTONIC) - wall;
		best_cpu = cpu < best_cpu ? cpu : best_cpu;
		best_wall = wall < best_wall ? wall : best_wall;
		close(fd);
	}
	print_message("151936 tokens: %.1f ms of the processor, %.1f ms of the clock\n", best_cpu,
		best_wall);
#ifndef __SANITIZE_ADDRESS__
	assert_true(best_cpu < 200);
#endif
	manifest_free(write_and_open(g));
	gguf_free(g);
	gguf_build_free(b);
}

static void test_atlas(void **state)
{
	(void)state;
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	char path[4096];

	assert_non_null(getenv("WEIGHTD_TEST_DATA"));
	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	int file = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(file >= 0);
	assert_int_equal(gguf_read(file, &e, &g), 0);
	close(file);
	struct manifest *m = write_and_open(g);
	assert_true(string_equals(m, m->hparams->name, "Atlas Dense"));
	assert_int_equal(m->hparams->n_parameters, 5771264);
	assert_int_equal(m->hparams->n_layers, 6);
	assert_int_equal(m->hparams->n_ctx_train, 512);
	assert_int_equal(m->hparams->n_embd, 256);
	assert_int_equal(m->hparams->n_ff, 768);
	assert_int_equal(m->hparams->n_head, 4);
	assert_int_equal(m->hparams->n_head_kv, 2);
	assert_int_equal(m->hparams->head_dim_k, 64);
	assert_int_equal(m->hparams->tied_embeddings, 1);
	assert_int_equal(m->n_tensors, 68);
	assert_int_equal(m->n_vocab, 4096);
	assert_int_equal(m->n_specials, 3);
	assert_int_equal(m->tokenizer->n_merges, 3837);
	assert_int_equal(m->tokenizer->bos, 4093);
	assert_int_equal(m->tokenizer->eos, 4095);
	assert_int_equal(m->tokenizer->pad, 4093);
	assert_int_equal(m->tokenizer->add_bos, 0);
	assert_int_equal(m->tokenizer->n_eog, 2);
	assert_true(manifest_is_eog(m, 4093) && manifest_is_eog(m, 4095));
	assert_int_equal(manifest_find_token(m, " program", 8), 4091);
	for (uint32_t i = 0; i < 256; i++)
		assert_int_not_equal(m->byte_tokens[i], MANIFEST_NONE);
	/* Its first merge is "a n". */
	const struct manifest_merge *merge =
		manifest_find_merge(m, m->byte_tokens['a'], m->byte_tokens['n']);
	assert_non_null(merge);
	assert_int_equal(merge->rank, 0);
	assert_int_equal(merge->result, manifest_find_token(m, "an", 2));
	manifest_free(m);
	gguf_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_tensors),
		CASE(test_tokens),
		CASE(test_bytes),
		CASE(test_tokens_refused),
		CASE(test_merges_refused),
		CASE(test_hash_flood),
		CASE(test_no_tokenizer),
		CASE(test_large),
		CASE(test_atlas),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
