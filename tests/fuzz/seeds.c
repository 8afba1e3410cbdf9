/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of the manifest, wire, stream, rpc and rpc-scan targets below the directory
 * given. What it writes is committed; it runs again when a format changes.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/stream.h"
#include "proto/weightd.pb-c.h"
#include "proto/workerd.pb-c.h"
#include "tests/unit/manifest-block.h"

static const char *seeds_root;

static void write_seed(const char *stem, const char *name, const void *data, size_t n_bytes)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", seeds_root, stem);
	if (mkdir(path, 0777) < 0 && errno != EEXIST) {
		perror(path);
		exit(1);
	}
	snprintf(path, sizeof(path), "%s/%s/%s", seeds_root, stem, name);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(data, 1, n_bytes, f) != n_bytes || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

#define MANIFEST_SEED(name, change)                              \
	do {                                                     \
		struct manifest_block b;                         \
		manifest_block_build(&b);                        \
		change;                                          \
		write_seed("manifest", name, b.data, b.n_bytes); \
	} while (0)

static void drop_tokenizer(struct manifest_block *b)
{
	for (int i = MANIFEST_TOKENS; i <= MANIFEST_SPECIALS; i++)
		b->header->sections[i].n_bytes = 0;
	*b->tokenizer = (struct manifest_tokenizer){
		.bos = MANIFEST_NONE, .eos = MANIFEST_NONE, .pad = MANIFEST_NONE};
}

static void write_manifest_seeds(void)
{
	MANIFEST_SEED("valid", (void)b);
	MANIFEST_SEED("no-tokenizer", drop_tokenizer(&b));
	MANIFEST_SEED("experts", ({
		b.hparams->n_expert = 4;
		b.hparams->n_expert_used = 2;
		b.hparams->n_ff_expert = 32;
	}));
	MANIFEST_SEED("no-tensors", b.header->sections[MANIFEST_TENSORS].n_bytes = 0);
	MANIFEST_SEED("header-only", b.header->n_bytes = b.n_bytes = sizeof(*b.header));
	MANIFEST_SEED("cut", b.n_bytes /= 2);
	MANIFEST_SEED("version", b.header->version = MANIFEST_VERSION - 1);
	MANIFEST_SEED("section-outside", b.header->sections[MANIFEST_TOKENS].offset = 1 << 20);
	MANIFEST_SEED("section-wraps", b.header->sections[MANIFEST_TOKENS].n_bytes = UINT64_MAX);
	MANIFEST_SEED("string-outside", b.tokens[3].bytes.n_bytes = 4096);
	MANIFEST_SEED("name-outside", b.tensors[1].name.offset = UINT32_MAX);
	MANIFEST_SEED("tensor-overflow", b.tensors[1].ne[1] = 1ull << 60);
	MANIFEST_SEED("tensor-outside", b.tensors[1].offset = UINT64_MAX - 8);
	MANIFEST_SEED("full-hash", memset(b.token_hash, 0, 8 * sizeof(uint32_t)));
	MANIFEST_SEED("full-merges", memset(b.merges, 0, 4 * sizeof(struct manifest_merge)));
	MANIFEST_SEED("heads", b.hparams->n_head_kv = 3);
	MANIFEST_SEED("eog", b.tokenizer->n_eog = UINT32_MAX);
	MANIFEST_SEED("empty-special", b.tokens[5].bytes.n_bytes = 0);
}

/* A seed of several packets, as fuzz-wire.c reads it. */
struct wire_seed {
	uint8_t data[8192];
	size_t n;
};

static void add_packet(struct wire_seed *s, uint8_t n_fds, const void *data, size_t n)
{
	s->data[s->n++] = n_fds;
	s->data[s->n++] = (uint8_t)n;
	s->data[s->n++] = (uint8_t)(n >> 8);
	memcpy(s->data + s->n, data, n);
	s->n += n;
}

static void add_reply(
	struct wire_seed *s, uint64_t id, uint32_t n_fds, Wd__Reply__BodyCase body, void *message)
{
	Wd__Reply r = WD__REPLY__INIT;
	uint8_t packed[4096];

	r.id = id;
	r.n_fds = n_fds;
	r.body_case = body;
	r.error = message; /* the body is a union of pointers */
	add_packet(s, (uint8_t)n_fds, packed, wd__reply__pack(&r, packed));
}

static void write_lease_seeds(void)
{
	Wd__Allocation rows[2], *allocs[] = {&rows[0], &rows[1]};
	Wd__Acquired a = WD__ACQUIRED__INIT;
	static uint8_t digest[] = "0123456789abcdef0123456789abcdef";
	struct wire_seed s = {.n = 1}; /* call 0: acquire */

	for (uint32_t i = 0; i < 2; i++) {
		wd__allocation__init(&rows[i]);
		rows[i].index = i;
		rows[i].n_bytes = 4096;
		rows[i].buffer_bytes = 4096;
		rows[i].handle_type = i == 0 ? WD__HANDLE_TYPE__HANDLE_TYPE_MEMFD
					     : WD__HANDLE_TYPE__HANDLE_TYPE_OPAQUE_FD;
		rows[i].placement = WD__PLACEMENT__PLACEMENT_STAGED;
	}
	a.generation = 1;
	a.identity = (ProtobufCBinaryData){.len = 32, .data = digest};
	a.file_identity = (ProtobufCBinaryData){.len = 32, .data = digest};
	a.has_manifest = true;
	a.n_allocations = 2;
	a.allocations = allocs;
	add_reply(&s, 2, 3, WD__REPLY__BODY_ACQUIRED, &a);
	write_seed("wire", "lease", s.data, s.n);
	s.n = 1;
	a.file_identity.len = 31;
	add_reply(&s, 2, 3, WD__REPLY__BODY_ACQUIRED, &a);
	write_seed("wire", "lease-cut-identity", s.data, s.n);
	a.file_identity.len = 32;

	s.n = 1;
	a.more = true;
	add_reply(&s, 2, 3, WD__REPLY__BODY_ACQUIRED, &a);
	a.has_manifest = false;
	a.more = false;
	rows[0].index = 2;
	rows[1].index = 3;
	add_reply(&s, 2, 2, WD__REPLY__BODY_ACQUIRED, &a);
	write_seed("wire", "lease-two-packets", s.data, s.n);
	s.data[1] = 2; /* one descriptor fewer than n_fds says */
	write_seed("wire", "lease-lost-descriptor", s.data, s.n);
}

static void write_status_seeds(void)
{
	Wd__Heap heap = WD__HEAP__INIT, *heaps[] = {&heap};
	Wd__Device device = WD__DEVICE__INIT;
	Wd__Allocation alloc = WD__ALLOCATION__INIT, *allocs[] = {&alloc};
	Wd__Generation generation = WD__GENERATION__INIT, *generations[] = {&generation};
	Wd__Model model = WD__MODEL__INIT, *models[] = {&model};
	Wd__Models list = WD__MODELS__INIT;
	Wd__Lease lease = WD__LEASE__INIT, *leases[] = {&lease};
	Wd__WorkerReport report = WD__WORKER_REPORT__INIT;
	Wd__Peer peer = WD__PEER__INIT, *peers[] = {&peer};
	Wd__Status status = WD__STATUS__INIT;
	uint8_t uuid[16] = {1};
	struct wire_seed s = {.n = 1};

	heap.n_bytes = 1 << 20;
	device.uuid = (ProtobufCBinaryData){.len = 16, .data = uuid};
	device.driver_uuid = device.uuid;
	device.name = (char *)"device";
	device.n_heaps = 1;
	device.heaps = heaps;
	alloc.placement = WD__PLACEMENT__PLACEMENT_DEVICE;
	generation.id = 1;
	generation.state = WD__GENERATION_STATE__GENERATION_STATE_READY;
	generation.origin = (char *)"loaded";
	generation.n_allocations = 1;
	generation.allocations = allocs;
	model.name = (char *)"m";
	model.n_generations = 1;
	model.generations = generations;
	lease.model = (char *)"m";
	report.socket = (char *)"/s";
	peer.role = WD__ROLE__ROLE_WORKER;
	peer.n_leases = 1;
	peer.leases = leases;
	peer.report = &report;
	list.n_models = status.n_models = 1;
	list.models = status.models = models;
	status.device = &device;
	status.more = true;
	s.data[0] = 1; /* status */
	add_reply(&s, 2, 0, WD__REPLY__BODY_STATUS, &status);
	status.device = NULL;
	status.n_models = 0;
	status.n_peers = 1;
	status.peers = peers;
	status.more = false;
	add_reply(&s, 2, 0, WD__REPLY__BODY_STATUS, &status);
	write_seed("wire", "status", s.data, s.n);
	s.n = 1;
	s.data[0] = 2; /* list */
	add_reply(&s, 2, 0, WD__REPLY__BODY_MODELS, &list);
	write_seed("wire", "list", s.data, s.n);
}

static void write_other_wire_seeds(void)
{
	Wd__Event event = WD__EVENT__INIT;
	Wd__Error error = WD__ERROR__INIT;
	Wd__Done done = WD__DONE__INIT;
	struct wire_seed s = {.n = 1};

	event.kind = WD__EVENT__KIND__PROGRESS;
	event.model = (char *)"m";
	error.code = 17;
	error.text = (char *)"model m: already there";
	s.data[0] = 3; /* load */
	add_reply(&s, 0, 0, WD__REPLY__BODY_EVENT, &event);
	add_reply(&s, 2, 0, WD__REPLY__BODY_DONE, &done);
	write_seed("wire", "load", s.data, s.n);
	s.n = 1;
	add_reply(&s, 2, 0, WD__REPLY__BODY_ERROR, &error);
	write_seed("wire", "refusal", s.data, s.n);
	s.n = 1;
	add_reply(&s, 9, 0, WD__REPLY__BODY_DONE, &done);
	write_seed("wire", "other-id", s.data, s.n);
	s.n = 1;
	add_packet(&s, 2, "", 0);
	write_seed("wire", "empty", s.data, s.n);
	s.n = 1;
	add_packet(&s, 0, "\xff\xff\xff\xff", 4);
	write_seed("wire", "no-protobuf", s.data, s.n);
	s.n = 1;
	s.data[0] = 4; /* dispatch */
	add_reply(&s, 0, 0, WD__REPLY__BODY_EVENT, &event);
	add_reply(&s, 0, 0, WD__REPLY__BODY_EVENT, &event);
	write_seed("wire", "events", s.data, s.n);
	Wd__Difference difference = WD__DIFFERENCE__INIT, *differences[] = {&difference};
	Wd__Verified verified = WD__VERIFIED__INIT;
	difference.tensor = (char *)"output.weight";
	difference.n_bytes = 4;
	verified.generation = 5;
	verified.n_tensors = 1;
	verified.n_differences = 1;
	verified.differences = differences;
	s.n = 1;
	s.data[0] = 5; /* verify */
	add_reply(&s, 2, 0, WD__REPLY__BODY_VERIFIED, &verified);
	write_seed("wire", "verified", s.data, s.n);
}

struct stream_seed {
	uint8_t data[8192];
	size_t n;
};

static void add_message(struct stream_seed *s, uint64_t id, Wk__Reply__BodyCase body, void *message)
{
	Wk__Reply r = WK__REPLY__INIT;

	r.id = id;
	r.body_case = body;
	r.error = message; /* the body is a union of pointers */
	size_t n = wk__reply__pack(&r, s->data + s->n + STREAM_HEADER_BYTES);
	stream_make_header((uint32_t)n, s->data + s->n);
	s->n += STREAM_HEADER_BYTES + n;
}

static void write_generate_seeds(void)
{
	Wk__Token token = WK__TOKEN__INIT;
	Wk__Logprob best = WK__LOGPROB__INIT, *top[] = {&best, &best};
	Wk__Finished finished = WK__FINISHED__INIT;
	Wk__Error error = WK__ERROR__INIT;
	Wk__Done done = WK__DONE__INIT;
	struct stream_seed s = {.n = 1}; /* call 0: generate */

	token.id = 1;
	token.text = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"abc"};
	finished.reason = WK__FINISHED__REASON__STOP;
	add_message(&s, 2, WK__REPLY__BODY_TOKEN, &token);
	add_message(&s, 2, WK__REPLY__BODY_TOKEN, &token);
	add_message(&s, 2, WK__REPLY__BODY_FINISHED, &finished);
	write_seed("stream", "generate", s.data, s.n);
	write_seed("stream", "cut", s.data, s.n - 3);
	s.n = 1;
	token.id = 3; /* the target cancels */
	finished.reason = WK__FINISHED__REASON__CANCELLED;
	add_message(&s, 2, WK__REPLY__BODY_TOKEN, &token);
	add_message(&s, 3, WK__REPLY__BODY_DONE, &done);
	add_message(&s, 2, WK__REPLY__BODY_FINISHED, &finished);
	write_seed("stream", "cancel", s.data, s.n);
	s.n = 1;
	error.code = 2;
	error.text = (char *)"session 2: unknown";
	add_message(&s, 2, WK__REPLY__BODY_ERROR, &error);
	write_seed("stream", "refusal", s.data, s.n);
	token.top = top;
	token.n_top = 2;
	token.logprob = -0.5f;
	best.text = (ProtobufCBinaryData){.len = 2, .data = (uint8_t *)"a\n"};
	s.n = 1;
	add_message(&s, 2, WK__REPLY__BODY_TOKEN, &token);
	add_message(&s, 2, WK__REPLY__BODY_FINISHED, &finished);
	write_seed("stream", "logprobs", s.data, s.n);
	s.n = 1;
	s.data[0] = 5; /* generate two completions */
	finished.index = token.index = 1;
	add_message(&s, 2, WK__REPLY__BODY_TOKEN, &token);
	add_message(&s, 2, WK__REPLY__BODY_FINISHED, &finished);
	finished.index = 0;
	add_message(&s, 2, WK__REPLY__BODY_FINISHED, &finished);
	write_seed("stream", "completions", s.data, s.n);
	write_seed("stream", "length-0", "\x00\x00\x00\x00\x00", 5);
	write_seed("stream", "length-2g", "\x00\x00\x00\x00\x80", 5);
	write_seed("stream", "length-max", "\x00\xff\xff\xff\xff", 5);
	write_seed("stream", "no-protobuf", "\x00\x03\x00\x00\x00\xff\xff\xff", 8);
}

/* A status whose members are messages of messages. */
static void write_memory_seed(void)
{
	Wk__RoleHeap role_heap = WK__ROLE_HEAP__INIT, *role_heaps[] = {&role_heap, &role_heap};
	Wk__Role role = WK__ROLE__INIT, *roles[] = {&role};
	Wk__Heap heap = WK__HEAP__INIT, *heaps[] = {&heap, &heap};
	Wk__Slice slice = WK__SLICE__INIT, *slices[] = {&slice, &slice};
	Wk__Scratch scratch = WK__SCRATCH__INIT;
	Wk__Chunk chunk = WK__CHUNK__INIT;
	Wk__Status status = WK__STATUS__INIT;
	struct stream_seed s = {.n = 1};

	role.name = (char *)"kv";
	role.spilled_bytes = role.peak_bytes = role_heap.spilled_bytes = 1 << 20;
	role.spills = 1;
	role.n_heaps = 2;
	role.heaps = role_heaps;
	role_heap.heap = 1;
	heap.n_bytes = UINT64_MAX;
	slice.name = (char *)"qkv";
	slice.role = (char *)"scratch";
	slice.n = 2;
	slice.device_local = true;
	scratch.n_values = 19;
	chunk.tokens = 64;
	chunk.asked_tokens = 256;
	status.n_roles = 1;
	status.roles = roles;
	status.n_heaps = 2;
	status.heaps = heaps;
	status.n_slices = 2;
	status.slices = slices;
	status.total_slices = 3;
	status.scratch = &scratch;
	status.chunk = &chunk;
	s.data[0] = 1; /* status */
	add_message(&s, 2, WK__REPLY__BODY_STATUS, &status);
	write_seed("stream", "status-memory", s.data, s.n);
}

static void write_other_stream_seeds(void)
{
	Wk__Role role = WK__ROLE__INIT, *roles[] = {&role, &role};
	Wk__Status status = WK__STATUS__INIT;
	Wk__Tokens tokens = WK__TOKENS__INIT;
	Wk__Text text = WK__TEXT__INIT;
	Wk__SessionOpened opened = WK__SESSION_OPENED__INIT;
	struct stream_seed s = {.n = 1};

	role.name = (char *)"kv";
	status.model = (char *)"m";
	status.device = (char *)"device";
	status.n_roles = 2;
	status.roles = roles;
	s.data[0] = 1; /* status */
	add_message(&s, 2, WK__REPLY__BODY_STATUS, &status);
	write_seed("stream", "status", s.data, s.n);
	s.n = 1;
	s.data[0] = 2; /* tokenize */
	tokens.n_ids = 3;
	tokens.ids = (uint32_t[]){1, 300, 70000};
	add_message(&s, 2, WK__REPLY__BODY_TOKENS, &tokens);
	write_seed("stream", "tokens", s.data, s.n);
	s.n = 1;
	s.data[0] = 3; /* detokenize */
	text.text = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"abc"};
	add_message(&s, 2, WK__REPLY__BODY_TEXT, &text);
	write_seed("stream", "text", s.data, s.n);
	s.n = 1;
	s.data[0] = 4; /* open session */
	opened.session = 1;
	add_message(&s, 2, WK__REPLY__BODY_SESSION_OPENED, &opened);
	write_seed("stream", "session", s.data, s.n);
}

static void write_request(const char *name, Wk__Request__BodyCase body, void *message)
{
	Wk__Request q = WK__REQUEST__INIT;
	uint8_t packed[1024];

	q.id = 1;
	q.body_case = body;
	q.hello = message; /* the body is a union of pointers */
	write_seed("rpc", name, packed, wk__request__pack(&q, packed));
}

static void write_append_seeds(void)
{
	Wk__Append append = WK__APPEND__INIT;
	Wk__Text text = WK__TEXT__INIT;
	Wk__Tokens tokens = WK__TOKENS__INIT;
	Wk__ChatMessage one = WK__CHAT_MESSAGE__INIT, *messages[] = {&one, &one};
	Wk__Chat chat = WK__CHAT__INIT;
	Wk__Tokenize tokenize = WK__TOKENIZE__INIT;
	Wk__Detokenize detokenize = WK__DETOKENIZE__INIT;

	text.text = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"abc"};
	tokens.n_ids = 3;
	tokens.ids = (uint32_t[]){1, 300, 70000};
	one.role = (char *)"user";
	one.content = text.text;
	chat.n_messages = 2;
	chat.messages = messages;
	append.session = 1;
	write_request("append-nothing", WK__REQUEST__BODY_APPEND, &append);
	append.input_case = WK__APPEND__INPUT_TEXT;
	append.text = &text;
	write_request("append-text", WK__REQUEST__BODY_APPEND, &append);
	append.input_case = WK__APPEND__INPUT_TOKENS;
	append.tokens = &tokens;
	write_request("append-tokens", WK__REQUEST__BODY_APPEND, &append);
	append.input_case = WK__APPEND__INPUT_CHAT;
	append.chat = &chat;
	write_request("append-chat", WK__REQUEST__BODY_APPEND, &append);
	chat.n_messages = 0;
	write_request("append-empty-chat", WK__REQUEST__BODY_APPEND, &append);
	write_request("tokenize-nothing", WK__REQUEST__BODY_TOKENIZE, &tokenize);
	tokenize.text = &text;
	write_request("tokenize", WK__REQUEST__BODY_TOKENIZE, &tokenize);
	write_request("detokenize-nothing", WK__REQUEST__BODY_DETOKENIZE, &detokenize);
	detokenize.tokens = &tokens;
	write_request("detokenize", WK__REQUEST__BODY_DETOKENIZE, &detokenize);
}

static void write_sampling_seeds(void)
{
	Wk__Sampling sampling = WK__SAMPLING__INIT;
	Wk__Generate generate = WK__GENERATE__INIT;
	Wk__LogitBias bias = WK__LOGIT_BIAS__INIT, *biases[] = {&bias, &bias};
	ProtobufCBinaryData breakers[] = {{.len = 1, .data = (uint8_t *)"\n"},
		{.len = 41, .data = (uint8_t *)"12345678901234567890123456789012345678901"}};
	uint32_t ids[17] = {1, 300, 70000};

	generate.session = 1;
	generate.sampling = &sampling;
	generate.logprobs = 20;
	generate.stop_tokens = ids;
	generate.n_stop_tokens = 3;
	sampling.temperature = 0.7f;
	sampling.typical_p = 0.9f;
	sampling.frequency_penalty = 0.5f;
	sampling.presence_penalty = -0.5f;
	sampling.dry_multiplier = 0.8f;
	sampling.dry_base = 1.75f;
	sampling.dry_allowed_length = 2;
	sampling.dry_last_n = 100;
	sampling.dry_breakers = breakers;
	sampling.n_dry_breakers = 1;
	sampling.logit_bias = biases;
	sampling.n_logit_bias = 2;
	bias.id = 300;
	bias.bias = -1;
	write_request("generate-sampling", WK__REQUEST__BODY_GENERATE, &generate);
	sampling.n_dry_breakers = 2;
	write_request("generate-long-breaker", WK__REQUEST__BODY_GENERATE, &generate);
	breakers[0].len = 0;
	sampling.n_dry_breakers = 1;
	write_request("generate-no-breaker", WK__REQUEST__BODY_GENERATE, &generate);
	generate.n = 9;
	write_request("generate-9-completions", WK__REQUEST__BODY_GENERATE, &generate);
	generate.n = 8;
	generate.logprobs = 21;
	write_request("generate-21-logprobs", WK__REQUEST__BODY_GENERATE, &generate);
	generate.logprobs = 0;
	generate.n_stop_tokens = 17;
	write_request("generate-17-stop-tokens", WK__REQUEST__BODY_GENERATE, &generate);
}

static void write_other_request_seeds(void)
{
	Wk__Hello hello = WK__HELLO__INIT;
	Wk__Sampling sampling = WK__SAMPLING__INIT;
	Wk__Generate generate = WK__GENERATE__INIT;
	Wk__Truncate truncate = WK__TRUNCATE__INIT;
	Wk__StatusRequest status = WK__STATUS_REQUEST__INIT;
	ProtobufCBinaryData stops[17];

	for (unsigned i = 0; i < 17; i++)
		stops[i] = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"end"};
	hello.protocol = STREAM_PROTOCOL;
	write_request("hello", WK__REQUEST__BODY_HELLO, &hello);
	write_request("generate-nothing", WK__REQUEST__BODY_GENERATE, &generate);
	sampling.temperature = 0.7f;
	generate.sampling = &sampling;
	generate.n_stop = 16;
	generate.stop = stops;
	write_request("generate", WK__REQUEST__BODY_GENERATE, &generate);
	generate.n_stop = 17;
	write_request("generate-17-stops", WK__REQUEST__BODY_GENERATE, &generate);
	generate.n_stop = 1;
	stops[0].len = 0;
	write_request("generate-empty-stop", WK__REQUEST__BODY_GENERATE, &generate);
	truncate.session = UINT64_MAX;
	write_request("truncate", WK__REQUEST__BODY_TRUNCATE, &truncate);
	write_request("status", WK__REQUEST__BODY_STATUS, &status);
	write_seed("rpc", "no-id", "\x5a\x00", 2);
	write_seed("rpc", "unknown", "\x08\x01\x9a\x06\x00", 5);
	write_seed("rpc", "two-bodies", "\x08\x01\x1a\x00\x5a\x00\x22\x00", 8);
	write_seed("rpc", "no-protobuf", "\xff\xff\xff", 3);
}

static void write_publish_seeds(void)
{
	Wk__PublishPrefix publish = WK__PUBLISH_PREFIX__INIT;
	Wk__Text text = WK__TEXT__INIT;
	Wk__Tokens tokens = WK__TOKENS__INIT;
	char name[66];

	write_request("publish-nothing", WK__REQUEST__BODY_PUBLISH_PREFIX, &publish);
	publish.input_case = WK__PUBLISH_PREFIX__INPUT_TEXT;
	publish.text = &text;
	write_request("publish-no-text", WK__REQUEST__BODY_PUBLISH_PREFIX, &publish);
	text.text = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"abc"};
	text.parse_special = true;
	publish.name = (char *)"rules";
	publish.shared = true;
	write_request("publish-text", WK__REQUEST__BODY_PUBLISH_PREFIX, &publish);
	tokens.n_ids = 3;
	tokens.ids = (uint32_t[]){1, 300, 70000};
	publish.input_case = WK__PUBLISH_PREFIX__INPUT_TOKENS;
	publish.tokens = &tokens;
	write_request("publish-tokens", WK__REQUEST__BODY_PUBLISH_PREFIX, &publish);
	memset(name, 'n', 65);
	name[65] = '\0';
	publish.name = name;
	write_request("publish-long-name", WK__REQUEST__BODY_PUBLISH_PREFIX, &publish);
}

static void write_bench_seeds(void)
{
	Wk__Bench bench = WK__BENCH__INIT;
	Wk__BenchRun run = WK__BENCH_RUN__INIT;

	bench.n_sessions = 32;
	bench.n_prompt = 512;
	bench.seed = 1;
	write_request("bench", WK__REQUEST__BODY_BENCH, &bench);
	run.start_ns = UINT64_MAX;
	run.profile = true;
	write_request("bench-run", WK__REQUEST__BODY_BENCH_RUN, &run);
}

static void write_scan_seed(const char *name, Wd__Request__BodyCase body, void *message, char cut)
{
	uint8_t data[512];
	Wd__Request r = WD__REQUEST__INIT;

	r.id = 1;
	r.body_case = body;
	r.hello = message; /* the body is a union of pointers */
	size_t n = wd__request__pack(&r, data);
	uint8_t *at = cut ? memchr(data, cut, n) : NULL;
	if (at)
		*at = 0;
	write_seed("rpc-scan", name, data, n);
}

/* Answers of weightd about prefixes, and what a list of them may not be. */
static void write_prefix_seeds(void)
{
	Wd__Prefix row = WD__PREFIX__INIT, *rows[] = {&row, &row};
	Wd__Prefixes list = WD__PREFIXES__INIT;
	Wd__PrefixTaken taken = WD__PREFIX_TAKEN__INIT;
	Wd__Published published = WD__PUBLISHED__INIT;
	Wd__Allocation memory = WD__ALLOCATION__INIT;
	struct wire_seed s = {.n = 1};

	row.id = UINT64_C(1) << 62;
	row.model = (char *)"m";
	row.name = (char *)"rules";
	row.n_tokens = 32;
	row.n_bytes = 4096;
	row.head_hash = 7;
	list.prefixes = rows;
	list.n_prefixes = 2;
	s.data[0] = 6; /* list prefixes */
	add_reply(&s, 2, 0, WD__REPLY__BODY_PREFIXES, &list);
	write_seed("wire", "prefixes", s.data, s.n);
	s.n = 1;
	row.n_tokens = 0;
	add_reply(&s, 2, 0, WD__REPLY__BODY_PREFIXES, &list);
	write_seed("wire", "prefixes-without-tokens", s.data, s.n);
	row.n_tokens = 32;
	memory.n_bytes = memory.buffer_bytes = 4096;
	taken.prefix = &row;
	taken.memory = &memory;
	s.n = 1;
	s.data[0] = 7; /* take a prefix */
	add_reply(&s, 2, 2, WD__REPLY__BODY_PREFIX_TAKEN, &taken);
	write_seed("wire", "prefix-taken", s.data, s.n);
	taken.memory = NULL;
	s.n = 1;
	add_reply(&s, 2, 2, WD__REPLY__BODY_PREFIX_TAKEN, &taken);
	write_seed("wire", "prefix-without-memory", s.data, s.n);
	published.id = 1;
	published.existed = true;
	s.n = 1;
	s.data[0] = 8; /* publish */
	add_reply(&s, 2, 0, WD__REPLY__BODY_PUBLISHED, &published);
	write_seed("wire", "published", s.data, s.n);
}

/* '#' becomes the NUL that unpacking would end a string at. */
static void write_scan_seeds(void)
{
	static uint8_t uuid[16];
	Wd__Acquire acquire = WD__ACQUIRE__INIT;
	Wd__Load load = WD__LOAD__INIT;
	Wd__Refusal refusal = WD__REFUSAL__INIT, *refusals[] = {&refusal};

	acquire.model = (char *)"atlas#2";
	acquire.device_uuid = (ProtobufCBinaryData){.len = 16, .data = uuid};
	acquire.driver_uuid = acquire.device_uuid;
	acquire.n_refusals = 1;
	acquire.refusals = refusals;
	refusal.handle_type = WD__HANDLE_TYPE__HANDLE_TYPE_MEMFD;
	refusal.index = 3;
	write_scan_seed("acquire", WD__REQUEST__BODY_ACQUIRE, &acquire, 0);
	write_scan_seed("acquire-nul", WD__REQUEST__BODY_ACQUIRE, &acquire, '#');
	load.name = (char *)"atlas";
	load.path = (char *)"/models/a#b";
	write_scan_seed("load", WD__REQUEST__BODY_LOAD, &load, 0);
	write_scan_seed("load-nul", WD__REQUEST__BODY_LOAD, &load, '#');
	Wd__Publish publish = WD__PUBLISH__INIT;
	Wd__Allocation memory = WD__ALLOCATION__INIT;
	publish.model = (char *)"atlas";
	publish.generation = 1;
	publish.device_uuid = publish.driver_uuid = acquire.device_uuid;
	publish.name = (char *)"ru#les";
	publish.n_tokens = 64;
	publish.layout = acquire.device_uuid;
	publish.memory = &memory;
	memory.n_bytes = memory.buffer_bytes = 4096;
	write_scan_seed("publish", WD__REQUEST__BODY_PUBLISH, &publish, 0);
	write_scan_seed("publish-nul", WD__REQUEST__BODY_PUBLISH, &publish, '#');
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: fuzz-seeds DIRECTORY\n");
		return 2;
	}
	seeds_root = argv[1];
	write_manifest_seeds();
	write_lease_seeds();
	write_status_seeds();
	write_other_wire_seeds();
	write_generate_seeds();
	write_other_stream_seeds();
	write_memory_seed();
	write_append_seeds();
	write_sampling_seeds();
	write_other_request_seeds();
	write_publish_seeds();
	write_bench_seeds();
	write_prefix_seeds();
	write_scan_seeds();
	return 0;
}
