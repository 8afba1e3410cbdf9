/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic models: weightd's reader takes them, and their numbers are what they promise to be. */
#include "tests/case.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "tests/ref/ref-ops.h"
#include "weightctl/synthetic-shape.h"
#include "weightctl/synthetic.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

static const char *const type_names[] = {
	"f16", "q8_0", "q4_0", "q4_k", "q4_k_m", "q6_k", "tq2_0", "q2_0", "q1_0"};

/* A file as weightd sees it. */
struct file {
	int fd;
	uint64_t n_bytes;
	const uint8_t *map;
};

static struct file make(const char *name, uint64_t seed)
{
	struct file f = {.fd = -1};
	struct err e = ERR_NULL;
	struct stat st;
	int r = synthetic_make(name, seed, &e, &f.fd, &f.n_bytes);

	if (r)
		fail_msg("%s: %d %s", name, r, e.text);
	assert_int_equal(fstat(f.fd, &st), 0);
	assert_int_equal(st.st_size, f.n_bytes);
	f.map = mmap(NULL, f.n_bytes, PROT_READ, MAP_PRIVATE, f.fd, 0);
	assert_true(f.map != MAP_FAILED);
	return f;
}

static void drop(struct file *f)
{
	munmap((void *)f->map, f->n_bytes);
	close(f->fd);
}

enum { MAX_BLOCK = 256 }; /* numbers */

static void check_numbers(const struct gguf_tensor *t, const uint8_t *data)
{
	double sum = 0, squares = 0, wanted = 1 / sqrt((double)t->ne[0]);
	uint64_t n_blocks = t->n_elements / t->dtype->n_block, n = 0;
	float numbers[MAX_BLOCK];

	assert_in_range(t->dtype->n_block, 1, MAX_BLOCK);

	for (uint64_t k = 0; k < n_blocks; k++) {
		ref_ops_dequantize(
			t->dtype->id, data + k * t->dtype->n_bytes, t->dtype->n_block, numbers);
		for (uint32_t i = 0; i < t->dtype->n_block; i++, n++) {
			float v = numbers[i];

			assert_true(isfinite(v));
			sum += v;
			squares += (double)v * v;
		}
	}
	double mean = sum / (double)n, deviation = sqrt(squares / (double)n - mean * mean);
	if (fabs(deviation / wanted - 1) > 0.03 || fabs(mean) > 0.03 * wanted)
		fail_msg("%.*s: %s: mean %g, deviation %g, expected 0 and %g", (int)t->name.n_bytes,
			t->name.data, t->dtype->name, mean, deviation, wanted);
}

/* No two rows are one: a pool that is repeated must not show. */
static void check_rows(const struct gguf_tensor *t, const uint8_t *data)
{
	uint64_t n_row = t->n_bytes / t->ne[1];

	for (uint64_t i = 1; i < t->ne[1]; i++)
		assert_memory_not_equal(data, data + i * n_row, n_row);
}

static void check_tensor(const struct gguf_tensor *t, const uint8_t *file)
{
	float ones[768];

	if (t->n_dims == 2) {
		check_numbers(t, file + t->offset);
		check_rows(t, file + t->offset);
		return;
	}
	assert_int_equal(t->dtype->id, DTYPE_F32);
	assert_true(t->ne[0] <= ARRAY_SIZE(ones));
	memcpy(ones, file + t->offset, t->n_bytes);
	for (uint64_t i = 0; i < t->ne[0]; i++)
		assert_true(ones[i] > 0.8f && ones[i] < 1.2f);
}

static void expect_tensor(
	const struct gguf *g, const char *name, uint64_t k, uint64_t n, uint32_t dtype)
{
	const struct gguf_tensor *t = gguf_find_tensor(g, name);

	if (!t)
		fail_msg("no %s", name);
	if (t->ne[0] != k || t->ne[1] != n || t->ne[2] != 1 || t->dtype->id != dtype)
		fail_msg(
			"%s: found %d x %d %s", name, (int)t->ne[0], (int)t->ne[1], t->dtype->name);
}

static void check_table(const struct gguf *g, const struct synthetic_type *type)
{
	uint32_t more = type->dtype_more;

	assert_int_equal(g->n_tensors, 3 + 4 * 11);
	expect_tensor(g, "token_embd.weight", 256, 512, type->dtype);
	expect_tensor(g, "output.weight", 256, 512, more);
	expect_tensor(g, "output_norm.weight", 256, 1, DTYPE_F32);
	expect_tensor(g, "blk.0.attn_q.weight", 256, 256, type->dtype);
	expect_tensor(g, "blk.3.attn_k.weight", 256, 128, type->dtype);
	expect_tensor(g, "blk.2.attn_v.weight", 256, 128, more);
	expect_tensor(g, "blk.1.attn_v.weight", 256, 128, type->dtype);
	expect_tensor(g, "blk.1.attn_q_norm.weight", 64, 1, DTYPE_F32);
	expect_tensor(g, "blk.3.ffn_down.weight", 768, 256, more);
	expect_tensor(g, "blk.1.ffn_gate.weight", 256, 768, type->dtype);
}

/* The engine computes all of them. */
static void check_model(const struct gguf *g, const struct synthetic_type *type)
{
	struct validate_model model;
	struct err e = ERR_NULL;
	int r = validate_model(g, &e, &model);

	if (r)
		fail_msg("%s: %d %s", type->name, r, e.text);
	assert_int_equal(model.hparams.n_layers, 4);
	assert_int_equal(model.hparams.n_vocab, 512);
	assert_int_equal(model.hparams.n_head_kv, 2);
	assert_non_null(model.tokens);
}

static void test_types(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(type_names); i++) {
		const struct synthetic_shape *shape;
		const struct synthetic_type *type;
		struct gguf *g = NULL;
		struct err e = ERR_NULL;
		char name[32];

		snprintf(name, sizeof(name), "tiny:%s", type_names[i]);
		assert_int_equal(synthetic_shape_find(name, &e, &shape, &type), 0);
		struct file f = make(name, 1);
		int r = gguf_read(f.fd, &e, &g);
		if (r)
			fail_msg("%s: %s", name, e.text);
		check_table(g, type);
		check_model(g, type);
		for (uint64_t k = 0; k < g->n_tensors; k++)
			check_tensor(&g->tensors[k], f.map);
		gguf_free(g);
		drop(&f);
	}
}

static void test_seed(void **state)
{
	(void)state;
	struct file a = make("tiny:q8_0", 1), b = make("tiny:q8_0", 1), c = make("tiny:q8_0", 2);

	assert_int_equal(a.n_bytes, b.n_bytes);
	assert_int_equal(a.n_bytes, c.n_bytes);
	assert_memory_equal(a.map, b.map, a.n_bytes);
	assert_memory_not_equal(a.map, c.map, a.n_bytes);
	drop(&a);
	drop(&b);
	drop(&c);
}

/* Numbers of the published models, without Llama's rope_freqs. */
static void test_sizes(void **state)
{
	static const struct {
		const char *name;
		uint64_t n_numbers;
	} models[] = {
		{"llama-8b:q4_k_m", 8030261248},
		{"llama-1b:q8_0", 1235814400},
		{"qwen3-0.6b:f16", 596049920},
		{"qwen3-8b:q4_k", 8190735360},
		{"qwen3moe-30b-a3b:q4_k", 30532122624},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		const struct synthetic_shape *shape;
		const struct synthetic_type *type;
		struct synthetic_tensor *tensors;
		uint64_t n_bytes, n_numbers = 0;
		struct err e = ERR_NULL;
		uint32_t n;

		assert_int_equal(synthetic_shape_find(models[i].name, &e, &shape, &type), 0);
		assert_int_equal(
			synthetic_shape_list(shape, type, 32, &e, &tensors, &n, &n_bytes), 0);
		for (uint32_t k = 0; k < n; k++) {
			const struct synthetic_tensor *t = &tensors[k];
			uint64_t ne[3] = {t->ne[0], t->n_dims > 1 ? t->ne[1] : 1,
				t->n_dims > 2 ? t->ne[2] : 1};

			assert_int_equal(t->offset % 32, 0);
			assert_true(t->offset + t->n_bytes <= n_bytes);
			if (t->fill != SYNTHETIC_ROPE)
				n_numbers += ne[0] * ne[1] * ne[2];
		}
		if (n_numbers != models[i].n_numbers)
			fail_msg("%s: %llu numbers", models[i].name, (unsigned long long)n_numbers);
		/* As llama.cpp's own file of 4.92 GB. */
		if (i == 0)
			assert_in_range(n_bytes, 4900000000, 4930000000);
		free(tensors);
	}
}

static void test_refusals(void **state)
{
	static const char *const names[] = {"", ":", "tiny", "tiny:", ":q8_0", "tiny:q9",
		"tin:q8_0", "tiny:q8_0:", "tiny :q8_0", "llama-8b:Q4_K_M"};
	struct err e;
	uint64_t n_bytes = 0;
	int fd = -1;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		e = ERR_NULL;
		assert_int_equal(synthetic_make(names[i], 1, &e, &fd, &n_bytes), -EINVAL);
		assert_int_equal(synthetic_check(names[i], &e), -EINVAL);
		assert_int_equal(fd, -1);
		assert_non_null(strstr(e.text, "qwen3moe-30b-a3b"));
		assert_non_null(strstr(e.text, "q1_0"));
		assert_non_null(strstr(e.text, "found "));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_types),
		CASE(test_seed),
		CASE(test_sizes),
		CASE(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
