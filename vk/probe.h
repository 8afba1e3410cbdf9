/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_PROBE_H
#define VK_PROBE_H

/*
 * What a device can really import and export. No driver says it: the calls that could warn succeed,
 * and the import that is refused breaks the Vulkan device of the process that tried. So every kind
 * is tried in a process of its own, which is this program executed again (never a fork: the
 * driver's threads and locks do not survive one), and the answers are kept on disk.
 *
 * A kind is found to work when the device read what the CPU had written there, and again after the
 * CPU had written something else.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_device_info;

/* Names for people and for the cache: see vk_probe_kind_name. Mappings are MAP_SHARED. */
enum vk_probe_kind {
	VK_PROBE_ANONYMOUS,       /* private pages of this process, read-write */
	VK_PROBE_MEMFD,           /* read-write, sealed SEAL, GROW and SHRINK as a staged one is */
	VK_PROBE_MEMFD_SEALED,    /* read-write, sealed FUTURE_WRITE after it was mapped */
	VK_PROBE_MEMFD_READ_ONLY, /* mapped read-only from a read-only descriptor */
	VK_PROBE_TMPFS,           /* a file in /dev/shm, read-write */
	VK_PROBE_TMPFS_READ_ONLY,
	VK_PROBE_DISK, /* a file in params.disk_dir, read-write */
	VK_PROBE_DISK_READ_ONLY,
	VK_PROBE_FD_DEVICE,     /* opaque fd of device-local weights, exported and imported */
	VK_PROBE_FD_HOST,       /* opaque fd of is_host weights, exported and imported */
	VK_PROBE_DMA_BUF,       /* dma-buf of device-local weights, exported; imported if claimed */
	VK_PROBE_DMA_BUF_HOST,  /* dma-buf of is_host weights, exported and imported */
	VK_PROBE_MEMFD_DMA_BUF, /* a memfd imported as a dma-buf */
	VK_PROBE_N,
};

enum { VK_PROBE_REASON_BYTES = 200 };

struct vk_probe_result {
	bool is_ok;
	bool is_sure; /* false: the trial itself failed (no memory left, timeout); not kept */
	char reason[VK_PROBE_REASON_BYTES]; /* why not, one line: the driver's error or the signal
					     */
};

struct vk_probe {
	struct vk_probe_result kinds[VK_PROBE_N];
};

struct vk_probe_params {
	const char *disk_dir; /* on the filesystem meant, writable; NULL: the cache's directory */
	uint32_t timeout_ms; /* for one kind; 0: 20 s, as a GPU that sleeps takes seconds to wake */
};

/* "anonymous", "memfd", "memfd-sealed", ... Static. */
const char *vk_probe_kind_name(enum vk_probe_kind kind);

/*
 * The first call of a program's main when argv[1] is "--probe"; returns the exit status.
 *	--probe SELECT               tries every kind and prints one line each, for people
 *	--probe SELECT KIND DIR      tries one kind in this process and prints one line
 * SELECT is vk_device_new's. A line is "probe KIND yes", "probe KIND no REASON" or
 * "probe KIND unsure REASON".
 */
int vk_probe_main(int argc, char **argv);

/*
 * Tries every kind, one after the other, a few tenths of a second each; blocks meanwhile. The
 * program must call vk_probe_main as said above. A child that crashes, hangs (it is killed) or
 * prints anything else is a no with that reason; after two that hung no more are started. params
 * may be NULL. -errno when no child can be started. Any thread.
 */
int must_check vk_probe_run(const char *select, const struct vk_probe_params *params,
	struct err *ret_err, struct vk_probe *ret_probe);

/*
 * The same of the device that info describes, from the cache if it was found before: a text file in
 * the directory of vk/cache.h, for this device, driver and its version, kernel release, disk_dir
 * and memory lock limit. Written only when every answer is sure. A foreign, damaged or outdated
 * file is as none. WEIGHTD_PROBE in the environment: "fresh" does not read the cache, "off" tries
 * nothing and answers no to everything; anything else but "" is -EINVAL.
 */
int must_check vk_probe_get(const struct vk_device_info *info, const struct vk_probe_params *params,
	struct err *ret_err, struct vk_probe *ret_probe);

#endif
