/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/fill.h"

#include <errno.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "weightd/allocator.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"
#include "weightd/source.h"
#include "weightd/upload.h"
#include "weightd/uring.h"

enum {
	/* Pieces of the ring, and the most reads in flight: as many as read at a time. */
	FILL_DEPTH = 16,
	/* The bus's rate needs pieces of 4 MiB. Twice as many of them, or of half the size, gained
	 * nothing (H200, 8.6 GB into the device, by io_uring and by pread). */
	FILL_PIECE_BYTES = 4 << 20,
	FILL_MIN_PIECE_BYTES = 64 << 10, /* where allocations are small */
	/* A gap in the file that is cheaper to read over than to start a read behind. */
	FILL_GAP_BYTES = 64 << 10,
};

enum fill_slot_state { FILL_FREE, FILL_READING, FILL_READ, FILL_COPYING };

/* What the thread waits for: where a load's time goes, told in its debug line. */
enum fill_wait { FILL_FOR_MEMORY, FILL_FOR_READS, FILL_FOR_COPIES, FILL_N_WAITS };

/* The way of a tensor. Those of one way are read from front to back, one way after the other. */
enum fill_way { FILL_BY_RING, FILL_FROM_MEMFD, FILL_DIRECTLY, FILL_N_WAYS, FILL_NOT };

/* One piece of the file, or of the memfd where that is the way, [offset, offset + n_bytes), and its
 * place in the ring. */
struct fill_slot {
	enum fill_slot_state state;
	enum fill_way way;
	uint64_t offset;
	uint64_t n_bytes;
	bool is_fresh;  /* data is in the memfd */
	uint32_t first; /* index into placement->order of the first tensor in it */
	uint8_t *data;  /* where it is read to */
	uint32_t copy;  /* upload_submit's, that takes it */
};

struct fill {
	const struct fill_params *params;
	struct uring *uring;
	uint32_t n_slots;
	uint64_t piece_bytes;
	struct upload *upload; /* a ring of as many slots; NULL where nothing goes to a device */
	struct fill_slot slots[FILL_DEPTH];
	enum fill_way way;  /* that is being read; FILL_N_WAYS: all are */
	uint32_t next;      /* the first tensor with unread bytes, index into placement->order */
	uint64_t next_byte; /* the first unread byte of it */
	uint64_t n_done_bytes;
	uint64_t n_total_bytes;
	uint32_t n_submitted; /* to the ring before this fill */
	uint64_t waited_ns[FILL_N_WAITS];
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

/* For the oldest copy. */
static int fill_wait_copy(struct fill *f, struct err *ret_err)
{
	uint64_t start = clock_now_ns();
	int rc = upload_wait(f->upload, ret_err);

	f->waited_ns[FILL_FOR_COPIES] += clock_now_ns() - start;
	return rc == UPLOAD_DEVICE_LOST ? FILL_DEVICE_LOST : rc;
}

static int fill_check_allocator(struct fill *f, struct err *ret_err)
{
	int rc = allocator_check(f->params->allocator, ret_err);

	return rc == ALLOCATOR_DEVICE_LOST ? fill_lost(ret_err) : rc;
}

static int fill_get_memory(
	struct fill *f, uint32_t alloc, struct err *ret_err, struct vk_memory **ret_memory)
{
	uint64_t start = clock_now_ns();
	int rc = allocator_wait(f->params->allocator, alloc, ret_err, ret_memory);

	f->waited_ns[FILL_FOR_MEMORY] += clock_now_ns() - start;
	return rc == ALLOCATOR_DEVICE_LOST ? fill_lost(ret_err) : rc;
}

/* A ring that the device allocates in one piece. */
static void fill_get_pieces(
	const struct vk_device *device, uint64_t *ret_piece_bytes, uint32_t *ret_n_pieces)
{
	uint64_t n_bytes = (uint64_t)FILL_DEPTH * FILL_PIECE_BYTES;
	uint64_t piece_bytes = FILL_PIECE_BYTES;

	if (device) {
		uint64_t max = vk_device_get_info(device)->max_alloc_bytes;
		if (max - UPLOAD_MAX_ZEROS < n_bytes)
			n_bytes = max - UPLOAD_MAX_ZEROS;
	}
	while (piece_bytes > FILL_MIN_PIECE_BYTES && piece_bytes * 4 > n_bytes)
		piece_bytes /= 2;
	*ret_piece_bytes = piece_bytes;
	*ret_n_pieces = (uint32_t)(n_bytes / piece_bytes);
}

int fill_new_ring(struct vk_device *device, struct err *ret_err, struct upload **ret_ring)
{
	uint64_t piece_bytes;
	uint32_t n_pieces;

	fill_get_pieces(device, &piece_bytes, &n_pieces);
	int rc = upload_new(device, n_pieces, piece_bytes, ret_err, ret_ring);
	return rc == UPLOAD_DEVICE_LOST ? FILL_DEVICE_LOST : rc;
}

static int fill_init(struct fill *f, struct err *ret_err)
{
	const struct placement *p = f->params->placement;

	fill_get_pieces(f->params->device, &f->piece_bytes, &f->n_slots);
	for (uint32_t i = 0; i < p->n_allocs; i++)
		if (p->homes[i].home <= PLACEMENT_HOST_MEMORY)
			f->upload = f->params->ring;
	if (f->upload)
		f->n_submitted = upload_get_n_submitted(f->upload);
	int rc = uring_new(FILL_DEPTH, f->params->use_pread, &f->uring);
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
	if (f->upload)
		upload_drain(f->upload);
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
	slot->data = upload_get_slot(f->upload, (uint32_t)(slot - f->slots));
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
	struct vk_memory *memory = NULL;
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
		slot->is_fresh = true;
		return 0;
	}
	int rc = fill_get_memory(f, alloc, ret_err, &memory);
	if (rc == 0)
		rc = vk_memory_map(memory, ret_err, &pointer);
	if (rc)
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
	slot->is_fresh = false;
	if (slot->way == FILL_FROM_MEMFD)
		fd = source_get_memfd(f->params->source);
	if (slot->way != FILL_DIRECTLY)
		fill_take_ring_piece(f, slot);
	else
		rc = fill_take_direct_piece(f, slot, ret_err);
	if (rc)
		return rc;
	const struct uring_read_params read = {.fd = fd,
		.data = slot->data,
		.n_bytes = slot->n_bytes,
		.offset = slot->offset,
		.is_fresh = slot->is_fresh,
		.tag = (uint64_t)(slot - f->slots)};
	rc = uring_read(f->uring, &read);
	if (rc < 0)
		return err_set(ret_err, -rc, "file: read at %llu: %s",
			(unsigned long long)slot->offset, strerror(-rc));
	slot->state = FILL_READING;
	return 0;
}

static int fill_start_reads(struct fill *f, struct err *ret_err)
{
	int rc = 0;

	for (uint32_t i = 0; i < f->n_slots && rc == 0; i++)
		if (f->slots[i].state == FILL_FREE && fill_find_next(f))
			rc = fill_start_read(f, &f->slots[i], ret_err);
	return rc;
}

/* The part of one tensor that is in the slot, and the zeros behind the tensor. */
static int fill_copy_tensor(
	struct fill *f, const struct fill_slot *slot, uint32_t i, struct err *ret_err)
{
	const struct placement *p = f->params->placement;
	const struct gguf_tensor *t = fill_get_tensor(f, i);
	uint32_t index = p->order[i];
	uint64_t slot_end = slot->offset + slot->n_bytes;
	uint64_t t_begin = fill_get_offset(f, slot->way, i);
	uint64_t t_end = t_begin + t->n_bytes;
	uint64_t begin = t_begin > slot->offset ? t_begin : slot->offset;
	uint64_t end = t_end < slot_end ? t_end : slot_end;
	struct vk_memory *memory = NULL;
	uint64_t aligned;

	int rc = fill_get_memory(f, p->tensor_alloc[index], ret_err, &memory);
	if (rc)
		return rc;
	const struct vk_slice to = {.memory = memory,
		.offset = p->tensor_offset[index] + begin - t_begin,
		.n_bytes = end - begin};
	upload_add(f->upload, (uint32_t)(slot - f->slots), begin - slot->offset, &to);

	if (end == t_end && bytes_align(t->n_bytes, PLACEMENT_ALIGN, &aligned) &&
		aligned > t->n_bytes) {
		const struct vk_slice gap = {.memory = memory,
			.offset = p->tensor_offset[index] + t->n_bytes,
			.n_bytes = aligned - t->n_bytes};
		upload_add_zeros(f->upload, &gap);
	}
	return 0;
}

/* The tensors of the ring that a slot has a part of, from slot->first: as long as this is true. */
static bool fill_is_in_slot(const struct fill *f, const struct fill_slot *slot, uint32_t i)
{
	return i < f->params->placement->n_tensors &&
	       fill_get_offset(f, slot->way, i) < slot->offset + slot->n_bytes;
}

static int fill_copy_slot(struct fill *f, const struct fill_slot *slot, struct err *ret_err)
{
	int rc = 0;

	for (uint32_t i = slot->first; rc == 0 && fill_is_in_slot(f, slot, i); i++)
		if (fill_get_way(f, i) == slot->way)
			rc = fill_copy_tensor(f, slot, i, ret_err);
	return rc;
}

/* The first allocation that the slot waits for; n_allocs: it can be copied. */
static uint32_t fill_find_missing(struct fill *f, const struct fill_slot *slot)
{
	const struct placement *p = f->params->placement;

	for (uint32_t i = slot->first; fill_is_in_slot(f, slot, i); i++) {
		uint32_t alloc = p->tensor_alloc[p->order[i]];
		if (fill_get_way(f, i) == slot->way && !allocator_has(f->params->allocator, alloc))
			return alloc;
	}
	return p->n_allocs;
}

/* Slots whose copy is over can be read into again. */
static void fill_end_copies(struct fill *f)
{
	if (!f->upload)
		return;
	upload_poll(f->upload);
	for (uint32_t i = 0; i < f->n_slots; i++)
		if (f->slots[i].state == FILL_COPYING &&
			!upload_is_running(f->upload, f->slots[i].copy))
			f->slots[i].state = FILL_FREE;
}

static bool fill_has(const struct fill *f, enum fill_slot_state state)
{
	for (uint32_t i = 0; i < f->n_slots; i++)
		if (f->slots[i].state == state)
			return true;
	return false;
}

static bool fill_can_copy(struct fill *f, const struct fill_slot *slot)
{
	return slot->state == FILL_READ &&
	       fill_find_missing(f, slot) == f->params->placement->n_allocs;
}

/*
 * All that came in and has memory goes on to the device, if a copy is free for it. ret_is_any: so
 * it was.
 */
static int fill_start_copy(struct fill *f, struct err *ret_err, bool *ret_is_any)
{
	uint32_t taken[FILL_DEPTH], n_taken = 0, copy = 0;
	int rc = 0;

	for (uint32_t i = 0; i < f->n_slots; i++)
		if (fill_can_copy(f, &f->slots[i]))
			taken[n_taken++] = i;
	if (n_taken == 0 || !upload_begin(f->upload))
		return 0;
	for (uint32_t i = 0; i < n_taken && rc == 0; i++)
		rc = fill_copy_slot(f, &f->slots[taken[i]], ret_err);
	if (rc == 0)
		rc = upload_submit(f->upload, ret_err, &copy);
	if (rc)
		return rc == UPLOAD_DEVICE_LOST ? FILL_DEVICE_LOST : rc;
	for (uint32_t i = 0; i < n_taken; i++) {
		f->slots[taken[i]].state = FILL_COPYING;
		f->slots[taken[i]].copy = copy;
	}
	*ret_is_any = true;
	return 0;
}

static int fill_refuse_read(
	struct fill *f, const struct fill_slot *slot, int code, struct err *ret_err)
{
	if (code == -ENODATA)
		return err_set(ret_err, ENODATA,
			"file: it ended before offset %llu, inside the tensor data: cut while it "
			"was read",
			(unsigned long long)(slot->offset + slot->n_bytes));
	if (code == -ENOMEM && slot->is_fresh)
		return err_set(ret_err, ENOMEM,
			"staged weights: the host has no memory for %llu bytes more, after %llu of "
			"%llu",
			(unsigned long long)slot->n_bytes, (unsigned long long)f->n_done_bytes,
			(unsigned long long)f->n_total_bytes);
	return err_set(ret_err, -code, "file: read: %s", strerror(-code));
}

/* One read that came in; -EAGAIN, without ret_err: without may_wait, when none has. */
static int fill_take_read(struct fill *f, bool may_wait, struct err *ret_err)
{
	uint64_t start = clock_now_ns(), tag = UINT64_MAX;
	int rc = may_wait ? uring_wait(f->uring, &tag) : uring_poll(f->uring, &tag);

	f->waited_ns[FILL_FOR_READS] += clock_now_ns() - start;
	if (rc == -EAGAIN && tag == UINT64_MAX)
		return rc;
	if (tag == UINT64_MAX)
		return err_set(ret_err, -rc, "reading: %s", strerror(-rc));
	struct fill_slot *slot = &f->slots[tag];
	if (rc < 0)
		return fill_refuse_read(f, slot, rc, ret_err);
	slot->state = slot->way != FILL_DIRECTLY ? FILL_READ : FILL_FREE;
	f->n_done_bytes += slot->n_bytes;
	if (f->n_done_bytes > f->n_total_bytes) /* gaps in the file were read too */
		f->n_done_bytes = f->n_total_bytes;
	if (!f->params->progress(f->n_done_bytes, f->n_total_bytes, f->params->userdata))
		return err_set(ret_err, ECANCELED, "%s", "the load was given up");
	return 0;
}

/* Is there something to be read or copied? Copies that run are waited for by what follows them. */
static bool fill_is_busy(struct fill *f)
{
	return fill_find_next(f) || uring_get_n_in_flight(f->uring) > 0 || fill_has(f, FILL_READ);
}

/* Nothing else is to be done: for a read, without one for the oldest copy, else for memory. */
static int fill_wait_for_any(struct fill *f, struct err *ret_err)
{
	struct vk_memory *memory;

	if (uring_get_n_in_flight(f->uring) > 0)
		return fill_take_read(f, true, ret_err);
	if (f->upload && upload_is_any_running(f->upload))
		return fill_wait_copy(f, ret_err);
	for (uint32_t i = 0; i < f->n_slots; i++) {
		uint32_t missing;
		if (f->slots[i].state != FILL_READ)
			continue;
		missing = fill_find_missing(f, &f->slots[i]);
		if (missing < f->params->placement->n_allocs)
			return fill_get_memory(f, missing, ret_err, &memory);
	}
	return 0;
}

static int fill_step(struct fill *f, struct err *ret_err)
{
	bool is_any = false; /* done, so that there may be more to do */
	int rc = fill_check_allocator(f, ret_err);

	fill_end_copies(f);
	if (rc == 0)
		rc = fill_start_reads(f, ret_err);
	while (rc == 0 && uring_get_n_in_flight(f->uring) > 0) {
		rc = fill_take_read(f, false, ret_err);
		is_any |= rc == 0;
	}
	if (rc == -EAGAIN)
		rc = 0;
	if (rc == 0)
		rc = fill_start_copy(f, ret_err, &is_any);
	if (rc || is_any)
		return rc;
	return fill_wait_for_any(f, ret_err);
}

static int fill_release(struct fill *f, struct err *ret_err)
{
	const struct placement *p = f->params->placement;
	uint32_t copy;
	int rc = 0;

	if (!f->upload)
		return 0;
	while (rc == 0 && !upload_begin(f->upload))
		rc = fill_wait_copy(f, ret_err);
	for (uint32_t i = 0; i < p->n_allocs && rc == 0; i++) {
		struct vk_memory *memory = NULL;
		if (p->homes[i].home > PLACEMENT_HOST_MEMORY)
			continue;
		rc = fill_get_memory(f, i, ret_err, &memory);
		if (rc == 0)
			upload_add_release(f->upload, memory);
	}
	if (rc == 0)
		rc = upload_submit(f->upload, ret_err, &copy);
	if (rc)
		return rc == UPLOAD_DEVICE_LOST ? FILL_DEVICE_LOST : rc;
	while (rc == 0 && upload_is_any_running(f->upload))
		rc = fill_wait_copy(f, ret_err);
	return rc;
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

static void fill_log(const struct fill *f, uint64_t start_ns)
{
	uint64_t ns = clock_now_ns() - start_ns;

	log_debug("fill: %llu bytes in %.1f ms, %.2f GB/s by %s; waited "
		  "%.1f ms for memory, %.1f for reads, %.1f for %u copies",
		(unsigned long long)f->n_total_bytes, (double)ns / 1e6,
		(double)f->n_total_bytes / (double)ns,
		uring_get_refusal(f->uring) ? "pread" : "io_uring",
		(double)f->waited_ns[FILL_FOR_MEMORY] / 1e6,
		(double)f->waited_ns[FILL_FOR_READS] / 1e6,
		(double)f->waited_ns[FILL_FOR_COPIES] / 1e6,
		f->upload ? upload_get_n_submitted(f->upload) - f->n_submitted : 0);
}

int fill_run(const struct fill_params *params, struct err *ret_err, int *ret_refusal)
{
	_cleanup_(fill_fini)
	struct fill f = {.params = params};
	uint64_t start = clock_now_ns();
	int rc = fill_init(&f, ret_err);

	while (rc == 0 && fill_is_busy(&f))
		rc = fill_step(&f, ret_err);
	if (rc == 0)
		rc = fill_release(&f, ret_err);
	if (rc == 0)
		rc = fill_keep_staged(&f, ret_err);
	if (rc)
		return rc;
	fill_log(&f, start);
	*ret_refusal = uring_get_refusal(f.uring);
	return 0;
}
