/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_REPLY_H
#define WEIGHTD_RPC_REPLY_H

/*
 * Replies and events into a peer's queue, in packets below the wire's caps. What cannot be sent
 * breaks the peer (weightd/peer.h). Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

struct check_report;
struct err;
struct export;
struct export_importer;
struct peer;
struct service;

/* code: -errno. */
void rpc_reply_error(struct peer *p, uint64_t request, int code, const struct err *err);
void rpc_reply_welcome(struct peer *p, uint64_t request, struct service *s);
void rpc_reply_done(struct peer *p, uint64_t request, uint64_t generation);

/* The peer has its lease. e: of the generation; NULL: it is lost, and weightd has nothing of it. */
void rpc_reply_resumed(
	struct peer *p, uint64_t request, uint64_t generation, const struct export *e);

/* The peer's descriptors are wanted first. */
void rpc_reply_wants_descriptors(struct peer *p, uint64_t request, uint64_t generation);

/*
 * The peer has a lease on the generation: its descriptors are lent to the queue. importer: the
 * peer's, for which every allocation has an offer.
 */
void rpc_reply_acquired(struct peer *p, uint64_t request, uint64_t generation,
	const struct export *e, const struct export_importer *importer);

/* The manifest and what the allocations are. */
void rpc_reply_described(
	struct peer *p, uint64_t request, uint64_t generation, const struct export *e);

/* n_bytes: that the peer has of the device from here on. */
void rpc_reply_reserved(struct peer *p, uint64_t request, uint64_t n_bytes);
void rpc_reply_verified(
	struct peer *p, uint64_t request, uint64_t generation, const struct check_report *report);

void rpc_reply_models(struct peer *p, uint64_t request, struct service *s);
void rpc_reply_status(struct peer *p, uint64_t request, struct service *s);

enum rpc_reply_event_kind { /* Event.Kind of weightd.proto */
	RPC_REPLY_PROGRESS = 1,
	RPC_REPLY_READY,
	RPC_REPLY_FAILED,
	RPC_REPLY_UNLOADED,
	RPC_REPLY_ATTACHED,
	RPC_REPLY_DETACHED,
	RPC_REPLY_LOST,
	RPC_REPLY_PRESSURE,
	RPC_REPLY_REPLACED,
	RPC_REPLY_CORRUPT,
	RPC_REPLY_EXPELLED,
	RPC_REPLY_IDENTIFIED,
	RPC_REPLY_PREFIXES,
};

/* Strings are borrowed for the call; NULL is empty. */
struct rpc_reply_event {
	enum rpc_reply_event_kind kind;
	const char *model;
	uint64_t generation;
	uint64_t loaded_bytes;
	uint64_t total_bytes;
	const char *text;
	const char *discreet_text; /* in place of text for who may not hear of pids; NULL: text */
	int32_t pid;
	uint64_t since_ns;
	const struct export *export; /* any of the generation's; NULL: its contents are not told */
};

void rpc_reply_event(struct peer *p, const struct rpc_reply_event *event);

#endif
