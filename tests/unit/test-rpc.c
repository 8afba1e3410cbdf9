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
#include "workerd/bencher.h"
#include "workerd/message.h"
#include "workerd/tuner.h"

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

/* What a Generate of a client becomes; the refusal's sentence, or "". */
static struct message *decode(Wk__Generate *g, char *ret_text)
{
	Wk__Request q = WK__REQUEST__INIT;
	struct message *m = NULL;
	struct err e = ERR_NULL;

	q.id = 1;
	q.body_case = WK__REQUEST__BODY_GENERATE;
	q.generate = g;
	uint32_t n = (uint32_t)wk__request__pack(&q, packed);
	assert_int_equal(rpc_decode(packed, n, &e, &m), 0);
	strcpy(ret_text, m->code ? message_get_error(m) : "");
	return m;
}

static void expect_refusal(Wk__Generate *g, const char *expected)
{
	char text[sizeof(struct err)];

	message_free(decode(g, text));
	assert_string_equal(text, expected);
}

static void expect_sent(const struct message *m)
{
	const struct sampler_params *p = &m->generate.sampling;

	assert_int_equal(m->generate.n_logprobs, LOGPROB_MAX_TOP);
	assert_true(m->generate.is_shifting && m->generate.n_keep == 5);
	assert_int_equal(m->generate.n_completions, 8);
	assert_int_equal(m->generate.n_stop_tokens, MESSAGE_MAX_STOP_TOKENS);
	assert_int_equal(m->generate.stop_tokens[15], 77);
	assert_true(p->typical_p == 0.5f && p->frequency_penalty == 2 && p->presence_penalty == 3);
	assert_true(p->dry.multiplier == 4 && p->dry.base == 5 && p->dry.allowed_length == 6 &&
		    p->dry.last_n == 7 && p->dry.has_breakers);
	assert_int_equal(p->dry.n_breakers, DRY_MAX_BREAKERS);
	assert_int_equal(p->dry.breakers[15].n_bytes, 16);
	assert_int_equal(p->n_biases, SAMPLER_MAX_BIASES);
	assert_true(p->biases[1023].id == 1023 && p->biases[1023].bias == 511.5f);
}

/* Counts and lengths are judged; what was sent arrives. */
static void judges_sampling(void **state)
{
	static Wk__LogitBias rows[SAMPLER_MAX_BIASES + 1], *list[SAMPLER_MAX_BIASES + 1];
	static uint32_t ids[MESSAGE_MAX_STOP_TOKENS + 1];
	static char text[sizeof(struct err)], bytes[DRY_MAX_BREAKER_BYTES + 1];
	ProtobufCBinaryData breakers[DRY_MAX_BREAKERS + 1];
	Wk__Sampling sampling = WK__SAMPLING__INIT;
	Wk__Generate g = WK__GENERATE__INIT;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		rows[i] = (Wk__LogitBias)WK__LOGIT_BIAS__INIT;
		rows[i].id = (uint32_t)i;
		rows[i].bias = (float)i / 2;
		list[i] = &rows[i];
	}
	for (size_t i = 0; i < ARRAY_SIZE(breakers); i++)
		breakers[i] = (ProtobufCBinaryData){.len = 1 + i, .data = (uint8_t *)bytes};
	g.sampling = &sampling;
	g.logprobs = LOGPROB_MAX_TOP;
	g.context_shift = true;
	g.n_keep = 5;
	g.n = 8;
	g.n_stop_tokens = MESSAGE_MAX_STOP_TOKENS;
	g.stop_tokens = ids;
	ids[15] = 77;
	sampling.typical_p = 0.5f;
	sampling.frequency_penalty = 2;
	sampling.presence_penalty = 3;
	sampling.dry_multiplier = 4;
	sampling.dry_base = 5;
	sampling.dry_allowed_length = 6;
	sampling.dry_last_n = 7;
	sampling.dry_breakers = breakers;
	sampling.n_dry_breakers = DRY_MAX_BREAKERS;
	sampling.logit_bias = list;
	sampling.n_logit_bias = SAMPLER_MAX_BIASES;
	struct message *m = decode(&g, text);
	assert_string_equal(text, "");
	expect_sent(m);
	message_free(m);

	sampling.n_logit_bias++;
	expect_refusal(&g, "logit_bias: expected at most 1024, found 1025");
	sampling.n_logit_bias = 0;
	sampling.n_dry_breakers++;
	expect_refusal(&g, "dry_breakers: expected at most 16, found 17");
	sampling.n_dry_breakers = 2;
	breakers[1].len = DRY_MAX_BREAKER_BYTES + 1;
	expect_refusal(&g, "dry_breakers[1]: expected 1 to 40 bytes, found 41");
	breakers[1].len = 0;
	expect_refusal(&g, "dry_breakers[1]: expected 1 to 40 bytes, found 0");
	/* A single empty one: no breaker. */
	breakers[0].len = 0;
	sampling.n_dry_breakers = 1;
	m = decode(&g, text);
	assert_string_equal(text, "");
	assert_true(m->generate.sampling.dry.has_breakers);
	assert_int_equal(m->generate.sampling.dry.n_breakers, 0);
	message_free(m);
	g.logprobs++;
	expect_refusal(&g, "logprobs: expected at most 20, found 21");
	g.logprobs = 0;
	g.n = 9;
	expect_refusal(&g, "n: expected at most 8, found 9");
	g.n = 8;
	g.n_stop_tokens++;
	expect_refusal(&g, "stop_tokens: expected at most 16, found 17");
}

static void decodes_constraints(void **state)
{
	char text[ERR_TEXT_BYTES];
	Wk__Generate g = WK__GENERATE__INIT;
	struct message *m = decode(&g, text);

	(void)state;
	assert_null(m->generate.constraint);
	message_free(m);
	g.grammar = (ProtobufCBinaryData){.data = (uint8_t *)"root ::= x", .len = 10};
	m = decode(&g, text);
	assert_string_equal(text, "");
	assert_int_equal(m->generate.n_constraint_bytes, 10);
	assert_memory_equal(m->generate.constraint, "root ::= x", 10);
	assert_false(m->generate.is_schema);
	message_free(m);
	g.json_schema = (ProtobufCBinaryData){.data = (uint8_t *)"{}", .len = 2};
	expect_refusal(&g, "grammar, json_schema: expected one of them at most, found both");
	g.grammar.len = 0;
	m = decode(&g, text);
	assert_string_equal(text, "");
	assert_memory_equal(m->generate.constraint, "{}", 2);
	assert_true(m->generate.is_schema);
	message_free(m);
	g.ignore_eos = true;
	expect_refusal(
		&g, "ignore_eos: expected none with a grammar, which says where the text ends");
}

/* Logprobs of a token, with texts that are no UTF-8. */
static void encodes_logprobs(void **state)
{
	const struct message_logprob top[] = {
		{.id = 9, .logprob = -0.5f, .n_bytes = 2, .bytes = "\xff\x00"},
		{.id = 8, .logprob = -1.5f},
	};
	struct message *m = message_new(MESSAGE_TOKEN, 1, 0);
	uint8_t *data = NULL;
	uint32_t n = 0;

	(void)state;
	assert_non_null(m);
	m->id = 5;
	m->token = (struct message_token){
		.index = 3, .id = 8, .logprob = -1.5f, .n_top = 2, .top = top};
	assert_int_equal(rpc_encode(m, NULL, &data, &n), 0);
	Wk__Reply *reply =
		wk__reply__unpack(NULL, n - STREAM_HEADER_BYTES, data + STREAM_HEADER_BYTES);
	assert_non_null(reply);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_TOKEN);
	assert_int_equal(reply->token->id, 8);
	assert_int_equal(reply->token->index, 3);
	assert_true(reply->token->logprob == -1.5f);
	assert_int_equal(reply->token->n_top, 2);
	assert_int_equal(reply->token->top[0]->id, 9);
	assert_true(reply->token->top[0]->logprob == -0.5f);
	assert_int_equal(reply->token->top[0]->text.len, 2);
	assert_memory_equal(reply->token->top[0]->text.data, "\xff\x00", 2);
	assert_int_equal(reply->token->top[1]->text.len, 0);
	wk__reply__free_unpacked(reply, NULL);
	free(data);
	message_free(m);
}

static void judges_priority(void **state)
{
	static const int32_t right[] = {0, 100, -100}, wrong[] = {101, -101, INT32_MIN};
	Wk__Generate g = WK__GENERATE__INIT;
	char text[sizeof(struct err)], expected[128];

	(void)state;
	g.session = 1;
	for (unsigned i = 0; i < ARRAY_SIZE(right); i++) {
		g.priority = right[i];
		struct message *m = decode(&g, text);
		assert_string_equal(text, "");
		assert_int_equal(m->generate.priority, right[i]);
		message_free(m);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		g.priority = wrong[i];
		snprintf(expected, sizeof(expected), "priority: expected -100 to 100, found %d",
			wrong[i]);
		expect_refusal(&g, expected);
	}
}

/* A status with sessions, and with none at all. */
static void encodes_sessions(void **state)
{
	struct rpc_worker worker = {.model = "m", .device = "d"};
	struct message *m = message_new(MESSAGE_STATUS, 1, 0);
	uint8_t *data;
	uint32_t n_bytes;

	(void)state;
	assert_non_null(m);
	m->id = 5;
	m->status = calloc(1, sizeof(*m->status));
	assert_non_null(m->status);
	for (uint32_t n = 0; n < 3; n += 2) {
		m->status->n_listed = n;
		if (n)
			m->status->sessions = calloc(n, sizeof(*m->status->sessions));
		for (uint32_t i = 0; i < n; i++)
			m->status->sessions[i] = (struct message_session){
				.session = 7 + i,
				.client = 3,
				.n_tokens = 50,
				.n_cached = 49,
				.state = MESSAGE_SESSION_DECODING,
				.tokens_per_second = 2.5f,
			};
		m->status->kv_pages = 16;
		m->status->n_prefixes = 3;
		m->status->prefix_bytes = 1ull << 40;
		m->status->kv_used_pages = 4;
		m->status->kv_shared_pages = 2;
		m->status->kv_cached_pages = 3;
		m->status->n_queued = 1;
		assert_int_equal(rpc_encode(m, &worker, &data, &n_bytes), 0);
		Wk__Reply *reply = wk__reply__unpack(
			NULL, n_bytes - STREAM_HEADER_BYTES, data + STREAM_HEADER_BYTES);
		assert_non_null(reply);
		const Wk__Status *s = reply->status;
		assert_int_equal(s->kv_pages, 16);
		assert_int_equal(s->n_prefixes, 3);
		assert_int_equal(s->prefix_bytes, 1ull << 40);
		assert_int_equal(s->kv_used_pages, 4);
		assert_int_equal(s->kv_shared_pages, 2);
		assert_int_equal(s->kv_cached_pages, 3);
		assert_int_equal(s->n_queued, 1);
		assert_int_equal(s->n_sessions_list, n);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(s->sessions_list[i]->session, 7 + i);
			assert_int_equal(s->sessions_list[i]->client, 3);
			assert_int_equal(s->sessions_list[i]->n_cached, 49);
			assert_int_equal(
				s->sessions_list[i]->state, WK__SESSION_STATUS__STATE__DECODING);
			assert_true(s->sessions_list[i]->tokens_per_second == 2.5f);
		}
		wk__reply__free_unpacked(reply, NULL);
		free(data);
	}
	message_free(m);
}

/* Fork, save and restore as they come and as they are answered. */
static void decodes_names_of_sessions(void **state)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__SaveSession save = WK__SAVE_SESSION__INIT;
	Wk__ForkSession fork = WK__FORK_SESSION__INIT;
	struct rpc_worker worker = {.model = "m", .device = "d"};
	struct message *m = NULL;
	struct err e = ERR_NULL;
	uint8_t *data;
	uint32_t n_bytes;

	(void)state;
	q.id = 9;
	q.body_case = WK__REQUEST__BODY_SAVE_SESSION;
	q.save_session = &save;
	save.session = 4;
	save.name = (char *)"talk";
	assert_int_equal(rpc_decode(packed, (uint32_t)wk__request__pack(&q, packed), &e, &m), 0);
	assert_int_equal(m->kind, MESSAGE_SAVE);
	assert_int_equal(m->archive.session, 4);
	assert_string_equal(m->archive.name, "talk");
	message_free(m);
	q.body_case = WK__REQUEST__BODY_FORK_SESSION;
	q.fork_session = &fork;
	fork.session = 6;
	fork.n_tokens = 12;
	assert_int_equal(rpc_decode(packed, (uint32_t)wk__request__pack(&q, packed), &e, &m), 0);
	assert_int_equal(m->kind, MESSAGE_FORK);
	assert_int_equal(m->fork.session, 6);
	assert_int_equal(m->fork.n_tokens, 12);
	m->fork.session = 8;
	assert_int_equal(rpc_encode(m, &worker, &data, &n_bytes), 0);
	Wk__Reply *reply =
		wk__reply__unpack(NULL, n_bytes - STREAM_HEADER_BYTES, data + STREAM_HEADER_BYTES);
	assert_non_null(reply);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_SESSION_OPENED);
	assert_int_equal(reply->session_opened->session, 8);
	wk__reply__free_unpacked(reply, NULL);
	free(data);
	message_free(m);
}

static struct message *decode_publish(Wk__PublishPrefix *p, const char *refusal)
{
	Wk__Request q = WK__REQUEST__INIT;
	struct message *m = NULL;
	struct err e = ERR_NULL;

	q.id = 1;
	q.body_case = WK__REQUEST__BODY_PUBLISH_PREFIX;
	q.publish_prefix = p;
	uint32_t n = (uint32_t)wk__request__pack(&q, packed);
	assert_int_equal(rpc_decode(packed, n, &e, &m), 0);
	assert_int_equal(m->kind, MESSAGE_PUBLISH);
	assert_string_equal(m->code ? message_get_error(m) : "", refusal);
	return m;
}

static void publishes_prefixes(void **state)
{
	Wk__PublishPrefix p = WK__PUBLISH_PREFIX__INIT;
	Wk__Text text = WK__TEXT__INIT;
	Wk__Tokens tokens = WK__TOKENS__INIT;
	uint32_t ids[] = {7, 8, 9}, n_bytes;
	char name[66] = "";
	uint8_t *data;

	(void)state;
	message_free(decode_publish(&p, "prefix: expected text or tokens"));
	p.input_case = WK__PUBLISH_PREFIX__INPUT_TEXT;
	p.text = &text;
	/* A text, though it is empty: it goes to the thread that tokenises. */
	struct message *m = decode_publish(&p, "");
	assert_non_null(m->publish.text);
	assert_int_equal(m->publish.n_text_bytes, 0);
	message_free(m);
	memset(name, 'n', 64);
	p.input_case = WK__PUBLISH_PREFIX__INPUT_TOKENS;
	p.tokens = &tokens;
	tokens.ids = ids;
	tokens.n_ids = 3;
	p.name = name;
	p.shared = true;
	m = decode_publish(&p, "");
	assert_null(m->publish.text);
	assert_int_equal(m->publish.n_ids, 3);
	assert_int_equal(m->publish.ids[2], 9);
	assert_string_equal(m->publish.name, name);
	assert_true(m->publish.is_shared);
	m->publish.prefix = 5;
	m->publish.n_tokens = 96;
	m->publish.n_computed = 64;
	m->publish.n_bytes = 4096;
	m->publish.existed = true;
	assert_int_equal(rpc_encode(m, NULL, &data, &n_bytes), 0);
	Wk__Reply *reply =
		wk__reply__unpack(NULL, n_bytes - STREAM_HEADER_BYTES, data + STREAM_HEADER_BYTES);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_PREFIX_PUBLISHED);
	assert_int_equal(reply->prefix_published->id, 5);
	assert_int_equal(reply->prefix_published->n_tokens, 96);
	assert_int_equal(reply->prefix_published->computed_tokens, 64);
	assert_int_equal(reply->prefix_published->n_bytes, 4096);
	assert_true(reply->prefix_published->existed);
	wk__reply__free_unpacked(reply, NULL);
	free(data);
	message_free(m);
	name[64] = 'n';
	message_free(decode_publish(&p, "name: expected at most 64 bytes, found 65"));
}

static struct message *decode_bench(Wk__Request *q)
{
	struct message *m = NULL;
	struct err e = ERR_NULL;

	q->id = 1;
	uint32_t n = (uint32_t)wk__request__pack(q, packed);
	assert_int_equal(rpc_decode(packed, n, &e, &m), 0);
	assert_int_equal(m->code, 0);
	return m;
}

static Wk__Reply *encode_bench(const struct message *m)
{
	uint8_t *data;
	uint32_t n_bytes;

	assert_int_equal(rpc_encode(m, NULL, &data, &n_bytes), 0);
	Wk__Reply *reply =
		wk__reply__unpack(NULL, n_bytes - STREAM_HEADER_BYTES, data + STREAM_HEADER_BYTES);
	assert_non_null(reply);
	free(data);
	return reply;
}

static void begins_a_bench(void **state)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__Bench b = WK__BENCH__INIT;
	Wk__BenchEnd end = WK__BENCH_END__INIT;

	(void)state;
	b.n_sessions = 3;
	b.n_depth = 4;
	b.n_prompt = 5;
	b.n_generate = 6;
	b.seed = UINT64_MAX;
	q.body_case = WK__REQUEST__BODY_BENCH;
	q.bench = &b;
	struct message *m = decode_bench(&q);
	assert_int_equal(m->kind, MESSAGE_BENCH);
	assert_true(m->bench.n_sessions == 3 && m->bench.n_depth == 4 && m->bench.n_prompt == 5 &&
		    m->bench.n_generate == 6 && m->bench.seed == UINT64_MAX);
	m->bench.n_rows = 256;
	m->bench.n_dispatches = 26;
	Wk__Reply *reply = encode_bench(m);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_BENCH_READY);
	assert_true(reply->bench_ready->n_rows == 256 && reply->bench_ready->n_dispatches == 26);
	wk__reply__free_unpacked(reply, NULL);
	message_free(m);
	q.body_case = WK__REQUEST__BODY_BENCH_END;
	q.bench_end = &end;
	m = decode_bench(&q);
	assert_int_equal(m->kind, MESSAGE_BENCH_END);
	reply = encode_bench(m);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_DONE);
	wk__reply__free_unpacked(reply, NULL);
	message_free(m);
}

/* A profile of as many kernels as there can be. */
static void answers_a_run(void **state)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__BenchRun run = WK__BENCH_RUN__INIT;

	(void)state;
	run.start_ns = 77;
	run.profile = true;
	q.body_case = WK__REQUEST__BODY_BENCH_RUN;
	q.bench_run = &run;
	struct message *m = decode_bench(&q);
	assert_true(m->bench_run.start_ns == 77 && m->bench_run.is_profile);
	struct bencher_result *result = calloc(1, sizeof(*result));
	assert_non_null(result);
	m->bench_run.result = result;
	result->start_ns = 78;
	result->generate = (struct bencher_phase){.n_tokens = 1,
		.n_steps = 2,
		.ns = 3,
		.median_ns = 4,
		.p99_ns = 5,
		.record_ns = 6,
		.submit_ns = 7,
		.wait_ns = 8,
		.end_ns = 9,
		.busy_ns = 10,
		.stamped_ns = 11};
	result->n_kernels = PROFILE_MAX_KERNELS;
	for (uint32_t i = 0; i < PROFILE_MAX_KERNELS; i++)
		result->kernels[i] = (struct profile_kernel){.name = "MATMUL",
			.n_calls = i,
			.ns = 2,
			.cost = {.n_weight_bytes = 3,
				.n_kv_bytes = 4,
				.n_flops = 5,
				.shape = "a x b"}};
	result->ceilings = (struct ceiling_rates){1, 2, 3};
	Wk__Reply *reply = encode_bench(m);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_BENCH_RAN);
	const Wk__BenchRan *ran = reply->bench_ran;
	const Wk__BenchPhase *p = ran->generate;
	assert_null(ran->prompt);
	assert_true(ran->start_ns == 78 && p->n_tokens == 1 && p->n_steps == 2 && p->ns == 3 &&
		    p->median_ns == 4 && p->p99_ns == 5);
	assert_true(p->record_ns == 6 && p->submit_ns == 7 && p->wait_ns == 8 && p->end_ns == 9 &&
		    p->busy_ns == 10 && p->stamped_ns == 11);
	assert_int_equal(ran->n_kernels, PROFILE_MAX_KERNELS);
	const Wk__BenchKernel *k = ran->kernels[PROFILE_MAX_KERNELS - 1];
	assert_string_equal(k->name, "MATMUL");
	assert_string_equal(k->shape, "a x b");
	assert_true(k->n_calls == PROFILE_MAX_KERNELS - 1 && k->ns == 2 && k->weight_bytes == 3 &&
		    k->kv_bytes == 4 && k->flops == 5);
	assert_true(ran->ceilings->read_bytes_per_second == 1 &&
		    ran->ceilings->fma_flops_per_second == 2 &&
		    ran->ceilings->matrix_flops_per_second == 3);
	wk__reply__free_unpacked(reply, NULL);
	message_free(m);
}

static void answers_a_tune(void **state)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__Tune tune = WK__TUNE__INIT;

	(void)state;
	q.body_case = WK__REQUEST__BODY_TUNE;
	q.tune = &tune;
	struct message *m = decode_bench(&q);
	assert_int_equal(m->kind, MESSAGE_TUNE);
	assert_false(m->tune.has_progress);
	struct tuner_result *t = calloc(1, sizeof(*t) + 2 * sizeof(t->rows[0]));
	assert_non_null(t);
	m->tune.result = t;
	t->ns = 5;
	t->is_saved = true;
	t->n_products = 7;
	t->n_rows = 2;
	t->rows[1] = (struct tuner_row){
		.op = "a x b", .choice = "c", .n_rows = 8, .default_ns = 3, .best_ns = 2};
	Wk__Reply *reply = encode_bench(m);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_TUNED);
	assert_true(reply->tuned->ns == 5 && reply->tuned->is_saved && reply->tuned->n_rows == 2);
	assert_int_equal(reply->tuned->n_products, 7);
	const Wk__TuneRow *row = reply->tuned->rows[1];
	assert_string_equal(row->op, "a x b");
	assert_string_equal(row->choice, "c");
	assert_true(row->n_rows == 8 && row->default_ns == 3 && row->best_ns == 2);
	wk__reply__free_unpacked(reply, NULL);
	message_free(m);
}

/* One row, and how far it is. */
static void tells_of_a_tune(void **state)
{
	Wk__Request q = WK__REQUEST__INIT;
	Wk__Tune tune = WK__TUNE__INIT;

	(void)state;
	tune.progress = true;
	tune.max_seconds = 9;
	q.body_case = WK__REQUEST__BODY_TUNE;
	q.tune = &tune;
	struct message *request = decode_bench(&q);
	assert_true(request->tune.has_progress && request->tune.max_seconds == 9);
	struct message *m = message_new_for(MESSAGE_TUNING, request, 0);
	assert_non_null(m);
	struct tuner_result *t = calloc(1, sizeof(*t) + sizeof(t->rows[0]));
	assert_non_null(t);
	m->tune.result = t;
	t->n_done = 3;
	t->n_products = 7;
	t->n_rows = 1;
	t->rows[0] = (struct tuner_row){.op = "a", .choice = "c", .n_rows = 1, .best_ns = 2};
	Wk__Reply *reply = encode_bench(m);
	assert_int_equal(reply->id, request->id);
	assert_int_equal(reply->body_case, WK__REPLY__BODY_TUNING);
	assert_true(reply->tuning->n_done == 3 && reply->tuning->n_products == 7);
	assert_string_equal(reply->tuning->row->op, "a");
	assert_int_equal(reply->tuning->row->best_ns, 2);
	wk__reply__free_unpacked(reply, NULL);
	message_free(m);
	message_free(request);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(tells_want_of_memory_from_nonsense),
		CASE(judges_sampling),
		CASE(judges_priority),
		CASE(encodes_sessions),
		CASE(decodes_names_of_sessions),
		CASE(encodes_logprobs),
		CASE(decodes_constraints),
		CASE(publishes_prefixes),
		CASE(begins_a_bench),
		CASE(answers_a_run),
		CASE(answers_a_tune),
		CASE(tells_of_a_tune),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
