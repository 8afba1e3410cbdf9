/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WEIGHTS_CLIENT_STATUS_H
#define PROTO_WEIGHTS_CLIENT_STATUS_H

/*
 * weightd's messages about itself as the plain structs of proto/weights-client.h; for
 * proto/weights-client.c alone. Repeated fields are capped, enums and strings checked. Errors:
 * -EPROTO, -ENOMEM. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>

#include "proto/util/cleanup.h"
#include "proto/weightd.pb-c.h"
#include "proto/weights-client.h"

struct err;

int must_check weights_client_status_read_device(
	const Wd__Device *m, struct err *ret_err, struct weights_client_device *ret_device);

/* Values as sent, unjudged; fd is -1. */
void weights_client_status_read_alloc(
	const Wd__Allocation *m, struct weights_client_alloc *ret_alloc);

int must_check weights_client_status_read_verified(
	const Wd__Verified *m, struct err *ret_err, struct weights_client_verified *ret_verified);

/* Appends to s, which stays valid for weights_client_status_fini on failure. */
int must_check weights_client_status_add_models(
	struct weights_client_status *s, Wd__Model **models, size_t n, struct err *ret_err);

/* One packet of an answer; the first one fills what is not repeated. */
int must_check weights_client_status_add(
	struct weights_client_status *s, const Wd__Status *m, bool first, struct err *ret_err);

#endif
