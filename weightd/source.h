/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SOURCE_H
#define WEIGHTD_SOURCE_H

/*
 * What one generation has in host memory, whatever device it is for: the model file, and one memfd
 * with the tensors that are staged. It lives as long as the generation's memory on any device, and
 * as long as somebody holds a reference.
 *
 * The memfd has a place for every tensor (placement.memfd_offset) and is a file with holes: only
 * what is staged takes memory. It is writable for its importers, for drivers refuse read-only
 * pages, and sealed so that its size stays.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct source;
struct sums;
struct stat;

/* Host memory that all sources of this process hold; one for all of them, outliving them. */
struct source_account {
	atomic_uint_fast64_t n_staged_bytes;
	/* Pages of model files that workers import, and host memory that devices export. */
	atomic_uint_fast64_t n_charged_bytes;
};

/* All of it, which the policy's host budget is for. Any thread. */
static inline uint64_t source_account_sum(const struct source_account *a)
{
	return atomic_load(&a->n_staged_bytes) + atomic_load(&a->n_charged_bytes);
}

/*
 * fd is borrowed and duplicated. With pin_writable it may leave weightd for reading and writing,
 * where it was opened so; else what leaves is opened anew for reading. -errno. Any thread.
 */
int must_check source_new(int fd, bool pin_writable, struct source_account *account,
	struct err *ret_err, struct source **ret_source);

/* What an earlier weightd left of a source. Everything is borrowed and duplicated. */
struct source_remains {
	int fd; /* the model file; -1: it is not to be had, and further copies are not */
	bool pin_writable;
	uint64_t n_file_bytes; /* as they were */
	struct timespec mtime;
	int memfd;             /* -1: nothing is staged */
	const uint8_t *staged; /* a bit a tensor, lowest first; of memfd */
	uint32_t n_tensors;
};

/* The source anew; the descriptors were judged. -errno. */
int must_check source_adopt(const struct source_remains *remains, struct source_account *account,
	struct err *ret_err, struct source **ret_source);

/*
 * A source of what `from` has in its memfd, for a generation that takes its place: the memfd is its
 * file, where every tensor lies says source_get_gguf, and the sums are known already, so that a
 * load finds out what is not as it was. It has no descriptor that may leave. from gives its gguf
 * away. -ENODATA: there is no gguf, a tensor is not staged, or has no sum; -EBUSY: a load stages
 * there. Loop thread.
 */
int must_check source_recover(struct source *from, struct err *ret_err, struct source **ret_source);

/* It has been loaded from: its file goes, which costs the memory twice. Only a recovered source's.
 * Loop thread, no load of it is under way. */
void source_end_recovery(struct source *s);

struct source *source_ref(struct source *s);

/* Returns NULL, accepts NULL. The last one closes everything. Any thread. */
struct source *source_unref(struct source *s);

/* For reading the model. Borrowed. */
int source_get_fd(const struct source *s);

/* What fstat said of the file when it was opened; of one that is not to be had, size and time. */
const struct stat *source_get_identity(const struct source *s);

/* The descriptor that workers may get; -1 where none may leave. Borrowed. */
int source_get_shared_fd(const struct source *s);

/* That descriptor is for writing too. */
bool source_is_writable(const struct source *s);

/* The file is in memory (tmpfs, memfd): its pages are imported as those of a memfd are. */
bool source_is_in_memory(const struct source *s);

uint64_t source_get_bytes(const struct source *s);

/*
 * The file is the one that was opened: -ESTALE with what was expected and found, and where it is
 * not to be had any more. While its pages are imported for writing its time of change moves with
 * them, and only its size is judged. A recovered source's is not judged here, but by the sums.
 */
int must_check source_check(const struct source *s, struct err *ret_err);

/*
 * What the file said of the tensors in the memfd, for source_recover. keep: takes *g, once, and
 * leaves it alone otherwise. get: of a recovered source, where tensors lie in its file; else NULL.
 * Loader threads.
 */
void source_keep_gguf(struct source *s, struct gguf **g);
const struct gguf *source_get_gguf(const struct source *s);

/*
 * The sums of the generation's tensors, as the first load of it found them, so that what is loaded
 * later, for another device or anew, can be told apart. get: a copy, the caller's; NULL before
 * there are any. keep: copied; once. -ENOMEM. Loader threads.
 */
int must_check source_get_sums(struct source *s, struct sums **ret_sums);
int must_check source_keep_sums(struct source *s, const struct sums *sums);

/* ---- the memfd ---- */

/*
 * The memfd mapped for filling, made by the first call, and exclusive until source_end_staging:
 * other loads of the generation wait. n_bytes: of the memfd, the same at every call. Loader
 * threads.
 * Its pages are made by being written. Only the kernel may do that (weightd/uring.h, is_fresh):
 * where it has no memory for one, a write of ours would be a signal.
 */
int must_check source_begin_staging(
	struct source *s, uint64_t n_bytes, struct err *ret_err, uint8_t **ret_map);
void source_end_staging(struct source *s);

/* Is the tensor of this index there already? Set between begin and end. */
bool source_is_staged(const struct source *s, uint32_t tensor);
int must_check source_set_staged(struct source *s, uint32_t tensor, uint32_t n_tensors);

/* Which of n_tensors are there, and which are charged as pinned. Any thread. */
void source_list_host(
	struct source *s, uint32_t n_tensors, bool *ret_is_staged, bool *ret_is_pinned);

/*
 * The memfd, the copy and what is in them go. Nobody has it any more and nothing is being staged:
 * no export has a window of it. It takes a second for ten gigabytes: loader threads.
 */
void source_drop_staged(struct source *s);

/*
 * The same for all of them, a bit each, lowest first, allocated: the caller frees it. NULL with 0
 * tensors before the first staging. -ENOMEM. Any thread.
 */
int must_check source_copy_staged(struct source *s, uint8_t **ret_bits, uint32_t *ret_n_tensors);

/* -1 before the first staging. Borrowed. */
int source_get_memfd(const struct source *s);

/* ---- the copy: a second memfd, weightd/copy.h ---- */

/*
 * Copies the pages of [offset, offset + n_bytes). is_given_up: see copy_params. Errors of copy_add.
 * Loader threads.
 */
int must_check source_copy(struct source *s, uint64_t offset, uint64_t n_bytes, bool use_pread,
	const atomic_bool *is_given_up, struct err *ret_err);

/* Bytes of them that source_copy would still copy. Loader threads. */
uint64_t source_count_uncopied(struct source *s, uint64_t offset, uint64_t n_bytes);

/* After a source_copy that returned 0. Borrowed. */
int source_get_copy(const struct source *s, uint64_t *ret_inode, uint64_t *ret_dev);

/* ---- what is charged beside the memfds ---- */

/*
 * An export has host memory of its own, and tensors in the file's pages, which are charged once
 * whichever devices they are for: source_charge, then each tensor, and source_discharge when the
 * export goes; with the last one all of them are free. -ENOMEM. Any thread.
 */
int must_check source_charge(struct source *s, uint32_t n_tensors, uint64_t n_host_bytes);
void source_charge_tensor(struct source *s, uint32_t tensor, uint64_t n_bytes);
void source_discharge(struct source *s, uint64_t n_host_bytes);

/* Of tensors alone. Any thread. */
uint64_t source_get_pinned_bytes(const struct source *s);

/* Memory that the memfds take. Any thread. */
uint64_t source_get_staged_bytes(const struct source *s);

#endif
