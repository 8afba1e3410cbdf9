/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "weightctl/generation.h"
#include "weightctl/options.h"
#include "weightctl/session.h"

/* What was said so far, by turns; contents are owned. */
struct conversation {
	struct worker_client_message *messages; /* [n] */
	uint32_t n;
};

static void fini(struct conversation *talk)
{
	for (uint32_t i = 0; i < talk->n; i++)
		free((char *)talk->messages[i].content);
	free(talk->messages);
}

static int add(struct conversation *talk, const char *role, const char *content, uint64_t n_bytes)
{
	struct worker_client_message *messages =
		reallocarray(talk->messages, talk->n + 1, sizeof(*messages));

	if (!messages)
		return -ENOMEM;
	talk->messages = messages;
	char *copy = malloc(n_bytes + 1);
	if (!copy)
		return -ENOMEM;
	if (n_bytes)
		memcpy(copy, content, n_bytes);
	messages[talk->n++] = (struct worker_client_message){
		.role = role, .content = copy, .n_content_bytes = (uint32_t)n_bytes};
	return 0;
}

/*
 * Each turn begins the session anew with the whole conversation: how a turn of the model ends and
 * the next one begins, the worker's template alone knows. What was said before a session was saved
 * is not known here, so that turns are added to one that was loaded.
 */
static int answer(const struct options *o, struct worker_client *c, const struct session *session,
	struct conversation *talk, struct err *ret_err)
{
	_cleanup_(generation_list_fini)
	struct generation_list list = {0};
	uint32_t n_total;
	int r = 0;

	if (session->n_tokens)
		r = session_add_turn(
			c, session, &talk->messages[talk->n - 1], talk->n == 1, ret_err);
	else
		r = worker_client_truncate(c, session->id, 0, ret_err);
	if (r == 0 && !session->n_tokens)
		r = worker_client_append_chat(
			c, session->id, talk->messages, talk->n, ret_err, &n_total);
	if (r == 0)
		r = generation_run(o, c, session->id, ret_err, &list);
	if (r == 0)
		r = add(talk, "assistant", list.rows[0].text, list.rows[0].n_bytes);
	return r;
}

/* A line is a turn; an empty one is passed over; the end of input ends the conversation. */
static int converse(const struct options *o, struct worker_client *c, struct err *ret_err)
{
	struct conversation talk = {0};
	_cleanup_(cleanup_free)
	char *line = NULL;
	size_t n_room = 0;
	bool is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
	struct session session;
	int r = session_begin(o, c, ret_err, &session);

	while (r == 0) {
		if (is_terminal) {
			printf("> ");
			fflush(stdout);
		}
		ssize_t n = getline(&line, &n_room, stdin);
		if (n < 0) {
			if (is_terminal)
				putchar('\n');
			break;
		}
		if (n && line[n - 1] == '\n')
			n--;
		if (n == 0)
			continue;
		r = add(&talk, "user", line, (uint64_t)n);
		if (r == 0)
			r = answer(o, c, &session, &talk, ret_err);
	}
	if (r == 0)
		r = session_end(o, c, &session, ret_err);
	fini(&talk);
	return r;
}

int chat_run(const struct options *o, struct err *ret_err)
{
	struct worker_client *c = NULL;

	if (o->json) {
		(void)err_set(ret_err, EINVAL, "chat: a conversation has no --json; use ask");
		return COMMANDS_USAGE;
	}
	if (o->n > 1) {
		(void)err_set(ret_err, EINVAL, "chat: a turn has one answer, not -n %u", o->n);
		return COMMANDS_USAGE;
	}
	int r = worker_client_new(o->worker, ret_err, &c);
	if (r == 0)
		r = converse(o, c, ret_err);
	worker_client_free(c);
	return r;
}
