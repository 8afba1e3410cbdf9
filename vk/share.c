/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/share.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"
#include "vk/result.h"
#include "vk/type.h"

int vk_share_export(
	struct vk_memory *m, struct err *ret_err, int *ret_fd, struct vk_share_params *ret_params)
{
	bool is_dma_buf = m->handle_bit == vk_memory_handle_bit(VK_HANDLE_DMA_BUF);

	return vk_share_export_as(m, is_dma_buf ? VK_HANDLE_DMA_BUF : VK_HANDLE_OPAQUE_FD, ret_err,
		ret_fd, ret_params);
}

int vk_share_export_as(struct vk_memory *m, enum vk_handle handle, struct err *ret_err, int *ret_fd,
	struct vk_share_params *ret_params)
{
	VkMemoryGetFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
		.memory = m->memory,
		.handleType = vk_memory_handle_bit(handle),
	};
	_cleanup_(cleanup_close)
	int fd = -1;

	if (!vk_memory_can_export(m, handle))
		return err_set(ret_err, EPERM, "memory %s: %s", m->name,
			m->is_imported ? "another process's memory is exported by its owner only"
				       : "it was not made exportable as this");
	VkResult r = vk_device_note(m->d, m->d->get_memory_fd(m->d->device, &info, &fd));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "memory %s: export", m->name);
	/* Vulkan does not say whether the driver set it. */
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_set(ret_err, errno, "memory %s: exported descriptor: %m", m->name);
	*ret_params = (struct vk_share_params){
		.n_bytes = m->alloc_bytes,
		.buffer_bytes = m->n_bytes,
		.memory_type_index = m->type_index,
		.is_dedicated = m->is_dedicated,
		.handle = handle,
	};
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/*
 * Drivers trust the descriptor: the software driver reads from it, so that a pipe would hold this
 * process for ever. Its own opaque ones are memfds; the others' are devices or have no type. A
 * dma-buf tells its size to lseek (Linux, Documentation/driver-api/dma-buf.rst), which no driver
 * asks for before it maps one.
 */
static int check_fd(const struct vk_device *d, int fd, const struct vk_share_params *params,
	const char *name, struct err *ret_err)
{
	bool is_dma_buf = params->handle == VK_HANDLE_DMA_BUF;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(ret_err, EINVAL, "import of %s: %d is no open descriptor", name, fd);
	if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || S_ISDIR(st.st_mode) ||
		(is_dma_buf && (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))) ||
		(!is_dma_buf && d->info.is_software && !S_ISREG(st.st_mode)))
		return err_set(ret_err, EINVAL,
			"import of %s: expected a descriptor of memory, found another kind (mode "
			"0%o)",
			name, st.st_mode & S_IFMT);
	if (!is_dma_buf)
		return 0;
	off_t n_bytes = S_ISREG(st.st_mode) ? st.st_size : lseek(fd, 0, SEEK_END);
	if (n_bytes < 0 || (uint64_t)n_bytes < params->n_bytes)
		return err_set(ret_err, EINVAL,
			"import of %s: dma-buf: expected at least %" PRIu64 " bytes, found %jd",
			name, params->n_bytes, (intmax_t)n_bytes);
	return 0;
}

/* What can be said without a buffer. */
static int check_params(struct vk_device *d, int fd, const struct vk_share_params *params,
	enum vk_memory_role role, const char *name, struct err *ret_err)
{
	if (role != VK_MEMORY_WEIGHTS && role != VK_MEMORY_KV)
		return err_set(ret_err, EINVAL, "import of %s: %s memory is never shared", name,
			vk_memory_role_name(role));
	if ((unsigned)params->handle >= VK_HANDLE_N)
		return err_set(ret_err, EINVAL, "import of %s: no handle kind %u", name,
			(unsigned)params->handle);
	if (!(d->handle_features[params->handle] & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT))
		return err_set(ret_err, ENOTSUP, "import of %s: device %s imports no %s", name,
			d->info.name,
			params->handle == VK_HANDLE_OPAQUE_FD ? "opaque descriptors" : "dma-bufs");
	if (params->n_bytes == 0 || params->n_bytes > d->info.max_alloc_bytes)
		return err_set(ret_err, EINVAL,
			"import of %s: allocation: expected 1 to %" PRIu64 " bytes, found %" PRIu64,
			name, d->info.max_alloc_bytes, params->n_bytes);
	if (params->buffer_bytes == 0 || params->buffer_bytes > params->n_bytes)
		return err_set(ret_err, EINVAL,
			"import of %s: buffer: expected 1 to %" PRIu64 " bytes, found %" PRIu64,
			name, params->n_bytes, params->buffer_bytes);
	if (params->memory_type_index >= d->types.memoryTypeCount &&
		(params->handle == VK_HANDLE_OPAQUE_FD ||
			params->memory_type_index != VK_SHARE_ANY_TYPE))
		return err_set(ret_err, EINVAL,
			"import of %s: memory type: expected less than %u, found %u", name,
			d->types.memoryTypeCount, params->memory_type_index);
	return check_fd(d, fd, params, name, ret_err);
}

/* The types that the driver can see the descriptor's memory as; an opaque one's is the exporter's.
 */
static int get_fd_type_bits(
	const struct vk_memory *m, int fd, struct err *ret_err, uint32_t *ret_bits)
{
	VkMemoryFdPropertiesKHR properties = {.sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR};

	if (m->handle_bit == VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT) {
		*ret_bits = UINT32_MAX;
		return 0;
	}
	VkResult r = vk_device_note(
		m->d, m->d->get_fd_properties(m->d->device, m->handle_bit, fd, &properties));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "import of %s: dma-buf", m->name);
	*ret_bits = properties.memoryTypeBits;
	return 0;
}

/* What the importer's own buffer asks for, and the type that was left to us. */
static int check_needs(struct vk_memory *m, const struct vk_memory_needs *needs, int fd,
	const struct vk_share_params *params, struct err *ret_err)
{
	uint32_t fd_bits = 0;

	int r = get_fd_type_bits(m, fd, ret_err, &fd_bits);
	if (r)
		return r;
	uint32_t allowed = needs->type_bits & fd_bits & vk_type_plain_bits(&m->d->types);
	m->type_index = params->memory_type_index;
	if (m->type_index == VK_SHARE_ANY_TYPE)
		m->type_index = vk_type_find_import(&m->d->types, allowed);
	if (m->type_index >= m->d->types.memoryTypeCount || !(allowed >> m->type_index & 1))
		return err_set(ret_err, EINVAL,
			"import of %s: memory type: expected one of 0x%x, found %d", m->name,
			allowed, (int)params->memory_type_index);
	if (params->n_bytes < needs->n_bytes)
		return err_set(ret_err, EINVAL,
			"import of %s: allocation: expected at least %" PRIu64
			" bytes for a buffer of %" PRIu64 ", found %" PRIu64,
			m->name, needs->n_bytes, m->n_bytes, params->n_bytes);
	if (!params->is_dedicated &&
		(needs->wants_dedicated || (m->d->handle_features[params->handle] &
						   VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT)))
		return err_set(ret_err, EINVAL,
			"import of %s: expected a dedicated allocation, found another", m->name);
	return 0;
}

/*
 * The driver gets a duplicate: it keeps the descriptor of an allocation that worked even when what
 * follows fails, and the caller was promised his back.
 */
static int allocate(
	struct vk_memory *m, int fd, const struct vk_share_params *params, struct err *ret_err)
{
	_cleanup_(cleanup_close)
	int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	VkMemoryDedicatedAllocateInfo dedicated = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO,
		.buffer = m->buffer,
	};
	VkImportMemoryFdInfoKHR import = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
		.pNext = params->is_dedicated ? &dedicated : NULL,
		.handleType = m->handle_bit,
		.fd = duplicate,
	};

	if (duplicate < 0)
		return err_set(ret_err, errno, "import of %s: descriptor: %m", m->name);
	VkResult r = vk_memory_allocate(m, &import);
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "import of %s: %" PRIu64 " bytes of type %u",
			m->name, m->alloc_bytes, m->type_index);
	(void)TAKE_FD(duplicate);
	return 0;
}

static int import_memory(
	struct vk_memory *m, int fd, const struct vk_share_params *params, struct err *ret_err)
{
	struct vk_memory_needs needs;

	m->handle_bit = vk_memory_handle_bit(params->handle);
	m->is_imported = true;
	m->is_dedicated = params->is_dedicated;
	m->alloc_bytes = params->n_bytes;
	int r = vk_memory_make_buffer(m, ret_err, &needs);
	if (!r)
		r = check_needs(m, &needs, fd, params, ret_err);
	if (!r)
		r = allocate(m, fd, params, ret_err);
	if (!r)
		r = vk_memory_finish(m, ret_err);
	return r;
}

int vk_share_import(struct vk_device *d, int fd, const struct vk_share_params *params,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory)
{
	struct vk_memory *m;

	int r = check_params(d, fd, params, role, name, ret_err);
	if (r)
		return r;
	r = vk_memory_start(d, role, name, params->buffer_bytes, ret_err, &m);
	if (r)
		return r;
	r = import_memory(m, fd, params, ret_err);
	if (r) {
		vk_memory_free(m);
		return r;
	}
	close(fd);
	*ret_memory = m;
	return 0;
}
