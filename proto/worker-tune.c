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

static int read_tuned(
	const Wk__Tuned *m, struct err *ret_err, struct worker_tune_result *ret_result)
{
	struct worker_tune_result result = {.ns = m->ns, .is_saved = m->is_saved};
	int r = 0;

	if (m->n_rows > WORKER_TUNE_MAX_ROWS)
		return err_set(ret_err, EPROTO, "worker: tune: expected at most %d rows, found %zu",
			WORKER_TUNE_MAX_ROWS, m->n_rows);
	result.rows = calloc(m->n_rows + 1, sizeof(*result.rows));
	if (!result.rows)
		return err_set(ret_err, ENOMEM, "tune: no memory");
	for (size_t i = 0; !r && i < m->n_rows; i++) {
		const Wk__TuneRow *from = m->rows[i];
		struct worker_tune_row *row = &result.rows[i];

		row->n_rows = from->n_rows;
		row->default_ns = from->default_ns;
		row->best_ns = from->best_ns;
		r = read_text(from->op, ret_err, row->op);
		if (!r)
			r = read_text(from->choice, ret_err, row->choice);
	}
	result.n_rows = (uint32_t)m->n_rows;
	if (r)
		worker_tune_fini(&result);
	else
		*ret_result = result;
	return r;
}

int worker_tune_run(
	struct worker_client *c, struct err *ret_err, struct worker_tune_result *ret_result)
{
	struct worker_link *link = worker_client_get_link(c);
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Tune m = WK__TUNE__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	request.body_case = WK__REQUEST__BODY_TUNE;
	request.tune = &m;
	int r = worker_link_send(link, &request, ret_err);
	if (r == 0)
		r = worker_link_recv(link, request.id, WORKER_LINK_FOREVER, ret_err, &reply);
	if (r)
		return r;
	if (reply->body_case != WK__REPLY__BODY_TUNED)
		return err_set(ret_err, EPROTO, "worker: tune: expected reply %d, found %d",
			(int)WK__REPLY__BODY_TUNED, (int)reply->body_case);
	return read_tuned(reply->tuned, ret_err, ret_result);
}

void worker_tune_fini(struct worker_tune_result *result)
{
	free(result->rows);
	*result = (struct worker_tune_result){0};
}
