/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes: in order of use, no more than it takes, and nobody for nothing. */
#include "tests/case.h"

#include <stdlib.h>

#include "proto/util/cleanup.h"
#include "weightd/evict.h"

enum { N = 5, MAX_BYTES = 4 };

static unsigned choose(const uint64_t *sizes, uint32_t n, uint64_t n_bytes, bool *ret_is_enough)
{
	struct evict_candidate c[8] = {0};
	unsigned mask = 0;

	for (uint32_t i = 0; i < n; i++)
		c[i] = (struct evict_candidate){.n_bytes = sizes[i], .is_chosen = true};
	*ret_is_enough = evict_choose(c, n, n_bytes);
	for (uint32_t i = 0; i < n; i++)
		mask |= (unsigned)c[i].is_chosen << i;
	return mask;
}

static void test_examples(void **state)
{
	static const struct {
		uint64_t sizes[4];
		uint64_t n_bytes;
		bool is_enough;
		unsigned mask;
	} rows[] = {
		{{10, 10, 10, 10}, 0, true, 0},
		{{10, 10, 10, 10}, 1, true, 1},
		{{10, 10, 10, 10}, 10, true, 1},
		{{10, 10, 10, 10}, 11, true, 3},
		{{10, 10, 10, 10}, 40, true, 15},
		{{10, 10, 10, 10}, 41, false, 0},
		/* The small one would go for nothing, for the large one has to. */
		{{1, 50, 10, 10}, 50, true, 2},
		{{1, 49, 10, 10}, 50, true, 3},
		/* Nothing there: it stays. */
		{{0, 10, 0, 10}, 20, true, 10},
		{{UINT64_MAX, 10, 1, 1}, UINT64_MAX, true, 1},
		{{10, UINT64_MAX, 1, 1}, UINT64_MAX, true, 3},
	};
	bool is_enough;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_int_equal(
			choose(rows[i].sizes, 4, rows[i].n_bytes, &is_enough), rows[i].mask);
		assert_int_equal(is_enough, rows[i].is_enough);
	}
	assert_int_equal(choose(NULL, 0, 1, &is_enough), 0);
	assert_false(is_enough);
}

/* Every list of N sizes up to MAX_BYTES against what the words say. */
static void test_every_list(void **state)
{
	unsigned n_lists = 1;

	(void)state;
	for (unsigned i = 0; i < N; i++)
		n_lists *= MAX_BYTES + 1;
	for (unsigned list = 0; list < n_lists; list++)
		for (uint64_t want = 0; want <= N * MAX_BYTES + 1; want++) {
			uint64_t sizes[N], total = 0, chosen = 0, prefix = 0;
			bool is_enough;
			for (unsigned i = 0, rest = list; i < N; i++, rest /= MAX_BYTES + 1) {
				sizes[i] = rest % (MAX_BYTES + 1);
				total += sizes[i];
			}
			unsigned mask = choose(sizes, N, want, &is_enough);
			assert_int_equal(is_enough, total >= want);
			for (unsigned i = 0; i < N; i++)
				chosen += mask >> i & 1 ? sizes[i] : 0;
			assert_true(is_enough ? chosen >= want : mask == 0);
			for (unsigned i = 0; i < N; i++) {
				if (!(mask >> i & 1)) {
					prefix += sizes[i];
					continue;
				}
				/* None is superfluous, and none is taken while the older are
				 * enough. */
				assert_true(chosen - sizes[i] < want);
				prefix += sizes[i];
				assert_true(prefix - sizes[i] < want);
			}
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_examples),
		CASE(test_every_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
