/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/host.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"
#include "vk/result.h"
#include "vk/type.h"

#define HOST_HANDLE VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT

static int check_range(const struct vk_device *d, const void *pointer, uint64_t n_bytes,
	enum vk_memory_role role, const char *name, struct err *ret_err)
{
	uint64_t align = d->info.import_align;

	if (!d->info.has_import_host || align == 0)
		return err_set(ret_err, ENOTSUP, "import of %s: device %s imports no host memory",
			name, d->info.name);
	if (role == VK_MEMORY_SCRATCH)
		return err_set(ret_err, EINVAL,
			"import of %s: scratch memory never lies in host pages", name);
	if (!pointer || (uintptr_t)pointer % align || n_bytes % align)
		return err_set(ret_err, EINVAL,
			"import of %s: expected address and size in multiples of %" PRIu64
			", found %" PRIu64 " bytes at %p",
			name, align, n_bytes, pointer);
	return 0;
}

/* A refusal, or a loss, which is worse. */
static int refuse(struct vk_memory *m, VkResult result, struct err *ret_err)
{
	int code = vk_result_fail(result, ret_err, "import of %s: %" PRIu64 " bytes of host memory",
		m->name, m->n_bytes);

	if (code == VK_DEVICE_LOST)
		return code;
	m->d->is_poisoned = true;
	return VK_HOST_REFUSED;
}

/* What the driver sees the pages as, and what the buffer can be bound to. */
static int choose_type(struct vk_memory *m, const void *pointer,
	const struct vk_memory_needs *needs, struct err *ret_err)
{
	const VkPhysicalDeviceMemoryProperties *types = &m->d->types;
	VkMemoryHostPointerPropertiesEXT properties = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};

	VkResult r = vk_device_note(m->d,
		m->d->get_pointer_properties(m->d->device, HOST_HANDLE, pointer, &properties));
	if (r != VK_SUCCESS)
		return refuse(m, r, ret_err);
	m->type_index = vk_type_find_import(types, properties.memoryTypeBits & needs->type_bits);
	if (m->type_index >= types->memoryTypeCount)
		return err_set(ret_err, ENOTSUP,
			"import of %s: no memory type is both of the pages (0x%x) and of a buffer "
			"(0x%x)",
			m->name, properties.memoryTypeBits, needs->type_bits);
	if (needs->n_bytes > m->n_bytes || needs->wants_dedicated)
		return err_set(ret_err, ENOTSUP,
			"import of %s: the device wants %" PRIu64
			" bytes%s for a buffer of %" PRIu64,
			m->name, needs->n_bytes, needs->wants_dedicated ? " of their own" : "",
			m->n_bytes);
	uint64_t heap_bytes = types->memoryHeaps[types->memoryTypes[m->type_index].heapIndex].size;
	if (m->n_bytes > heap_bytes)
		return err_set(ret_err, EINVAL,
			"import of %s: expected at most the heap's %" PRIu64
			" bytes, found %" PRIu64,
			m->name, heap_bytes, m->n_bytes);
	return 0;
}

static int allocate(struct vk_memory *m, void *pointer, struct err *ret_err)
{
	VkImportMemoryHostPointerInfoEXT import = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
		.handleType = HOST_HANDLE,
		.pHostPointer = pointer,
	};

	VkResult r = vk_memory_allocate(m, &import);
	return r == VK_SUCCESS ? 0 : refuse(m, r, ret_err);
}

static int import_pages(struct vk_memory *m, void *pointer, struct err *ret_err)
{
	struct vk_memory_needs needs;

	m->handle_bit = HOST_HANDLE;
	m->is_imported = true;
	m->alloc_bytes = m->n_bytes;
	int r = vk_memory_make_buffer(m, ret_err, &needs);
	if (!r)
		r = choose_type(m, pointer, &needs, ret_err);
	if (!r)
		r = allocate(m, pointer, ret_err);
	if (!r)
		r = vk_memory_finish(m, ret_err);
	return r;
}

int vk_host_import(struct vk_device *d, void *pointer, uint64_t n_bytes, enum vk_memory_role role,
	const char *name, struct err *ret_err, struct vk_memory **ret_memory)
{
	struct vk_memory *m;

	int r = vk_memory_start(d, role, name, n_bytes, ret_err, &m);
	if (r)
		return r;
	r = check_range(d, pointer, n_bytes, role, m->name, ret_err);
	if (!r)
		r = import_pages(m, pointer, ret_err);
	if (r) {
		vk_memory_free(m);
		return r;
	}
	*ret_memory = m;
	return 0;
}
