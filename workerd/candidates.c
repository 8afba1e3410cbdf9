/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/candidates.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>

int candidates_init(struct candidates *c, uint32_t n_vocab)
{
	c->list = calloc(n_vocab, sizeof(*c->list));
	c->n_vocab = n_vocab;
	return c->list ? 0 : -ENOMEM;
}

void candidates_fini(struct candidates *c)
{
	free(c->list);
	*c = (struct candidates){0};
}

/* Does a come behind b? No two candidates are equal. */
static bool is_worse(const struct candidate *a, const struct candidate *b)
{
	return a->key != b->key ? a->key < b->key : a->id > b->id;
}

/* Lets c sink from the top of heap[0..n), whose top is the worst. */
static void sink(struct candidate *heap, uint32_t n, struct candidate c)
{
	uint64_t at = 0, child;

	while ((child = 2 * at + 1) < n) {
		if (child + 1 < n && is_worse(&heap[child + 1], &heap[child]))
			child++;
		if (!is_worse(&heap[child], &c))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = c;
}

static void rise(struct candidate *heap, uint64_t at, struct candidate c)
{
	for (; at && is_worse(&c, &heap[(at - 1) / 2]); at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = c;
}

/* One more of at most n, from the lowest id to the highest: of equals the earlier one stays. */
static void keep(struct candidates *c, uint32_t n, struct candidate one)
{
	/* Most logits lose against the worst that was kept, and end here. */
	if (c->n == n && !(one.key > c->list[0].key))
		return;
	if (!isfinite(one.logit))
		return;
	if (c->n < n)
		rise(c->list, c->n++, one);
	else
		sink(c->list, n, one);
}

/* Best first: what is drawn does not depend on what else was looked at. */
static void sort(struct candidates *c)
{
	for (uint32_t n = c->n; n > 1; n--) {
		struct candidate worst = c->list[0];

		sink(c->list, n - 1, c->list[n - 1]);
		c->list[n - 1] = worst;
	}
}

void candidates_take_best(struct candidates *c, const float *logits, uint32_t n)
{
	c->n = 0;
	for (uint32_t i = 0; i < c->n_vocab; i++)
		keep(c, n, (struct candidate){.logit = logits[i], .key = logits[i], .id = i});
	sort(c);
}

void candidates_take_best_of(
	struct candidates *c, const float *logits, const uint32_t *ids, uint32_t n_ids, uint32_t n)
{
	c->n = 0;
	for (uint32_t i = 0; i < n_ids; i++)
		keep(c, n,
			(struct candidate){
				.logit = logits[ids[i]], .key = logits[ids[i]], .id = ids[i]});
	sort(c);
}

void candidates_take_all(struct candidates *c, const float *logits)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_vocab; i++)
		if (isfinite(logits[i]))
			c->list[n++] =
				(struct candidate){.logit = logits[i], .key = logits[i], .id = i};
	c->n = n;
}

static float find_largest(const struct candidates *c)
{
	float largest = c->list[0].logit;

	for (uint32_t i = 1; i < c->n; i++)
		if (c->list[i].logit > largest)
			largest = c->list[i].logit;
	return largest;
}

/* Weights relative to the largest logit, whose weight is 1; returns their sum. */
static double weigh(struct candidates *c, float largest, float temperature)
{
	double sum = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		struct candidate *one = &c->list[i];

		one->weight = expf((one->logit - largest) / temperature);
		sum += (double)one->weight;
	}
	return sum;
}

static void swap(struct candidate *a, struct candidate *b)
{
	struct candidate c = *a;

	*a = *b;
	*b = c;
}

/*
 * Moves the best by key to the front, as few as have weights of wanted together, and drops the
 * others. Quickselect (Hoare, 1961) with a weight in the place of a rank: no sort, and on average
 * linear. The last one to stay is in list[first..end); what stands before it has been subtracted.
 */
static void cut_behind(struct candidates *c, double wanted)
{
	struct candidate *list = c->list;
	uint32_t first = 0, end = c->n, random = 1;

	while (end - first > 1) {
		random = random * 1664525u + 1013904223u;
		uint32_t at = first + (uint32_t)((uint64_t)random * (end - first) >> 32);
		uint32_t n_better = first;
		double weight = 0;

		swap(&list[at], &list[end - 1]);
		const struct candidate pivot = list[end - 1];
		for (uint32_t i = first; i < end - 1; i++) {
			if (is_worse(&list[i], &pivot))
				continue;
			weight += (double)list[i].weight;
			swap(&list[i], &list[n_better++]);
		}
		swap(&list[n_better], &list[end - 1]);
		if (weight >= wanted) {
			end = n_better;
		} else if (weight + (double)pivot.weight >= wanted) {
			end = n_better + 1;
			break;
		} else {
			wanted -= weight + (double)pivot.weight;
			first = n_better + 1;
		}
	}
	c->n = end;
}

void candidates_cut_typical(struct candidates *c, float share)
{
	float largest = find_largest(c);
	double sum = weigh(c, largest, 1), log_sum = log(sum), entropy = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct candidate *one = &c->list[i];

		entropy -= (double)one->weight / sum *
			   ((double)one->logit - (double)largest - log_sum);
	}
	for (uint32_t i = 0; i < c->n; i++) {
		double log_p = (double)c->list[i].logit - (double)largest - log_sum;

		c->list[i].key = (float)-fabs(entropy + log_p);
	}
	cut_behind(c, (double)share * sum);
	for (uint32_t i = 0; i < c->n; i++)
		c->list[i].key = c->list[i].logit;
}

void candidates_cut_top_p(struct candidates *c, float share)
{
	double sum = weigh(c, find_largest(c), 1);

	cut_behind(c, (double)share * sum);
}

void candidates_cut_min_p(struct candidates *c, float share)
{
	float largest = find_largest(c), least = largest + logf(share);
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n; i++)
		if (c->list[i].logit >= least || c->list[i].logit == largest)
			c->list[n++] = c->list[i];
	c->n = n;
}

uint32_t candidates_draw(struct candidates *c, float temperature, double unit)
{
	double left = unit * weigh(c, find_largest(c), temperature);
	uint32_t last = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		if (c->list[i].weight == 0)
			continue;
		last = i;
		left -= (double)c->list[i].weight;
		if (left < 0)
			break;
	}
	return c->list[last].id;
}
