/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_STACK_H
#define WORKERD_STACK_H

/*
 * All that a worker has on the device: the weights of one generation, the KV cache and the plan,
 * with the lease and the grant that they need. It is made at the start, dropped when the worker
 * parks, and made anew; the Vulkan device under it stays.
 *
 * Whoever calls has the client and the device: the main thread at the start, then the engine thread
 * (workerd/loan.h).
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"
#include "workerd/ledger.h"

struct err;
struct baton;
struct kv;
struct options;
struct plan;
struct vk_device;
struct weights;
struct weights_refusal;

/* Borrowed while there is a stack or one may be made. */
struct stack_params {
	struct weights_client *weightd;
	struct vk_device *device;
	const struct options *options;
	uint32_t n_import_threads; /* see weights_attach_params */
	const char *socket;        /* where clients find the worker, for its report */
};

/* Under --fail-on-spill memory is not where it belongs: the process is to end. */
enum { STACK_SPILLED = 16 };

struct stack {
	struct weights *weights;
	struct kv *kv;
	struct plan *plan;
	struct baton *baton;       /* NULL: none */
	struct ledger_chunk chunk; /* that fitted */
	uint64_t n_spills;         /* that have been told of, see ledger_count_spills */
	uint64_t n_granted_bytes;
	struct weights_client_report report; /* as weightd was told */
};

/*
 * Takes a lease on the newest generation (waiting while the model loads) and imports it; reserves
 * what KV, scratch and io will take, with as large a chunk as is granted, in steps of
 * OPTIONS_CHUNK_STEP; allocates; tells weightd what it has come to. On failure nothing is left, no
 * lease and no grant either. Scratch goes into host memory only where the smallest chunk's does not
 * fit either.
 *
 * Refused with a sentence: no such model, an option that does not fit it, no memory (who holds it,
 * when it is weightd that says so). STACK_SPILLED with a sentence. WEIGHTS_REFUSED with ret_refusal
 * as weights_attach; VK_DEVICE_LOST.
 */
int must_check stack_new(const struct stack_params *params, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct stack **ret_stack);

/*
 * Between steps: has memory that was made since the last look spilled? Says so in one line; under
 * --fail-on-spill that line is the error of STACK_SPILLED. Cheap where nothing has.
 */
int must_check stack_check_spills(
	struct stack *s, const struct stack_params *params, struct err *ret_err);

/* Frees memory and imports; weightd hears nothing of it. Accepts NULL; returns NULL. */
struct stack *stack_free(struct stack *s);

/* After stack_free: gives the lease and the grant back and says so. -ENOTCONN, ... */
int must_check stack_leave(
	const struct stack_params *params, uint64_t generation, struct err *ret_err);

/*
 * The tokens of the model's newest generation without a lease on it, to be compared: its manifest,
 * the caller's to free.
 */
struct manifest;
int must_check stack_describe(
	const struct stack_params *params, struct err *ret_err, struct manifest **ret_manifest);

#endif
