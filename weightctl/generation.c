/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/generation.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

struct sink {
	struct generation_list *list;
	bool prints;
	int result; /* of what stopped it, or 0 */
};

static void fini(struct generation *g)
{
	free(g->text);
	free(g->ids);
	json_decref(g->logprobs);
}

void generation_list_fini(struct generation_list *list)
{
	for (uint32_t i = 0; i < list->n; i++)
		fini(&list->rows[i]);
	*list = (struct generation_list){0};
}

/* Room for n more elements behind n_used. */
static int grow(void **array, uint64_t n_used, uint64_t n, uint64_t size, uint64_t *n_room)
{
	if (*n_room - n_used >= n)
		return 0;
	uint64_t n_grown = 2 * n_used + n + 256;
	void *grown = reallocarray(*array, n_grown, size);
	if (!grown)
		return -ENOMEM;
	*array = grown;
	*n_room = n_grown;
	return 0;
}

/* JSON has no infinity: null. */
static json_t *pack_logprob(float logprob)
{
	return isfinite(logprob) ? json_real((double)logprob) : json_null();
}

static int add_logprobs(struct generation *g, const struct worker_client_token *token)
{
	json_t *top = json_array();

	if (!g->logprobs)
		g->logprobs = json_array();
	for (uint32_t i = 0; i < token->n_top; i++) {
		const struct worker_client_logprob *t = &token->top[i];

		/* A failure leaves a shorter array. */
		(void)json_array_append_new(
			top, json_pack("{s:I, s:o, s:o}", "id", (json_int_t)t->id, "logprob",
				     pack_logprob(t->logprob), "text",
				     output_string(t->text, t->n_bytes)));
	}
	if (json_array_size(top) < token->n_top) {
		json_decref(top);
		return -ENOMEM;
	}
	json_t *row = json_pack("{s:I, s:o, s:o}", "id", (json_int_t)token->id, "logprob",
		pack_logprob(token->logprob), "top", top);
	return json_array_append_new(g->logprobs, row) < 0 ? -ENOMEM : 0;
}

static bool take_token(const struct worker_client_token *token, void *userdata)
{
	struct sink *sink = userdata;
	struct generation *g = &sink->list->rows[token->index];
	uint32_t n_bytes = token->n_bytes;

	sink->result = grow((void **)&g->ids, g->n_ids, 1, sizeof(*g->ids), &g->n_ids_room);
	if (sink->result == 0)
		sink->result = grow((void **)&g->text, g->n_bytes, n_bytes, 1, &g->n_room);
	if (sink->result == 0 && token->n_top)
		sink->result = add_logprobs(g, token);
	if (sink->result < 0)
		return false;
	g->ids[g->n_ids++] = token->id;
	if (n_bytes)
		memcpy(g->text + g->n_bytes, token->text, n_bytes);
	g->n_bytes += n_bytes;
	if (!sink->prints || n_bytes == 0)
		return true;
	fwrite(token->text, 1, n_bytes, stdout);
	return fflush(stdout) == 0; /* nobody reads any more: cancel */
}

/* The text may end in the middle, or be none at all: without this line nobody would know why. */
static void tell_full_context(const struct options *o, const struct worker_client *c,
	const struct worker_client_finished *f)
{
	if (f->reason == WORKER_CLIENT_LENGTH &&
		(o->n_predict == 0 || f->generated_tokens < o->n_predict))
		fprintf(stderr, "weightctl: stopped: the context of %" PRIu32 " tokens is full\n",
			worker_client_get_info(c)->n_ctx);
}

/* *ret_text is allocated; NULL: there is no constraint. */
static int read_constraint(const struct options *o, struct err *ret_err, char **ret_text,
	struct worker_client_generate *g)
{
	const char *schema = o->json_schema;
	int r;

	if (!o->grammar && !schema)
		return 0;
	if (schema && schema[0] == '{')
		r = input_read(schema, ret_err, ret_text, &g->n_constraint_bytes);
	else
		r = input_read_file(
			schema ? schema : o->grammar, ret_err, ret_text, &g->n_constraint_bytes);
	if (r == 0)
		g->constraint = *ret_text;
	g->is_schema = schema != NULL;
	return r;
}

static int judge(const struct worker_client_finished *f, struct err *ret_err)
{
	switch (f->reason) {
	case WORKER_CLIENT_STOP:
	case WORKER_CLIENT_LENGTH: return 0;
	case WORKER_CLIENT_CANCELLED:
		return err_set(ret_err, ECANCELED, "the worker cancelled the generation");
	default: return err_set(ret_err, EIO, "%s", f->text);
	}
}

static void print_list(const struct generation_list *list)
{
	for (uint32_t i = 0; i < list->n; i++) {
		if (i)
			putchar('\n');
		if (list->rows[i].n_bytes)
			fwrite(list->rows[i].text, 1, list->rows[i].n_bytes, stdout);
		putchar('\n');
	}
}

int generation_run(const struct options *o, struct worker_client *c, uint64_t session,
	struct err *ret_err, struct generation_list *ret_list)
{
	struct worker_client_generate g = {
		.n_predict = o->n_predict,
		.sampling = o->sampling,
		.stop_tokens = o->stop_tokens,
		.n_stop_tokens = o->n_stop_tokens,
		.n_logprobs = o->n_logprobs,
		.context_shift = o->context_shift,
		.n_keep = o->n_keep,
		.n = o->n,
	};
	struct worker_client_finished finished[WORKER_CLIENT_MAX_COMPLETIONS];
	struct sink sink = {.list = ret_list, .prints = !o->json && o->n == 1};
	_cleanup_(cleanup_free)
	char *constraint = NULL;
	int r = read_constraint(o, ret_err, &constraint, &g);

	if (r < 0)
		return r;
	ret_list->n = o->n;
	r = worker_client_generate(c, session, &g, take_token, &sink, ret_err, finished);
	if (sink.prints && (r == 0 || ret_list->rows[0].n_bytes))
		putchar('\n');
	if (r < 0)
		return r;
	if (sink.result < 0)
		return sink.result;
	if (!o->json && o->n > 1)
		print_list(ret_list);
	if (output_flush(ret_err) < 0)
		return -EIO;
	for (uint32_t i = 0; i < o->n && r == 0; i++) {
		ret_list->rows[i].finished = finished[i];
		tell_full_context(o, c, &finished[i]);
		r = judge(&finished[i], ret_err);
	}
	return r;
}

static double rate(uint64_t n_tokens, uint64_t ns)
{
	return ns ? (double)n_tokens * 1e9 / (double)ns : 0;
}

json_t *generation_json(const struct generation *g)
{
	const struct worker_client_finished *f = &g->finished;
	uint32_t n_computed = f->prompt_tokens - f->cached_tokens;
	uint32_t n_behind_first = f->generated_tokens ? f->generated_tokens - 1 : 0;
	char seed[24];

	/* A string: more than the 53 bits that every JSON reader has. */
	snprintf(seed, sizeof(seed), "%" PRIu64, f->seed);
	/* "logprobs" is left out where there are none. */
	return json_pack("{s:o, s:o, s:I, s:I, s:I, s:s, s:s, s:{s:f, s:f, s:f, s:f}, s:O*}",
		"text", output_string(g->text, g->n_bytes), "tokens", output_ids(g->ids, g->n_ids),
		"prompt_tokens", (json_int_t)f->prompt_tokens, "cached_tokens",
		(json_int_t)f->cached_tokens, "generated_tokens", (json_int_t)f->generated_tokens,
		"finish_reason", f->reason == WORKER_CLIENT_STOP ? "stop" : "length", "seed", seed,
		"timings", "prompt_ms", (double)f->prompt_ns / 1e6, "generate_ms",
		(double)f->generate_ns / 1e6, "prompt_tokens_per_second",
		rate(n_computed, f->prompt_ns), "generate_tokens_per_second",
		rate(n_behind_first, f->generate_ns), "logprobs", g->logprobs);
}

json_t *generation_list_json(const struct generation_list *list)
{
	json_t *rows;

	if (list->n == 1)
		return generation_json(&list->rows[0]);
	rows = json_array();
	for (uint32_t i = 0; rows && i < list->n; i++) {
		if (json_array_append_new(rows, generation_json(&list->rows[i])) < 0) {
			json_decref(rows);
			return NULL;
		}
	}
	return json_pack("{s:o}", "completions", rows);
}
