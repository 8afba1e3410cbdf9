/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_STATUS_MEMORY_H
#define WEIGHTCTL_STATUS_MEMORY_H

/* What `status` says of a worker's own memory. */
#include <jansson.h>

struct worker_client_memory;
struct worker_client_status;

/* An array, a role each, with the heaps it lies in; NULL without memory. The caller's. */
json_t *status_memory_json_roles(const struct worker_client_status *s);

/* Heaps, slices, scratch and chunk; NULL without memory. The caller's. */
json_t *status_memory_json(const struct worker_client_memory *m);

/* Lines of two spaces and more, to stdout. */
void status_memory_print(const struct worker_client_status *s);

#endif
