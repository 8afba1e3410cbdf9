/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"

enum { MAX_TENSORS = 1024 };

static const struct placement_limits roomy = {
	.device = "test device", .max_alloc_bytes = 1 << 20, .free_bytes = 1 << 30};

/* Offsets and lengths by the same index. */
static struct gguf make_gguf(
	struct gguf_tensor *tensors, const uint64_t *offsets, const uint64_t *n_bytes, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tensors[i] = (struct gguf_tensor){.name = {.data = "some.weight", .n_bytes = 11},
			.offset = offsets[i],
			.n_bytes = n_bytes[i]};
	return (struct gguf){.n_tensors = n, .tensors = tensors};
}

static void check_plan(const struct gguf *g, const struct placement *p, uint64_t max_alloc_bytes)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < p->n_allocs; i++) {
		assert_true(p->allocs[i].n_bytes > 0 && p->allocs[i].n_bytes <= max_alloc_bytes);
		assert_int_equal(p->allocs[i].placement, MANIFEST_PLACEMENT_DEVICE);
		n_bytes += p->allocs[i].n_bytes;
	}
	assert_int_equal(p->n_bytes, n_bytes);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		assert_int_equal(p->tensor_offset[i] % PLACEMENT_ALIGN, 0);
		assert_true(p->tensor_alloc[i] < p->n_allocs);
		assert_true(p->tensor_offset[i] + g->tensors[i].n_bytes <=
			    p->allocs[p->tensor_alloc[i]].n_bytes);
		for (uint32_t j = 0; j < i; j++)
			if (p->tensor_alloc[i] == p->tensor_alloc[j])
				assert_true(p->tensor_offset[i] + g->tensors[i].n_bytes <=
						    p->tensor_offset[j] ||
					    p->tensor_offset[j] + g->tensors[j].n_bytes <=
						    p->tensor_offset[i]);
		if (i > 0)
			assert_true(g->tensors[p->order[i]].offset >=
				    g->tensors[p->order[i - 1]].offset);
	}
}

static void test_packs_in_file_order(void **state)
{
	struct gguf_tensor tensors[3];
	struct gguf g =
		make_gguf(tensors, (uint64_t[]){4000, 100, 1000}, (uint64_t[]){10, 300, 256}, 3);
	struct placement *p;

	(void)state;
	assert_int_equal(placement_new(&g, &roomy, NULL, &p), 0);
	check_plan(&g, p, roomy.max_alloc_bytes);
	assert_int_equal(p->n_allocs, 1);
	assert_int_equal(p->tensor_offset[1], 0);
	assert_int_equal(p->tensor_offset[2], 512);
	assert_int_equal(p->tensor_offset[0], 768);
	assert_int_equal(p->n_bytes, 1024);
	placement_free(p);
}

static void test_boundaries_between_tensors(void **state)
{
	struct gguf_tensor tensors[MAX_TENSORS];
	uint64_t offsets[200], n_bytes[200];
	uint64_t at = 0;
	struct placement *p;

	(void)state;
	for (uint32_t i = 0; i < 200; i++) {
		offsets[i] = at;
		n_bytes[i] = 1 + (i * 7919) % 4096;
		at += n_bytes[i];
	}
	struct gguf g = make_gguf(tensors, offsets, n_bytes, 200);
	/* Not a multiple of the alignment: the cap still holds. */
	struct placement_limits limits = roomy;
	limits.max_alloc_bytes = 4096 + 100;
	assert_int_equal(placement_new(&g, &limits, NULL, &p), 0);
	check_plan(&g, p, limits.max_alloc_bytes);
	assert_true(p->n_allocs > 50);
	placement_free(p);
}

static void test_refusals(void **state)
{
	struct gguf_tensor tensors[MAX_TENSORS];
	struct gguf g = make_gguf(tensors, (uint64_t[]){0, 5000}, (uint64_t[]){5000, 10}, 2);
	struct placement_limits limits = roomy;
	struct err err = ERR_NULL;
	struct placement *p = NULL;

	(void)state;
	limits.max_alloc_bytes = 4999;
	assert_int_equal(placement_new(&g, &limits, &err, &p), -E2BIG);
	assert_string_equal(err.text, "tensor some.weight: needs 5000 bytes in one piece, test "
				      "device allocates at most 4999");
	limits.max_alloc_bytes = 1 << 20;
	limits.free_bytes = 5375;
	assert_int_equal(placement_new(&g, &limits, &err, &p), -ENOMEM);
	assert_string_equal(err.text, "weights: needs 5376 bytes, free 5375 on test device");
	limits.free_bytes = 5376;
	assert_int_equal(placement_new(&g, &limits, &err, &p), 0);
	p = placement_free(p);

	g.n_tensors = 0;
	assert_int_equal(placement_new(&g, &limits, &err, &p), -EINVAL);
	tensors[0].n_bytes = UINT64_MAX - 3;
	g.n_tensors = 1;
	assert_int_equal(placement_new(&g, &limits, &err, &p), -E2BIG);
	for (uint32_t i = 0; i < MAX_TENSORS; i++)
		tensors[i].n_bytes = 200;
	g.n_tensors = PLACEMENT_MAX_ALLOCS + 1;
	limits = (struct placement_limits){
		.device = "d", .max_alloc_bytes = 256, .free_bytes = UINT64_MAX};
	for (uint32_t i = 0; i < g.n_tensors; i++)
		tensors[i].name = tensors[0].name;
	assert_int_equal(placement_new(&g, &limits, &err, &p), -E2BIG);
	g.n_tensors = PLACEMENT_MAX_ALLOCS;
	assert_int_equal(placement_new(&g, &limits, &err, &p), 0);
	placement_free(p);
	assert_null(placement_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_packs_in_file_order),
		CASE(test_boundaries_between_tensors),
		CASE(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
