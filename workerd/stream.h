/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_STREAM_H
#define WORKERD_STREAM_H

/*
 * Steps of many rows over weights in host memory: the graph's segments recorded to read the slots
 * of a fetch, and enqueued each behind its copies. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fetch;
struct graph;
struct op_pool;
struct record_addresses;
struct stream;
struct vk_device;
struct weights;

/* All borrowed for the stream's life. */
struct stream_params {
	struct vk_device *device;
	const struct weights *weights;
	const struct graph *graph;
	struct op_pool *pool;
	const struct record_addresses *addresses;
	bool may_spill; /* slots of weights that cannot be read where they are */
};

/* *ret_stream is NULL where fetch_new has nothing to copy. */
int must_check stream_new(
	const struct stream_params *params, struct err *ret_err, struct stream **ret_stream);

/* No submitted work may use it any more. Accepts NULL; returns NULL. */
struct stream *stream_free(struct stream *s);

struct fetch *stream_get_fetch(const struct stream *s);

/* The end of the last op of some copied layers: enough of them to be measured. 0: only the head. */
uint32_t stream_get_sample_end(const struct stream *s);

/*
 * Records the commands of the bucket (up to 1 << bucket rows; below STREAM_MAX_BUCKETS), which are
 * submitted again ever after. Errors of the ops.
 */
enum { STREAM_MAX_BUCKETS = 16 };
int must_check stream_prepare(struct stream *s, uint32_t bucket, bool is_head, struct err *ret_err);

/*
 * Enqueues the head's segments, or all others that begin before end_op, with their copies; nothing
 * is waited for but a place in the staging ring. *ret_ticket: of the last one's compute. After an
 * error nothing of it runs any more.
 */
int must_check stream_submit(struct stream *s, uint32_t bucket, bool is_head, uint32_t end_op,
	struct err *ret_err, uint64_t *ret_ticket);

/* Dispatches of a prepared bucket. */
uint32_t stream_get_n_dispatches(const struct stream *s, uint32_t bucket, bool is_head);

#endif
