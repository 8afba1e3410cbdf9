/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/stopwatch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/submit.h"
#include "workerd/warm.h"

struct stopwatch {
	struct vk_device *d;
	struct warm *warm;
};

int stopwatch_new(struct vk_device *d, struct err *ret_err, struct stopwatch **ret_watch)
{
	struct stopwatch *w = calloc(1, sizeof(*w));

	if (!w)
		return err_set(ret_err, ENOMEM, "stopwatch: no memory");
	w->d = d;
	int r = warm_new(d, ret_err, &w->warm);
	if (r) {
		free(w);
		return r;
	}
	*ret_watch = w;
	return 0;
}

struct stopwatch *stopwatch_free(struct stopwatch *w)
{
	if (!w)
		return NULL;
	warm_free(w->warm);
	free(w);
	return NULL;
}

static int run(
	struct stopwatch *w, struct vk_command *command, struct err *ret_err, uint64_t *ret_ns)
{
	uint64_t stamps[STOPWATCH_N_STAMPS], ticket = 0;
	int r = vk_submit(w->d, &command, 1, ret_err, &ticket);

	if (!r)
		r = vk_submit_wait(w->d, ticket, UINT64_MAX);
	if (!r)
		r = vk_command_get_stamps(command, stamps);
	if (!r)
		*ret_ns = stamps[1] - stamps[0];
	return r;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right ? 1 : 0;
}

int stopwatch_time(struct stopwatch *w, struct vk_command *const *commands, uint32_t n,
	uint32_t n_runs, struct err *ret_err, uint64_t *ret_ns)
{
	uint64_t ns[STOPWATCH_MAX_COMMANDS][STOPWATCH_MAX_RUNS], first_ns;
	int r = 0;

	assert(n <= STOPWATCH_MAX_COMMANDS && n_runs > 0 && n_runs <= STOPWATCH_MAX_RUNS);
	for (uint32_t i = 0; !r && i < n; i++)
		r = run(w, commands[i], ret_err, &first_ns);
	if (!r)
		r = warm_up(w->warm, ret_err);
	for (uint32_t k = 0; !r && k < n_runs; k++)
		for (uint32_t i = 0; !r && i < n; i++)
			r = run(w, commands[i], ret_err, &ns[i][k]);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		qsort(ns[i], n_runs, sizeof(ns[i][0]), compare_ns);
		ret_ns[i] = ns[i][(n_runs - 1) / 2];
	}
	return 0;
}
