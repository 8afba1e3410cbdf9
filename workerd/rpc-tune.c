/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-tune.h"

#include <errno.h>
#include <stdlib.h>

#include "workerd/message.h"
#include "workerd/tuner.h"

static int fill_rows(const struct tuner_result *result, struct rpc_tune *rpc)
{
	rpc->rows = calloc(result->n_rows + 1, sizeof(*rpc->rows));
	rpc->list = calloc(result->n_rows + 1, sizeof(*rpc->list));
	if (!rpc->rows || !rpc->list)
		return -ENOMEM;
	for (uint32_t i = 0; i < result->n_rows; i++) {
		const struct tuner_row *from = &result->rows[i];
		Wk__TuneRow *row = &rpc->rows[i];

		*row = (Wk__TuneRow)WK__TUNE_ROW__INIT;
		row->op = (char *)from->op;
		row->n_rows = from->n_rows;
		row->default_ns = from->default_ns;
		row->best_ns = from->best_ns;
		row->choice = (char *)from->choice;
		rpc->list[i] = row;
	}
	return 0;
}

int rpc_tune_fill(const struct message *m, struct rpc_tune *rpc, Wk__Reply *reply)
{
	const struct tuner_result *result = m->tune.result;

	*rpc = (struct rpc_tune){.tuned = WK__TUNED__INIT, .tuning = WK__TUNING__INIT};
	int r = fill_rows(result, rpc);
	if (r)
		return r;
	if (m->kind == MESSAGE_TUNING) {
		rpc->tuning.n_done = result->n_done;
		rpc->tuning.n_products = result->n_products;
		rpc->tuning.row = rpc->list[0];
		reply->body_case = WK__REPLY__BODY_TUNING;
		reply->tuning = &rpc->tuning;
		return 0;
	}
	rpc->tuned.ns = result->ns;
	rpc->tuned.is_saved = result->is_saved;
	rpc->tuned.n_products = result->n_products;
	rpc->tuned.n_rows = result->n_rows;
	rpc->tuned.rows = rpc->list;
	reply->body_case = WK__REPLY__BODY_TUNED;
	reply->tuned = &rpc->tuned;
	return 0;
}

void rpc_tune_fini(struct rpc_tune *rpc)
{
	free(rpc->rows);
	free(rpc->list);
	*rpc = (struct rpc_tune){0};
}
