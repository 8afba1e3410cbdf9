/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/rpc-sessions.h"

#include "workerd/message.h"

void rpc_sessions_fill(
	const struct message_status *s, struct rpc_sessions *ret_sessions, Wk__Status *ret_status)
{
	uint32_t n = s->n_listed < RPC_SESSIONS_MAX ? s->n_listed : RPC_SESSIONS_MAX;

	ret_status->kv_pages = s->kv_pages;
	ret_status->kv_used_pages = s->kv_used_pages;
	ret_status->kv_shared_pages = s->kv_shared_pages;
	ret_status->kv_cached_pages = s->kv_cached_pages;
	ret_status->n_queued = s->n_queued;
	for (uint32_t i = 0; i < n; i++) {
		const struct message_session *from = &s->sessions[i];
		Wk__SessionStatus *to = &ret_sessions->rows[i];

		*to = (Wk__SessionStatus)WK__SESSION_STATUS__INIT;
		to->session = from->session;
		to->client = from->client;
		to->n_tokens = from->n_tokens;
		to->n_cached = from->n_cached;
		to->state = (Wk__SessionStatus__State)from->state;
		to->tokens_per_second = from->tokens_per_second;
		ret_sessions->list[i] = to;
	}
	ret_status->n_sessions_list = n;
	ret_status->sessions_list = ret_sessions->list;
}
