/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-client.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/worker-client-memory.h"
#include "proto/worker-client-sampling.h"
#include "proto/worker-link.h"

enum {
	WORKER_CLIENT_MAX_MESSAGES = 65536, /* of a chat; the request's cap comes first */
	WORKER_CLIENT_MAX_STOPS = 16,
	WORKER_CLIENT_MAX_MODEL_BYTES = 127,
};

struct worker_client {
	struct worker_link link;
	struct worker_client_info info;
	char model[WORKER_CLIENT_MAX_MODEL_BYTES + 1];
};

int worker_client_default_path(char *ret_path, uint32_t n_bytes)
{
	const char *path = getenv("WORKERD_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int n;

	if (path && path[0])
		n = snprintf(ret_path, n_bytes, "%s", path);
	else if (runtime && runtime[0])
		n = snprintf(ret_path, n_bytes, "%s/workerd.sock", runtime);
	else
		n = snprintf(ret_path, n_bytes, "/run/weightd/workerd.sock");
	return n < 0 || (uint32_t)n >= n_bytes ? -ENAMETOOLONG : 0;
}

/* A string of the peer into a fixed array; the rest of ret_copy is left alone on failure. */
static int must_check worker_client_copy(
	const char *what, const char *s, size_t n_room, struct err *ret_err, char *ret_copy)
{
	size_t n = strlen(s);

	if (n >= n_room)
		return err_set(ret_err, EPROTO, "worker: %s: expected at most %zu bytes, found %zu",
			what, n_room - 1, n);
	memcpy(ret_copy, s, n + 1);
	return 0;
}

static int must_check worker_client_hello(struct worker_client *c, struct err *ret_err)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Hello hello = WK__HELLO__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	hello.protocol = STREAM_PROTOCOL;
	hello.build = (char *)WEIGHTD_VERSION;
	request.body_case = WK__REQUEST__BODY_HELLO;
	request.hello = &hello;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_WELCOME, ret_err, &reply);
	if (r < 0)
		return r;
	const Wk__Welcome *w = reply->welcome;
	if (w->protocol != STREAM_PROTOCOL)
		return err_set(ret_err, EPROTO, "worker %s: protocol: expected %d, found %u",
			w->build, STREAM_PROTOCOL, w->protocol);
	c->info = (struct worker_client_info){
		.model = c->model,
		.generation = w->generation,
		.n_ctx = w->n_ctx,
		.has_chat_template = w->has_chat_template,
	};
	return worker_client_copy("model", w->model, sizeof(c->model), ret_err, c->model);
}

int worker_client_new_connected(int fd, struct err *ret_err, struct worker_client **ret_client)
{
	const struct timeval timeout = {.tv_sec = WORKER_LINK_TIMEOUT_MS / 1000};
	struct worker_client *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		close(fd);
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	}
	c->link.fd = fd;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
		r = err_set(ret_err, errno, "worker: socket timeouts: %s", strerror(errno));
	else
		r = worker_client_hello(c, ret_err);
	if (r < 0) {
		worker_client_free(c);
		return r;
	}
	*ret_client = c;
	return 0;
}

int worker_client_new(const char *path, struct err *ret_err, struct worker_client **ret_client)
{
	char buffer[PATH_MAX];
	int fd, r;

	if (!path) {
		r = worker_client_default_path(buffer, sizeof(buffer));
		if (r < 0)
			return err_set(ret_err, -r, "worker's socket: path too long");
		path = buffer;
	}
	r = stream_connect(path, ret_err, &fd);
	if (r < 0)
		return r;
	return worker_client_new_connected(fd, ret_err, ret_client);
}

struct worker_client *worker_client_free(struct worker_client *c)
{
	if (c)
		worker_link_fini(&c->link);
	free(c);
	return NULL;
}

const struct worker_client_info *worker_client_get_info(const struct worker_client *c)
{
	return &c->info;
}

int worker_client_get_fd(const struct worker_client *c)
{
	return c->link.fd;
}

int worker_client_open_session(struct worker_client *c, struct err *ret_err, uint64_t *ret_session)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__OpenSession open = WK__OPEN_SESSION__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	request.body_case = WK__REQUEST__BODY_OPEN_SESSION;
	request.open_session = &open;
	int r = worker_link_call(
		&c->link, &request, WK__REPLY__BODY_SESSION_OPENED, ret_err, &reply);
	if (r == 0)
		*ret_session = reply->session_opened->session;
	return r;
}

int worker_client_fork_session(struct worker_client *c, uint64_t session, uint32_t n_tokens,
	struct err *ret_err, uint64_t *ret_session)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__ForkSession fork = WK__FORK_SESSION__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	fork.session = session;
	fork.n_tokens = n_tokens;
	request.body_case = WK__REQUEST__BODY_FORK_SESSION;
	request.fork_session = &fork;
	int r = worker_link_call(
		&c->link, &request, WK__REPLY__BODY_SESSION_OPENED, ret_err, &reply);
	if (r == 0)
		*ret_session = reply->session_opened->session;
	return r;
}

int worker_client_save_session(struct worker_client *c, uint64_t session, const char *name,
	struct err *ret_err, struct worker_client_saved *ret_saved)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__SaveSession save = WK__SAVE_SESSION__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	save.session = session;
	save.name = (char *)name;
	request.body_case = WK__REQUEST__BODY_SAVE_SESSION;
	request.save_session = &save;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_SAVED, ret_err, &reply);
	if (r == 0)
		*ret_saved = (struct worker_client_saved){
			.session = session,
			.n_tokens = reply->saved->n_tokens,
			.n_cached = reply->saved->n_cached,
			.n_bytes = reply->saved->n_bytes,
		};
	return r;
}

int worker_client_restore_session(struct worker_client *c, const char *name, struct err *ret_err,
	struct worker_client_saved *ret_saved)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__RestoreSession restore = WK__RESTORE_SESSION__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	restore.name = (char *)name;
	request.body_case = WK__REQUEST__BODY_RESTORE_SESSION;
	request.restore_session = &restore;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_RESTORED, ret_err, &reply);
	if (r)
		return r;
	struct worker_client_saved saved = {
		.session = reply->restored->session,
		.n_tokens = reply->restored->n_tokens,
		.n_cached = reply->restored->n_cached,
	};
	r = worker_client_copy(
		"restored", reply->restored->why, sizeof(saved.why), ret_err, saved.why);
	if (r == 0)
		*ret_saved = saved;
	return r;
}

/* A request that Done answers. */
static int must_check worker_client_do(
	struct worker_client *c, Wk__Request *request, struct err *ret_err)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;

	return worker_link_call(&c->link, request, WK__REPLY__BODY_DONE, ret_err, &reply);
}

int worker_client_close_session(struct worker_client *c, uint64_t session, struct err *ret_err)
{
	Wk__CloseSession close_session = WK__CLOSE_SESSION__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	close_session.session = session;
	request.body_case = WK__REQUEST__BODY_CLOSE_SESSION;
	request.close_session = &close_session;
	return worker_client_do(c, &request, ret_err);
}

int worker_client_truncate(
	struct worker_client *c, uint64_t session, uint32_t n_tokens, struct err *ret_err)
{
	Wk__Truncate truncate_session = WK__TRUNCATE__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	truncate_session.session = session;
	truncate_session.n_tokens = n_tokens;
	request.body_case = WK__REQUEST__BODY_TRUNCATE;
	request.truncate = &truncate_session;
	return worker_client_do(c, &request, ret_err);
}

static int must_check worker_client_append(
	struct worker_client *c, Wk__Append *append, struct err *ret_err, uint32_t *ret_n_total)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Request request = WK__REQUEST__INIT;

	request.body_case = WK__REQUEST__BODY_APPEND;
	request.append = append;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_APPENDED, ret_err, &reply);
	if (r == 0)
		*ret_n_total = reply->appended->n_total;
	return r;
}

static int must_check worker_client_append_string(struct worker_client *c, uint64_t session,
	const char *text, uint32_t n_bytes, bool parse_special, bool add_bos, struct err *ret_err,
	uint32_t *ret_n_total)
{
	Wk__Text message = WK__TEXT__INIT;
	Wk__Append append = WK__APPEND__INIT;

	message.text = (ProtobufCBinaryData){.data = (uint8_t *)text, .len = n_bytes};
	message.parse_special = parse_special;
	message.add_bos = add_bos;
	append.session = session;
	append.input_case = WK__APPEND__INPUT_TEXT;
	append.text = &message;
	return worker_client_append(c, &append, ret_err, ret_n_total);
}

int worker_client_append_text(struct worker_client *c, uint64_t session, const char *text,
	uint32_t n_bytes, bool parse_special, struct err *ret_err, uint32_t *ret_n_total)
{
	return worker_client_append_string(
		c, session, text, n_bytes, parse_special, true, ret_err, ret_n_total);
}

int worker_client_append_more(struct worker_client *c, uint64_t session, const char *text,
	uint32_t n_bytes, bool parse_special, struct err *ret_err, uint32_t *ret_n_total)
{
	return worker_client_append_string(
		c, session, text, n_bytes, parse_special, false, ret_err, ret_n_total);
}

int worker_client_append_tokens(struct worker_client *c, uint64_t session, const uint32_t *ids,
	uint32_t n_ids, struct err *ret_err, uint32_t *ret_n_total)
{
	Wk__Tokens message = WK__TOKENS__INIT;
	Wk__Append append = WK__APPEND__INIT;

	message.ids = (uint32_t *)ids;
	message.n_ids = n_ids;
	append.session = session;
	append.input_case = WK__APPEND__INPUT_TOKENS;
	append.tokens = &message;
	return worker_client_append(c, &append, ret_err, ret_n_total);
}

int worker_client_append_chat(struct worker_client *c, uint64_t session,
	const struct worker_client_message *messages, uint32_t n_messages, struct err *ret_err,
	uint32_t *ret_n_total)
{
	_cleanup_(cleanup_free)
	Wk__ChatMessage *rows = NULL;
	_cleanup_(cleanup_free)
	Wk__ChatMessage **pointers = NULL;
	Wk__Chat chat = WK__CHAT__INIT;
	Wk__Append append = WK__APPEND__INIT;

	if (n_messages > WORKER_CLIENT_MAX_MESSAGES)
		return err_set(ret_err, EMSGSIZE, "chat: expected at most %d messages, found %u",
			WORKER_CLIENT_MAX_MESSAGES, n_messages);
	rows = calloc(n_messages + 1, sizeof(*rows));
	pointers = calloc(n_messages + 1, sizeof(*pointers));
	if (!rows || !pointers)
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	for (uint32_t i = 0; i < n_messages; i++) {
		wk__chat_message__init(&rows[i]);
		rows[i].role = (char *)messages[i].role;
		rows[i].content = (ProtobufCBinaryData){
			.data = (uint8_t *)messages[i].content,
			.len = messages[i].n_content_bytes,
		};
		pointers[i] = &rows[i];
	}
	chat.messages = pointers;
	chat.n_messages = n_messages;
	chat.add_generation_prompt = true;
	append.session = session;
	append.input_case = WK__APPEND__INPUT_CHAT;
	append.chat = &chat;
	return worker_client_append(c, &append, ret_err, ret_n_total);
}

static int must_check worker_client_send_generate(struct worker_client *c, uint64_t session,
	const struct worker_client_generate *g, struct err *ret_err, uint64_t *ret_id)
{
	_cleanup_(worker_client_sampling_fini)
	struct worker_client_sampling_parts parts = {0};
	Wk__Generate generate = WK__GENERATE__INIT;
	Wk__Request request = WK__REQUEST__INIT;
	ProtobufCBinaryData stop[WORKER_CLIENT_MAX_STOPS];

	if (g->n_stop > WORKER_CLIENT_MAX_STOPS)
		return err_set(ret_err, EINVAL, "generate: expected at most %d stops, found %u",
			WORKER_CLIENT_MAX_STOPS, g->n_stop);
	for (uint32_t i = 0; i < g->n_stop; i++)
		stop[i] = (ProtobufCBinaryData){
			.data = (uint8_t *)g->stop[i], .len = strlen(g->stop[i])};
	int r = worker_client_sampling_fill(g, &parts, ret_err, &generate);
	if (r)
		return r;
	generate.session = session;
	generate.n_predict = g->n_predict;
	generate.stop = stop;
	generate.n_stop = g->n_stop;
	generate.ignore_eos = g->ignore_eos;
	generate.context_shift = g->context_shift;
	generate.n_keep = g->n_keep;
	if (g->constraint)
		*(g->is_schema ? &generate.json_schema : &generate.grammar) = (ProtobufCBinaryData){
			.data = (uint8_t *)g->constraint, .len = g->n_constraint_bytes};
	request.body_case = WK__REQUEST__BODY_GENERATE;
	request.generate = &generate;
	r = worker_link_send(&c->link, &request, ret_err);
	if (r == 0)
		*ret_id = request.id;
	return r;
}

static int must_check worker_client_read_finished(
	const Wk__Finished *m, struct err *ret_err, struct worker_client_finished *ret_finished)
{
	struct worker_client_finished f = {
		.reason = (enum worker_client_reason)m->reason,
		.prompt_tokens = m->prompt_tokens,
		.generated_tokens = m->generated_tokens,
		.cached_tokens = m->cached_tokens,
		.prompt_ns = m->prompt_ns,
		.generate_ns = m->generate_ns,
		.seed = m->seed,
	};

	if (m->reason < WK__FINISHED__REASON__STOP || m->reason > WK__FINISHED__REASON__FAILED)
		return err_set(
			ret_err, EPROTO, "worker: finished: unknown reason %d", (int)m->reason);
	int r = worker_client_copy("finished", m->text, sizeof(f.text), ret_err, f.text);
	if (r == 0)
		*ret_finished = f;
	return r;
}

/* The end of one of n_completions; *is_finished says of each whether it has ended. */
static int must_check worker_client_take_finished(const Wk__Finished *m, uint32_t n_completions,
	bool *is_finished, struct err *ret_err, struct worker_client_finished *ret_finished)
{
	if (m->index >= n_completions || is_finished[m->index])
		return err_set(ret_err, EPROTO,
			"worker: finished: index: expected one of %u, each once, found %u",
			n_completions, m->index);
	is_finished[m->index] = true;
	return worker_client_read_finished(m, ret_err, &ret_finished[m->index]);
}

int worker_client_generate(struct worker_client *c, uint64_t session,
	const struct worker_client_generate *g, worker_client_token_fn fn, void *userdata,
	struct err *ret_err, struct worker_client_finished *ret_finished)
{
	bool is_finished[WORKER_CLIENT_MAX_COMPLETIONS] = {false};
	uint32_t n = g->n ? g->n : 1, n_left = n;
	bool wanted = true;
	uint64_t id = 0;
	int r;

	if (n > WORKER_CLIENT_MAX_COMPLETIONS)
		return err_set(ret_err, EINVAL,
			"generate: expected at most %d completions, found %u",
			WORKER_CLIENT_MAX_COMPLETIONS, n);
	r = worker_client_send_generate(c, session, g, ret_err, &id);
	while (r == 0 && n_left) {
		_cleanup_(worker_link_free_reply)
		Wk__Reply *reply = NULL;
		struct worker_client_token token;

		r = worker_link_recv(&c->link, id, WORKER_LINK_FOREVER, ret_err, &reply);
		if (r < 0)
			return r;
		if (reply->body_case == WK__REPLY__BODY_FINISHED) {
			r = worker_client_take_finished(
				reply->finished, n, is_finished, ret_err, ret_finished);
			n_left--;
			continue;
		}
		if (reply->body_case != WK__REPLY__BODY_TOKEN)
			return err_set(ret_err, EPROTO,
				"worker: generate: expected a token, found body %d",
				(int)reply->body_case);
		r = worker_client_sampling_read_token(reply->token, n, ret_err, &token);
		if (r == 0 && wanted && !fn(&token, userdata)) {
			wanted = false;
			r = worker_link_send_cancel(&c->link, session, ret_err);
		}
	}
	return r;
}

int worker_client_cancel(struct worker_client *c, uint64_t session, struct err *ret_err)
{
	return worker_link_send_cancel(&c->link, session, ret_err);
}

int worker_client_tokenize(struct worker_client *c, const char *text, uint32_t n_bytes,
	bool parse_special, struct err *ret_err, uint32_t **ret_ids, uint32_t *ret_n_ids)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Text message = WK__TEXT__INIT;
	Wk__Tokenize tokenize = WK__TOKENIZE__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	message.text = (ProtobufCBinaryData){.data = (uint8_t *)text, .len = n_bytes};
	message.parse_special = parse_special;
	tokenize.text = &message;
	request.body_case = WK__REQUEST__BODY_TOKENIZE;
	request.tokenize = &tokenize;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_TOKENS, ret_err, &reply);
	if (r < 0)
		return r;
	uint32_t *ids = calloc(reply->tokens->n_ids + 1, sizeof(*ids));
	if (!ids)
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	for (size_t i = 0; i < reply->tokens->n_ids; i++)
		ids[i] = reply->tokens->ids[i];
	*ret_ids = ids;
	*ret_n_ids = (uint32_t)reply->tokens->n_ids;
	return 0;
}

int worker_client_detokenize(struct worker_client *c, const uint32_t *ids, uint32_t n_ids,
	struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Tokens message = WK__TOKENS__INIT;
	Wk__Detokenize detokenize = WK__DETOKENIZE__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	message.ids = (uint32_t *)ids;
	message.n_ids = n_ids;
	detokenize.tokens = &message;
	request.body_case = WK__REQUEST__BODY_DETOKENIZE;
	request.detokenize = &detokenize;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_TEXT, ret_err, &reply);
	if (r < 0)
		return r;
	const ProtobufCBinaryData *bytes = &reply->text->text;
	char *text = calloc(bytes->len + 1, 1);
	if (!text)
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	if (bytes->len > 0)
		memcpy(text, bytes->data, bytes->len);
	*ret_text = text;
	*ret_n_bytes = (uint32_t)bytes->len;
	return 0;
}

/* What steps did with weights outside device memory; absent where there are none. */
static void worker_client_read_counters(
	const Wk__Status *m, struct worker_client_status *ret_status)
{
	if (m->streaming) {
		ret_status->stream_rows = m->streaming->rows;
		ret_status->stream_steps = m->streaming->steps;
		ret_status->stream_ns = m->streaming->step_ns;
		ret_status->stream_bytes = m->streaming->copied_bytes;
		ret_status->paged_bytes = m->streaming->paged_bytes;
	}
	if (m->experts)
		ret_status->experts = (struct worker_client_experts){
			.n_slots = m->experts->slots,
			.n_bytes = m->experts->bytes,
			.n_found = m->experts->found,
			.n_fetched = m->experts->fetched,
			.n_direct = m->experts->direct,
		};
}

static int must_check worker_client_read_sessions(
	const Wk__Status *m, struct err *ret_err, struct worker_client_status *s)
{
	if (m->n_sessions_list > ARRAY_SIZE(s->sessions))
		return err_set(ret_err, EPROTO,
			"worker: status: expected at most %zu sessions, found %zu",
			ARRAY_SIZE(s->sessions), m->n_sessions_list);
	s->n_sessions_listed = (uint32_t)m->n_sessions_list;
	s->n_queued = m->n_queued;
	s->kv_pages = m->kv_pages;
	s->kv_used_pages = m->kv_used_pages;
	s->kv_shared_pages = m->kv_shared_pages;
	s->kv_cached_pages = m->kv_cached_pages;
	for (uint32_t i = 0; i < s->n_sessions_listed; i++) {
		const Wk__SessionStatus *from = m->sessions_list[i];

		if (from->state < WK__SESSION_STATUS__STATE__IDLE ||
			from->state > WK__SESSION_STATUS__STATE__DECODING)
			return err_set(ret_err, EPROTO,
				"worker: status: session state: expected 1 to 3, found %d",
				(int)from->state);
		s->sessions[i] = (struct worker_client_session){
			.session = from->session,
			.client = from->client,
			.n_tokens = from->n_tokens,
			.n_cached = from->n_cached,
			.state = (enum worker_client_session_state)from->state,
			.tokens_per_second = from->tokens_per_second,
		};
	}
	return 0;
}

static int must_check worker_client_read_status(
	const Wk__Status *m, struct err *ret_err, struct worker_client_status *ret_status)
{
	struct worker_client_status s = {
		.pid = m->pid,
		.uptime_ns = m->uptime_ns,
		.generation = m->generation,
		.software = m->software,
		.weights_bytes = m->weights_bytes,
		.n_sessions = m->n_sessions,
		.max_sessions = m->max_sessions,
		.n_ctx = m->n_ctx,
		.attach_ns = m->attach_ns,
		.ready_ns = m->ready_ns,
		.first_token_ns = m->first_token_ns,
		.prompt_tokens = m->prompt_tokens,
		.generated_tokens = m->generated_tokens,
		.n_dispatches = m->n_dispatches,
		.n_prefixes = m->n_prefixes,
		.prefix_bytes = m->prefix_bytes,
		.weightd_connected = m->weightd_connected,
		.is_parked = m->parked,
		.n_placed_weights = (uint32_t)m->n_placed_weights,
	};

	if (m->n_placed_weights > ARRAY_SIZE(s.placed_weights))
		return err_set(ret_err, EPROTO,
			"worker: status: expected at most %zu placements, found %zu",
			ARRAY_SIZE(s.placed_weights), m->n_placed_weights);
	if (m->identity.len != 0 && m->identity.len != sizeof(s.identity))
		return err_set(ret_err, EPROTO,
			"worker: status: identity: expected %zu bytes, found %zu",
			sizeof(s.identity), m->identity.len);
	s.has_identity = m->identity.len > 0;
	if (s.has_identity)
		memcpy(s.identity, m->identity.data, sizeof(s.identity));
	int r = worker_client_copy("model", m->model, sizeof(s.model), ret_err, s.model);
	if (r == 0)
		r = worker_client_copy("device", m->device, sizeof(s.device), ret_err, s.device);
	if (r == 0)
		r = worker_client_memory_read(m, ret_err, &s);
	for (uint32_t i = 0; r == 0 && i < s.n_placed_weights; i++) {
		struct worker_client_placed *p = &s.placed_weights[i];

		p->n_bytes = m->placed_weights[i]->n_bytes;
		r = worker_client_copy("placement", m->placed_weights[i]->placement,
			sizeof(p->placement), ret_err, p->placement);
	}
	if (r == 0)
		r = worker_client_read_sessions(m, ret_err, &s);
	if (r == 0)
		worker_client_read_counters(m, &s);
	if (r == 0)
		*ret_status = s;
	return r;
}

int worker_client_status(
	struct worker_client *c, struct err *ret_err, struct worker_client_status *ret_status)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__StatusRequest message = WK__STATUS_REQUEST__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	request.body_case = WK__REQUEST__BODY_STATUS;
	request.status = &message;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_STATUS, ret_err, &reply);
	if (r == 0)
		r = worker_client_read_status(reply->status, ret_err, ret_status);
	return r;
}

struct worker_link *worker_client_get_link(struct worker_client *c)
{
	return &c->link;
}

int worker_client_bench_memory(struct worker_client *c, struct err *ret_err,
	struct worker_client_rate ret_rates[WORKER_CLIENT_MAX_PLACEMENTS], uint32_t *ret_n)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__BenchMemory message = WK__BENCH_MEMORY__INIT;
	Wk__Request request = WK__REQUEST__INIT;
	struct worker_client_rate rates[WORKER_CLIENT_MAX_PLACEMENTS];

	request.body_case = WK__REQUEST__BODY_BENCH_MEMORY;
	request.bench_memory = &message;
	int r = worker_link_call(&c->link, &request, WK__REPLY__BODY_MEMORY_RATES, ret_err, &reply);
	if (r)
		return r;
	size_t n = reply->memory_rates->n_rates;
	if (n > WORKER_CLIENT_MAX_PLACEMENTS)
		return err_set(ret_err, EPROTO, "worker: rates: expected at most %d, found %zu",
			WORKER_CLIENT_MAX_PLACEMENTS, n);
	for (size_t i = 0; i < n; i++) {
		const Wk__MemoryRate *m = reply->memory_rates->rates[i];

		rates[i] = (struct worker_client_rate){
			.n_bytes = m->n_bytes,
			.read_ns = m->read_ns,
			.copy_ns = m->copy_ns,
			.n_stream_bytes = m->n_stream_bytes,
			.stream_ns = m->stream_ns,
		};
		r = worker_client_copy("placement", m->placement, sizeof(rates[i].placement),
			ret_err, rates[i].placement);
		if (r)
			return r;
	}
	memcpy(ret_rates, rates, n * sizeof(*rates));
	*ret_n = (uint32_t)n;
	return 0;
}
