/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/unit/shipped-model.h"
#include "workerd/grammar-cache.h"
#include "workerd/grammar.h"

/* The last texts keep their grammars, and with those their masks. */
static void test_texts_keep_their_grammars(void **state)
{
	struct manifest *m = shipped_model_open();
	struct grammar_cache *cache;
	struct grammar *first, *g;
	struct err e = ERR_NULL;
	(void)state;

	assert_int_equal(grammar_cache_new(&cache), 0);
	assert_int_equal(grammar_cache_get(cache, m, "root ::= \"a\"", 12, false, &e, &first), 0);
	assert_int_equal(grammar_cache_get(cache, m, "root ::= x", 10, false, &e, &g), -EINVAL);
	assert_int_equal(grammar_cache_get(cache, m, "{}", 2, true, &e, &g), 0);
	assert_ptr_not_equal(g, first);
	grammar_free(g);
	assert_int_equal(grammar_cache_get(cache, m, "{}", 2, false, &e, &g), -EINVAL);
	assert_int_equal(grammar_cache_get(cache, m, "root ::= \"a\"", 12, false, &e, &g), 0);
	assert_ptr_equal(g, first);
	grammar_free(g);
	/* As many others: it goes, but for who has it. */
	for (int i = 0; i < GRAMMAR_CACHE_N; i++) {
		char text[16];

		snprintf(text, sizeof(text), "root ::= \"%d\"", i);
		assert_int_equal(grammar_cache_get(cache, m, text, 12, false, &e, &g), 0);
		grammar_free(g);
	}
	assert_int_equal(grammar_cache_get(cache, m, "root ::= \"a\"", 12, false, &e, &g), 0);
	assert_ptr_not_equal(g, first);
	grammar_free(g);
	grammar_cache_clear(cache);
	grammar_cache_free(cache);
	struct grammar_cursor *c;
	assert_int_equal(grammar_cursor_new(first, &e, &c), 0);
	assert_int_equal(grammar_accept(c, "a", 1, &e), 0);
	assert_true(grammar_is_final(c));
	grammar_cursor_free(c);
	grammar_free(first);
	manifest_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_texts_keep_their_grammars),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
