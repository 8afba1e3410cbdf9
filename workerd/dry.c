/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/dry.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"

/* llama.cpp's defaults. */
#define DEFAULT_BASE 1.75f
enum { DEFAULT_ALLOWED_LENGTH = 2 };

/* Far beyond any logit, and far from overflow: what is penalised must stay a number. */
#define MAX_PENALTY 1e30

static const struct dry_breaker default_breakers[] = {{"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};

enum { KEPT_BYTES = DRY_MAX_BREAKER_BYTES - 1, TAIL_BYTES = 1024 };

struct dry {
	struct dry_params params;
	struct dry_text text;
	uint32_t n_vocab;
	uint32_t n_window; /* tokens it looks back on */
	uint32_t *lengths; /* [n_window] see dry_count */
	uint32_t *longest; /* [n_vocab] repetition that a token would prolong; 0 between calls */
	/* What breakers were looked for in: history[0..n_seen), the end of whose text is tail. */
	uint64_t n_seen;
	uint32_t last_seen; /* history[n_seen - 1] */
	uint64_t n_broken;  /* history[0..n_broken) ends with the newest breaker */
	bool is_last_byte[256];
	uint32_t n_tail;
	char tail[TAIL_BYTES];
};

static int check(const struct dry_params *p, struct err *ret_err)
{
	if (!(p->multiplier >= 0 && p->multiplier <= FLT_MAX))
		return err_set(ret_err, EINVAL,
			"dry_multiplier: expected a finite number of at least 0, found %g",
			(double)p->multiplier);
	if (!(p->base >= 1 && p->base <= FLT_MAX))
		return err_set(ret_err, EINVAL,
			"dry_base: expected a finite number of at least 1, or 0, found %g",
			(double)p->base);
	return 0;
}

static struct dry *make(const struct dry_params *p, uint32_t n_vocab, uint32_t n_ctx)
{
	struct dry *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->params = *p;
	d->n_vocab = n_vocab;
	d->n_window = p->last_n && p->last_n < n_ctx ? p->last_n : n_ctx;
	d->lengths = calloc((size_t)d->n_window + 1, sizeof(*d->lengths));
	d->longest = calloc(n_vocab, sizeof(*d->longest));
	return d->lengths && d->longest ? d : dry_free(d);
}

int dry_new(const struct dry_params *params, uint32_t n_vocab, uint32_t n_ctx,
	const struct dry_text *text, struct err *ret_err, struct dry **ret_dry)
{
	struct dry_params p = *params;

	if (p.base == 0)
		p.base = DEFAULT_BASE;
	if (p.allowed_length == 0)
		p.allowed_length = DEFAULT_ALLOWED_LENGTH;
	if (!p.has_breakers && p.n_breakers == 0) {
		p.breakers = default_breakers;
		p.n_breakers = ARRAY_SIZE(default_breakers);
	}
	int r = check(&p, ret_err);
	if (r)
		return r;
	struct dry *d = make(&p, n_vocab, n_ctx);
	if (!d)
		return -ENOMEM;
	if (text)
		d->text = *text;
	for (uint32_t i = 0; i < p.n_breakers; i++)
		d->is_last_byte[(uint8_t)p.breakers[i].bytes[p.breakers[i].n_bytes - 1]] = true;
	*ret_dry = d;
	return 0;
}

struct dry *dry_free(struct dry *d)
{
	if (d) {
		free(d->lengths);
		free(d->longest);
		free(d);
	}
	return NULL;
}

static void get_text(
	const struct dry *d, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	*ret_n_bytes = 0;
	if (d->text.get)
		(void)d->text.get(d->text.userdata, token, ret_bytes, ret_n_bytes);
}

/* Does the text with this byte end in a breaker? */
static bool add_byte(struct dry *d, char byte)
{
	if (d->n_tail == TAIL_BYTES) {
		memmove(d->tail, d->tail + TAIL_BYTES - KEPT_BYTES, KEPT_BYTES);
		d->n_tail = KEPT_BYTES;
	}
	d->tail[d->n_tail++] = byte;
	if (!d->is_last_byte[(uint8_t)byte])
		return false;
	for (uint32_t i = 0; i < d->params.n_breakers; i++) {
		const struct dry_breaker *b = &d->params.breakers[i];

		if (b->n_bytes <= d->n_tail &&
			memcmp(d->tail + d->n_tail - b->n_bytes, b->bytes, b->n_bytes) == 0)
			return true;
	}
	return false;
}

/* Looks for breakers in what is new of the history. */
static void find_breakers(struct dry *d, const uint32_t *history, uint64_t n_history)
{
	/* Tokens went out of its middle: a full context was shifted. */
	if (n_history < d->n_seen || (d->n_seen && history[d->n_seen - 1] != d->last_seen)) {
		d->n_seen = d->n_broken = 0;
		d->n_tail = 0;
	}
	for (; d->n_seen < n_history; d->n_seen++) {
		const char *bytes = NULL;
		uint32_t n_bytes;
		bool is_broken = false;

		get_text(d, history[d->n_seen], &bytes, &n_bytes);
		for (uint32_t i = 0; i < n_bytes; i++)
			is_broken |= add_byte(d, bytes[i]);
		if (is_broken)
			d->n_broken = d->n_seen + 1;
		d->last_seen = history[d->n_seen];
	}
}

static bool has_breaker(const struct dry *d, uint32_t token)
{
	const char *bytes = NULL;
	uint32_t n_bytes;

	get_text(d, token, &bytes, &n_bytes);
	for (uint32_t i = 0; i < d->params.n_breakers && n_bytes; i++)
		if (memmem(bytes, n_bytes, d->params.breakers[i].bytes,
			    d->params.breakers[i].n_bytes))
			return true;
	return false;
}

/*
 * lengths[k], 0 < k < n: how many of the newest tokens also stand before newest[-k], that one
 * included. newest[-k] is the history read backwards, so this is its Z-function: [left, right) is
 * the furthest stretch that was compared already, and equals what newest begins with.
 */
static void dry_count(struct dry *d, const uint32_t *newest, int64_t n)
{
	int64_t left = 0, right = 0;

	for (int64_t k = 1; k < n; k++) {
		int64_t length = 0;

		if (k < right) {
			length = d->lengths[k - left];
			if (length > right - k)
				length = right - k;
		}
		while (k + length < n && newest[-length] == newest[-k - length])
			length++;
		d->lengths[k] = (uint32_t)length;
		if (k + length > right) {
			left = k;
			right = k + length;
		}
	}
}

void dry_apply(struct dry *d, const uint32_t *history, uint64_t n_history, float *logits)
{
	const struct dry_params *p = &d->params;
	int64_t n = (int64_t)(n_history < d->n_window ? n_history : d->n_window);

	find_breakers(d, history, n_history);
	uint64_t n_most = n_history - d->n_broken;
	if (n_most < p->allowed_length || n <= p->allowed_length)
		return;
	const uint32_t *newest = history + n_history - 1;
	dry_count(d, newest, n);
	for (int64_t k = 1; k < n; k++) {
		uint32_t next = newest[1 - k];
		uint32_t length = d->lengths[k] < n_most ? d->lengths[k] : (uint32_t)n_most;

		if (next < d->n_vocab && length >= p->allowed_length && length > d->longest[next])
			d->longest[next] = length;
	}
	for (int64_t k = 1; k < n; k++) {
		uint32_t next = newest[1 - k];

		if (next >= d->n_vocab || !d->longest[next])
			continue;
		double penalty = (double)p->multiplier *
				 pow((double)p->base, d->longest[next] - p->allowed_length);
		d->longest[next] = 0;
		if (!has_breaker(d, next))
			logits[next] -= (float)(penalty < MAX_PENALTY ? penalty : MAX_PENALTY);
	}
}
