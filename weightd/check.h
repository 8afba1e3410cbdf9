/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_CHECK_H
#define WEIGHTD_CHECK_H

/*
 * The sums of one export: made when it has been filled, made anew and compared as often as one
 * likes. The loader thread of its device; what the loop thread may read says so.
 *
 * Memory is summed by the device it is on, windows of files and memfds by CPU threads. Tensors that
 * lie in the model file itself get their sums in the first pass that reads files, not at the load:
 * a load does not read them. Until then they have none, and the generation no identity. A scrub
 * leaves a file alone that nobody can write to through us: weightd/service watches it, and reading
 * it again and again would cost the disk's time and the page cache. What was copied of it
 * (weightd/copy.h) is compared with what the file's own bytes came to, as soon as that is known.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/identity.h"

enum check_scope {
	CHECK_ALL,      /* every tensor */
	CHECK_WRITABLE, /* but those in a file that was not handed out for writing; its copy is */
	CHECK_MEMORY,   /* but those in the file */
};

struct check;
struct checksum;
struct err;
struct export;
struct sum_key;
struct sums;

enum { CHECK_MAX_DIFFERENCES = 64, CHECK_NAME_BYTES = 68 };

struct check_difference {
	char tensor[CHECK_NAME_BYTES]; /* its name, printable */
	uint32_t alloc;
	uint64_t offset;  /* of the first piece that differs, from the tensor's start */
	uint64_t n_bytes; /* of the pieces that differ */
};

struct check_report {
	uint64_t n_bytes; /* that were summed */
	uint64_t elapsed_ns;
	uint32_t n_tensors; /* that differ */
	uint64_t n_differing_bytes;
	bool is_in_file; /* one of them lies in the model file itself */
	uint32_t n_differences;
	struct check_difference differences[CHECK_MAX_DIFFERENCES]; /* the first of them */
};

/* Borrowed for a call. */
struct check_means {
	const struct sum_key *key;
	struct checksum *checksum; /* of the export's device; NULL where it has no memory on one */
	const atomic_bool *is_given_up; /* NULL: it is not */
};

/* Where a pass through all tensors is; zero is before the first. */
struct check_pass {
	enum check_scope scope;
	uint32_t next;
	uint64_t piece; /* of the tensor `next` */
	uint64_t start_ns;
	bool has_difference;
	uint32_t last_difference; /* tensor */
};

/*
 * manifest_fd is borrowed; description as identity_describe gave it. sums: those that are known
 * already, in the manifest's order, taken on success; NULL: none. -EINVAL: they are another
 * model's; errors of manifest_open.
 */
int must_check check_new(int manifest_fd, const uint8_t description[IDENTITY_BYTES],
	struct sums *sums, struct err *ret_err, struct check **ret_check);

/* Accepts NULL; returns NULL. */
struct check *check_free(struct check *c);

/* Borrowed. Loader thread, or any while no loader works on the export. */
const struct sums *check_get_sums(const struct check *c);

/* As it was given, IDENTITY_BYTES; constant, any thread. */
const uint8_t *check_get_description(const struct check *c);

/* Bytes of all tensors; constant, any thread. */
uint64_t check_get_bytes(const struct check *c);

/* Of the tensors that a pass of the scope looks at. Loader thread. */
uint64_t check_count_bytes(const struct check *c, const struct export *e, enum check_scope scope);

/* A condition of check_step and check_run: the device was lost. */
enum { CHECK_DEVICE_LOST = 1 };

/*
 * Sums at most max_pieces pieces (at most CHECKSUM_MAX_PIECES) of one allocation, from where the
 * pass is; adds to the report. At the end of a pass that looked at all that others can write to,
 * and in which nothing differed, check_get_clean_ns becomes the pass's start. -ENODEV: memory whose
 * device is gone; -ECANCELED; -ENOMEM; errors of sum_file_run and checksum_run.
 */
int must_check check_step(struct check *c, const struct export *e, const struct check_means *means,
	uint32_t max_pieces, struct check_pass *pass, struct err *ret_err,
	struct check_report *report);

/* Nothing is left for the pass; it may begin again from zero. */
bool check_is_over(const struct check *c, const struct check_pass *pass);

/* A whole pass. *ret_report is written on failure too. Errors of check_step. */
int must_check check_run(struct check *c, const struct export *e, const struct check_means *means,
	enum check_scope scope, struct err *ret_err, struct check_report *ret_report);

/* See check_step; 0: not yet. Any thread. */
uint64_t check_get_clean_ns(const struct check *c);

/* False while it is not known. Any thread. */
bool check_get_identity(const struct check *c, uint8_t ret_identity[IDENTITY_BYTES]);

#endif
