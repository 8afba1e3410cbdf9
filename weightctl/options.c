/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/options.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>

#include "proto/util/err.h"
#include "weightctl/number.h"

enum option_id {
	WEIGHTD = 256, /* above every character, which short options are */
	WORKER,
	JSON,
	REPLACE,
	DEVICES,
	TIMEOUT,
	HELP,
	VERSION,
	N_PREDICT,
	TEMP,
	TOP_K,
	TOP_P,
	MIN_P,
	REPEAT_PENALTY,
	SEED,
};

static const struct option long_options[] = {
	{"weightd", required_argument, NULL, WEIGHTD},
	{"worker", required_argument, NULL, WORKER},
	{"json", no_argument, NULL, JSON},
	{"replace", no_argument, NULL, REPLACE},
	{"devices", no_argument, NULL, DEVICES},
	{"timeout", required_argument, NULL, TIMEOUT},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{"n-predict", required_argument, NULL, N_PREDICT},
	{"temp", required_argument, NULL, TEMP},
	{"top-k", required_argument, NULL, TOP_K},
	{"top-p", required_argument, NULL, TOP_P},
	{"min-p", required_argument, NULL, MIN_P},
	{"repeat-penalty", required_argument, NULL, REPEAT_PENALTY},
	{"seed", required_argument, NULL, SEED},
	{NULL, 0, NULL, 0},
};

static int usage(int r, const char *name, const char *expected, const char *found, struct err *e)
{
	if (r == 0)
		return 0;
	(void)err_set(e, EINVAL, "--%s: expected %s, found %s", name, expected, found);
	return OPTIONS_USAGE;
}

static int set_number(struct options *o, int id, const char *name, const char *text, struct err *e)
{
	static const char count[] = "a whole number below 2^32", share[] = "a number from 0 to 1";
	struct worker_client_sampling *s = &o->sampling;

	switch (id) {
	case N_PREDICT: return usage(number_parse_u32(text, &o->n_predict), name, count, text, e);
	case TIMEOUT:
		o->has_timeout = true;
		return usage(number_parse_u32(text, &o->timeout_s), name, count, text, e);
	case TOP_K: return usage(number_parse_u32(text, &s->top_k), name, count, text, e);
	case TEMP:
		return usage(number_parse_f32(text, 0, FLT_MAX, &s->temperature), name,
			"a number of at least 0", text, e);
	case TOP_P: return usage(number_parse_f32(text, 0, 1, &s->top_p), name, share, text, e);
	case MIN_P: return usage(number_parse_f32(text, 0, 1, &s->min_p), name, share, text, e);
	case REPEAT_PENALTY:
		return usage(number_parse_f32(text, 0, FLT_MAX, &s->repeat_penalty), name,
			"a number of at least 0", text, e);
	default:
		s->has_seed = true;
		return usage(number_parse_u64(text, &s->seed), name, "a whole number below 2^64",
			text, e);
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
	case HELP: o->help = true; return 0;
	case VERSION: o->version = true; return 0;
	default: return set_number(o, id, name, text, e);
	}
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
	while ((id = getopt_long(argc, argv, "-:h", long_options, &index)) != -1) {
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
			r = set_option(o, id, long_options[index].name, optarg, ret_err);
			if (r)
				return r;
		}
	}
	while (optind < argc)
		add_argument(o, argv[optind++]);
	return 0;
}

int options_parse(int argc, char **argv, struct err *ret_err, struct options *ret_options)
{
	struct options o = {.args = calloc((size_t)argc + 1, sizeof(*o.args))};

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
	o->args = NULL;
	o->n_args = 0;
}
