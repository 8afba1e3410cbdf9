/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/plan-check.h"

#include <errno.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/kv.h"
#include "workerd/plan-internal.h"
#include "workerd/weights.h"

int plan_check_model(const struct weights *w, const struct kv *kv, const struct plan_params *params,
	struct err *ret_err)
{
	const struct manifest_hparams *hp = w->manifest->hparams;
	const struct kv_params *k = kv_get_params(kv);

	if (params->n_rows == 0 || params->n_rows > LANE_MAX_ROWS)
		return err_set(ret_err, EINVAL, "plan: rows: expected 1 to %d, found %u",
			LANE_MAX_ROWS, params->n_rows);
	if (params->n_logit_rows == 0 || params->n_logit_rows > params->n_rows)
		return err_set(ret_err, EINVAL,
			"plan: rows with logits: expected 1 to %u, found %u", params->n_rows,
			params->n_logit_rows);
	if (k->n_layers != hp->n_layers || k->n_head_kv != hp->n_head_kv ||
		k->head_dim != hp->head_dim_k)
		return err_set(ret_err, EINVAL,
			"plan: kv cache: expected %u layers of %u heads of %u, found %u, %u, %u",
			hp->n_layers, hp->n_head_kv, hp->head_dim_k, k->n_layers, k->n_head_kv,
			k->head_dim);
	return 0;
}

/* Or one of those that the step before picks, which has as many as it has wanted rows. */
static bool is_token(const struct plan *p, uint32_t token)
{
	const struct lane *before = p->n_flight ? &p->lanes[p->first] : p->done;

	return token & PLAN_PICKED ? !p->gather && before && (token & ~PLAN_PICKED) < before->n_want
				   : token < p->n_vocab;
}

int plan_check_step(const struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	const struct kv_params *k = kv_get_params(p->kv);

	if (n_rows == 0 || n_rows > p->params.n_rows || n_want > p->params.n_logit_rows)
		return err_set(ret_err, EINVAL,
			"step: expected 1 to %u rows and up to %u with logits, found %u and %u",
			p->params.n_rows, p->params.n_logit_rows, n_rows, n_want);
	for (uint32_t i = 0; i < n_rows; i++) {
		if (!is_token(p, rows[i].token))
			return err_set(ret_err, EINVAL,
				"step: row %u: token: expected below %u, found %u", i, p->n_vocab,
				rows[i].token);
		if (rows[i].position >= k->n_ctx)
			return err_set(ret_err, EINVAL,
				"step: row %u: position: expected below %u, found %u", i, k->n_ctx,
				rows[i].position);
		if (rows[i].slot >= k->n_slots)
			return err_set(ret_err, EINVAL,
				"step: row %u: slot: expected below %u, found %u", i, k->n_slots,
				rows[i].slot);
	}
	for (uint32_t i = 0; i < n_want; i++) {
		uint32_t row = want[i] & ~PLAN_FIRST;

		if (row >= n_rows || (i > 0 && row <= (want[i - 1] & ~PLAN_FIRST)))
			return err_set(ret_err, EINVAL,
				"step: wanted row %u: expected ascending and below %u, found %u", i,
				n_rows, row);
	}
	return 0;
}
