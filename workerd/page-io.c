/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/page-io.h"

#include <errno.h>
#include <stdbool.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/kv.h"

/* Enough that the time goes into copying, not into submitting. */
static const uint64_t most_bytes = 8 << 20;
static const uint64_t timeout_ns = 30ull * 1000 * 1000 * 1000;

struct page_io {
	struct vk_device *device;
	uint64_t n_page_bytes;
	uint32_t n_max;
	struct vk_memory *memory;
	uint8_t *bytes; /* memory, mapped */
	struct vk_command *command;
	bool is_stuck; /* the device may still copy */
};

int page_io_new(
	struct vk_device *d, uint64_t n_page_bytes, struct err *ret_err, struct page_io **ret_io)
{
	struct page_io *io = calloc(1, sizeof(*io));
	void *bytes = NULL;

	if (!io)
		return -ENOMEM;
	io->device = d;
	io->n_page_bytes = n_page_bytes;
	io->n_max = n_page_bytes < most_bytes ? (uint32_t)(most_bytes / n_page_bytes) : 1;
	const struct vk_memory_params params = {
		.role = VK_MEMORY_IO,
		.n_bytes = io->n_max * n_page_bytes,
		.name = "kv pages to a file",
	};
	int r = vk_memory_new(d, &params, ret_err, &io->memory);
	if (!r)
		r = vk_memory_map(io->memory, ret_err, &bytes);
	if (!r)
		r = vk_command_new(d, 0, ret_err, &io->command);
	if (r) {
		page_io_free(io);
		return r;
	}
	io->bytes = bytes;
	*ret_io = io;
	return 0;
}

struct page_io *page_io_free(struct page_io *io)
{
	if (!io)
		return NULL;
	/* Where it does, the process ends: better that memory is left than that it is reused. */
	if (!io->is_stuck) {
		vk_command_free(io->command);
		vk_memory_free(io->memory);
	}
	free(io);
	return NULL;
}

bool page_io_is_stuck(const struct page_io *io)
{
	return io->is_stuck;
}

uint8_t *page_io_get_bytes(struct page_io *io)
{
	return io->bytes;
}

uint32_t page_io_get_max(const struct page_io *io)
{
	return io->n_max;
}

static int page_io_copy(struct page_io *io, const struct kv *kv, uint32_t slot, uint32_t first,
	uint32_t n, bool is_write, struct err *ret_err)
{
	uint64_t ticket = 0;

	vk_command_begin(io->command);
	for (uint32_t i = 0; i < n; i++) {
		const struct vk_slice host = {
			.memory = io->memory,
			.offset = i * io->n_page_bytes,
			.n_bytes = io->n_page_bytes,
		};
		struct vk_slice page;
		int r = kv_get_page(kv, slot, first + i, &page);

		if (r)
			return r;
		vk_command_copy(io->command, is_write ? &page : &host, is_write ? &host : &page);
	}
	vk_command_host_barrier(io->command);
	int r = vk_command_end(io->command, ret_err);
	if (!r)
		r = vk_submit(io->device, &io->command, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(io->device, ticket, timeout_ns);
	io->is_stuck = r == -ETIMEDOUT;
	if (io->is_stuck)
		return err_set(ret_err, ETIMEDOUT, "kv: pages were not copied in 30 s");
	return r;
}

int page_io_read(struct page_io *io, const struct kv *kv, uint32_t slot, uint32_t first, uint32_t n,
	struct err *ret_err)
{
	return page_io_copy(io, kv, slot, first, n, false, ret_err);
}

int page_io_write(struct page_io *io, const struct kv *kv, uint32_t slot, uint32_t first,
	uint32_t n, struct err *ret_err)
{
	return page_io_copy(io, kv, slot, first, n, true, ret_err);
}
