/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/logprob.h"

#include <assert.h>
#include <math.h>

/* Puts a logit into its place among the best; most are worse than the last of them. */
static void keep(struct logprob_list *list, uint32_t n_top, uint32_t id, float logit)
{
	uint32_t at = list->n_top;

	if (at == n_top && (n_top == 0 || !(logit > list->top[at - 1].logprob)))
		return;
	if (at < n_top)
		list->n_top++;
	else
		at--;
	for (; at && logit > list->top[at - 1].logprob; at--)
		list->top[at] = list->top[at - 1];
	list->top[at] = (struct logprob){.id = id, .logprob = logit};
}

void logprob_find(const float *logits, uint32_t n_vocab, uint32_t token, uint32_t n_top,
	struct logprob_list *ret_list)
{
	struct logprob_list list = {.own = {.id = token, .logprob = -INFINITY}};
	float largest = -INFINITY;
	double sum = 0;

	assert(n_top <= LOGPROB_MAX_TOP);
	for (uint32_t i = 0; i < n_vocab; i++) {
		if (!isfinite(logits[i]))
			continue;
		if (logits[i] > largest)
			largest = logits[i];
		keep(&list, n_top, i, logits[i]);
	}
	for (uint32_t i = 0; i < n_vocab; i++)
		if (isfinite(logits[i]))
			sum += (double)expf(logits[i] - largest);
	double shift = (double)largest + log(sum);
	if (token < n_vocab && isfinite(logits[token]))
		list.own.logprob = (float)((double)logits[token] - shift);
	for (uint32_t i = 0; i < list.n_top; i++)
		list.top[i].logprob = (float)((double)list.top[i].logprob - shift);
	*ret_list = list;
}
