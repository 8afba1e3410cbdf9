/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/probe-child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <linux/magic.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/host.h"
#include "vk/share.h"
#include "vk/submit.h"

enum { TRIAL_BYTES = 1 << 20 };
#define WAIT_NS (UINT64_C(10) * 1000 * 1000 * 1000)

/* A device and what it takes to look into a memory through it. */
struct eye {
	struct vk_device *d;
	struct vk_command *c;
	struct vk_memory *io;
};

/* Pages to be imported. */
struct pages {
	int fd; /* -1: none */
	void *p;
	uint64_t n_bytes;
	bool is_writable;
};

/* The trial so far. A step that returns != 0 has filled e; is_sure says whether that is a verdict.
 */
struct trial {
	struct eye eyes[2]; /* one for the exporter where there is one */
	struct pages pages;
	uint64_t n_bytes;
	bool is_sure;
	struct err e;
};

static uint32_t word_at(uint32_t seed, uint64_t i)
{
	return seed + (uint32_t)i * 2654435761u;
}

static void fill_words(void *p, uint64_t n_bytes, uint32_t seed)
{
	uint32_t *words = p;

	for (uint64_t i = 0; i < n_bytes / 4; i++)
		words[i] = word_at(seed, i);
}

static int open_eye(struct trial *t, struct eye *eye, const char *select)
{
	int r = vk_device_new(select, &t->e, &eye->d);

	if (!r)
		r = vk_command_new(eye->d, 0, &t->e, &eye->c);
	if (r)
		return r;
	uint64_t align = vk_device_get_info(eye->d)->import_align;
	t->n_bytes = align > TRIAL_BYTES ? align : TRIAL_BYTES;
	struct vk_memory_params params = {
		.role = VK_MEMORY_IO, .n_bytes = t->n_bytes, .name = "probe-io"};
	return vk_memory_new(eye->d, &params, &t->e, &eye->io);
}

static void close_eye(struct eye *eye)
{
	vk_memory_free(eye->io);
	vk_command_free(eye->c);
	vk_device_free(eye->d);
}

static int run(struct trial *t, struct eye *eye)
{
	uint64_t ticket;

	int r = vk_command_end(eye->c, &t->e);
	if (!r)
		r = vk_submit(eye->d, &eye->c, 1, &t->e, &ticket);
	if (r)
		return r;
	r = vk_submit_wait(eye->d, ticket, WAIT_NS);
	if (r)
		(void)err_set(&t->e, EIO, "a copy of %" PRIu64 " bytes: %s", t->n_bytes,
			r == -ETIMEDOUT ? "still runs after 10 s" : "the device is lost");
	/* What runs cannot be freed. */
	if (r == -ETIMEDOUT)
		_exit(1);
	return r;
}

/* Copies m into io and compares it with what was written. */
static int look(
	struct trial *t, struct eye *eye, struct vk_memory *m, bool does_acquire, uint32_t seed)
{
	struct vk_slice src = {.memory = m, .n_bytes = t->n_bytes};
	struct vk_slice dst = {.memory = eye->io, .n_bytes = t->n_bytes};
	void *map;

	int r = vk_memory_map(eye->io, &t->e, &map);
	if (r)
		return r;
	memset(map, 0, t->n_bytes);
	vk_command_begin(eye->c);
	if (does_acquire)
		vk_command_acquire(eye->c, m);
	vk_command_copy(eye->c, &dst, &src);
	vk_command_host_barrier(eye->c);
	r = run(t, eye);
	if (r)
		return r;
	for (uint64_t i = 0; i < t->n_bytes / 4; i++) {
		uint32_t found = ((const uint32_t *)map)[i];

		if (found != word_at(seed, i))
			return err_set(&t->e, EIO,
				"the device read 0x%08x at byte %" PRIu64 ", expected 0x%08x",
				found, i * 4, word_at(seed, i));
	}
	return 0;
}

/* A file that has no name any more. */
static int make_file(struct trial *t, const char *dir, int *ret_fd)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/.probe-XXXXXX", dir) >= (int)sizeof(path))
		return err_set(&t->e, ENAMETOOLONG, "%s: name too long", dir);
	int fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return err_set(&t->e, errno, "%s: %m", path);
	(void)unlink(path);
	*ret_fd = fd;
	return 0;
}

/* A directory in memory would answer for the disk. */
static int check_disk(struct trial *t, const char *dir)
{
	struct statfs fs;

	if (statfs(dir, &fs) < 0)
		return err_set(&t->e, errno, "%s: %m", dir);
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
		return err_set(&t->e, EINVAL, "%s is no disk but a filesystem in memory", dir);
	return 0;
}

static int make_pages_fd(struct trial *t, enum vk_probe_kind kind, const char *dir, int *ret_fd)
{
	int r;

	if (kind == VK_PROBE_TMPFS || kind == VK_PROBE_TMPFS_READ_ONLY)
		return make_file(t, "/dev/shm", ret_fd);
	if (kind == VK_PROBE_DISK || kind == VK_PROBE_DISK_READ_ONLY) {
		r = check_disk(t, dir);
		return r ? r : make_file(t, dir, ret_fd);
	}
	int fd = memfd_create("weightd-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return err_set(&t->e, errno, "memfd: %m");
	*ret_fd = fd;
	return 0;
}

/* Writes the words through the descriptor, which also finds out whether there is room. */
static int write_words(struct trial *t, int fd, uint32_t seed)
{
	_cleanup_(cleanup_free)
	char *words = malloc(t->n_bytes);
	uint64_t done = 0;

	if (!words)
		return err_set(&t->e, ENOMEM, "no memory");
	fill_words(words, t->n_bytes, seed);
	while (done < t->n_bytes) {
		ssize_t n = pwrite(fd, words + done, t->n_bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_set(&t->e, n < 0 ? errno : EIO, "write: %m");
		done += (uint64_t)n;
	}
	return 0;
}

static int map_pages(struct trial *t, int fd, bool is_writable, int flags)
{
	int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *p = mmap(NULL, t->n_bytes, protection, flags, fd, 0);

	if (p == MAP_FAILED)
		return err_set(&t->e, errno, "mmap: %m");
	t->pages.p = p;
	t->pages.n_bytes = t->n_bytes;
	t->pages.is_writable = is_writable;
	return 0;
}

static int seal(struct trial *t, int seals)
{
	if (fcntl(t->pages.fd, F_ADD_SEALS, seals) < 0)
		return err_set(&t->e, errno, "memfd: seal 0x%x: %m", seals);
	return 0;
}

/* The read-only kinds are mapped from a descriptor that cannot write either. */
static int map_read_only(struct trial *t)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", t->pages.fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(&t->e, errno, "%s: %m", path);
	return map_pages(t, fd, false, MAP_SHARED);
}

/* The pages of a kind, with the words of seed in them. */
static int make_pages(struct trial *t, enum vk_probe_kind kind, const char *dir, uint32_t seed)
{
	int r;

	if (kind == VK_PROBE_ANONYMOUS) {
		r = map_pages(t, -1, true, MAP_PRIVATE | MAP_ANONYMOUS);
		if (!r)
			fill_words(t->pages.p, t->n_bytes, seed);
		return r;
	}
	r = make_pages_fd(t, kind, dir, &t->pages.fd);
	if (!r)
		r = write_words(t, t->pages.fd, seed);
	if (r || kind == VK_PROBE_MEMFD_DMA_BUF)
		return r;
	if (kind == VK_PROBE_MEMFD_READ_ONLY || kind == VK_PROBE_TMPFS_READ_ONLY ||
		kind == VK_PROBE_DISK_READ_ONLY)
		return map_read_only(t);
	r = map_pages(t, t->pages.fd, true, MAP_SHARED);
	if (!r && kind == VK_PROBE_MEMFD)
		r = seal(t, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
	if (!r && kind == VK_PROBE_MEMFD_SEALED)
		r = seal(t, F_SEAL_FUTURE_WRITE);
	return r;
}

static int rewrite_pages(struct trial *t, uint32_t seed)
{
	if (!t->pages.is_writable)
		return write_words(t, t->pages.fd, seed);
	fill_words(t->pages.p, t->n_bytes, seed);
	return 0;
}

static int try_pages(struct trial *t, enum vk_probe_kind kind, const char *select, const char *dir)
{
	struct eye *eye = &t->eyes[0];
	struct vk_memory *m = NULL;

	int r = open_eye(t, eye, select);
	if (r)
		return r;
	t->is_sure = true;
	r = make_pages(t, kind, dir, 1);
	if (!r)
		r = vk_host_import(
			eye->d, t->pages.p, t->n_bytes, VK_MEMORY_WEIGHTS, "pages", &t->e, &m);
	if (!r)
		r = look(t, eye, m, false, 1);
	if (!r)
		r = rewrite_pages(t, 2);
	if (!r)
		r = look(t, eye, m, false, 2);
	vk_memory_free(m);
	return r;
}

/* Puts words into exportable memory of the first device and gives it away. */
static int write_export(struct trial *t, struct vk_memory *m, bool is_host, uint32_t seed)
{
	struct eye *eye = &t->eyes[0];
	struct vk_slice dst = {.memory = m, .n_bytes = t->n_bytes};
	struct vk_slice src = {.memory = eye->io, .n_bytes = t->n_bytes};
	void *map;

	int r = vk_memory_map(is_host ? m : eye->io, &t->e, &map);
	if (r)
		return r;
	fill_words(map, t->n_bytes, seed);
	vk_command_begin(eye->c);
	if (!is_host)
		vk_command_copy(eye->c, &dst, &src);
	vk_command_release(eye->c, m);
	return run(t, eye);
}

/* The second device imports what the first exported, and reads it. */
static int read_import(struct trial *t, struct vk_memory *exported, bool is_host, int fd,
	const struct vk_share_params *params)
{
	struct eye *eye = &t->eyes[1];
	struct vk_memory *m = NULL;
	void *map;

	int r = vk_share_import(eye->d, fd, params, VK_MEMORY_WEIGHTS, "imported", &t->e, &m);
	if (r) {
		close(fd);
		return r;
	}
	r = look(t, eye, m, true, 1);
	if (!r && is_host)
		r = vk_memory_map(exported, &t->e, &map);
	if (!r && is_host) {
		fill_words(map, t->n_bytes, 2);
		r = look(t, eye, m, false, 2);
	}
	vk_memory_free(m);
	return r;
}

static int try_export(struct trial *t, enum vk_probe_kind kind, const char *select)
{
	bool is_dma_buf = kind == VK_PROBE_DMA_BUF || kind == VK_PROBE_DMA_BUF_HOST;
	struct vk_memory_params params = {
		.role = VK_MEMORY_WEIGHTS,
		.is_exportable = true,
		.name = "exported",
		.is_host = kind == VK_PROBE_FD_HOST || kind == VK_PROBE_DMA_BUF_HOST,
		.handle = is_dma_buf ? VK_HANDLE_DMA_BUF : VK_HANDLE_OPAQUE_FD,
	};
	struct vk_share_params shared;
	struct vk_memory *m = NULL;
	int fd = -1;

	int r = open_eye(t, &t->eyes[0], select);
	if (!r)
		r = open_eye(t, &t->eyes[1], select);
	if (r)
		return r;
	params.n_bytes = t->n_bytes;
	r = vk_memory_new(t->eyes[0].d, &params, &t->e, &m);
	/* A device that is full at this time says nothing about what it can. */
	t->is_sure = r != -ENOMEM;
	if (!r)
		r = write_export(t, m, params.is_host, 1);
	if (!r)
		r = vk_share_export(m, &t->e, &fd, &shared);
	if (!r && kind == VK_PROBE_DMA_BUF && !vk_device_get_info(t->eyes[1].d)->has_import_dma_buf)
		close(fd);
	else if (!r)
		r = read_import(t, m, params.is_host, fd, &shared);
	vk_memory_free(m);
	return r;
}

static int try_memfd_dma_buf(struct trial *t, const char *select)
{
	struct eye *eye = &t->eyes[0];
	struct vk_memory *m = NULL;

	int r = open_eye(t, eye, select);
	if (r)
		return r;
	struct vk_share_params params = {
		.n_bytes = t->n_bytes,
		.buffer_bytes = t->n_bytes,
		.memory_type_index = VK_SHARE_ANY_TYPE,
		.handle = VK_HANDLE_DMA_BUF,
	};
	t->is_sure = true;
	r = make_pages(t, VK_PROBE_MEMFD_DMA_BUF, NULL, 1);
	if (r)
		return r;
	int fd = fcntl(t->pages.fd, F_DUPFD_CLOEXEC, 0);
	r = vk_share_import(eye->d, fd, &params, VK_MEMORY_WEIGHTS, "memfd", &t->e, &m);
	if (r) {
		cleanup_close(&fd);
		return r;
	}
	r = look(t, eye, m, true, 1);
	if (!r)
		r = rewrite_pages(t, 2);
	if (!r)
		r = look(t, eye, m, false, 2);
	vk_memory_free(m);
	return r;
}

void vk_probe_child_run(const char *select, enum vk_probe_kind kind, const char *dir,
	struct vk_probe_result *ret_result)
{
	struct trial t = {.pages = {.fd = -1}};
	int r;

	if (kind >= VK_PROBE_FD_DEVICE && kind <= VK_PROBE_DMA_BUF_HOST)
		r = try_export(&t, kind, select);
	else if (kind == VK_PROBE_MEMFD_DMA_BUF)
		r = try_memfd_dma_buf(&t, select);
	else
		r = try_pages(&t, kind, select, dir);
	for (unsigned i = 0; i < ARRAY_SIZE(t.eyes); i++)
		close_eye(&t.eyes[i]);
	if (t.pages.p)
		munmap(t.pages.p, t.pages.n_bytes);
	cleanup_close(&t.pages.fd);
	*ret_result = (struct vk_probe_result){.is_ok = !r, .is_sure = !r || t.is_sure};
	if (r)
		snprintf(ret_result->reason, sizeof(ret_result->reason), "%.*s",
			VK_PROBE_REASON_BYTES - 1, *t.e.text ? t.e.text : "no reason given");
}
