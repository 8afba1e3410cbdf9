/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/weights-prefix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "proto/util/fnv.h"
#include "proto/weights-link.h"

enum {
	PREFIX_UUID_BYTES = 16,
	PREFIX_MAX_TOKENS = 1 << 20, /* Publish.n_tokens */
	PREFIX_N_FDS = 2,
};

uint64_t weights_prefix_hash(const uint32_t *tokens, uint32_t n_tokens)
{
	return fnv_hash(tokens, (uint64_t)n_tokens * sizeof(*tokens));
}

static int weights_prefix_write_all(int fd, const void *data, size_t n_bytes)
{
	for (size_t at = 0; at < n_bytes;) {
		ssize_t n = pwrite(fd, (const uint8_t *)data + at, n_bytes - at, (off_t)at);
		if (n < 0 && errno != EINTR)
			return -errno;
		at += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

int weights_prefix_make_tokens(
	const uint32_t *tokens, uint32_t n_tokens, struct err *ret_err, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = memfd_create("weightd-prefix", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : weights_prefix_write_all(fd, tokens, (size_t)n_tokens * 4);

	if (r == 0 && fcntl(fd, F_ADD_SEALS,
			      F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		r = -errno;
	if (r < 0)
		return err_set(ret_err, -r, "prefix: tokens: %s", strerror(-r));
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int weights_prefix_publish(struct weights_client *c, const struct weights_prefix_publish *params,
	struct err *ret_err, uint64_t *ret_id, bool *ret_existed)
{
	struct fdlist fds = {.n = PREFIX_N_FDS, .fds = {params->tokens_fd, params->memory_fd}};
	struct weights_link *link = weights_client_get_link(c);
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	Wd__Allocation memory = WD__ALLOCATION__INIT;
	Wd__Publish m = WD__PUBLISH__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	memory.n_bytes = params->memory.n_bytes;
	memory.buffer_bytes = params->memory.buffer_bytes;
	memory.memory_type_index = params->memory.memory_type_index;
	memory.dedicated = params->memory.is_dedicated;
	memory.handle_type = WD__HANDLE_TYPE__HANDLE_TYPE_OPAQUE_FD;
	m.model = (char *)params->model;
	m.generation = params->generation;
	m.device_uuid = (ProtobufCBinaryData){PREFIX_UUID_BYTES, (uint8_t *)params->device_uuid};
	m.driver_uuid = (ProtobufCBinaryData){PREFIX_UUID_BYTES, (uint8_t *)params->driver_uuid};
	m.name = (char *)params->name;
	m.shared = params->is_shared;
	m.n_tokens = params->n_tokens;
	m.layout = (ProtobufCBinaryData){params->n_layout_bytes, (uint8_t *)params->layout};
	m.memory = &memory;
	request.body_case = WD__REQUEST__BODY_PUBLISH;
	request.publish = &m;
	int r = weights_link_send(link, &request, &fds, ret_err);
	if (r == 0)
		r = weights_link_recv(link, WD__REPLY__BODY_PUBLISHED, WEIGHTS_LINK_TIMEOUT_MS,
			ret_err, &reply, NULL);
	if (r < 0)
		return r;
	*ret_id = reply->published->id;
	*ret_existed = reply->published->existed;
	return 0;
}

static int weights_prefix_read_row(
	const Wd__Prefix *m, struct err *ret_err, struct weights_prefix *ret_row)
{
	if (strlen(m->model) >= WEIGHTS_PREFIX_MODEL_BYTES ||
		strlen(m->name) >= WEIGHTS_PREFIX_NAME_BYTES || m->n_tokens == 0 ||
		m->n_tokens > PREFIX_MAX_TOKENS)
		return err_set(ret_err, EPROTO,
			"weightd: prefix: expected names below %d bytes and 1 to %d tokens, found "
			"%zu, %zu and %u",
			WEIGHTS_PREFIX_NAME_BYTES, PREFIX_MAX_TOKENS, strlen(m->model),
			strlen(m->name), m->n_tokens);
	*ret_row = (struct weights_prefix){.id = m->id,
		.generation = m->generation,
		.n_tokens = m->n_tokens,
		.n_bytes = m->n_bytes,
		.is_shared = m->shared,
		.pid = m->pid,
		.n_leases = m->n_leases,
		.head_hash = m->head_hash};
	snprintf(ret_row->model, sizeof(ret_row->model), "%s", m->model);
	snprintf(ret_row->name, sizeof(ret_row->name), "%s", m->name);
	return 0;
}

int weights_prefix_list(struct weights_client *c, const char *model, uint64_t generation,
	const uint8_t *device_uuid, const uint8_t *layout, uint32_t n_layout_bytes,
	struct err *ret_err, struct weights_prefix **ret_rows, uint32_t *ret_n)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	_cleanup_(cleanup_free)
	struct weights_prefix *rows = NULL;
	Wd__ListPrefixes m = WD__LIST_PREFIXES__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	m.model = (char *)model;
	m.generation = generation;
	if (layout) {
		m.device_uuid = (ProtobufCBinaryData){PREFIX_UUID_BYTES, (uint8_t *)device_uuid};
		m.layout = (ProtobufCBinaryData){n_layout_bytes, (uint8_t *)layout};
	}
	request.body_case = WD__REQUEST__BODY_LIST_PREFIXES;
	request.list_prefixes = &m;
	int r = weights_link_call(weights_client_get_link(c), &request, WD__REPLY__BODY_PREFIXES,
		WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
	if (r < 0)
		return r;
	size_t n = reply->prefixes->n_prefixes;
	if (n > WEIGHTS_PREFIX_MAX_ROWS)
		return err_set(ret_err, EPROTO, "weightd: expected at most %d prefixes, found %zu",
			WEIGHTS_PREFIX_MAX_ROWS, n);
	rows = n ? calloc(n, sizeof(*rows)) : NULL;
	if (n && !rows)
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	for (size_t i = 0; i < n && r == 0; i++)
		r = weights_prefix_read_row(reply->prefixes->prefixes[i], ret_err, &rows[i]);
	if (r < 0)
		return r;
	*ret_rows = TAKE_PTR(rows);
	*ret_n = (uint32_t)n;
	return 0;
}

void weights_prefix_taken_fini(struct weights_prefix_taken *t)
{
	free(t->tokens);
	t->tokens = NULL;
	cleanup_close(&t->memory_fd);
}

static int weights_prefix_read_tokens(
	int fd, uint32_t n_tokens, struct err *ret_err, uint32_t **ret_tokens)
{
	_cleanup_(cleanup_free)
	uint32_t *tokens = malloc((size_t)n_tokens * 4);
	struct stat st;

	if (!tokens)
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != (uint64_t)n_tokens * 4)
		return err_set(
			ret_err, EPROTO, "weightd: prefix: tokens: expected %u of them", n_tokens);
	for (size_t at = 0; at < (size_t)n_tokens * 4;) {
		ssize_t n = pread(fd, (uint8_t *)tokens + at, (size_t)n_tokens * 4 - at, (off_t)at);
		if (n <= 0)
			return err_set(
				ret_err, EPROTO, "weightd: prefix: tokens: a read came short");
		at += (size_t)n;
	}
	*ret_tokens = TAKE_PTR(tokens);
	return 0;
}

int weights_prefix_take(struct weights_client *c, uint64_t id, struct err *ret_err,
	struct weights_prefix_taken *ret_taken)
{
	struct weights_link *link = weights_client_get_link(c);
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	struct weights_prefix_taken taken = {.memory_fd = -1};
	Wd__TakePrefix m = WD__TAKE_PREFIX__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	m.id = id;
	request.body_case = WD__REQUEST__BODY_TAKE_PREFIX;
	request.take_prefix = &m;
	int r = weights_link_send(link, &request, NULL, ret_err);
	if (r == 0)
		r = weights_link_recv(link, WD__REPLY__BODY_PREFIX_TAKEN, WEIGHTS_LINK_TIMEOUT_MS,
			ret_err, &reply, &fds);
	if (r < 0)
		return r;
	const Wd__PrefixTaken *t = reply->prefix_taken;
	if (!t->prefix || !t->memory || fds.n != PREFIX_N_FDS)
		return err_set(ret_err, EPROTO,
			"weightd: prefix: expected a row, a memory and %d descriptors, found %s, "
			"%s and %u",
			PREFIX_N_FDS, t->prefix ? "one" : "none", t->memory ? "one" : "none",
			fds.n);
	r = weights_prefix_read_row(t->prefix, ret_err, &taken.prefix);
	if (r == 0)
		r = weights_prefix_read_tokens(
			fds.fds[0], taken.prefix.n_tokens, ret_err, &taken.tokens);
	if (r < 0)
		return r;
	taken.memory = (struct weights_prefix_memory){.n_bytes = t->memory->n_bytes,
		.buffer_bytes = t->memory->buffer_bytes,
		.memory_type_index = t->memory->memory_type_index,
		.is_dedicated = t->memory->dedicated};
	taken.memory_fd = fdlist_take(&fds, 1);
	*ret_taken = taken;
	return 0;
}

static int weights_prefix_do(struct weights_client *c, Wd__Request *request, struct err *ret_err)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;

	return weights_link_call(weights_client_get_link(c), request, WD__REPLY__BODY_DONE,
		WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
}

int weights_prefix_drop(struct weights_client *c, uint64_t id, struct err *ret_err)
{
	Wd__DropPrefix m = WD__DROP_PREFIX__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	m.id = id;
	request.body_case = WD__REQUEST__BODY_DROP_PREFIX;
	request.drop_prefix = &m;
	return weights_prefix_do(c, &request, ret_err);
}

int weights_prefix_remove(struct weights_client *c, uint64_t id, struct err *ret_err)
{
	Wd__RemovePrefix m = WD__REMOVE_PREFIX__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	m.id = id;
	request.body_case = WD__REQUEST__BODY_REMOVE_PREFIX;
	request.remove_prefix = &m;
	return weights_prefix_do(c, &request, ret_err);
}
