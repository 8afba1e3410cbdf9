/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_SITE_H
#define WEIGHTCTL_BENCH_SITE_H

/*
 * Daemons of one command alone: in a private directory, ended with it whatever happens (SIGINT,
 * SIGTERM and SIGHUP end them, and what waits for them fails; if weightctl is killed, the kernel
 * tells them). Programs are those beside weightctl's own, or in the places of a build tree, else
 * those of $PATH.
 *
 * The main thread, before it has started others; one site a process.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct bench_site;

int must_check bench_site_new(struct err *ret_err, struct bench_site **ret_site);

/* Ends what runs, workers first, and removes the directory. Accepts NULL; returns NULL. */
struct bench_site *bench_site_free(struct bench_site *s);

/* A signal came. */
bool bench_site_is_interrupted(const struct bench_site *s);

/* device may be NULL. Returns when it is ready; else its last line. */
int must_check bench_site_start_weightd(
	struct bench_site *s, const char *device, struct err *ret_err);

/* The socket of the weightd that was started. Borrowed. */
const char *bench_site_get_weightd(const struct bench_site *s);

struct bench_site_workers {
	uint32_t n;
	const char *weightd; /* a socket's path; NULL: the default */
	const char *model;
	uint32_t n_ctx;
	uint32_t n_sessions;
	const char *kv_type; /* NULL: the worker's default; likewise what follows */
	const char *chunk;
	const char *kernels;
	const char *device;
};

/* All at once; returns when all are ready. */
int must_check bench_site_start_workers(
	struct bench_site *s, const struct bench_site_workers *params, struct err *ret_err);
void bench_site_stop_workers(struct bench_site *s);

/* The socket of a worker. Borrowed until they are stopped. */
const char *bench_site_get_worker(const struct bench_site *s, uint32_t i);

#endif
