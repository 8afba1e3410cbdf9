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

/* A connection of a process that had an earlier one, and the holder's id that it has from that. */
struct quota_return {
	uint64_t peer;
	uint64_t holder;
};

/* Of the socket. Looked for once, not for each hold: whoever may connect chooses how many holders,
 * connections and holds there are. */
static uint32_t quota_list_returns(const struct peer_list *peers, const struct holders *holders,
	uint32_t socket, struct quota_return ret_returns[PEER_MAX])
{
	const struct peer *p;
	uint32_t n = 0;

	if (!holders)
		return 0;
	TAILQ_FOREACH(p, peers, entry)
	{
		uint64_t holder = peer_get_socket(p->id) == socket ? holders_find(holders, p) : 0;
		if (holder && n < PEER_MAX)
			ret_returns[n++] = (struct quota_return){.peer = p->id, .holder = holder};
	}
	return n;
}

/* A process that reconnected has the generation again, and what it held of it is that. */
static bool quota_is_charged(const struct registry *r, const struct quota_return *returns,
	uint32_t n_returns, const struct registry_lease *l)
{
	for (uint32_t i = 0; i < n_returns; i++)
		if (returns[i].holder == l->peer &&
			registry_has_lease(r, l->generation, returns[i].peer))
			return false;
	return true;
}

/* Leases, and holds that are charged. */
static uint32_t quota_count_leases(const struct registry *r, const struct peer_list *peers,
	const struct holders *holders, uint32_t socket)
{
	struct quota_return returns[PEER_MAX];
	uint32_t n_returns = 0, n = 0;
	bool has_returns = false;

	for (uint32_t i = 0; i < registry_count_leases(r); i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (peer_get_socket(l->peer) != socket)
			continue;
		if (l->is_hold && !has_returns) {
			n_returns = quota_list_returns(peers, holders, socket, returns);
			has_returns = true;
		}
		n += !l->is_hold || quota_is_charged(r, returns, n_returns, l);
	}
	return n;
}

/* Is it charged already for what the peer is about to have? */
static bool quota_has_hold(const struct registry *r, const struct holders *holders,
	const struct peer *p, uint64_t generation)
{
	uint64_t holder = holders ? holders_find(holders, p) : 0;

	for (uint32_t i = 0; i < registry_count_leases(r) && holder; i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (l->is_hold && l->generation == generation && l->peer == holder)
			return true;
	}
	return false;
}

struct quota_usage quota_count(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, uint32_t socket,
	quota_bytes_fn bytes_fn)
{
	struct quota_usage usage = {.n_leases = quota_count_leases(r, peers, holders, socket)};
	const struct peer *other;

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
	if (!p->access || !p->access->max_bytes || n_bytes <= p->reserved_bytes)
		return 0;
	const struct quota_usage usage =
		quota_count(r, peers, holders, prefixes, peer_get_socket(p->id), bytes_fn);
	return quota_check_bytes(
		p->access, &usage, n_bytes - p->reserved_bytes, "Reserve", ret_err);
}
