/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_CLIENT_H
#define PROTO_WORKER_CLIENT_H

/*
 * The client of workerd's socket. Blocking calls on one connection, plain C structs out; a client
 * belongs to one thread at a time. Errors as in proto/weights-client.h.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct worker_client;

/* Connects and says Hello. path NULL: worker_client_default_path. */
int must_check worker_client_new(
	const char *path, struct err *ret_err, struct worker_client **ret_client);

/* The same over a connected SOCK_STREAM socket, which it owns (closed on failure too). */
int must_check worker_client_new_connected(
	int fd, struct err *ret_err, struct worker_client **ret_client);

struct worker_client *worker_client_free(struct worker_client *c);

/* $WORKERD_SOCKET, else $XDG_RUNTIME_DIR/workerd.sock, else /run/weightd/workerd.sock. */
int must_check worker_client_default_path(char *ret_path, uint32_t n_bytes);

/* What Hello said; strings borrowed. */
struct worker_client_info {
	const char *model;
	uint64_t generation;
	uint32_t n_ctx;
	bool has_chat_template;
};

const struct worker_client_info *worker_client_get_info(const struct worker_client *c);
int worker_client_get_fd(const struct worker_client *c);

int must_check worker_client_open_session(
	struct worker_client *c, struct err *ret_err, uint64_t *ret_session);
int must_check worker_client_close_session(
	struct worker_client *c, uint64_t session, struct err *ret_err);

/* Begins with the first n_tokens (0: all) of session. */
int must_check worker_client_fork_session(struct worker_client *c, uint64_t session,
	uint32_t n_tokens, struct err *ret_err, uint64_t *ret_session);

struct worker_client_saved {
	uint64_t session; /* of restore: the new one */
	uint32_t n_tokens;
	uint32_t n_cached; /* of them, those that need not be computed again */
	uint64_t n_bytes;  /* of save: of the file */
	char why[256];     /* of restore: why not all that was saved is of use */
};

/* A file of the worker's --sessions-dir: SaveSession and RestoreSession of workerd.proto. */
int must_check worker_client_save_session(struct worker_client *c, uint64_t session,
	const char *name, struct err *ret_err, struct worker_client_saved *ret_saved);
int must_check worker_client_restore_session(struct worker_client *c, const char *name,
	struct err *ret_err, struct worker_client_saved *ret_saved);

/* With the model's BOS token where the model wants one. */
int must_check worker_client_append_text(struct worker_client *c, uint64_t session,
	const char *text, uint32_t n_bytes, bool parse_special, struct err *ret_err,
	uint32_t *ret_n_total);

/* The same without a BOS token: what comes behind other text. */
int must_check worker_client_append_more(struct worker_client *c, uint64_t session,
	const char *text, uint32_t n_bytes, bool parse_special, struct err *ret_err,
	uint32_t *ret_n_total);
int must_check worker_client_append_tokens(struct worker_client *c, uint64_t session,
	const uint32_t *ids, uint32_t n_ids, struct err *ret_err, uint32_t *ret_n_total);

struct worker_client_message {
	const char *role;
	const char *content;
	uint32_t n_content_bytes;
};

/* Rendered by the model's template, with the generation prompt. */
int must_check worker_client_append_chat(struct worker_client *c, uint64_t session,
	const struct worker_client_message *messages, uint32_t n_messages, struct err *ret_err,
	uint32_t *ret_n_total);

struct worker_client_bias {
	uint32_t id;
	float bias;
};

/* See Sampling in workerd.proto. Lists are borrowed for the call. */
struct worker_client_sampling {
	float temperature;
	uint32_t top_k;
	float top_p;
	float min_p;
	float typical_p;
	float repeat_penalty;
	float frequency_penalty;
	float presence_penalty;
	uint32_t repeat_last_n;
	float dry_multiplier;
	float dry_base;
	uint32_t dry_allowed_length;
	uint32_t dry_last_n;
	const char *const *dry_breakers;
	uint32_t n_dry_breakers;
	const struct worker_client_bias *biases;
	uint32_t n_biases;
	uint64_t seed;
	bool has_seed;
};

struct worker_client_generate {
	uint32_t n_predict;
	struct worker_client_sampling sampling;
	const char *const *stop;
	uint32_t n_stop;
	const uint32_t *stop_tokens;
	uint32_t n_stop_tokens;
	uint32_t n_logprobs; /* 0: none */
	uint32_t n;          /* completions; 0: one */
	bool ignore_eos;
	bool context_shift; /* see proto/workerd.proto */
	uint32_t n_keep;
	const char *constraint; /* GBNF, or with is_schema a JSON schema; NULL: none */
	uint32_t n_constraint_bytes;
	bool is_schema;
};

enum worker_client_reason {
	WORKER_CLIENT_STOP = 1,
	WORKER_CLIENT_LENGTH = 2,
	WORKER_CLIENT_CANCELLED = 3,
	WORKER_CLIENT_FAILED = 4,
};

struct worker_client_finished {
	enum worker_client_reason reason;
	char text[512]; /* of FAILED */
	uint32_t prompt_tokens;
	uint32_t generated_tokens;
	uint32_t cached_tokens;
	uint64_t prompt_ns;
	uint64_t generate_ns;
	uint64_t seed;
};

enum { WORKER_CLIENT_MAX_LOGPROBS = 20, WORKER_CLIENT_MAX_COMPLETIONS = 8 };

struct worker_client_logprob {
	uint32_t id;
	float logprob;
	const char *text;
	uint32_t n_bytes;
};

/* See Token in workerd.proto. */
struct worker_client_token {
	uint32_t index; /* of the completion, below worker_client_generate.n */
	uint32_t id;
	const char *text; /* never NULL */
	uint32_t n_bytes;
	float logprob; /* where there are top */
	uint32_t n_top;
	struct worker_client_logprob top[WORKER_CLIENT_MAX_LOGPROBS];
};

/*
 * token is borrowed for the call. Returning false cancels the generation: fn is not called again.
 * From within, worker_client_cancel is the only call allowed on the client.
 */
typedef bool (*worker_client_token_fn)(const struct worker_client_token *token, void *userdata);

/*
 * Streams tokens into fn until every completion is finished; ret_finished: [n], by index. At most
 * 16 stops and WORKER_CLIENT_MAX_COMPLETIONS.
 */
int must_check worker_client_generate(struct worker_client *c, uint64_t session,
	const struct worker_client_generate *g, worker_client_token_fn fn, void *userdata,
	struct err *ret_err, struct worker_client_finished *ret_finished);

/* Sends a Cancel; only useful from within a token callback or for another session. */
int must_check worker_client_cancel(struct worker_client *c, uint64_t session, struct err *ret_err);
int must_check worker_client_truncate(
	struct worker_client *c, uint64_t session, uint32_t n_tokens, struct err *ret_err);

/* *ret_ids is allocated (free it), [*ret_n_ids] u32. */
int must_check worker_client_tokenize(struct worker_client *c, const char *text, uint32_t n_bytes,
	bool parse_special, struct err *ret_err, uint32_t **ret_ids, uint32_t *ret_n_ids);

/* *ret_text is allocated (free it) and NUL-terminated behind n_bytes. */
int must_check worker_client_detokenize(struct worker_client *c, const uint32_t *ids,
	uint32_t n_ids, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes);

enum {
	WORKER_CLIENT_MAX_ROLES = 8,
	WORKER_CLIENT_MAX_HEAPS = 16,
	WORKER_CLIENT_MAX_SLICES = 64,
};

/* See RoleHeap, Role, Heap and Slice in workerd.proto. */
struct worker_client_role_heap {
	uint32_t heap;
	uint64_t requested_bytes;
	uint64_t placed_bytes;
	uint64_t spilled_bytes;
	uint64_t imported_bytes;
	uint64_t peak_bytes;
};

struct worker_client_role {
	char name[32];
	uint64_t requested_bytes;
	uint64_t placed_bytes;
	uint64_t spilled_bytes;
	uint64_t imported_bytes;
	uint64_t peak_bytes;
	uint64_t n_spills;
	uint32_t n_heaps;
	struct worker_client_role_heap heaps[WORKER_CLIENT_MAX_HEAPS];
};

struct worker_client_heap {
	uint64_t n_bytes;
	bool device_local;
	uint64_t budget_bytes;
	uint64_t usage_bytes;
};

struct worker_client_slice {
	char name[48];
	char role[32];
	uint32_t n;
	uint64_t n_bytes;
	uint64_t total_bytes;
	uint32_t heap;
	uint32_t memory_type;
	bool device_local;
	bool host_visible;
	bool host_coherent;
	bool host_cached;
	bool spilled;
};

/* Scratch and Chunk of workerd.proto in it; chunk 0: the worker is parked. */
struct worker_client_memory {
	uint32_t n_heaps;
	struct worker_client_heap heaps[WORKER_CLIENT_MAX_HEAPS];
	uint32_t n_slices;
	uint32_t total_slices;
	struct worker_client_slice slices[WORKER_CLIENT_MAX_SLICES];
	uint32_t n_values;
	uint64_t scratch_peak_bytes;
	uint64_t scratch_sum_bytes;
	uint32_t chunk;
	uint32_t asked_chunk;
	bool is_chunk_default;
	uint64_t budget_bytes;
};

enum { WORKER_CLIENT_MAX_PLACEMENTS = 4 };

struct worker_client_placed {
	char placement[16]; /* "device", "pinned", "staged" or "paged" */
	uint64_t n_bytes;
};

/* See Experts in workerd.proto; no slots: none are cached. */
struct worker_client_experts {
	uint64_t n_slots;
	uint64_t n_bytes;
	uint64_t n_found;
	uint64_t n_fetched;
	uint64_t n_direct;
};

enum worker_client_session_state {
	WORKER_CLIENT_IDLE = 1,
	WORKER_CLIENT_PROMPT = 2,
	WORKER_CLIENT_DECODING = 3,
};

/* See SessionStatus in workerd.proto. */
struct worker_client_session {
	uint64_t session;
	uint64_t client;
	uint32_t n_tokens;
	uint32_t n_cached;
	enum worker_client_session_state state;
	float tokens_per_second;
};

enum { WORKER_CLIENT_MAX_SESSIONS = 256 };

struct worker_client_status {
	int32_t pid;
	uint64_t uptime_ns;
	char model[128];
	uint64_t generation;
	char device[256];
	bool software;
	uint64_t weights_bytes;
	uint32_t n_roles;
	struct worker_client_role roles[WORKER_CLIENT_MAX_ROLES];
	uint32_t n_sessions;
	struct worker_client_session sessions[WORKER_CLIENT_MAX_SESSIONS]; /* [n_sessions_listed] */
	uint32_t n_sessions_listed;
	uint32_t n_queued; /* generations whose first token is still to come */
	uint32_t kv_pages; /* 0: parked */
	uint32_t kv_used_pages;
	uint32_t kv_shared_pages;
	uint32_t kv_cached_pages;
	uint32_t max_sessions;
	uint32_t n_ctx;
	uint64_t attach_ns;
	uint64_t ready_ns;
	uint64_t first_token_ns;
	uint64_t prompt_tokens;
	uint64_t generated_tokens;
	uint32_t n_dispatches;
	bool weightd_connected;
	bool is_parked; /* it has nothing on the device until a request computes */
	bool has_identity;
	uint8_t identity[32]; /* of the generation's contents */
	uint32_t n_placed_weights;
	struct worker_client_placed placed_weights[WORKER_CLIENT_MAX_PLACEMENTS];
	uint32_t stream_rows; /* 0: no step copies weights */
	uint64_t stream_steps;
	uint64_t stream_ns;
	uint64_t stream_bytes;
	uint64_t paged_bytes;
	struct worker_client_experts experts;
	uint32_t n_prefixes; /* shared ones that it has */
	uint64_t prefix_bytes;
	struct worker_client_memory memory;
};

/* See MemoryRate in workerd.proto. */
struct worker_client_rate {
	char placement[16];
	uint64_t n_bytes;
	uint64_t read_ns;
	uint64_t copy_ns;
	uint64_t n_stream_bytes;
	uint64_t stream_ns;
};

/* Blocks while the worker measures. *ret_n of ret_rates are filled. */
int must_check worker_client_bench_memory(struct worker_client *c, struct err *ret_err,
	struct worker_client_rate ret_rates[WORKER_CLIENT_MAX_PLACEMENTS], uint32_t *ret_n);

/* For the other worker- files of this room. */
struct worker_link;
struct worker_link *worker_client_get_link(struct worker_client *c);

int must_check worker_client_status(
	struct worker_client *c, struct err *ret_err, struct worker_client_status *ret_status);

#endif
