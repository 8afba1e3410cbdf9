/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile weightd: after a right Welcome the input's packets arrive, while the client makes one
 * call.
 *
 *	byte 0       the call
 *	then often   [ descriptors: u8 ] [ n: u16 little ] [ n bytes of packet ]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/weights-client.h"
#include "proto/weights-prefix.h"
#include "proto/wire.h"
#include "tests/fuzz/target.h"

enum { MAX_PACKETS = 8, FILE_BYTES = 4096 };

static const uint8_t uuid[16];

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void send_welcome(int sock)
{
	Wd__Device device = WD__DEVICE__INIT;
	Wd__Welcome welcome = WD__WELCOME__INIT;
	Wd__Reply reply = WD__REPLY__INIT;
	uint8_t packet[256];

	device.uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)uuid};
	device.driver_uuid = device.uuid;
	welcome.protocol = WIRE_PROTOCOL;
	welcome.device = &device;
	reply.id = 1;
	reply.body_case = WD__REPLY__BODY_WELCOME;
	reply.welcome = &welcome;
	size_t n = wd__reply__pack(&reply, packet);
	check(wire_send(sock, packet, (uint32_t)n, NULL) == 0);
}

/* Stops at what is cut short; an empty packet is sent as one. */
static void send_packets(int sock, struct bytes *in)
{
	static int file = -1;

	if (file < 0) {
		file = memfd_create("fuzz", MFD_CLOEXEC);
		check(file >= 0 && ftruncate(file, FILE_BYTES) == 0);
	}
	for (int i = 0; i < MAX_PACKETS; i++) {
		struct fdlist fds = FDLIST_NULL; /* all the same borrowed file: no fini */
		const uint8_t *data;
		uint16_t n;
		uint8_t n_fds;

		if (!bytes_take_u8(in, &n_fds) || !bytes_take_u16(in, &n))
			return;
		data = bytes_take(in, n);
		if (!data)
			return;
		for (fds.n = 0; fds.n < (n_fds & 7u); fds.n++)
			fds.fds[fds.n] = file;
		if (n == 0)
			check(send(sock, "", 0, MSG_NOSIGNAL) == 0);
		else if (wire_send(sock, data, n, &fds) != 0)
			return;
	}
}

static unsigned n_events;

static void count_event(const struct weights_client_event *event, void *userdata)
{
	(void)userdata;
	n_events += event->model[0] != '\0';
}

static int call_prefix(struct weights_client *c, unsigned which, struct err *ret_err)
{
	struct weights_prefix *rows = NULL;
	struct weights_prefix_taken taken;
	struct weights_prefix_publish publish = {
		.model = "m", .device_uuid = uuid, .driver_uuid = uuid, .name = ""};
	uint32_t n_rows = 0;
	uint64_t id;
	bool existed;
	int r;

	switch (which % 3) {
	case 0:
		r = weights_prefix_list(
			c, "m", 1, uuid, uuid, sizeof(uuid), ret_err, &rows, &n_rows);
		for (uint32_t i = 0; i < n_rows; i++)
			check(rows[i].n_tokens > 0);
		free(rows);
		return r;
	case 1:
		r = weights_prefix_take(c, 1, ret_err, &taken);
		if (r == 0)
			weights_prefix_taken_fini(&taken);
		return r;
	default: return weights_prefix_publish(c, &publish, ret_err, &id, &existed);
	}
}

static int call(struct weights_client *c, unsigned which, struct err *ret_err)
{
	struct weights_client_acquired acquired;
	struct weights_client_status status;
	struct weights_client_verified verified;
	uint64_t generation;
	int r;

	if (which >= 6)
		return call_prefix(c, which, ret_err);
	switch (which) {
	case 0:
		r = weights_client_acquire(c, "m", uuid, uuid, ret_err, &acquired);
		if (r == 0)
			weights_client_acquired_fini(&acquired);
		return r;
	case 1:
		r = weights_client_status(c, ret_err, &status);
		if (r == 0)
			weights_client_status_fini(&status);
		return r;
	case 2:
		r = weights_client_list(c, ret_err, &status);
		if (r == 0)
			weights_client_status_fini(&status);
		return r;
	case 3: return weights_client_load(c, "m", "p", 0, false, ret_err, &generation);
	case 4: return weights_client_dispatch(c, ret_err);
	default: return weights_client_verify(c, "m", ret_err, &verified);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct bytes in = {.data = data, .n_bytes = n_bytes};
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;
	uint8_t which;
	int pair[2];

	if (!bytes_take_u8(&in, &which))
		return 0;
	check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	send_welcome(pair[0]);
	send_packets(pair[0], &in);
	check(weights_client_new_connected(pair[1], WEIGHTS_CLIENT_WORKER, &e, &c) == 0);
	weights_client_set_event_fn(c, count_event, NULL);
	/* Half closed: requests still go out, and after the input comes the end. */
	check(shutdown(pair[0], SHUT_WR) == 0);
	if (call(c, which, &e) < 0)
		check(e.text[0] != '\0');
	weights_client_free(c);
	close(pair[0]);
	return 0;
}
