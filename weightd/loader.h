/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LOADER_H
#define WEIGHTD_LOADER_H

/*
 * The loader thread: it alone owns the Vulkan device and all memory on it. The loop thread gives it
 * jobs, which it does one after the other, and takes results when its eventfd is readable. Every
 * call here is the loop thread's.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "weightd/load.h"

struct check_report;
struct export;
struct loader;
struct policy;
struct source;
struct source_account;
struct sum_key;

enum { LOADER_MAX_JOBS = 64 };

/* Borrowed while the loader lives. */
struct loader_params {
	const char *device; /* vk_device_new's select */
	const struct policy *policy;
	struct source_account *account;
	const struct sum_key *key;
	uint64_t alloc_bytes; /* see load_params */
	uint64_t window_bytes;
	bool use_pread;    /* do not try io_uring */
	uint64_t scrub_ns; /* a period; 0: off; or CHECKER_DEFAULT_NS */
	uint32_t scrub_percent;
};

/* Starts the thread and waits until it has its device. The errors of vk_device_new; -ENOTSUP when
 * the device cannot export memory. */
int must_check loader_new(
	const struct loader_params *params, struct err *ret_err, struct loader **ret_loader);

/* Gives up what runs, waits for the thread, frees every export that was not taken or was released.
 * Accepts NULL; returns NULL. */
struct loader *loader_free(struct loader *l);

/* The device's limits and names, constant. */
const struct vk_device_info *loader_get_info(const struct loader *l);

/* Heaps as the driver last told, and bytes of weights in each; the loader asks anew for the next
 * call when it is idle. info.n_heaps rows. */
void loader_get_heaps(struct loader *l, struct vk_device_heap ret_heaps[VK_DEVICE_MAX_HEAPS],
	uint64_t ret_weights_bytes[VK_DEVICE_MAX_HEAPS]);

/* Readable when loader_take_result has something. */
int loader_get_fd(const struct loader *l);

/*
 * What the probe found out about the device, for loads that begin after it; before, most devices'
 * abilities are assumed. get: NULL before. probe is copied.
 */
void loader_set_probe(struct loader *l, const struct vk_probe *probe);
const struct vk_probe *loader_get_probe(const struct loader *l);

/* That wait: below LOADER_MAX_JOBS another is taken. */
uint32_t loader_count_jobs(struct loader *l);

/*
 * For the loader's device, or with is_foreign for those of nobody here. source is referenced.
 * -EBUSY with a sentence when LOADER_MAX_JOBS wait; -ENOMEM.
 */
int must_check loader_load(struct loader *l, uint64_t generation, struct source *source,
	bool is_foreign, struct err *ret_err);

/* What loader_load asks for, and more. */
struct loader_request {
	enum load_goal goal;
	uint64_t generation;
	struct source *source; /* referenced */
	bool is_foreign;
	uint64_t room_bytes;     /* of the device, at most; UINT64_MAX: as its driver says */
	uint64_t may_free_bytes; /* others on the device would give them: LOADER_SHORT */
};
int must_check loader_ask(
	struct loader *l, const struct loader_request *request, struct err *ret_err);

/* Takes the reference, and drops what is staged: on the loader thread, for it takes long. Nobody
 * has the memfd any more. */
void loader_drop_source(struct loader *l, struct source *source);

/*
 * Imports what the export's descriptors stand for (export_import), in place of a load: its result
 * is as that of a load, which reads nothing. Takes the export on success. -EBUSY, -ENOMEM as above.
 */
int must_check loader_adopt(struct loader *l, uint64_t generation, struct export *e,
	bool is_foreign, struct err *ret_err);

struct loader_window {
	uint64_t offset; /* in the file */
	uint64_t n_bytes;
};

/*
 * Copies windows of the model file into source's copy, within the policy's host budget and what
 * memory is free: its result is LOADER_COPIED. windows are copied. Errors of loader_load.
 */
int must_check loader_copy(struct loader *l, uint64_t generation, struct source *source,
	const struct loader_window *windows, uint32_t n_windows, struct err *ret_err);

/* Whatever loads, copies or checks for the generation ends with -ECANCELED, soon, and what waits
 * for its turn does not begin, checks excepted. Their results still come. */
void loader_cancel(struct loader *l, uint64_t generation);

/* Takes the export and frees it on the loader thread, before any load that was asked for later. */
void loader_release(struct loader *l, struct export *e);

/* Bytes of the device's memory that released exports had and that are free by now, since the last
 * call. */
uint64_t loader_take_freed_bytes(struct loader *l);
/*
 * Every sum of the export made anew and compared; answered by LOADER_CHECKED with the tag, not 0.
 * One that is released before its turn is answered with -ECANCELED. -EBUSY, -ENOMEM as above.
 */
int must_check loader_check(struct loader *l, struct export *e, uint64_t tag, struct err *ret_err);

enum loader_result_kind {
	LOADER_PROGRESS, /* loaded_bytes of total_bytes; at most one every 50 ms or 64 MiB */
	LOADER_READY,    /* export is the caller's, for loader_release */
	LOADER_COOL,     /* LOAD_COOL succeeded */
	LOADER_SHORT,    /* nothing was done: short_bytes are missing on the device */
	LOADER_FAILED,   /* code < 0 and err */
	LOADER_COPIED,   /* code and err: 0, or < 0 when nothing can be used of it */
	LOADER_LOST,    /* failed, for the device is gone, and with it what all exports had there */
	LOADER_CHECKED, /* report, or code < 0 and err; tag 0: the scrub has found a difference */
};

struct loader_result {
	enum loader_result_kind kind;
	enum load_goal goal;
	uint64_t generation;
	bool is_foreign;
	uint64_t room_bytes; /* as it was given */
	uint64_t short_bytes;
	uint64_t loaded_bytes;
	uint64_t total_bytes;
	struct export *export;
	int code;
	struct err err;
	uint64_t load_ns; /* of the job, waiting not counted */
	int refusal;      /* uring_get_refusal */
	/* Of LOADER_CHECKED. */
	uint64_t tag;
	bool is_device_lost;
	struct check_report *report; /* the caller's, who frees it */
	/* What was checked, to be compared alone: by now it may be freed. And what its export.sums
	 * is to be, the caller's; NULL: as it is. */
	const struct export *checked;
	uint8_t *sums;
	uint32_t n_sums_bytes;
};

/* False when there is none. */
bool loader_take_result(struct loader *l, struct loader_result *ret_result);

#endif
