/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of a graph's values: those that live at the same time do not overlap, those that do not
 * share. Graphs are random; the seed is printed.
 */
#include "tests/case.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "proto/util/err.h"
#include "workerd/graph.h"
#include "workerd/ops/matrix.h"

static uint32_t add_value(struct graph *g, uint32_t width)
{
	struct err e = ERR_NULL;
	uint32_t value = GRAPH_NONE;

	assert_int_equal(graph_add_value(g, width, false, &e, &value), 0);
	return value;
}

/* y = f(x), or the first value where x is GRAPH_NONE. */
static void add_op(struct graph *g, uint32_t x, uint32_t y)
{
	struct graph_op op = {.kind = GRAPH_MATMUL, .matmul = {.x = x, .y = y, .r = GRAPH_NONE}};
	struct graph_op embed = {.kind = GRAPH_EMBED, .embed = {.y = y}};
	struct err e = ERR_NULL;

	assert_int_equal(graph_add_op(g, x == GRAPH_NONE ? &embed : &op, &e), 0);
}

static uint64_t place(struct graph *g, uint32_t n_rows)
{
	struct err e = ERR_NULL;
	uint64_t n_bytes = 0;

	assert_int_equal(graph_place(g, n_rows, &e, &n_bytes), 0);
	/* Whoever records for more rows has room for no more than these. */
	assert_int_equal(g->n_placed_rows, n_rows);
	return n_bytes;
}

static void test_chain_uses_two_places(void **state)
{
	struct graph g = {0};
	uint32_t last = add_value(&g, 64);

	(void)state;
	add_op(&g, GRAPH_NONE, last);
	for (int i = 0; i < 100; i++) {
		uint32_t next = add_value(&g, 64);
		add_op(&g, last, next);
		last = next;
	}
	assert_int_equal(place(&g, 10), 2 * 64 * 4 * 10);
	graph_fini(&g);
}

/* A stream that is kept and branches beside it: the branches share what the stream leaves. */
static void test_stream_is_kept(void **state)
{
	struct graph g = {0};
	uint32_t stream = add_value(&g, 64);

	(void)state;
	add_op(&g, GRAPH_NONE, stream);
	for (int i = 0; i < 10; i++) {
		uint32_t branch = add_value(&g, 192);
		add_op(&g, stream, branch);
		add_op(&g, branch, stream);
		assert_int_equal(place(&g, 1), (64 + 192) * 4);
		assert_int_equal(g.values[stream].offset, 0);
	}
	graph_fini(&g);
}

static void test_logits_have_no_place(void **state)
{
	struct graph g = {0};
	struct err e = ERR_NULL;
	uint32_t x = add_value(&g, 64), logits = GRAPH_NONE;

	(void)state;
	assert_int_equal(graph_add_value(&g, 1 << 20, true, &e, &logits), 0);
	add_op(&g, GRAPH_NONE, x);
	add_op(&g, x, logits);
	assert_int_equal(place(&g, 1), 256);
	graph_fini(&g);
}

static void test_words_behind_the_rows(void **state)
{
	struct graph g = {0};
	uint32_t x = add_value(&g, 64), y = add_value(&g, 64);

	(void)state;
	graph_extend_value(&g, x, 64);
	add_op(&g, GRAPH_NONE, x);
	add_op(&g, x, y);
	assert_int_equal(place(&g, 10), (64 * 10 + 64) * 4 + 64 * 4 * 10);
	graph_fini(&g);
}

/* The sum is of all, each padded; a name at one place is one site, however many layers have it. */
static void test_sites(void **state)
{
	struct graph g = {0};
	struct graph_site sites[4] = {0};
	struct err e = ERR_NULL;
	uint32_t stream = add_value(&g, 65), logits = GRAPH_NONE, n_values = 0;

	(void)state;
	graph_name_value(&g, stream, "stream");
	add_op(&g, GRAPH_NONE, stream);
	for (int i = 0; i < 10; i++) {
		uint32_t branch = add_value(&g, 192);
		graph_name_value(&g, branch, i % 2 ? "odd" : "even");
		add_op(&g, stream, branch);
		add_op(&g, branch, stream);
	}
	assert_int_equal(graph_add_value(&g, 1 << 20, true, &e, &logits), 0);
	add_op(&g, stream, logits);
	(void)add_value(&g, 1000); /* used by nobody */
	assert_int_equal(place(&g, 3), 1024 + 192 * 4 * 3);
	assert_int_equal(graph_sum_bytes(&g, 3, &n_values), 1024 + 10 * (192 * 4 * 3));
	assert_int_equal(n_values, 11);
	assert_int_equal(graph_get_sites(&g, 3, sites, 4), 3);
	assert_string_equal(sites[0].name, "stream");
	assert_int_equal(sites[0].n_bytes, 65 * 4 * 3);
	assert_int_equal(sites[0].n_values, 1);
	for (int i = 1; i < 3; i++) {
		assert_string_equal(sites[i].name, i == 1 ? "even" : "odd");
		assert_int_equal(sites[i].offset, 1024);
		assert_int_equal(sites[i].n_values, 5);
	}
	/* Those that there is no room for are counted, and nothing is written behind the room. */
	memset(sites, 0, sizeof(sites));
	assert_true(graph_get_sites(&g, 3, sites, 1) > 1);
	assert_null(sites[1].name);
	graph_fini(&g);
}

/* Addresses of experts as the ops have their tensors, also where an op was given others. */
static void test_tables(void **state)
{
	struct weights_tensor w = {
		.address = 1 << 20, .ne = {32, 4, 3, 1}, .n_bytes = 3 * 4 * 34, .dtype = 8};
	struct graph_op op = {.kind = GRAPH_EXPERTS,
		.experts = {.n_parts = 2,
			.routing = {.logits = GRAPH_NONE,
				.choice = GRAPH_NONE,
				.pairs = GRAPH_NONE,
				.groups = GRAPH_NONE,
				.wide = GRAPH_NONE},
			.x = GRAPH_NONE,
			.z = GRAPH_NONE}};
	struct graph g = {0};
	struct err e = ERR_NULL;
	uint64_t addresses[6] = {0};

	(void)state;
	op.experts.y = add_value(&g, 4);
	for (uint32_t i = 0; i < 2; i++) {
		op.experts.w[i] = w;
		op.experts.tables[i] = graph_add_table(&g, &w);
	}
	op.experts.w[1].address = 1ull << 40;
	assert_int_equal(graph_add_op(&g, &op, &e), 0);
	assert_int_equal(g.n_table_entries, 6);
	graph_fill_tables(&g, addresses);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(addresses[i], (i < 3 ? 1ull << 20 : 1ull << 40) + i % 3 * 4 * 34);
	graph_fini(&g);
}

/* The longest row of any op that is put into another form, and room beside it. */
static void test_staging(void **state)
{
	struct graph_op matmul = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .w = {{.ne = {96, 4, 1, 1}}}, .r = GRAPH_NONE}};
	struct graph_op experts = {.kind = GRAPH_EXPERTS,
		.experts = {.n_parts = 1,
			.w = {{.ne = {64, 4, 8, 1}}},
			.routing = {.logits = GRAPH_NONE,
				.choice = GRAPH_NONE,
				.pairs = GRAPH_NONE,
				.groups = GRAPH_NONE,
				.wide = GRAPH_NONE},
			.x = GRAPH_NONE,
			.z = GRAPH_NONE,
			.finish = OP_EXPERTS_MIX}};
	struct graph g = {.wants_staging = true, .n_expert_used = 4};
	struct graph exact = {0};
	struct err e = ERR_NULL;

	(void)state;
	matmul.matmul.x = matmul.matmul.y = experts.experts.y = add_value(&g, 4);
	g.values[matmul.matmul.x].is_used = true;
	assert_int_equal(graph_add_op(&g, &matmul, &e), 0);
	assert_true(g.has_staging);
	/* 128 f16 of a row, in words. */
	assert_int_equal(graph_value_bytes(&g, g.staging, 3), 4 * 3 * 64 + OP_MATRIX_PARTIAL_BYTES);
	assert_int_equal(graph_add_op(&g, &experts, &e), 0);
	/* 64 f16 of each of a row's four experts. */
	assert_int_equal(
		graph_value_bytes(&g, g.staging, 3), 4 * 3 * 128 + OP_MATRIX_PARTIAL_BYTES);
	experts.experts.y = add_value(&exact, 4);
	assert_int_equal(graph_add_op(&exact, &experts, &e), 0);
	assert_false(exact.has_staging);
	graph_fini(&exact);
	graph_fini(&g);
}

static void check_disjoint(const struct graph *g, uint32_t n_rows, uint64_t n_bytes, unsigned seed)
{
	for (uint32_t i = 0; i < g->n_values; i++) {
		const struct graph_value *a = &g->values[i];
		uint64_t a_end = a->offset + 4ull * a->width * n_rows;
		if (a->offset % 256 || a_end > n_bytes)
			fail_msg("seed %u: value %u at %" PRIu64, seed, i, a->offset);
		for (uint32_t j = 0; j < i; j++) {
			const struct graph_value *b = &g->values[j];
			if (a->last_op < b->first_op || b->last_op < a->first_op)
				continue;
			if (a->offset < b->offset + 4ull * b->width * n_rows && b->offset < a_end)
				fail_msg("seed %u: values %u and %u overlap", seed, i, j);
		}
	}
}

static void test_random_graphs(void **state)
{
	unsigned seed = (unsigned)time(NULL);

	(void)state;
	for (int round = 0; round < 200; round++, seed++) {
		struct graph g = {0};
		srand(seed);
		uint32_t n = 2 + (uint32_t)rand() % 60, n_rows = 1 + (uint32_t)rand() % 70;
		add_op(&g, GRAPH_NONE, add_value(&g, 1 + (uint32_t)rand() % 500));
		while (g.n_values < n) {
			uint32_t x = (uint32_t)rand() % g.n_values;
			add_op(&g, x, add_value(&g, 1 + (uint32_t)rand() % 500));
		}
		check_disjoint(&g, n_rows, place(&g, n_rows), seed);
		graph_fini(&g);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_chain_uses_two_places),
		CASE(test_stream_is_kept),
		CASE(test_logits_have_no_place),
		CASE(test_words_behind_the_rows),
		CASE(test_sites),
		CASE(test_tables),
		CASE(test_staging),
		CASE(test_random_graphs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
