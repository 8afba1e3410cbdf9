/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/device.h"
#include "vk/host.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "workerd/crew.h"
#include "workerd/populate.h"

enum {
	/* Below it a thread costs more than it saves: an import takes some 11 ms a GiB. */
	MIN_THREADED_BYTES = 64 << 20,
	/* Beyond it, page tables and drivers' locks are what is waited for. */
	MAX_THREADS = 8,
	/* Mappings begin where larger pages do, so that the kernel can use them. */
	MAP_ALIGN = 2 << 20,
};

/* The import of one allocation. */
struct job {
	struct weights_client_alloc *from;
	struct weights_alloc *to;
	int code;
	struct err err;
	uint64_t populate_ns;
	uint64_t import_ns;
};

struct import {
	struct weights *weights;
	struct vk_device *device;
	uint32_t n_threads;
	uint32_t n_populate_threads; /* of each of them */
	uint32_t n_jobs;
	struct job *jobs; /* [n_jobs] by index */
};

static bool is_window(const struct weights_client_alloc *a)
{
	return a->handle_type == WEIGHTS_CLIENT_MEMFD || a->handle_type == WEIGHTS_CLIENT_FILE;
}

static bool is_paged(const struct weights_client_alloc *a)
{
	return is_window(a) && a->placement == MANIFEST_PLACEMENT_PAGED;
}

/* Pages are imported by pointer, but memfds are not where the device takes none. */
static bool is_mapped(const struct import *m, const struct weights_client_alloc *a)
{
	if (!is_window(a) || is_paged(a))
		return false;
	return a->handle_type == WEIGHTS_CLIENT_FILE ||
	       vk_device_get_info(m->device)->has_import_host;
}

/* What weightd says of an allocation against what the manifest says of it. */
static int check_alloc(
	const struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	if (a->index >= w->n_allocs || w->allocs[a->index].placement)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected each of %" PRIu32 " once", a->index,
			w->n_allocs);
	if (a->placement < MANIFEST_PLACEMENT_DEVICE || a->placement > MANIFEST_PLACEMENT_PAGED)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected a placement, found %" PRIu32, a->index,
			a->placement);
	if (a->buffer_bytes < w->manifest->allocs[a->index].n_bytes || a->buffer_bytes > a->n_bytes)
		return err_set(ret_err, EPROTO,
			"allocation %" PRIu32 ": expected %" PRIu64
			" bytes as in the manifest, found %" PRIu64 " of %" PRIu64,
			a->index, w->manifest->allocs[a->index].n_bytes, a->buffer_bytes,
			a->n_bytes);
	return 0;
}

/* Pages behind a file's end kill who reads them, so the file must be there and stay. */
static int check_pages(
	const struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t used = w->manifest->allocs[a->index].n_bytes;
	uint64_t end, n_rounded;
	struct stat st;

	if (fstat(a->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a descriptor of a file, found another",
			a->index);
	if (a->file_offset % page || !a->n_bytes || a->n_bytes % page ||
		__builtin_add_overflow(a->file_offset, a->n_bytes, &end))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected pages of %" PRIu64
			" bytes, found a window of %" PRIu64 " at %" PRIu64,
			a->index, page, a->n_bytes, a->file_offset);
	if (!bytes_align((uint64_t)st.st_size, page, &n_rounded) || end > n_rounded ||
		a->file_offset + used > (uint64_t)st.st_size)
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a file of %" PRIu64
			" bytes or more, found %" PRIu64,
			a->index, a->file_offset + used, (uint64_t)st.st_size);
	if (a->handle_type == WEIGHTS_CLIENT_MEMFD && !(fcntl(a->fd, F_GET_SEALS) & F_SEAL_SHRINK))
		return err_set(ret_err, EINVAL,
			"allocation %" PRIu32 ": expected a memfd sealed against shrinking",
			a->index);
	return 0;
}

/* ---- mappings: one a file, whatever windows there are on it ---- */

static int find_map(struct weights *w, const struct weights_client_alloc *a, struct err *ret_err,
	struct weights_map **ret_map)
{
	struct stat st;

	if (fstat(a->fd, &st) < 0)
		return err_set(ret_err, errno, "allocation %" PRIu32 ": %m", a->index);
	for (uint32_t i = 0; i < w->n_maps; i++) {
		struct weights_map *map = &w->maps[i];

		if (map->dev == st.st_dev && map->inode == st.st_ino &&
			map->is_writable == a->writable) {
			*ret_map = map;
			return 0;
		}
	}
	struct weights_map *map = &w->maps[w->n_maps++];
	*map = (struct weights_map){.dev = st.st_dev,
		.inode = st.st_ino,
		.is_writable = a->writable,
		.is_memfd = a->handle_type == WEIGHTS_CLIENT_MEMFD,
		.fd = a->fd,
		.begin = a->file_offset};
	*ret_map = map;
	return 0;
}

static int make_map(struct weights_map *map, struct err *ret_err)
{
	int protection = PROT_READ | (map->is_writable ? PROT_WRITE : 0);

	map->begin = map->begin / MAP_ALIGN * MAP_ALIGN;
	void *pages = mmap(
		NULL, map->end - map->begin, protection, MAP_SHARED, map->fd, (off_t)map->begin);
	if (pages == MAP_FAILED)
		return err_set(ret_err, errno, "map of weights: %" PRIu64 " bytes: %m",
			map->end - map->begin);
	map->pages = pages;
	/* Fewer entries to make and to pin, where the memfd has such pages. */
	if (map->is_memfd)
		(void)madvise(pages, map->end - map->begin, MADV_HUGEPAGE);
	return 0;
}

static int map_windows(struct import *m, struct err *ret_err)
{
	struct weights *w = m->weights;
	struct weights_map *map;
	int r = 0;

	w->maps = calloc(w->n_allocs, sizeof(*w->maps));
	if (!w->maps)
		return err_set(ret_err, ENOMEM, "map of weights: no memory");
	for (uint32_t i = 0; i < m->n_jobs && !r; i++) {
		const struct weights_client_alloc *a = m->jobs[i].from;

		if (!is_mapped(m, a))
			continue;
		r = find_map(w, a, ret_err, &map);
		if (r)
			break;
		if (a->file_offset < map->begin)
			map->begin = a->file_offset;
		if (a->file_offset + a->n_bytes > map->end)
			map->end = a->file_offset + a->n_bytes;
	}
	for (uint32_t i = 0; i < w->n_maps && !r; i++)
		r = make_map(&w->maps[i], ret_err);
	for (uint32_t i = 0; i < m->n_jobs && !r; i++) {
		const struct weights_client_alloc *a = m->jobs[i].from;

		if (!is_mapped(m, a))
			continue;
		r = find_map(w, a, ret_err, &map);
		if (!r)
			m->jobs[i].to->map = map->pages + (a->file_offset - map->begin);
	}
	return r;
}

/* ---- imports; any thread of the crew ---- */

static int import_pages(
	const struct import *m, struct job *j, const char *name, struct err *ret_err)
{
	struct weights_alloc *alloc = j->to;

	/* The software driver pins nothing. */
	if (!vk_device_get_info(m->device)->is_software) {
		uint64_t start_ns = clock_now_ns();

		populate_pages(alloc->map, j->from->n_bytes, m->n_populate_threads);
		j->populate_ns = clock_now_ns() - start_ns;
	}
	int r = vk_host_import(m->device, alloc->map, j->from->n_bytes, VK_MEMORY_WEIGHTS, name,
		ret_err, &alloc->memory);
	return r == VK_HOST_REFUSED ? WEIGHTS_REFUSED : r;
}

/* What a driver claims of dma-bufs is not what it does with every one of them. */
static int judge_share(const struct vk_share_params *params, int r)
{
	bool is_driver = r == -EIO || r == -ENOMEM || r == -ENOTSUP;

	return params->handle == VK_HANDLE_DMA_BUF && is_driver ? WEIGHTS_REFUSED : r;
}

/* The whole memfd as a dma-buf: for a driver that imports no host pages. */
static int import_memfd(struct weights_alloc *alloc, struct vk_device *d,
	struct weights_client_alloc *a, const char *name, struct err *ret_err)
{
	struct stat st;

	if (fstat(a->fd, &st) < 0)
		return err_set(ret_err, errno, "import of %s: %m", name);
	const struct vk_share_params params = {
		.n_bytes = (uint64_t)st.st_size,
		.buffer_bytes = (uint64_t)st.st_size,
		.memory_type_index = VK_SHARE_ANY_TYPE,
		.handle = VK_HANDLE_DMA_BUF,
	};
	int r = vk_share_import(
		d, a->fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &alloc->memory);

	if (!r) {
		a->fd = -1; /* the driver's */
		alloc->base = a->file_offset;
	}
	return judge_share(&params, r);
}

static int import_fd(struct weights_alloc *alloc, struct vk_device *d,
	struct weights_client_alloc *a, const char *name, struct err *ret_err)
{
	const struct vk_share_params params = {
		.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->dedicated,
		.handle = a->handle_type == WEIGHTS_CLIENT_DMA_BUF ? VK_HANDLE_DMA_BUF
								   : VK_HANDLE_OPAQUE_FD,
	};
	int r = vk_share_import(
		d, a->fd, &params, VK_MEMORY_WEIGHTS, name, ret_err, &alloc->memory);

	if (!r)
		a->fd = -1; /* the driver's */
	return judge_share(&params, r);
}

static int import_one(const struct import *m, struct job *j, struct err *ret_err)
{
	struct weights_client_alloc *a = j->from;
	bool is_fd = a->handle_type == WEIGHTS_CLIENT_OPAQUE_FD ||
		     a->handle_type == WEIGHTS_CLIENT_DMA_BUF;
	char name[32];

	snprintf(name, sizeof(name), "weights %" PRIu32, a->index);
	if (is_paged(a)) {
		j->to->fd = TAKE_FD(a->fd);
		j->to->file_offset = a->file_offset;
		return 0;
	}
	if (is_mapped(m, a))
		return import_pages(m, j, name, ret_err);
	if (is_window(a))
		return import_memfd(j->to, m->device, a, name, ret_err);
	if (is_fd && a->placement != MANIFEST_PLACEMENT_PAGED)
		return import_fd(j->to, m->device, a, name, ret_err);
	return err_set(ret_err, ENOTSUP,
		"allocation %" PRIu32 ": placement %" PRIu32
		": expected a descriptor that can be imported, found handle type %" PRIu32,
		a->index, a->placement, a->handle_type);
}

static int run_job(uint32_t i, void *userdata)
{
	const struct import *m = userdata;
	struct job *j = &m->jobs[i];
	uint64_t start_ns = clock_now_ns();

	j->code = import_one(m, j, &j->err);
	if (j->code == VK_DEVICE_LOST) /* nothing that another lease could do without */
		j->code = -EIO;
	j->import_ns = clock_now_ns() - start_ns - j->populate_ns;
	return j->code;
}

static void choose_threads(struct import *m, uint32_t n_threads)
{
	uint32_t n_cores = crew_count_cores(MAX_THREADS), n_imports = 0;
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < m->n_jobs; i++) {
		if (is_paged(m->jobs[i].from))
			continue;
		n_imports++;
		n_bytes += m->jobs[i].from->buffer_bytes;
	}
	m->n_threads = n_threads ? n_threads : n_bytes < MIN_THREADED_BYTES ? 1 : n_cores;
	if (m->n_threads > n_imports)
		m->n_threads = n_imports ? n_imports : 1;
	m->n_populate_threads = n_cores > m->n_threads ? n_cores / m->n_threads : 1;
}

/*
 * After a refusal what else failed may have failed of it, and nothing else is worth telling. That
 * the lowest index is the one that the driver meant is certain only where nothing ran beside it.
 */
static int judge(const struct import *m, struct err *ret_err, struct weights_refusal *ret_refusal)
{
	const struct job *failed = NULL;

	for (uint32_t i = 0; i < m->n_jobs; i++) {
		const struct job *j = &m->jobs[i];

		if (j->code == WEIGHTS_REFUSED) {
			failed = j;
			break;
		}
		if (j->code && !failed)
			failed = j;
	}
	if (!failed)
		return 0;
	if (ret_err)
		*ret_err = failed->err;
	if (failed->code == WEIGHTS_REFUSED)
		*ret_refusal = (struct weights_refusal){.handle_type = failed->from->handle_type,
			.index = failed->from->index,
			.is_exact = m->n_threads == 1};
	return failed->code;
}

static void say_times(const struct import *m, uint64_t n_ns)
{
	uint64_t populate_ns = 0, import_ns = 0;

	for (uint32_t i = 0; i < m->n_jobs; i++) {
		const struct job *j = &m->jobs[i];

		populate_ns += j->populate_ns;
		import_ns += j->import_ns;
		log_debug("attach: allocation %" PRIu32 ": %" PRIu64
			  " bytes, populate %.2f ms, import %.2f ms",
			j->from->index, j->from->n_bytes, (double)j->populate_ns / 1e6,
			(double)j->import_ns / 1e6);
	}
	log_debug("attach: %" PRIu32 " allocations in %" PRIu32 " mappings on %" PRIu32
		  " threads: %.2f ms, populate %.2f ms and import %.2f ms of all threads",
		m->n_jobs, m->weights->n_maps, m->n_threads, (double)n_ns / 1e6,
		(double)populate_ns / 1e6, (double)import_ns / 1e6);
}

/* An import takes its descriptor for itself. Windows of one file share one. */
static int keep_fd(struct weights *w, const struct weights_client_alloc *a, struct err *ret_err)
{
	struct weights_alloc *alloc = &w->allocs[a->index];
	struct stat st, other;

	alloc->owner = a->index;
	if (is_window(a) && a->index > 0 && fstat(a->fd, &st) == 0) {
		uint32_t owner = w->allocs[a->index - 1].owner;

		if (w->allocs[owner].kept_fd >= 0 && fstat(w->allocs[owner].kept_fd, &other) == 0 &&
			S_ISREG(st.st_mode) && st.st_dev == other.st_dev &&
			st.st_ino == other.st_ino) {
			alloc->owner = owner;
			alloc->kept_fd = w->allocs[owner].kept_fd;
			return 0;
		}
	}
	alloc->kept_fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
	if (alloc->kept_fd < 0)
		return err_set(ret_err, errno, "allocation %" PRIu32 ": descriptor: %m", a->index);
	return 0;
}

static int check_and_import(struct import *m, struct weights_client_acquired *acquired,
	uint32_t n_threads, struct err *ret_err, struct weights_refusal *ret_refusal)
{
	struct weights *w = m->weights;
	uint64_t start_ns = clock_now_ns();
	int r = 0;

	for (uint32_t i = 0; i < m->n_jobs && !r; i++) {
		struct weights_client_alloc *a = &acquired->allocs[i];

		r = check_alloc(w, a, ret_err);
		if (!r && is_window(a))
			r = check_pages(w, a, ret_err);
		if (!r)
			r = keep_fd(w, a, ret_err);
		if (r)
			break;
		m->jobs[i] = (struct job){.from = a, .to = &w->allocs[a->index]};
		w->allocs[a->index].placement = a->placement;
		w->n_bytes += a->buffer_bytes;
	}
	if (!r)
		r = map_windows(m, ret_err);
	if (r)
		return r;
	choose_threads(m, n_threads);
	crew_run(m->n_jobs, m->n_threads, run_job, m);
	say_times(m, clock_now_ns() - start_ns);
	return judge(m, ret_err, ret_refusal);
}

int import_run(struct weights *w, struct vk_device *d, struct weights_client_acquired *acquired,
	uint32_t n_threads, struct err *ret_err, struct weights_refusal *ret_refusal)
{
	_cleanup_(cleanup_free)
	struct job *jobs = calloc(acquired->n_allocs, sizeof(*jobs));
	struct import m = {.weights = w, .device = d, .n_jobs = acquired->n_allocs, .jobs = jobs};

	if (!jobs)
		return err_set(ret_err, ENOMEM, "weights: no memory");
	return check_and_import(&m, acquired, n_threads, ret_err, ret_refusal);
}
