/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/sum-file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "weightd/sum.h"

/* One thread reads and sums some 5 GB/s, and sums 10 of what is mapped: eight keep up with the
 * reads that filled a memfd. */
enum { SUM_FILE_MAX_THREADS = 8 };

struct sum_file {
	const struct sum_key *key;
	int fd;
	bool is_mapped; /* its pages cannot go: it is sealed against shrinking */
	const struct sum_range *pieces;
	uint32_t n;
	uint64_t *sums; /* [n] */
	atomic_uint_fast32_t next;
	atomic_int error; /* the first one, -errno; nobody goes on then */
};

static int sum_file_read(const struct sum_file *f, const struct sum_range *piece, uint8_t *data)
{
	for (uint32_t at = 0; at < piece->n_bytes;) {
		ssize_t n =
			pread(f->fd, data + at, piece->n_bytes - at, (off_t)(piece->offset + at));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		at += (uint32_t)n;
	}
	return 0;
}

/* In place, without copies. */
static int sum_file_map(const struct sum_file *f, const struct sum_range *piece, uint64_t *ret_sum)
{
	uint64_t skip = piece->offset % (uint64_t)sysconf(_SC_PAGESIZE);
	size_t n_bytes = (size_t)(skip + piece->n_bytes);
	uint8_t *map = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, f->fd,
		(off_t)(piece->offset - skip));

	if (map == MAP_FAILED)
		return -errno;
	*ret_sum = sum_piece(f->key, map + skip, piece->n_bytes);
	munmap(map, n_bytes);
	return 0;
}

static void *sum_file_work(void *userdata)
{
	struct sum_file *f = userdata;
	_cleanup_(cleanup_free)
	uint8_t *data = malloc(SUM_PIECE_BYTES);
	int rc = data ? 0 : -ENOMEM;

	while (rc == 0 && atomic_load(&f->error) == 0) {
		uint32_t i = (uint32_t)atomic_fetch_add(&f->next, 1);
		if (i >= f->n)
			return NULL;
		if (f->is_mapped) {
			rc = sum_file_map(f, &f->pieces[i], &f->sums[i]);
			continue;
		}
		rc = sum_file_read(f, &f->pieces[i], data);
		if (rc == 0)
			f->sums[i] = sum_piece(f->key, data, f->pieces[i].n_bytes);
	}
	int none = 0;
	if (rc < 0)
		atomic_compare_exchange_strong(&f->error, &none, rc);
	return NULL;
}

/* Threads beside the caller's; fewer are no error. Signals are the loop thread's. */
static uint32_t sum_file_start(struct sum_file *f, pthread_t threads[SUM_FILE_MAX_THREADS])
{
	long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t n = 0;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (n + 1 < SUM_FILE_MAX_THREADS && n + 1 < f->n && n + 1 < n_cpus &&
		pthread_create(&threads[n], NULL, sum_file_work, f) == 0)
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return n;
}

int sum_file_run(const struct sum_key *key, int fd, const struct sum_range *pieces, uint32_t n,
	struct err *ret_err, uint64_t *ret_sums)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct sum_file f = {.key = key,
		.fd = fd,
		.is_mapped = seals >= 0 && (seals & F_SEAL_SHRINK),
		.pieces = pieces,
		.n = n,
		.sums = ret_sums};
	pthread_t threads[SUM_FILE_MAX_THREADS];
	uint32_t n_threads = sum_file_start(&f, threads);

	sum_file_work(&f);
	for (uint32_t i = 0; i < n_threads; i++)
		pthread_join(threads[i], NULL);
	int rc = atomic_load(&f.error);
	if (rc == -ENODATA)
		return err_set(ret_err, ENODATA, "%s", "checksums: the file ends before a tensor");
	if (rc < 0)
		return err_set(ret_err, -rc, "checksums: read: %s", strerror(-rc));
	return 0;
}
