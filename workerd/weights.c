/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "vk/submit.h"
#include "workerd/clock.h"

static const uint64_t acquire_timeout_ns = 60ull * 1000 * 1000 * 1000;

/* What weightd says of an allocation against what the manifest says of it. */
static int weights_check_alloc(
	const struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	if (a->index >= w->n_memories || w->memories[a->index])
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected each of %" PRIu32 " once", a->index,
			w->n_memories);
	if (a->handle_type != WEIGHTS_CLIENT_OPAQUE_FD)
		return err_set(ret_err, ENOTSUP,
			"allocation %" PRIu32
			": expected an opaque descriptor, found handle type %" PRIu32,
			a->index, a->handle_type);
	if (a->buffer_bytes < w->manifest->allocs[a->index].n_bytes)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected %" PRIu64
			" bytes as in the manifest, found %" PRIu64,
			a->index, w->manifest->allocs[a->index].n_bytes, a->buffer_bytes);
	return 0;
}

static int weights_import(
	struct weights *w, struct vk_device *d, struct weights_client_alloc *a, struct err *ret_err)
{
	const struct vk_share_params params = {
		.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->dedicated,
	};
	char name[32];
	int r = weights_check_alloc(w, a, ret_err);

	if (r)
		return r;
	snprintf(name, sizeof(name), "weights %" PRIu32, a->index);
	r = vk_share_import(
		d, a->fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &w->memories[a->index]);
	if (r)
		return r;
	a->fd = -1; /* the driver's */
	w->n_bytes += a->buffer_bytes;
	return 0;
}

/* The exporter released every memory to the outside; nothing may read it before this. */
static int weights_take_ownership(struct weights *w, struct vk_device *d, struct err *ret_err)
{
	struct vk_command *c;
	uint64_t ticket;
	int r = vk_command_new(d, 0, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	for (uint32_t i = 0; i < w->n_memories; i++)
		vk_command_acquire(c, w->memories[i]);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(d, &c, 1, ret_err, &ticket);
	if (!r) {
		r = vk_submit_wait(d, ticket, acquire_timeout_ns);
		if (r == -ETIMEDOUT)
			err_set(ret_err, ETIMEDOUT, "the device did not take the weights in 60 s");
	}
	vk_command_free(c);
	return r;
}

static int weights_fill(struct weights *w, struct vk_device *d, struct weights_client_acquired *a,
	struct err *ret_err)
{
	int r = manifest_open(a->manifest_fd, ret_err, &w->manifest);

	if (r)
		return r;
	w->generation = a->generation;
	if (w->manifest->header->generation != a->generation)
		return err_set(ret_err, EPROTO,
			"manifest: expected generation %" PRIu64 ", found %" PRIu64, a->generation,
			w->manifest->header->generation);
	if (w->manifest->n_allocs != a->n_allocs)
		return err_set(ret_err, EPROTO,
			"expected %" PRIu32 " allocations as in the manifest, found %" PRIu32,
			w->manifest->n_allocs, a->n_allocs);
	w->memories = calloc(a->n_allocs, sizeof(struct vk_memory *));
	if (!w->memories)
		return -ENOMEM;
	w->n_memories = a->n_allocs;
	for (uint32_t i = 0; i < a->n_allocs; i++) {
		r = weights_import(w, d, &a->allocs[i], ret_err);
		if (r)
			return r;
	}
	return weights_take_ownership(w, d, ret_err);
}

int weights_attach(struct weights_client *c, struct vk_device *d, const char *model,
	struct err *ret_err, struct weights **ret_weights)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	struct weights_client_acquired acquired = {.manifest_fd = -1};
	uint64_t start_ns = clock_now_ns();
	struct weights *w;
	int r = weights_client_acquire(c, model, info->uuid, info->driver_uuid, ret_err, &acquired);

	if (r)
		return r;
	w = calloc(1, sizeof(*w));
	r = w ? weights_fill(w, d, &acquired, ret_err) : -ENOMEM;
	weights_client_acquired_fini(&acquired);
	if (r) {
		weights_free(w);
		err_prefix(ret_err, "model %s", model);
		return r;
	}
	w->attach_ns = clock_now_ns() - start_ns;
	*ret_weights = w;
	return 0;
}

struct weights *weights_free(struct weights *w)
{
	if (!w)
		return NULL;
	for (uint32_t i = 0; i < w->n_memories; i++)
		vk_memory_free(w->memories[i]);
	free(w->memories);
	manifest_free(w->manifest);
	free(w);
	return NULL;
}

int weights_find(const struct weights *w, const char *name, struct err *ret_err,
	struct weights_tensor *ret_tensor)
{
	const struct manifest_tensor *t = manifest_find_tensor(w->manifest, name);

	if (!t)
		return err_set(ret_err, ENOENT, "tensor %s: the model has none", name);
	*ret_tensor = (struct weights_tensor){
		.address = vk_memory_get_address(w->memories[t->alloc]) + t->offset,
		.dtype = t->dtype,
		.layout = t->layout,
		.n_bytes = t->n_bytes,
	};
	memcpy(ret_tensor->ne, t->ne, sizeof(t->ne));
	return 0;
}
