/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-tune.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/worker-link.h"

static int read_text(const char *text, struct err *ret_err, char ret_text[WORKER_TUNE_TEXT_BYTES])
{
	if (snprintf(ret_text, WORKER_TUNE_TEXT_BYTES, "%s", text) < WORKER_TUNE_TEXT_BYTES)
		return 0;
	return err_set(ret_err, EPROTO, "worker: tune: expected a text of below %d bytes",
		WORKER_TUNE_TEXT_BYTES);
}

static int read_row(const Wk__TuneRow *m, struct err *ret_err, struct worker_tune_row *row)
{
	row->n_rows = m->n_rows;
	row->default_ns = m->default_ns;
	row->best_ns = m->best_ns;
	int r = read_text(m->op, ret_err, row->op);
	return r ? r : read_text(m->choice, ret_err, row->choice);
}

static int read_tuned(
	const Wk__Tuned *m, struct err *ret_err, struct worker_tune_result *ret_result)
{
	struct worker_tune_result result = {
		.ns = m->ns, .is_saved = m->is_saved, .n_products = m->n_products};
	int r = 0;

	if (m->n_rows > WORKER_TUNE_MAX_ROWS)
		return err_set(ret_err, EPROTO, "worker: tune: expected at most %d rows, found %zu",
			WORKER_TUNE_MAX_ROWS, m->n_rows);
	result.rows = calloc(m->n_rows + 1, sizeof(*result.rows));
	if (!result.rows)
		return err_set(ret_err, ENOMEM, "tune: no memory");
	for (size_t i = 0; !r && i < m->n_rows; i++)
		r = read_row(m->rows[i], ret_err, &result.rows[i]);
	result.n_rows = (uint32_t)m->n_rows;
	if (r)
		worker_tune_fini(&result);
	else
		*ret_result = result;
	return r;
}

static int tell(
	const Wk__Tuning *m, worker_tune_progress_fn progress, void *userdata, struct err *ret_err)
{
	struct worker_tune_row row;

	if (!progress || !m->row)
		return err_set(ret_err, EPROTO, "worker: tune: a row that nobody asked for");
	int r = read_row(m->row, ret_err, &row);
	if (!r)
		progress(userdata, &row, m->n_done, m->n_products);
	return r;
}

int worker_tune_run(struct worker_client *c, uint32_t max_seconds, worker_tune_progress_fn progress,
	void *userdata, struct err *ret_err, struct worker_tune_result *ret_result)
{
	struct worker_link *link = worker_client_get_link(c);
	Wk__Reply *reply = NULL;
	Wk__Tune m = WK__TUNE__INIT;
	Wk__Request request = WK__REQUEST__INIT;
	bool is_done = false;

	m.progress = progress != NULL;
	m.max_seconds = max_seconds;
	request.body_case = WK__REQUEST__BODY_TUNE;
	request.tune = &m;
	int r = worker_link_send(link, &request, ret_err);
	while (!r && !is_done) {
		r = worker_link_recv(link, request.id, WORKER_LINK_FOREVER, ret_err, &reply);
		if (r)
			break;
		is_done = reply->body_case != WK__REPLY__BODY_TUNING;
		if (!is_done)
			r = tell(reply->tuning, progress, userdata, ret_err);
		else if (reply->body_case == WK__REPLY__BODY_TUNED)
			r = read_tuned(reply->tuned, ret_err, ret_result);
		else
			r = err_set(ret_err, EPROTO, "worker: tune: expected reply %d, found %d",
				(int)WK__REPLY__BODY_TUNED, (int)reply->body_case);
		worker_link_free_reply(&reply);
	}
	return r;
}

void worker_tune_fini(struct worker_tune_result *result)
{
	free(result->rows);
	*result = (struct worker_tune_result){0};
}
