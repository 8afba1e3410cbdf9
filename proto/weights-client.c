/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/weights-client.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weights-client-status.h"
#include "proto/weights-link.h"
#include "proto/wire.h"

enum {
	WEIGHTS_CLIENT_MAX_MEMORY_TYPES = 32,   /* VK_MAX_MEMORY_TYPES */
	WEIGHTS_CLIENT_EVENTS_A_DISPATCH = 256, /* so that a flood cannot hold the caller's loop */
};

struct weights_client {
	struct weights_link link;
	struct weights_client_device device;
	uint32_t handle_types; /* what the caller imports, a bit each */
	/* The first index that was refused, by handle type; UINT32_MAX: none. */
	uint32_t refused[WEIGHTS_CLIENT_N_HANDLES];
};

int weights_client_default_path(char *ret_path, uint32_t n_bytes)
{
	const char *path = getenv("WEIGHTD_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int n;

	if (path && path[0])
		n = snprintf(ret_path, n_bytes, "%s", path);
	else if (runtime && runtime[0])
		n = snprintf(ret_path, n_bytes, "%s/weightd.sock", runtime);
	else
		n = snprintf(ret_path, n_bytes, "/run/weightd/weightd.sock");
	return n < 0 || (uint32_t)n >= n_bytes ? -ENAMETOOLONG : 0;
}

static int must_check weights_client_hello(
	struct weights_client *c, enum weights_client_role role, struct err *ret_err)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	Wd__Hello hello = WD__HELLO__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	hello.protocol = WIRE_PROTOCOL;
	hello.build = (char *)WEIGHTD_VERSION;
	hello.role = (Wd__Role)role;
	request.body_case = WD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	int r = weights_link_call(&c->link, &request, WD__REPLY__BODY_WELCOME,
		WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
	if (r < 0)
		return r;
	if (reply->welcome->protocol != WIRE_PROTOCOL)
		return err_set(ret_err, EPROTO, "weightd %s: protocol: expected %d, found %u",
			reply->welcome->build, WIRE_PROTOCOL, reply->welcome->protocol);
	return weights_client_status_read_device(reply->welcome->device, ret_err, &c->device);
}

int weights_client_new_connected(int fd, enum weights_client_role role, struct err *ret_err,
	struct weights_client **ret_client)
{
	const struct timeval timeout = {.tv_sec = WEIGHTS_LINK_TIMEOUT_MS / 1000};
	struct weights_client *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	}
	c->link.fd = fd;
	memset(c->refused, 0xff, sizeof(c->refused));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0) {
		int r = err_set(ret_err, errno, "weightd: SO_SNDTIMEO: %s", strerror(errno));

		weights_client_free(c);
		return r;
	}
	int r = weights_client_hello(c, role, ret_err);
	if (r < 0) {
		weights_client_free(c);
		return r;
	}
	*ret_client = c;
	return 0;
}

int weights_client_new(const char *path, enum weights_client_role role, struct err *ret_err,
	struct weights_client **ret_client)
{
	char buffer[PATH_MAX];
	int fd, r;

	if (!path) {
		r = weights_client_default_path(buffer, sizeof(buffer));
		if (r < 0)
			return err_set(ret_err, -r, "weightd's socket: path too long");
		path = buffer;
	}
	r = wire_connect(path, ret_err, &fd);
	if (r < 0)
		return r;
	return weights_client_new_connected(fd, role, ret_err, ret_client);
}

struct weights_link *weights_client_get_link(struct weights_client *c)
{
	return &c->link;
}

struct weights_client *weights_client_free(struct weights_client *c)
{
	if (c)
		weights_link_fini(&c->link);
	free(c);
	return NULL;
}

const struct weights_client_device *weights_client_get_device(const struct weights_client *c)
{
	return &c->device;
}

int weights_client_get_fd(const struct weights_client *c)
{
	return c->link.fd;
}

void weights_client_set_event_fn(
	struct weights_client *c, weights_client_event_fn fn, void *userdata)
{
	c->link.event_fn = fn;
	c->link.userdata = userdata;
}

void weights_client_set_handle_types(struct weights_client *c, uint32_t mask)
{
	c->handle_types = mask;
}

int weights_client_add_refusal(struct weights_client *c, uint32_t handle_type, uint32_t index)
{
	if (handle_type == 0 || handle_type >= WEIGHTS_CLIENT_N_HANDLES)
		return -EINVAL;
	if (index < c->refused[handle_type])
		c->refused[handle_type] = index;
	return 0;
}

bool weights_client_has_same_contents(
	const struct weights_client_contents *a, const struct weights_client_contents *b)
{
	if (a->has_identity && b->has_identity)
		return !memcmp(a->identity, b->identity, sizeof(a->identity));
	return a->has_file && b->has_file && !memcmp(a->file, b->file, sizeof(a->file));
}

void weights_client_acquired_fini(struct weights_client_acquired *a)
{
	for (uint32_t i = 0; i < a->n_allocs; i++)
		cleanup_close(&a->allocs[i].fd);
	free(a->allocs);
	cleanup_close(&a->manifest_fd);
	*a = (struct weights_client_acquired){.manifest_fd = -1};
}

/* The window lies in the descriptor's file: what is mapped beyond it would kill its reader. */
static int must_check weights_client_check_window(
	const struct weights_client_alloc *a, int fd, struct err *ret_err)
{
	uint64_t end, needed, found;
	struct stat st;

	if (a->file_offset % WEIGHTS_CLIENT_PAGE_BYTES || a->n_bytes % WEIGHTS_CLIENT_PAGE_BYTES ||
		__builtin_add_overflow(a->file_offset, a->n_bytes, &end) || end > INT64_MAX)
		return err_set(ret_err, EPROTO,
			"weightd: allocation %u: expected a window of whole pages, found %llu "
			"bytes at %llu",
			a->index, (unsigned long long)a->n_bytes,
			(unsigned long long)a->file_offset);
	if (fd < 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return err_set(
			ret_err, errno, "weightd: allocation %u: %s", a->index, strerror(errno));
	found = (uint64_t)st.st_size;
	needed = end;
	if (a->handle_type == WEIGHTS_CLIENT_FILE) { /* it may end inside its last page */
		uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
		needed = end > page ? end - page + 1 : 1;
		if (needed < a->file_offset + a->buffer_bytes)
			needed = a->file_offset + a->buffer_bytes;
	}
	if (found < needed)
		return err_set(ret_err, EPROTO,
			"weightd: allocation %u: expected a file of %llu bytes, found %llu",
			a->index, (unsigned long long)needed, (unsigned long long)found);
	return 0;
}

/*
 * What the importer will repeat to Vulkan or map: a wrong size there is a crash here. fd -1: it has
 * not come along.
 */
static int must_check weights_client_check_alloc(
	const struct weights_client_alloc *a, uint32_t index, int fd, struct err *ret_err)
{
	if (a->index != index)
		return err_set(ret_err, EPROTO, "weightd: allocation: expected index %u, found %u",
			index, a->index);
	if (a->buffer_bytes == 0 || a->buffer_bytes > a->n_bytes || a->n_bytes > INT64_MAX)
		return err_set(ret_err, EPROTO,
			"weightd: allocation %u: expected a buffer of 1 to %llu bytes, found %llu",
			index, (unsigned long long)a->n_bytes, (unsigned long long)a->buffer_bytes);
	if (a->handle_type < WEIGHTS_CLIENT_OPAQUE_FD || a->handle_type > WEIGHTS_CLIENT_DMA_BUF)
		return err_set(ret_err, EPROTO, "weightd: allocation %u: unknown handle type %u",
			index, a->handle_type);
	if (a->placement < MANIFEST_PLACEMENT_DEVICE || a->placement > MANIFEST_PLACEMENT_PAGED)
		return err_set(ret_err, EPROTO, "weightd: allocation %u: unknown placement %u",
			index, a->placement);
	if (a->memory_type_index >= WEIGHTS_CLIENT_MAX_MEMORY_TYPES)
		return err_set(ret_err, EPROTO,
			"weightd: allocation %u: memory type: expected below %d, found %u", index,
			WEIGHTS_CLIENT_MAX_MEMORY_TYPES, a->memory_type_index);
	if (a->handle_type == WEIGHTS_CLIENT_MEMFD || a->handle_type == WEIGHTS_CLIENT_FILE)
		return weights_client_check_window(a, fd, ret_err);
	return 0;
}

/*
 * Adds what one packet brought; the descriptors in fds that are used are taken out of it. Without
 * has_fds the allocations have none.
 */
static int must_check weights_client_add_acquired(const Wd__Acquired *m, bool has_fds,
	struct fdlist *fds, struct err *ret_err, struct weights_client_acquired *a)
{
	bool first = a->manifest_fd < 0;
	uint32_t n_before = a->n_allocs;
	struct weights_client_alloc *allocs;

	if (first != (m->has_manifest != 0))
		return err_set(ret_err, EPROTO,
			"weightd: lease: expected the manifest once, in the first packet");
	if (m->generation == 0 || (!first && m->generation != a->generation))
		return err_set(ret_err, EPROTO,
			"weightd: lease: generation: expected %llu, found %llu",
			(unsigned long long)a->generation, (unsigned long long)m->generation);
	if (fds->n != (has_fds ? m->n_allocations : 0) + (first ? 1 : 0))
		return err_set(ret_err, EPROTO,
			"weightd: lease: expected a descriptor an allocation (%zu), found %u",
			has_fds ? m->n_allocations : 0, fds->n);
	if (m->n_allocations == 0 && !(first && m->more))
		return err_set(ret_err, EPROTO, "weightd: lease: a packet without allocations");
	if (m->n_allocations > MANIFEST_MAX_ALLOCS - n_before)
		return err_set(ret_err, EPROTO, "weightd: lease: more than %d allocations",
			MANIFEST_MAX_ALLOCS);
	if (first) {
		int r = weights_link_read_contents(
			&m->identity, &m->file_identity, ret_err, &a->contents);
		if (r < 0)
			return r;
		a->generation = m->generation;
		a->manifest_fd = fdlist_take(fds, 0);
	}
	allocs = reallocarray(a->allocs, n_before + m->n_allocations + 1, sizeof(*allocs));
	if (!allocs)
		return err_set(ret_err, ENOMEM, "weights client: no memory");
	a->allocs = allocs;
	for (uint32_t i = 0; i < m->n_allocations; i++) {
		struct weights_client_alloc *alloc = &allocs[n_before + i];
		uint32_t at = i + (first ? 1 : 0);

		weights_client_status_read_alloc(m->allocations[i], alloc);
		int r = weights_client_check_alloc(
			alloc, n_before + i, has_fds ? fds->fds[at] : -1, ret_err);
		if (r < 0)
			return r;
		if (has_fds)
			alloc->fd = fdlist_take(fds, at);
		a->n_allocs++;
	}
	return 0;
}

/* The packets that answer an Acquire or a Describe. */
static int must_check weights_client_receive_acquired(struct weights_client *c, int timeout_ms,
	bool has_fds, struct err *ret_err, struct weights_client_acquired *ret_acquired)
{
	_cleanup_(weights_client_acquired_fini)
	struct weights_client_acquired acquired = {.manifest_fd = -1};
	bool more = true;

	while (more) {
		_cleanup_(weights_link_free_reply)
		Wd__Reply *reply = NULL;
		_cleanup_(fdlist_fini)
		struct fdlist fds = FDLIST_NULL;
		int r = weights_link_recv(
			&c->link, WD__REPLY__BODY_ACQUIRED, timeout_ms, ret_err, &reply, &fds);

		if (r == 0)
			r = weights_client_add_acquired(
				reply->acquired, has_fds, &fds, ret_err, &acquired);
		if (r < 0)
			return r;
		more = reply->acquired->more;
		timeout_ms = WEIGHTS_LINK_TIMEOUT_MS;
	}
	*ret_acquired = acquired;
	acquired = (struct weights_client_acquired){.manifest_fd = -1};
	return 0;
}

int weights_client_acquire(struct weights_client *c, const char *model, const uint8_t *device_uuid,
	const uint8_t *driver_uuid, struct err *ret_err,
	struct weights_client_acquired *ret_acquired)
{
	Wd__Acquire acquire = WD__ACQUIRE__INIT;
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Refusal rows[WEIGHTS_CLIENT_N_HANDLES];
	Wd__Refusal *refusals[WEIGHTS_CLIENT_N_HANDLES];

	for (uint32_t type = 1; type < WEIGHTS_CLIENT_N_HANDLES; type++) {
		Wd__Refusal *m = &rows[acquire.n_refusals];

		if (c->refused[type] == UINT32_MAX)
			continue;
		wd__refusal__init(m);
		m->handle_type = (Wd__HandleType)type;
		m->index = c->refused[type];
		refusals[acquire.n_refusals++] = m;
	}
	acquire.refusals = refusals;
	acquire.model = (char *)model;
	acquire.device_uuid = (ProtobufCBinaryData){.data = (uint8_t *)device_uuid, .len = 16};
	acquire.driver_uuid = (ProtobufCBinaryData){.data = (uint8_t *)driver_uuid, .len = 16};
	acquire.handle_types = c->handle_types;
	request.body_case = WD__REQUEST__BODY_ACQUIRE;
	request.acquire = &acquire;
	int r = weights_link_send(&c->link, &request, NULL, ret_err);
	if (r < 0)
		return r;
	return weights_client_receive_acquired(
		c, WEIGHTS_LINK_FOREVER, true, ret_err, ret_acquired);
}

static void weights_client_init_resume(
	const struct weights_client_held *held, Wd__Resume *resume, Wd__Request *request)
{
	struct stat st;

	wd__resume__init(resume);
	wd__request__init(request);
	resume->model = (char *)held->model;
	resume->generation = held->generation;
	resume->device_uuid =
		(ProtobufCBinaryData){.data = (uint8_t *)held->device_uuid, .len = 16};
	resume->driver_uuid =
		(ProtobufCBinaryData){.data = (uint8_t *)held->driver_uuid, .len = 16};
	resume->n_reserved_bytes = held->n_reserved_bytes;
	resume->manifest_inode = fstat(held->manifest_fd, &st) == 0 ? st.st_ino : 0;
	request->body_case = WD__REQUEST__BODY_RESUME;
	request->resume = resume;
}

/* The manifest and every allocation, in as many packets as that takes. */
static int must_check weights_client_give(
	struct weights_client *c, const struct weights_client_held *held, struct err *ret_err)
{
	uint32_t at = 0;
	int r = 0;

	for (bool is_first = true; r == 0 && (is_first || at < held->n_allocs); is_first = false) {
		struct fdlist fds = FDLIST_NULL; /* borrowed: no fini */
		Wd__Resume resume;
		Wd__Request request;

		weights_client_init_resume(held, &resume, &request);
		resume.has_manifest = is_first;
		resume.first = at;
		if (is_first)
			fds.fds[fds.n++] = held->manifest_fd;
		while (at < held->n_allocs && fds.n < FDLIST_MAX)
			fds.fds[fds.n++] = held->fds[at++];
		resume.more = at < held->n_allocs;
		r = weights_link_send(&c->link, &request, &fds, ret_err);
	}
	return r;
}

static int must_check weights_client_receive_resumed(struct weights_client *c,
	const struct weights_client_held *held, struct err *ret_err, bool *ret_wants,
	struct weights_client_contents *ret_contents)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	int r = weights_link_recv(
		&c->link, WD__REPLY__BODY_RESUMED, WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply, NULL);

	if (r < 0)
		return r;
	if (reply->resumed->generation != held->generation)
		return err_set(ret_err, EPROTO,
			"weightd: lease: generation: expected %llu, found %llu",
			(unsigned long long)held->generation,
			(unsigned long long)reply->resumed->generation);
	*ret_wants = reply->resumed->wants_descriptors;
	return weights_link_read_contents(
		&reply->resumed->identity, &reply->resumed->file_identity, ret_err, ret_contents);
}

int weights_client_resume(struct weights_client *c, const struct weights_client_held *held,
	struct err *ret_err, bool *ret_gave, struct weights_client_contents *ret_contents)
{
	struct weights_client_contents contents = {0};
	Wd__Resume resume;
	Wd__Request request;
	bool wants = false, wants_more = false;

	weights_client_init_resume(held, &resume, &request);
	int r = weights_link_send(&c->link, &request, NULL, ret_err);
	if (r == 0)
		r = weights_client_receive_resumed(c, held, ret_err, &wants, &contents);
	if (r == 0 && wants)
		r = weights_client_give(c, held, ret_err);
	if (r == 0 && wants)
		r = weights_client_receive_resumed(c, held, ret_err, &wants_more, &contents);
	if (r == 0 && wants_more)
		return err_set(ret_err, EPROTO, "weightd: lease: it wants descriptors again");
	if (r == 0) {
		*ret_gave = wants;
		*ret_contents = contents;
	}
	return r;
}

int weights_client_describe(struct weights_client *c, const char *model, struct err *ret_err,
	struct weights_client_acquired *ret_acquired)
{
	Wd__Describe describe = WD__DESCRIBE__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	describe.model = (char *)model;
	request.body_case = WD__REQUEST__BODY_DESCRIBE;
	request.describe = &describe;
	int r = weights_link_send(&c->link, &request, NULL, ret_err);
	if (r < 0)
		return r;
	return weights_client_receive_acquired(
		c, WEIGHTS_LINK_TIMEOUT_MS, false, ret_err, ret_acquired);
}

int weights_client_load(struct weights_client *c, const char *name, const char *path, int fd,
	bool replace, struct err *ret_err, uint64_t *ret_generation)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	const struct fdlist fds = {.n = 1, .fds = {fd}}; /* borrowed: no fini */
	Wd__Load load = WD__LOAD__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	load.name = (char *)name;
	load.path = (char *)path;
	load.replace = replace;
	request.body_case = WD__REQUEST__BODY_LOAD;
	request.load = &load;
	int r = weights_link_send(&c->link, &request, &fds, ret_err);
	if (r == 0)
		r = weights_link_recv(&c->link, WD__REPLY__BODY_DONE, WEIGHTS_LINK_FOREVER, ret_err,
			&reply, NULL);
	if (r == 0)
		*ret_generation = reply->done->generation;
	return r;
}

/* A request that Done answers. */
static int must_check weights_client_do(
	struct weights_client *c, Wd__Request *request, struct err *ret_err)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;

	return weights_link_call(
		&c->link, request, WD__REPLY__BODY_DONE, WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
}

int weights_client_release(struct weights_client *c, uint64_t generation, struct err *ret_err)
{
	Wd__Release release = WD__RELEASE__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	release.generation = generation;
	request.body_case = WD__REQUEST__BODY_RELEASE;
	request.release = &release;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_reserve(struct weights_client *c, const uint8_t *device_uuid, uint64_t n_bytes,
	uint64_t n_least_bytes, bool is_modest, struct err *ret_err, uint64_t *ret_n_bytes)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	Wd__Reserve reserve = WD__RESERVE__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	reserve.device_uuid = (ProtobufCBinaryData){.data = (uint8_t *)device_uuid, .len = 16};
	reserve.n_bytes = n_bytes;
	reserve.least_bytes = n_least_bytes;
	reserve.modest = is_modest;
	request.body_case = WD__REQUEST__BODY_RESERVE;
	request.reserve = &reserve;
	int r = weights_link_call(&c->link, &request, WD__REPLY__BODY_RESERVED,
		WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
	if (r < 0)
		return r;
	if (reply->reserved->n_bytes < n_least_bytes || reply->reserved->n_bytes > n_bytes)
		return err_set(ret_err, EPROTO,
			"weightd: reserved: expected %llu to %llu bytes, found %llu",
			(unsigned long long)n_least_bytes, (unsigned long long)n_bytes,
			(unsigned long long)reply->reserved->n_bytes);
	*ret_n_bytes = reply->reserved->n_bytes;
	return 0;
}

int weights_client_unload(struct weights_client *c, const char *name, struct err *ret_err)
{
	Wd__Unload unload = WD__UNLOAD__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	unload.name = (char *)name;
	request.body_case = WD__REQUEST__BODY_UNLOAD;
	request.unload = &unload;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_pin(
	struct weights_client *c, const char *model, bool pinned, struct err *ret_err)
{
	Wd__Pin pin = WD__PIN__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	pin.model = (char *)model;
	pin.pinned = pinned;
	request.body_case = WD__REQUEST__BODY_PIN;
	request.pin = &pin;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_unload_within(
	struct weights_client *c, const char *name, uint64_t timeout_ns, struct err *ret_err)
{
	Wd__Unload unload = WD__UNLOAD__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	unload.name = (char *)name;
	unload.timeout_ns = timeout_ns;
	unload.at_once = timeout_ns == 0;
	request.body_case = WD__REQUEST__BODY_UNLOAD;
	request.unload = &unload;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_watch(struct weights_client *c, struct err *ret_err)
{
	Wd__Watch watch = WD__WATCH__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	request.body_case = WD__REQUEST__BODY_WATCH;
	request.watch = &watch;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_report(
	struct weights_client *c, const struct weights_client_report *report, struct err *ret_err)
{
	Wd__WorkerReport message = WD__WORKER_REPORT__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	message.kv_bytes = report->kv_bytes;
	message.scratch_bytes = report->scratch_bytes;
	message.io_bytes = report->io_bytes;
	message.n_sessions = report->n_sessions;
	message.attach_ns = report->attach_ns;
	if (report->socket)
		message.socket = (char *)report->socket;
	request.body_case = WD__REQUEST__BODY_WORKER_REPORT;
	request.worker_report = &message;
	return weights_client_do(c, &request, ret_err);
}

int weights_client_verify(struct weights_client *c, const char *model, struct err *ret_err,
	struct weights_client_verified *ret_verified)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	Wd__Verify verify = WD__VERIFY__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	verify.model = (char *)model;
	request.body_case = WD__REQUEST__BODY_VERIFY;
	request.verify = &verify;
	int r = weights_link_call(&c->link, &request, WD__REPLY__BODY_VERIFIED,
		WEIGHTS_LINK_FOREVER, ret_err, &reply);
	return r < 0 ? r
		     : weights_client_status_read_verified(reply->verified, ret_err, ret_verified);
}

int weights_client_list(
	struct weights_client *c, struct err *ret_err, struct weights_client_status *ret_status)
{
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	_cleanup_(weights_client_status_fini)
	struct weights_client_status status = {0};
	Wd__List list = WD__LIST__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	request.body_case = WD__REQUEST__BODY_LIST;
	request.list = &list;
	int r = weights_link_call(&c->link, &request, WD__REPLY__BODY_MODELS,
		WEIGHTS_LINK_TIMEOUT_MS, ret_err, &reply);
	if (r == 0)
		r = weights_client_status_add_models(
			&status, reply->models->models, reply->models->n_models, ret_err);
	if (r < 0)
		return r;
	*ret_status = status;
	status = (struct weights_client_status){0};
	return 0;
}

int weights_client_status(
	struct weights_client *c, struct err *ret_err, struct weights_client_status *ret_status)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status status = {0};
	Wd__StatusRequest message = WD__STATUS_REQUEST__INIT;
	Wd__Request request = WD__REQUEST__INIT;
	bool more = true, first = true;

	request.body_case = WD__REQUEST__BODY_STATUS;
	request.status = &message;
	int r = weights_link_send(&c->link, &request, NULL, ret_err);
	while (r == 0 && more) {
		_cleanup_(weights_link_free_reply)
		Wd__Reply *reply = NULL;

		r = weights_link_recv(&c->link, WD__REPLY__BODY_STATUS, WEIGHTS_LINK_TIMEOUT_MS,
			ret_err, &reply, NULL);
		if (r == 0)
			r = weights_client_status_add(&status, reply->status, first, ret_err);
		if (r == 0)
			more = reply->status->more;
		first = false;
	}
	if (r < 0)
		return r;
	*ret_status = status;
	status = (struct weights_client_status){0};
	return 0;
}

int weights_client_dispatch(struct weights_client *c, struct err *ret_err)
{
	for (int i = 0; i < WEIGHTS_CLIENT_EVENTS_A_DISPATCH; i++) {
		int r = weights_link_poll(&c->link, ret_err);

		if (r == WEIGHTS_LINK_IDLE)
			return 0;
		if (r < 0)
			return r;
	}
	return 0;
}
