/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-options.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightctl/number.h"
#include "weightctl/options.h"
#include "weightctl/synthetic.h"

static int refuse(const char *option, const char *expected, const char *found, struct err *e)
{
	(void)err_set(e, EINVAL, "%s: expected %s, found %s", option, expected, found);
	return OPTIONS_USAGE;
}

/* The next part of a list that commas separate, NULL at its end. */
static const char *take_part(const char **at, char *ret_part, size_t n_room)
{
	const char *begin = *at;
	size_t n;

	if (!begin)
		return NULL;
	n = strcspn(begin, ",");
	*at = begin[n] ? begin + n + 1 : NULL;
	/* What is cut is no number any more. */
	n = n < n_room ? n : n_room - 1;
	memcpy(ret_part, begin, n);
	ret_part[n] = '\0';
	return ret_part;
}

/* Whole numbers from low to high; zeroes are left out where they are allowed. */
static int parse_list(const char *option, const char *text, uint32_t low, uint32_t high,
	bool skips_zero, struct err *e, struct bench_options_list *list)
{
	char part[16], expected[96];

	if (!text)
		return 0;
	snprintf(expected, sizeof(expected), "up to %d whole numbers from %u to %u, with commas",
		BENCH_OPTIONS_MAX_VALUES, low, high);
	list->n = 0;
	for (const char *at = text; take_part(&at, part, sizeof(part));) {
		uint32_t value = 0;

		if (number_parse_u32(part, &value) || value < low || value > high ||
			list->n == BENCH_OPTIONS_MAX_VALUES)
			return refuse(option, expected, text, e);
		if (value || !skips_zero)
			list->values[list->n++] = value;
	}
	return 0;
}

/* "4" or "4x8": workers, and sessions of each. */
static bool parse_split(char *part, struct bench_options_split *ret_split)
{
	struct bench_options_split split = {0};
	char *x = strchr(part, 'x');

	if (x) {
		*x = '\0';
		if (number_parse_u32(x + 1, &split.n_sessions) || split.n_sessions == 0 ||
			split.n_sessions > BENCH_OPTIONS_MAX_SESSIONS)
			return false;
	}
	if (number_parse_u32(part, &split.n_workers) || split.n_workers == 0 ||
		split.n_workers > BENCH_OPTIONS_MAX_WORKERS)
		return false;
	*ret_split = split;
	return true;
}

static int parse_workers(const char *text, struct err *e, struct bench_options *o)
{
	char part[24];

	o->has_workers = text != NULL;
	o->n_splits = 1;
	o->splits[0] = (struct bench_options_split){.n_workers = 1};
	if (!text)
		return 0;
	o->n_splits = 0;
	for (const char *at = text; take_part(&at, part, sizeof(part));)
		if (o->n_splits == BENCH_OPTIONS_MAX_VALUES ||
			!parse_split(part, &o->splits[o->n_splits++]))
			return refuse("--workers",
				"WORKERS or WORKERSxSESSIONS, as 1,4 or 1x32,4x8, up to 64 workers",
				text, e);
	return 0;
}

static int parse_repeats(const char *text, struct err *e, struct bench_options *o)
{
	o->n_repeats = 3;
	if (text && (number_parse_u32(text, &o->n_repeats) || o->n_repeats == 0 ||
			    o->n_repeats > BENCH_OPTIONS_MAX_REPEATS))
		return refuse("-r", "a whole number from 1 to 100", text, e);
	return 0;
}

static int parse_source(const struct options_bench *b, struct err *e, struct bench_options *o)
{
	o->model = b->model;
	o->synthetic = b->synthetic;
	if (b->model && b->synthetic)
		return refuse("-m, --synthetic", "one of them", "both", e);
	return b->synthetic && synthetic_check(b->synthetic, e) ? OPTIONS_USAGE : 0;
}

int bench_options_parse(
	const struct options *options, struct err *ret_err, struct bench_options *ret_options)
{
	const struct options_bench *b = &options->bench;
	struct bench_options o = {.device = b->device,
		.kv_type = b->kv_type,
		.chunk = b->chunk,
		.kernels = b->kernels,
		.prompts = {1, {512}},
		.generates = {1, {128}},
		.sessions = {1, {1}},
		.depths = {1, {0}},
		.profile = b->profile,
		.seed = options->sampling.has_seed ? options->sampling.seed : 1};
	int r = parse_source(b, ret_err, &o);

	if (!r)
		r = parse_list(
			"-p", b->prompts, 0, BENCH_OPTIONS_MAX_TOKENS, true, ret_err, &o.prompts);
	if (!r)
		r = parse_list("-n", b->generates, 0, BENCH_OPTIONS_MAX_TOKENS, true, ret_err,
			&o.generates);
	if (!r)
		r = parse_list("-b", b->sessions, 1, BENCH_OPTIONS_MAX_SESSIONS, false, ret_err,
			&o.sessions);
	if (!r)
		r = parse_list(
			"-d", b->depths, 0, BENCH_OPTIONS_MAX_TOKENS, false, ret_err, &o.depths);
	if (!r)
		r = parse_repeats(b->repeats, ret_err, &o);
	if (!r)
		r = parse_workers(b->workers, ret_err, &o);
	if (!r && o.prompts.n + o.generates.n == 0)
		r = refuse("-p, -n", "a prompt or generation", "none", ret_err);
	if (!r)
		*ret_options = o;
	return r;
}

static uint32_t get_largest(const struct bench_options_list *l)
{
	uint32_t max = 0;

	for (uint32_t i = 0; i < l->n; i++)
		max = l->values[i] > max ? l->values[i] : max;
	return max;
}

uint32_t bench_options_get_sessions(
	const struct bench_options *o, const struct bench_options_split *split)
{
	return split->n_sessions ? split->n_sessions : get_largest(&o->sessions);
}

uint32_t bench_options_get_ctx(const struct bench_options *o)
{
	uint32_t p = get_largest(&o->prompts), n = get_largest(&o->generates);

	return get_largest(&o->depths) + (p > n ? p : n);
}
