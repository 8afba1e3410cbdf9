/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_SCAN_H
#define WEIGHTD_RPC_SCAN_H

/*
 * What is in a packet and lost when protobuf-c unpacks it: a string becomes a C string and ends at
 * its first NUL, so that "a\0b" and "a" would be one name. And what must not be unpacked: so many
 * messages that they are a large multiple of the packet. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/* A Request of weightd.proto, as it came. -EBADMSG with the field that has a NUL in it, or the most
 * messages that it may have. */
int must_check rpc_scan_request(const uint8_t *data, uint32_t n_bytes, struct err *ret_err);

#endif
