/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-tune.h"

#include <errno.h>
#include <stdlib.h>

#include "workerd/tuner.h"

int rpc_tune_fill(const struct tuner_result *result, struct rpc_tune *rpc, Wk__Tuned *ret_tuned)
{
	*ret_tuned = (Wk__Tuned)WK__TUNED__INIT;
	*rpc = (struct rpc_tune){
		.rows = calloc(result->n_rows + 1, sizeof(*rpc->rows)),
		.list = calloc(result->n_rows + 1, sizeof(*rpc->list)),
	};
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
	ret_tuned->ns = result->ns;
	ret_tuned->is_saved = result->is_saved;
	ret_tuned->n_rows = result->n_rows;
	ret_tuned->rows = rpc->list;
	return 0;
}

void rpc_tune_fini(struct rpc_tune *rpc)
{
	free(rpc->rows);
	free(rpc->list);
	*rpc = (struct rpc_tune){0};
}
