/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/probe.h"
#include "workerd/kv.h"
#include "workerd/options.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum {
	DEFAULT_CTX = 4096,
	DEFAULT_CHUNK = 256,
	MAX_REFUSALS = 4, /* that are taken at their word; another moves all */
};

static int worker_open_device(struct worker *w, const struct options *o, struct err *ret_err)
{
	const struct weights_client_device *theirs = weights_client_get_device(w->weightd);
	char uuid[2 * sizeof(theirs->uuid) + 1];
	int r;

	for (unsigned i = 0; i < sizeof(theirs->uuid); i++)
		snprintf(uuid + 2 * i, 3, "%02x", theirs->uuid[i]);
	r = vk_device_new(o->device ? o->device : uuid, ret_err, &w->device);
	if (r) {
		if (!o->device)
			err_prefix(ret_err, "weightd's device %s", theirs->name);
		return r;
	}
	if (vk_cache_load(w->device))
		log_debug("the pipeline cache was not read");
	return 0;
}

static int worker_make_kv(struct worker *w, const struct options *o, struct err *ret_err)
{
	const struct manifest_hparams *h = w->weights->manifest->hparams;
	uint32_t n_ctx = o->n_ctx;

	if (h->head_dim_k != h->head_dim_v)
		return err_set(ret_err, ENOTSUP,
			"model %s: keys of %" PRIu32 " and values of %" PRIu32
			" dimensions: expected the same",
			o->model, h->head_dim_k, h->head_dim_v);
	if (n_ctx > h->n_ctx_train)
		return err_set(ret_err, EINVAL,
			"--ctx: expected at most the %" PRIu32
			" that model %s was trained for, found %" PRIu32,
			h->n_ctx_train, o->model, n_ctx);
	if (!n_ctx)
		n_ctx = h->n_ctx_train < DEFAULT_CTX ? h->n_ctx_train : DEFAULT_CTX;
	/* Each slot's last page may be partly used, so a slot's pages are counted whole. */
	uint64_t n_slot_tokens = (n_ctx + KV_PAGE_TOKENS - 1ull) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
	const struct kv_params params = {
		.n_layers = h->n_layers,
		.n_head_kv = h->n_head_kv,
		.head_dim = h->head_dim_k,
		.n_slots = o->n_sessions,
		.n_ctx = n_ctx,
		.n_tokens = o->n_sessions * n_slot_tokens,
	};
	return kv_new(w->device, &params, ret_err, &w->kv);
}

/* Where all memory is the device's own, copies of it are no faster. */
static bool worker_has_host_memory(const struct worker *w)
{
	const struct vk_device_info *info = vk_device_get_info(w->device);

	for (uint32_t i = 0; i < info->n_heaps; i++)
		if (!info->heaps[i].device_local)
			return true;
	return false;
}

static uint64_t worker_get_expert_cache_bytes(const struct options *o)
{
	switch (o->expert_cache) {
	case OPTIONS_EXPERT_CACHE_OFF: return 0;
	case OPTIONS_EXPERT_CACHE_BYTES: return o->expert_cache_bytes;
	case OPTIONS_EXPERT_CACHE_AUTO: break;
	}
	return EXPERT_CACHE_AUTO;
}

/* The chunk that was asked for, or less where the device has no memory for it. */
static int worker_make_plan(struct worker *w, const struct options *o, struct err *ret_err)
{
	uint32_t n_asked = o->n_chunk ? o->n_chunk : DEFAULT_CHUNK;
	uint32_t n_rows = n_asked;
	struct plan_params params = {
		.n_logit_rows = o->n_sessions,
		.stream_rows = o->stream_rows,
		.n_expert_cache_bytes = worker_get_expert_cache_bytes(o),
	};
	int r;

	if (!params.stream_rows && !worker_has_host_memory(w))
		params.stream_rows = PLAN_NEVER_STREAM;
	if (n_rows < o->n_sessions)
		return err_set(ret_err, EINVAL,
			"--chunk: expected at least the %" PRIu32 " of --sessions, found %" PRIu32,
			o->n_sessions, n_rows);
	for (;;) {
		uint32_t n_less = n_rows / 2 / OPTIONS_CHUNK_STEP * OPTIONS_CHUNK_STEP;

		params.n_rows = n_rows;
		r = plan_new(w->device, w->weights, w->kv, &params, ret_err, &w->plan);
		if (r != -ENOMEM || !n_less || n_less < o->n_sessions)
			break;
		n_rows = n_less;
	}
	if (r)
		return r;
	if (n_rows < n_asked)
		log_info("chunk: %" PRIu32 " tokens a step, there is no memory for %" PRIu32,
			n_rows, n_asked);
	w->n_rows = n_rows;
	return 0;
}

/* One line for all that did not fit where it belongs. */
static int worker_check_spills(struct worker *w, const struct options *o, struct err *ret_err)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	char line[256] = "";
	int n = 0;

	vk_memory_get_counters(w->device, counters);
	for (int i = 0; i < VK_MEMORY_N_ROLES; i++)
		if (counters[i].spilled_bytes)
			n += snprintf(line + n, sizeof(line) - (size_t)n,
				"%s%s %" PRIu64 " of %" PRIu64 " bytes", n ? ", " : "",
				vk_memory_role_name((enum vk_memory_role)i),
				counters[i].spilled_bytes, counters[i].requested_bytes);
	if (!n)
		return 0;
	if (o->fail_on_spill)
		return err_set(
			ret_err, ENOMEM, "spilled out of the memory they belong in: %s", line);
	log_warn("spilled out of the memory they belong in: %s", line);
	return 0;
}

/*
 * What of enum weights_client_handle this device takes, a bit each. weightd may see another device
 * or be in another container, so its own probe says nothing of this process.
 */
static uint32_t worker_get_handle_types(const struct vk_device *d)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	struct vk_probe probe = {0};
	const struct vk_probe_result *kinds = probe.kinds;
	struct err e = ERR_NULL;
	uint32_t types = 0;

	if (vk_probe_get(info, NULL, &e, &probe))
		log_warn("what the device can import was not found out: %s", e.text);
	if (info->has_export_fd)
		types |= 1u << WEIGHTS_CLIENT_OPAQUE_FD;
	if (info->has_import_dma_buf)
		types |= 1u << WEIGHTS_CLIENT_DMA_BUF;
	if (!info->has_import_host && kinds[VK_PROBE_MEMFD_DMA_BUF].is_ok)
		types |= 1u << WEIGHTS_CLIENT_MEMFD;
	/* A device that wants larger pages than windows have gets none. */
	if (!info->has_import_host || WEIGHTS_CLIENT_PAGE_BYTES % info->import_align)
		return types;
	if (kinds[VK_PROBE_MEMFD].is_ok)
		types |= 1u << WEIGHTS_CLIENT_MEMFD;
	/* weightd knows what kind of file it is; where it hopes too much, the import says so. */
	if (kinds[VK_PROBE_DISK].is_ok || kinds[VK_PROBE_DISK_READ_ONLY].is_ok ||
		kinds[VK_PROBE_TMPFS].is_ok || kinds[VK_PROBE_TMPFS_READ_ONLY].is_ok)
		types |= 1u << WEIGHTS_CLIENT_FILE;
	return types;
}

/* What this attach has come to know of the driver. */
struct worker_refusals {
	uint32_t n;
	uint32_t first[WEIGHTS_CLIENT_N_HANDLES]; /* index of the allocation; UINT32_MAX: none */
	bool is_in_order;                         /* one import after the other */
};

/* One connection, one device, one lease. */
static int worker_try_attach(struct worker *w, const struct options *o,
	const struct worker_refusals *refusals, struct err *ret_err,
	struct weights_refusal *ret_refusal)
{
	int r = weights_client_new(o->weights, WEIGHTS_CLIENT_WORKER, ret_err, &w->weightd);

	if (r) {
		err_prefix(ret_err, "cannot connect to weightd");
		return r;
	}
	r = worker_open_device(w, o, ret_err);
	if (r)
		return r;
	w->handle_types = worker_get_handle_types(w->device);
	weights_client_set_handle_types(w->weightd, w->handle_types);
	for (uint32_t type = 1; type < WEIGHTS_CLIENT_N_HANDLES && !r; type++)
		if (refusals->first[type] != UINT32_MAX)
			r = weights_client_add_refusal(w->weightd, type, refusals->first[type]);
	if (r)
		return r;
	const struct weights_attach_params params = {
		.client = w->weightd,
		.device = w->device,
		.model = o->model,
		.n_threads = refusals->is_in_order ? 1 : 0,
	};
	return weights_attach(&params, ret_err, ret_refusal, &w->weights);
}

/* The slow placement is never silent. */
static void worker_say_paged(const struct worker *w)
{
	uint64_t n_bytes = weights_count_bytes(w->weights, MANIFEST_PLACEMENT_PAGED);

	if (n_bytes)
		log_warn("%" PRIu64 " of %" PRIu64 " bytes of weights are paged: every step copies "
			 "them through the processor",
			n_bytes, w->weights->n_bytes);
}

/* why: the driver's error. */
static int worker_note_refusal(struct worker_refusals *refusals, const struct weights_refusal *r,
	const char *why, struct err *ret_err)
{
	static const char *const names[WEIGHTS_CLIENT_N_HANDLES] = {
		[WEIGHTS_CLIENT_OPAQUE_FD] = "opaque descriptors",
		[WEIGHTS_CLIENT_MEMFD] = "pages of a memfd",
		[WEIGHTS_CLIENT_FILE] = "pages of a file",
		[WEIGHTS_CLIENT_DMA_BUF] = "dma-bufs",
	};

	if (r->handle_type == 0 || r->handle_type >= WEIGHTS_CLIENT_N_HANDLES ||
		r->index >= refusals->first[r->handle_type])
		return err_set(ret_err, EIO,
			"allocation %" PRIu32 ": handle type %" PRIu32
			" was refused and came again",
			r->index, r->handle_type);
	/* A driver that refuses ever earlier windows is not to make all of them anew each time. */
	uint32_t index = ++refusals->n < MAX_REFUSALS ? r->index : 0;

	refusals->first[r->handle_type] = index;
	log_warn("%s; the weights are taken again, from allocation %" PRIu32 " on not as %s", why,
		index, names[r->handle_type]);
	return 0;
}

/*
 * A refused import poisons the device on some drivers: everything that came later would fail too.
 * So all is made anew, with a lease that leaves out what was refused and what is behind it. Which
 * allocation that is tells a second try, in order, where the first had several under way.
 */
static int worker_attach(struct worker *w, const struct options *o, struct err *ret_err)
{
	struct worker_refusals refusals = {0};
	struct weights_refusal refusal;

	memset(refusals.first, 0xff, sizeof(refusals.first));
	for (;;) {
		int r = worker_try_attach(w, o, &refusals, ret_err, &refusal);

		if (r != WEIGHTS_REFUSED)
			return r;
		const struct err why = *ret_err;
		*ret_err = ERR_NULL;
		if (refusal.is_exact) {
			r = worker_note_refusal(&refusals, &refusal, why.text, ret_err);
			if (r)
				return r;
		} else {
			log_debug("%s; they are imported again, one after the other", why.text);
		}
		refusals.is_in_order = true;
		w->device = vk_device_free(w->device);
		w->weightd = weights_client_free(w->weightd);
	}
}

static int worker_fill(struct worker *w, const struct options *o, struct err *ret_err)
{
	int r = worker_attach(w, o, ret_err);

	if (r)
		return r;
	worker_say_paged(w);
	r = worker_make_kv(w, o, ret_err);
	if (!r)
		r = worker_make_plan(w, o, ret_err);
	if (!r)
		r = worker_check_spills(w, o, ret_err);
	return r;
}

int worker_new(const struct options *o, struct err *ret_err, struct worker **ret_worker)
{
	struct worker *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	r = worker_fill(w, o, ret_err);
	if (r) {
		worker_free(w);
		return r;
	}
	*ret_worker = w;
	return 0;
}

struct worker *worker_free(struct worker *w)
{
	if (!w)
		return NULL;
	plan_free(w->plan);
	kv_free(w->kv);
	weights_free(w->weights);
	vk_device_free(w->device);
	weights_client_free(w->weightd);
	free(w);
	return NULL;
}

void worker_describe(
	const struct worker *w, const char *socket, struct weights_client_report *ret_report)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];

	vk_memory_get_counters(w->device, counters);
	*ret_report = (struct weights_client_report){
		.kv_bytes = counters[VK_MEMORY_KV].requested_bytes,
		.scratch_bytes = counters[VK_MEMORY_SCRATCH].requested_bytes,
		.io_bytes = counters[VK_MEMORY_IO].requested_bytes +
			    counters[VK_MEMORY_STAGING].requested_bytes,
		.n_sessions = kv_get_params(w->kv)->n_slots,
		.attach_ns = w->weights->attach_ns,
		.socket = socket,
	};
}
