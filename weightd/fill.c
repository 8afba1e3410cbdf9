/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/fill.h"

#include <errno.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"
#include "weightd/source.h"
#include "weightd/uring.h"

enum {
	/* Reads in flight. From page cache one CPU copies 5 GB/s; 8 reach 50 there, and the slots
	 * that the device copies from meanwhile are to be had too (measured beside an H200). */
	FILL_DEPTH = 16,
	/* Host to device copies reach the bus's rate from 4 MiB on (51 GB/s measured on an H200, 15
	 * with pieces of 64 KiB). */
	FILL_PIECE_BYTES = 4 << 20,
	FILL_MIN_PIECE_BYTES = 64 << 10, /* where allocations are small */
	/* A gap in the file that is cheaper to read over than to start a read behind. */
	FILL_GAP_BYTES = 64 << 10,
};

enum fill_slot_state { FILL_FREE, FILL_READING, FILL_COPYING };

/* The way of a tensor. Those of one way are read from front to back, one way after the other. */
enum fill_way { FILL_BY_RING, FILL_FROM_MEMFD, FILL_DIRECTLY, FILL_N_WAYS, FILL_NOT };

/* One piece of the file, or of the memfd where that is the way, [offset, offset + n_bytes), and its
 * place in the ring. */
struct fill_slot {
	enum fill_slot_state state;
	enum fill_way way;
	uint64_t offset;
	uint64_t n_bytes;
	uint32_t first; /* index into placement->order of the first tensor in it */
	uint8_t *data;  /* where it is read to */
	uint64_t ticket;
	struct vk_command *command;
};

struct fill {
	const struct fill_params *params;
	struct uring *uring;
	uint32_t n_slots;
	uint64_t piece_bytes;
	struct vk_memory *ring; /* [n_slots][piece_bytes] u8, then [PLACEMENT_ALIGN] zeros */
	uint8_t *ring_bytes;
	struct vk_command *release;
	struct fill_slot slots[FILL_DEPTH];
	enum fill_way way;  /* that is being read; FILL_N_WAYS: all are */
	uint32_t next;      /* the first tensor with unread bytes, index into placement->order */
	uint64_t next_byte; /* the first unread byte of it */
	uint64_t last_ticket;
	uint64_t n_done_bytes;
	uint64_t n_total_bytes;
};

static const struct gguf_tensor *fill_get_tensor(const struct fill *f, uint32_t i)
{
	return &f->params->gguf->tensors[f->params->placement->order[i]];
}

static enum fill_way fill_get_device_way(const struct fill *f, uint32_t index)
{
	if (f->params->staged == FILL_STAGED_NOT || !source_is_staged(f->params->source, index))
		return FILL_BY_RING;
	return f->params->staged == FILL_STAGED_RING ? FILL_FROM_MEMFD : FILL_NOT;
}

static enum fill_way fill_get_way(const struct fill *f, uint32_t i)
{
	uint32_t index = f->params->placement->order[i];

	switch (f->params->placement->homes[f->params->placement->tensor_alloc[index]].home) {
	case PLACEMENT_DEVICE_MEMORY: return fill_get_device_way(f, index);
	case PLACEMENT_HOST_MEMORY: return FILL_DIRECTLY;
	case PLACEMENT_MEMFD:
		return source_is_staged(f->params->source, index) ? FILL_NOT : FILL_DIRECTLY;
	default: return FILL_NOT;
	}
}

/* Where the tensor begins in what the way reads. Both are in one order. */
static uint64_t fill_get_offset(const struct fill *f, enum fill_way way, uint32_t i)
{
	if (way == FILL_FROM_MEMFD)
		return f->params->placement->memfd_offset[f->params->placement->order[i]];
	return fill_get_tensor(f, i)->offset;
}

static int fill_lost(struct err *ret_err)
{
	err_set(ret_err, EIO, "%s", "the device was lost");
	return FILL_DEVICE_LOST;
}

static int fill_wait(struct fill *f, uint64_t ticket, struct err *ret_err)
{
	int rc = vk_submit_wait(f->params->device, ticket, UINT64_MAX);

	if (rc == VK_DEVICE_LOST)
		return fill_lost(ret_err);
	if (rc < 0)
		return err_set(ret_err, -rc, "copy to the device: %s", strerror(-rc));
	return 0;
}

static int fill_submit(
	struct fill *f, struct vk_command *command, struct err *ret_err, uint64_t *ret_ticket)
{
	int rc = vk_command_end(command, ret_err);

	if (rc == 0)
		rc = vk_submit(f->params->device, &command, 1, ret_err, ret_ticket);
	if (rc == VK_DEVICE_LOST)
		return fill_lost(ret_err);
	if (rc == 0)
		f->last_ticket = *ret_ticket;
	return rc;
}

/* A ring that the device allocates in one piece. */
static void fill_set_pieces(struct fill *f)
{
	uint64_t n_bytes = (uint64_t)FILL_DEPTH * FILL_PIECE_BYTES;

	if (f->params->device) {
		uint64_t max = vk_device_get_info(f->params->device)->max_alloc_bytes;
		if (max - PLACEMENT_ALIGN < n_bytes)
			n_bytes = max - PLACEMENT_ALIGN;
	}
	f->piece_bytes = FILL_PIECE_BYTES;
	while (f->piece_bytes > FILL_MIN_PIECE_BYTES && f->piece_bytes * 4 > n_bytes)
		f->piece_bytes /= 2;
	f->n_slots = (uint32_t)(n_bytes / f->piece_bytes);
}

static int fill_init_ring(struct fill *f, struct err *ret_err)
{
	struct vk_device *device = f->params->device;
	const struct vk_memory_params ring = {.role = VK_MEMORY_STAGING,
		.n_bytes = f->n_slots * f->piece_bytes + PLACEMENT_ALIGN,
		.name = "load ring"};
	void *pointer;
	int rc = vk_memory_new(device, &ring, ret_err, &f->ring);

	if (rc == 0)
		rc = vk_memory_map(f->ring, ret_err, &pointer);
	if (rc == 0)
		rc = vk_command_new(device, 0, ret_err, &f->release);
	for (uint32_t i = 0; i < f->n_slots && rc == 0; i++)
		rc = vk_command_new(device, 0, ret_err, &f->slots[i].command);
	if (rc == VK_DEVICE_LOST)
		return fill_lost(ret_err);
	if (rc < 0)
		return rc;
	f->ring_bytes = pointer;
	memset(f->ring_bytes + f->n_slots * f->piece_bytes, 0, PLACEMENT_ALIGN);
	return 0;
}

static int fill_init(struct fill *f, struct err *ret_err)
{
	const struct placement *p = f->params->placement;
	bool needs_ring = false;
	int rc = 0;

	fill_set_pieces(f);
	for (uint32_t i = 0; i < p->n_allocs; i++)
		needs_ring |= p->homes[i].home <= PLACEMENT_HOST_MEMORY;
	if (needs_ring)
		rc = fill_init_ring(f, ret_err);
	if (rc)
		return rc;
	rc = uring_new(FILL_DEPTH, f->params->use_pread, &f->uring);
	if (rc < 0)
		return err_set(ret_err, -rc, "reading: %s", strerror(-rc));
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (fill_get_way(f, i) != FILL_NOT)
			f->n_total_bytes += fill_get_tensor(f, i)->n_bytes;
	return 0;
}

/* Reads and copies that are still under way use the ring: they end first. */
static void fill_fini(struct fill *f)
{
	f->uring = uring_free(f->uring);
	if (f->last_ticket) {
		/* A device that is lost uses nothing any more; there is nothing else to hear. */
		int rc = vk_submit_wait(f->params->device, f->last_ticket, UINT64_MAX);
		(void)rc;
	}
	for (uint32_t i = 0; i < f->n_slots; i++)
		vk_command_free(f->slots[i].command);
	vk_command_free(f->release);
	vk_memory_free(f->ring);
}

/* The next tensor of the way that is read, or of the next way. False: all are read. */
static bool fill_find_next(struct fill *f)
{
	for (; f->way < FILL_N_WAYS; f->way++, f->next = 0)
		for (; f->next < f->params->placement->n_tensors; f->next++)
			if (fill_get_way(f, f->next) == f->way)
				return true;
	return false;
}

/* As many whole and cut tensors, in file order, as a slot holds. */
static void fill_take_ring_piece(struct fill *f, struct fill_slot *slot)
{
	slot->data = f->ring_bytes + (uint64_t)(slot - f->slots) * f->piece_bytes;
	for (; f->next < f->params->placement->n_tensors; f->next++) {
		const struct gguf_tensor *t = fill_get_tensor(f, f->next);
		if (fill_get_way(f, f->next) != slot->way)
			continue;
		uint64_t at = fill_get_offset(f, slot->way, f->next) + f->next_byte - slot->offset;
		if (at - slot->n_bytes > FILL_GAP_BYTES || at >= f->piece_bytes)
			break;
		uint64_t n = t->n_bytes - f->next_byte;
		if (n > f->piece_bytes - at)
			n = f->piece_bytes - at;
		slot->n_bytes = at + n;
		f->next_byte += n;
		if (f->next_byte < t->n_bytes)
			break;
		f->next_byte = 0;
	}
}

/* A part of one tensor; behind its end zeros are there, or made so. */
static int fill_take_direct_piece(struct fill *f, struct fill_slot *slot, struct err *ret_err)
{
	const struct placement *p = f->params->placement;
	const struct gguf_tensor *t = fill_get_tensor(f, f->next);
	uint32_t index = p->order[f->next];
	uint32_t alloc = p->tensor_alloc[index];
	uint64_t at = f->next_byte, aligned = 0;
	void *pointer;

	slot->n_bytes = t->n_bytes - at;
	if (slot->n_bytes > f->piece_bytes)
		slot->n_bytes = f->piece_bytes;
	f->next_byte += slot->n_bytes;
	if (f->next_byte == t->n_bytes) {
		f->next++;
		f->next_byte = 0;
	}
	if (p->homes[alloc].home == PLACEMENT_MEMFD) {
		slot->data = f->params->memfd + p->memfd_offset[index] + at;
		return source_reserve(
			f->params->source, p->memfd_offset[index] + at, slot->n_bytes, ret_err);
	}
	int rc = vk_memory_map(f->params->memories[alloc], ret_err, &pointer);
	if (rc < 0)
		return rc;
	slot->data = (uint8_t *)pointer + p->tensor_offset[index] + at;
	if (f->next_byte == 0 && bytes_align(t->n_bytes, PLACEMENT_ALIGN, &aligned))
		memset(slot->data + slot->n_bytes, 0, aligned - t->n_bytes);
	return 0;
}

static int fill_start_read(struct fill *f, struct fill_slot *slot, struct err *ret_err)
{
	int fd = source_get_fd(f->params->source);
	int rc = 0;

	slot->way = f->way;
	slot->first = f->next;
	slot->offset = fill_get_offset(f, f->way, f->next) + f->next_byte;
	slot->n_bytes = 0;
	if (slot->way == FILL_FROM_MEMFD)
		fd = source_get_memfd(f->params->source);
	if (slot->way != FILL_DIRECTLY)
		fill_take_ring_piece(f, slot);
	else
		rc = fill_take_direct_piece(f, slot, ret_err);
	if (rc < 0)
		return rc;
	rc = uring_read(
		f->uring, fd, slot->data, slot->n_bytes, slot->offset, (uint64_t)(slot - f->slots));
	if (rc < 0)
		return err_set(ret_err, -rc, "file: read at %llu: %s",
			(unsigned long long)slot->offset, strerror(-rc));
	slot->state = FILL_READING;
	return 0;
}

static int fill_start_reads(struct fill *f, struct err *ret_err)
{
	int rc = 0;

	for (uint32_t i = 0; i < f->n_slots && rc == 0; i++) {
		struct fill_slot *slot = &f->slots[i];
		if (slot->state == FILL_COPYING &&
			vk_submit_is_done(f->params->device, slot->ticket))
			slot->state = FILL_FREE;
		if (slot->state == FILL_FREE && fill_find_next(f))
			rc = fill_start_read(f, slot, ret_err);
	}
	return rc;
}

/* The part of one tensor that is in the slot, and the zeros behind the tensor. */
static void fill_copy_tensor(struct fill *f, const struct fill_slot *slot, uint32_t i)
{
	const struct placement *p = f->params->placement;
	const struct gguf_tensor *t = fill_get_tensor(f, i);
	uint32_t index = p->order[i];
	struct vk_memory *memory = f->params->memories[p->tensor_alloc[index]];
	uint64_t slot_end = slot->offset + slot->n_bytes;
	uint64_t t_begin = fill_get_offset(f, slot->way, i);
	uint64_t t_end = t_begin + t->n_bytes;
	uint64_t begin = t_begin > slot->offset ? t_begin : slot->offset;
	uint64_t end = t_end < slot_end ? t_end : slot_end;
	uint64_t ring_offset = (uint64_t)(slot - f->slots) * f->piece_bytes;
	uint64_t aligned;

	const struct vk_slice src = {.memory = f->ring,
		.offset = ring_offset + begin - slot->offset,
		.n_bytes = end - begin};
	const struct vk_slice dst = {.memory = memory,
		.offset = p->tensor_offset[index] + begin - t_begin,
		.n_bytes = end - begin};
	vk_command_copy(slot->command, &dst, &src);

	if (end == t_end && bytes_align(t->n_bytes, PLACEMENT_ALIGN, &aligned) &&
		aligned > t->n_bytes) {
		uint64_t n = aligned - t->n_bytes;
		const struct vk_slice zeros = {
			.memory = f->ring, .offset = f->n_slots * f->piece_bytes, .n_bytes = n};
		const struct vk_slice gap = {.memory = memory,
			.offset = p->tensor_offset[index] + t->n_bytes,
			.n_bytes = n};
		vk_command_copy(slot->command, &gap, &zeros);
	}
}

static int fill_copy_slot(struct fill *f, struct fill_slot *slot, struct err *ret_err)
{
	uint64_t slot_end = slot->offset + slot->n_bytes;

	vk_command_begin(slot->command);
	for (uint32_t i = slot->first;
		i < f->params->placement->n_tensors && fill_get_offset(f, slot->way, i) < slot_end;
		i++)
		if (fill_get_way(f, i) == slot->way)
			fill_copy_tensor(f, slot, i);
	int rc = fill_submit(f, slot->command, ret_err, &slot->ticket);
	if (rc == 0)
		slot->state = FILL_COPYING;
	return rc;
}

/* One read that came in goes on to the device; without one, the oldest copy is waited for. */
static int fill_step(struct fill *f, struct err *ret_err)
{
	uint64_t tag;

	if (uring_get_n_in_flight(f->uring) == 0) {
		uint64_t oldest = UINT64_MAX;
		for (uint32_t i = 0; i < f->n_slots; i++)
			if (f->slots[i].state == FILL_COPYING && f->slots[i].ticket < oldest)
				oldest = f->slots[i].ticket;
		return fill_wait(f, oldest, ret_err);
	}
	int rc = uring_wait(f->uring, &tag);
	if (rc == -ENODATA)
		return err_set(ret_err, ENODATA,
			"file: it ended before offset %llu, inside the tensor data: cut while it "
			"was "
			"read",
			(unsigned long long)(f->slots[tag].offset + f->slots[tag].n_bytes));
	if (rc < 0)
		return err_set(ret_err, -rc, "file: read: %s", strerror(-rc));
	struct fill_slot *slot = &f->slots[tag];
	slot->state = FILL_FREE;
	rc = slot->way != FILL_DIRECTLY ? fill_copy_slot(f, slot, ret_err) : 0;
	if (rc)
		return rc;
	f->n_done_bytes += slot->n_bytes;
	if (f->n_done_bytes > f->n_total_bytes) /* gaps in the file were read too */
		f->n_done_bytes = f->n_total_bytes;
	if (!f->params->progress(f->n_done_bytes, f->n_total_bytes, f->params->userdata))
		return err_set(ret_err, ECANCELED, "%s", "the load was given up");
	return 0;
}

/* Reads to be done or under way. Copies that still run are waited for by what follows them. */
static bool fill_is_busy(struct fill *f)
{
	return fill_find_next(f) || uring_get_n_in_flight(f->uring) > 0;
}

static int fill_release(struct fill *f, struct err *ret_err)
{
	uint64_t ticket;

	if (!f->release)
		return 0;
	vk_command_begin(f->release);
	for (uint32_t i = 0; i < f->params->placement->n_allocs; i++)
		if (f->params->memories[i])
			vk_command_release(f->release, f->params->memories[i]);
	int rc = fill_submit(f, f->release, ret_err, &ticket);
	if (rc)
		return rc;
	return fill_wait(f, ticket, ret_err);
}

/* Only what was read to its end may be taken for granted by the next load. */
static int fill_keep_staged(struct fill *f, struct err *ret_err)
{
	const struct placement *p = f->params->placement;

	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (p->homes[p->tensor_alloc[i]].home == PLACEMENT_MEMFD &&
			source_set_staged(f->params->source, i, p->n_tensors) < 0)
			return err_set(ret_err, ENOMEM, "weights: out of memory");
	return 0;
}

int fill_run(const struct fill_params *params, struct err *ret_err, int *ret_refusal)
{
	_cleanup_(fill_fini)
	struct fill f = {.params = params};
	int rc = fill_init(&f, ret_err);

	while (rc == 0 && fill_is_busy(&f)) {
		rc = fill_start_reads(&f, ret_err);
		if (rc == 0)
			rc = fill_step(&f, ret_err);
	}
	if (rc == 0)
		rc = fill_release(&f, ret_err);
	if (rc == 0)
		rc = fill_keep_staged(&f, ret_err);
	if (rc)
		return rc;
	*ret_refusal = uring_get_refusal(f.uring);
	return 0;
}
