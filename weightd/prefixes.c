/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/prefixes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/peer.h"

/* Of one peer, or of a process whose connection ended. */
struct prefixes_lease {
	uint64_t prefix;
	uint64_t peer;
};

struct prefixes {
	prefixes_freed_fn fn;
	void *userdata;
	uint64_t next_id;
	uint32_t n;
	struct prefix rows[PREFIXES_MAX];
	uint32_t n_leases;
	struct prefixes_lease leases[PREFIXES_MAX_LEASES];
};

int prefixes_new(prefixes_freed_fn fn, void *userdata, struct prefixes **ret_prefixes)
{
	struct prefixes *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->fn = fn;
	p->userdata = userdata;
	p->next_id = PREFIXES_FIRST_ID;
	*ret_prefixes = p;
	return 0;
}

static void prefixes_close_fds(struct prefix *row)
{
	cleanup_close(&row->tokens_fd);
	cleanup_close(&row->memory_fd);
}

struct prefixes *prefixes_free(struct prefixes *p)
{
	if (!p)
		return NULL;
	for (uint32_t i = 0; i < p->n; i++)
		prefixes_close_fds(&p->rows[i]);
	free(p);
	return NULL;
}

int prefixes_add(
	struct prefixes *p, const struct prefix *values, struct err *ret_err, uint64_t *ret_id)
{
	if (p->n == PREFIXES_MAX)
		return err_set(ret_err, ENOSPC, "%u prefixes are published, the most", p->n);
	struct prefix *row = &p->rows[p->n++];
	*row = *values;
	row->id = p->next_id++;
	row->n_leases = 0;
	row->is_removed = false;
	*ret_id = row->id;
	return 0;
}

static struct prefix *prefixes_find_row(struct prefixes *p, uint64_t id)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->rows[i].id == id)
			return &p->rows[i];
	return NULL;
}

const struct prefix *prefixes_find(const struct prefixes *p, uint64_t id)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->rows[i].id == id && !p->rows[i].is_removed)
			return &p->rows[i];
	return NULL;
}

static bool prefixes_is_same(const struct prefix *a, const struct prefix *b)
{
	return a->generation == b->generation && a->slot == b->slot &&
	       a->is_shared == b->is_shared && (a->is_shared || a->socket == b->socket) &&
	       a->n_tokens == b->n_tokens && !memcmp(a->digest, b->digest, sizeof(a->digest)) &&
	       a->n_layout_bytes == b->n_layout_bytes &&
	       !memcmp(a->layout, b->layout, a->n_layout_bytes);
}

const struct prefix *prefixes_find_same(const struct prefixes *p, const struct prefix *values)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (!p->rows[i].is_removed && prefixes_is_same(&p->rows[i], values))
			return &p->rows[i];
	return NULL;
}

uint32_t prefixes_count(const struct prefixes *p)
{
	return p->n;
}

const struct prefix *prefixes_at(const struct prefixes *p, uint32_t index)
{
	return &p->rows[index];
}

/* ---- leases ---- */

static uint32_t prefixes_find_lease(const struct prefixes *p, uint64_t id, uint64_t peer)
{
	uint32_t i = 0;

	while (i < p->n_leases && (p->leases[i].prefix != id || p->leases[i].peer != peer))
		i++;
	return i;
}

/* The row is what nobody has any more, or stays. fn may remove others: it is called last. */
static void prefixes_collect(struct prefixes *p, struct prefix *row)
{
	if (!row->is_removed || row->n_leases > 0)
		return;
	struct prefix was = *row;
	uint32_t index = (uint32_t)(row - p->rows);
	memmove(row, row + 1, (p->n - index - 1) * sizeof(*row));
	p->n--;
	prefixes_close_fds(&was);
	p->fn(&was, p->userdata);
}

static void prefixes_end_lease(struct prefixes *p, uint32_t i, uint64_t now_ns)
{
	struct prefix *row = prefixes_find_row(p, p->leases[i].prefix);

	p->leases[i] = p->leases[--p->n_leases];
	row->n_leases--;
	row->used_ns = now_ns;
	prefixes_collect(p, row);
}

static uint32_t prefixes_count_leases(const struct prefixes *p, uint32_t socket)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->n_leases; i++)
		n += peer_get_socket(p->leases[i].peer) == socket;
	return n;
}

int prefixes_take(
	struct prefixes *p, uint64_t id, uint64_t peer, uint64_t now_ns, struct err *ret_err)
{
	struct prefix *row = prefixes_find_row(p, id);

	if (!row || row->is_removed)
		return err_set(ret_err, ENOENT, "no prefix %llu", (unsigned long long)id);
	if (prefixes_find_lease(p, id, peer) < p->n_leases)
		return 0;
	uint32_t n_own = prefixes_count_leases(p, peer_get_socket(peer));
	if (p->n_leases == PREFIXES_MAX_LEASES ||
		(peer_get_socket(peer) > 0 && n_own >= PREFIXES_MAX_SOCKET_LEASES))
		return err_set(ret_err, ENOSPC,
			"prefixes are taken %u times, %u of them by this socket, the most",
			p->n_leases, n_own);
	p->leases[p->n_leases++] = (struct prefixes_lease){.prefix = id, .peer = peer};
	row->n_leases++;
	row->used_ns = now_ns;
	return 0;
}

int prefixes_drop(
	struct prefixes *p, uint64_t id, uint64_t peer, uint64_t now_ns, struct err *ret_err)
{
	uint32_t i = prefixes_find_lease(p, id, peer);

	if (i == p->n_leases)
		return err_set(
			ret_err, ENOENT, "prefix %llu is not this peer's", (unsigned long long)id);
	prefixes_end_lease(p, i, now_ns);
	return 0;
}

bool prefixes_has(const struct prefixes *p, uint64_t id, uint64_t peer)
{
	return prefixes_find_lease(p, id, peer) < p->n_leases;
}

bool prefixes_has_any(const struct prefixes *p, uint64_t peer)
{
	for (uint32_t i = 0; i < p->n_leases; i++)
		if (p->leases[i].peer == peer)
			return true;
	return false;
}

void prefixes_close(struct prefixes *p, uint64_t peer, uint64_t holder, uint64_t now_ns)
{
	for (uint32_t i = 0; i < p->n_leases;) {
		struct prefixes_lease *l = &p->leases[i];
		if (l->peer != peer) {
			i++;
		} else if (holder && prefixes_find_lease(p, l->prefix, holder) == p->n_leases) {
			l->peer = holder;
			i++;
		} else if (holder == peer) {
			i++; /* its own id goes on as the holder's */
		} else {
			prefixes_end_lease(p, i, now_ns);
		}
	}
}

void prefixes_exit(struct prefixes *p, uint64_t holder, uint64_t now_ns)
{
	prefixes_close(p, holder, 0, now_ns);
}

/* ---- ends ---- */

int prefixes_remove(struct prefixes *p, uint64_t id, struct err *ret_err)
{
	struct prefix *row = prefixes_find_row(p, id);

	if (!row || row->is_removed)
		return err_set(ret_err, ENOENT, "no prefix %llu", (unsigned long long)id);
	row->is_removed = true;
	prefixes_collect(p, row);
	return 0;
}

uint32_t prefixes_remove_generation(struct prefixes *p, uint64_t generation)
{
	uint32_t n_removed = 0;

	for (uint32_t i = 0; i < p->n;) {
		struct prefix *row = &p->rows[i++];

		if (row->generation != generation || row->is_removed)
			continue;
		row->is_removed = true;
		n_removed++;
		prefixes_collect(p, row);
		i = 0; /* some may have moved */
	}
	return n_removed;
}

const struct prefix *prefixes_find_idle(const struct prefixes *p, uint32_t slot)
{
	const struct prefix *found = NULL;

	for (uint32_t i = 0; i < p->n; i++) {
		const struct prefix *row = &p->rows[i];
		if (row->slot == slot && row->n_leases == 0 && !row->is_removed &&
			(!found || row->used_ns < found->used_ns))
			found = row;
	}
	return found;
}

/* Used before the other; NULL is used last. */
static bool prefixes_is_older(const struct prefix *a, const struct prefix *b)
{
	return !b || a->used_ns < b->used_ns;
}

int prefixes_find_spare(const struct prefixes *p, uint32_t socket, struct err *ret_err,
	const struct prefix **ret_prefix)
{
	const struct prefix *oldest = NULL, *own = NULL;
	uint32_t n_own = 0;

	for (uint32_t i = 0; i < p->n; i++) {
		const struct prefix *row = &p->rows[i];
		bool is_idle = row->n_leases == 0 && !row->is_removed;
		n_own += row->socket == socket;
		if (is_idle && prefixes_is_older(row, oldest))
			oldest = row;
		if (is_idle && row->socket == socket && prefixes_is_older(row, own))
			own = row;
	}
	bool is_over = socket > 0 && n_own >= PREFIXES_MAX_SOCKET;
	bool has_room = !is_over && p->n < PREFIXES_MAX;
	if (is_over)
		oldest = own;
	if (!has_room && !oldest)
		return err_set(ret_err, ENOSPC,
			"%u prefixes are published, %u of them by this socket, the most, and all "
			"of those are in use",
			p->n, n_own);
	*ret_prefix = has_room ? NULL : oldest;
	return 0;
}

uint64_t prefixes_count_bytes(const struct prefixes *p, uint32_t socket)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < p->n; i++)
		if (p->rows[i].socket == socket)
			n_bytes += p->rows[i].memory.n_bytes;
	return n_bytes;
}
