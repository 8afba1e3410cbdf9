/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-crew.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/worker-client.h"

/* Enough for every thread to send its request. */
enum { START_AHEAD_NS = 30 * 1000 * 1000 };

enum task { TASK_BEGIN, TASK_RUN, TASK_PROFILE };

struct member {
	struct bench_crew *crew;
	struct worker_client *client;
	pthread_t thread;
	struct worker_bench_ready ready;
	struct worker_bench_result result;
	struct err err;
	int code;
};

struct bench_crew {
	enum task task;
	struct worker_bench_params params;
	uint64_t start_ns;
	uint32_t n;
	struct member members[];
};

int bench_crew_new(
	const char *const *sockets, uint32_t n, struct err *ret_err, struct bench_crew **ret_crew)
{
	struct bench_crew *c = calloc(1, sizeof(*c) + n * sizeof(c->members[0]));
	int r = 0;

	if (!c)
		return -ENOMEM;
	for (; !r && c->n < n; c->n++) {
		c->members[c->n].crew = c;
		r = worker_client_new(sockets[c->n], ret_err, &c->members[c->n].client);
	}
	if (r) {
		bench_crew_free(c);
		return r;
	}
	*ret_crew = c;
	return 0;
}

struct bench_crew *bench_crew_free(struct bench_crew *c)
{
	if (!c)
		return NULL;
	for (uint32_t i = 0; i < c->n; i++)
		worker_client_free(c->members[i].client);
	free(c);
	return NULL;
}

static void *work(void *userdata)
{
	struct member *m = userdata;
	struct bench_crew *c = m->crew;

	m->err = ERR_NULL;
	if (c->task == TASK_BEGIN)
		m->code = worker_bench_begin(m->client, &c->params, &m->err, &m->ready);
	else
		m->code = worker_bench_run(
			m->client, c->start_ns, c->task == TASK_PROFILE, &m->err, &m->result);
	return NULL;
}

/* The first n do the task; this thread is the first's. */
static int run_all(struct bench_crew *c, enum task task, uint32_t n, struct err *ret_err)
{
	uint32_t n_threads = 1;
	int r = 0;

	c->task = task;
	c->start_ns = n > 1 ? clock_now_ns() + START_AHEAD_NS : 0;
	for (; !r && n_threads < n; n_threads++)
		r = -pthread_create(
			&c->members[n_threads].thread, NULL, work, &c->members[n_threads]);
	if (r) {
		n_threads--; /* the last was not started */
		(void)err_set(ret_err, -r, "thread: %s", strerror(-r));
	} else {
		work(&c->members[0]);
	}
	for (uint32_t i = 1; i < n_threads; i++)
		pthread_join(c->members[i].thread, NULL);
	for (uint32_t i = 0; !r && i < n; i++) {
		r = c->members[i].code;
		if (r)
			*ret_err = c->members[i].err;
	}
	return r;
}

int bench_crew_begin(struct bench_crew *c, const struct worker_bench_params *params,
	struct err *ret_err, struct worker_bench_ready *ret_ready)
{
	c->params = *params;
	int r = run_all(c, TASK_BEGIN, c->n, ret_err);

	if (!r)
		*ret_ready = c->members[0].ready;
	return r;
}

int bench_crew_run(struct bench_crew *c, bool is_profile, struct err *ret_err)
{
	return is_profile ? run_all(c, TASK_PROFILE, 1, ret_err)
			  : run_all(c, TASK_RUN, c->n, ret_err);
}

const struct worker_bench_result *bench_crew_get_result(const struct bench_crew *c, uint32_t i)
{
	return &c->members[i].result;
}
