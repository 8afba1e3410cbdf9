/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LINK_H
#define WORKERD_LINK_H

/*
 * The worker's connection to weightd from ready to the end: the one place that reads what weightd
 * says. When it ends, the worker goes on, for weights and their memory are its own already; the
 * link connects again, to whichever weightd is there then, resumes the lease, and hands over the
 * descriptors where that weightd lacks them; a parked worker only says that it is there, and so
 * does one whose generation that weightd does not have: the engine hears of it. Calls that wait are
 * made on a thread that lives as long as they do, so that the loop never waits for weightd; for
 * those of the engine it gets the client (workerd/loan.h).
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"

struct event_base;
struct link;
struct lease;
struct loan;
struct notice_params;
struct vk_device_info;

struct link_params {
	struct event_base *base;
	const char *path; /* weightd's socket; NULL: weights_client_default_path */
	const char *model;
	const struct vk_device_info *device;
	uint32_t handle_types; /* see weights_client_set_handle_types */
	struct lease *lease;   /* what is told whenever it is up again */
	struct loan *loan;     /* of its client to the engine; open while the link is up */
	struct notice_params *notice;
	bool *is_connected; /* kept up to date */
};

/* All borrowed but the client, whose connection is the lease, on success. */
int must_check link_new(const struct link_params *params, struct weights_client *weightd,
	struct err *ret_err, struct link **ret_link);

/* The engine gets the client no more; where it has it, its calls end. */
void link_stop(struct link *l);

/* Ends the lease. What waits for weightd ends at once. Accepts NULL; returns NULL. */
struct link *link_free(struct link *l);

#endif
