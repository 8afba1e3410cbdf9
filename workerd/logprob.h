/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LOGPROB_H
#define WORKERD_LOGPROB_H

/*
 * Log probabilities of tokens: the full softmax of the logits as the model gave them,
 *
 *	logprob[t] = logit[t] - log(sum over i of exp(logit[i]))
 *
 * before temperature, mask, bias, penalties or filters. Logits that are not finite have no part in
 * it. Pure.
 */
#include <stdint.h>

enum { LOGPROB_MAX_TOP = 20 };

struct logprob {
	uint32_t id;
	float logprob; /* natural logarithm; -INFINITY where the logit is not finite */
};

struct logprob_list {
	struct logprob own;                  /* of the token asked for */
	struct logprob top[LOGPROB_MAX_TOP]; /* [n_top], best first, of equals the lowest id */
	uint32_t n_top;
};

/* logits: [n_vocab] f32. n_top: at most LOGPROB_MAX_TOP; fewer come where fewer are finite. */
void logprob_find(const float *logits, uint32_t n_vocab, uint32_t token, uint32_t n_top,
	struct logprob_list *ret_list);

#endif
