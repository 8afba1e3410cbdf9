/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_BENCH_MEMORY_H
#define WORKERD_BENCH_MEMORY_H

/*
 * What the memory of the weights gives on this device, and what a plain copy gives in the same run.
 * Engine thread, between two steps.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fetch;
struct op_pool;
struct vk_device;
struct weights;

enum { BENCH_MEMORY_MAX_RATES = 4 };

/* Of the weights of one placement. Times are the best of some runs; 0: nothing to measure. */
struct bench_memory_rate {
	uint32_t placement; /* enum manifest_placement */
	uint64_t n_bytes;
	uint64_t read_ns; /* a kernel reads all of them where they are */
	uint64_t copy_ns; /* device: a kernel copies them; host: the transfer queue does */
	uint64_t n_stream_bytes;
	uint64_t stream_ns; /* what all streamed layers copy, whatever their placement */
};

/* All borrowed for the call; fetch may be NULL. */
struct bench_memory_params {
	struct vk_device *device;
	const struct weights *weights;
	struct op_pool *pool;
	struct fetch *fetch;
};

/* A rate for each placement that has bytes. -ENOMEM, -EIO, VK_DEVICE_LOST. */
int must_check bench_memory_run(const struct bench_memory_params *params, struct err *ret_err,
	struct bench_memory_rate ret_rates[BENCH_MEMORY_MAX_RATES], uint32_t *ret_n);

#endif
