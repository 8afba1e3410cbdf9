/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/tuner.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "workerd/cuts.h"
#include "workerd/engine-internal.h"
#include "workerd/message.h"
#include "workerd/park.h"
#include "workerd/plan.h"
#include "workerd/tuning-file.h"

/* What is not measured then stays as it is. */
enum { MAX_SECONDS = 50 };

struct tuner {
	struct message *message; /* to be answered */
	struct cuts *cuts;
	uint64_t start_ns;
	uint64_t spent_ns; /* with measuring */
	uint64_t max_ns;
};

static struct message *tuner_free(struct engine *e)
{
	struct tuner *t = TAKE_PTR(e->tuner);
	struct message *m = t->message;

	cuts_free(t->cuts);
	free(t);
	return m;
}

static void fail_with(struct engine *e, int code, const struct err *why)
{
	struct message *m = tuner_free(e);

	if (code > 0) { /* VK_DEVICE_LOST */
		engine_set_failed(e, code, why);
		code = e->code;
	}
	message_refuse(m, code, code == e->code && e->code ? &e->error : why);
	engine_send(e, m);
}

int tuner_begin(struct engine *e, struct message *m, struct err *ret_err)
{
	struct cuts *cuts = NULL;
	int r = e->stack ? 0 : park_unpark(e, ret_err);

	if (!r && e->tuner)
		r = err_set(ret_err, EBUSY, "tune: another one is under way");
	if (!r)
		r = plan_make_cuts(e->stack->plan, ret_err, &cuts);
	if (r)
		return r;
	struct tuner *t = calloc(1, sizeof(*t));
	if (!t) {
		cuts_free(cuts);
		return -ENOMEM;
	}
	/* A software driver takes what it takes: it is for tests. */
	uint64_t max_seconds = m->tune.max_seconds                ? m->tune.max_seconds
			       : plan_is_software(e->stack->plan) ? UINT32_MAX
								  : MAX_SECONDS;
	*t = (struct tuner){.message = m,
		.cuts = cuts,
		.start_ns = clock_now_ns(),
		.max_ns = max_seconds * UINT64_C(1000000000)};
	e->tuner = t;
	return 0;
}

void tuner_end(struct engine *e, uint64_t client)
{
	struct err why = ERR_NULL;

	if (e->tuner && e->tuner->message->client == client)
		fail_with(e, err_set(&why, ECANCELED, "tune: it was ended"), &why);
}

void tuner_stop(struct engine *e, const char *text)
{
	struct err why = ERR_NULL;

	if (e->tuner)
		fail_with(e, err_set(&why, ECANCELED, "tune: %s", text), &why);
}

bool tuner_is_due(const struct engine *e)
{
	return e->tuner;
}

/* To the disk, beside what is there of other models by now, and to the plan. */
static int use(struct engine *e, const struct cuts_row *rows, uint32_t n_rows, struct err *ret_err,
	bool *ret_is_saved)
{
	struct tuning *tuning = tuning_new();
	uint32_t n_set = 0;

	if (!tuning)
		return err_set(ret_err, ENOMEM, "tune: no memory");
	tuning_file_load(e->site.device, tuning);
	for (uint32_t i = 0; i < n_rows; i++)
		n_set += tuning_set(tuning, &rows[i].key, &rows[i].best) == 0;
	if (n_set < n_rows)
		log_warn("tuning: %u choices are used of %u", n_set, n_rows);
	int r = tuning_file_save(e->site.device, tuning);
	*ret_is_saved = r == 0;
	if (r)
		log_warn("tuning: choices are not kept on disk: %s", strerror(-r));
	return plan_set_tuning(e->stack->plan, tuning, ret_err);
}

/* With the rows from first on. */
static struct tuner_result *make_result(const struct cuts *cuts, uint32_t first)
{
	uint32_t n_done = 0;
	const struct cuts_row *rows = cuts_get_rows(cuts, &n_done) + first;
	uint32_t n = n_done - first;
	struct tuner_result *result = calloc(1, sizeof(*result) + n * sizeof(result->rows[0]));

	static_assert((int)TUNER_TEXT_BYTES == (int)TUNING_TEXT_BYTES, "both hold the same texts");
	if (!result)
		return NULL;
	result->n_done = n_done;
	result->n_products = cuts_count(cuts);
	result->n_rows = n;
	for (uint32_t i = 0; i < n; i++) {
		struct tuner_row *row = &result->rows[i];

		tuning_describe_key(&rows[i].key, row->op);
		tuning_describe_choice(&rows[i].best, row->choice);
		row->n_rows = rows[i].key.n_rows;
		row->default_ns = rows[i].default_ns;
		row->best_ns = rows[i].best_ns;
	}
	return result;
}

static int finish(struct engine *e, struct err *ret_err)
{
	struct tuner *t = e->tuner;
	uint32_t n = 0;
	const struct cuts_row *rows = cuts_get_rows(t->cuts, &n);
	struct tuner_result *result = make_result(t->cuts, 0);

	if (!result)
		return err_set(ret_err, ENOMEM, "tune: no memory");
	result->ns = clock_now_ns() - t->start_ns;
	int r = use(e, rows, n, ret_err, &result->is_saved);
	if (r) {
		free(result);
		return r;
	}
	struct message *m = tuner_free(e);
	m->tune.result = result;
	e->is_cache_due = true;
	e->is_cache_saved = false;
	engine_send(e, m);
	return 0;
}

/* Of the row that was measured last. Without memory for it nobody hears of it. */
static void tell(struct engine *e, uint32_t n_done)
{
	struct tuner *t = e->tuner;
	struct message *m = message_new_for(MESSAGE_TUNING, t->message, 0);

	if (m)
		m->tune.result = make_result(t->cuts, n_done - 1);
	if (m && m->tune.result)
		engine_send(e, m);
	else
		message_free(m);
}

void tuner_attend(struct engine *e)
{
	uint32_t n_before = 0, n_done = 0;
	struct err error = ERR_NULL;
	bool is_done = false;

	if (!e->tuner)
		return;
	struct tuner *t = e->tuner;
	uint64_t start_ns = clock_now_ns();
	(void)cuts_get_rows(t->cuts, &n_before);
	int r = cuts_step(t->cuts, &error, &is_done);
	(void)cuts_get_rows(t->cuts, &n_done);
	t->spent_ns += clock_now_ns() - start_ns;
	/* However slow it is, one is measured: who asks again and again gets somewhere. */
	is_done |= n_done > 0 && t->spent_ns >= t->max_ns;
	if (!r && n_done > n_before && t->message->tune.has_progress)
		tell(e, n_done);
	if (!r && is_done)
		r = finish(e, &error);
	if (r)
		fail_with(e, r, &error);
}
