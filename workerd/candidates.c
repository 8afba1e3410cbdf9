/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/candidates.h"

#include <errno.h>
#include <math.h>

/* A nucleus, mostly small, is looked for among so many, then in ever more. */
enum { FIRST_NUCLEUS = 128, NUCLEUS_GROWTH = 8 };

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

/* A heap becomes a list, best first. */
static void sort_heap(struct candidate *heap, uint32_t n)
{
	while (n > 1) {
		struct candidate last = heap[--n];

		heap[n] = heap[0];
		sink(heap, n, last);
	}
}

void candidates_take_best(struct candidates *c, const float *logits, uint32_t n)
{
	struct candidate *heap = c->list;
	uint32_t n_heap = 0;

	for (uint32_t i = 0; i < c->n_vocab; i++) {
		struct candidate one = {.logit = logits[i], .key = logits[i], .id = i};

		/* Most logits lose against the worst that was kept, and end here. */
		if (n_heap == n && !(one.key > heap[0].key))
			continue;
		if (!isfinite(one.logit))
			continue;
		if (n_heap < n)
			rise(heap, n_heap++, one);
		else
			sink(heap, n, one);
	}
	sort_heap(heap, n_heap);
	c->n = n_heap;
	c->is_sorted = true;
}

void candidates_take_all(struct candidates *c, const float *logits)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_vocab; i++)
		if (isfinite(logits[i]))
			c->list[n++] =
				(struct candidate){.logit = logits[i], .key = logits[i], .id = i};
	c->n = n;
	c->is_sorted = false;
}

/* Moves the n best of list[0..n_all) by their keys to its front, best first. */
static void select_front(struct candidate *list, uint32_t n_all, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		rise(list, i, list[i]);
	for (uint32_t i = n; i < n_all; i++) {
		struct candidate one = list[i];

		if (!is_worse(&list[0], &one))
			continue;
		list[i] = list[0];
		sink(list, n, one);
	}
	sort_heap(list, n);
}

static float find_largest(const struct candidates *c)
{
	float largest = c->list[0].logit;

	for (uint32_t i = 1; i < c->n && !c->is_sorted; i++)
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

/* Leaves the fewest best by key whose weights reach wanted, best first; all where none do. */
static void cut_behind(struct candidates *c, double wanted, bool is_in_order)
{
	for (uint64_t n_best = FIRST_NUCLEUS;; n_best *= NUCLEUS_GROWTH) {
		uint32_t n = is_in_order || n_best > c->n ? c->n : (uint32_t)n_best;
		double reached = 0;

		if (!is_in_order)
			select_front(c->list, c->n, n);
		for (uint32_t i = 0; i < n; i++) {
			reached += (double)c->list[i].weight;
			if (reached >= wanted) {
				c->n = i + 1;
				return;
			}
		}
		if (n == c->n)
			return;
	}
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
	cut_behind(c, (double)share * sum, false);
	c->is_sorted = false;
	for (uint32_t i = 0; i < c->n; i++)
		c->list[i].key = c->list[i].logit;
}

void candidates_cut_top_p(struct candidates *c, float share)
{
	double sum = weigh(c, find_largest(c), 1);

	cut_behind(c, (double)share * sum, c->is_sorted);
	c->is_sorted = true;
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
