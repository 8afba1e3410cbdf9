/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/pair-vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "tests/case.h"

enum {
	N_SLOTS = 1 << 18, /* of both tables: never full */
	MAX_STRING_BYTES = 4 * PAIR_VOCABULARY_N_TOKENS,
	SCRAMBLE = 40503, /* odd: ranks are the pairs' numbers in another order */
};

static const char *const words[PAIR_VOCABULARY_N_WORDS] = {
	"hello", " world", "123", "\n\n\n", "'ll", "\xe6\x9d\xb1\xe4\xba\xac", " !!!", "x y"};
static const char *const controls[] = {
	"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

static void *take(uint64_t n_bytes)
{
	void *p = malloc(n_bytes);

	assert_non_null(p);
	memset(p, 0xff, n_bytes); /* MANIFEST_NONE in every slot */
	return p;
}

static void add_token(struct pair_vocabulary *v, const void *bytes, size_t n_bytes, uint32_t type)
{
	uint32_t at = manifest_hash_bytes(bytes, (uint32_t)n_bytes);

	v->tokens[v->m.n_vocab] = (struct manifest_token){
		.bytes = {.offset = (uint32_t)v->m.n_string_bytes, .n_bytes = (uint32_t)n_bytes},
		.type = type};
	memcpy(v->strings + v->m.n_string_bytes, bytes, n_bytes);
	v->m.n_string_bytes += n_bytes;
	while (v->hash[at % N_SLOTS] != MANIFEST_NONE)
		at++;
	v->hash[at % N_SLOTS] = v->m.n_vocab++;
}

static void add_pair(struct pair_vocabulary *v, uint32_t pair)
{
	uint32_t left = pair >> 8, right = pair & 255;
	uint32_t at = manifest_hash_pair(left, right);

	add_token(v, (const uint8_t[]){(uint8_t)left, (uint8_t)right}, 2, MANIFEST_TOKEN_NORMAL);
	while (v->merges[at % N_SLOTS].left != MANIFEST_NONE)
		at++;
	v->merges[at % N_SLOTS] = (struct manifest_merge){
		left, right, pair * SCRAMBLE % PAIR_VOCABULARY_N_PAIRS, 256 + pair};
}

void pair_vocabulary_init(struct pair_vocabulary *v, enum manifest_pre_tokenizer pre)
{
	*v = (struct pair_vocabulary){
		.tokenizer = {.model = MANIFEST_TOKENIZER_BPE,
			.pre = pre,
			.bos = PAIR_VOCABULARY_BOS,
			.eos = PAIR_VOCABULARY_EOT,
			.pad = MANIFEST_NONE},
		.tokens = take(sizeof(*v->tokens) * PAIR_VOCABULARY_N_TOKENS),
		.strings = take(MAX_STRING_BYTES),
		.hash = take(sizeof(*v->hash) * N_SLOTS),
		.merges = take(sizeof(*v->merges) * N_SLOTS),
	};
	for (uint32_t i = 0; i < 256; i++) {
		v->byte_tokens[i] = i;
		add_token(v, &(uint8_t){(uint8_t)i}, 1, MANIFEST_TOKEN_NORMAL);
	}
	for (uint32_t pair = 0; pair < PAIR_VOCABULARY_N_PAIRS; pair++)
		add_pair(v, pair);
	for (uint32_t i = 0; i < PAIR_VOCABULARY_N_WORDS; i++)
		add_token(v, words[i], strlen(words[i]), MANIFEST_TOKEN_NORMAL);
	for (uint32_t i = 0; i < ARRAY_SIZE(controls); i++) {
		v->specials[i] = v->m.n_vocab;
		add_token(v, controls[i], strlen(controls[i]), MANIFEST_TOKEN_CONTROL);
	}
	assert_int_equal(v->m.n_vocab, PAIR_VOCABULARY_N_TOKENS);
	assert_true(v->m.n_string_bytes <= MAX_STRING_BYTES);
	v->m.tokenizer = &v->tokenizer;
	v->m.strings = v->strings;
	v->m.tokens = v->tokens;
	v->m.token_hash = v->hash;
	v->m.token_hash_mask = N_SLOTS - 1;
	v->m.byte_tokens = v->byte_tokens;
	v->m.merges = v->merges;
	v->m.merge_mask = N_SLOTS - 1;
	v->m.specials = v->specials;
	v->m.n_specials = ARRAY_SIZE(controls);
}

void pair_vocabulary_fini(struct pair_vocabulary *v)
{
	free(v->tokens);
	free(v->strings);
	free(v->hash);
	free(v->merges);
}
