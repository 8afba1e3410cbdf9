/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-client-sampling.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"

void worker_client_sampling_fini(struct worker_client_sampling_parts *parts)
{
	free(parts->rows);
	free(parts->biases);
	free(parts->breakers);
	*parts = (struct worker_client_sampling_parts){0};
}

static int must_check fill_lists(const struct worker_client_sampling *s,
	struct worker_client_sampling_parts *parts, struct err *ret_err)
{
	parts->rows = calloc((size_t)s->n_biases + 1, sizeof(*parts->rows));
	parts->biases = calloc((size_t)s->n_biases + 1, sizeof(Wk__LogitBias *));
	parts->breakers = calloc((size_t)s->n_dry_breakers + 1, sizeof(*parts->breakers));
	if (!parts->rows || !parts->biases || !parts->breakers)
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	for (uint32_t i = 0; i < s->n_biases; i++) {
		wk__logit_bias__init(&parts->rows[i]);
		parts->rows[i].id = s->biases[i].id;
		parts->rows[i].bias = s->biases[i].bias;
		parts->biases[i] = &parts->rows[i];
	}
	for (uint32_t i = 0; i < s->n_dry_breakers; i++)
		parts->breakers[i] = (ProtobufCBinaryData){
			.data = (uint8_t *)s->dry_breakers[i], .len = strlen(s->dry_breakers[i])};
	parts->sampling.logit_bias = parts->biases;
	parts->sampling.n_logit_bias = s->n_biases;
	parts->sampling.dry_breakers = parts->breakers;
	parts->sampling.n_dry_breakers = s->n_dry_breakers;
	return 0;
}

int worker_client_sampling_fill(const struct worker_client_generate *g,
	struct worker_client_sampling_parts *parts, struct err *ret_err, Wk__Generate *ret_generate)
{
	const struct worker_client_sampling *s = &g->sampling;
	Wk__Sampling *m = &parts->sampling;

	wk__sampling__init(m);
	int r = fill_lists(s, parts, ret_err);
	if (r)
		return r;
	m->temperature = s->temperature;
	m->top_k = s->top_k;
	m->top_p = s->top_p;
	m->min_p = s->min_p;
	m->typical_p = s->typical_p;
	m->repeat_penalty = s->repeat_penalty;
	m->frequency_penalty = s->frequency_penalty;
	m->presence_penalty = s->presence_penalty;
	m->repeat_last_n = s->repeat_last_n;
	m->dry_multiplier = s->dry_multiplier;
	m->dry_base = s->dry_base;
	m->dry_allowed_length = s->dry_allowed_length;
	m->dry_last_n = s->dry_last_n;
	m->seed = s->seed;
	m->has_seed = s->has_seed;
	ret_generate->sampling = m;
	ret_generate->n = g->n;
	ret_generate->logprobs = g->n_logprobs;
	ret_generate->stop_tokens = (uint32_t *)g->stop_tokens;
	ret_generate->n_stop_tokens = g->n_stop_tokens;
	return 0;
}

/* Text of no bytes is "", never NULL. */
static const char *get_text(const ProtobufCBinaryData *b)
{
	return b->len > 0 ? (const char *)b->data : "";
}

int worker_client_sampling_read_token(const Wk__Token *m, uint32_t n_completions,
	struct err *ret_err, struct worker_client_token *ret_token)
{
	struct worker_client_token t = {
		.index = m->index,
		.id = m->id,
		.text = get_text(&m->text),
		.n_bytes = (uint32_t)m->text.len,
		.logprob = m->logprob,
		.n_top = (uint32_t)m->n_top,
	};

	if (m->index >= n_completions)
		return err_set(ret_err, EPROTO,
			"worker: token: index: expected less than %u, found %u", n_completions,
			m->index);
	if (m->n_top > WORKER_CLIENT_MAX_LOGPROBS)
		return err_set(ret_err, EPROTO,
			"worker: token: expected at most %d likeliest, found %zu",
			WORKER_CLIENT_MAX_LOGPROBS, m->n_top);
	for (size_t i = 0; i < m->n_top; i++)
		t.top[i] = (struct worker_client_logprob){
			.id = m->top[i]->id,
			.logprob = m->top[i]->logprob,
			.text = get_text(&m->top[i]->text),
			.n_bytes = (uint32_t)m->top[i]->text.len,
		};
	*ret_token = t;
	return 0;
}
