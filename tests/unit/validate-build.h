/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_VALIDATE_BUILD_H
#define TESTS_UNIT_VALIDATE_BUILD_H

/* What validate_model says of a file that a test has built. */
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

/* The container is valid; is the model? *ret_g is to be freed either way. */
static inline int validate(const struct gguf_build *b, struct err *e, struct gguf **ret_g,
	struct validate_model *ret_model)
{
	uint64_t n;
	uint8_t *data = gguf_build_metadata(b, &n);
	int r = gguf_parse(data, n, n + gguf_build_data_bytes(b), e, ret_g);

	if (r != 0)
		fail_msg("%d: %s", r, e->text);
	(*ret_g)->metadata = data;
	return validate_model(*ret_g, e, ret_model);
}

/* Refused with this code and one line that has each of the words. */
#define refuse(b, code, ...) \
	refuse_build(b, code, __LINE__, (const char *const[]){__VA_ARGS__, NULL})
static inline void refuse_build(
	const struct gguf_build *b, int code, int line, const char *const *words)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	struct validate_model m = {.architecture = {.data = "untouched"}};
	int r = validate(b, &e, &g, &m);

	if (r != code)
		fail_msg("line %d: expected %d, found %d: %s", line, code, r, e.text);
	assert_string_equal(m.architecture.data, "untouched");
	for (; *words; words++)
		if (!strstr(e.text, *words))
			fail_msg("line %d: expected \"%s\" in: %s", line, *words, e.text);
	gguf_free(g);
}

static inline struct validate_model pass(const struct gguf_build *b, struct gguf **ret_g)
{
	struct err e = ERR_NULL;
	struct validate_model m;
	int r = validate(b, &e, ret_g, &m);

	if (r != 0)
		fail_msg("expected 0, found %d: %s", r, e.text);
	return m;
}

#endif
