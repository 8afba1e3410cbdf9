/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/upload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"

/* Where copies from host memory reached the bus's rate (measured on an H200, docs/measured.md). */
static const enum vk_queue upload_queue = VK_QUEUE_TRANSFER;

struct upload_copy {
	struct vk_command *command;
	uint64_t ticket; /* 0: it does not run */
};

struct upload {
	struct vk_device *device;
	uint64_t slot_bytes;
	uint64_t zeros_at;      /* offset in ring */
	struct vk_memory *ring; /* [n_slots][slot_bytes] u8, then [UPLOAD_MAX_ZEROS] zeros */
	uint8_t *ring_bytes;
	struct upload_copy copies[UPLOAD_N_COPIES];
	uint32_t recording; /* index into copies, between begin and submit */
	uint32_t n_submitted;
};

static int upload_lost(struct err *ret_err)
{
	err_set(ret_err, EIO, "%s", "the device was lost");
	return UPLOAD_DEVICE_LOST;
}

static int upload_init(struct upload *u, uint32_t n_slots, struct err *ret_err)
{
	const struct vk_memory_params ring = {.role = VK_MEMORY_STAGING,
		.n_bytes = n_slots * u->slot_bytes + UPLOAD_MAX_ZEROS,
		.name = "load ring"};
	void *pointer;
	int rc = vk_memory_new(u->device, &ring, ret_err, &u->ring);

	if (rc == 0)
		rc = vk_memory_map(u->ring, ret_err, &pointer);
	for (uint32_t i = 0; i < UPLOAD_N_COPIES && rc == 0; i++)
		rc = vk_command_new_on(u->device, upload_queue, 0, ret_err, &u->copies[i].command);
	if (rc == VK_DEVICE_LOST)
		return upload_lost(ret_err);
	if (rc < 0)
		return rc;
	u->ring_bytes = pointer;
	u->zeros_at = n_slots * u->slot_bytes;
	memset(u->ring_bytes + u->zeros_at, 0, UPLOAD_MAX_ZEROS);
	return 0;
}

int upload_new(struct vk_device *device, uint32_t n_slots, uint64_t slot_bytes, struct err *ret_err,
	struct upload **ret_upload)
{
	struct upload *u = calloc(1, sizeof(*u));

	if (!u)
		return err_set(ret_err, ENOMEM, "weights: out of memory");
	u->device = device;
	u->slot_bytes = slot_bytes;
	int rc = upload_init(u, n_slots, ret_err);
	if (rc) {
		upload_free(u);
		return rc;
	}
	*ret_upload = u;
	return 0;
}

void upload_drain(struct upload *u)
{
	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++) {
		/* A device that is lost uses nothing any more; there is nothing else to hear. */
		int rc = vk_submit_wait(u->device, u->copies[i].ticket, UINT64_MAX);
		(void)rc;
		u->copies[i].ticket = 0;
	}
}

struct upload *upload_free(struct upload *u)
{
	if (!u)
		return NULL;
	upload_drain(u);
	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++)
		vk_command_free(u->copies[i].command);
	vk_memory_free(u->ring);
	free(u);
	return NULL;
}

uint8_t *upload_get_slot(const struct upload *u, uint32_t slot)
{
	return u->ring_bytes + slot * u->slot_bytes;
}

bool upload_begin(struct upload *u)
{
	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++) {
		if (u->copies[i].ticket)
			continue;
		u->recording = i;
		vk_command_begin(u->copies[i].command);
		return true;
	}
	return false;
}

static void upload_copy_from(struct upload *u, uint64_t ring_offset, const struct vk_slice *to)
{
	const struct vk_slice from = {
		.memory = u->ring, .offset = ring_offset, .n_bytes = to->n_bytes};

	vk_command_copy(u->copies[u->recording].command, to, &from);
}

void upload_add(struct upload *u, uint32_t slot, uint64_t offset, const struct vk_slice *to)
{
	upload_copy_from(u, slot * u->slot_bytes + offset, to);
}

void upload_add_zeros(struct upload *u, const struct vk_slice *to)
{
	upload_copy_from(u, u->zeros_at, to);
}

void upload_add_release(struct upload *u, struct vk_memory *memory)
{
	vk_command_release(u->copies[u->recording].command, memory);
}

int upload_submit(struct upload *u, struct err *ret_err, uint32_t *ret_copy)
{
	struct upload_copy *copy = &u->copies[u->recording];
	int rc = vk_command_end(copy->command, ret_err);

	if (rc == 0)
		rc = vk_submit_on(u->device, upload_queue, &copy->command, 1, NULL, 0, ret_err,
			&copy->ticket);
	if (rc == VK_DEVICE_LOST)
		return upload_lost(ret_err);
	if (rc < 0)
		return rc;
	u->n_submitted++;
	*ret_copy = u->recording;
	return 0;
}

void upload_poll(struct upload *u)
{
	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++)
		if (u->copies[i].ticket && vk_submit_is_done(u->device, u->copies[i].ticket))
			u->copies[i].ticket = 0;
}

bool upload_is_running(const struct upload *u, uint32_t copy)
{
	return u->copies[copy].ticket != 0;
}

bool upload_is_any_running(const struct upload *u)
{
	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++)
		if (u->copies[i].ticket)
			return true;
	return false;
}

int upload_wait(struct upload *u, struct err *ret_err)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < UPLOAD_N_COPIES; i++)
		if (u->copies[i].ticket && u->copies[i].ticket < oldest)
			oldest = u->copies[i].ticket;
	if (oldest == UINT64_MAX)
		return 0;
	int rc = vk_submit_wait(u->device, oldest, UINT64_MAX);
	if (rc == VK_DEVICE_LOST)
		return upload_lost(ret_err);
	if (rc < 0)
		return err_set(ret_err, -rc, "copy to the device: %s", strerror(-rc));
	upload_poll(u);
	return 0;
}

uint32_t upload_get_n_submitted(const struct upload *u)
{
	return u->n_submitted;
}
