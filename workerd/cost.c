/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/cost.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "shaders/abi.h"
#include "workerd/graph.h"

enum { NAME_BYTES = 32 };

/* Is the word in the name, between its ends and underscores? "Q8_0" in "MATMUL_Q8_0_X2". */
static bool has_word(const char *name, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = strstr(name, word); at; at = strstr(at + 1, word))
		if ((at == name || at[-1] == '_') && (at[n] == '\0' || at[n] == '_'))
			return true;
	return false;
}

static bool reads_format(enum kernels_id id, uint32_t dtype)
{
	const struct dtype *t = dtype_find(dtype);
	char upper[NAME_BYTES] = "";

	for (size_t i = 0; t && t->name[i] && i < sizeof(upper) - 1; i++)
		upper[i] = (char)toupper((unsigned char)t->name[i]);
	return upper[0] && has_word(kernels_get(id)->name, upper);
}

static const struct weights_tensor *get_parts(const struct graph_op *op, uint32_t *ret_n)
{
	if (op->kind == GRAPH_EXPERTS) {
		*ret_n = op->experts.n_parts;
		return op->experts.w;
	}
	*ret_n = op->kind == GRAPH_MATMUL ? op->matmul.n_parts : 0;
	return op->matmul.w;
}

/* Which parts of the op the kernel reads, a bit each: all where its name does not tell. */
static uint32_t get_read_parts(const struct graph_op *op, enum kernels_id id)
{
	uint32_t n = 0, read = 0;
	const struct weights_tensor *w = get_parts(op, &n);

	for (uint32_t i = 0; i < n; i++)
		if (reads_format(id, w[i].dtype))
			read |= 1u << i;
	return read ? read : (1u << n) - 1;
}

/* Kernels that only prepare or gather: what they read is no weight, and small. */
static bool is_helper(enum kernels_id id)
{
	switch (id) {
	case KERNELS_ROUTE:
	case KERNELS_GROUP:
	case KERNELS_MIX:
	case KERNELS_CACHE:
	case KERNELS_CACHE_FILL:
	case KERNELS_QUANTIZE:
	case KERNELS_STAGE:
	case KERNELS_SKINNY_STAGE:
	case KERNELS_MATRIX_SUM:
	case KERNELS_BEST_PARTS:
	case KERNELS_BEST_MERGE: return true;
	default: return false;
	}
}

bool cost_is_kindred(const struct graph_op *op, enum kernels_id a, enum kernels_id b)
{
	return !is_helper(a) && !is_helper(b) && get_read_parts(op, a) == get_read_parts(op, b);
}

static void get_matmul(const struct cost_step *s, const struct graph_op *op, enum kernels_id id,
	struct cost *ret_cost)
{
	uint64_t m = op->is_head ? s->n_want : s->n_rows, n = 0;
	uint32_t read = get_read_parts(op, id);

	for (uint32_t i = 0; i < op->matmul.n_parts; i++) {
		const struct weights_tensor *w = &op->matmul.w[i];

		if (!(read & 1u << i))
			continue;
		n += w->ne[1];
		ret_cost->n_weight_bytes += w->n_bytes;
		ret_cost->n_flops += 2 * m * w->ne[0] * w->ne[1];
	}
	snprintf(ret_cost->shape, sizeof(ret_cost->shape), "%" PRIu64 " x %" PRIu64,
		op->matmul.w[0].ne[0], n);
}

/* The experts that m tokens take, each n_used of n, if all are as likely: n (1 - (1 - used/n)^m).
 */
static double count_experts(uint64_t m, uint32_t n, uint32_t n_used)
{
	return n * (1 - pow(1 - (double)n_used / n, (double)m));
}

static void get_experts(const struct cost_step *s, const struct graph_op *op, enum kernels_id id,
	struct cost *ret_cost)
{
	uint32_t n_expert = s->graph->n_expert, n_used = s->graph->n_expert_used;
	uint32_t read = get_read_parts(op, id);
	double share = count_experts(s->n_rows, n_expert, n_used) / n_expert;
	uint64_t n = 0;

	for (uint32_t i = 0; i < op->experts.n_parts; i++) {
		const struct weights_tensor *w = &op->experts.w[i];

		if (!(read & 1u << i))
			continue;
		n += w->ne[1];
		ret_cost->n_weight_bytes += (uint64_t)((double)w->n_bytes * share);
		ret_cost->n_flops += 2ull * s->n_rows * n_used * w->ne[0] * w->ne[1];
	}
	snprintf(ret_cost->shape, sizeof(ret_cost->shape), "%u of %u x %" PRIu64 " x %" PRIu64,
		n_used, n_expert, op->experts.w[0].ne[0], n);
}

/* Of keys and values, those of one token in one layer. */
static uint64_t get_token_bytes(const struct cost_step *s)
{
	uint64_t n_numbers = 2ull * s->graph->n_head_kv * s->graph->head_dim;

	return s->kv_type == KV_LAYOUT_Q8_0
		       ? n_numbers + n_numbers / KV_LAYOUT_BLOCK * sizeof(uint16_t)
		       : n_numbers * sizeof(uint16_t);
}

/* Keys that a row sees. */
static uint64_t get_n_keys(const struct abi_row *row, uint32_t window)
{
	uint64_t n = (uint64_t)row->position + 1;

	return window && n > window ? window : n;
}

/*
 * A session's keys are read once for all its rows of the step: those that its last row sees, and
 * with a window those that only its first ones do.
 */
static void get_attention(
	const struct cost_step *s, const struct graph_op *op, struct cost *ret_cost)
{
	uint32_t window = op->attention.window;
	uint64_t n_seen = 0, n_read = 0;

	for (uint32_t i = 0; i < s->n_rows; i++) {
		const struct abi_row *row = &s->rows[i];
		bool is_first = i == 0 || row->slot != s->rows[i - 1].slot;

		n_seen += get_n_keys(row, window);
		n_read += is_first ? get_n_keys(row, window) : 1;
	}
	ret_cost->n_kv_bytes = n_read * get_token_bytes(s);
	/* q k and the weighted sum of v: a multiplication and an addition for each number. */
	ret_cost->n_flops = 4 * n_seen * s->graph->n_head * s->graph->head_dim;
	snprintf(ret_cost->shape, sizeof(ret_cost->shape), "%u / %u heads of %u%s",
		s->graph->n_head, s->graph->n_head_kv, s->graph->head_dim,
		window ? ", window" : "");
}

static void get_embed(const struct cost_step *s, const struct graph_op *op, struct cost *ret_cost)
{
	const struct weights_tensor *w = &op->embed.w;

	ret_cost->n_weight_bytes = w->n_bytes / (w->ne[1] ? w->ne[1] : 1) * s->n_rows;
	snprintf(ret_cost->shape, sizeof(ret_cost->shape), "%" PRIu64, w->ne[0]);
}

static void get_rope_kv(const struct cost_step *s, struct cost *ret_cost)
{
	ret_cost->n_kv_bytes = s->n_rows * get_token_bytes(s);
	snprintf(ret_cost->shape, sizeof(ret_cost->shape), "%u + %u heads of %u", s->graph->n_head,
		2 * s->graph->n_head_kv, s->graph->head_dim);
}

void cost_get(const struct cost_step *step, const struct graph_op *op, enum kernels_id id,
	uint32_t n_alike, uint32_t n_kindred, struct cost *ret_cost)
{
	struct cost cost = {.shape = "-"};

	if (!is_helper(id)) {
		switch (op->kind) {
		case GRAPH_EMBED: get_embed(step, op, &cost); break;
		case GRAPH_MATMUL: get_matmul(step, op, id, &cost); break;
		case GRAPH_ROPE_KV: get_rope_kv(step, &cost); break;
		case GRAPH_ATTENTION: get_attention(step, op, &cost); break;
		case GRAPH_ROUTE:
		case GRAPH_BEST: break;
		case GRAPH_EXPERTS: get_experts(step, op, id, &cost); break;
		}
	}
	cost.n_weight_bytes /= n_alike;
	cost.n_kv_bytes /= n_alike;
	cost.n_flops /= n_kindred ? n_kindred : 1; /* a helper has no kin, and no cost */
	*ret_cost = cost;
}
