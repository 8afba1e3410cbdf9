/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-link.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>

#include "proto/stream.h"
#include "proto/util/err.h"

enum { WORKER_LINK_MAX_ERRNO = 4095, WORKER_LINK_MAX_LAST_WORDS = 256 };

void worker_link_fini(struct worker_link *l)
{
	cleanup_close(&l->fd);
}

void worker_link_free_reply(Wk__Reply **reply)
{
	if (*reply)
		wk__reply__free_unpacked(*reply, NULL);
	*reply = NULL;
}

/* 0 when readable. */
static int must_check worker_link_wait(struct worker_link *l, int timeout_ms, struct err *ret_err)
{
	struct pollfd p = {.fd = l->fd, .events = POLLIN};
	int n;

	do
		n = poll(&p, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_set(ret_err, errno, "worker: poll: %s", strerror(errno));
	if (n == 0)
		return err_set(ret_err, ETIMEDOUT, "worker does not answer");
	return 0;
}

static int must_check worker_link_read(
	struct worker_link *l, int timeout_ms, struct err *ret_err, Wk__Reply **ret_reply)
{
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	uint32_t n_bytes;
	int r = worker_link_wait(l, timeout_ms, ret_err);

	if (r < 0)
		return r;
	r = stream_recv(l->fd, ret_err, &data, &n_bytes);
	if (r == STREAM_END || r == -ECONNRESET)
		return err_set(ret_err, ECONNRESET, "worker closed the connection");
	if (r == -EAGAIN) /* SO_RCVTIMEO, in the middle of a message */
		return err_set(ret_err, ETIMEDOUT, "worker stopped in the middle of a message");
	if (r < 0)
		return r;
	reply = wk__reply__unpack(NULL, n_bytes, data);
	if (!reply)
		return err_set(
			ret_err, EBADMSG, "worker: a message of %u bytes is no reply", n_bytes);
	if (reply->body_case == WK__REPLY__BODY__NOT_SET)
		return err_set(ret_err, EPROTO, "worker: a reply without a body");
	*ret_reply = TAKE_PTR(reply);
	return 0;
}

static int must_check worker_link_refusal(const Wk__Error *error, struct err *ret_err)
{
	int code = error->code;

	if (code <= 0 || code > WORKER_LINK_MAX_ERRNO)
		code = EPROTO;
	return err_set(ret_err, code, "%s",
		error->text[0] ? error->text : "worker refused and did not say why");
}

/*
 * The worker has closed: what it said before is still in the socket, and may be why. The connection
 * is over whatever that is.
 */
static int must_check worker_link_hear_refusal(struct worker_link *l, struct err *ret_err)
{
	/* A Token after each of the last steps may stand before it; the bound is for a peer that
	 * closed one direction and writes on for ever. */
	for (uint32_t i = 0; i < WORKER_LINK_MAX_LAST_WORDS; i++) {
		_cleanup_(worker_link_free_reply)
		Wk__Reply *reply = NULL;

		if (worker_link_read(l, 0, NULL, &reply) < 0)
			break;
		if (reply->id == 0 && reply->body_case == WK__REPLY__BODY_ERROR)
			return worker_link_refusal(reply->error, ret_err);
	}
	return err_set(ret_err, ECONNRESET, "worker closed the connection");
}

int worker_link_send(struct worker_link *l, Wk__Request *request, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	size_t n_bytes;
	int r;

	request->id = ++l->last_id;
	n_bytes = wk__request__get_packed_size(request);
	if (n_bytes > STREAM_MAX_BYTES)
		return err_set(ret_err, EMSGSIZE, "request: expected at most %d bytes, found %zu",
			STREAM_MAX_BYTES, n_bytes);
	data = malloc(n_bytes);
	if (!data)
		return err_set(ret_err, ENOMEM, "worker client: no memory");
	wk__request__pack(request, data);
	r = stream_send(l->fd, data, (uint32_t)n_bytes);
	if (r == -EAGAIN) /* SO_SNDTIMEO */
		return err_set(ret_err, ETIMEDOUT, "worker takes no requests");
	if (r == -EPIPE || r == -ECONNRESET)
		return worker_link_hear_refusal(l, ret_err);
	if (r < 0)
		return err_set(ret_err, -r, "worker: send: %s", strerror(-r));
	return 0;
}

int worker_link_send_cancel(struct worker_link *l, uint64_t session, struct err *ret_err)
{
	Wk__Cancel cancel = WK__CANCEL__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	if (l->n_cancels == WORKER_LINK_MAX_CANCELS)
		return err_set(ret_err, EBUSY, "cancel: %d earlier ones are not answered yet",
			WORKER_LINK_MAX_CANCELS);
	cancel.session = session;
	request.body_case = WK__REQUEST__BODY_CANCEL;
	request.cancel = &cancel;
	int r = worker_link_send(l, &request, ret_err);
	if (r == 0)
		l->cancels[l->n_cancels++] = request.id;
	return r;
}

/* Is this the answer to a Cancel? Done or a refusal (the generation had ended) are both fine. */
static bool worker_link_take_cancel(struct worker_link *l, const Wk__Reply *reply)
{
	if (reply->body_case != WK__REPLY__BODY_DONE && reply->body_case != WK__REPLY__BODY_ERROR)
		return false;
	for (uint32_t i = 0; i < l->n_cancels; i++) {
		if (l->cancels[i] == reply->id) {
			l->cancels[i] = l->cancels[--l->n_cancels];
			return true;
		}
	}
	return false;
}

int worker_link_recv(struct worker_link *l, uint64_t id, int timeout_ms, struct err *ret_err,
	Wk__Reply **ret_reply)
{
	for (;;) {
		_cleanup_(worker_link_free_reply)
		Wk__Reply *reply = NULL;
		int r = worker_link_read(l, timeout_ms, ret_err, &reply);

		if (r < 0)
			return r;
		/* A refusal of the connection itself, which then ends. */
		if (reply->id == 0 && reply->body_case == WK__REPLY__BODY_ERROR)
			return worker_link_refusal(reply->error, ret_err);
		/* Bounded by the Cancels that were sent. */
		if (reply->id != id && worker_link_take_cancel(l, reply))
			continue;
		if (reply->id != id)
			return err_set(ret_err, EPROTO,
				"worker: reply: expected id %llu, found %llu",
				(unsigned long long)id, (unsigned long long)reply->id);
		if (reply->body_case == WK__REPLY__BODY_ERROR)
			return worker_link_refusal(reply->error, ret_err);
		*ret_reply = TAKE_PTR(reply);
		return 0;
	}
}

int worker_link_call(struct worker_link *l, Wk__Request *request, Wk__Reply__BodyCase body,
	struct err *ret_err, Wk__Reply **ret_reply)
{
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	int r = worker_link_send(l, request, ret_err);

	if (r == 0)
		r = worker_link_recv(l, request->id, WORKER_LINK_TIMEOUT_MS, ret_err, &reply);
	if (r < 0)
		return r;
	if (reply->body_case != body)
		return err_set(ret_err, EPROTO, "worker: reply: expected body %d, found %d",
			(int)body, (int)reply->body_case);
	*ret_reply = TAKE_PTR(reply);
	return 0;
}
