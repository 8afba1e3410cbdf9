/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/rpc-prefix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/wire.h"
#include "weightd/loader.h"
#include "weightd/peer.h"
#include "weightd/publish.h"
#include "weightd/rpc-packet.h"
#include "weightd/service-internal.h"
#include "weightd/shown.h"
#include "vk/device.h"

enum {
	RPC_PREFIX_UUID_BYTES = 16,
	/* As many as are sure to fit a packet: two names of 64 bytes and ten numbers each. */
	RPC_PREFIX_MAX_ROWS =
		PREFIXES_MAX < WIRE_MAX_BYTES / 256 ? PREFIXES_MAX : WIRE_MAX_BYTES / 256,
};

int rpc_prefix_publish(struct service *s, struct peer *p, uint64_t request, const Wd__Publish *m,
	struct fdlist *fds, struct err *ret_err)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Published published = WD__PUBLISHED__INIT;
	bool existed;

	if (m->device_uuid.len != RPC_PREFIX_UUID_BYTES ||
		m->driver_uuid.len != RPC_PREFIX_UUID_BYTES || !m->memory)
		return err_set(ret_err, EINVAL,
			"Publish: expected uuids of %d bytes and a memory, found %zu, %zu and %s",
			RPC_PREFIX_UUID_BYTES, m->device_uuid.len, m->driver_uuid.len,
			m->memory ? "one" : "none");
	const struct publish_params params = {.model = m->model,
		.generation = m->generation,
		.device_uuid = m->device_uuid.data,
		.driver_uuid = m->driver_uuid.data,
		.name = m->name,
		.is_shared = m->shared,
		.n_tokens = m->n_tokens,
		.layout = m->layout.data,
		.n_layout_bytes = m->layout.len,
		.memory = {.n_bytes = m->memory->n_bytes,
			.buffer_bytes = m->memory->buffer_bytes,
			.memory_type_index = m->memory->memory_type_index,
			.is_dedicated = m->memory->dedicated}};
	int rc = publish_add(s, p, &params, fds, ret_err, &published.id, &existed);
	if (rc < 0)
		return rc;
	published.existed = existed;
	reply.body_case = WD__REPLY__BODY_PUBLISHED;
	reply.published = &published;
	rpc_packet_send(p, request, &reply, NULL, 0);
	return 0;
}

/* Strings are x's. */
static void rpc_prefix_fill(const struct peer *p, const struct prefix *x, Wd__Prefix *ret_row)
{
	*ret_row = (Wd__Prefix)WD__PREFIX__INIT;
	ret_row->id = x->id;
	ret_row->model = (char *)x->model;
	ret_row->generation = x->generation;
	ret_row->name = (char *)x->name;
	ret_row->n_tokens = x->n_tokens;
	ret_row->n_bytes = x->memory.n_bytes;
	ret_row->shared = x->is_shared;
	ret_row->pid = shown_pids(p) ? x->pid : 0;
	ret_row->n_leases = x->n_leases;
	ret_row->head_hash = x->head_hash;
}

static bool rpc_prefix_is_wanted(
	const struct service *s, const Wd__ListPrefixes *m, const struct prefix *x)
{
	if (m->model[0] && strcmp(m->model, x->model) != 0)
		return false;
	if (m->layout.len == 0)
		return true;
	return m->generation == x->generation && m->layout.len == x->n_layout_bytes &&
	       !memcmp(m->layout.data, x->layout, x->n_layout_bytes) &&
	       !memcmp(m->device_uuid.data, loader_get_info(s->params->loaders[x->slot])->uuid,
		       RPC_PREFIX_UUID_BYTES);
}

int rpc_prefix_list(struct service *s, struct peer *p, uint64_t request, const Wd__ListPrefixes *m,
	struct err *ret_err)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Prefixes list = WD__PREFIXES__INIT;
	Wd__Prefix rows[RPC_PREFIX_MAX_ROWS], *pointers[RPC_PREFIX_MAX_ROWS];

	if (m->layout.len > 0 && m->device_uuid.len != RPC_PREFIX_UUID_BYTES)
		return err_set(ret_err, EINVAL,
			"ListPrefixes: expected a uuid of %d bytes beside a layout, found %zu",
			RPC_PREFIX_UUID_BYTES, m->device_uuid.len);
	for (uint32_t i = prefixes_count(s->prefixes); i > 0; i--) {
		const struct prefix *x = prefixes_at(s->prefixes, i - 1);
		if (x->is_removed || !publish_shows(p, x) || !rpc_prefix_is_wanted(s, m, x))
			continue;
		if (list.n_prefixes == RPC_PREFIX_MAX_ROWS) {
			list.n_left_out++;
			continue;
		}
		rpc_prefix_fill(p, x, &rows[list.n_prefixes]);
		pointers[list.n_prefixes] = &rows[list.n_prefixes];
		list.n_prefixes++;
	}
	list.prefixes = pointers;
	reply.body_case = WD__REPLY__BODY_PREFIXES;
	reply.prefixes = &list;
	rpc_packet_send(p, request, &reply, NULL, 0);
	return 0;
}

int rpc_prefix_take(
	struct service *s, struct peer *p, uint64_t request, uint64_t id, struct err *ret_err)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__PrefixTaken taken = WD__PREFIX_TAKEN__INIT;
	Wd__Allocation memory = WD__ALLOCATION__INIT;
	Wd__Prefix row;
	const struct prefix *x;
	int rc = publish_take(s, p, id, ret_err, &x);

	if (rc < 0)
		return rc;
	/* Its own, for the prefix may be removed while the packet waits. */
	const int fds[] = {
		fcntl(x->tokens_fd, F_DUPFD_CLOEXEC, 0), fcntl(x->memory_fd, F_DUPFD_CLOEXEC, 0)};
	if (fds[0] < 0 || fds[1] < 0) {
		rc = err_set(ret_err, errno, "prefix %llu: descriptor: %s", (unsigned long long)id,
			strerror(errno));
		for (int i = 0; i < 2; i++)
			if (fds[i] >= 0)
				close(fds[i]);
		return rc;
	}
	rpc_prefix_fill(p, x, &row);
	memory.n_bytes = x->memory.n_bytes;
	memory.buffer_bytes = x->memory.buffer_bytes;
	memory.memory_type_index = x->memory.memory_type_index;
	memory.dedicated = x->memory.is_dedicated;
	memory.handle_type = WD__HANDLE_TYPE__HANDLE_TYPE_OPAQUE_FD;
	memory.placement = WD__PLACEMENT__PLACEMENT_DEVICE;
	taken.prefix = &row;
	taken.memory = &memory;
	reply.body_case = WD__REPLY__BODY_PREFIX_TAKEN;
	reply.prefix_taken = &taken;
	rpc_packet_send_owned(p, request, &reply, fds, 2);
	return 0;
}
