/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/options.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightctl/number.h"

enum option_id {
	WEIGHTD = 256, /* above every character, which short options are */
	WORKER,
	JSON,
	REPLACE,
	DEVICES,
	TIMEOUT,
	INTERVAL,
	ONCE,
	HELP,
	VERSION,
	N_PREDICT,
	TEMP,
	TOP_K,
	TOP_P,
	MIN_P,
	REPEAT_PENALTY,
	TYPICAL_P,
	FREQUENCY_PENALTY,
	PRESENCE_PENALTY,
	DRY_MULTIPLIER,
	DRY_BASE,
	DRY_ALLOWED_LENGTH,
	LOGIT_BIAS,
	LOGPROBS,
	STOP_TOKEN,
	SEED,
	CONTEXT_SHIFT,
	N_KEEP,
	GRAMMAR,
	JSON_SCHEMA,
	LOAD,
	SAVE,
	NAME,
	SHARED,
	SYNTHETIC,
	WORKERS,
	PROFILE,
	DEVICE,
	KV_TYPE,
	CHUNK,
	KERNELS,
};

static const struct option long_options[] = {
	{"weightd", required_argument, NULL, WEIGHTD},
	{"worker", required_argument, NULL, WORKER},
	{"json", no_argument, NULL, JSON},
	{"replace", no_argument, NULL, REPLACE},
	{"devices", no_argument, NULL, DEVICES},
	{"timeout", required_argument, NULL, TIMEOUT},
	{"interval", required_argument, NULL, INTERVAL},
	{"once", no_argument, NULL, ONCE},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{"n-predict", required_argument, NULL, N_PREDICT},
	{"temp", required_argument, NULL, TEMP},
	{"top-k", required_argument, NULL, TOP_K},
	{"top-p", required_argument, NULL, TOP_P},
	{"min-p", required_argument, NULL, MIN_P},
	{"repeat-penalty", required_argument, NULL, REPEAT_PENALTY},
	{"typical-p", required_argument, NULL, TYPICAL_P},
	{"frequency-penalty", required_argument, NULL, FREQUENCY_PENALTY},
	{"presence-penalty", required_argument, NULL, PRESENCE_PENALTY},
	{"dry-multiplier", required_argument, NULL, DRY_MULTIPLIER},
	{"dry-base", required_argument, NULL, DRY_BASE},
	{"dry-allowed-length", required_argument, NULL, DRY_ALLOWED_LENGTH},
	{"logit-bias", required_argument, NULL, LOGIT_BIAS},
	{"logprobs", required_argument, NULL, LOGPROBS},
	{"stop-token", required_argument, NULL, STOP_TOKEN},
	{"seed", required_argument, NULL, SEED},
	{"context-shift", no_argument, NULL, CONTEXT_SHIFT},
	{"n-keep", required_argument, NULL, N_KEEP},
	{"grammar", required_argument, NULL, GRAMMAR},
	{"json-schema", required_argument, NULL, JSON_SCHEMA},
	{"load", required_argument, NULL, LOAD},
	{"save", required_argument, NULL, SAVE},
	{"name", required_argument, NULL, NAME},
	{"shared", no_argument, NULL, SHARED},
	{"model", required_argument, NULL, 'm'},
	{"n-prompt", required_argument, NULL, 'p'},
	{"n-gen", required_argument, NULL, 'n'},
	{"n-depth", required_argument, NULL, 'd'},
	{"n-sessions", required_argument, NULL, 'b'},
	{"repetitions", required_argument, NULL, 'r'},
	{"synthetic", required_argument, NULL, SYNTHETIC},
	{"workers", required_argument, NULL, WORKERS},
	{"profile", no_argument, NULL, PROFILE},
	{"device", required_argument, NULL, DEVICE},
	{"kv-type", required_argument, NULL, KV_TYPE},
	{"chunk", required_argument, NULL, CHUNK},
	{"kernels", required_argument, NULL, KERNELS},
	{NULL, 0, NULL, 0},
};

static int usage(int r, const char *name, const char *expected, const char *found, struct err *e)
{
	if (r == 0)
		return 0;
	(void)err_set(e, EINVAL, "--%s: expected %s, found %s", name, expected, found);
	return OPTIONS_USAGE;
}

static const char count[] = "a whole number below 2^32", share[] = "a number from 0 to 1";
static const char positive[] = "a number of at least 0", penalty[] = "a number from -100 to 100";

static int add_bias(struct options *o, const char *name, const char *text, struct err *e)
{
	struct worker_client_sampling *s = &o->sampling;
	struct worker_client_bias bias;
	const char *equals = strchr(text, '=');
	char id[16];
	int r = -EINVAL;

	if (equals && (size_t)(equals - text) < sizeof(id)) {
		memcpy(id, text, (size_t)(equals - text));
		id[equals - text] = '\0';
		r = number_parse_u32(id, &bias.id);
	}
	if (r == 0)
		r = number_parse_f32(equals + 1, -INFINITY, FLT_MAX, &bias.bias);
	if (r)
		return usage(r, name, "ID=BIAS, a token's id and a number or -inf", text, e);
	struct worker_client_bias *biases =
		reallocarray(o->biases, (size_t)s->n_biases + 1, sizeof(*biases));
	if (!biases)
		return -ENOMEM;
	biases[s->n_biases++] = bias;
	s->biases = o->biases = biases;
	return 0;
}

static int add_stop_token(struct options *o, const char *name, const char *text, struct err *e)
{
	uint32_t id;
	int r = usage(number_parse_u32(text, &id), name, "a token's id", text, e);

	if (r)
		return r;
	uint32_t *ids = reallocarray(o->stop_tokens, (size_t)o->n_stop_tokens + 1, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	ids[o->n_stop_tokens++] = id;
	o->stop_tokens = ids;
	return 0;
}

static int set_penalty(struct options *o, int id, const char *name, const char *text, struct err *e)
{
	struct worker_client_sampling *s = &o->sampling;

	switch (id) {
	case REPEAT_PENALTY:
		return usage(number_parse_f32(text, 0, FLT_MAX, &s->repeat_penalty), name, positive,
			text, e);
	case FREQUENCY_PENALTY:
		return usage(number_parse_f32(text, -100, 100, &s->frequency_penalty), name,
			penalty, text, e);
	case PRESENCE_PENALTY:
		return usage(number_parse_f32(text, -100, 100, &s->presence_penalty), name, penalty,
			text, e);
	case DRY_MULTIPLIER:
		return usage(number_parse_f32(text, 0, FLT_MAX, &s->dry_multiplier), name, positive,
			text, e);
	case DRY_BASE:
		return usage(number_parse_f32(text, 1, FLT_MAX, &s->dry_base), name,
			"a number of at least 1", text, e);
	default: return usage(number_parse_u32(text, &s->dry_allowed_length), name, count, text, e);
	}
}

static int set_number(struct options *o, int id, const char *name, const char *text, struct err *e)
{
	struct worker_client_sampling *s = &o->sampling;

	switch (id) {
	case N_PREDICT: return usage(number_parse_u32(text, &o->n_predict), name, count, text, e);
	case TIMEOUT:
		o->has_timeout = true;
		return usage(number_parse_u32(text, &o->timeout_s), name, count, text, e);
	case INTERVAL:
		return usage(number_parse_f32(text, 0.1f, 86400, &o->interval_s), name,
			"a number of seconds from 0.1 to 86400", text, e);
	case N_KEEP: return usage(number_parse_u32(text, &o->n_keep), name, count, text, e);
	case TOP_K: return usage(number_parse_u32(text, &s->top_k), name, count, text, e);
	case TEMP:
		return usage(number_parse_f32(text, 0, FLT_MAX, &s->temperature), name, positive,
			text, e);
	case TOP_P: return usage(number_parse_f32(text, 0, 1, &s->top_p), name, share, text, e);
	case MIN_P: return usage(number_parse_f32(text, 0, 1, &s->min_p), name, share, text, e);
	case TYPICAL_P:
		return usage(number_parse_f32(text, 0, 1, &s->typical_p), name, share, text, e);
	case LOGIT_BIAS: return add_bias(o, name, text, e);
	case STOP_TOKEN: return add_stop_token(o, name, text, e);
	case LOGPROBS: return usage(number_parse_u32(text, &o->n_logprobs), name, count, text, e);
	case SEED:
		s->has_seed = true;
		return usage(number_parse_u64(text, &s->seed), name, "a whole number below 2^64",
			text, e);
	default: return set_penalty(o, id, name, text, e);
	}
}

static int set_option(struct options *o, int id, const char *name, const char *text, struct err *e)
{
	switch (id) {
	case WEIGHTD: o->weightd = text; return 0;
	case WORKER: o->worker = text; return 0;
	case JSON: o->json = true; return 0;
	case REPLACE: o->replace = true; return 0;
	case DEVICES: o->devices = true; return 0;
	case ONCE: o->once = true; return 0;
	case CONTEXT_SHIFT: o->context_shift = true; return 0;
	case LOAD: o->load = text; return 0;
	case SAVE: o->save = text; return 0;
	case NAME: o->name = text; return 0;
	case SHARED: o->shared = true; return 0;
	case HELP: o->help = true; return 0;
	case VERSION: o->version = true; return 0;
	case GRAMMAR: o->grammar = text; return 0;
	case JSON_SCHEMA: o->json_schema = text; return 0;
	default: return set_number(o, id, name, text, e);
	}
}

/* Bench's; its numbers are lists. False: none of these. */
static bool set_bench(struct options_bench *b, int id, const char *text)
{
	switch (id) {
	case 'm': b->model = text; return true;
	case 'p': b->prompts = text; return true;
	case 'n': b->generates = text; return true;
	case 'b': b->sessions = text; return true;
	case 'd': b->depths = text; return true;
	case 'r': b->repeats = text; return true;
	case SYNTHETIC: b->synthetic = text; return true;
	case WORKERS: b->workers = text; return true;
	case PROFILE: b->profile = true; return true;
	case DEVICE: b->device = text; return true;
	case KV_TYPE: b->kv_type = text; return true;
	case CHUNK: b->chunk = text; return true;
	case KERNELS: b->kernels = text; return true;
	default: return false;
	}
}

/* -n is a number of completions, but bench's are tokens: which it is, the command says. */
static int set_n(struct options *o, const char *text, struct err *e)
{
	if (!text || (o->command && !strcmp(o->command, "bench")))
		return 0;
	if (number_parse_u32(text, &o->n) == 0 && o->n && o->n <= WORKER_CLIENT_MAX_COMPLETIONS)
		return 0;
	(void)err_set(e, EINVAL, "-n: expected a whole number from 1 to %d, found %s",
		WORKER_CLIENT_MAX_COMPLETIONS, text);
	return OPTIONS_USAGE;
}

static void add_argument(struct options *o, char *text)
{
	if (o->command)
		o->args[o->n_args++] = text;
	else
		o->command = text;
}

static int parse(int argc, char **argv, struct err *ret_err, struct options *o)
{
	int id, index = -1, r;

	opterr = 0;
	optind = 0; /* glibc: begin anew, so that a test may parse twice */
	/* "-": arguments come as option 1 in their place, whatever POSIXLY_CORRECT says. */
	while ((id = getopt_long(argc, argv, "-:hm:p:n:b:d:r:", long_options, &index)) != -1) {
		switch (id) {
		case 1: add_argument(o, optarg); break;
		case 'h': o->help = true; break;
		case ':':
			(void)err_set(ret_err, EINVAL, "%s: expected a value", argv[optind - 1]);
			return OPTIONS_USAGE;
		case '?':
			(void)err_set(
				ret_err, EINVAL, "unknown or misused option %s", argv[optind - 1]);
			return OPTIONS_USAGE;
		default:
			if (set_bench(&o->bench, id, optarg))
				break;
			r = set_option(o, id, long_options[index].name, optarg, ret_err);
			if (r)
				return r;
		}
	}
	while (optind < argc)
		add_argument(o, argv[optind++]);
	r = set_n(o, o->bench.generates, ret_err);
	if (r)
		return r;
	if (o->grammar && o->json_schema) {
		(void)err_set(ret_err, EINVAL,
			"--grammar, --json-schema: expected one of them, found both");
		return OPTIONS_USAGE;
	}
	if (!o->n_logprobs || o->json)
		return 0;
	(void)err_set(ret_err, EINVAL, "--logprobs: expected --json with it, which shows them");
	return OPTIONS_USAGE;
}

int options_parse(int argc, char **argv, struct err *ret_err, struct options *ret_options)
{
	struct options o = {
		.args = calloc((size_t)argc + 1, sizeof(*o.args)), .n = 1, .interval_s = 1};

	if (!o.args)
		return -ENOMEM;
	int r = parse(argc, argv, ret_err, &o);
	if (r) {
		options_fini(&o);
		return r;
	}
	*ret_options = o;
	return 0;
}

void options_fini(struct options *o)
{
	free(o->args);
	free(o->biases);
	free(o->stop_tokens);
	o->args = NULL;
	o->biases = NULL;
	o->stop_tokens = NULL;
	o->n_args = 0;
}
