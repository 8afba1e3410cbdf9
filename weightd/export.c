/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/export.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"

int export_new(uint32_t n_allocs, struct export **ret_export)
{
	struct export *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->manifest_fd = -1;
	e->allocs = calloc(n_allocs, sizeof(*e->allocs));
	if (!e->allocs) {
		export_free(e);
		return -ENOMEM;
	}
	e->n_allocs = n_allocs;
	for (uint32_t i = 0; i < n_allocs; i++) {
		e->allocs[i].fd = -1;
		e->allocs[i].placement = MANIFEST_PLACEMENT_DEVICE;
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
	for (uint32_t i = 0; i < e->n_allocs; i++)
		cleanup_close(&e->allocs[i].fd);
	cleanup_close(&e->manifest_fd);
	free(e->allocs);
	free(e);
	return NULL;
}

static int export_share_alloc(struct export_alloc *a, struct err *ret_err)
{
	struct vk_share_params params;
	struct stat st;
	int rc = vk_share_export(a->memory, ret_err, &a->fd, &params);

	if (rc == VK_DEVICE_LOST)
		return EXPORT_DEVICE_LOST;
	if (rc < 0)
		return rc;
	if (fstat(a->fd, &st) < 0)
		return err_set(ret_err, errno, "exported memory: fstat: %s", strerror(errno));
	a->n_bytes = params.n_bytes;
	a->buffer_bytes = params.buffer_bytes;
	a->memory_type_index = params.memory_type_index;
	a->is_dedicated = params.is_dedicated;
	a->heap_index = vk_memory_get_heap_index(a->memory);
	a->inode = st.st_ino;
	a->dev = st.st_dev;
	return 0;
}

int export_share(struct export *e, struct err *ret_err)
{
	e->weights_bytes = 0;
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		int rc = export_share_alloc(&e->allocs[i], ret_err);
		if (rc)
			return rc;
		e->weights_bytes += e->allocs[i].n_bytes;
	}
	return 0;
}
