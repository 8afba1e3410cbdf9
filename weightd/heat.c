/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/heat.h"

#include <errno.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/host.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "weightd/placement.h"
#include "weightd/source.h"

enum {
	/* Imported pages are pinned: this much of the host's memory at a time, twice, so that the
	 * device copies one window while the driver pins the next. */
	HEAT_WINDOW_BYTES = 256 << 20,
	HEAT_N_SLOTS = 2,
};

/* The staged bytes [begin, end) of the memfd; both in whole pages. */
struct heat_window {
	uint64_t begin;
	uint64_t end;
};

struct heat_slot {
	struct vk_memory *memory; /* the imported window; NULL: free */
	struct vk_command *command;
	uint64_t ticket;
};

struct heat {
	const struct heat_params *params;
	struct heat_slot slots[HEAT_N_SLOTS];
	uint32_t next;      /* the first tensor with bytes to copy, index into placement->order */
	uint64_t next_byte; /* the first of them, from the tensor's start */
	uint64_t n_done_bytes;
	uint64_t n_total_bytes;
};

static int heat_lost(struct err *ret_err)
{
	err_set(ret_err, EIO, "%s", "the device was lost");
	return HEAT_DEVICE_LOST;
}

static bool heat_is_mine(const struct heat *h, uint32_t i)
{
	const struct placement *p = h->params->placement;
	uint32_t index = p->order[i];

	return p->homes[p->tensor_alloc[index]].home == PLACEMENT_DEVICE_MEMORY &&
	       source_is_staged(h->params->source, index);
}

/* Of the i-th tensor, with the zeros behind it: places in the memfd are as far apart. */
static uint64_t heat_get_bytes(const struct heat *h, uint32_t i)
{
	const struct placement *p = h->params->placement;
	uint64_t begin = p->memfd_offset[p->order[i]];
	uint64_t end = i + 1 < p->n_tensors ? p->memfd_offset[p->order[i + 1]] : p->memfd_bytes;
	uint32_t alloc = p->tensor_alloc[p->order[i]];
	uint64_t room = p->allocs[alloc].n_bytes - p->tensor_offset[p->order[i]];

	return end - begin < room ? end - begin : room;
}

static void heat_free_slot(struct heat_slot *slot)
{
	slot->memory = vk_memory_free(slot->memory);
}

static int heat_wait(struct heat *h, struct heat_slot *slot, struct err *ret_err)
{
	if (!slot->memory)
		return 0;
	int rc = vk_submit_wait(h->params->device, slot->ticket, UINT64_MAX);
	if (rc == VK_DEVICE_LOST)
		rc = heat_lost(ret_err);
	else if (rc < 0)
		rc = err_set(ret_err, -rc, "copy to the device: %s", strerror(-rc));
	heat_free_slot(slot);
	return rc;
}

/* Copies that are still under way read the windows. A lost device reads nothing any more. */
static void heat_fini(struct heat *h)
{
	for (uint32_t i = 0; i < HEAT_N_SLOTS; i++) {
		int rc = heat_wait(h, &h->slots[i], NULL);
		(void)rc;
		vk_command_free(h->slots[i].command);
	}
}

/* False: everything is copied. */
static bool heat_find_next(struct heat *h)
{
	for (; h->next < h->params->placement->n_tensors; h->next++, h->next_byte = 0)
		if (heat_is_mine(h, h->next))
			return true;
	return false;
}

/* As many tensors as are side by side, and no more than an import takes. */
static struct heat_window heat_get_window(const struct heat *h)
{
	const struct placement *p = h->params->placement;
	uint64_t page = h->params->page_bytes;
	uint64_t max = h->params->max_window_bytes;
	struct heat_window w = {0};

	if (max > HEAT_WINDOW_BYTES)
		max = HEAT_WINDOW_BYTES;
	w.begin = (p->memfd_offset[p->order[h->next]] + h->next_byte) / page * page;
	for (uint32_t i = h->next; i < p->n_tensors && heat_is_mine(h, i); i++) {
		uint64_t end = p->memfd_offset[p->order[i]] + heat_get_bytes(h, i);
		w.end = (end + page - 1) / page * page;
		if (w.end - w.begin > max) {
			w.end = w.begin + max / page * page;
			break;
		}
	}
	if (w.end > p->memfd_bytes)
		w.end = p->memfd_bytes;
	return w;
}

/* Everything that is left of [next, ...) inside the window. */
static void heat_record(struct heat *h, struct heat_slot *slot, const struct heat_window *w)
{
	const struct placement *p = h->params->placement;

	vk_command_begin(slot->command);
	while (h->next < p->n_tensors && heat_is_mine(h, h->next)) {
		uint32_t index = p->order[h->next];
		uint64_t begin = p->memfd_offset[index] + h->next_byte;
		uint64_t n = heat_get_bytes(h, h->next) - h->next_byte;
		if (begin >= w->end)
			return;
		if (n > w->end - begin)
			n = w->end - begin;
		const struct vk_slice src = {
			.memory = slot->memory, .offset = begin - w->begin, .n_bytes = n};
		const struct vk_slice dst = {.memory = h->params->memories[p->tensor_alloc[index]],
			.offset = p->tensor_offset[index] + h->next_byte,
			.n_bytes = n};
		vk_command_copy(slot->command, &dst, &src);
		h->next_byte += n;
		h->n_done_bytes += n;
		if (h->next_byte < heat_get_bytes(h, h->next))
			return;
		h->next++;
		h->next_byte = 0;
	}
}

static int heat_start(struct heat *h, struct heat_slot *slot, struct err *ret_err)
{
	struct vk_device *device = h->params->device;
	const struct heat_window w = heat_get_window(h);
	int rc = vk_host_import(device, h->params->memfd + w.begin, w.end - w.begin,
		VK_MEMORY_STAGING, "staged weights", ret_err, &slot->memory);

	if (rc == VK_HOST_REFUSED || rc == -ENOTSUP)
		return HEAT_REFUSED;
	if (rc == VK_DEVICE_LOST)
		return heat_lost(ret_err);
	if (rc < 0)
		return rc;
	heat_record(h, slot, &w);
	rc = vk_command_end(slot->command, ret_err);
	if (rc == 0)
		rc = vk_submit(device, &slot->command, 1, ret_err, &slot->ticket);
	if (rc) /* nothing reads the window */
		heat_free_slot(slot);
	return rc == VK_DEVICE_LOST ? heat_lost(ret_err) : rc;
}

static int heat_init(struct heat *h, struct err *ret_err)
{
	int rc = 0;

	for (uint32_t i = 0; i < h->params->placement->n_tensors; i++)
		h->n_total_bytes += heat_is_mine(h, i) ? heat_get_bytes(h, i) : 0;
	for (uint32_t i = 0; i < HEAT_N_SLOTS && rc == 0; i++)
		rc = vk_command_new(h->params->device, 0, ret_err, &h->slots[i].command);
	return rc == VK_DEVICE_LOST ? heat_lost(ret_err) : rc;
}

int heat_run(const struct heat_params *params, struct err *ret_err)
{
	_cleanup_(heat_fini)
	struct heat h = {.params = params};
	int rc = heat_init(&h, ret_err);

	for (uint32_t i = 0; rc == 0 && heat_find_next(&h); i = (i + 1) % HEAT_N_SLOTS) {
		rc = heat_wait(&h, &h.slots[i], ret_err);
		if (rc == 0)
			rc = heat_start(&h, &h.slots[i], ret_err);
		if (rc == 0 && !params->progress(h.n_done_bytes, h.n_total_bytes, params->userdata))
			rc = err_set(ret_err, ECANCELED, "%s", "the load was given up");
	}
	for (uint32_t i = 0; i < HEAT_N_SLOTS && rc == 0; i++)
		rc = heat_wait(&h, &h.slots[i], ret_err);
	return rc;
}
