/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_ON_LOADER_H
#define TESTS_VULKAN_ON_LOADER_H

/*
 * A loader on the device that the tests run on, loads of the small model that the repository has,
 * and what importers find of them. Every helper fails the test on an error.
 */
#include "tests/vulkan/on-device.h"

#include "weightd/loader.h"
#include "weightd/policy.h"
#include "weightd/source.h"

struct export;

extern struct policy on_loader_policy; /* of the loaders of a case; set before start */
extern struct source_account on_loader_account;

int on_loader_open_model(void);

/* A copy that a test may change. */
int on_loader_copy_model(void);

/* device, policy and account of params are set here. */
struct loader *on_loader_start_with(const struct loader_params *params);
struct loader *on_loader_start(uint64_t alloc_bytes, bool use_pread);

/* A rule for the policy. */
void on_loader_place(const char *rule);

/* Closes fd. As loader_load. */
int on_loader_load_fd(struct loader *l, uint64_t generation, int fd, struct err *ret_err);

/* The next result that is no progress. */
struct loader_result on_loader_wait_result(struct loader *l);

/* Closes fd. */
struct loader_result on_loader_load(struct loader *l, uint64_t generation, int fd);
struct export *on_loader_load_ready(struct loader *l, uint64_t generation);

/* Bytes of weights on the device. The account follows the loader thread, some time later. */
uint64_t on_loader_count_weights(struct loader *l);
void on_loader_wait_weights(struct loader *l, uint64_t n_bytes);
void on_loader_wait_nothing_staged(void);

/*
 * Every tensor is byte for byte what the file says; every byte of device memory that is no
 * tensor's is zero.
 */
void on_loader_check_contents(const struct export *e);

#endif
