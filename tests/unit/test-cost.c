/* SPDX-License-Identifier: Apache-2.0 */
/* What a dispatch has to read and compute, counted by hand. */
#include "workerd/cost.h"

#include <math.h>

#include "proto/dtype.h"
#include "tests/case.h"
#include "workerd/graph.h"

static const struct graph graph = {
	.n_head = 8, .n_head_kv = 2, .head_dim = 64, .n_expert = 16, .n_expert_used = 4};

/* Rows of two sessions: three at positions 4 to 6, one at 99. */
static const struct abi_row rows[] = {{.position = 4, .slot = 1}, {.position = 5, .slot = 1},
	{.position = 6, .slot = 1}, {.position = 99, .slot = 0}};

static struct cost_step make_step(enum kv_layout_type kv_type)
{
	return (struct cost_step){.graph = &graph,
		.kv_type = kv_type,
		.rows = rows,
		.n_rows = ARRAY_SIZE(rows),
		.n_want = 2};
}

static struct weights_tensor make_tensor(
	uint32_t dtype, uint64_t k, uint64_t n, uint64_t n_matrices, uint64_t n_bytes)
{
	return (struct weights_tensor){
		.dtype = dtype, .ne = {k, n, n_matrices, 1}, .n_bytes = n_bytes};
}

static void expect(const struct cost *c, uint64_t n_weight_bytes, uint64_t n_kv_bytes,
	uint64_t n_flops, const char *shape)
{
	assert_int_equal(c->n_weight_bytes, n_weight_bytes);
	assert_int_equal(c->n_kv_bytes, n_kv_bytes);
	assert_int_equal(c->n_flops, n_flops);
	assert_string_equal(c->shape, shape);
}

static void test_matmul(void **state)
{
	const struct cost_step step = make_step(KV_LAYOUT_F16);
	struct graph_op op = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 3,
			.w = {make_tensor(DTYPE_Q8_0, 256, 100, 1, 27200),
				make_tensor(DTYPE_F16, 256, 20, 1, 10240),
				make_tensor(DTYPE_F16, 256, 20, 1, 10240)}}};
	struct cost c;

	(void)state;
	/* A kernel reads the parts that its name says. */
	cost_get(&step, &op, KERNELS_MATMUL_Q8_0_X2, 1, 1, &c);
	expect(&c, 27200, 0, 2ull * 4 * 256 * 100, "256 x 100");
	cost_get(&step, &op, KERNELS_MATMUL_F16_X2, 1, 1, &c);
	expect(&c, 20480, 0, 2ull * 4 * 256 * 40, "256 x 40");
	assert_true(cost_is_kindred(&op, KERNELS_MATMUL_F16, KERNELS_MATMUL_F16_X2));
	assert_false(cost_is_kindred(&op, KERNELS_MATMUL_F16, KERNELS_MATMUL_Q8_0));
	/* Two dispatches of one kernel have a part each; of two kernels each reads all. */
	cost_get(&step, &op, KERNELS_MATMUL_F16, 2, 2, &c);
	expect(&c, 10240, 0, 4ull * 256 * 40, "256 x 40");
	cost_get(&step, &op, KERNELS_MATMUL_F16, 1, 2, &c);
	expect(&c, 20480, 0, 4ull * 256 * 40, "256 x 40");
	/* The head has the rows that want logits. */
	op.is_head = true;
	op.matmul.n_parts = 1;
	cost_get(&step, &op, KERNELS_MATMUL_Q8_0, 1, 1, &c);
	expect(&c, 27200, 0, 2ull * 2 * 256 * 100, "256 x 100");
}

static void test_attention(void **state)
{
	struct cost_step step = make_step(KV_LAYOUT_F16);
	struct graph_op op = {.kind = GRAPH_ATTENTION};
	struct cost c;

	(void)state;
	/* Sessions have 7 and 100 keys; rows see 5, 6, 7 and 100 of them. */
	cost_get(&step, &op, KERNELS_ATTENTION_F16, 1, 1, &c);
	expect(&c, 0, 107ull * 2 * 2 * 64 * 2, 4ull * 118 * 8 * 64, "8 / 2 heads of 64");
	step.kv_type = KV_LAYOUT_Q8_0;
	cost_get(&step, &op, KERNELS_ATTENTION_Q8_0, 1, 1, &c);
	expect(&c, 0, 107ull * (256 + 256 / 32 * 2), 4ull * 118 * 8 * 64, "8 / 2 heads of 64");
	/* A window of six: 5 + 1 + 1 of the one session, six of the other; rows see 5, 6, 6, 6. */
	op.attention.window = 6;
	cost_get(&step, &op, KERNELS_ATTENTION_Q8_0, 1, 1, &c);
	expect(&c, 0, 13ull * 272, 4ull * 23 * 8 * 64, "8 / 2 heads of 64, window");
}

static void test_small(void **state)
{
	const struct cost_step step = make_step(KV_LAYOUT_F16);
	struct graph_op embed = {.kind = GRAPH_EMBED,
		.embed = {.w = make_tensor(DTYPE_Q8_0, 256, 512, 1, 512 * 272)}};
	struct graph_op rope = {.kind = GRAPH_ROPE_KV}, route = {.kind = GRAPH_ROUTE};
	struct cost c;

	(void)state;
	cost_get(&step, &embed, KERNELS_EMBED_Q8_0, 1, 1, &c);
	expect(&c, 4 * 272, 0, 0, "256");
	cost_get(&step, &rope, KERNELS_ROPE_KV_F16, 1, 1, &c);
	expect(&c, 0, 4ull * 2 * 2 * 64 * 2, 0, "8 + 4 heads of 64");
	cost_get(&step, &route, KERNELS_GROUP, 1, 1, &c);
	expect(&c, 0, 0, 0, "-");
}

/* Of 16 experts, four a row, four rows take 16 (1 - (3/4)^4) = 10.94 on average. */
static void test_experts(void **state)
{
	const struct cost_step step = make_step(KV_LAYOUT_F16);
	struct graph_op op = {.kind = GRAPH_EXPERTS,
		.experts = {.n_parts = 2,
			.w = {make_tensor(DTYPE_Q8_0, 64, 32, 16, 34816),
				make_tensor(DTYPE_Q8_0, 64, 32, 16, 34816)}}};
	struct cost c;

	(void)state;
	cost_get(&step, &op, KERNELS_EXPERTS_Q8_0_X2, 1, 1, &c);
	uint64_t n_bytes = 2 * (uint64_t)(34816 * (1 - pow(0.75, 4)));
	expect(&c, n_bytes, 0, 2ull * 4 * 4 * 64 * 32 * 2, "4 of 16 x 64 x 64");
	cost_get(&step, &op, KERNELS_MIX, 1, 1, &c);
	expect(&c, 0, 0, 0, "-");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_matmul),
		CASE(test_attention),
		CASE(test_small),
		CASE(test_experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
