/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_IMPORT_H
#define WORKERD_IMPORT_H

/*
 * The memory behind a lease: what weightd says of it is checked, windows are mapped, and everything
 * is imported, large allocations beside each other. Main thread; for workerd/weights alone.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/weights.h"

struct err;
struct vk_device;
struct weights_client_acquired;

/*
 * Fills w->allocs, w->maps and w->n_bytes as w->manifest wants them; what was done before a failure
 * is w's to free. Descriptors that were taken are -1 in acquired afterwards. n_threads as in struct
 * weights_attach_params. -errno of the first allocation that failed, or WEIGHTS_REFUSED.
 */
int must_check import_run(struct weights *w, struct vk_device *d,
	struct weights_client_acquired *acquired, uint32_t n_threads, struct err *ret_err,
	struct weights_refusal *ret_refusal);

#endif
