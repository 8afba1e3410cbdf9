/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/worker.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/cache.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "workerd/notice.h"
#include "workerd/options.h"
#include "workerd/weights.h"

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

/* One connection, one device, one lease. */
static int worker_try_attach(struct worker *w, const struct options *o, uint32_t refused_types,
	struct err *ret_err, uint32_t *ret_refused)
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
	weights_client_set_handle_types(
		w->site.weightd, worker_get_handle_types(w->site.device) & ~refused_types);
	return stack_new(&w->site, ret_err, ret_refused, &w->stack);
}

/*
 * A refused import poisons the device on some drivers: everything that came later would fail too.
 * So all is made anew, with a lease that asks for nothing of the kind that was refused.
 */
static int worker_attach(struct worker *w, const struct options *o, struct err *ret_err)
{
	uint32_t refused_types = 0, refused;

	for (;;) {
		int r = worker_try_attach(w, o, refused_types, ret_err, &refused);

		if (r != WEIGHTS_REFUSED)
			return r;
		if (refused >= 32 || refused_types >> refused & 1)
			return err_set(ret_err, EIO,
				"handle type %" PRIu32 " was refused and came again", refused);
		log_warn("%s; the weights are taken again without handle type %" PRIu32,
			ret_err->text, refused);
		refused_types |= 1u << refused;
		w->site.device = vk_device_free(w->site.device);
		w->site.weightd = weights_client_free(w->site.weightd);
		*ret_err = ERR_NULL;
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
