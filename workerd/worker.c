/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/thread.h"
#include "proto/weights-client.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "workerd/notice.h"
#include "workerd/options.h"
#include "workerd/weights.h"

enum { MAX_REFUSALS = 4 }; /* that are taken at their word; another moves all */

static int worker_open_device(struct worker *w, const struct options *o, struct err *ret_err)
{
	const struct weights_client_device *theirs = weights_client_get_device(w->site.weightd);
	char uuid[2 * sizeof(theirs->uuid) + 1];
	int r;

	for (unsigned i = 0; i < sizeof(theirs->uuid); i++)
		snprintf(uuid + 2 * i, 3, "%02x", theirs->uuid[i]);
	r = vk_device_new(o->device ? o->device : uuid, ret_err, &w->site.device);
	if (r) {
		if (!o->device)
			err_prefix(ret_err, "weightd's device %s", theirs->name);
		return r;
	}
	if (vk_cache_load(w->site.device))
		log_debug("the pipeline cache was not read");
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
	int r = weights_client_new(o->weights, WEIGHTS_CLIENT_WORKER, ret_err, &w->site.weightd);

	if (r) {
		err_prefix(ret_err, "cannot connect to weightd");
		return r;
	}
	weights_client_set_event_fn(w->site.weightd, notice_on_event, w->notice);
	r = worker_open_device(w, o, ret_err);
	if (r)
		return r;
	w->handle_types = worker_get_handle_types(w->site.device);
	weights_client_set_handle_types(w->site.weightd, w->handle_types);
	for (uint32_t type = 1; type < WEIGHTS_CLIENT_N_HANDLES && !r; type++)
		if (refusals->first[type] != UINT32_MAX)
			r = weights_client_add_refusal(
				w->site.weightd, type, refusals->first[type]);
	if (r)
		return r;
	/* Not before: the threads of a software driver, which compute, would have it too. */
	thread_ask_short_slice();
	w->site.n_import_threads = refusals->is_in_order ? 1 : 0;
	r = stack_new(&w->site, ret_err, ret_refusal, &w->stack);
	return r == STACK_SPILLED ? -ENOMEM : r;
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
		w->site.device = vk_device_free(w->site.device);
		w->site.weightd = weights_client_free(w->site.weightd);
	}
}

int worker_new(const struct options *o, const char *socket, struct notice_params *notice,
	struct err *ret_err, struct worker **ret_worker)
{
	struct worker *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	w->site = (struct stack_params){.options = o, .socket = socket};
	w->notice = notice;
	r = worker_attach(w, o, ret_err);
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
	stack_free(w->stack);
	vk_device_free(w->site.device);
	weights_client_free(w->site.weightd);
	free(w);
	return NULL;
}
