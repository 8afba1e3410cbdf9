/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/rpc-scan.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"

enum {
	RPC_SCAN_MAX_DEPTH = 4, /* of messages in a Request */
	/* Of those, in all: two bytes become fifty and more once unpacked. No Request needs half as
	 * many. */
	RPC_SCAN_MAX_MESSAGES = 64,
	RPC_SCAN_VARINT = 0, /* the wire types of protobuf's encoding */
	RPC_SCAN_64_BIT = 1,
	RPC_SCAN_LENGTH = 2,
	RPC_SCAN_32_BIT = 5,
};

struct rpc_scan {
	const uint8_t *at;
	const uint8_t *end;
	uint32_t *n_messages; /* met until now */
};

static bool rpc_scan_varint(struct rpc_scan *s, uint64_t *ret)
{
	uint64_t value = 0;

	for (unsigned shift = 0; shift < 64 && s->at < s->end; shift += 7) {
		uint8_t byte = *s->at++;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte & 0x80)
			continue;
		*ret = value;
		return true;
	}
	return false;
}

static bool rpc_scan_skip(struct rpc_scan *s, uint64_t n)
{
	if (n > (uint64_t)(s->end - s->at))
		return false;
	s->at += n;
	return true;
}

static int rpc_scan_message(struct rpc_scan s, const ProtobufCMessageDescriptor *message,
	unsigned depth, struct err *ret_err);

/* The value of a field with a length, which s is at. */
static int rpc_scan_value(const struct rpc_scan *value, const ProtobufCMessageDescriptor *message,
	uint32_t number, unsigned depth, struct err *ret_err)
{
	const ProtobufCFieldDescriptor *field =
		protobuf_c_message_descriptor_get_field(message, number);

	if (!field)
		return 0;
	if ((field->type == PROTOBUF_C_TYPE_MESSAGE || field->label == PROTOBUF_C_LABEL_REPEATED) &&
		++*value->n_messages > RPC_SCAN_MAX_MESSAGES)
		return err_set(ret_err, EBADMSG, "packet: expected at most %d messages in it",
			RPC_SCAN_MAX_MESSAGES);
	if (field->type == PROTOBUF_C_TYPE_MESSAGE)
		return rpc_scan_message(*value, field->descriptor, depth + 1, ret_err);
	if (field->type == PROTOBUF_C_TYPE_STRING &&
		memchr(value->at, '\0', (size_t)(value->end - value->at)))
		return err_set(ret_err, EBADMSG, "%s: %s: expected text, found a NUL in it",
			message->short_name, field->name);
	return 0;
}

/* What is no protobuf ends the scan: unpacking, which follows, says so. */
static int rpc_scan_message(struct rpc_scan s, const ProtobufCMessageDescriptor *message,
	unsigned depth, struct err *ret_err)
{
	uint64_t tag, n;
	int rc = 0;

	if (depth > RPC_SCAN_MAX_DEPTH)
		return err_set(ret_err, EBADMSG, "packet: expected messages at most %d deep",
			RPC_SCAN_MAX_DEPTH);
	while (rc == 0 && s.at < s.end && rpc_scan_varint(&s, &tag)) {
		bool is_good = true;
		switch (tag & 7) {
		case RPC_SCAN_VARINT: is_good = rpc_scan_varint(&s, &n); break;
		case RPC_SCAN_64_BIT: is_good = rpc_scan_skip(&s, 8); break;
		case RPC_SCAN_32_BIT: is_good = rpc_scan_skip(&s, 4); break;
		case RPC_SCAN_LENGTH:
			is_good = rpc_scan_varint(&s, &n) && rpc_scan_skip(&s, n);
			if (is_good)
				rc = rpc_scan_value(
					&(struct rpc_scan){s.at - n, s.at, s.n_messages}, message,
					(uint32_t)(tag >> 3), depth, ret_err);
			break;
		default: is_good = false;
		}
		if (!is_good)
			break;
	}
	return rc;
}

int rpc_scan_request(const uint8_t *data, uint32_t n_bytes, struct err *ret_err)
{
	uint32_t n_messages = 0;
	const struct rpc_scan s = {.at = data, .end = data + n_bytes, .n_messages = &n_messages};

	return rpc_scan_message(s, &wd__request__descriptor, 0, ret_err);
}
