/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/workerd.pb-c.h"
#include "tests/case.h"
#include "workerd/message.h"

enum { N_TEXT_BYTES = 900 << 10 };

static uint8_t packed[STREAM_MAX_BYTES];

/* A Tokenize of a long text, as a client sends it. */
static uint32_t pack_request(void)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__Tokenize t = WK__TOKENIZE__INIT;
	Wk__Text text = WK__TEXT__INIT;

	text.text.len = N_TEXT_BYTES;
	text.text.data = calloc(1, N_TEXT_BYTES);
	t.text = &text;
	q.id = 1;
	q.body_case = WK__REQUEST__BODY_TOKENIZE;
	q.tokenize = &t;
	uint32_t n = (uint32_t)wk__request__pack(&q, packed);
	free(text.text.data);
	return n;
}

/* A good request is not called a bad one because the worker is short of memory. */
static void tells_want_of_memory_from_nonsense(void **state)
{
	struct rlimit limit, none;
	struct message *m = NULL;
	struct err e = ERR_NULL;
	uint32_t n = pack_request();
	int r;

	(void)state;
#if defined(__SANITIZE_ADDRESS__)
	skip(); /* its allocator ends the process instead of returning NULL */
#endif
	assert_int_equal(
		mallopt(M_MMAP_THRESHOLD, 64 << 10), 1); /* a mapping, which the limit denies */
	assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
	none = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
	r = rpc_decode(packed, n, &e, &m);
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	assert_int_equal(r, -ENOMEM);
	assert_non_null(strstr(e.text, "no memory"));
	assert_null(m);

	assert_int_equal(rpc_decode(packed, n, &e, &m), 0);
	assert_int_equal(m->text.n_text_bytes, N_TEXT_BYTES);
	message_free(m);
	memset(packed, 0xff, n);
	assert_int_equal(rpc_decode(packed, n, &e, &m), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(tells_want_of_memory_from_nonsense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
