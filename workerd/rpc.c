/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/stream.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/workerd.pb-c.h"
#include "workerd/message.h"
#include "workerd/rpc-bench.h"
#include "workerd/rpc-sampling.h"
#include "workerd/rpc-status.h"
#include "workerd/rpc-tune.h"
#include "workerd/turn.h"

enum {
	/*
	 * Most that unpacking one request may allocate. An honest one takes little more than its
	 * bytes, or 4 a token id; a hostile one of two-byte submessages up to a hundred times that.
	 */
	MAX_UNPACKED_BYTES = 16 * STREAM_MAX_BYTES,
	MAX_CHAT_MESSAGES = 4096,
};

/* protobuf-c says NULL for whatever went wrong: what it was is kept here. */
struct rpc_budget {
	uint64_t n_left;
	bool is_out_of_memory;
};

static void *rpc_alloc(void *data, size_t n_bytes)
{
	struct rpc_budget *b = data;

	if (n_bytes > b->n_left)
		return NULL;
	b->n_left -= n_bytes;
	void *p = malloc(n_bytes);
	b->is_out_of_memory |= !p;
	return p;
}

static void rpc_dealloc(void *data, void *p)
{
	(void)data;
	free(p);
}

static void rpc_free_request(void *request)
{
	wk__request__free_unpacked(request, NULL);
}

/* A submessage that was not sent is NULL; the one that a oneof's case names never is. */
static int rpc_decode_text(
	const Wk__Text *text, struct err *ret_err, const char **ret_text, uint64_t *ret_n_bytes)
{
	if (!text)
		return err_set(ret_err, EINVAL, "text: expected one, found none");
	*ret_text = (const char *)text->text.data;
	*ret_n_bytes = text->text.len;
	return 0;
}

static int rpc_decode_chat(const Wk__Chat *chat, struct message *m, struct err *ret_err)
{
	if (!chat->n_messages || chat->n_messages > MAX_CHAT_MESSAGES)
		return err_set(ret_err, EINVAL, "messages: expected 1 to %d, found %zu",
			MAX_CHAT_MESSAGES, chat->n_messages);
	m->append.chat = calloc(chat->n_messages, sizeof(*m->append.chat));
	if (!m->append.chat)
		return -ENOMEM;
	m->append.n_chat = (uint32_t)chat->n_messages;
	m->append.add_generation_prompt = chat->add_generation_prompt;
	for (size_t i = 0; i < chat->n_messages; i++)
		m->append.chat[i] = (struct template_message){
			.role = chat->messages[i]->role,
			.content = (const char *)chat->messages[i]->content.data,
			.n_content_bytes = chat->messages[i]->content.len,
		};
	return 0;
}

static int rpc_decode_append(const Wk__Append *a, struct message *m, struct err *ret_err)
{
	m->append.session = a->session;
	switch (a->input_case) {
	case WK__APPEND__INPUT_TEXT:
		m->append.input = MESSAGE_INPUT_TEXT;
		m->append.parse_special = a->text->parse_special;
		m->append.add_bos = a->text->add_bos;
		return rpc_decode_text(a->text, ret_err, &m->append.text, &m->append.n_text_bytes);
	case WK__APPEND__INPUT_TOKENS:
		m->append.input = MESSAGE_INPUT_TOKENS;
		m->append.ids = a->tokens->ids;
		m->append.n_ids = a->tokens->n_ids;
		return 0;
	case WK__APPEND__INPUT_CHAT:
		m->append.input = MESSAGE_INPUT_CHAT;
		return rpc_decode_chat(a->chat, m, ret_err);
	default: return err_set(ret_err, EINVAL, "append: expected text, tokens or chat");
	}
}

static int rpc_decode_stops(const Wk__Generate *g, struct message *m, struct err *ret_err)
{
	if (g->n_stop > MESSAGE_MAX_STOPS)
		return err_set(ret_err, EINVAL, "stop: expected at most %d, found %zu",
			MESSAGE_MAX_STOPS, g->n_stop);
	for (size_t i = 0; i < g->n_stop; i++)
		if (!g->stop[i].len || g->stop[i].len > MESSAGE_MAX_STOP_BYTES)
			return err_set(ret_err, EINVAL,
				"stop[%zu]: expected 1 to %d bytes, found %zu", i,
				MESSAGE_MAX_STOP_BYTES, g->stop[i].len);
	if (!g->n_stop)
		return 0;
	m->generate.stops = calloc(g->n_stop, sizeof(*m->generate.stops));
	if (!m->generate.stops)
		return -ENOMEM;
	m->generate.n_stops = (uint32_t)g->n_stop;
	for (size_t i = 0; i < g->n_stop; i++)
		m->generate.stops[i] = (struct message_stop){
			.bytes = (const char *)g->stop[i].data,
			.n_bytes = (uint32_t)g->stop[i].len,
		};
	return 0;
}

static int rpc_decode_constraint(const Wk__Generate *g, struct message *m, struct err *ret_err)
{
	const ProtobufCBinaryData *text = g->grammar.len ? &g->grammar : &g->json_schema;

	if (g->grammar.len && g->json_schema.len)
		return err_set(ret_err, EINVAL,
			"grammar, json_schema: expected one of them at most, found both");
	if (!text->len)
		return 0;
	if (g->ignore_eos)
		return err_set(ret_err, EINVAL,
			"ignore_eos: expected none with a grammar, which says where the text ends");
	m->generate.constraint = (const char *)text->data;
	m->generate.n_constraint_bytes = text->len;
	m->generate.is_schema = g->json_schema.len > 0;
	return 0;
}

static int rpc_decode_generate(const Wk__Generate *g, struct message *m, struct err *ret_err)
{
	m->generate.session = g->session;
	m->generate.n_predict = g->n_predict;
	m->generate.ignore_eos = g->ignore_eos;
	m->generate.priority = g->priority;
	if (g->priority < -TURN_MAX_PRIORITY || g->priority > TURN_MAX_PRIORITY)
		return err_set(ret_err, EINVAL, "priority: expected %d to %d, found %" PRId32,
			-TURN_MAX_PRIORITY, TURN_MAX_PRIORITY, g->priority);
	m->generate.is_shifting = g->context_shift;
	m->generate.n_keep = g->n_keep;
	int r = rpc_sampling_decode(g, &m->generate, ret_err);
	if (!r)
		r = rpc_decode_constraint(g, m, ret_err);
	if (r)
		return r;
	return rpc_decode_stops(g, m, ret_err);
}

static int rpc_decode_detokenize(const Wk__Detokenize *d, struct message *m)
{
	if (d->tokens) {
		m->text.ids = d->tokens->ids;
		m->text.n_ids = d->tokens->n_ids;
	}
	return 0;
}

static int rpc_decode_tokenize(const Wk__Tokenize *t, struct message *m, struct err *ret_err)
{
	int r = rpc_decode_text(t->text, ret_err, &m->text.text, &m->text.n_text_bytes);

	if (r)
		return r;
	m->text.parse_special = t->text->parse_special;
	m->text.add_bos = t->text->add_bos;
	return 0;
}

static int rpc_decode_publish(const Wk__PublishPrefix *p, struct message *m, struct err *ret_err)
{
	size_t n_bytes = strlen(p->name);

	if (n_bytes > MESSAGE_MAX_PREFIX_NAME_BYTES)
		return err_set(ret_err, EINVAL, "name: expected at most %d bytes, found %zu",
			MESSAGE_MAX_PREFIX_NAME_BYTES, n_bytes);
	m->publish.name = p->name;
	m->publish.is_shared = p->shared;
	switch (p->input_case) {
	case WK__PUBLISH_PREFIX__INPUT_TEXT:
		m->publish.parse_special = p->text->parse_special;
		m->publish.add_bos = p->text->add_bos;
		m->publish.n_text_bytes = p->text->text.len;
		m->publish.text = p->text->text.len ? (const char *)p->text->text.data : "";
		return 0;
	case WK__PUBLISH_PREFIX__INPUT_TOKENS:
		m->publish.ids = p->tokens->ids;
		m->publish.n_ids = p->tokens->n_ids;
		return 0;
	default: return err_set(ret_err, EINVAL, "prefix: expected text or tokens");
	}
}

/* The kind that a body has here. */
static enum message_kind rpc_get_kind(const Wk__Request *q)
{
	switch (q->body_case) {
	case WK__REQUEST__BODY_HELLO: return MESSAGE_HELLO;
	case WK__REQUEST__BODY_OPEN_SESSION: return MESSAGE_OPEN;
	case WK__REQUEST__BODY_APPEND: return MESSAGE_APPEND;
	case WK__REQUEST__BODY_GENERATE: return MESSAGE_GENERATE;
	case WK__REQUEST__BODY_CANCEL: return MESSAGE_CANCEL;
	case WK__REQUEST__BODY_TRUNCATE: return MESSAGE_TRUNCATE;
	case WK__REQUEST__BODY_CLOSE_SESSION: return MESSAGE_CLOSE;
	case WK__REQUEST__BODY_FORK_SESSION: return MESSAGE_FORK;
	case WK__REQUEST__BODY_SAVE_SESSION: return MESSAGE_SAVE;
	case WK__REQUEST__BODY_RESTORE_SESSION: return MESSAGE_RESTORE;
	case WK__REQUEST__BODY_TOKENIZE: return MESSAGE_TOKENIZE;
	case WK__REQUEST__BODY_DETOKENIZE: return MESSAGE_DETOKENIZE;
	case WK__REQUEST__BODY_STATUS: return MESSAGE_STATUS;
	case WK__REQUEST__BODY_BENCH_MEMORY: return MESSAGE_BENCH_MEMORY;
	case WK__REQUEST__BODY_BENCH: return MESSAGE_BENCH;
	case WK__REQUEST__BODY_BENCH_RUN: return MESSAGE_BENCH_RUN;
	case WK__REQUEST__BODY_BENCH_END: return MESSAGE_BENCH_END;
	case WK__REQUEST__BODY_TUNE: return MESSAGE_TUNE;
	case WK__REQUEST__BODY_PUBLISH_PREFIX: return MESSAGE_PUBLISH;
	default: return MESSAGE_UNKNOWN;
	}
}

/* The members of the request, borrowed from q, which is the message's owner. */
static int rpc_decode_body(const Wk__Request *q, struct message *m, struct err *ret_err)
{
	switch (m->kind) {
	case MESSAGE_HELLO: m->protocol = q->hello->protocol; return 0;
	case MESSAGE_OPEN: return 0;
	case MESSAGE_APPEND: return rpc_decode_append(q->append, m, ret_err);
	case MESSAGE_GENERATE: return rpc_decode_generate(q->generate, m, ret_err);
	case MESSAGE_CANCEL: m->session = q->cancel->session; return 0;
	case MESSAGE_TRUNCATE:
		m->truncate.session = q->truncate->session;
		m->truncate.n_tokens = q->truncate->n_tokens;
		return 0;
	case MESSAGE_CLOSE: m->session = q->close_session->session; return 0;
	case MESSAGE_SAVE:
		m->archive.session = q->save_session->session;
		m->archive.name = q->save_session->name;
		return 0;
	case MESSAGE_RESTORE: m->archive.name = q->restore_session->name; return 0;
	case MESSAGE_FORK:
		m->fork.session = q->fork_session->session;
		m->fork.n_tokens = q->fork_session->n_tokens;
		return 0;
	case MESSAGE_TOKENIZE: return rpc_decode_tokenize(q->tokenize, m, ret_err);
	case MESSAGE_DETOKENIZE: return rpc_decode_detokenize(q->detokenize, m);
	case MESSAGE_PUBLISH: return rpc_decode_publish(q->publish_prefix, m, ret_err);
	case MESSAGE_BENCH: rpc_bench_decode(q->bench, m); return 0;
	case MESSAGE_BENCH_RUN:
		m->bench_run.start_ns = q->bench_run->start_ns;
		m->bench_run.is_profile = q->bench_run->profile;
		return 0;
	case MESSAGE_TUNE:
		m->tune.has_progress = q->tune->progress;
		m->tune.max_seconds = q->tune->max_seconds;
		return 0;
	case MESSAGE_STATUS:
	case MESSAGE_BENCH_END:
	case MESSAGE_BENCH_MEMORY: return 0;
	default:
		return err_set(ret_err, ENOSYS,
			"request: of a kind that workerd " WEIGHTD_VERSION " does not know");
	}
}

static int rpc_refuse_for_memory(uint32_t n_bytes, struct err *ret_err)
{
	return err_set(ret_err, ENOMEM,
		"request: the worker has no memory for one of %" PRIu32 " bytes", n_bytes);
}

int rpc_decode(
	const uint8_t *data, uint32_t n_bytes, struct err *ret_err, struct message **ret_message)
{
	struct rpc_budget budget = {.n_left = MAX_UNPACKED_BYTES};
	ProtobufCAllocator allocator = {
		.alloc = rpc_alloc,
		.free = rpc_dealloc,
		.allocator_data = &budget,
	};
	Wk__Request *q = wk__request__unpack(&allocator, n_bytes, data);
	struct message *m;
	struct err e = ERR_NULL;

	if (!q && budget.is_out_of_memory)
		return rpc_refuse_for_memory(n_bytes, ret_err);
	if (!q)
		return err_set(ret_err, EBADMSG,
			"request: expected one that unpacks to at most %d MiB, found %" PRIu32
			" bytes of something else",
			MAX_UNPACKED_BYTES >> 20, n_bytes);
	if (!q->id) {
		rpc_free_request(q);
		return err_set(ret_err, EBADMSG, "request: expected an id, found 0");
	}
	m = message_new(rpc_get_kind(q), 0, 0);
	if (!m) {
		rpc_free_request(q);
		return rpc_refuse_for_memory(n_bytes, ret_err);
	}
	m->id = q->id;
	m->arrived_ns = clock_now_ns();
	m->owner = q;
	m->free_owner = rpc_free_request;
	int r = rpc_decode_body(q, m, &e);
	if (r)
		message_refuse(m, r, &e);
	*ret_message = m;
	return 0;
}

/* Packs a reply behind its length; -EMSGSIZE above the cap. */
static int rpc_pack(const Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	size_t n_bytes = wk__reply__get_packed_size(reply);
	uint8_t *data;

	if (n_bytes > STREAM_MAX_BYTES)
		return -EMSGSIZE;
	data = malloc(STREAM_HEADER_BYTES + n_bytes);
	if (!data)
		return -ENOMEM;
	stream_make_header((uint32_t)n_bytes, data);
	wk__reply__pack(reply, data + STREAM_HEADER_BYTES);
	*ret_data = data;
	*ret_n_bytes = STREAM_HEADER_BYTES + (uint32_t)n_bytes;
	return 0;
}

static int rpc_encode_error(
	uint64_t id, int code, const char *text, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__Error error = WK__ERROR__INIT;
	Wk__Reply reply = WK__REPLY__INIT;

	error.code = -code;
	error.text = (char *)text;
	reply.id = id;
	reply.body_case = WK__REPLY__BODY_ERROR;
	reply.error = &error;
	return rpc_pack(&reply, ret_data, ret_n_bytes);
}

static int rpc_encode_rates(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__MemoryRate rates[BENCH_MEMORY_MAX_RATES];
	Wk__MemoryRate *list[BENCH_MEMORY_MAX_RATES];
	Wk__MemoryRates answer = WK__MEMORY_RATES__INIT;

	for (uint32_t i = 0; i < m->rates->n_rates; i++) {
		const struct bench_memory_rate *r = &m->rates->rates[i];

		rates[i] = (Wk__MemoryRate)WK__MEMORY_RATE__INIT;
		rates[i].placement = (char *)rpc_status_placement_name(r->placement);
		rates[i].n_bytes = r->n_bytes;
		rates[i].read_ns = r->read_ns;
		rates[i].copy_ns = r->copy_ns;
		rates[i].n_stream_bytes = r->n_stream_bytes;
		rates[i].stream_ns = r->stream_ns;
		list[i] = &rates[i];
	}
	answer.n_rates = m->rates->n_rates;
	answer.rates = list;
	reply->body_case = WK__REPLY__BODY_MEMORY_RATES;
	reply->memory_rates = &answer;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_status(const struct message *m, const struct rpc_worker *w, Wk__Reply *reply,
	uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	struct rpc_status status;

	rpc_status_fill(m->status, w, &status);
	reply->body_case = WK__REPLY__BODY_STATUS;
	reply->status = &status.status;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_welcome(
	const struct rpc_worker *w, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__Welcome welcome = WK__WELCOME__INIT;

	welcome.protocol = STREAM_PROTOCOL;
	welcome.build = (char *)WEIGHTD_VERSION;
	welcome.model = (char *)w->model;
	welcome.generation = w->generation;
	welcome.n_ctx = w->n_ctx;
	welcome.has_chat_template = w->has_chat_template;
	reply->body_case = WK__REPLY__BODY_WELCOME;
	reply->welcome = &welcome;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_finished(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	const struct message_finished *f = &m->generate.finished;
	Wk__Finished finished = WK__FINISHED__INIT;

	finished.reason = (Wk__Finished__Reason)f->reason;
	if (m->code)
		finished.text = (char *)message_get_error(m);
	finished.prompt_tokens = f->prompt_tokens;
	finished.generated_tokens = f->generated_tokens;
	finished.cached_tokens = f->cached_tokens;
	finished.prompt_ns = f->prompt_ns;
	finished.generate_ns = f->generate_ns;
	finished.seed = f->seed;
	finished.index = f->index;
	reply->body_case = WK__REPLY__BODY_FINISHED;
	reply->finished = &finished;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_token(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__Logprob rows[LOGPROB_MAX_TOP];
	Wk__Logprob *list[LOGPROB_MAX_TOP];
	Wk__Token token = WK__TOKEN__INIT;

	rpc_sampling_fill_token(&m->token, rows, list, &token);
	token.id = m->token.id;
	token.text.data = (uint8_t *)m->token.bytes;
	token.text.len = m->token.n_bytes;
	reply->body_case = WK__REPLY__BODY_TOKEN;
	reply->token = &token;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

/* Appended, Tokens, Text, SessionOpened, Saved, Restored and Done: a few members each. */
static int rpc_encode_small(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__SessionOpened opened = WK__SESSION_OPENED__INIT;
	Wk__Appended appended = WK__APPENDED__INIT;
	Wk__Tokens tokens = WK__TOKENS__INIT;
	Wk__Text text = WK__TEXT__INIT;
	Wk__Saved saved = WK__SAVED__INIT;
	Wk__Restored restored = WK__RESTORED__INIT;
	Wk__Done done = WK__DONE__INIT;

	switch (m->kind) {
	case MESSAGE_OPEN:
	case MESSAGE_FORK:
		opened.session = m->kind == MESSAGE_OPEN ? m->session : m->fork.session;
		reply->body_case = WK__REPLY__BODY_SESSION_OPENED;
		reply->session_opened = &opened;
		break;
	case MESSAGE_APPEND:
		appended.n_tokens = m->append.n_added;
		appended.n_total = m->append.n_total;
		reply->body_case = WK__REPLY__BODY_APPENDED;
		reply->appended = &appended;
		break;
	case MESSAGE_SAVE:
		saved.n_tokens = m->archive.n_tokens;
		saved.n_cached = m->archive.n_cached;
		saved.n_bytes = m->archive.n_bytes;
		reply->body_case = WK__REPLY__BODY_SAVED;
		reply->saved = &saved;
		break;
	case MESSAGE_RESTORE:
		restored.session = m->archive.session;
		restored.n_tokens = m->archive.n_tokens;
		restored.n_cached = m->archive.n_cached;
		restored.why = (char *)m->archive.why;
		reply->body_case = WK__REPLY__BODY_RESTORED;
		reply->restored = &restored;
		break;
	case MESSAGE_TOKENIZE:
		tokens.n_ids = m->text.n_ids;
		tokens.ids = (uint32_t *)m->text.ids;
		reply->body_case = WK__REPLY__BODY_TOKENS;
		reply->tokens = &tokens;
		break;
	case MESSAGE_DETOKENIZE:
		text.text.data = (uint8_t *)m->text.text;
		text.text.len = m->text.n_text_bytes;
		reply->body_case = WK__REPLY__BODY_TEXT;
		reply->text = &text;
		break;
	default:
		reply->body_case = WK__REPLY__BODY_DONE;
		reply->done = &done;
		break;
	}
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_published(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__PrefixPublished published = WK__PREFIX_PUBLISHED__INIT;

	published.id = m->publish.prefix;
	published.n_tokens = m->publish.n_tokens;
	published.n_bytes = m->publish.n_bytes;
	published.computed_tokens = m->publish.n_computed;
	published.existed = m->publish.existed;
	reply->body_case = WK__REPLY__BODY_PREFIX_PUBLISHED;
	reply->prefix_published = &published;
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_bench(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__BenchReady ready = WK__BENCH_READY__INIT;
	Wk__BenchRan ran = WK__BENCH_RAN__INIT;
	struct rpc_bench rpc;

	if (m->kind == MESSAGE_BENCH) {
		ready.n_rows = m->bench.n_rows;
		ready.n_dispatches = m->bench.n_dispatches;
		reply->body_case = WK__REPLY__BODY_BENCH_READY;
		reply->bench_ready = &ready;
	} else {
		rpc_bench_fill(m->bench_run.result, &rpc, &ran);
		reply->body_case = WK__REPLY__BODY_BENCH_RAN;
		reply->bench_ran = &ran;
	}
	return rpc_pack(reply, ret_data, ret_n_bytes);
}

static int rpc_encode_tuned(
	const struct message *m, Wk__Reply *reply, uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	struct rpc_tune rpc;
	int r = rpc_tune_fill(m, &rpc, reply);

	if (!r)
		r = rpc_pack(reply, ret_data, ret_n_bytes);
	rpc_tune_fini(&rpc);
	return r;
}

static int rpc_encode_answer(const struct message *m, const struct rpc_worker *worker,
	uint8_t **ret_data, uint32_t *ret_n_bytes)
{
	Wk__Reply reply = WK__REPLY__INIT;

	reply.id = m->id;
	switch (m->kind) {
	case MESSAGE_HELLO: return rpc_encode_welcome(worker, &reply, ret_data, ret_n_bytes);
	case MESSAGE_STATUS: return rpc_encode_status(m, worker, &reply, ret_data, ret_n_bytes);
	case MESSAGE_BENCH_MEMORY: return rpc_encode_rates(m, &reply, ret_data, ret_n_bytes);
	case MESSAGE_BENCH:
	case MESSAGE_BENCH_RUN: return rpc_encode_bench(m, &reply, ret_data, ret_n_bytes);
	case MESSAGE_TUNE:
	case MESSAGE_TUNING: return rpc_encode_tuned(m, &reply, ret_data, ret_n_bytes);
	case MESSAGE_PUBLISH: return rpc_encode_published(m, &reply, ret_data, ret_n_bytes);
	case MESSAGE_GENERATE:
	case MESSAGE_FINISHED: return rpc_encode_finished(m, &reply, ret_data, ret_n_bytes);
	case MESSAGE_TOKEN: return rpc_encode_token(m, &reply, ret_data, ret_n_bytes);
	default: return rpc_encode_small(m, &reply, ret_data, ret_n_bytes);
	}
}

int rpc_encode(const struct message *m, const struct rpc_worker *worker, uint8_t **ret_data,
	uint32_t *ret_n_bytes)
{
	bool is_finished = m->kind == MESSAGE_FINISHED ||
			   (m->kind == MESSAGE_GENERATE && m->generate.finished.reason);
	int r;

	if (m->code && !is_finished)
		return rpc_encode_error(
			m->id, m->code, message_get_error(m), ret_data, ret_n_bytes);
	r = rpc_encode_answer(m, worker, ret_data, ret_n_bytes);
	if (r == -EMSGSIZE)
		r = rpc_encode_error(m->id, r, "answer: larger than the protocol's 1 MiB", ret_data,
			ret_n_bytes);
	return r;
}
