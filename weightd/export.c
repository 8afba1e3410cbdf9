/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/export.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "weightd/check.h"
#include "weightd/source.h"

int export_new(uint32_t n_allocs, struct source *source, struct export **ret_export)
{
	struct export *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->manifest_fd = -1;
	e->copied_from = UINT32_MAX;
	e->source = source ? source_ref(source) : NULL;
	e->allocs = calloc(n_allocs, sizeof(*e->allocs));
	if (!e->allocs) {
		export_free(e);
		return -ENOMEM;
	}
	e->n_allocs = n_allocs;
	for (uint32_t i = 0; i < n_allocs; i++) {
		e->allocs[i].placement = MANIFEST_PLACEMENT_DEVICE;
		e->allocs[i].main = e->allocs[i].opaque =
			(struct export_fd){.fd = -1, .handle = EXPORT_OPAQUE_FD};
	}
	*ret_export = e;
	return 0;
}

void export_drop_memory(struct export *e)
{
	for (uint32_t i = 0; i < e->n_allocs; i++)
		e->allocs[i].memory = vk_memory_free(e->allocs[i].memory);
}

struct export *export_free(struct export *e)
{
	if (!e)
		return NULL;
	export_drop_memory(e);
	check_free(e->check);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		if (export_has_memory(&e->allocs[i]))
			cleanup_close(&e->allocs[i].main.fd);
		cleanup_close(&e->allocs[i].opaque.fd);
	}
	cleanup_close(&e->manifest_fd);
	if (e->is_charged)
		source_discharge(e->source, e->host_bytes);
	source_unref(e->source);
	free(e->allocs);
	free(e->sums);
	free(e);
	return NULL;
}

static int export_share_memory(struct export_alloc *a, struct err *ret_err)
{
	struct vk_share_params params;
	bool is_dma_buf = vk_memory_can_export(a->memory, VK_HANDLE_DMA_BUF);
	int rc = vk_share_export(a->memory, ret_err, &a->main.fd, &params);

	if (is_dma_buf)
		a->main.handle = EXPORT_DMA_BUF;
	/* What the importer repeats is the same for both. */
	if (rc == 0 && is_dma_buf && vk_memory_can_export(a->memory, VK_HANDLE_OPAQUE_FD))
		rc = vk_share_export_as(
			a->memory, VK_HANDLE_OPAQUE_FD, ret_err, &a->opaque.fd, &params);
	if (rc == VK_DEVICE_LOST)
		return EXPORT_DEVICE_LOST;
	if (rc < 0)
		return rc;
	a->n_bytes = params.n_bytes;
	a->buffer_bytes = params.buffer_bytes;
	a->memory_type_index = params.memory_type_index;
	a->is_dedicated = params.is_dedicated;
	a->heap_index = vk_memory_get_heap_index(a->memory);
	return 0;
}

static void export_share_window(const struct source *source, const struct placement_alloc *home,
	uint64_t buffer_bytes, struct export_alloc *a)
{
	bool is_memfd = home->home == PLACEMENT_MEMFD;

	a->main.handle = is_memfd ? EXPORT_MEMFD : EXPORT_FILE;
	a->main.fd = is_memfd ? source_get_memfd(source) : source_get_shared_fd(source);
	a->n_bytes = home->n_bytes;
	a->buffer_bytes = buffer_bytes;
	a->file_offset = home->offset;
	a->is_writable = is_memfd ||
			 (a->placement == MANIFEST_PLACEMENT_PINNED && source_is_writable(source));
}

static int export_identify(struct export_fd *f, struct err *ret_err)
{
	struct stat st;

	if (f->fd < 0)
		return 0;
	if (fstat(f->fd, &st) < 0)
		return err_set(ret_err, errno, "weights: descriptor: %s", strerror(errno));
	f->inode = st.st_ino;
	f->dev = st.st_dev;
	return 0;
}

int export_share(struct export *e, const struct placement *p, struct err *ret_err)
{
	e->weights_bytes = 0;
	e->device_bytes = 0;
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		struct export_alloc *a = &e->allocs[i];
		int rc = 0;

		a->placement = p->allocs[i].placement;
		if (a->memory)
			rc = export_share_memory(a, ret_err);
		else
			export_share_window(e->source, &p->homes[i], p->allocs[i].n_bytes, a);
		if (rc == 0)
			rc = export_identify(&a->main, ret_err);
		if (rc == 0)
			rc = export_identify(&a->opaque, ret_err);
		if (rc)
			return rc;
		e->weights_bytes += a->n_bytes;
		e->device_bytes += a->memory ? a->n_bytes : 0;
	}
	return 0;
}

/* An import takes a descriptor for itself; ours goes on to importers. */
static int export_import_memory(
	struct export_alloc *a, struct vk_device *d, const char *name, struct err *ret_err)
{
	const struct vk_share_params params = {.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->is_dedicated,
		.handle =
			a->main.handle == EXPORT_DMA_BUF ? VK_HANDLE_DMA_BUF : VK_HANDLE_OPAQUE_FD};
	_cleanup_(cleanup_close)
	int fd = fcntl(a->main.fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return err_set(ret_err, errno, "%s: descriptor: %s", name, strerror(errno));
	int rc = vk_share_import(d, fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &a->memory);
	if (rc == 0) {
		fd = -1; /* the driver's */
		a->heap_index = vk_memory_get_heap_index(a->memory);
	}
	return rc == VK_DEVICE_LOST ? EXPORT_DEVICE_LOST : rc;
}

int export_import(struct export *e, struct vk_device *d, struct err *ret_err)
{
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		char name[32];
		if (!export_has_memory(&e->allocs[i]))
			continue;
		snprintf(name, sizeof(name), "allocation %u", i);
		int rc = export_import_memory(&e->allocs[i], d, name, ret_err);
		if (rc)
			return rc;
	}
	return 0;
}

bool export_uses_file(const struct export *e)
{
	for (uint32_t i = 0; i < e->n_allocs; i++)
		if (e->allocs[i].main.handle == EXPORT_FILE)
			return true;
	return false;
}

void export_init_importer(struct export_importer *i, uint32_t handle_types)
{
	i->handle_types = handle_types;
	memset(i->refused_from, 0xff, sizeof(i->refused_from));
}

static bool export_is_taken(
	const struct export_importer *importer, enum export_handle handle, uint32_t index)
{
	uint32_t mask = importer->handle_types ? importer->handle_types : 1u << EXPORT_OPAQUE_FD;

	return mask >> handle & 1 && index < importer->refused_from[handle];
}

/* Its pages lie in the file, which the importer does not take, and it takes a memfd's. */
static bool export_is_for_copy(
	const struct export *e, uint32_t index, const struct export_importer *importer)
{
	const struct export_alloc *a = &e->allocs[index];

	return a->main.handle == EXPORT_FILE && a->placement == MANIFEST_PLACEMENT_PINNED &&
	       !export_is_taken(importer, EXPORT_FILE, index) &&
	       export_is_taken(importer, EXPORT_MEMFD, index);
}

uint32_t export_find_copied(const struct export *e, const struct export_importer *importer)
{
	uint32_t i = 0;

	while (i < e->n_allocs && !export_is_for_copy(e, i, importer))
		i++;
	return i;
}

int export_get_offer(const struct export *e, uint32_t index, const struct export_importer *importer,
	struct export_offer *ret_offer)
{
	const struct export_alloc *a = &e->allocs[index];
	struct export_offer offer = {
		.fd = a->main, .placement = a->placement, .is_writable = a->is_writable};
	bool is_paged = a->placement == MANIFEST_PLACEMENT_PAGED;

	if (!is_paged && export_is_taken(importer, a->main.handle, index)) {
		*ret_offer = offer;
		return 0;
	}
	if (export_has_memory(a)) {
		if (a->opaque.fd < 0 || !export_is_taken(importer, EXPORT_OPAQUE_FD, index))
			return -ENOTSUP;
		offer.fd = a->opaque;
	} else if (importer->handle_types == 0) {
		return -ENOTSUP;
	} else if (index >= e->copied_from && export_is_for_copy(e, index, importer)) {
		offer.fd.handle = EXPORT_MEMFD;
		offer.fd.fd = source_get_copy(e->source, &offer.fd.inode, &offer.fd.dev);
		offer.placement = MANIFEST_PLACEMENT_STAGED;
		offer.is_writable = true;
	} else {
		offer.fd.handle = EXPORT_FILE;
		offer.placement = MANIFEST_PLACEMENT_PAGED;
		offer.is_writable = false;
	}
	*ret_offer = offer;
	return 0;
}
