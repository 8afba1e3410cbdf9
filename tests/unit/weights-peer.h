/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_WEIGHTS_PEER_H
#define TESTS_UNIT_WEIGHTS_PEER_H

/*
 * weightd's side of a socketpair. A client's ids are 1 (Hello), 2, ... so that the answers of a
 * case are in the socket before the client asks.
 */
#include <string.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/weights-client.h"
#include "proto/wire.h"
#include "tests/case.h"

static int weights_peer; /* socket */
static const uint8_t weights_peer_uuid[16] = "0123456789abcdef";

static uint8_t weights_peer_packet[WIRE_MAX_BYTES];

static inline void weights_peer_reply(
	uint64_t id, Wd__Reply__BodyCase body, void *message, const struct fdlist *fds)
{
	Wd__Reply r = WD__REPLY__INIT;

	r.id = id;
	r.n_fds = fds ? fds->n : 0;
	r.body_case = body;
	r.error = message; /* the body is a union of pointers */
	assert_true(wd__reply__get_packed_size(&r) <= sizeof(weights_peer_packet));
	assert_int_equal(wire_send(weights_peer, weights_peer_packet,
				 (uint32_t)wd__reply__pack(&r, weights_peer_packet), fds),
		0);
}

static inline void weights_peer_error(uint64_t id, int code, const char *text)
{
	Wd__Error e = WD__ERROR__INIT;

	e.code = code;
	e.text = (char *)text;
	weights_peer_reply(id, WD__REPLY__BODY_ERROR, &e, NULL);
}

static inline void weights_peer_done(uint64_t id, uint64_t generation)
{
	Wd__Done d = WD__DONE__INIT;

	d.generation = generation;
	weights_peer_reply(id, WD__REPLY__BODY_DONE, &d, NULL);
}

static inline Wd__Device weights_peer_device(void)
{
	static Wd__Heap heap;
	static Wd__Heap *heaps[] = {&heap};
	Wd__Device d = WD__DEVICE__INIT;

	wd__heap__init(&heap);
	heap.n_bytes = 1000;
	heap.device_local = true;
	d.uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)weights_peer_uuid};
	d.driver_uuid = d.uuid;
	d.name = (char *)"Imaginary";
	d.software = true;
	d.n_heaps = 1;
	d.heaps = heaps;
	return d;
}

static inline void weights_peer_welcome(uint32_t protocol)
{
	Wd__Device device = weights_peer_device();
	Wd__Welcome w = WD__WELCOME__INIT;

	w.protocol = protocol;
	w.build = (char *)"test";
	w.device = &device;
	weights_peer_reply(1, WD__REPLY__BODY_WELCOME, &w, NULL);
}

static inline void weights_peer_open(int *ret_fd)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	weights_peer = pair[0];
	*ret_fd = pair[1];
}

/* What the client sent; free it with wd__request__free_unpacked. */
static inline Wd__Request *weights_peer_take(struct fdlist *ret_fds)
{
	struct err e = ERR_NULL;
	uint32_t n;

	*ret_fds = FDLIST_NULL;
	assert_int_equal(wire_recv(weights_peer, weights_peer_packet, &n, ret_fds, &e), 0);
	Wd__Request *r = wd__request__unpack(NULL, n, weights_peer_packet);
	assert_non_null(r);
	assert_int_equal(r->n_fds, ret_fds->n);
	return r;
}

static inline struct weights_client *weights_peer_client(void)
{
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;
	struct fdlist fds;
	int fd;

	weights_peer_open(&fd);
	weights_peer_welcome(WIRE_PROTOCOL);
	if (weights_client_new_connected(fd, WEIGHTS_CLIENT_WORKER, &e, &c) != 0)
		fail_msg("%s", e.text);
	Wd__Request *r = weights_peer_take(&fds);
	assert_int_equal(r->id, 1);
	assert_int_equal(r->body_case, WD__REQUEST__BODY_HELLO);
	assert_int_equal(r->hello->protocol, WIRE_PROTOCOL);
	assert_int_equal(r->hello->role, WD__ROLE__ROLE_WORKER);
	assert_int_equal(fds.n, 0);
	wd__request__free_unpacked(r, NULL);
	return c;
}

static inline void weights_peer_close(struct weights_client *c)
{
	assert_null(weights_client_free(c));
	close(weights_peer);
}

#endif
