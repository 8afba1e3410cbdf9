/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_STATUS_JSON_H
#define WEIGHTCTL_STATUS_JSON_H

/*
 * Status as JSON. Figures are in bytes and nanoseconds, names those of the two protocols. What is
 * returned is the caller's reference; NULL: no memory.
 */
#include <jansson.h>

struct weights_client_status;
struct worker_client_status;

json_t *status_json_models(const struct weights_client_status *s); /* an array */
json_t *status_json_weightd(const struct weights_client_status *s);
json_t *status_json_worker(const struct worker_client_status *s);

#endif
