/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile client of workerd: one request, decoded, read through to the last byte that the message
 * borrows, and refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "workerd/message.h"
#include "workerd/rpc.h"

static void check(bool ok)
{
	if (!ok)
		abort();
}

/* Keeps the reads from being optimised away. */
static volatile uint64_t sum;

static void touch(const char *bytes, uint64_t n_bytes)
{
	for (uint64_t i = 0; i < n_bytes; i++)
		sum += (uint8_t)bytes[i];
}

static void touch_append(const struct message_append *a)
{
	touch(a->text, a->n_text_bytes);
	for (uint32_t i = 0; i < a->n_chat; i++) {
		for (const char *c = a->chat[i].role; *c; c++)
			sum += (uint8_t)*c;
		touch(a->chat[i].content, a->chat[i].n_content_bytes);
	}
	for (uint64_t i = 0; i < a->n_ids; i++)
		sum += a->ids[i];
}

static void touch_body(const struct message *m)
{
	switch (m->kind) {
	case MESSAGE_APPEND: touch_append(&m->append); break;
	case MESSAGE_GENERATE:
		check(m->generate.n_stops <= MESSAGE_MAX_STOPS);
		for (uint32_t i = 0; i < m->generate.n_stops; i++) {
			check(m->generate.stops[i].n_bytes > 0);
			check(m->generate.stops[i].n_bytes <= MESSAGE_MAX_STOP_BYTES);
			touch(m->generate.stops[i].bytes, m->generate.stops[i].n_bytes);
		}
		break;
	case MESSAGE_BENCH:
		sum += m->bench.n_sessions + m->bench.n_depth + m->bench.n_prompt +
		       m->bench.n_generate + m->bench.seed;
		break;
	case MESSAGE_BENCH_RUN: sum += m->bench_run.start_ns + m->bench_run.is_profile; break;
	case MESSAGE_PUBLISH:
		check(strlen(m->publish.name) <= MESSAGE_MAX_PREFIX_NAME_BYTES);
		check(m->publish.text || !m->publish.n_text_bytes);
		touch(m->publish.text, m->publish.n_text_bytes);
		for (uint64_t i = 0; i < m->publish.n_ids; i++)
			sum += m->publish.ids[i];
		break;
	case MESSAGE_TOKENIZE: touch(m->text.text, m->text.n_text_bytes); break;
	case MESSAGE_DETOKENIZE:
		for (uint64_t i = 0; i < m->text.n_ids; i++)
			sum += m->text.ids[i];
		break;
	default: break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct message *m = NULL;
	struct err e = ERR_NULL;
	uint8_t *reply = NULL;
	uint32_t n_reply;

	if (n_bytes < 1 || n_bytes > STREAM_MAX_BYTES)
		return 0;
	int r = rpc_decode(data, (uint32_t)n_bytes, &e, &m);
	if (r) {
		check(r == -ENOMEM || e.text[0] != '\0');
		return 0;
	}
	check(m->id != 0);
	if (!m->code) {
		check(m->kind != MESSAGE_UNKNOWN);
		touch_body(m);
		message_refuse(m, err_set(&e, EPERM, "no"), &e);
	}
	check(rpc_encode(m, NULL, &reply, &n_reply) == 0);
	free(reply);
	message_free(m);
	return 0;
}
