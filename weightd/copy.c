/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/staging.h"
#include "weightd/uring.h"

enum {
	/* As fills read: weightd/fill.c. */
	COPY_DEPTH = 16,
	COPY_PIECE_BYTES = 4 << 20,
	COPY_ALIGN = 64 << 10, /* the largest pages that windows have */
};

void copy_init(struct copy *c)
{
	*c = (struct copy){.fd = -1};
}

void copy_fini(struct copy *c)
{
	cleanup_close(&c->fd);
	free(c->ranges);
	copy_init(c);
}

/* ---- what is there ---- */

/* The first part of [begin, end) that is not there; false: all of it is. */
static bool copy_find_gap(
	const struct copy *c, uint64_t begin, uint64_t end, struct copy_range *ret_gap)
{
	for (uint32_t i = 0; i < c->n_ranges && begin < end; i++) {
		const struct copy_range *r = &c->ranges[i];
		if (r->end <= begin)
			continue;
		if (r->begin > begin) {
			end = r->begin < end ? r->begin : end;
			break;
		}
		begin = r->end;
	}
	if (begin >= end)
		return false;
	*ret_gap = (struct copy_range){begin, end};
	return true;
}

uint64_t copy_count_missing(const struct copy *c, uint64_t offset, uint64_t n_bytes)
{
	struct copy_range gap = {.end = offset};
	uint64_t n = 0, end;

	if (__builtin_add_overflow(offset, n_bytes, &end))
		return n_bytes;
	while (copy_find_gap(c, gap.end, end, &gap))
		n += gap.end - gap.begin;
	return n;
}

/* A gap is filled; there is room for one more range. */
static void copy_fill_gap(struct copy *c, const struct copy_range *gap)
{
	uint32_t at = 0;

	while (at < c->n_ranges && c->ranges[at].begin < gap->begin)
		at++;
	memmove(&c->ranges[at + 1], &c->ranges[at], (c->n_ranges - at) * sizeof(*gap));
	c->ranges[at] = *gap;
	c->n_ranges++;
	if (at == 0)
		at = 1;
	/* Of it and its neighbours. */
	for (int i = 0; i < 2 && at < c->n_ranges;) {
		if (c->ranges[at - 1].end < c->ranges[at].begin) {
			at++;
			i++;
			continue;
		}
		c->ranges[at - 1].end = c->ranges[at].end;
		memmove(&c->ranges[at], &c->ranges[at + 1], (c->n_ranges - at - 1) * sizeof(*gap));
		c->n_ranges--;
	}
}

/* ---- reading ---- */

static int copy_read_failed(int code, uint64_t offset, struct err *ret_err)
{
	return err_set(ret_err, -code, "file: read at %llu: %s", (unsigned long long)offset,
		code == -ENODATA ? "it ended there" : strerror(-code));
}

/* The file's bytes of [offset, offset + n_bytes) to fresh pages, several reads at a time. */
static int copy_read(const struct copy_params *params, struct uring *u, uint64_t offset,
	uint64_t n_bytes, uint8_t *to, struct err *ret_err)
{
	uint64_t at = 0, tag = offset;
	int rc = 0;

	while (rc == 0 && (at < n_bytes || uring_get_n_in_flight(u) > 0)) {
		uint64_t n = n_bytes - at < COPY_PIECE_BYTES ? n_bytes - at : COPY_PIECE_BYTES;

		if (params->is_given_up && atomic_load(params->is_given_up))
			return err_set(ret_err, ECANCELED, "the copy was given up");
		if (n > 0 && uring_get_n_in_flight(u) < COPY_DEPTH) {
			const struct uring_read_params read = {.fd = params->file,
				.data = to + at,
				.n_bytes = n,
				.offset = offset + at,
				.is_fresh = true,
				.tag = offset + at};
			rc = uring_read(u, &read);
			if (rc < 0)
				return copy_read_failed(rc, offset + at, ret_err);
			at += n;
			continue;
		}
		rc = uring_wait(u, &tag);
	}
	return rc < 0 ? copy_read_failed(rc, tag, ret_err) : 0;
}

static int copy_read_gap(const struct copy *c, const struct copy_params *params, struct uring *u,
	const struct copy_range *gap, struct err *ret_err)
{
	uint64_t n_bytes = gap->end - gap->begin;
	uint64_t n_there =
		params->n_file_bytes > gap->begin ? params->n_file_bytes - gap->begin : 0;
	void *map =
		mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, (off_t)gap->begin);

	if (map == MAP_FAILED)
		return staging_refuse(ret_err, "map");
	int rc = copy_read(
		params, u, gap->begin, n_there < n_bytes ? n_there : n_bytes, map, ret_err);
	/* Whatever came of it, the reads that are still in flight write to the mapping. */
	while (uring_get_n_in_flight(u) > 0) {
		uint64_t tag;
		int ignored = uring_wait(u, &tag);
		(void)ignored;
	}
	munmap(map, n_bytes);
	if (rc < 0) /* nobody has been told of these pages */
		(void)fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)gap->begin, (off_t)n_bytes);
	return rc;
}

static int copy_make_memfd(struct copy *c, uint64_t n_bytes, struct err *ret_err)
{
	int rc = staging_new_memfd("weightd-copy", n_bytes, ret_err, &c->fd);

	if (rc == 0 && fstat(c->fd, &c->identity) < 0) {
		rc = staging_refuse(ret_err, "look at");
		cleanup_close(&c->fd);
	}
	return rc;
}

static int copy_fill(
	struct copy *c, const struct copy_params *params, struct uring *u, struct err *ret_err)
{
	uint64_t end = params->offset + params->n_bytes;
	struct copy_range gap;
	int rc = 0;

	while (rc == 0 && copy_find_gap(c, params->offset, end, &gap)) {
		struct copy_range *ranges =
			reallocarray(c->ranges, c->n_ranges + 1, sizeof(*c->ranges));
		if (!ranges)
			return err_set(ret_err, ENOMEM, "copy of the file: out of memory");
		c->ranges = ranges;
		rc = copy_read_gap(c, params, u, &gap, ret_err);
		if (rc == 0)
			copy_fill_gap(c, &gap);
	}
	return rc;
}

int copy_add(struct copy *c, const struct copy_params *params, struct err *ret_err)
{
	uint64_t n_memfd_bytes;
	struct uring *u = NULL;
	int rc = 0;

	if (params->offset >= params->n_file_bytes ||
		!bytes_align(params->n_file_bytes, COPY_ALIGN, &n_memfd_bytes) ||
		params->n_bytes > n_memfd_bytes - params->offset)
		return err_set(ret_err, EINVAL, "copy of the file: %llu bytes at %llu",
			(unsigned long long)params->n_bytes, (unsigned long long)params->offset);
	if (c->fd < 0)
		rc = copy_make_memfd(c, n_memfd_bytes, ret_err);
	if (rc < 0)
		return rc;
	rc = uring_new(COPY_DEPTH, params->use_pread, &u);
	if (rc < 0)
		return err_set(ret_err, -rc, "reading: %s", strerror(-rc));
	rc = copy_fill(c, params, u, ret_err);
	uring_free(u);
	return rc;
}
