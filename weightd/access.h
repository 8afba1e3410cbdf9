/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ACCESS_H
#define WEIGHTD_ACCESS_H

/*
 * What a listening socket allows to those who connect to it: the text of --listen, and the
 * judgements that need nothing else. A container's uids mean little outside of it and its pids may
 * be invisible, so the socket that it was given is its identity. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

enum {
	ACCESS_MAX_PATH_BYTES = 108, /* sun_path of unix(7), its NUL included */
	ACCESS_MAX_PATTERNS = 64,
	ACCESS_MAX_PATTERN_BYTES = 65, /* the longest name of a model and a NUL */
	ACCESS_MAX_IDS = 64,
	ACCESS_MAX_LEASES = 65536, /* REGISTRY_MAX_LEASES */
	ACCESS_MAX_REQUESTS = 1000000,
	ACCESS_MAX_CONNECTIONS = 65536,
	ACCESS_MODE = 0660, /* of the socket's file: owner and group */
};

struct access {
	char path[ACCESS_MAX_PATH_BYTES];
	uint32_t mode;     /* of the socket's file */
	bool is_owner;     /* --socket: everything is shown and allowed */
	bool has_control;  /* Load, Unload, Pin, Verify, events about other peers */
	uint32_t n_models; /* 0: all */
	char models[ACCESS_MAX_PATTERNS][ACCESS_MAX_PATTERN_BYTES]; /* fnmatch(3) */
	uint32_t n_uids, n_gids; /* both 0: whoever the file's permissions let in */
	uint32_t uids[ACCESS_MAX_IDS];
	uint32_t gids[ACCESS_MAX_IDS];
	/* The most at a time; 0: not limited here. */
	uint32_t max_leases;
	uint64_t max_bytes;    /* weights, each generation once, and granted reservations */
	uint32_t max_requests; /* a second */
	uint32_t max_connections;
	uint32_t max_uid_connections; /* of one uid */
};

/* "PATH[,OPTION=VALUE]..." of --listen, see weightd --help. -EINVAL with the option and what was
 * found. */
int must_check access_parse(const char *text, struct err *ret_err, struct access *ret_access);

/* --socket. path is not too long. */
void access_init_owner(struct access *a, const char *path, uint32_t mode);

/*
 * Shares of n connections for all n_sockets of --listen together, where the option did not say: a
 * socket has its part of them, and one uid at most half of that part.
 */
void access_share(struct access *a, uint32_t n, uint32_t n_sockets);

/* Does the socket show the model? a NULL: all are shown. */
bool access_shows(const struct access *a, const char *model);

/* Is anything hidden behind this socket? */
bool access_hides(const struct access *a);

/* Load and its like. what: the request's name. -EPERM. */
int must_check access_check_control(const struct access *a, const char *what, struct err *ret_err);

/* A model's name in a request that may make one. -EPERM. */
int must_check access_check_name(
	const struct access *a, const char *what, const char *model, struct err *ret_err);

/* Who connects: its uid, and all of its groups. -EACCES. */
int must_check access_check_peer(const struct access *a, uint32_t uid, const uint32_t *gids,
	uint32_t n_gids, struct err *ret_err);

/* Connections that are open. */
struct access_crowd {
	uint32_t n_all; /* of all sockets */
	uint32_t max_all;
	uint32_t n_listened; /* of those of --listen together */
	uint32_t max_listened;
	uint32_t n_here;
	uint32_t n_uid; /* of the one that connects, here */
};

/* May one more connection be open? -EAGAIN. */
int must_check access_check_crowd(const struct access *a, uint32_t uid,
	const struct access_crowd *crowd, struct err *ret_err);

#endif
