/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_UPLOAD_H
#define WEIGHTD_UPLOAD_H

/*
 * From host memory to a device's: a ring of slots that whoever has bytes writes to, and a few
 * copies out of them under way at a time. Loader thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct upload;
struct vk_device;
struct vk_memory;
struct vk_slice;

/* A condition: the device was lost. */
enum { UPLOAD_DEVICE_LOST = 1 };

enum {
	/* One runs, and the next takes its place at once. What comes in meanwhile is one copy after
	 * that: the device reaches the bus's rate from 4 MiB a copy on (51 GB/s measured on an
	 * H200, 15 with 64 KiB), and stands still between two. */
	UPLOAD_N_COPIES = 2,
	UPLOAD_MAX_ZEROS = 256, /* bytes of one upload_add_zeros */
};

/* The slots in one piece of staging memory. -ENOMEM, UPLOAD_DEVICE_LOST. */
int must_check upload_new(struct vk_device *device, uint32_t n_slots, uint64_t slot_bytes,
	struct err *ret_err, struct upload **ret_upload);

/* Waits for what runs, whatever becomes of it. */
void upload_drain(struct upload *u);

/* The same first. Nobody may write to a slot any more. Accepts NULL; returns NULL. */
struct upload *upload_free(struct upload *u);

/* [slot_bytes]. To be left alone from upload_add until that copy is over. */
uint8_t *upload_get_slot(const struct upload *u, uint32_t slot);

/* What is added from now on is one copy, which upload_submit starts. False: all of them run. */
bool upload_begin(struct upload *u);

/* From the offset in the slot. */
void upload_add(struct upload *u, uint32_t slot, uint64_t offset, const struct vk_slice *to);

void upload_add_zeros(struct upload *u, const struct vk_slice *to);

/* To VK_QUEUE_FAMILY_EXTERNAL, once all copies to it are done. */
void upload_add_release(struct upload *u, struct vk_memory *memory);

/* ret_copy: index below UPLOAD_N_COPIES. -ENOMEM, UPLOAD_DEVICE_LOST. */
int must_check upload_submit(struct upload *u, struct err *ret_err, uint32_t *ret_copy);

/* Looks which of them are over. */
void upload_poll(struct upload *u);

/* As of the last upload_poll or upload_wait. */
bool upload_is_running(const struct upload *u, uint32_t copy);
bool upload_is_any_running(const struct upload *u);

/* For the oldest that runs, if any. -errno, UPLOAD_DEVICE_LOST. */
int must_check upload_wait(struct upload *u, struct err *ret_err);

/* Until now. */
uint32_t upload_get_n_submitted(const struct upload *u);

#endif
