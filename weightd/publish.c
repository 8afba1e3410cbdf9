/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/fdlist.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-prefix.h"
#include "vk/device.h"
#include "weightd/access.h"
#include "weightd/account.h"
#include "weightd/admission.h"
#include "weightd/holders.h"
#include "weightd/loader.h"
#include "weightd/service-internal.h"

enum { PUBLISH_N_FDS = 2, PUBLISH_N_PIECE_TOKENS = 4096 };

static void publish_on_freed(const struct prefix *x, void *userdata)
{
	struct service *s = userdata;

	log_debug("prefix %llu of model %s is gone, %llu bytes", (unsigned long long)x->id,
		x->model, (unsigned long long)x->memory.n_bytes);
	admission_discharge(s, x->id, x->slot);
}

int publish_init(struct service *s)
{
	return prefixes_new(publish_on_freed, s, &s->prefixes);
}

void publish_fini(struct service *s)
{
	s->prefixes = prefixes_free(s->prefixes);
}

/* ---- who may ---- */

static bool publish_is_own(const struct peer *p, const struct prefix *x)
{
	return peer_get_socket(p->id) == x->socket;
}

bool publish_shows(const struct peer *p, const struct prefix *x)
{
	return access_shows(p->access, x->model) && (x->is_shared || publish_is_own(p, x));
}

static int publish_check_readers(
	const struct peer *p, const struct publish_params *params, struct err *ret_err)
{
	if (!params->is_shared || !p->access || p->access->has_control)
		return 0;
	return err_set(ret_err, EPERM,
		"Publish: a prefix for other sockets, on one without control, is not allowed");
}

/* Workers that have the generation look what there is. */
static void publish_tell(struct service *s, const struct prefix *x)
{
	const struct rpc_reply_event event = {
		.kind = RPC_REPLY_PREFIXES, .model = x->model, .generation = x->generation};

	service_tell_holders(s, x->generation, &event);
}

/* ---- what is published ---- */

static int publish_find_slot(const struct service *s, const struct publish_params *params,
	struct err *ret_err, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		const struct vk_device_info *info = loader_get_info(s->params->loaders[i]);
		if (memcmp(params->device_uuid, info->uuid, 16) ||
			memcmp(params->driver_uuid, info->driver_uuid, 16))
			continue;
		*ret_slot = i;
		return 0;
	}
	return err_set(ret_err, ENOTSUP, "Publish: the device or its driver is not weightd's");
}

static int publish_check_values(const struct publish_params *params, struct err *ret_err)
{
	const struct prefix_memory *m = &params->memory;

	if (strlen(params->name) > REGISTRY_NAME_MAX)
		return err_set(ret_err, EINVAL,
			"Publish: name: expected at most %d bytes, found %zu", REGISTRY_NAME_MAX,
			strlen(params->name));
	if (params->n_tokens == 0 || params->n_tokens > PREFIXES_MAX_TOKENS)
		return err_set(ret_err, EINVAL, "Publish: expected 1 to %d tokens, found %" PRIu32,
			PREFIXES_MAX_TOKENS, params->n_tokens);
	if (params->n_layout_bytes == 0 || params->n_layout_bytes > PREFIXES_MAX_LAYOUT_BYTES)
		return err_set(ret_err, EINVAL,
			"Publish: layout: expected 1 to %d bytes, found %" PRIu64,
			PREFIXES_MAX_LAYOUT_BYTES, params->n_layout_bytes);
	if (m->buffer_bytes == 0 || m->buffer_bytes > m->n_bytes || m->n_bytes > INT64_MAX ||
		m->memory_type_index >= 32)
		return err_set(ret_err, EINVAL,
			"Publish: memory: expected a buffer within it, and a type below 32, found "
			"%" PRIu64 " of %" PRIu64 " bytes, type %" PRIu32,
			m->buffer_bytes, m->n_bytes, m->memory_type_index);
	return 0;
}

/* Sealed, so that what is hashed here is what every reader finds. */
static int publish_check_tokens(int fd, uint32_t n_tokens, struct err *ret_err)
{
	const int want = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & want) != want || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(ret_err, EINVAL,
			"Publish: tokens: expected a memfd sealed against writing and resizing");
	if ((uint64_t)st.st_size != (uint64_t)n_tokens * 4)
		return err_set(ret_err, EINVAL,
			"Publish: tokens: expected %" PRIu64 " bytes, found %lld",
			(uint64_t)n_tokens * 4, (long long)st.st_size);
	return 0;
}

static int publish_read_tokens(int fd, struct err *ret_err, struct prefix *x)
{
	uint32_t piece[PUBLISH_N_PIECE_TOKENS];
	struct sha256 h;

	sha256_init(&h);
	for (uint32_t at = 0; at < x->n_tokens; at += PUBLISH_N_PIECE_TOKENS) {
		uint32_t n = x->n_tokens - at < PUBLISH_N_PIECE_TOKENS ? x->n_tokens - at
								       : PUBLISH_N_PIECE_TOKENS;
		ssize_t n_read = pread(fd, piece, (size_t)n * 4, (off_t)at * 4);
		if (n_read != (ssize_t)n * 4)
			return err_set(ret_err, EIO, "Publish: tokens: a read came short");
		sha256_add(&h, piece, (uint64_t)n * 4);
		if (at == 0 && x->n_tokens >= PREFIXES_HEAD_TOKENS)
			x->head_hash = weights_prefix_hash(piece, PREFIXES_HEAD_TOKENS);
	}
	sha256_end(&h, x->digest);
	return 0;
}

/* The kind of file that the driver's own exports are: more nobody can tell of an opaque one. */
static int publish_check_memory(
	const struct service *s, const struct prefix *x, int fd, struct err *ret_err)
{
	const struct registry_generation *g = registry_find(s->registry, x->generation);
	const struct service_generation *data = g->data;
	const struct export *e = data->residencies[x->slot].export;
	struct stat st, own;

	if (fstat(fd, &st) < 0)
		return err_set(ret_err, errno, "Publish: memory: %s", strerror(errno));
	for (uint32_t i = 0; e && i < e->n_allocs; i++) {
		const struct export_alloc *a = &e->allocs[i];
		int own_fd = a->main.handle == EXPORT_OPAQUE_FD ? a->main.fd : a->opaque.fd;

		if (!export_has_memory(a) || own_fd < 0 || fstat(own_fd, &own) < 0)
			continue;
		if ((st.st_mode & S_IFMT) != (own.st_mode & S_IFMT) || st.st_dev != own.st_dev ||
			st.st_rdev != own.st_rdev)
			return err_set(ret_err, EINVAL,
				"Publish: memory: expected a descriptor of the device's driver");
		break;
	}
	if (S_ISREG(st.st_mode) && (uint64_t)st.st_size < x->memory.buffer_bytes)
		return err_set(ret_err, EINVAL,
			"Publish: memory: expected at least %" PRIu64 " bytes, found %lld",
			x->memory.buffer_bytes, (long long)st.st_size);
	return 0;
}

static int publish_fill(const struct service *s, const struct peer *p,
	const struct publish_params *params, struct err *ret_err, struct prefix *x)
{
	const struct registry_generation *g = registry_find(s->registry, params->generation);

	*x = (struct prefix){.generation = params->generation,
		.socket = peer_get_socket(p->id),
		.pid = p->pid,
		.is_shared = params->is_shared,
		.n_tokens = params->n_tokens,
		.n_layout_bytes = (uint32_t)params->n_layout_bytes,
		.memory = params->memory,
		.tokens_fd = -1,
		.memory_fd = -1,
		.used_ns = clock_now_ns()};
	if (!g || strcmp(g->model, params->model) != 0 ||
		!registry_has_lease(s->registry, params->generation, p->id))
		return err_set(ret_err, ENOENT,
			"Publish: model %.64s: this connection has no lease on generation %" PRIu64,
			params->model, params->generation);
	if (g->state == REGISTRY_LOST)
		return service_say_lost(params->model, ret_err);
	snprintf(x->model, sizeof(x->model), "%s", g->model);
	snprintf(x->name, sizeof(x->name), "%s", params->name);
	memcpy(x->layout, params->layout, params->n_layout_bytes);
	return publish_find_slot(s, params, ret_err, &x->slot);
}

/* In the table, which one socket's publishers do not fill for all. */
static int publish_make_room(struct service *s, const struct prefix *x, struct err *ret_err)
{
	const struct prefix *spare = NULL;
	int rc = prefixes_find_spare(s->prefixes, x->socket, ret_err, &spare);

	if (rc < 0 || !spare)
		return rc;
	const struct prefix was = *spare;
	log_info("model %s: prefix %" PRIu64 " makes room for another one", was.model, was.id);
	rc = prefixes_remove(s->prefixes, was.id, ret_err);
	publish_tell(s, &was);
	return rc;
}

/*
 * Memory that is there has been reserved, and so has been asked of the quota: nobody makes the
 * account hold what it was never asked for.
 */
static int publish_check_grant(
	const struct service *s, const struct peer *p, const struct prefix *x, struct err *ret_err)
{
	const struct account *a = admission_get_account(s, x->slot);
	uint64_t n_bytes = a ? account_get_grant(a, p->id) : x->memory.n_bytes;

	if (x->memory.n_bytes <= n_bytes)
		return 0;
	return err_set(ret_err, ENOSPC,
		"Publish: memory: expected its %" PRIu64
		" bytes to be reserved before, found a reservation of %" PRIu64,
		x->memory.n_bytes, n_bytes);
}

int publish_add(struct service *s, struct peer *p, const struct publish_params *params,
	struct fdlist *fds, struct err *ret_err, uint64_t *ret_id, bool *ret_existed)
{
	const struct prefix *same;
	struct prefix x;
	uint64_t id;
	int rc = publish_check_values(params, ret_err);

	if (rc == 0 && fds->n != PUBLISH_N_FDS)
		rc = err_set(ret_err, EINVAL, "Publish: expected %d descriptors, found %u",
			PUBLISH_N_FDS, fds->n);
	if (rc == 0)
		rc = publish_check_readers(p, params, ret_err);
	if (rc == 0)
		rc = publish_fill(s, p, params, ret_err, &x);
	if (rc == 0)
		rc = publish_check_tokens(fds->fds[0], x.n_tokens, ret_err);
	if (rc == 0)
		rc = publish_read_tokens(fds->fds[0], ret_err, &x);
	if (rc == 0)
		rc = publish_check_memory(s, &x, fds->fds[1], ret_err);
	if (rc < 0)
		return rc;
	same = prefixes_find_same(s->prefixes, &x);
	if (same) {
		*ret_existed = true;
		*ret_id = same->id;
		return prefixes_take(s->prefixes, same->id, p->id, clock_now_ns(), ret_err);
	}
	rc = publish_check_grant(s, p, &x, ret_err);
	if (rc < 0)
		return rc;
	x.tokens_fd = fds->fds[0];
	x.memory_fd = fds->fds[1];
	rc = publish_make_room(s, &x, ret_err);
	if (rc == 0)
		rc = prefixes_add(s->prefixes, &x, ret_err, &id);
	if (rc < 0)
		return rc;
	(void)fdlist_take(fds, 0);
	(void)fdlist_take(fds, 1);
	rc = prefixes_take(s->prefixes, id, p->id, clock_now_ns(), ret_err);
	if (rc < 0) {
		struct err ignored = ERR_NULL;
		(void)!prefixes_remove(s->prefixes, id, &ignored);
		return rc;
	}
	/* Serves those who wait, who may evict what nobody has: this one is somebody's by now. */
	admission_charge(s, p, id, x.slot, x.model, x.memory.n_bytes);
	log_info("model %s: prefix %" PRIu64 " of %" PRIu32 " tokens, %" PRIu64
		 " bytes, published by pid %d",
		x.model, id, x.n_tokens, x.memory.n_bytes, (int)p->pid);
	publish_tell(s, &x);
	*ret_id = id;
	*ret_existed = false;
	return 0;
}

/* ---- having ---- */

static int publish_say_none(uint64_t id, struct err *ret_err)
{
	return err_set(ret_err, ENOENT, "no prefix %" PRIu64, id);
}

int publish_take(struct service *s, struct peer *p, uint64_t id, struct err *ret_err,
	const struct prefix **ret_prefix)
{
	const struct prefix *x = prefixes_find(s->prefixes, id);

	if (!x || !publish_shows(p, x) || !registry_has_lease(s->registry, x->generation, p->id))
		return publish_say_none(id, ret_err);
	int rc = prefixes_take(s->prefixes, id, p->id, clock_now_ns(), ret_err);
	if (rc == 0)
		*ret_prefix = prefixes_find(s->prefixes, id);
	return rc;
}

int publish_drop(struct service *s, struct peer *p, uint64_t id, struct err *ret_err)
{
	uint64_t holder = holders_find(s->params->holders, p);
	uint64_t now_ns = clock_now_ns();
	struct err ignored = ERR_NULL;

	/* What its process held from an earlier connection it has dropped as well. */
	bool had = holder && holder != p->id &&
		   prefixes_drop(s->prefixes, id, holder, now_ns, &ignored) == 0;
	int rc = prefixes_drop(s->prefixes, id, p->id, now_ns, had ? &ignored : ret_err);
	return had ? 0 : rc;
}

int publish_remove(struct service *s, struct peer *p, uint64_t id, struct err *ret_err)
{
	const struct prefix *x = prefixes_find(s->prefixes, id);

	if (!x || !publish_shows(p, x) ||
		!(publish_is_own(p, x) || !p->access || p->access->has_control))
		return publish_say_none(id, ret_err);
	const struct prefix was = *x; /* the row may go */
	int rc = prefixes_remove(s->prefixes, id, ret_err);
	publish_tell(s, &was);
	return rc;
}

void publish_forget(struct service *s, uint64_t generation)
{
	uint32_t n = prefixes_remove_generation(s->prefixes, generation);

	if (n > 0)
		log_info("%" PRIu32 " prefixes of generation %" PRIu64 " are given to nobody any "
			 "more",
			n, generation);
}

uint64_t publish_evict(struct service *s, uint32_t slot, uint64_t n_bytes)
{
	struct err ignored = ERR_NULL;
	uint64_t n_freed = 0;

	while (n_freed < n_bytes) {
		const struct prefix *x = prefixes_find_idle(s->prefixes, slot);
		if (!x)
			break;
		const struct prefix was = *x;
		n_freed += x->memory.n_bytes;
		log_info("model %s: prefix %" PRIu64 " makes room, %" PRIu64 " bytes", x->model,
			x->id, x->memory.n_bytes);
		if (prefixes_remove(s->prefixes, x->id, &ignored))
			break;
		publish_tell(s, &was);
	}
	return n_freed;
}

void publish_close(struct service *s, const struct peer *p, uint64_t holder)
{
	prefixes_close(s->prefixes, p->id, holder, clock_now_ns());
}

void publish_exit(struct service *s, uint64_t holder)
{
	prefixes_exit(s->prefixes, holder, clock_now_ns());
}
