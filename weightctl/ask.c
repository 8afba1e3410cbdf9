/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include "proto/worker-client.h"
#include "weightctl/generation.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/session.h"

static int ask(const struct options *o, struct worker_client *c, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	char *text = NULL;
	_cleanup_(generation_list_fini)
	struct generation_list list = {0};
	struct worker_client_message message = {.role = "user"};
	struct session session;
	int r = input_read(o->args[0], ret_err, &text, &message.n_content_bytes);

	message.content = text;
	if (r == 0)
		r = session_begin(o, c, ret_err, &session);
	if (r == 0)
		r = session_add_turn(c, &session, &message, true, ret_err);
	if (r == 0)
		r = generation_run(o, c, session.id, ret_err, &list);
	if (r == 0)
		r = session_end(o, c, &session, ret_err);
	if (r == 0 && o->json)
		r = output_json(generation_list_json(&list));
	return r;
}

int ask_run(const struct options *o, struct err *ret_err)
{
	struct worker_client *c = NULL;
	int r = worker_client_new(o->worker, ret_err, &c);

	if (r < 0)
		return r;
	r = ask(o, c, ret_err);
	worker_client_free(c);
	return r;
}
