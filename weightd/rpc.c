/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/rpc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weightd.pb-c.h"
#include "proto/wire.h"
#include "weightd/access.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/batons.h"
#include "weightd/leave.h"
#include "weightd/peer.h"
#include "weightd/publish.h"
#include "weightd/registry.h"
#include "weightd/restart.h"
#include "weightd/resume.h"
#include "weightd/rpc-packet.h"
#include "weightd/rpc-prefix.h"
#include "weightd/rpc-reply.h"
#include "weightd/rpc-scan.h"
#include "weightd/service.h"
#include "weightd/shown.h"
#include "weightd/verify.h"

enum { RPC_UUID_BYTES = 16, RPC_MAX_BUILD_BYTES = 128 };

struct rpc_call {
	struct service *service;
	struct peer *peer;
	const Wd__Request *request;
	struct fdlist *fds;
};

/* A model that is there, for all that the peer's socket shows. */
static int rpc_check_model(const struct rpc_call *call, const char *model, struct err *ret_err)
{
	int rc = registry_check_name(model, ret_err);

	if (rc < 0)
		return rc;
	return shown_check(service_get_registry(call->service), call->peer, model, ret_err);
}

/* The same, and not still on its way back. */
static int rpc_check_there(const struct rpc_call *call, const char *model, struct err *ret_err)
{
	int rc = rpc_check_model(call, model, ret_err);

	if (rc == 0 && restart_is_awaited(service_get_params(call->service)->restart, model))
		rc = err_set(ret_err, EAGAIN, "model %.64s is on its way back", model);
	return rc;
}

/* Answers, or leaves the answer to the service, and returns 0; or -errno with the refusal. */
typedef int (*rpc_fn)(const struct rpc_call *call, struct err *ret_err);

static int rpc_hello(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Hello *m = call->request->hello;
	struct peer *p = call->peer;

	if (p->is_greeted)
		return err_set(ret_err, EPROTO, "Hello: expected once, found again");
	if (m->protocol != WIRE_PROTOCOL)
		return err_set(ret_err, EPROTONOSUPPORT, "protocol: expected %d, found %u",
			WIRE_PROTOCOL, m->protocol);
	if (strlen(m->build) > RPC_MAX_BUILD_BYTES ||
		(m->role != WD__ROLE__ROLE_WORKER && m->role != WD__ROLE__ROLE_CONTROL))
		return err_set(ret_err, EINVAL,
			"Hello: expected a role of 1 or 2 and a build of at most %d bytes, found "
			"%d and %zu",
			RPC_MAX_BUILD_BYTES, (int)m->role, strlen(m->build));
	p->is_greeted = true;
	p->role = (uint32_t)m->role;
	rpc_reply_welcome(p, call->request->id, call->service);
	return 0;
}

/* Each type once at most, so that there are never more than types. */
static int rpc_read_importer(
	const Wd__Acquire *m, struct err *ret_err, struct export_importer *ret_importer)
{
	struct export_importer importer;

	export_init_importer(&importer, m->handle_types);
	for (size_t i = 0; i < m->n_refusals; i++) {
		uint32_t type = (uint32_t)m->refusals[i]->handle_type;

		if (type == 0 || type >= EXPORT_N_HANDLES ||
			importer.refused_from[type] != UINT32_MAX ||
			m->refusals[i]->index == UINT32_MAX)
			return err_set(ret_err, EINVAL,
				"Acquire: refusals: expected each of the handle types 1 to %d at "
				"most once, with an index, found type %u, index %u",
				EXPORT_N_HANDLES - 1, type, m->refusals[i]->index);
		importer.refused_from[type] = m->refusals[i]->index;
	}
	*ret_importer = importer;
	return 0;
}

static int rpc_acquire(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Acquire *m = call->request->acquire;
	int rc = rpc_check_model(call, m->model, ret_err);

	if (rc < 0)
		return rc;
	if (m->device_uuid.len != RPC_UUID_BYTES || m->driver_uuid.len != RPC_UUID_BYTES)
		return err_set(ret_err, EINVAL,
			"Acquire: expected uuids of %d bytes, found %zu and %zu", RPC_UUID_BYTES,
			m->device_uuid.len, m->driver_uuid.len);
	struct export_importer importer;
	rc = rpc_read_importer(m, ret_err, &importer);
	if (rc < 0)
		return rc;
	const struct acquire_params params = {.request = call->request->id,
		.model = m->model,
		.device_uuid = m->device_uuid.data,
		.driver_uuid = m->driver_uuid.data,
		.importer = importer};
	return acquire_begin(call->service, call->peer, &params, ret_err);
}

static int rpc_load(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Load *m = call->request->load;
	int rc = registry_check_name(m->name, ret_err);

	if (rc == 0)
		rc = access_check_name(call->peer->access, "Load", m->name, ret_err);
	if (rc < 0)
		return rc;
	if (strlen(m->path) > SERVICE_MAX_PATH_BYTES)
		return err_set(ret_err, ENAMETOOLONG, "Load: path: expected at most %d bytes",
			SERVICE_MAX_PATH_BYTES);
	if (call->fds->n == 0)
		return err_set(ret_err, EBADF,
			"Load: expected the descriptor of the opened file beside it, found none");
	if (call->fds->n > 1)
		return err_set(ret_err, ENOTSUP,
			"Load: expected one file, found %u: split models are not available in this "
			"version",
			call->fds->n);
	return service_load(call->service, call->peer, call->request->id, m->name, m->path,
		call->fds->fds[0], m->replace, ret_err);
}

/* What was asked for is on record before anybody relies on it. */
static void rpc_done(const struct rpc_call *call, uint64_t generation)
{
	restart_save(service_get_params(call->service)->restart);
	rpc_reply_done(call->peer, call->request->id, generation);
}

static int rpc_unload(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Unload *m = call->request->unload;
	const char *name = m->name;
	uint64_t timeout_ns = m->timeout_ns ? m->timeout_ns : SERVICE_NO_TIMEOUT;
	uint64_t generation;
	int rc = rpc_check_model(call, name, ret_err);

	if (rc == 0 && m->at_once && m->timeout_ns)
		rc = err_set(ret_err, EINVAL,
			"Unload: expected no timeout beside at_once, found %llu ns",
			(unsigned long long)m->timeout_ns);
	if (rc == 0)
		rc = service_unload(
			call->service, name, m->at_once ? 0 : timeout_ns, ret_err, &generation);
	if (rc == 0)
		rpc_done(call, generation);
	return shown_refuse(service_get_registry(call->service), call->peer, name, rc, ret_err);
}

static int rpc_pin(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Pin *m = call->request->pin;
	struct registry *r = service_get_registry(call->service);
	int rc = rpc_check_model(call, m->model, ret_err);

	if (rc == 0) {
		bool is_returning = restart_pin(
			service_get_params(call->service)->restart, m->model, m->pinned);
		rc = registry_pin(r, m->model, m->pinned, ret_err);
		if (is_returning)
			rc = 0;
	}
	if (rc == 0)
		rpc_done(call, 0);
	return shown_refuse(r, call->peer, m->model, rc, ret_err);
}

static int rpc_release(const struct rpc_call *call, struct err *ret_err)
{
	uint64_t generation = call->request->release->generation;
	int rc = leave_release(call->service, call->peer, generation, ret_err);

	if (rc == 0)
		rpc_done(call, generation);
	return rc;
}

static int rpc_reserve(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Reserve *m = call->request->reserve;

	if (m->device_uuid.len != RPC_UUID_BYTES)
		return err_set(ret_err, EINVAL, "Reserve: expected a uuid of %d bytes, found %zu",
			RPC_UUID_BYTES, m->device_uuid.len);
	if (m->least_bytes > m->n_bytes || m->n_bytes > INT64_MAX)
		return err_set(ret_err, EINVAL,
			"Reserve: expected at most %llu bytes, and no more as the least, found "
			"%llu and %llu",
			(unsigned long long)INT64_MAX, (unsigned long long)m->n_bytes,
			(unsigned long long)m->least_bytes);
	const struct admission_params params = {.request = call->request->id,
		.device_uuid = m->device_uuid.data,
		.n_bytes = m->n_bytes,
		.n_least_bytes = m->least_bytes ? m->least_bytes : m->n_bytes,
		.is_modest = m->modest};
	return admission_reserve(call->service, call->peer, &params, ret_err);
}

static int rpc_describe(const struct rpc_call *call, struct err *ret_err)
{
	const char *name = call->request->describe->model;
	int rc = rpc_check_there(call, name, ret_err);

	if (rc < 0)
		return rc;
	for (uint32_t i = registry_count(service_get_registry(call->service)); i > 0; i--) {
		const struct registry_generation *g =
			registry_at(service_get_registry(call->service), i - 1);
		const struct service_generation *data = g->data;
		if (strcmp(g->model, name) != 0)
			continue;
		if (g->state == REGISTRY_WARM)
			return err_set(ret_err, EAGAIN,
				"model %.64s is warm: it is placed anew when a worker asks for it",
				name);
		if (!data->residencies[0].export)
			continue;
		rpc_reply_described(
			call->peer, call->request->id, g->id, data->residencies[0].export);
		return 0;
	}
	rc = err_set(ret_err, ENOENT, "no model %.64s is loaded", name);
	return shown_refuse(service_get_registry(call->service), call->peer, name, rc, ret_err);
}

static int rpc_verify(const struct rpc_call *call, struct err *ret_err)
{
	const char *name = call->request->verify->model;
	int rc = rpc_check_there(call, name, ret_err);

	if (rc == 0)
		rc = verify_begin(call->service, call->peer, call->request->id, name, ret_err);
	return shown_refuse(service_get_registry(call->service), call->peer, name, rc, ret_err);
}

static int rpc_list(const struct rpc_call *call, struct err *ret_err)
{
	(void)ret_err;
	rpc_reply_models(call->peer, call->request->id, call->service);
	return 0;
}

static int rpc_status(const struct rpc_call *call, struct err *ret_err)
{
	(void)ret_err;
	rpc_reply_status(call->peer, call->request->id, call->service);
	return 0;
}

static int rpc_watch(const struct rpc_call *call, struct err *ret_err)
{
	(void)ret_err;
	rpc_reply_done(call->peer, call->request->id, 0);
	call->peer->is_watching = true;
	return 0;
}

static int rpc_worker_report(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__WorkerReport *m = call->request->worker_report;
	struct peer *p = call->peer;

	if (strlen(m->socket) >= sizeof(p->report.socket))
		return err_set(ret_err, EINVAL,
			"WorkerReport: socket: expected at most %zu bytes, found %zu",
			sizeof(p->report.socket) - 1, strlen(m->socket));
	p->has_report = true;
	p->report = (struct peer_report){
		.kv_bytes = m->kv_bytes,
		.scratch_bytes = m->scratch_bytes,
		.io_bytes = m->io_bytes,
		.n_sessions = m->n_sessions,
		.attach_ns = m->attach_ns,
	};
	snprintf(p->report.socket, sizeof(p->report.socket), "%s", m->socket);
	rpc_reply_done(p, call->request->id, 0);
	return 0;
}

static int rpc_resume(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Resume *m = call->request->resume;
	int rc = registry_check_name(m->model, ret_err);

	if (rc < 0)
		return rc;
	if (m->device_uuid.len != RPC_UUID_BYTES || m->driver_uuid.len != RPC_UUID_BYTES)
		return err_set(ret_err, EINVAL,
			"Resume: expected uuids of %d bytes, found %zu and %zu", RPC_UUID_BYTES,
			m->device_uuid.len, m->driver_uuid.len);
	if ((m->has_manifest || m->more) && call->fds->n == 0)
		return err_set(ret_err, EPROTO, "Resume: expected descriptors, found none");
	const struct resume_params params = {.request = call->request->id,
		.model = m->model,
		.generation = m->generation,
		.device_uuid = m->device_uuid.data,
		.driver_uuid = m->driver_uuid.data,
		.n_reserved_bytes = m->n_reserved_bytes,
		.manifest_inode = m->manifest_inode,
		.first = m->first,
		.has_manifest = m->has_manifest,
		.more = m->more};
	return resume_handle(call->service, call->peer, &params, call->fds, ret_err);
}

static int rpc_publish(const struct rpc_call *call, struct err *ret_err)
{
	return rpc_prefix_publish(call->service, call->peer, call->request->id,
		call->request->publish, call->fds, ret_err);
}

static int rpc_list_prefixes(const struct rpc_call *call, struct err *ret_err)
{
	return rpc_prefix_list(call->service, call->peer, call->request->id,
		call->request->list_prefixes, ret_err);
}

static int rpc_take_prefix(const struct rpc_call *call, struct err *ret_err)
{
	return rpc_prefix_take(call->service, call->peer, call->request->id,
		call->request->take_prefix->id, ret_err);
}

static int rpc_drop_prefix(const struct rpc_call *call, struct err *ret_err)
{
	int rc = publish_drop(call->service, call->peer, call->request->drop_prefix->id, ret_err);

	if (rc == 0)
		rpc_reply_done(call->peer, call->request->id, 0);
	return rc;
}

static int rpc_remove_prefix(const struct rpc_call *call, struct err *ret_err)
{
	int rc = publish_remove(
		call->service, call->peer, call->request->remove_prefix->id, ret_err);

	if (rc == 0)
		rpc_reply_done(call->peer, call->request->id, 0);
	return rc;
}

/* The descriptor is the service's, and stays. */
static int rpc_take_baton(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__TakeBaton *m = call->request->take_baton;
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__BatonTaken taken = WD__BATON_TAKEN__INIT;
	int fd = -1;

	if (m->device_uuid.len != RPC_UUID_BYTES)
		return err_set(ret_err, EINVAL, "TakeBaton: expected a uuid of %d bytes, found %zu",
			RPC_UUID_BYTES, m->device_uuid.len);
	int rc = batons_get(call->service, m->device_uuid.data, ret_err, &fd);
	if (rc < 0)
		return rc;
	reply.body_case = WD__REPLY__BODY_BATON_TAKEN;
	reply.baton_taken = &taken;
	rpc_packet_send(call->peer, call->request->id, &reply, &fd, 1);
	return 0;
}

static const struct {
	rpc_fn fn;
	const char *name;
	bool takes_fds;
	bool needs_control;
} rpc_table[] = {
	[WD__REQUEST__BODY_HELLO] = {rpc_hello, "Hello", false, false},
	[WD__REQUEST__BODY_ACQUIRE] = {rpc_acquire, "Acquire", false, false},
	[WD__REQUEST__BODY_LOAD] = {rpc_load, "Load", true, true},
	[WD__REQUEST__BODY_UNLOAD] = {rpc_unload, "Unload", false, true},
	[WD__REQUEST__BODY_PIN] = {rpc_pin, "Pin", false, true},
	[WD__REQUEST__BODY_RELEASE] = {rpc_release, "Release", false, false},
	[WD__REQUEST__BODY_LIST] = {rpc_list, "List", false, false},
	[WD__REQUEST__BODY_STATUS] = {rpc_status, "StatusRequest", false, false},
	[WD__REQUEST__BODY_WATCH] = {rpc_watch, "Watch", false, false},
	[WD__REQUEST__BODY_DESCRIBE] = {rpc_describe, "Describe", false, false},
	[WD__REQUEST__BODY_WORKER_REPORT] = {rpc_worker_report, "WorkerReport", false, false},
	[WD__REQUEST__BODY_RESERVE] = {rpc_reserve, "Reserve", false, false},
	[WD__REQUEST__BODY_VERIFY] = {rpc_verify, "Verify", false, true},
	[WD__REQUEST__BODY_RESUME] = {rpc_resume, "Resume", true, false},
	[WD__REQUEST__BODY_PUBLISH] = {rpc_publish, "Publish", true, false},
	[WD__REQUEST__BODY_LIST_PREFIXES] = {rpc_list_prefixes, "ListPrefixes", false, false},
	[WD__REQUEST__BODY_TAKE_PREFIX] = {rpc_take_prefix, "TakePrefix", false, false},
	[WD__REQUEST__BODY_DROP_PREFIX] = {rpc_drop_prefix, "DropPrefix", false, false},
	[WD__REQUEST__BODY_REMOVE_PREFIX] = {rpc_remove_prefix, "RemovePrefix", false, false},
	[WD__REQUEST__BODY_TAKE_BATON] = {rpc_take_baton, "TakeBaton", false, false},
};

/* What breaks the protocol, whatever the request wants. */
static int rpc_check(const struct rpc_call *call, struct err *ret_err)
{
	const Wd__Request *m = call->request;
	size_t body = (size_t)m->body_case;

	if (m->id == 0)
		return err_set(ret_err, EPROTO, "request: id: expected not 0");
	if (m->n_fds != call->fds->n)
		return err_set(ret_err, EPROTO, "request: descriptors: expected %u, found %u",
			m->n_fds, call->fds->n);
	if (body >= ARRAY_SIZE(rpc_table) || !rpc_table[body].fn)
		return err_set(ret_err, EPROTO, "request: expected a known body, found none");
	if (!call->peer->is_greeted && m->body_case != WD__REQUEST__BODY_HELLO)
		return err_set(
			ret_err, EPROTO, "request: expected Hello, found %s", rpc_table[body].name);
	if (call->fds->n > 0 && !rpc_table[body].takes_fds)
		return err_set(ret_err, EPROTO, "%s: expected no descriptors, found %u",
			rpc_table[body].name, call->fds->n);
	return 0;
}

void rpc_handle(struct service *s, struct peer *p, const uint8_t *data, uint32_t n_bytes,
	struct fdlist *fds)
{
	struct err err = ERR_NULL;
	int rc = rpc_scan_request(data, n_bytes, &err);
	/* Few messages, as the scan saw: what comes out is a small multiple of a packet. */
	Wd__Request *request = rc == 0 ? wd__request__unpack(NULL, n_bytes, data) : NULL;

	if (!request) {
		if (rc == 0)
			rc = err_set(
				&err, EBADMSG, "packet: %u bytes that are no request", n_bytes);
		rpc_reply_error(p, 0, rc, &err);
		peer_break(p, "%s", err.text);
		return;
	}
	const struct rpc_call call = {.service = s, .peer = p, .request = request, .fds = fds};
	rc = rpc_check(&call, &err);
	bool is_over = rc < 0;
	if (rc == 0 && rpc_table[request->body_case].needs_control)
		rc = access_check_control(p->access, rpc_table[request->body_case].name, &err);
	if (rc == 0) {
		rc = rpc_table[request->body_case].fn(&call, &err);
		is_over = !p->is_greeted;
	}
	if (rc < 0) {
		log_debug(
			"peer %llu, pid %d: %s", (unsigned long long)p->id, (int)p->pid, err.text);
		rpc_reply_error(p, request->id, rc, &err);
		if (is_over)
			peer_break(p, "%s", err.text);
	}
	wd__request__free_unpacked(request, NULL);
}
