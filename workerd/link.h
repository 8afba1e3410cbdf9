/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LINK_H
#define WORKERD_LINK_H

/*
 * The worker's connection to weightd from ready to the end: the one place that reads what weightd
 * says. When it ends, the worker goes on, for weights and their memory are its own already; the
 * link connects again, to whichever weightd is there then, resumes the lease, and hands over the
 * descriptors where that weightd lacks them. Calls that wait are made on a thread that lives as
 * long as they do, so that the loop never waits for weightd.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"

struct event_base;
struct link;
struct vk_device_info;
struct weights;

struct link_params {
	struct event_base *base;
	const char *path; /* weightd's socket; NULL: weights_client_default_path */
	const char *model;
	const struct vk_device_info *device;
	const struct weights *weights;
	uint32_t handle_types;               /* see weights_client_set_handle_types */
	struct weights_client_report report; /* told again whenever the link is up */
	bool *is_connected;                  /* kept up to date */
};

/* All borrowed but the client, whose connection is the lease, on success. Tells the report. */
int must_check link_new(const struct link_params *params, struct weights_client *weightd,
	struct err *ret_err, struct link **ret_link);

/* Ends the lease. What waits for weightd ends at once. Accepts NULL; returns NULL. */
struct link *link_free(struct link *l);

#endif
