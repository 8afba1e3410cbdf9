/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/session.h"

#include <inttypes.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

int session_begin(const struct options *o, struct worker_client *c, struct err *ret_err,
	struct session *ret_session)
{
	struct worker_client_saved loaded;

	*ret_session = (struct session){0};
	if (!o->load)
		return worker_client_open_session(c, ret_err, &ret_session->id);
	int r = worker_client_restore_session(c, o->load, ret_err, &loaded);
	if (r)
		return r;
	if (loaded.why[0])
		fprintf(stderr, "weightctl: %s: %s; its %" PRIu32 " tokens are computed again\n",
			o->load, loaded.why, loaded.n_tokens);
	*ret_session = (struct session){.id = loaded.session, .n_tokens = loaded.n_tokens};
	return 0;
}

int session_add_turn(struct worker_client *c, const struct session *s,
	const struct worker_client_message *message, bool is_first, struct err *ret_err)
{
	uint32_t n_total;
	int r = 0;

	if (s->n_tokens || !is_first)
		r = worker_client_append_more(c, s->id, "\n", 1, false, ret_err, &n_total);
	if (r == 0)
		r = worker_client_append_chat(c, s->id, message, 1, ret_err, &n_total);
	return r;
}

int session_end(const struct options *o, struct worker_client *c, const struct session *s,
	struct err *ret_err)
{
	struct worker_client_saved saved;

	return o->save ? worker_client_save_session(c, s->id, o->save, ret_err, &saved) : 0;
}
