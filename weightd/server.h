/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SERVER_H
#define WEIGHTD_SERVER_H

/*
 * The loop: the listening sockets, their connections, signals and the loader's news. The thread
 * that calls it is the loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct access;
struct err;
struct policy;
struct restart;

enum { SERVER_MAX_LISTENS = 32 };

/* A model of the command line. */
struct server_model {
	const char *name;
	const char *path;
	int fd; /* owned; -1 once it is being loaded */
};

/* Everything borrowed. */
struct server_params {
	const char *socket;
	const struct access *listens; /* [n_listens], at most SERVER_MAX_LISTENS */
	uint32_t n_listens;
	const char *const
		*devices; /* [n_devices], vk_device_new's select; the first is the default */
	uint32_t n_devices;
	const struct policy *policy;
	uint64_t alloc_bytes; /* see load_params */
	uint64_t window_bytes;
	bool use_pread;
	uint64_t scrub_ns; /* see loader_params */
	uint32_t scrub_percent;
	uint64_t idle_ns; /* see service_params */
	uint64_t idle_unload_ns;
	unsigned n_keep_seconds; /* that the keeper waits for the next weightd; 0: no keeper */
	const char *const *pin_writable; /* [n_pin_writable] */
	uint32_t n_pin_writable;
	uint32_t n_models;
	struct server_model *models;
};

/* A condition of server_run. */
enum { SERVER_EXECUTE = 1 };

/*
 * Serves until SIGTERM or SIGINT: 0, or SIGHUP: SERVER_EXECUTE, everything is given up but
 * *ret_restart, the caller's for restart_execute. It says on stderr that it is ready when the
 * models of the command line are. -errno with a sentence when it cannot start, or one of these does
 * not load.
 */
int must_check server_run(
	const struct server_params *params, struct err *ret_err, struct restart **ret_restart);

#endif
