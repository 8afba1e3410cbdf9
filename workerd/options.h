/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPTIONS_H
#define WORKERD_OPTIONS_H

/*
 * workerd's command line. Main thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/util/log.h"
#include "workerd/kv-layout.h"
#include "workerd/plan.h"

struct err;

/* Of the device, with other workers, see workerd/baton.h. */
enum options_turn {
	OPTIONS_TURN_AUTO, /* of BATON_TURN_NS; none on a software device */
	OPTIONS_TURN_OFF,
	OPTIONS_TURN_NS,
};

/* Of the cache of experts, see expert-cache.h. */
enum options_expert_cache {
	OPTIONS_EXPERT_CACHE_AUTO, /* what the device has left; none on a software device */
	OPTIONS_EXPERT_CACHE_OFF,
	OPTIONS_EXPERT_CACHE_BYTES,
};

enum {
	OPTIONS_MAX_SESSIONS = 256,
	OPTIONS_MAX_CTX = 1 << 20,
	OPTIONS_MAX_KV_TOKENS = 1 << 28, /* as much as the sessions' contexts may be together */
	OPTIONS_MAX_CHUNK = 8192,
	OPTIONS_MAX_TURN_MS = 1000,
	OPTIONS_CHUNK_STEP = 64, /* chunks are multiples of it */
};

/* Strings are argv's. */
struct options {
	const char *model;
	const char *weights; /* NULL: weights_client_default_path */
	const char *socket;  /* NULL: worker_client_default_path */
	const char *device;  /* NULL: weightd's */
	uint32_t n_ctx;      /* 0: the model's, at most 4096 */
	uint32_t n_sessions;
	enum kv_layout_type kv_type;
	uint32_t n_kv_tokens; /* that all sessions have together; 0: each its whole context */
	uint32_t n_chunk;     /* rows a step; 0: 256, with matrices 1024, or less as fits */
	uint32_t stream_rows; /* see plan.h; 0: measured */
	enum options_expert_cache expert_cache;
	uint64_t expert_cache_bytes; /* with OPTIONS_EXPERT_CACHE_BYTES */
	uint64_t park_after_ns;      /* idle; 0: under pressure alone */
	bool no_park;                /* not under pressure either */
	bool shares_prefixes;
	uint32_t n_step_tokens;     /* of a step in which somebody decodes; 0: as many as fit */
	uint32_t n_client_sessions; /* of one connection at once; 0: all there are */
	uint64_t session_ttl_ns;    /* idle; 0: until they are closed */
	const char *sessions_dir;   /* NULL: none are saved */
	bool fail_on_spill;
	enum options_turn turn;
	uint64_t turn_ns; /* with OPTIONS_TURN_NS */
	enum plan_kernels kernels;
	enum log_level log_level;
};

/* Conditions of options_parse: print options_usage or the version. */
enum { OPTIONS_HELP = 1, OPTIONS_VERSION = 2 };

/* -EINVAL: wrong usage; -ENOTSUP: an option of the contract that this version refuses. */
int must_check options_parse(
	int argc, char **argv, struct err *ret_err, struct options *ret_options);

/* The text of --help. */
extern const char options_usage[];

#endif
