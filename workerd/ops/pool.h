/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_POOL_H
#define WORKERD_OPS_POOL_H

/*
 * The pipelines of a plan: one for each kernel and specialization that its ops ask for, made at the
 * first request. Engine thread, when commands are recorded; a step makes none.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "shaders/kernels.h"

struct err;
struct op_fragment;
struct op_pool;
struct tuning;
struct vk_command;
struct vk_device;
struct vk_device_info;

enum { OP_POOL_MAX_SPEC = 15 };

/*
 * All specializations of all kernels that one model asks for are some dozens, and those of tuned
 * products one for each of them and number of rows.
 */
enum { OP_POOL_MAX_PIPELINES = 1024 };

/* A kernel with its own specialization constants, those from ABI_SPEC_KERNEL on. */
struct op_pool_kernel {
	enum kernels_id id;
	uint32_t n_subgroups; /* of a workgroup */
	uint32_t n_spec;
	uint32_t spec[OP_POOL_MAX_SPEC];
};

/* Tries the device's matrices out. -ENOTSUP, -ENOMEM, errors of the device, with ret_err. */
int must_check op_pool_new(struct vk_device *d, struct err *ret_err, struct op_pool **ret_pool);

/* No submitted work may use its pipelines any more. Accepts NULL; returns NULL. */
struct op_pool *op_pool_free(struct op_pool *pool);

/* Pipelines that it has made or gathered, of at most OP_POOL_MAX_PIPELINES. */
uint32_t op_pool_count(const struct op_pool *pool);

/* Of the device. Borrowed. */
const struct vk_device_info *op_pool_get_info(const struct op_pool *pool);

uint32_t op_pool_get_subgroup_size(const struct op_pool *pool);

/* What a workgroup may have of shared memory. */
uint32_t op_pool_get_shared_bytes(const struct op_pool *pool);

/* How lanes have the device's matrices, as op_matrix_order_find has found; 0: otherwise. */
uint32_t op_pool_get_matrix_order(const struct op_pool *pool);
/* Which lanes have what of the device's matrices. Borrowed. */
const struct op_fragment *op_pool_get_fragment(const struct op_pool *pool);

/* What ops of products choose by before their own rules; borrowed. NULL: nothing, as at first. */
void op_pool_set_tuning(struct op_pool *pool, const struct tuning *tuning);
const struct tuning *op_pool_get_tuning(const struct op_pool *pool);

/* A software driver: loads are dear, registers are memory, subgroups are narrow. */
bool op_pool_is_software(const struct op_pool *pool);

/*
 * Records one dispatch of n_subgroups_x by n_y subgroups, rounded up to workgroups. push has the
 * kernel's size. -ENOMEM, VK_DEVICE_LOST, -errno of vk_pipeline_new, with ret_err.
 */
int must_check op_pool_dispatch(struct op_pool *pool, struct vk_command *c,
	const struct op_pool_kernel *kernel, const void *push, uint32_t n_subgroups_x, uint32_t n_y,
	struct err *ret_err);

/* What it makes from now on is to be measured, and most of it never seen again. */
void op_pool_set_trial(struct op_pool *pool);

/*
 * Until op_pool_make, what is dispatched is not recorded but remembered; then the pipelines of all
 * of it that are not there yet are made by several threads. A driver's compiler takes a tenth of a
 * second for some.
 */
void op_pool_gather(struct op_pool *pool);
void op_pool_make(struct op_pool *pool);

/*
 * Called before and behind each dispatch that is recorded, which may add timestamps there; NULL:
 * nobody is, as at first.
 */
typedef void (*op_pool_watch_fn)(
	void *userdata, struct vk_command *c, enum kernels_id id, bool is_behind);
void op_pool_set_watch(struct op_pool *pool, op_pool_watch_fn fn, void *userdata);

#endif
