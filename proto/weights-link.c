/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/weights-link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "proto/util/err.h"

enum { WEIGHTS_LINK_MAX_ERRNO = 4095 };

void weights_link_fini(struct weights_link *l)
{
	cleanup_close(&l->fd);
}

void weights_link_free_reply(Wd__Reply **reply)
{
	if (*reply)
		wd__reply__free_unpacked(*reply, NULL);
	*reply = NULL;
}

static uint64_t weights_link_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* 0 when readable, -ETIMEDOUT at the deadline (UINT64_MAX: never). */
static int must_check weights_link_wait(struct weights_link *l, uint64_t deadline_ms)
{
	struct pollfd p = {.fd = l->fd, .events = POLLIN};

	for (;;) {
		uint64_t now = weights_link_now_ms();
		int timeout = -1;

		if (deadline_ms != UINT64_MAX)
			timeout = now >= deadline_ms ? 0 : (int)(deadline_ms - now);
		int n = poll(&p, 1, timeout);
		if (n > 0)
			return 0;
		if (n == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

/* One packet as a reply whose envelope holds: as many descriptors as it says, a body. */
static int must_check weights_link_read(
	struct weights_link *l, struct err *ret_err, Wd__Reply **ret_reply, struct fdlist *ret_fds)
{
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	uint32_t n_bytes;
	int r = wire_recv(l->fd, l->buffer, &n_bytes, &fds, ret_err);

	if (r == WIRE_END)
		return err_set(ret_err, ECONNRESET, "weightd closed the connection");
	if (r == WIRE_AGAIN)
		return err_set(ret_err, ETIMEDOUT, "weightd does not answer");
	if (r < 0)
		return r;
	reply = wd__reply__unpack(NULL, n_bytes, l->buffer);
	if (!reply)
		return err_set(
			ret_err, EBADMSG, "weightd: a packet of %u bytes is no reply", n_bytes);
	if (reply->n_fds != fds.n)
		return err_set(ret_err, EPROTO, "weightd: descriptors: expected %u, found %u",
			reply->n_fds, fds.n);
	if (reply->body_case == WD__REPLY__BODY__NOT_SET)
		return err_set(ret_err, EPROTO, "weightd: a reply without a body");
	*ret_reply = TAKE_PTR(reply);
	*ret_fds = fds;
	fds.n = 0;
	return 0;
}

static int must_check weights_link_refusal(const Wd__Error *error, struct err *ret_err)
{
	int code = error->code;

	if (code <= 0 || code > WEIGHTS_LINK_MAX_ERRNO)
		code = EPROTO;
	return err_set(ret_err, code, "%s",
		error->text[0] ? error->text : "weightd refused and did not say why");
}

/* Whom weightd does not let in is told why before its first request can be sent. */
static int must_check weights_link_explain_end(struct weights_link *l, struct err *ret_err)
{
	int rc = 0;

	while (rc == 0) {
		_cleanup_(weights_link_free_reply)
		Wd__Reply *reply = NULL;
		_cleanup_(fdlist_fini)
		struct fdlist fds = FDLIST_NULL;

		rc = weights_link_read(l, NULL, &reply, &fds);
		if (rc == 0 && reply->id == 0 && reply->body_case == WD__REPLY__BODY_ERROR)
			return weights_link_refusal(reply->error, ret_err);
	}
	return err_set(ret_err, ECONNRESET, "weightd closed the connection");
}

int weights_link_send(
	struct weights_link *l, Wd__Request *request, const struct fdlist *fds, struct err *ret_err)
{
	size_t n_bytes;
	int r;

	request->id = ++l->last_id;
	request->n_fds = fds ? fds->n : 0;
	n_bytes = wd__request__get_packed_size(request);
	if (n_bytes > WIRE_MAX_BYTES)
		return err_set(ret_err, EMSGSIZE, "request: expected at most %d bytes, found %zu",
			WIRE_MAX_BYTES, n_bytes);
	wd__request__pack(request, l->buffer);
	r = wire_send(l->fd, l->buffer, (uint32_t)n_bytes, fds);
	if (r == WIRE_AGAIN) /* SO_SNDTIMEO */
		return err_set(ret_err, ETIMEDOUT, "weightd takes no requests");
	if (r == -EPIPE || r == -ECONNRESET)
		return weights_link_explain_end(l, ret_err);
	if (r < 0)
		return err_set(ret_err, -r, "weightd: send: %s", strerror(-r));
	return 0;
}

static int must_check weights_link_read_digest(const ProtobufCBinaryData *from, const char *what,
	struct err *ret_err, bool *ret_has, uint8_t ret_digest[32])
{
	if (from->len != 0 && from->len != 32)
		return err_set(ret_err, EPROTO, "weightd: %s: expected 32 bytes, found %zu", what,
			from->len);
	*ret_has = from->len > 0;
	if (*ret_has)
		memcpy(ret_digest, from->data, 32);
	return 0;
}

int weights_link_read_contents(const ProtobufCBinaryData *identity,
	const ProtobufCBinaryData *file_identity, struct err *ret_err,
	struct weights_client_contents *ret_contents)
{
	struct weights_client_contents c = {0};
	int r = weights_link_read_digest(
		identity, "identity", ret_err, &c.has_identity, c.identity);

	if (r == 0)
		r = weights_link_read_digest(
			file_identity, "file identity", ret_err, &c.has_file, c.file);
	if (r == 0)
		*ret_contents = c;
	return r;
}

static int must_check weights_link_take_event(
	struct weights_link *l, const Wd__Reply *reply, struct err *ret_err)
{
	const Wd__Event *e = reply->event;

	/* A refusal of the connection itself, which then ends. */
	if (reply->body_case == WD__REPLY__BODY_ERROR)
		return weights_link_refusal(reply->error, ret_err);
	if (reply->body_case != WD__REPLY__BODY_EVENT)
		return err_set(ret_err, EPROTO, "weightd: id 0: expected an event, found body %d",
			(int)reply->body_case);
	if (reply->n_fds != 0)
		return err_set(ret_err, EPROTO, "weightd: event: expected no descriptors, found %u",
			reply->n_fds);
	if (e->kind < WD__EVENT__KIND__PROGRESS || e->kind > WD__EVENT__KIND__PREFIXES)
		return err_set(ret_err, EPROTO, "weightd: event: unknown kind %d", (int)e->kind);
	struct weights_client_contents contents = {0};
	int r = weights_link_read_contents(&e->identity, &e->file_identity, ret_err, &contents);
	if (r < 0 || !l->event_fn)
		return r;
	struct weights_client_event event = {
		.kind = (enum weights_client_event_kind)e->kind,
		.model = e->model,
		.generation = e->generation,
		.loaded_bytes = e->loaded_bytes,
		.total_bytes = e->total_bytes,
		.text = e->text,
		.pid = e->pid,
		.since_ns = e->since_ns,
		.contents = contents,
	};
	l->event_fn(&event, l->userdata);
	return 0;
}

int weights_link_recv(struct weights_link *l, Wd__Reply__BodyCase body, int timeout_ms,
	struct err *ret_err, Wd__Reply **ret_reply, struct fdlist *ret_fds)
{
	uint64_t deadline =
		timeout_ms < 0 ? UINT64_MAX : weights_link_now_ms() + (uint64_t)timeout_ms;

	for (;;) {
		_cleanup_(fdlist_fini)
		struct fdlist fds = FDLIST_NULL;
		_cleanup_(weights_link_free_reply)
		Wd__Reply *reply = NULL;
		int r = weights_link_wait(l, deadline);

		if (r < 0)
			return err_set(ret_err, -r, "weightd does not answer: %s", strerror(-r));
		r = weights_link_read(l, ret_err, &reply, &fds);
		if (r == 0 && reply->id == 0) {
			r = weights_link_take_event(l, reply, ret_err);
			if (r == 0)
				continue;
		}
		if (r < 0)
			return r;
		if (reply->id != l->last_id)
			return err_set(ret_err, EPROTO,
				"weightd: reply: expected id %llu, found %llu",
				(unsigned long long)l->last_id, (unsigned long long)reply->id);
		if (reply->body_case == WD__REPLY__BODY_ERROR)
			return weights_link_refusal(reply->error, ret_err);
		if (reply->body_case != body)
			return err_set(ret_err, EPROTO,
				"weightd: reply: expected body %d, found %d", (int)body,
				(int)reply->body_case);
		if (!ret_fds && fds.n > 0)
			return err_set(ret_err, EPROTO,
				"weightd: reply: expected no descriptors, found %u", fds.n);
		*ret_reply = TAKE_PTR(reply);
		if (ret_fds) {
			*ret_fds = fds;
			fds.n = 0;
		}
		return 0;
	}
}

int weights_link_call(struct weights_link *l, Wd__Request *request, Wd__Reply__BodyCase body,
	int timeout_ms, struct err *ret_err, Wd__Reply **ret_reply)
{
	int r = weights_link_send(l, request, NULL, ret_err);

	if (r < 0)
		return r;
	return weights_link_recv(l, body, timeout_ms, ret_err, ret_reply, NULL);
}

int weights_link_poll(struct weights_link *l, struct err *ret_err)
{
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	int r = weights_link_wait(l, 0);

	if (r == -ETIMEDOUT)
		return WEIGHTS_LINK_IDLE;
	if (r < 0)
		return err_set(ret_err, -r, "weightd: poll: %s", strerror(-r));
	r = weights_link_read(l, ret_err, &reply, &fds);
	if (r < 0)
		return r;
	if (reply->id != 0)
		return err_set(ret_err, EPROTO, "weightd: reply: expected an event, found id %llu",
			(unsigned long long)reply->id);
	return weights_link_take_event(l, reply, ret_err);
}
