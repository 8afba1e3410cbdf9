/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_OPTIONS_H
#define WEIGHTCTL_OPTIONS_H

/*
 * The command line. Options may stand before or after the command and its arguments; behind "--"
 * everything is an argument.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/worker-client.h"

struct err;

/* Of bench, as they were typed; NULL: not given. weightctl/bench-options.h reads them. */
struct options_bench {
	const char *model;
	const char *synthetic;
	const char *prompts;
	const char *generates;
	const char *sessions;
	const char *depths;
	const char *repeats;
	const char *workers;
	const char *device;
	const char *kv_type;
	const char *chunk;
	const char *kernels;
	bool profile;
};

struct options {
	const char *weightd; /* a socket's path, NULL: the default */
	const char *worker;
	bool json;
	bool replace;
	bool devices;
	bool has_timeout;
	uint32_t timeout_s;
	float interval_s; /* top */
	bool once;        /* top */
	bool help;
	bool version;
	const char *name;   /* of a prefix, NULL: none */
	bool shared;        /* a prefix with other sockets of weightd */
	const char *load;   /* name of a saved session, NULL: begin anew */
	const char *save;   /* NULL: it is not kept */
	uint32_t n_predict; /* 0: until the model ends */
	bool context_shift;
	uint32_t n_keep; /* tokens that a shift keeps at the start */
	struct worker_client_sampling sampling;
	const char *grammar;     /* a GBNF file's path; NULL: none */
	const char *json_schema; /* a file's path, or the schema itself, which begins with { */
	struct worker_client_bias *biases; /* sampling's, the array is owned */
	uint32_t *stop_tokens;             /* [n_stop_tokens], owned */
	uint32_t n_stop_tokens;
	uint32_t n_logprobs; /* 0: none; only with json */
	uint32_t n;          /* completions */
	struct options_bench bench;
	const char *command; /* NULL: none was given */
	char **args;         /* [n_args], what stood behind the command; the array is owned */
	uint32_t n_args;
};

/* OPTIONS_USAGE with one line in ret_err: an unknown option, a missing or wrong value. -ENOMEM. */
enum { OPTIONS_USAGE = 1 };
int must_check options_parse(
	int argc, char **argv, struct err *ret_err, struct options *ret_options);

void options_fini(struct options *o);

#endif
