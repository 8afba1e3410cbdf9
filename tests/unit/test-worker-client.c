/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "tests/unit/socket-dir.h"
#include "tests/unit/worker-peer.h"

static void reply_token(uint64_t id, uint32_t token, const char *text)
{
	Wk__Token t = WK__TOKEN__INIT;

	t.id = token;
	t.text = (ProtobufCBinaryData){.data = (uint8_t *)text, .len = strlen(text)};
	worker_peer_reply(id, WK__REPLY__BODY_TOKEN, &t);
}

static void reply_finished(uint64_t id, int reason)
{
	Wk__Finished f = WK__FINISHED__INIT;

	f.reason = (Wk__Finished__Reason)reason;
	f.prompt_tokens = 4;
	f.generated_tokens = 2;
	f.seed = 99;
	worker_peer_reply(id, WK__REPLY__BODY_FINISHED, &f);
}

static void says_hello(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	const struct worker_client_info *info = worker_client_get_info(c);

	(void)state;
	assert_string_equal(info->model, "atlas");
	assert_int_equal(info->generation, 3);
	assert_int_equal(info->n_ctx, 512);
	assert_true(info->has_chat_template);
	assert_true(worker_client_get_fd(c) >= 0);
	worker_peer_close_client(c);
	assert_null(worker_client_free(NULL));
}

static void refuses_a_bad_welcome(void **state)
{
	struct worker_client *c = NULL;
	struct err e = ERR_NULL;
	char name[200];
	int fd;

	(void)state;
	worker_peer_open(&fd);
	worker_peer_reply_error(1, EPROTO, "protocol: expected 9, found 1");
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -EPROTO);
	assert_string_equal(e.text, "protocol: expected 9, found 1");
	close(worker_peer);

	worker_peer_open(&fd);
	worker_peer_welcome(STREAM_PROTOCOL + 1, "atlas");
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -EPROTO);
	assert_non_null(strstr(e.text, "expected 1, found 2"));
	close(worker_peer);

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	worker_peer_open(&fd);
	worker_peer_welcome(STREAM_PROTOCOL, name);
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -EPROTO);
	assert_non_null(strstr(e.text, "model"));
	close(worker_peer);

	/* The connection itself is refused: before Hello is sent, or while it is waited for. */
	worker_peer_open(&fd);
	worker_peer_reply_error(0, EBUSY, "all 64 client connections are taken");
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -EBUSY);
	assert_string_equal(e.text, "all 64 client connections are taken");
	close(worker_peer);

	worker_peer_open(&fd);
	worker_peer_reply_error(0, EBUSY, "all 64 client connections are taken");
	close(worker_peer);
	e = ERR_NULL;
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -EBUSY);
	assert_string_equal(e.text, "all 64 client connections are taken");

	worker_peer_open(&fd);
	close(worker_peer);
	assert_int_equal(worker_client_new_connected(fd, &e, &c), -ECONNRESET);
	assert_string_equal(e.text, "worker closed the connection");
	assert_null(c);
}

static void handles_sessions(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	Wk__SessionOpened opened = WK__SESSION_OPENED__INIT;
	struct err e = ERR_NULL;
	uint64_t session = 0;

	(void)state;
	opened.session = 11;
	worker_peer_reply(2, WK__REPLY__BODY_SESSION_OPENED, &opened);
	assert_int_equal(worker_client_open_session(c, &e, &session), 0);
	assert_int_equal(session, 11);
	worker_peer_drop(2, WK__REQUEST__BODY_OPEN_SESSION);

	worker_peer_reply_done(3);
	assert_int_equal(worker_client_truncate(c, 11, 5, &e), 0);
	Wk__Request *r = worker_peer_take(3, WK__REQUEST__BODY_TRUNCATE);
	assert_int_equal(r->truncate->session, 11);
	assert_int_equal(r->truncate->n_tokens, 5);
	wk__request__free_unpacked(r, NULL);

	worker_peer_reply_done(4);
	assert_int_equal(worker_client_close_session(c, 11, &e), 0);
	r = worker_peer_take(4, WK__REQUEST__BODY_CLOSE_SESSION);
	assert_int_equal(r->close_session->session, 11);
	wk__request__free_unpacked(r, NULL);

	worker_peer_reply_error(5, ENOENT, "session 11: unknown");
	assert_int_equal(worker_client_close_session(c, 11, &e), -ENOENT);
	assert_string_equal(e.text, "session 11: unknown");
	worker_peer_close_client(c);
}

static void appends(void **state)
{
	static const struct worker_client_message messages[] = {
		{"system", "be brief", 8},
		{"user", "a\0b", 3},
	};
	struct worker_client *c = worker_peer_open_client();
	Wk__Appended appended = WK__APPENDED__INIT;
	struct err e = ERR_NULL;
	uint32_t n = 0;

	(void)state;
	appended.n_total = 9;
	worker_peer_reply(2, WK__REPLY__BODY_APPENDED, &appended);
	assert_int_equal(worker_client_append_text(c, 1, "hi", 2, true, &e, &n), 0);
	assert_int_equal(n, 9);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_APPEND);
	assert_int_equal(r->append->input_case, WK__APPEND__INPUT_TEXT);
	assert_int_equal(r->append->text->text.len, 2);
	assert_true(r->append->text->parse_special);
	wk__request__free_unpacked(r, NULL);

	worker_peer_reply(3, WK__REPLY__BODY_APPENDED, &appended);
	assert_int_equal(worker_client_append_tokens(c, 1, (uint32_t[]){7, 8}, 2, &e, &n), 0);
	r = worker_peer_take(3, WK__REQUEST__BODY_APPEND);
	assert_int_equal(r->append->tokens->n_ids, 2);
	assert_int_equal(r->append->tokens->ids[1], 8);
	wk__request__free_unpacked(r, NULL);

	worker_peer_reply(4, WK__REPLY__BODY_APPENDED, &appended);
	assert_int_equal(worker_client_append_chat(c, 1, messages, 2, &e, &n), 0);
	r = worker_peer_take(4, WK__REQUEST__BODY_APPEND);
	assert_int_equal(r->append->chat->n_messages, 2);
	assert_string_equal(r->append->chat->messages[0]->role, "system");
	assert_int_equal(r->append->chat->messages[1]->content.len, 3);
	assert_memory_equal(r->append->chat->messages[1]->content.data, "a\0b", 3);
	assert_true(r->append->chat->add_generation_prompt);
	wk__request__free_unpacked(r, NULL);

	/* Larger than a message may be: refused here, and the connection goes on. */
	assert_int_equal(worker_client_append_text(c, 1, (char *)worker_peer_message,
				 STREAM_MAX_BYTES, false, &e, &n),
		-EMSGSIZE);
	worker_peer_reply(6, WK__REPLY__BODY_APPENDED, &appended);
	assert_int_equal(worker_client_append_text(c, 1, "hi", 2, true, &e, &n), 0);
	worker_peer_close_client(c);
}

struct heard {
	struct worker_client *client; /* to cancel with, NULL: not */
	char text[64];
	int n;
	int n_wanted; /* then false; 0: all */
	struct worker_client_token last;
};

static bool hear(const struct worker_client_token *token, void *userdata)
{
	struct heard *heard = userdata;
	struct err e = ERR_NULL;

	strncat(heard->text, token->text, token->n_bytes);
	heard->last = *token;
	heard->n++;
	if (heard->client)
		assert_int_equal(worker_client_cancel(heard->client, 77, &e), 0);
	return heard->n != heard->n_wanted;
}

static void generates(void **state)
{
	static const char *const stops[] = {"\n", "END"};
	const struct worker_client_generate g = {
		.n_predict = 2,
		.sampling = {.temperature = 0.5f, .top_k = 40, .seed = 99, .has_seed = true},
		.stop = stops,
		.n_stop = 2,
		.context_shift = true,
		.n_keep = 17,
	};
	struct worker_client *c = worker_peer_open_client();
	struct worker_client_finished f;
	struct heard heard = {0};
	struct err e = ERR_NULL;

	(void)state;
	reply_token(2, 5, "Hel");
	reply_token(2, 6, "");
	reply_token(2, 7, "lo");
	reply_finished(2, WORKER_CLIENT_LENGTH);
	assert_int_equal(worker_client_generate(c, 11, &g, hear, &heard, &e, &f), 0);
	assert_string_equal(heard.text, "Hello");
	assert_int_equal(heard.n, 3);
	assert_int_equal(f.reason, WORKER_CLIENT_LENGTH);
	assert_int_equal(f.prompt_tokens, 4);
	assert_int_equal(f.seed, 99);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_GENERATE);
	assert_int_equal(r->generate->session, 11);
	assert_int_equal(r->generate->n_predict, 2);
	assert_true(r->generate->context_shift);
	assert_int_equal(r->generate->n_keep, 17);
	assert_int_equal(r->generate->sampling->top_k, 40);
	assert_true(r->generate->sampling->has_seed);
	assert_int_equal(r->generate->n_stop, 2);
	assert_int_equal(r->generate->stop[1].len, 3);
	wk__request__free_unpacked(r, NULL);
	worker_peer_close_client(c);
}

static void expect_sampling(void)
{
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_GENERATE);
	const Wk__Sampling *s = r->generate->sampling;
	assert_true(s->typical_p == 0.25f && s->frequency_penalty == 1 && s->presence_penalty == 2);
	assert_true(s->dry_multiplier == 3 && s->dry_base == 4);
	assert_true(s->dry_allowed_length == 5 && s->dry_last_n == 6);
	assert_true(s->n_dry_breakers == 2 && s->dry_breakers[1].len == 1);
	assert_true(s->n_logit_bias == 2 && s->logit_bias[0]->id == 5);
	assert_true(isinf(s->logit_bias[0]->bias) && s->logit_bias[1]->bias == 1.5f);
	assert_true(r->generate->n_stop_tokens == 2 && r->generate->stop_tokens[1] == 4);
	assert_int_equal(r->generate->logprobs, 2);
	wk__request__free_unpacked(r, NULL);
}

/* What is asked of sampling arrives, and what a token says of it comes back. */
static void asks_for_logprobs(void **state)
{
	static const struct worker_client_bias biases[] = {{5, -INFINITY}, {6, 1.5f}};
	static const char *const breakers[] = {"", "\n"};
	static const uint32_t stop_tokens[] = {3, 4};
	const struct worker_client_generate g = {
		.sampling = {.typical_p = 0.25f,
			.frequency_penalty = 1,
			.presence_penalty = 2,
			.dry_multiplier = 3,
			.dry_base = 4,
			.dry_allowed_length = 5,
			.dry_last_n = 6,
			.dry_breakers = breakers,
			.n_dry_breakers = 2,
			.biases = biases,
			.n_biases = 2},
		.stop_tokens = stop_tokens,
		.n_stop_tokens = 2,
		.n_logprobs = 2,
	};
	Wk__Logprob rows[21], *list[21];
	struct worker_client *c = worker_peer_open_client();
	struct worker_client_finished f;
	struct heard heard = {0};
	struct err e = ERR_NULL;
	Wk__Token t = WK__TOKEN__INIT;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		rows[i] = (Wk__Logprob)WK__LOGPROB__INIT;
		list[i] = &rows[i];
	}
	t.id = 7;
	t.logprob = -0.25f;
	t.n_top = 2;
	t.top = list;
	rows[0].id = 8;
	rows[0].logprob = -0.125f;
	rows[1].text = (ProtobufCBinaryData){.data = (uint8_t *)"ab", .len = 2};
	worker_peer_reply(2, WK__REPLY__BODY_TOKEN, &t);
	reply_finished(2, WORKER_CLIENT_STOP);
	assert_int_equal(worker_client_generate(c, 11, &g, hear, &heard, &e, &f), 0);
	assert_true(heard.last.logprob == -0.25f && heard.last.top[0].logprob == -0.125f);
	assert_int_equal(heard.last.n_top, 2);
	assert_int_equal(heard.last.top[0].id, 8);
	assert_int_equal(heard.last.top[0].n_bytes, 0);
	assert_int_equal(heard.last.top[1].n_bytes, 2);
	expect_sampling();
	/* More than can have been asked for. */
	t.n_top = ARRAY_SIZE(rows);
	worker_peer_reply(3, WK__REPLY__BODY_TOKEN, &t);
	assert_int_equal(worker_client_generate(c, 11, &g, hear, &heard, &e, &f), -EPROTO);
	assert_string_equal(e.text, "worker: token: expected at most 20 likeliest, found 21");
	worker_client_free(c);
	close(worker_peer);
}

static void reply_index(bool is_token, uint32_t id, uint32_t index)
{
	Wk__Finished f = WK__FINISHED__INIT;
	Wk__Token t = WK__TOKEN__INIT;

	f.reason = WK__FINISHED__REASON__STOP;
	t.index = f.index = index;
	t.id = f.generated_tokens = id;
	if (is_token)
		worker_peer_reply(2, WK__REPLY__BODY_TOKEN, &t);
	else
		worker_peer_reply(2, WK__REPLY__BODY_FINISHED, &f);
}

/* Three completions end in any order, each once. */
static void takes_completions(void **state)
{
	const struct worker_client_generate g = {.n = 3}, many = {.n = 9};
	struct worker_client_finished f[3];

	(void)state;
	for (int i = 0; i < 5; i++) {
		struct worker_client *c = worker_peer_open_client();
		struct heard heard = {0};
		struct err e = ERR_NULL;

		reply_index(true, 1, i == 1 ? 3 : 2);
		reply_index(false, 12, 2);
		reply_index(true, 4, 0);
		reply_index(false, 10, i == 2 ? 2 : 0);
		reply_index(false, 11, i == 3 ? 8 : 1);
		int r = worker_client_generate(c, 11, i == 4 ? &many : &g, hear, &heard, &e, f);
		assert_int_equal(r, i == 0 ? 0 : i == 4 ? -EINVAL : -EPROTO);
		for (uint32_t k = 0; k < 3 && i == 0; k++)
			assert_int_equal(f[k].generated_tokens, 10 + k);
		if (i == 0) {
			assert_int_equal(heard.n, 2);
			Wk__Request *request = worker_peer_take(2, WK__REQUEST__BODY_GENERATE);
			assert_int_equal(request->generate->n, 3);
			wk__request__free_unpacked(request, NULL);
		}
		worker_client_free(c);
		close(worker_peer);
	}
}

/* The Cancel's own answer may come before or after Finished; tokens on their way are dropped. */
static void cancels(void **state)
{
	const struct worker_client_generate g = {0};

	(void)state;
	for (int answer_first = 0; answer_first < 2; answer_first++) {
		struct worker_client *c = worker_peer_open_client();
		struct worker_client_finished f;
		struct heard heard = {.n_wanted = 1};
		struct err e = ERR_NULL;

		reply_token(2, 5, "one");
		reply_token(2, 6, "two");
		if (answer_first)
			worker_peer_reply_done(3);
		reply_finished(2, WORKER_CLIENT_CANCELLED);
		if (!answer_first)
			worker_peer_reply_error(3, ENOENT, "nothing to cancel");
		assert_int_equal(worker_client_generate(c, 11, &g, hear, &heard, &e, &f), 0);
		assert_string_equal(heard.text, "one");
		assert_int_equal(f.reason, WORKER_CLIENT_CANCELLED);
		worker_peer_drop(2, WK__REQUEST__BODY_GENERATE);
		Wk__Request *r = worker_peer_take(3, WK__REQUEST__BODY_CANCEL);
		assert_int_equal(r->cancel->session, 11);
		wk__request__free_unpacked(r, NULL);

		worker_peer_reply_done(4);
		assert_int_equal(worker_client_close_session(c, 11, &e), 0);
		worker_peer_close_client(c);
	}
}

static void cancels_others_from_within(void **state)
{
	const struct worker_client_generate g = {0};
	struct worker_client *c = worker_peer_open_client();
	struct worker_client_finished f;
	struct heard heard = {.client = c};
	struct err e = ERR_NULL;
	int r = 0;

	(void)state;
	reply_token(2, 5, "one");
	worker_peer_reply_done(3);
	reply_finished(2, WORKER_CLIENT_STOP);
	assert_int_equal(worker_client_generate(c, 11, &g, hear, &heard, &e, &f), 0);
	assert_int_equal(f.reason, WORKER_CLIENT_STOP);
	worker_peer_drop(2, WK__REQUEST__BODY_GENERATE);
	worker_peer_drop(3, WK__REQUEST__BODY_CANCEL);
	/* A worker that never answers Cancels does not make the client grow. */
	for (int i = 0; i < 100 && r == 0; i++)
		r = worker_client_cancel(c, 1, &e);
	assert_int_equal(r, -EBUSY);
	worker_peer_close_client(c);
}

static void refuses_bad_generations(void **state)
{
	static const char *const stops[17] = {"a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a",
		"a", "a", "a", "a", "a", "a"};
	const struct worker_client_generate many = {.stop = stops, .n_stop = 17};
	const struct worker_client_generate g = {0};
	struct worker_client_finished f;

	(void)state;
	for (int i = 0; i < 7; i++) {
		struct worker_client *c = worker_peer_open_client();
		struct heard heard = {0};
		struct err e = ERR_NULL;
		int expected = -EPROTO;

		if (i == 0)
			worker_peer_reply_done(2);
		if (i == 1)
			reply_finished(2, 0);
		if (i == 2)
			reply_finished(2, 5);
		if (i == 3)
			reply_token(3, 5, "other id");
		if (i == 4) {
			worker_peer_reply_error(2, ENOENT, "session 11: unknown");
			expected = -ENOENT;
		}
		if (i == 5) {
			reply_token(2, 5, "x");
			close(worker_peer);
			expected = -ECONNRESET;
		}
		if (i == 6)
			expected = -EINVAL;
		assert_int_equal(
			worker_client_generate(c, 11, i == 6 ? &many : &g, hear, &heard, &e, &f),
			expected);
		assert_string_not_equal(e.text, "");
		worker_client_free(c);
		if (i != 5)
			close(worker_peer);
	}
}

static void tokenizes(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	Wk__Tokens tokens = WK__TOKENS__INIT;
	Wk__Text text = WK__TEXT__INIT;
	struct err e = ERR_NULL;
	uint32_t *ids, n;
	char *s;

	(void)state;
	tokens.n_ids = 3;
	tokens.ids = (uint32_t[]){4, 5, 6};
	worker_peer_reply(2, WK__REPLY__BODY_TOKENS, &tokens);
	assert_int_equal(worker_client_tokenize(c, "abc", 3, true, &e, &ids, &n), 0);
	assert_int_equal(n, 3);
	assert_int_equal(ids[2], 6);
	free(ids);
	Wk__Request *r = worker_peer_take(2, WK__REQUEST__BODY_TOKENIZE);
	assert_memory_equal(r->tokenize->text->text.data, "abc", 3);
	assert_true(r->tokenize->text->parse_special);
	wk__request__free_unpacked(r, NULL);

	text.text = (ProtobufCBinaryData){.data = (uint8_t *)"a\0c", .len = 3};
	worker_peer_reply(3, WK__REPLY__BODY_TEXT, &text);
	assert_int_equal(worker_client_detokenize(c, (uint32_t[]){4, 5}, 2, &e, &s, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(s, "a\0c", 4);
	free(s);
	r = worker_peer_take(3, WK__REQUEST__BODY_DETOKENIZE);
	assert_int_equal(r->detokenize->tokens->n_ids, 2);
	wk__request__free_unpacked(r, NULL);

	/* Nothing to nothing. */
	text.text.len = 0;
	worker_peer_reply(4, WK__REPLY__BODY_TEXT, &text);
	assert_int_equal(worker_client_detokenize(c, NULL, 0, &e, &s, &n), 0);
	assert_int_equal(n, 0);
	assert_string_equal(s, "");
	free(s);
	worker_peer_close_client(c);
}

static void reads_status(void **state)
{
	struct worker_client *c = worker_peer_open_client();
	static uint8_t identity[] = "0123456789abcdef0123456789abcdefg";
	Wk__Role role = WK__ROLE__INIT, *roles[9];
	Wk__Status m = WK__STATUS__INIT;
	Wk__Experts experts = WK__EXPERTS__INIT;
	struct worker_client_status s = {.pid = -1};
	struct err e = ERR_NULL;

	(void)state;
	for (int i = 0; i < 9; i++)
		roles[i] = &role;
	role.name = (char *)"scratch";
	role.placed_bytes = 100;
	m.pid = 42;
	m.model = (char *)"atlas";
	m.device = (char *)"Imaginary";
	m.weights_bytes = 1000;
	m.n_roles = 8;
	m.roles = roles;
	m.weightd_connected = true;
	m.n_prefixes = 3;
	m.prefix_bytes = 1ull << 40;
	worker_peer_reply(2, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), 0);
	assert_int_equal(s.pid, 42);
	assert_string_equal(s.model, "atlas");
	assert_string_equal(s.device, "Imaginary");
	assert_int_equal(s.n_roles, 8);
	assert_string_equal(s.roles[7].name, "scratch");
	assert_int_equal(s.roles[7].placed_bytes, 100);
	assert_true(s.weightd_connected);
	assert_int_equal(s.n_prefixes, 3);
	assert_int_equal(s.prefix_bytes, 1ull << 40);
	assert_int_equal(s.experts.n_slots, 0);

	experts.slots = 128;
	experts.bytes = 1ull << 40;
	experts.found = 3;
	experts.fetched = 2;
	experts.direct = 1;
	m.experts = &experts;
	worker_peer_reply(3, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), 0);
	assert_int_equal(s.experts.n_slots, 128);
	assert_true(s.experts.n_bytes == 1ull << 40);
	assert_int_equal(s.experts.n_found, 3);
	assert_int_equal(s.experts.n_fetched, 2);
	assert_int_equal(s.experts.n_direct, 1);

	assert_false(s.has_identity);
	m.identity = (ProtobufCBinaryData){.len = 32, .data = identity};
	worker_peer_reply(4, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), 0);
	assert_true(s.has_identity);
	assert_memory_equal(s.identity, identity, 32);
	s.pid = -1;
	m.identity.len = 33;
	worker_peer_reply(5, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), -EPROTO);
	m.identity.len = 0;
	m.n_roles = 9;
	worker_peer_reply(6, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), -EPROTO);
	m.n_roles = 1;
	role.name = (char *)"a name that is longer than any role has";
	worker_peer_reply(7, WK__REPLY__BODY_STATUS, &m);
	assert_int_equal(worker_client_status(c, &e, &s), -EPROTO);
	assert_int_equal(s.pid, -1);
	worker_peer_close_client(c);
}

static void refuses_broken_messages(void **state)
{
	static const struct {
		int r;
		uint32_t n;
		const char *bytes;
	} rows[] = {
		{-EBADMSG, 4, "\x00\x00\x00\x00"}, {-EBADMSG, 4, "\x00\x00\x00\x80"},
		{-EBADMSG, 6, "\x03\x00\x00\x00\x08\x02"},        /* cut */
		{-EBADMSG, 7, "\x03\x00\x00\x00\xff\xff\xff"},    /* no protobuf */
		{-EPROTO, 6, "\x02\x00\x00\x00\x08\x02"},         /* no body */
		{-EPROTO, 8, "\x04\x00\x00\x00\x08\x03\x42\x00"}, /* Done to another id */
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct worker_client *c = worker_peer_open_client();
		struct err e = ERR_NULL;

		assert_int_equal(
			send(worker_peer, rows[i].bytes, rows[i].n, MSG_NOSIGNAL), rows[i].n);
		shutdown(worker_peer, SHUT_WR);
		assert_int_equal(worker_client_truncate(c, 1, 0, &e), rows[i].r);
		assert_string_not_equal(e.text, "");
		worker_peer_close_client(c);
	}
}

static void *serve_one(void *arg)
{
	const int *listener = arg;

	while ((worker_peer = accept4(*listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
		usleep(1000);
	worker_peer_drop(1, WK__REQUEST__BODY_HELLO);
	worker_peer_welcome(STREAM_PROTOCOL, "atlas");
	return NULL;
}

static void connects_to_a_path(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct worker_client *c = NULL;
	struct err e = ERR_NULL;
	pthread_t thread;
	char path[64];
	int listener;

	(void)state;
	assert_int_equal(worker_client_new(dir.path, &e, &c), -ENOENT);
	assert_int_equal(stream_listen(dir.path, 0600, &e, &listener), 0);
	assert_int_equal(pthread_create(&thread, NULL, serve_one, &listener), 0);
	assert_int_equal(setenv("WORKERD_SOCKET", dir.path, 1), 0);
	assert_int_equal(worker_client_new(NULL, &e, &c), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_string_equal(worker_client_get_info(c)->model, "atlas");
	worker_peer_close_client(c);
	close(listener);
	socket_dir_free(&dir);

	assert_int_equal(unsetenv("WORKERD_SOCKET"), 0);
	assert_int_equal(setenv("XDG_RUNTIME_DIR", "/run/user/7", 1), 0);
	assert_int_equal(worker_client_default_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/run/user/7/workerd.sock");
	assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
	assert_int_equal(worker_client_default_path(path, sizeof(path)), 0);
	assert_string_equal(path, "/run/weightd/workerd.sock");
	assert_int_equal(worker_client_default_path(path, 8), -ENAMETOOLONG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(says_hello),
		CASE(refuses_a_bad_welcome),
		CASE(handles_sessions),
		CASE(appends),
		CASE(generates),
		CASE(asks_for_logprobs),
		CASE(takes_completions),
		CASE(cancels),
		CASE(cancels_others_from_within),
		CASE(refuses_bad_generations),
		CASE(tokenizes),
		CASE(reads_status),
		CASE(refuses_broken_messages),
		CASE(connects_to_a_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
