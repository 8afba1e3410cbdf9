/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include "proto/worker-client.h"
#include "weightctl/generation.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/session.h"

static int complete(const struct options *o, struct worker_client *c, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	char *text = NULL;
	_cleanup_(generation_list_fini)
	struct generation_list list = {0};
	struct session session;
	uint32_t n_bytes, n_total;
	int r = input_read(o->args[0], ret_err, &text, &n_bytes);

	if (r == 0)
		r = session_begin(o, c, ret_err, &session);
	/* Who writes a raw prompt means the marks in it. */
	if (r == 0 && session.n_tokens)
		r = worker_client_append_more(
			c, session.id, text, n_bytes, true, ret_err, &n_total);
	else if (r == 0)
		r = worker_client_append_text(
			c, session.id, text, n_bytes, true, ret_err, &n_total);
	if (r == 0)
		r = generation_run(o, c, session.id, ret_err, &list);
	if (r == 0)
		r = session_end(o, c, &session, ret_err);
	if (r == 0 && o->json)
		r = output_json(generation_list_json(&list));
	return r;
}

int complete_run(const struct options *o, struct err *ret_err)
{
	struct worker_client *c = NULL;
	int r = worker_client_new(o->worker, ret_err, &c);

	if (r < 0)
		return r;
	r = complete(o, c, ret_err);
	worker_client_free(c);
	return r;
}
