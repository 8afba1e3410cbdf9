/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/host.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "vk/submit.h"
#include "workerd/clock.h"
#include "workerd/populate.h"

static const uint64_t acquire_timeout_ns = 60ull * 1000 * 1000 * 1000;

/* What weightd says of an allocation against what the manifest says of it. */
static int weights_check_alloc(
	const struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	if (a->index >= w->n_allocs || w->allocs[a->index].placement)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected each of %" PRIu32 " once", a->index,
			w->n_allocs);
	if (a->placement < MANIFEST_PLACEMENT_DEVICE || a->placement > MANIFEST_PLACEMENT_PAGED)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected a placement, found %" PRIu32, a->index,
			a->placement);
	if (a->buffer_bytes < w->manifest->allocs[a->index].n_bytes || a->buffer_bytes > a->n_bytes)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected %" PRIu64
			" bytes as in the manifest, found %" PRIu64 " of %" PRIu64,
			a->index, w->manifest->allocs[a->index].n_bytes, a->buffer_bytes,
			a->n_bytes);
	return 0;
}

/* Pages behind a file's end kill who reads them, so the file must be there and stay. */
static int weights_check_pages(
	const struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t used = w->manifest->allocs[a->index].n_bytes;
	uint64_t end, n_rounded;
	struct stat st;

	if (fstat(a->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a descriptor of a file, found another",
			a->index);
	if (a->file_offset % page || !a->n_bytes || a->n_bytes % page ||
		__builtin_add_overflow(a->file_offset, a->n_bytes, &end))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected pages of %" PRIu64
			" bytes, found a window of %" PRIu64 " at %" PRIu64,
			a->index, page, a->n_bytes, a->file_offset);
	if (!bytes_align((uint64_t)st.st_size, page, &n_rounded) || end > n_rounded ||
		a->file_offset + used > (uint64_t)st.st_size)
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a file of %" PRIu64
			" bytes or more, found %" PRIu64,
			a->index, a->file_offset + used, (uint64_t)st.st_size);
	if (a->handle_type == WEIGHTS_CLIENT_MEMFD && !(fcntl(a->fd, F_GET_SEALS) & F_SEAL_SHRINK))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a memfd sealed against shrinking",
			a->index);
	return 0;
}

/* Maps the window and imports its pages; the mapping is the allocation's from here on. */
static int weights_import_pages(struct weights_alloc *alloc, struct vk_device *d,
	const struct weights_client_alloc *a, const char *name, struct err *ret_err)
{
	int protection = PROT_READ | (a->writable ? PROT_WRITE : 0);
	void *map = mmap(NULL, a->n_bytes, protection, MAP_SHARED, a->fd, (off_t)a->file_offset);

	if (map == MAP_FAILED)
		return err_set(
			ret_err, errno, "map of %s: %" PRIu64 " bytes: %m", name, a->n_bytes);
	alloc->map = map;
	alloc->n_map_bytes = a->n_bytes;
	/* The software driver pins nothing. */
	if (!vk_device_get_info(d)->is_software)
		populate_pages(map, a->n_bytes);
	int r = vk_host_import(
		d, map, a->n_bytes, VK_MEMORY_WEIGHTS, name, ret_err, &alloc->memory);
	return r == VK_HOST_REFUSED ? WEIGHTS_REFUSED : r;
}

/* What a driver claims of dma-bufs is not what it does with every one of them. */
static int weights_judge_share(const struct vk_share_params *params, int r)
{
	bool is_driver = r == -EIO || r == -ENOMEM || r == -ENOTSUP;

	return params->handle == VK_HANDLE_DMA_BUF && is_driver ? WEIGHTS_REFUSED : r;
}

/* The whole memfd as a dma-buf: for a driver that imports no host pages. */
static int weights_import_memfd(struct weights_alloc *alloc, struct vk_device *d,
	struct weights_client_alloc *a, const char *name, struct err *ret_err)
{
	struct stat st;

	if (fstat(a->fd, &st) < 0)
		return err_set(ret_err, errno, "import of %s: %m", name);
	const struct vk_share_params params = {
		.n_bytes = (uint64_t)st.st_size,
		.buffer_bytes = (uint64_t)st.st_size,
		.memory_type_index = VK_SHARE_ANY_TYPE,
		.handle = VK_HANDLE_DMA_BUF,
	};
	int r = vk_share_import(
		d, a->fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &alloc->memory);

	if (!r) {
		a->fd = -1; /* the driver's */
		alloc->base = a->file_offset;
	}
	return weights_judge_share(&params, r);
}

static int weights_import_fd(struct weights_alloc *alloc, struct vk_device *d,
	struct weights_client_alloc *a, const char *name, struct err *ret_err)
{
	const struct vk_share_params params = {
		.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->dedicated,
		.handle = a->handle_type == WEIGHTS_CLIENT_DMA_BUF ? VK_HANDLE_DMA_BUF
								   : VK_HANDLE_OPAQUE_FD,
	};
	int r = vk_share_import(
		d, a->fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &alloc->memory);

	if (!r)
		a->fd = -1; /* the driver's */
	return weights_judge_share(&params, r);
}

static int weights_import(
	struct weights *w, struct vk_device *d, struct weights_client_alloc *a, struct err *ret_err)
{
	bool is_pages =
		a->handle_type == WEIGHTS_CLIENT_MEMFD || a->handle_type == WEIGHTS_CLIENT_FILE;
	struct weights_alloc *alloc;
	char name[32];
	int r = weights_check_alloc(w, a, ret_err);

	if (!r && is_pages)
		r = weights_check_pages(w, a, ret_err);
	if (r)
		return r;
	alloc = &w->allocs[a->index];
	snprintf(name, sizeof(name), "weights %" PRIu32, a->index);
	if (a->placement == MANIFEST_PLACEMENT_PAGED && is_pages) {
		alloc->fd = TAKE_FD(a->fd);
		alloc->file_offset = a->file_offset;
	} else if (a->handle_type == WEIGHTS_CLIENT_MEMFD &&
		   !vk_device_get_info(d)->has_import_host) {
		r = weights_import_memfd(alloc, d, a, name, ret_err);
	} else if (is_pages) {
		r = weights_import_pages(alloc, d, a, name, ret_err);
	} else if ((a->handle_type == WEIGHTS_CLIENT_OPAQUE_FD ||
			   a->handle_type == WEIGHTS_CLIENT_DMA_BUF) &&
		   a->placement != MANIFEST_PLACEMENT_PAGED) {
		r = weights_import_fd(alloc, d, a, name, ret_err);
	} else {
		r = err_set(ret_err, ENOTSUP,
			"allocation %" PRIu32 ": placement %" PRIu32
			": expected a descriptor that can be imported, found handle type %" PRIu32,
			a->index, a->placement, a->handle_type);
	}
	if (r)
		return r;
	alloc->placement = a->placement;
	w->n_bytes += a->buffer_bytes;
	return 0;
}

/*
 * The exporter released every memory to the outside; nothing may read it before this. Host pages
 * have never been another device's.
 */
static int weights_take_ownership(struct weights *w, struct vk_device *d, struct err *ret_err)
{
	struct vk_command *c;
	uint64_t ticket;
	int r = vk_command_new(d, 0, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	for (uint32_t i = 0; i < w->n_allocs; i++)
		if (w->allocs[i].memory && !w->allocs[i].map)
			vk_command_acquire(c, w->allocs[i].memory);
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
	struct err *ret_err, uint32_t *ret_refused)
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
	w->allocs = calloc(a->n_allocs, sizeof(*w->allocs));
	if (!w->allocs)
		return -ENOMEM;
	w->n_allocs = a->n_allocs;
	for (uint32_t i = 0; i < a->n_allocs; i++)
		w->allocs[i].fd = -1;
	for (uint32_t i = 0; i < a->n_allocs; i++) {
		r = weights_import(w, d, &a->allocs[i], ret_err);
		if (r > 0)
			*ret_refused = a->allocs[i].handle_type;
		if (r)
			return r;
	}
	return weights_take_ownership(w, d, ret_err);
}

int weights_attach(struct weights_client *c, struct vk_device *d, const char *model,
	struct err *ret_err, uint32_t *ret_refused, struct weights **ret_weights)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	struct weights_client_acquired acquired = {.manifest_fd = -1};
	uint64_t start_ns = clock_now_ns();
	struct weights *w;
	int r = weights_client_acquire(c, model, info->uuid, info->driver_uuid, ret_err, &acquired);

	if (r)
		return r;
	uint64_t generation = acquired.generation;
	w = calloc(1, sizeof(*w));
	r = w ? weights_fill(w, d, &acquired, ret_err, ret_refused) : -ENOMEM;
	weights_client_acquired_fini(&acquired);
	if (r) {
		struct err ignored = ERR_NULL;

		weights_free(w);
		/* A refused import needs another connection anyway, which takes the lease along. */
		if (r < 0 && weights_client_release(c, generation, &ignored))
			log_debug("%s", ignored.text);
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
	for (uint32_t i = 0; i < w->n_allocs; i++) {
		struct weights_alloc *a = &w->allocs[i];

		vk_memory_free(a->memory);
		if (a->map)
			munmap(a->map, a->n_map_bytes);
		cleanup_close(&a->fd);
	}
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
