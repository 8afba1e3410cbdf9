/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"

static void sets_text_and_returns_code(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(err_set(&e, EINVAL, "tensor %s: expected %d", "a", 3), -EINVAL);
	assert_string_equal(e.text, "tensor a: expected 3");
	assert_int_equal(err_set(NULL, ENOENT, "nobody reads this"), -ENOENT);
}

static void prefixes(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(err_set(&e, EINVAL, "offset: too large"), -EINVAL);
	err_prefix(&e, "file %d", 7);
	assert_string_equal(e.text, "file 7: offset: too large");
	err_prefix(NULL, "nothing");
}

/* A hostile name must not forge a line of its own or a terminal command. */
static void replaces_control_characters(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(err_set(&e, EINVAL, "name %s", "a\nb\x1b[2J\x7f"), -EINVAL);
	assert_string_equal(e.text, "name a?b?[2J?");
	/* C1, of which U+009B begins a terminal's command too; other characters stay. */
	assert_int_equal(err_set(&e, EINVAL, "%s",
				 "a\xc2\x9b"
				 "2Jb\xc2\x80\xc2\xa0\xc3\x9b"),
		-EINVAL);
	assert_string_equal(e.text, "a?2Jb?\xc2\xa0\xc3\x9b");
}

static void cuts_long_text(void **state)
{
	struct err e = ERR_NULL;
	char name[2 * ERR_TEXT_BYTES];

	(void)state;
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(err_set(&e, EINVAL, "%s", name), -EINVAL);
	assert_int_equal(strlen(e.text), ERR_TEXT_BYTES - 1);
	assert_string_equal(e.text + ERR_TEXT_BYTES - 4, "...");

	/* A text that shrinks when it is cleaned ends there too. */
	for (size_t i = 0; i + 1 < sizeof(name); i += 2)
		memcpy(name + i, "\xc2\x9b", 2);
	name[sizeof(name) - 2] = '\0';
	assert_int_equal(err_set(&e, EINVAL, "%s", name), -EINVAL);
	assert_null(strpbrk(e.text, "\x9b"));
	assert_string_equal(e.text + strlen(e.text) - 4, "?...");
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(err_set(&e, EINVAL, "%s", name), -EINVAL);

	/* Prefixing a text that already fills the room cuts it again. */
	err_prefix(&e, "where");
	assert_int_equal(strlen(e.text), ERR_TEXT_BYTES - 1);
	assert_memory_equal(e.text, "where: xxx", 10);
	assert_string_equal(e.text + ERR_TEXT_BYTES - 4, "...");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(sets_text_and_returns_code),
		CASE(prefixes),
		CASE(replaces_control_characters),
		CASE(cuts_long_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
