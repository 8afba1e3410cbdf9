/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/source.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "proto/util/err.h"
#include "weightd/copy.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"
#include "weightd/staging.h"
#include "weightd/sums.h"

enum { SOURCE_UNMAP_BYTES = 64 << 20 };

struct source {
	atomic_uint n_refs;
	struct source_account *account;
	int fd;
	int shared_fd;
	bool is_writable;
	bool is_in_memory;
	bool is_recovered; /* fd is another source's memfd, or -1 when all is loaded */
	struct stat identity;
	atomic_uint_fast64_t n_staged_bytes;
	atomic_uint_fast64_t n_pinned_bytes;
	pthread_mutex_t mutex; /* held between begin and end, guards what follows */
	atomic_int memfd;      /* set once; any thread reads it */
	uint64_t n_memfd_bytes;
	uint8_t *map;                 /* while staging */
	pthread_mutex_t staged_mutex; /* for a moment each, guards what follows */
	uint32_t n_tensors;
	bool *is_staged; /* [n_tensors] */
	uint32_t n_charges;
	uint32_t n_pinnable; /* rows of is_pinned */
	bool *is_pinned;     /* [n_pinnable] by tensor index: charged; while n_charges > 0 */
	/* Under the first mutex. */
	struct copy copy;
	struct sums *sums; /* NULL before a load has made them */
	struct gguf *gguf; /* NULL while nothing is staged */
};

static void source_cleanup(struct source **s)
{
	source_unref(*s);
}

/* Without descriptors. NULL without memory. */
static struct source *source_make(struct source_account *account)
{
	struct source *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	atomic_init(&s->n_refs, 1);
	s->account = account;
	s->fd = -1;
	s->shared_fd = -1;
	s->memfd = -1;
	copy_init(&s->copy);
	pthread_mutex_init(&s->mutex, NULL);
	pthread_mutex_init(&s->staged_mutex, NULL);
	return s;
}

/* The descriptor that leaves: never one for writing unless that was asked for. */
static void source_open_shared(struct source *s, bool pin_writable)
{
	char path[64];
	int mode = fcntl(s->fd, F_GETFL);

	if (mode < 0 || !S_ISREG(s->identity.st_mode))
		return;
	mode &= O_ACCMODE;
	s->is_writable = pin_writable && mode == O_RDWR;
	if (mode == O_RDONLY || s->is_writable) {
		s->shared_fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
		return;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->fd);
	s->shared_fd = open(path, O_RDONLY | O_CLOEXEC);
}

int source_new(int fd, bool pin_writable, struct source_account *account, struct err *ret_err,
	struct source **ret_source)
{
	_cleanup_(source_cleanup)
	struct source *s = source_make(account);
	struct statfs fs;

	if (!s)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (s->fd < 0 || fstat(s->fd, &s->identity) < 0)
		return err_set(ret_err, errno, "file: %s", strerror(errno));
	s->is_in_memory = fstatfs(s->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
	source_open_shared(s, pin_writable);
	*ret_source = TAKE_PTR(s);
	return 0;
}

struct source *source_ref(struct source *s)
{
	atomic_fetch_add(&s->n_refs, 1);
	return s;
}

struct source *source_unref(struct source *s)
{
	if (!s || atomic_fetch_sub(&s->n_refs, 1) > 1)
		return NULL;
	atomic_fetch_sub(&s->account->n_staged_bytes, atomic_load(&s->n_staged_bytes));
	cleanup_close(&s->fd);
	cleanup_close(&s->shared_fd);
	if (s->memfd >= 0)
		close(s->memfd);
	copy_fini(&s->copy);
	sums_free(s->sums);
	gguf_free(s->gguf);
	pthread_mutex_destroy(&s->mutex);
	pthread_mutex_destroy(&s->staged_mutex);
	free(s->is_staged);
	free(s);
	return NULL;
}

const struct stat *source_get_identity(const struct source *s)
{
	return &s->identity;
}

int source_get_fd(const struct source *s)
{
	return s->fd;
}

int source_get_shared_fd(const struct source *s)
{
	return s->shared_fd;
}

bool source_is_writable(const struct source *s)
{
	return s->is_writable;
}

bool source_is_in_memory(const struct source *s)
{
	return s->is_in_memory;
}

uint64_t source_get_bytes(const struct source *s)
{
	return S_ISREG(s->identity.st_mode) ? (uint64_t)s->identity.st_size : 0;
}

int source_check(const struct source *s, struct err *ret_err)
{
	const struct stat *a = &s->identity;
	struct stat b;

	if (s->fd < 0)
		return err_set(ret_err, ESTALE, "%s", "file: weightd does not have it any more");
	if (s->is_recovered) /* sums judge it */
		return 0;
	if (fstat(s->fd, &b) < 0)
		return err_set(ret_err, errno, "file: fstat: %s", strerror(errno));
	if (a->st_size != b.st_size)
		return err_set(ret_err, ESTALE, "file: it changed: expected %lld bytes, found %lld",
			(long long)a->st_size, (long long)b.st_size);
	if (!s->is_writable &&
		(a->st_mtim.tv_sec != b.st_mtim.tv_sec || a->st_mtim.tv_nsec != b.st_mtim.tv_nsec))
		return err_set(ret_err, ESTALE, "file: it changed: somebody wrote to it");
	return 0;
}

int source_begin_staging(struct source *s, uint64_t n_bytes, struct err *ret_err, uint8_t **ret_map)
{
	int memfd, rc = 0;

	pthread_mutex_lock(&s->mutex);
	memfd = s->memfd;
	if (memfd < 0)
		rc = staging_new_memfd("weightd-weights", n_bytes, ret_err, &memfd);
	if (rc == 0) {
		s->memfd = memfd;
		s->n_memfd_bytes = n_bytes;
		s->map = mmap(
			NULL, s->n_memfd_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->memfd, 0);
		if (s->map == MAP_FAILED)
			rc = staging_refuse(ret_err, "map");
	}
	if (rc < 0) {
		s->map = NULL;
		pthread_mutex_unlock(&s->mutex);
		return rc;
	}
	/* Larger pages make for fewer faults; where the kernel does not want that, so be it. */
	madvise(s->map, s->n_memfd_bytes, MADV_HUGEPAGE);
	*ret_map = s->map;
	return 0;
}

/* The account says what is there, whatever the load that put it there came to. */
static void source_count(struct source *s)
{
	uint64_t before = atomic_load(&s->n_staged_bytes), n_bytes = 0;
	const int memfds[] = {s->memfd, s->copy.fd};

	for (unsigned i = 0; i < ARRAY_SIZE(memfds); i++) {
		struct stat st;

		if (memfds[i] < 0)
			continue;
		if (fstat(memfds[i], &st) < 0)
			return;
		n_bytes += (uint64_t)st.st_blocks * 512;
	}
	atomic_store(&s->n_staged_bytes, n_bytes);
	atomic_fetch_add(&s->account->n_staged_bytes, n_bytes - before);
}

/* In parts: while one goes, whoever else in this process needs address space waits, 40 ms a
 * gigabyte measured on two slow CPUs. */
static void source_unmap(struct source *s)
{
	for (uint64_t at = 0; at < s->n_memfd_bytes; at += SOURCE_UNMAP_BYTES) {
		uint64_t n = s->n_memfd_bytes - at;
		munmap(s->map + at, n < SOURCE_UNMAP_BYTES ? n : SOURCE_UNMAP_BYTES);
	}
	s->map = NULL;
}

void source_end_staging(struct source *s)
{
	source_unmap(s);
	source_count(s);
	pthread_mutex_unlock(&s->mutex);
}

static int source_adopt_memfd(
	struct source *s, const struct source_remains *remains, struct err *ret_err)
{
	struct stat st;

	s->memfd = fcntl(remains->memfd, F_DUPFD_CLOEXEC, 0);
	if (s->memfd < 0 || fstat(s->memfd, &st) < 0)
		return staging_refuse(ret_err, "adopt");
	s->n_memfd_bytes = (uint64_t)st.st_size;
	for (uint32_t i = 0; i < remains->n_tensors; i++)
		if ((remains->staged[i / 8] >> i % 8 & 1) &&
			source_set_staged(s, i, remains->n_tensors) < 0)
			return err_set(ret_err, ENOMEM, "adopt: out of memory");
	source_count(s);
	return 0;
}

int source_adopt(const struct source_remains *remains, struct source_account *account,
	struct err *ret_err, struct source **ret_source)
{
	_cleanup_(source_cleanup)
	struct source *s = NULL;
	int rc = 0;

	if (remains->fd >= 0) {
		rc = source_new(remains->fd, remains->pin_writable, account, ret_err, &s);
	} else {
		s = source_make(account);
		if (!s)
			return err_set(ret_err, ENOMEM, "adopt: out of memory");
		s->identity.st_mode = S_IFREG;
		s->identity.st_size = (off_t)remains->n_file_bytes;
		s->identity.st_mtim = remains->mtime;
	}
	if (rc == 0 && remains->memfd >= 0)
		rc = source_adopt_memfd(s, remains, ret_err);
	if (rc == 0)
		*ret_source = TAKE_PTR(s);
	return rc;
}

void source_keep_gguf(struct source *s, struct gguf **g)
{
	pthread_mutex_lock(&s->mutex);
	if (!s->gguf && *g)
		s->gguf = TAKE_PTR(*g);
	pthread_mutex_unlock(&s->mutex);
}

const struct gguf *source_get_gguf(const struct source *s)
{
	return s->is_recovered ? s->gguf : NULL;
}

/* Under the mutex. */
static bool source_is_recoverable(struct source *s)
{
	bool is_whole = s->memfd >= 0 && s->gguf && s->sums && sums_is_complete(s->sums);

	pthread_mutex_lock(&s->staged_mutex);
	for (uint64_t i = 0; is_whole && i < s->gguf->n_tensors; i++)
		is_whole = source_is_staged(s, (uint32_t)i);
	pthread_mutex_unlock(&s->staged_mutex);
	return is_whole;
}

/* Under from's mutex. */
static int source_take_remains(struct source *from, struct source *s, struct err *ret_err)
{
	int rc = placement_move_to_memfd(from->gguf, ret_err);

	if (rc == 0)
		rc = sums_copy(from->sums, &s->sums);
	if (rc < 0)
		return rc;
	s->fd = fcntl(from->memfd, F_DUPFD_CLOEXEC, 0);
	if (s->fd < 0)
		return err_set(ret_err, errno, "memfd: %s", strerror(errno));
	s->gguf = TAKE_PTR(from->gguf);
	s->identity = from->identity;
	s->is_in_memory = true;
	s->is_recovered = true;
	return 0;
}

int source_recover(struct source *from, struct err *ret_err, struct source **ret_source)
{
	_cleanup_(source_cleanup)
	struct source *s = source_make(from->account);
	int rc = 0;

	if (!s)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	if (pthread_mutex_trylock(&from->mutex))
		return err_set(ret_err, EBUSY, "%s", "its memfd is being filled");
	if (source_is_recoverable(from))
		rc = source_take_remains(from, s, ret_err);
	else
		rc = err_set(ret_err, ENODATA, "%s", "host memory has no copy of all of it");
	pthread_mutex_unlock(&from->mutex);
	if (rc == 0)
		*ret_source = TAKE_PTR(s);
	return rc;
}

void source_end_recovery(struct source *s)
{
	if (s->is_recovered)
		cleanup_close(&s->fd);
}

bool source_is_staged(const struct source *s, uint32_t tensor)
{
	return tensor < s->n_tensors && s->is_staged[tensor];
}

int source_set_staged(struct source *s, uint32_t tensor, uint32_t n_tensors)
{
	int rc = 0;

	pthread_mutex_lock(&s->staged_mutex);
	if (!s->is_staged) {
		s->is_staged = calloc(n_tensors, sizeof(*s->is_staged));
		s->n_tensors = s->is_staged ? n_tensors : 0;
	}
	if (s->is_staged)
		s->is_staged[tensor] = true;
	else
		rc = -ENOMEM;
	pthread_mutex_unlock(&s->staged_mutex);
	return rc;
}

int source_copy_staged(struct source *s, uint8_t **ret_bits, uint32_t *ret_n_tensors)
{
	uint8_t *bits = NULL;

	pthread_mutex_lock(&s->staged_mutex);
	uint32_t n = s->n_tensors;
	if (n > 0)
		bits = calloc((n + 7) / 8, 1);
	for (uint32_t i = 0; i < n && bits; i++)
		bits[i / 8] |= (uint8_t)(s->is_staged[i] << i % 8);
	pthread_mutex_unlock(&s->staged_mutex);
	if (n > 0 && !bits)
		return -ENOMEM;
	*ret_bits = bits;
	*ret_n_tensors = n;
	return 0;
}

void source_list_host(
	struct source *s, uint32_t n_tensors, bool *ret_is_staged, bool *ret_is_pinned)
{
	pthread_mutex_lock(&s->staged_mutex);
	for (uint32_t i = 0; i < n_tensors; i++) {
		ret_is_staged[i] = source_is_staged(s, i);
		ret_is_pinned[i] = i < s->n_pinnable && s->is_pinned[i];
	}
	pthread_mutex_unlock(&s->staged_mutex);
}

int source_charge(struct source *s, uint32_t n_tensors, uint64_t n_host_bytes)
{
	int rc = 0;

	pthread_mutex_lock(&s->staged_mutex);
	if (!s->is_pinned)
		s->is_pinned = calloc((size_t)n_tensors + 1, sizeof(*s->is_pinned));
	if (s->is_pinned) {
		s->n_pinnable = n_tensors;
		s->n_charges++;
		atomic_fetch_add(&s->account->n_charged_bytes, n_host_bytes);
	} else {
		rc = -ENOMEM;
	}
	pthread_mutex_unlock(&s->staged_mutex);
	return rc;
}

void source_charge_tensor(struct source *s, uint32_t tensor, uint64_t n_bytes)
{
	pthread_mutex_lock(&s->staged_mutex);
	if (!s->is_pinned[tensor]) {
		s->is_pinned[tensor] = true;
		atomic_fetch_add(&s->n_pinned_bytes, n_bytes);
		atomic_fetch_add(&s->account->n_charged_bytes, n_bytes);
	}
	pthread_mutex_unlock(&s->staged_mutex);
}

void source_discharge(struct source *s, uint64_t n_host_bytes)
{
	pthread_mutex_lock(&s->staged_mutex);
	if (--s->n_charges == 0) {
		n_host_bytes += atomic_exchange(&s->n_pinned_bytes, 0);
		free(s->is_pinned);
		s->is_pinned = NULL;
		s->n_pinnable = 0;
	}
	atomic_fetch_sub(&s->account->n_charged_bytes, n_host_bytes);
	pthread_mutex_unlock(&s->staged_mutex);
}

uint64_t source_get_pinned_bytes(const struct source *s)
{
	return atomic_load(&s->n_pinned_bytes);
}

void source_drop_staged(struct source *s)
{
	pthread_mutex_lock(&s->mutex);
	atomic_fetch_sub(&s->account->n_staged_bytes, atomic_exchange(&s->n_staged_bytes, 0));
	int memfd = atomic_exchange(&s->memfd, -1);
	cleanup_close(&memfd);
	copy_fini(&s->copy);
	s->gguf = gguf_free(s->gguf);
	pthread_mutex_lock(&s->staged_mutex);
	free(s->is_staged);
	s->is_staged = NULL;
	s->n_tensors = 0;
	pthread_mutex_unlock(&s->staged_mutex);
	pthread_mutex_unlock(&s->mutex);
}

int source_get_memfd(const struct source *s)
{
	return s->memfd;
}

uint64_t source_get_staged_bytes(const struct source *s)
{
	return atomic_load(&s->n_staged_bytes);
}

int source_copy(struct source *s, uint64_t offset, uint64_t n_bytes, bool use_pread,
	const atomic_bool *is_given_up, struct err *ret_err)
{
	const struct copy_params params = {.file = s->fd,
		.n_file_bytes = source_get_bytes(s),
		.offset = offset,
		.n_bytes = n_bytes,
		.use_pread = use_pread,
		.is_given_up = is_given_up};

	pthread_mutex_lock(&s->mutex);
	int rc = copy_add(&s->copy, &params, ret_err);
	source_count(s);
	pthread_mutex_unlock(&s->mutex);
	return rc;
}

uint64_t source_count_uncopied(struct source *s, uint64_t offset, uint64_t n_bytes)
{
	pthread_mutex_lock(&s->mutex);
	uint64_t n = copy_count_missing(&s->copy, offset, n_bytes);
	pthread_mutex_unlock(&s->mutex);
	return n;
}

int source_get_copy(const struct source *s, uint64_t *ret_inode, uint64_t *ret_dev)
{
	*ret_inode = s->copy.identity.st_ino;
	*ret_dev = s->copy.identity.st_dev;
	return s->copy.fd;
}

int source_get_sums(struct source *s, struct sums **ret_sums)
{
	struct sums *sums = NULL;
	int rc = 0;

	pthread_mutex_lock(&s->mutex);
	if (s->sums)
		rc = sums_copy(s->sums, &sums);
	pthread_mutex_unlock(&s->mutex);
	if (rc == 0)
		*ret_sums = sums;
	return rc;
}

int source_keep_sums(struct source *s, const struct sums *sums)
{
	int rc = 0;

	pthread_mutex_lock(&s->mutex);
	if (!s->sums)
		rc = sums_copy(sums, &s->sums);
	pthread_mutex_unlock(&s->mutex);
	return rc;
}
