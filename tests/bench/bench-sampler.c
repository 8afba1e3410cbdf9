/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What choosing a token takes, beside sorting all its logits. Each row is the median of several
 * rounds with the fastest and slowest.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "workerd/logprob.h"
#include "workerd/sampler.h"

enum { N_VOCAB = 150000, N_CTX = 128 << 10, N_ROUNDS = 25 };

static float logits[N_VOCAB], sorted[N_VOCAB];
static uint32_t history[N_CTX];

static double next_unit(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return (double)(x >> 11) * 0x1p-53;
}

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x < y) - (x > y);
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void print_row(const char *what, uint64_t ns[N_ROUNDS])
{
	qsort(ns, N_ROUNDS, sizeof(*ns), compare_times);
	printf("# %-40s %9.1f us (%.1f to %.1f)\n", what, (double)ns[N_ROUNDS / 2] * 1e-3,
		(double)ns[0] * 1e-3, (double)ns[N_ROUNDS - 1] * 1e-3);
}

static void bench_pick(const char *what, const struct sampler_params *p, uint64_t n_history)
{
	struct sampler *s = NULL;
	struct err e = ERR_NULL;
	uint64_t ns[N_ROUNDS];

	if (sampler_new(p, N_VOCAB, N_CTX, NULL, &e, &s)) {
		fprintf(stderr, "%s: %s\n", what, e.text);
		exit(1);
	}
	for (int i = 0; i < N_ROUNDS; i++) {
		uint64_t start = clock_now_ns();
		uint32_t token;

		if (sampler_pick(s, logits, NULL, history, n_history, &token))
			exit(1);
		ns[i] = clock_now_ns() - start;
	}
	print_row(what, ns);
	sampler_free(s);
}

static void bench_others(void)
{
	uint64_t ns[N_ROUNDS];

	for (int i = 0; i < N_ROUNDS; i++) {
		struct logprob_list list;
		uint64_t start = clock_now_ns();

		logprob_find(logits, N_VOCAB, 7, LOGPROB_MAX_TOP, &list);
		ns[i] = clock_now_ns() - start;
	}
	print_row("20 log probabilities", ns);
	for (int i = 0; i < N_ROUNDS; i++) {
		memcpy(sorted, logits, sizeof(sorted));
		uint64_t start = clock_now_ns();

		qsort(sorted, N_VOCAB, sizeof(*sorted), compare_floats);
		ns[i] = clock_now_ns() - start;
	}
	print_row("sorting all logits (qsort)", ns);
}

int main(void)
{
	static const struct {
		const char *what;
		struct sampler_params params;
		uint64_t n_history;
	} rows[] = {
		{"greedy", {.temperature = 0}, 1000},
		{"temperature alone", {.temperature = 1}, 1000},
		{"top-k 40", {.temperature = 1, .top_k = 40}, 1000},
		{"top-k 40, top-p 0.95, min-p 0.05",
			{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}, 1000},
		{"top-p 0.95", {.temperature = 1, .top_p = 0.95f}, 1000},
		{"typical-p 0.9", {.temperature = 1, .typical_p = 0.9f}, 1000},
		{"all penalties",
			{.temperature = 1,
				.top_k = 40,
				.repeat_penalty = 1.1f,
				.frequency_penalty = 0.1f,
				.presence_penalty = 0.1f},
			1000},
		{"top-k 40, DRY, 1 Ki tokens",
			{.temperature = 1, .top_k = 40, .dry = {.multiplier = 0.8f}}, 1 << 10},
		{"top-k 40, DRY, 16 Ki tokens",
			{.temperature = 1, .top_k = 40, .dry = {.multiplier = 0.8f}}, 16 << 10},
		{"top-k 40, DRY, 128 Ki tokens",
			{.temperature = 1, .top_k = 40, .dry = {.multiplier = 0.8f}}, 128 << 10},
	};

	for (uint32_t i = 0; i < N_VOCAB; i++) /* a few likely tokens, and a long tail */
		logits[i] = (float)(4 * (next_unit() + next_unit() + next_unit() - 1.5) -
				    log(next_unit() + 1e-9));
	/* Three tokens in turns repeat themselves most of all. */
	for (uint32_t i = 0; i < N_CTX; i++)
		history[i] = i % 3;
	printf("# %d logits; %d rounds: median (fastest to slowest)\n", N_VOCAB, N_ROUNDS);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		bench_pick(rows[i].what, &rows[i].params, rows[i].n_history);
	bench_others();
	return 0;
}
