/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>

#include "proto/util/err.h"
#include "tests/unit/manifest-block.h"

enum { ALL_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

/* The text must name what is wrong: the check meant, not an earlier one, is what refused. */
static void expect_refused(const struct manifest_block *b, const char *words)
{
	struct manifest *m = NULL;
	struct err e = ERR_NULL;

	assert_int_equal(manifest_open_bytes(b->data, b->n_bytes, &e, &m), -EINVAL);
	assert_null(m);
	if (!strstr(e.text, words))
		fail_msg("expected \"%s\" in \"%s\"", words, e.text);
}

/* A valid block, then `change`, then a refusal with `words`. b is the block in `change`. */
#define REFUSES(words, change)             \
	do {                               \
		struct manifest_block b;   \
		manifest_block_build(&b);  \
		change;                    \
		expect_refused(&b, words); \
	} while (0)

static struct manifest *open_block(const struct manifest_block *b)
{
	struct manifest *m = NULL;
	struct err e = ERR_NULL;

	if (manifest_open_bytes(b->data, b->n_bytes, &e, &m) != 0)
		fail_msg("refused: %s", e.text);
	return m;
}

static void finds_everything(void **state)
{
	struct manifest_block b;
	struct manifest *m;

	(void)state;
	manifest_block_build(&b);
	m = open_block(&b);
	assert_int_equal(m->header->generation, 7);
	assert_int_equal(m->hparams->n_embd, 64);
	assert_memory_equal(manifest_get_string(m, m->hparams->architecture), "qwen3", 5);
	assert_int_equal(m->n_allocs, 2);
	assert_int_equal(m->n_vocab, 6);
	assert_int_equal(m->n_specials, 1);

	assert_ptr_equal(manifest_find_tensor(m, "a.norm"), m->tensors);
	assert_ptr_equal(manifest_find_tensor(m, "b.weight"), m->tensors + 1);
	assert_ptr_equal(manifest_find_tensor(m, "b.weight.2"), m->tensors + 2);
	assert_null(manifest_find_tensor(m, "b.weigh"));
	assert_null(manifest_find_tensor(m, "b.weight."));
	assert_null(manifest_find_tensor(m, "z"));
	assert_null(manifest_find_tensor(m, ""));

	assert_int_equal(manifest_find_token(m, "a", 1), 0);
	assert_int_equal(manifest_find_token(m, "abc", 3), 4);
	assert_int_equal(manifest_find_token(m, "<|end|>", 7), 5);
	assert_int_equal(manifest_find_token(m, "abcd", 4), MANIFEST_NONE);
	assert_int_equal(manifest_find_token(m, "", 0), MANIFEST_NONE);
	assert_int_equal(m->byte_tokens['b'], 1);

	assert_int_equal(manifest_find_merge(m, 0, 1)->result, 3);
	assert_int_equal(manifest_find_merge(m, 3, 2)->rank, 1);
	assert_null(manifest_find_merge(m, 1, 0));
	assert_null(manifest_find_merge(m, MANIFEST_NONE, MANIFEST_NONE));

	assert_true(manifest_is_eog(m, 5));
	assert_false(manifest_is_eog(m, 0));
	assert_false(manifest_is_eog(m, MANIFEST_NONE));
	assert_null(manifest_free(m));
	assert_null(manifest_free(NULL));
}

/* Puts token 0 into an empty slot: no lookup finds it there, but every probe has to pass it. */
static void fill_a_slot(struct manifest_block *b)
{
	for (int i = 0; i < 8; i++) {
		if (b->token_hash[i] == MANIFEST_NONE) {
			b->token_hash[i] = 0;
			return;
		}
	}
	fail();
}

static void probes_a_full_table(void **state)
{
	struct manifest_block b;
	struct manifest *m;

	(void)state;
	manifest_block_build(&b);
	fill_a_slot(&b); /* seven of eight */
	m = open_block(&b);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(manifest_find_token(m, manifest_get_string(m, m->tokens[i].bytes),
					 m->tokens[i].bytes.n_bytes),
			i);
	for (int c = 'd'; c <= 'z'; c++)
		assert_int_equal(manifest_find_token(m, (char[]){(char)c}, 1), MANIFEST_NONE);
	manifest_free(m);
	fill_a_slot(&b);
	expect_refused(&b, "token hash");
}

static void hashes_as_published(void **state)
{
	(void)state;
	/* FNV-1a 64: "" is the offset basis; "a" and "foobar" are the published test vectors. */
	assert_int_equal(manifest_hash_bytes("", 0), 0xcbf29ce4u ^ 0x84222325u);
	assert_int_equal(manifest_hash_bytes("a", 1), 0xaf63dc4cu ^ 0x8601ec8cu);
	assert_int_equal(manifest_hash_bytes("foobar", 6), 0x85944171u ^ 0xf73967e8u);
	assert_int_equal(manifest_hash_pair(1, 2), manifest_hash_bytes("\1\0\0\0\2\0\0\0", 8));
}

static void opens_without_a_tokenizer(void **state)
{
	struct manifest_block b;
	struct manifest *m;

	(void)state;
	manifest_block_build(&b);
	for (int i = MANIFEST_TOKENS; i <= MANIFEST_SPECIALS; i++)
		b.header->sections[i].n_bytes = 0;
	*b.tokenizer = (struct manifest_tokenizer){
		.bos = MANIFEST_NONE, .eos = MANIFEST_NONE, .pad = MANIFEST_NONE};
	m = open_block(&b);
	assert_int_equal(m->n_vocab, 0);
	assert_int_equal(manifest_find_token(m, "a", 1), MANIFEST_NONE);
	assert_null(manifest_find_merge(m, 0, 1));
	manifest_free(m);
	b.header->sections[MANIFEST_SPECIALS].n_bytes = 4;
	expect_refused(&b, "without a tokenizer");
}

static void refuses_bad_headers(void **state)
{
	(void)state;
	REFUSES("size", b.n_bytes = sizeof(struct manifest_header) - 1);
	REFUSES("size", b.n_bytes = 0);
	REFUSES("size", b.n_bytes -= 16);
	REFUSES("size", b.n_bytes = (uint64_t)MANIFEST_MAX_BYTES + 1);
	REFUSES("magic", b.header->magic ^= 1);
	REFUSES("version: expected 2, found 1", b.header->version = 1);
	REFUSES("sections", b.header->n_sections--);
	REFUSES("sections", b.header->n_sections++);
	REFUSES("size", b.header->n_bytes++);
	for (int i = 0; i < MANIFEST_N_SECTIONS; i++) {
		REFUSES("section", b.header->sections[i].offset += 8);
		REFUSES("section", b.header->sections[i].offset = 0);
		REFUSES("section", b.header->sections[i].offset = b.n_bytes + 16);
		REFUSES("section", b.header->sections[i].offset = UINT64_MAX - 15);
		REFUSES("section", b.header->sections[i].n_bytes = b.n_bytes);
		REFUSES("section", b.header->sections[i].n_bytes = UINT64_MAX);
		if (i != MANIFEST_STRINGS)
			REFUSES("section", b.header->sections[i].n_bytes--);
	}
	REFUSES("section 1", b.header->sections[MANIFEST_HPARAMS].n_bytes = 0);
	REFUSES("section 1", b.header->sections[MANIFEST_HPARAMS].n_bytes *= 2);
	REFUSES("section 4", b.header->sections[MANIFEST_TOKENIZER].n_bytes = 0);
}

static void refuses_misaligned_bytes(void **state)
{
	struct manifest_block b;
	struct manifest *m = NULL;
	struct err e = ERR_NULL;

	(void)state;
	manifest_block_build(&b);
	memmove(b.data + 8, b.data, b.n_bytes);
	assert_int_equal(manifest_open_bytes(b.data + 8, b.n_bytes, &e, &m), -EINVAL);
	assert_non_null(strstr(e.text, "aligned"));
}

static void refuses_bad_hparams(void **state)
{
	(void)state;
	REFUSES("string", b.hparams->architecture.offset = 128);
	REFUSES("string", b.hparams->name.n_bytes = UINT32_MAX);
	REFUSES("n_layers", b.hparams->n_layers = 0);
	REFUSES("n_layers", b.hparams->n_layers = MANIFEST_MAX_LAYERS + 1);
	REFUSES("n_ctx_train", b.hparams->n_ctx_train = 0);
	REFUSES("n_embd", b.hparams->n_embd = 0);
	REFUSES("n_embd", b.hparams->n_embd = UINT32_MAX);
	REFUSES("n_ff", b.hparams->n_ff = 0);
	REFUSES("n_head", b.hparams->n_head = 0);
	REFUSES("n_head_kv", b.hparams->n_head_kv = 0);
	REFUSES("n_head_kv", b.hparams->n_head_kv = 5);
	REFUSES("multiple of n_head_kv", b.hparams->n_head_kv = 3);
	REFUSES("head_dim_k", b.hparams->head_dim_k = 0);
	REFUSES("head_dim_v", b.hparams->head_dim_v = MANIFEST_MAX_HEAD_DIM + 1);
	REFUSES("n_rot", b.hparams->n_rot = 18);
	REFUSES("n_rot: expected an even", b.hparams->n_rot = 15);
	REFUSES("n_vocab", b.hparams->n_vocab = 0);
	REFUSES("tokens: expected n_vocab 7, found 6", b.hparams->n_vocab = 7);
	REFUSES("rms_eps", b.hparams->rms_eps = NAN);
	REFUSES("rms_eps", b.hparams->rms_eps = 0);
	REFUSES("rope_base", b.hparams->rope_base = -1);
	REFUSES("rope_base", b.hparams->rope_base = INFINITY);
	REFUSES("n_expert", b.hparams->n_expert = MANIFEST_MAX_EXPERTS + 1);
	REFUSES("n_expert_used", b.hparams->n_expert_used = 1);
	REFUSES("n_expert_used", b.hparams->n_expert = 4);
	REFUSES("n_ff_expert", (b.hparams->n_expert = 4, b.hparams->n_expert_used = 2));
	REFUSES("tied_embeddings", b.hparams->tied_embeddings = 2);
	REFUSES("n_window", b.hparams->n_window = MANIFEST_MAX_CTX + 1);
	REFUSES("window_period", b.hparams->window_period = MANIFEST_MAX_LAYERS + 1);
}

static void refuses_bad_tensors(void **state)
{
	(void)state;
	REFUSES("allocation 0: size", b.allocs[0].n_bytes = 0);
	REFUSES("allocation 0: size", b.allocs[0].n_bytes = 1ull << 63);
	REFUSES("allocation 1: unknown placement", b.allocs[1].placement = 0);
	REFUSES("allocation 1: unknown placement", b.allocs[1].placement = 5);
	REFUSES("allocation 1: padding", b.allocs[1].pad = 1);
	REFUSES("tensor 0: name", b.tensors[0].name.n_bytes = 0);
	REFUSES("tensor 0: name", b.tensors[0].name.offset = 125);
	REFUSES("tensor 0: name", b.tensors[0].name.offset = UINT32_MAX);
	REFUSES("tensor 1: name: twice", b.tensors[1].name = b.tensors[0].name);
	REFUSES("tensor 2: name: twice or out of order", b.tensors[2].name = b.tensors[0].name);
	REFUSES("tensor 2: name: twice", b.tensors[2].name.n_bytes = 7);
	REFUSES("tensor b.weight: unknown block format", b.tensors[1].dtype = 4);
	REFUSES("tensor b.weight: expected 1 to 4", b.tensors[1].n_dims = 0);
	REFUSES("tensor b.weight: expected 1 to 4", b.tensors[1].n_dims = 5);
	REFUSES("tensor b.weight: a dimension of 0", b.tensors[1].ne[1] = 0);
	REFUSES("tensor b.weight: expected 1 for unused", b.tensors[1].ne[3] = 2);
	REFUSES("tensor b.weight: a shape", b.tensors[1].ne[0] = 48);
	REFUSES("tensor b.weight: a shape", b.tensors[1].ne[1] = 1ull << 60);
	REFUSES("tensor b.weight: a size", b.tensors[1].n_bytes++);
	REFUSES("tensor b.weight: a size", b.tensors[1].ne[1] = 3);
	REFUSES("tensor b.weight: an allocation", b.tensors[1].alloc = 2);
	REFUSES("tensor b.weight: unknown layout", b.tensors[1].layout = 1);
	REFUSES("tensor b.weight: a range", b.tensors[1].offset++);
	REFUSES("tensor b.weight: a range", b.tensors[1].offset = UINT64_MAX);
	REFUSES("tensor b.weight: a range", b.tensors[1].alloc = 1);
}

static void refuses_bad_tokenizers(void **state)
{
	(void)state;
	REFUSES("unknown model", b.tokenizer->model = 2);
	REFUSES("unknown pre", b.tokenizer->pre = 0);
	REFUSES("bos", b.tokenizer->bos = 6);
	REFUSES("eos", b.tokenizer->eos = MANIFEST_NONE - 1);
	REFUSES("pad", b.tokenizer->pad = 6);
	REFUSES("end tokens", b.tokenizer->n_eog = 9);
	REFUSES("end token", b.tokenizer->eog[0] = 6);
	REFUSES("end token", (b.tokenizer->n_eog = 2, b.tokenizer->eog[1] = MANIFEST_NONE));
	REFUSES("add_bos", b.tokenizer->add_bos = 2);
	REFUSES("chat template", b.tokenizer->chat_template.n_bytes = 200);
	REFUSES("token 3: outside", b.tokens[3].bytes.offset = 129);
	REFUSES("token 3: unknown type", b.tokens[3].type = 0);
	REFUSES("token 3: unknown type", b.tokens[3].type = 7);
	REFUSES("byte tokens", b.header->sections[MANIFEST_BYTE_TOKENS].n_bytes = 255 * 4);
	REFUSES("byte 0x61", b.byte_tokens['a'] = 1);
	REFUSES("byte 0x61", b.byte_tokens['a'] = 3);
	REFUSES("byte 0x61", b.byte_tokens['a'] = 6);
	REFUSES("special 0", b.specials[0] = 6);
	REFUSES("special 0", b.specials[0] = MANIFEST_NONE);
	REFUSES("special 0: token 3", b.specials[0] = 3);
	REFUSES("special 0: token 5: empty", b.tokens[5].bytes.n_bytes = 0);
	REFUSES("special 1: token 5: empty or longer", ({
		b.tokens[0].type = MANIFEST_TOKEN_USER;
		b.header->sections[MANIFEST_SPECIALS].n_bytes = 8;
		b.specials[0] = 0;
		b.specials[1] = 5;
	}));
}

/* A table without an empty slot would hold a probe for ever. */
static void refuses_bad_tables(void **state)
{
	(void)state;
	REFUSES("token hash", b.token_hash[0] = 6);
	REFUSES("token hash", memset(b.token_hash, 0, 8 * sizeof(uint32_t)));
	REFUSES("token hash", b.header->sections[MANIFEST_TOKEN_HASH].n_bytes = 7 * 4);
	REFUSES("token hash", b.header->sections[MANIFEST_TOKEN_HASH].n_bytes = 4 * 4);
	REFUSES("token hash", b.header->sections[MANIFEST_TOKEN_HASH].n_bytes = 0);
	REFUSES("merges", b.tokenizer->n_merges = 3);
	REFUSES("merges", b.header->sections[MANIFEST_MERGES].n_bytes = 3 * 16);
	REFUSES("merges", b.header->sections[MANIFEST_MERGES].n_bytes = 0);
	REFUSES("merges", ({
		memset(b.merges, 0, 4 * sizeof(struct manifest_merge));
		b.tokenizer->n_merges = 4;
	}));
	for (int i = 0; i < 4; i++) {
		REFUSES("merge", (b.merges[i] = (struct manifest_merge){6, 0, 0, 0}));
		REFUSES("merge", (b.merges[i] = (struct manifest_merge){0, 6, 0, 0}));
		REFUSES("merge", (b.merges[i] = (struct manifest_merge){0, 0, 2, 0}));
		REFUSES("merge", (b.merges[i] = (struct manifest_merge){0, 0, 0, MANIFEST_NONE}));
	}
}

static int make_memfd(const struct manifest_block *b, int seals)
{
	int fd = memfd_create("manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, b->data, b->n_bytes), b->n_bytes);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void maps_a_sealed_memfd(void **state)
{
	struct manifest_block b;
	struct manifest *m = NULL;
	struct err e = ERR_NULL;
	int fd;

	(void)state;
	manifest_block_build(&b);
	fd = make_memfd(&b, ALL_SEALS);
	assert_int_equal(manifest_open(fd, &e, &m), 0);
	close(fd);
	assert_int_equal(manifest_find_token(m, "abc", 3), 4);
	manifest_free(m);
}

static void refuses_what_could_change(void **state)
{
	static const int seals[] = {
		0,
		F_SEAL_SHRINK | F_SEAL_GROW,
		F_SEAL_SHRINK | F_SEAL_WRITE,
		F_SEAL_GROW | F_SEAL_WRITE,
		F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
	};
	struct manifest_block b;
	struct manifest *m = NULL;
	struct err e = ERR_NULL;
	int fd;

	(void)state;
	manifest_block_build(&b);
	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		fd = make_memfd(&b, seals[i]);
		assert_int_equal(manifest_open(fd, &e, &m), -EINVAL);
		assert_non_null(strstr(e.text, "seals"));
		close(fd);
	}
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(manifest_open(fd, &e, &m), -EINVAL);
	close(fd);
	b.n_bytes = 16;
	fd = make_memfd(&b, ALL_SEALS);
	assert_int_equal(manifest_open(fd, &e, &m), -EINVAL);
	assert_non_null(strstr(e.text, "size"));
	close(fd);
	assert_null(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(finds_everything),
		CASE(probes_a_full_table),
		CASE(hashes_as_published),
		CASE(opens_without_a_tokenizer),
		CASE(refuses_bad_headers),
		CASE(refuses_misaligned_bytes),
		CASE(refuses_bad_hparams),
		CASE(refuses_bad_tensors),
		CASE(refuses_bad_tokenizers),
		CASE(refuses_bad_tables),
		CASE(maps_a_sealed_memfd),
		CASE(refuses_what_could_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
