/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_MESSAGE_H
#define WORKERD_MESSAGE_H

/*
 * What the threads say to each other, in plain C. A client's request becomes one message, which
 * travels
 *
 *	loop -> (text ->) engine -> loop
 *
 * and carries its answer on the way back: whoever handles it fills the answer members, or
 * message_refuse says why not. Every request comes back exactly once. Beside that the engine sends
 * MESSAGE_TOKEN for each token of a generation, and MESSAGE_STARTED when one was taken on: the
 * MESSAGE_GENERATE itself comes back when it is finished. Where it asks for several completions, a
 * MESSAGE_FINISHED tells the end of each but the last one to end. A MESSAGE_TUNE may be told of by
 * MESSAGE_TUNING before it comes back.
 *
 * One thread at a time holds a message; a queue hands it over.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "workerd/ledger.h"
#include "workerd/logprob.h"
#include "workerd/plan.h"
#include "workerd/queue.h"
#include "workerd/sampler.h"
#include "workerd/template.h"
#include "workerd/tokenizer.h"

struct bencher_result;
struct grammar;
struct tuner_result;

enum message_kind {
	MESSAGE_UNKNOWN, /* a client's request that this version does not know; refused */
	/* requests of clients */
	MESSAGE_HELLO,
	MESSAGE_OPEN,
	MESSAGE_APPEND,
	MESSAGE_GENERATE,
	MESSAGE_CANCEL,
	MESSAGE_TRUNCATE,
	MESSAGE_CLOSE,
	MESSAGE_FORK,
	MESSAGE_SAVE,
	MESSAGE_RESTORE,
	MESSAGE_TOKENIZE,
	MESSAGE_DETOKENIZE,
	MESSAGE_STATUS,
	MESSAGE_BENCH_MEMORY,
	MESSAGE_BENCH,
	MESSAGE_BENCH_RUN,
	MESSAGE_BENCH_END,
	MESSAGE_TUNE,
	MESSAGE_PUBLISH,
	/* to the engine: the client is gone; comes back when its sessions are closed */
	MESSAGE_DISCONNECT,
	/* to the engine: weightd has told something; does not come back */
	MESSAGE_NOTICE,
	/* from the engine to the text thread: another manifest; comes back to the loop */
	MESSAGE_MANIFEST,
	/* to the text or engine thread: finish; comes back as its last message */
	MESSAGE_STOP,
	/* from the engine */
	MESSAGE_STARTED,
	MESSAGE_TOKEN,
	MESSAGE_FINISHED,
	MESSAGE_TUNING,  /* a row of a TUNE that goes on */
	MESSAGE_CHANGED, /* it has parked, or has a stack again */
	MESSAGE_FAILED,  /* the engine cannot go on; error says why; comes before its STOP */
};

enum message_input { MESSAGE_INPUT_TEXT, MESSAGE_INPUT_TOKENS, MESSAGE_INPUT_CHAT };

/* Text, tokens or chat messages; the text thread turns the others into tokens. */
struct message_append {
	uint64_t session;
	enum message_input input;
	const char *text; /* of TEXT */
	uint64_t n_text_bytes;
	bool parse_special;
	bool add_bos;
	struct template_message *chat; /* of CHAT; the array is the message's */
	uint32_t n_chat;
	bool add_generation_prompt;
	const uint32_t *ids; /* of TOKENS */
	uint64_t n_ids;
	bool begins_with_bos; /* ids[0] is for a session that is empty alone */
	uint32_t n_added;     /* answer */
	uint32_t n_total;     /* answer */
};

enum {
	MESSAGE_MAX_STOPS = 16,
	MESSAGE_MAX_STOP_BYTES = 256,
	MESSAGE_MAX_STOP_TOKENS = 16,
	MESSAGE_MAX_COMPLETIONS = 8,
};

struct message_stop {
	const char *bytes;
	uint32_t n_bytes; /* 1 to MESSAGE_MAX_STOP_BYTES */
};

enum message_reason {
	MESSAGE_REASON_STOP = 1, /* the numbers of workerd.proto's Finished.Reason */
	MESSAGE_REASON_LENGTH = 2,
	MESSAGE_REASON_CANCELLED = 3,
	MESSAGE_REASON_FAILED = 4,
};

/* How a generation went; filled by the scheduler. */
struct message_finished {
	enum message_reason reason;
	uint32_t prompt_tokens;
	uint32_t generated_tokens;
	uint32_t cached_tokens;
	uint64_t prompt_ns;
	uint64_t generate_ns;
	uint64_t seed;
	uint32_t index; /* of the completion */
};

struct message_generate {
	uint64_t session;
	uint32_t n_predict; /* 0: no limit but the context's */
	struct sampler_params sampling;
	bool has_seed;
	/* the arrays that sampling points to, the message's */
	struct sampler_bias *biases;
	struct dry_breaker *breakers;
	struct message_stop *stops; /* [n_stops], the array is the message's */
	uint32_t n_stops;
	const uint32_t *stop_tokens; /* [n_stop_tokens], at most MESSAGE_MAX_STOP_TOKENS */
	uint32_t n_stop_tokens;
	uint32_t n_logprobs; /* 0: none, at most LOGPROB_MAX_TOP */
	bool ignore_eos;
	bool is_prefill;  /* no token is chosen: it ends as STOP when all is computed */
	int32_t priority; /* see workerd/turn.h */
	bool is_shifting; /* a full context loses tokens instead of ending it, see session_shift */
	uint32_t n_keep;  /* that it does not lose */
	const char *constraint; /* GBNF, or a JSON schema; NULL: none */
	uint64_t n_constraint_bytes;
	bool is_schema;
	struct grammar *grammar; /* of constraint, by the text thread; the message's reference */
	uint32_t n_completions;  /* 0: one */
	/* [n_branches] MESSAGE_FINISHED of completions that have not begun, the message's */
	struct message **branches;
	uint32_t n_branches;
	const struct message *origin;     /* of a MESSAGE_FINISHED: whose lists it borrows */
	struct message_finished finished; /* answer; error has the text of FAILED */
};

struct message_archive {
	uint64_t session; /* of SAVE; of RESTORE the answer */
	const char *name;
	uint32_t n_tokens; /* answer, as what follows */
	uint32_t n_cached;
	uint64_t n_bytes; /* of the file */
	char why[256];    /* some of what was saved is of no use */
};

enum { MESSAGE_MAX_PREFIX_NAME_BYTES = 64 };

/* A shared prefix: text or tokens; the text thread turns the one into the other. */
struct message_publish {
	const char *text; /* NULL: ids are given */
	uint64_t n_text_bytes;
	bool parse_special;
	bool add_bos;
	const uint32_t *ids;
	uint64_t n_ids;
	const char *name;
	bool is_shared;
	uint64_t prefix;     /* answer, as what follows */
	uint32_t n_tokens;   /* of it, in whole pages */
	uint32_t n_computed; /* of them */
	uint64_t n_bytes;
	bool existed;
};

/* Tokenize: text in, ids out; Detokenize: ids in, text out. */
struct message_text {
	const char *text;
	uint64_t n_text_bytes;
	bool parse_special;
	bool add_bos;
	const uint32_t *ids;
	uint64_t n_ids;
};

struct message_logprob {
	uint32_t id;
	float logprob;
	uint32_t n_bytes;
	const char *bytes; /* behind the message itself */
};

struct message_token {
	uint64_t session;
	uint32_t index; /* of the completion */
	uint32_t id;
	uint32_t n_bytes;
	const char *bytes;                 /* behind the message itself */
	float logprob;                     /* of id, where there are top */
	uint32_t n_top;                    /* 0: none were asked for */
	const struct message_logprob *top; /* [n_top], behind the message itself */
};

enum message_notice_kind {
	MESSAGE_NOTICE_BACK, /* weightd can be asked again: what could not be done without it is */
	MESSAGE_NOTICE_PRESSURE, /* others need memory */
	MESSAGE_NOTICE_REPLACED, /* generation is newer */
	MESSAGE_NOTICE_LOST, /* generation is not to be computed with any more; error says why */
	MESSAGE_NOTICE_UNLEASED,   /* nor with this one, but by who does; error says why */
	MESSAGE_NOTICE_IDENTIFIED, /* contents of generation are known */
	MESSAGE_NOTICE_PREFIXES,   /* of generation there are others to be had */
};

struct message_notice {
	enum message_notice_kind kind;
	uint64_t generation;
	struct weights_client_contents contents; /* of generation, as far as they were told */
};

struct message_manifest {
	struct manifest *manifest; /* the message's, a reference, until it is taken */
	uint64_t epoch;            /* see message.epoch */
	bool has_chat_template;    /* answer */
};

enum { MESSAGE_N_PLACEMENTS = 5 };

/* What the worker says of itself, as far as it changes. */
struct message_changed {
	bool is_parked; /* the others are as they were, then */
	uint32_t n_ctx;
	uint32_t n_dispatches;
	uint64_t generation;
	uint64_t weights_bytes;
	uint64_t placed_bytes[MESSAGE_N_PLACEMENTS]; /* by enum manifest_placement */
	uint64_t attach_ns;
	bool has_identity;
	uint8_t identity[32];
};

/* The members that the engine knows; the rest of Status is the loop thread's. */
/* The numbers of workerd.proto's SessionStatus.State. */
enum message_session_state {
	MESSAGE_SESSION_IDLE = 1,
	MESSAGE_SESSION_PROMPT = 2,
	MESSAGE_SESSION_DECODING = 3,
};

struct message_session {
	uint64_t session;
	uint64_t client;
	uint32_t n_tokens;
	uint32_t n_cached;
	enum message_session_state state;
	float tokens_per_second; /* of the generation that runs; 0: none, or too few tokens */
};

struct message_status {
	struct ledger memory;
	uint32_t n_sessions;
	struct message_session *sessions; /* [n_listed], the message's */
	uint32_t n_listed;
	uint32_t n_queued;
	uint32_t kv_pages; /* as kv_counters has them; 0: parked */
	uint32_t kv_used_pages;
	uint32_t kv_shared_pages;
	uint32_t kv_cached_pages;
	uint32_t n_prefixes; /* shared ones that are imported */
	uint64_t prefix_bytes;
	uint64_t first_token_ns;
	uint64_t prompt_tokens;
	uint64_t generated_tokens;
	struct plan_counters stream;
};

/* Rows of BENCH_MEMORY, by enum manifest_placement; those without bytes are not there. */
struct message_rates {
	struct bench_memory_rate rates[BENCH_MEMORY_MAX_RATES];
	uint32_t n_rates;
};

/* See workerd/tuner.h. */
struct message_tune {
	bool has_progress;           /* MESSAGE_TUNING are wanted */
	uint32_t max_seconds;        /* that it measures; 0: as long as is reasonable */
	struct tuner_result *result; /* TUNE (answer), TUNING with one row; the message's */
};

/* See workerd/bencher.h. */
struct message_bench {
	uint32_t n_sessions;
	uint32_t n_depth; /* tokens of each session before a run */
	uint32_t n_prompt;
	uint32_t n_generate;
	uint64_t seed;
	uint32_t n_rows;       /* answer: of a step, at most */
	uint32_t n_dispatches; /* answer: of a step of one row */
};

struct message_bench_run {
	uint64_t start_ns; /* CLOCK_MONOTONIC; 0: now */
	bool is_profile;
	struct bencher_result *result; /* answer, the message's */
};

struct message {
	struct queue_node node; /* first */
	enum message_kind kind;
	uint64_t client;
	uint64_t scope;  /* of a client's request: workerd/client.h */
	uint64_t id;     /* of the client's request: the client's choice */
	uint64_t serial; /* of the client's request: the loop thread's */
	uint64_t arrived_ns;
	int code;          /* 0, or -errno: refused */
	struct err *error; /* the sentence, where code is not 0; NULL: out of memory */
	union {
		uint32_t protocol; /* HELLO */
		uint64_t session;  /* OPEN (answer), CANCEL, CLOSE */
		struct {
			uint64_t session;
			uint32_t n_tokens;
		} truncate;
		struct {
			uint64_t session; /* the new one in the answer */
			uint32_t n_tokens;
		} fork;
		struct message_archive archive; /* SAVE, RESTORE */
		struct message_append append;
		struct message_generate generate; /* GENERATE, FINISHED */
		struct message_publish publish;
		struct message_text text; /* TOKENIZE, DETOKENIZE */
		struct message_token token;
		struct message_notice notice;
		struct message_manifest manifest;
		struct message_changed changed;
		struct message_status *status; /* STATUS (answer), the message's */
		struct message_rates *rates;   /* BENCH_MEMORY (answer), the message's */
		struct message_tune tune;
		struct message_bench bench;
		struct message_bench_run bench_run;
	};
	struct tokenizer_ids
		made_ids; /* what the text thread made; append.ids, text.ids point here */
	char *made_text;  /* likewise of DETOKENIZE */
	/* Which tokens made_ids are of: rises with each model of other tokens, from 1. */
	uint64_t epoch;
	void *owner; /* what borrowed members point into, freed by free_owner */
	void (*free_owner)(void *owner);
};

/* Zeroed but for kind and client. NULL: out of memory. n_extra bytes lie behind it. */
struct message *message_new(enum message_kind kind, uint64_t client, uint32_t n_extra);

/* Of the same client, id and serial as a request. */
struct message *message_new_for(
	enum message_kind kind, const struct message *request, uint32_t n_extra);

struct message *message_free(struct message *m);

/* MESSAGE_FINISHED for each completion of a MESSAGE_GENERATE behind its first. -ENOMEM. */
int must_check message_make_branches(struct message *generate);

/* Exchanges how the generations of two messages went, errors included. */
void message_swap_outcomes(struct message *a, struct message *b);

/* code is -errno; e's text (may be empty: the errno's own) is copied. */
void message_refuse(struct message *m, int code, const struct err *e);

/* The sentence of a refused message, never empty; borrowed. */
const char *message_get_error(const struct message *m);

static inline struct message *message_from_node(struct queue_node *node)
{
	return (struct message *)node;
}

/* Frees what is left in q. The taking thread. */
void message_drain(struct queue *q);

#endif
