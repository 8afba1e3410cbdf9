/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/quota.h"

#include <errno.h>

#include "proto/util/err.h"
#include "weightd/access.h"
#include "weightd/holders.h"
#include "weightd/peer.h"
#include "weightd/prefixes.h"
#include "weightd/registry.h"

/* Does anybody of the socket have the generation already? */
static bool quota_has_generation(struct registry *r, uint32_t socket, uint64_t generation)
{
	for (uint32_t i = 0; i < registry_count_leases(r); i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (l->generation == generation && peer_get_socket(l->peer) == socket)
			return true;
	}
	return false;
}

static bool quota_is_holder(const struct holders *holders, const struct peer *p, uint64_t id)
{
	return holders && holders_find(holders, p) == id;
}

/* A process that reconnected has the generation again, and what it held of it is that. */
static bool quota_is_charged(const struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct registry_lease *l)
{
	const struct peer *p;

	if (!l->is_hold)
		return true;
	TAILQ_FOREACH(p, peers, entry)
	if (peer_get_socket(p->id) == peer_get_socket(l->peer) &&
		quota_is_holder(holders, p, l->peer) && registry_has_lease(r, l->generation, p->id))
		return false;
	return true;
}

/* Is it charged already for what the peer is about to have? */
static bool quota_has_hold(const struct registry *r, const struct holders *holders,
	const struct peer *p, uint64_t generation)
{
	for (uint32_t i = 0; i < registry_count_leases(r); i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (l->is_hold && l->generation == generation &&
			quota_is_holder(holders, p, l->peer))
			return true;
	}
	return false;
}

struct quota_usage quota_count(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, uint32_t socket,
	quota_bytes_fn bytes_fn)
{
	struct quota_usage usage = {0};
	const struct peer *other;

	for (uint32_t i = 0; i < registry_count_leases(r); i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (peer_get_socket(l->peer) == socket)
			usage.n_leases += quota_is_charged(r, peers, holders, l);
	}
	for (uint32_t i = 0; i < registry_count(r) && usage.n_leases; i++) {
		const struct registry_generation *g = registry_at(r, i);
		if (quota_has_generation(r, socket, g->id))
			usage.weights_bytes += bytes_fn(g->data);
	}
	TAILQ_FOREACH(other, peers, entry)
	if (peer_get_socket(other->id) == socket)
		usage.reserved_bytes += other->reserved_bytes;
	if (prefixes)
		usage.weights_bytes += prefixes_count_bytes(prefixes, socket);
	return usage;
}

static int quota_check_bytes(const struct access *a, const struct quota_usage *u, uint64_t n_more,
	const char *what, struct err *ret_err)
{
	uint64_t n_bytes = 0;

	if (!a->max_bytes)
		return 0;
	if (__builtin_add_overflow(u->weights_bytes, u->reserved_bytes, &n_bytes) ||
		n_bytes > a->max_bytes || n_more > a->max_bytes - n_bytes)
		return err_set(ret_err, EDQUOT,
			"%s: %llu bytes more than the %llu of weights and %llu of reservations "
			"that "
			"this socket holds are above its %llu",
			what, (unsigned long long)n_more, (unsigned long long)u->weights_bytes,
			(unsigned long long)u->reserved_bytes, (unsigned long long)a->max_bytes);
	return 0;
}

int quota_check_lease(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, const struct peer *p,
	uint64_t generation, quota_bytes_fn bytes_fn, struct err *ret_err)
{
	const struct access *a = p->access;
	uint32_t socket = peer_get_socket(p->id);
	uint64_t n_more = 0;

	if (!a || (!a->max_leases && !a->max_bytes) || registry_has_lease(r, generation, p->id) ||
		quota_has_hold(r, holders, p, generation))
		return 0;
	const struct registry_generation *g = registry_find(r, generation);
	const struct quota_usage usage = quota_count(r, peers, holders, prefixes, socket, bytes_fn);
	if (a->max_leases && usage.n_leases >= a->max_leases)
		return err_set(ret_err, EDQUOT,
			"model %s: %u lease%s of this socket %s in use, the most; one whose "
			"connection ended is, until its process does",
			g->model, usage.n_leases, usage.n_leases == 1 ? "" : "s",
			usage.n_leases == 1 ? "is" : "are");
	if (!quota_has_generation(r, socket, generation))
		n_more = bytes_fn(g->data);
	return quota_check_bytes(a, &usage, n_more, g->model, ret_err);
}

int quota_check_reserve(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, const struct peer *p,
	uint64_t n_bytes, quota_bytes_fn bytes_fn, struct err *ret_err)
{
	if (!p->access || n_bytes <= p->reserved_bytes)
		return 0;
	const struct quota_usage usage =
		quota_count(r, peers, holders, prefixes, peer_get_socket(p->id), bytes_fn);
	return quota_check_bytes(
		p->access, &usage, n_bytes - p->reserved_bytes, "Reserve", ret_err);
}

int quota_check_publish(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, const struct peer *p,
	uint64_t n_bytes, quota_bytes_fn bytes_fn, struct err *ret_err)
{
	if (!p->access)
		return 0;
	const struct quota_usage usage =
		quota_count(r, peers, holders, prefixes, peer_get_socket(p->id), bytes_fn);
	return quota_check_bytes(p->access, &usage, n_bytes, "Publish", ret_err);
}
