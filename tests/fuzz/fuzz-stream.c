/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile worker: after a right Welcome the input's bytes arrive, while the client makes one
 * call. Byte 0 is the call, the rest the stream.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/workerd.pb-c.h"
#include "tests/fuzz/target.h"

enum { MAX_BYTES = 65536 }; /* fits a socket's buffer, so that nobody has to read meanwhile */

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void send_welcome(int sock)
{
	Wk__Welcome welcome = WK__WELCOME__INIT;
	Wk__Reply reply = WK__REPLY__INIT;
	uint8_t message[64];

	welcome.protocol = STREAM_PROTOCOL;
	reply.id = 1;
	reply.body_case = WK__REPLY__BODY_WELCOME;
	reply.welcome = &welcome;
	size_t n = wk__reply__pack(&reply, message);
	check(stream_send(sock, message, (uint32_t)n) == 0);
}

/* Touches the texts; cancels after some tokens. */
static bool count_token(const struct worker_client_token *token, void *userdata)
{
	unsigned *n = userdata;

	for (uint32_t i = 0; i < token->n_bytes; i++)
		*n += token->text[i] == '\n';
	for (uint32_t k = 0; k < token->n_top; k++)
		for (uint32_t i = 0; i < token->top[k].n_bytes; i++)
			*n += token->top[k].text[i] == '\n';
	*n += 1;
	return token->id % 7 != 3;
}

static int call(struct worker_client *c, unsigned which, struct err *ret_err)
{
	const struct worker_client_generate g = {.n_predict = 4, .n = 1 + which / 5 % 2};
	struct worker_client_finished finished[2];
	struct worker_client_status status;
	unsigned n_tokens = 0;
	uint64_t session;
	uint32_t *ids, n;
	char *text;
	int r;

	switch (which % 5) {
	case 0: return worker_client_generate(c, 2, &g, count_token, &n_tokens, ret_err, finished);
	case 1: return worker_client_status(c, ret_err, &status);
	case 2:
		r = worker_client_tokenize(c, "a", 1, false, ret_err, &ids, &n);
		if (r == 0)
			free(ids);
		return r;
	case 3:
		r = worker_client_detokenize(c, (const uint32_t[]){1}, 1, ret_err, &text, &n);
		if (r == 0)
			free(text);
		return r;
	default: return worker_client_open_session(c, ret_err, &session);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct worker_client *c = NULL;
	struct err e = ERR_NULL;
	int pair[2];

	if (n_bytes < 1 || n_bytes > MAX_BYTES)
		return 0;
	check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	send_welcome(pair[0]);
	check(send(pair[0], data + 1, n_bytes - 1, MSG_NOSIGNAL) == (ssize_t)n_bytes - 1);
	check(shutdown(pair[0], SHUT_WR) == 0);
	check(worker_client_new_connected(pair[1], &e, &c) == 0);
	if (call(c, data[0], &e) < 0)
		check(e.text[0] != '\0');
	worker_client_free(c);
	close(pair[0]);
	return 0;
}
