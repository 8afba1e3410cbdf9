/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/import.h"

static const uint64_t ownership_timeout_ns = 60ull * 1000 * 1000 * 1000;

/*
 * The exporter released every memory to the outside; nothing may read it before this. Host pages
 * have never been another device's. What is submitted later comes behind it, so nobody waits for
 * the GPU here, which may be another process's for the moment; but a queue that copies host memory
 * ahead does not come behind it by itself.
 */
static int weights_take_ownership(struct weights *w, struct vk_device *d, struct err *ret_err)
{
	bool has_host = false;
	int r = vk_command_new(d, 0, ret_err, &w->ownership);

	if (r)
		return r;
	w->device = d;
	vk_command_begin(w->ownership);
	for (uint32_t i = 0; i < w->n_allocs; i++)
		if (w->allocs[i].memory && !w->allocs[i].map) {
			vk_command_acquire(w->ownership, w->allocs[i].memory);
			has_host |= w->allocs[i].placement != MANIFEST_PLACEMENT_DEVICE;
		}
	r = vk_command_end(w->ownership, ret_err);
	if (!r)
		r = vk_submit(d, &w->ownership, 1, ret_err, &w->ownership_ticket);
	if (!r && has_host) {
		r = vk_submit_wait(d, w->ownership_ticket, ownership_timeout_ns);
		if (r == -ETIMEDOUT)
			err_set(ret_err, ETIMEDOUT, "the device did not take the weights in 60 s");
	}
	return r;
}

static int weights_fill(struct weights *w, struct vk_device *d, struct weights_client_acquired *a,
	uint32_t n_threads, struct err *ret_err, struct weights_refusal *ret_refusal)
{
	int r = manifest_open(a->manifest_fd, ret_err, &w->manifest);

	if (r)
		return r;
	w->manifest_fd = TAKE_FD(a->manifest_fd);
	w->generation = a->generation;
	w->contents = a->contents;
	if (w->manifest->header->generation != a->generation)
		return err_set(ret_err, EPROTO,
			"manifest: expected generation %" PRIu64 ", found %" PRIu64, a->generation,
			w->manifest->header->generation);
	if (w->manifest->n_allocs != a->n_allocs)
		return err_set(ret_err, EPROTO,
			"expected %" PRIu32 " allocations as in the manifest, found %" PRIu32,
			w->manifest->n_allocs, a->n_allocs);
	w->allocs = calloc(a->n_allocs, sizeof(*w->allocs));
	if (!w->allocs)
		return err_set(ret_err, ENOMEM, "weights: no memory");
	w->n_allocs = a->n_allocs;
	for (uint32_t i = 0; i < a->n_allocs; i++)
		w->allocs[i].fd = w->allocs[i].kept_fd = -1;
	r = import_run(w, d, a, n_threads, ret_err, ret_refusal);
	if (r)
		return r;
	uint64_t start_ns = clock_now_ns();
	r = weights_take_ownership(w, d, ret_err);
	log_debug("attach: ownership %.2f ms", (double)(clock_now_ns() - start_ns) / 1e6);
	return r;
}

int weights_attach(const struct weights_attach_params *params, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct weights **ret_weights)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);
	struct weights_client_acquired acquired = {.manifest_fd = -1};
	uint64_t start_ns = clock_now_ns();
	struct weights *w;
	int r = weights_client_acquire(
		params->client, params->model, info->uuid, info->driver_uuid, ret_err, &acquired);

	if (r)
		return r;
	uint64_t generation = acquired.generation;
	log_debug("attach: acquire %.2f ms", (double)(clock_now_ns() - start_ns) / 1e6);
	w = calloc(1, sizeof(*w));
	if (w)
		w->manifest_fd = -1;
	r = w ? weights_fill(w, params->device, &acquired, params->n_threads, ret_err, ret_refusal)
	      : err_set(ret_err, ENOMEM, "weights: no memory");
	weights_client_acquired_fini(&acquired);
	if (r) {
		struct err ignored = ERR_NULL;

		weights_free(w);
		/* A refused import needs another connection anyway, which takes the lease along. */
		if (r < 0 && weights_client_release(params->client, generation, &ignored))
			log_debug("%s", ignored.text);
		err_prefix(ret_err, "model %s", params->model);
		return r;
	}
	w->attach_ns = clock_now_ns() - start_ns;
	*ret_weights = w;
	return 0;
}

bool weights_get_identity(const struct weights *w, uint8_t ret_identity[32])
{
	if (w->contents.has_identity)
		memcpy(ret_identity, w->contents.identity, sizeof(w->contents.identity));
	return w->contents.has_identity;
}

struct weights *weights_free(struct weights *w)
{
	if (!w)
		return NULL;
	/* Of a device that is lost or stands still nothing can be given back in order anyway. */
	if (w->ownership_ticket &&
		vk_submit_wait(w->device, w->ownership_ticket, ownership_timeout_ns))
		log_debug("the device did not take the weights");
	vk_command_free(w->ownership);
	for (uint32_t i = 0; i < w->n_allocs; i++) {
		struct weights_alloc *a = &w->allocs[i];

		vk_memory_free(a->memory);
		cleanup_close(&a->fd);
		if (a->owner == i)
			cleanup_close(&a->kept_fd);
	}
	cleanup_close(&w->manifest_fd);
	for (uint32_t i = 0; i < w->n_maps; i++)
		if (w->maps[i].pages)
			munmap(w->maps[i].pages, w->maps[i].end - w->maps[i].begin);
	free(w->maps);
	free(w->allocs);
	manifest_free(w->manifest);
	free(w);
	return NULL;
}

/* Of "blk.<layer>.", which is how GGUF names a layer's tensors. */
uint32_t weights_get_layer(const char *name)
{
	uint32_t layer;
	int n = 0;

	if (sscanf(name, "blk.%" SCNu32 ".%n", &layer, &n) == 1 && n > 0)
		return layer;
	return WEIGHTS_NO_LAYER;
}

int weights_find(const struct weights *w, const char *name, struct err *ret_err,
	struct weights_tensor *ret_tensor)
{
	const struct manifest_tensor *t = manifest_find_tensor(w->manifest, name);

	if (!t)
		return err_set(ret_err, ENOENT, "tensor %s: the model has none", name);
	const struct weights_alloc *a = &w->allocs[t->alloc];
	*ret_tensor = (struct weights_tensor){
		.address = (a->memory ? vk_memory_get_address(a->memory) + a->base
				      : WEIGHTS_PAGED_ADDRESS) +
			   t->offset,
		.dtype = t->dtype,
		.layout = t->layout,
		.n_bytes = t->n_bytes,
		.alloc = t->alloc,
		.layer = weights_get_layer(name),
		.offset = t->offset,
	};
	memcpy(ret_tensor->ne, t->ne, sizeof(t->ne));
	return 0;
}

uint64_t weights_count_bytes(const struct weights *w, uint32_t placement)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < w->n_allocs; i++)
		if (w->allocs[i].placement == placement)
			n_bytes += w->manifest->allocs[i].n_bytes;
	return n_bytes;
}

int weights_read(const struct weights_alloc *a, uint64_t offset, uint64_t n_bytes, void *ret_bytes,
	struct err *ret_err)
{
	uint8_t *to = ret_bytes;

	while (n_bytes > 0) {
		ssize_t n = pread(a->fd, to, n_bytes, (off_t)(a->file_offset + offset));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_set(ret_err, EIO,
				"paged weights: %" PRIu64 " bytes at %" PRIu64 ": %s", n_bytes,
				a->file_offset + offset,
				n < 0 ? strerror(errno) : "the file ends before them");
		to += n;
		offset += (uint64_t)n;
		n_bytes -= (uint64_t)n;
	}
	return 0;
}
