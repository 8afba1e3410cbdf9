/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-sampling.h"

#include <errno.h>

#include "proto/util/err.h"
#include "workerd/message.h"

static int decode_biases(const Wk__Sampling *s, struct message_generate *m, struct err *ret_err)
{
	if (s->n_logit_bias > SAMPLER_MAX_BIASES)
		return err_set(ret_err, EINVAL, "logit_bias: expected at most %d, found %zu",
			SAMPLER_MAX_BIASES, s->n_logit_bias);
	if (!s->n_logit_bias)
		return 0;
	m->biases = calloc(s->n_logit_bias, sizeof(*m->biases));
	if (!m->biases)
		return -ENOMEM;
	for (size_t i = 0; i < s->n_logit_bias; i++)
		m->biases[i] = (struct sampler_bias){
			.id = s->logit_bias[i]->id, .bias = s->logit_bias[i]->bias};
	m->sampling.biases = m->biases;
	m->sampling.n_biases = (uint32_t)s->n_logit_bias;
	return 0;
}

static int decode_breakers(const Wk__Sampling *s, struct message_generate *m, struct err *ret_err)
{
	size_t n = s->n_dry_breakers;

	m->sampling.dry.has_breakers = n > 0;
	if (n > DRY_MAX_BREAKERS)
		return err_set(ret_err, EINVAL, "dry_breakers: expected at most %d, found %zu",
			DRY_MAX_BREAKERS, n);
	if (n == 0 || (n == 1 && !s->dry_breakers[0].len))
		return 0;
	m->breakers = calloc(n, sizeof(*m->breakers));
	if (!m->breakers)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		const ProtobufCBinaryData *b = &s->dry_breakers[i];

		if (!b->len || b->len > DRY_MAX_BREAKER_BYTES)
			return err_set(ret_err, EINVAL,
				"dry_breakers[%zu]: expected 1 to %d bytes, found %zu", i,
				DRY_MAX_BREAKER_BYTES, b->len);
		m->breakers[i] = (struct dry_breaker){
			.bytes = (const char *)b->data, .n_bytes = (uint32_t)b->len};
	}
	m->sampling.dry.breakers = m->breakers;
	m->sampling.dry.n_breakers = (uint32_t)n;
	return 0;
}

static int decode_sampling(const Wk__Sampling *s, struct message_generate *m, struct err *ret_err)
{
	m->sampling = (struct sampler_params){
		.temperature = s->temperature,
		.top_k = s->top_k,
		.top_p = s->top_p,
		.min_p = s->min_p,
		.typical_p = s->typical_p,
		.repeat_penalty = s->repeat_penalty,
		.frequency_penalty = s->frequency_penalty,
		.presence_penalty = s->presence_penalty,
		.repeat_last_n = s->repeat_last_n,
		.dry = {.multiplier = s->dry_multiplier,
			.base = s->dry_base,
			.allowed_length = s->dry_allowed_length,
			.last_n = s->dry_last_n},
		.seed = s->seed,
	};
	m->has_seed = s->has_seed;
	int r = decode_biases(s, m, ret_err);
	return r ? r : decode_breakers(s, m, ret_err);
}

int rpc_sampling_decode(
	const Wk__Generate *g, struct message_generate *ret_generate, struct err *ret_err)
{
	if (g->logprobs > LOGPROB_MAX_TOP)
		return err_set(ret_err, EINVAL, "logprobs: expected at most %d, found %u",
			LOGPROB_MAX_TOP, g->logprobs);
	if (g->n_stop_tokens > MESSAGE_MAX_STOP_TOKENS)
		return err_set(ret_err, EINVAL, "stop_tokens: expected at most %d, found %zu",
			MESSAGE_MAX_STOP_TOKENS, g->n_stop_tokens);
	if (g->n > MESSAGE_MAX_COMPLETIONS)
		return err_set(ret_err, EINVAL, "n: expected at most %d, found %u",
			MESSAGE_MAX_COMPLETIONS, g->n);
	ret_generate->n_completions = g->n;
	ret_generate->n_logprobs = g->logprobs;
	ret_generate->stop_tokens = g->stop_tokens;
	ret_generate->n_stop_tokens = (uint32_t)g->n_stop_tokens;
	return g->sampling ? decode_sampling(g->sampling, ret_generate, ret_err) : 0;
}

void rpc_sampling_fill_token(
	const struct message_token *t, Wk__Logprob *rows, Wk__Logprob **list, Wk__Token *ret_token)
{
	for (uint32_t i = 0; i < t->n_top; i++) {
		rows[i] = (Wk__Logprob)WK__LOGPROB__INIT;
		rows[i].id = t->top[i].id;
		rows[i].logprob = t->top[i].logprob;
		rows[i].text.data = (uint8_t *)t->top[i].bytes;
		rows[i].text.len = t->top[i].n_bytes;
		list[i] = &rows[i];
	}
	ret_token->index = t->index;
	ret_token->logprob = t->logprob;
	ret_token->top = list;
	ret_token->n_top = t->n_top;
}
