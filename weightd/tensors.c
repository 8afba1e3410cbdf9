/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"

enum { SHAPE_BYTES = 96 };

struct checker {
	const struct gguf *g;
	const char *arch;
	struct err *err;
	uint64_t dims[TENSORS_N_DIMS];
};

/* The key that decides a dimension. */
static const char *const tensors_dim_keys[TENSORS_N_DIMS] = {
	[TENSORS_DIM_EMBD] = "embedding_length",
	[TENSORS_DIM_VOCAB] = "vocab_size",
	[TENSORS_DIM_FF] = "feed_forward_length",
	[TENSORS_DIM_HEAD] = "attention.key_length",
	[TENSORS_DIM_Q] = "attention.head_count",
	[TENSORS_DIM_K] = "attention.head_count_kv",
	[TENSORS_DIM_V] = "attention.head_count_kv",
	[TENSORS_DIM_HEADS] = "attention.head_count",
	[TENSORS_DIM_EXPERTS] = "expert_count",
	[TENSORS_DIM_FF_EXPERT] = "expert_feed_forward_length",
	[TENSORS_DIM_ROT_PAIRS] = "rope.dimension_count",
};

/* "[256, 4096]" */
static void format_shape(uint32_t n_dims, const uint64_t *ne, char ret[static SHAPE_BYTES])
{
	int at = 0;

	for (uint32_t d = 0; d < n_dims; d++)
		at += snprintf(
			ret + at, (size_t)(SHAPE_BYTES - at), "%s%" PRIu64, d ? ", " : "[", ne[d]);
	snprintf(ret + at, (size_t)(SHAPE_BYTES - at), "]");
}

static uint32_t get_shape(const struct checker *c, const struct tensors_row *row, uint64_t ret[4])
{
	uint32_t n_dims = 0;

	for (uint32_t d = 0; d < 4; d++) {
		ret[d] = c->dims[row->dims[d]];
		if (row->dims[d] != TENSORS_DIM_NONE)
			n_dims = d + 1;
	}
	return n_dims;
}

static int check_shape(
	const struct checker *c, const struct tensors_row *row, const struct gguf_tensor *t)
{
	char expected[SHAPE_BYTES], found[SHAPE_BYTES];
	uint64_t ne[4];
	uint32_t n_dims = get_shape(c, row, ne);

	if (ne[0] % t->dtype->n_block != 0)
		return err_set(c->err, EINVAL,
			"key %s.%s: expected rows of whole blocks of %" PRIu32
			" for tensor %s (%s), found rows of %" PRIu64,
			c->arch, tensors_dim_keys[row->dims[0]], t->dtype->n_block,
			gguf_label(t->name).text, t->dtype->name, ne[0]);
	if (memcmp(ne, t->ne, sizeof(ne)) == 0)
		return 0;
	format_shape(n_dims, ne, expected);
	format_shape(t->n_dims, t->ne, found);
	return err_set(c->err, EINVAL, "tensor %s: shape: expected %s, found %s",
		gguf_label(t->name).text, expected, found);
}

static int check_format(
	const struct checker *c, const struct tensors_row *row, const struct gguf_tensor *t)
{
	char supported[DTYPE_LIST_BYTES] = "f32";

	if (row->kind == TENSORS_NORM ? t->dtype->id == DTYPE_F32 : t->dtype->is_supported)
		return 0;
	if (row->kind == TENSORS_MATRIX)
		dtype_list_supported(supported);
	return err_set(c->err, ENOTSUP,
		"tensor %s: block format %s is not supported: expected %s, found %s",
		gguf_label(t->name).text, t->dtype->name, supported, t->dtype->name);
}

static int check_tensor(const struct checker *c, const struct tensors_row *row, const char *name)
{
	const struct gguf_tensor *t = gguf_find_tensor(c->g, name);
	char expected[SHAPE_BYTES];
	uint64_t ne[4];

	if (row->kind == TENSORS_REFUSED)
		return t ? err_set(c->err, ENOTSUP,
				   "tensor %s: it is not supported: expected no such tensor", name)
			 : 0;
	if (!t && row->is_optional)
		return 0;
	if (!t) {
		format_shape(get_shape(c, row, ne), ne, expected);
		return err_set(c->err, EINVAL, "tensor %s: expected %s, found no such tensor", name,
			expected);
	}
	int r = check_shape(c, row, t);
	return r < 0 ? r : check_format(c, row, t);
}

int tensors_check(const struct gguf *g, const char *arch, const struct tensors_row *rows,
	uint32_t n_rows, const struct manifest_hparams *h, struct err *ret_err)
{
	struct checker c = {
		.g = g,
		.arch = arch,
		.err = ret_err,
		.dims = {[TENSORS_DIM_NONE] = 1,
			[TENSORS_DIM_EMBD] = h->n_embd,
			[TENSORS_DIM_VOCAB] = h->n_vocab,
			[TENSORS_DIM_FF] = h->n_ff,
			[TENSORS_DIM_HEAD] = h->head_dim_k,
			[TENSORS_DIM_Q] = (uint64_t)h->n_head * h->head_dim_k,
			[TENSORS_DIM_K] = (uint64_t)h->n_head_kv * h->head_dim_k,
			[TENSORS_DIM_V] = (uint64_t)h->n_head_kv * h->head_dim_v,
			[TENSORS_DIM_HEADS] = (uint64_t)h->n_head * h->head_dim_v,
			[TENSORS_DIM_EXPERTS] = h->n_expert,
			[TENSORS_DIM_FF_EXPERT] = h->n_ff_expert,
			[TENSORS_DIM_ROT_PAIRS] = h->n_rot / 2},
	};
	char name[GGUF_MAX_NAME_BYTES];
	int r = 0;

	for (uint32_t i = 0; i < n_rows && r == 0; i++) {
		if (!rows[i].in_layer)
			r = check_tensor(&c, &rows[i], rows[i].name);
		for (uint32_t l = 0; rows[i].in_layer && l < h->n_layers && r == 0; l++) {
			snprintf(name, sizeof(name), "blk.%" PRIu32 ".%s", l, rows[i].name);
			r = check_tensor(&c, &rows[i], name);
		}
	}
	return r;
}
