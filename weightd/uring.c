/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/uring.h"

#include <errno.h>
#include <limits.h>
#include <liburing.h>
#include <stddef.h>
#include <stdlib.h>

#include "weightd/pread-pool.h"

/* From page cache 8 threads copy as fast as a ring of as many reads (50 GB/s on 16 CPUs, one 5). */
enum { URING_PREAD_THREADS = 8 };

struct uring_slot {
	bool is_used;
	int fd;
	uint8_t *data; /* where the rest goes */
	uint64_t n_left;
	uint64_t offset;
	uint64_t tag;
	struct pread_pool_read read; /* without a ring */
};

struct uring {
	int refusal;
	struct io_uring ring;    /* initialised where refusal is 0 */
	struct pread_pool *pool; /* elsewhere */
	uint32_t n_in_flight;
	uint32_t depth;
	struct uring_slot slots[URING_MAX_DEPTH];
};

int uring_new(uint32_t depth, bool use_pread, struct uring **ret_uring)
{
	if (depth < 1 || depth > URING_MAX_DEPTH)
		return -EINVAL;
	struct uring *u = calloc(1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->depth = depth;
	u->refusal = use_pread ? -1 : -io_uring_queue_init(depth, &u->ring, 0);
	if (u->refusal) {
		uint32_t n = depth < URING_PREAD_THREADS ? depth : URING_PREAD_THREADS;
		int rc = pread_pool_new(n, &u->pool);
		if (rc < 0) {
			free(u);
			return rc;
		}
	}
	*ret_uring = u;
	return 0;
}

int uring_get_refusal(const struct uring *u)
{
	return u->refusal;
}

uint32_t uring_get_n_in_flight(const struct uring *u)
{
	return u->n_in_flight;
}

/* The ring has an entry for every slot and each is submitted at once, so one is always free. */
static int uring_submit(struct uring *u, struct uring_slot *slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	int rc;

	if (!sqe)
		return -EAGAIN;
	io_uring_prep_read(sqe, slot->fd, slot->data, (unsigned)slot->n_left, slot->offset);
	/* Cached pages are otherwise copied by this thread, inside the submit, one read after the
	 * other; kernel workers copy them side by side. */
	io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data64(sqe, (uint64_t)(slot - u->slots));
	do
		rc = io_uring_submit(&u->ring);
	while (rc == -EINTR);
	return rc < 0 ? rc : 0;
}

int uring_read(struct uring *u, int fd, void *data, uint64_t n_bytes, uint64_t offset, uint64_t tag)
{
	struct uring_slot *slot = NULL;

	if (n_bytes < 1 || n_bytes > INT_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < u->depth && !slot; i++)
		if (!u->slots[i].is_used)
			slot = &u->slots[i];
	if (!slot)
		return -EAGAIN;
	*slot = (struct uring_slot){.is_used = true,
		.fd = fd,
		.data = data,
		.n_left = n_bytes,
		.offset = offset,
		.tag = tag,
		.read = {.fd = fd, .data = data, .n_bytes = n_bytes, .offset = offset}};
	if (u->refusal == 0) {
		int rc = uring_submit(u, slot);
		if (rc < 0) {
			slot->is_used = false;
			return rc;
		}
	} else {
		pread_pool_start(u->pool, &slot->read);
	}
	u->n_in_flight++;
	return 0;
}

/* The next slot with news and what its read returned: bytes or -errno. */
static int uring_next(struct uring *u, struct uring_slot **ret_slot)
{
	struct io_uring_cqe *cqe;
	int rc;

	do
		rc = io_uring_wait_cqe(&u->ring, &cqe);
	while (rc == -EINTR);
	if (rc < 0)
		return rc;
	*ret_slot = &u->slots[io_uring_cqe_get_data64(cqe)];
	rc = cqe->res;
	io_uring_cqe_seen(&u->ring, cqe);
	return rc;
}

static int uring_wait_pool(struct uring *u, uint64_t *ret_tag)
{
	struct pread_pool_read *r = pread_pool_wait(u->pool);
	struct uring_slot *slot =
		(struct uring_slot *)((uint8_t *)r - offsetof(struct uring_slot, read));

	slot->is_used = false;
	u->n_in_flight--;
	*ret_tag = slot->tag;
	return r->code;
}

int uring_wait(struct uring *u, uint64_t *ret_tag)
{
	struct uring_slot *slot = NULL;
	int rc;

	if (u->n_in_flight == 0)
		return -EINVAL;
	if (u->refusal)
		return uring_wait_pool(u, ret_tag);
	for (;;) {
		rc = uring_next(u, &slot);
		if (!slot)
			return rc;
		if (rc > 0) {
			slot->data += rc;
			slot->offset += (uint64_t)rc;
			slot->n_left -= (uint64_t)rc;
			if (slot->n_left == 0)
				break;
		} else if (rc == 0) {
			rc = -ENODATA;
			break;
		} else if (rc != -EINTR && rc != -EAGAIN) {
			break;
		}
		/* Short or interrupted: the rest of it. */
		rc = uring_submit(u, slot);
		if (rc < 0)
			break;
		slot = NULL;
	}
	slot->is_used = false;
	u->n_in_flight--;
	*ret_tag = slot->tag;
	return rc < 0 ? rc : 0;
}

struct uring *uring_free(struct uring *u)
{
	if (!u)
		return NULL;
	if (u->refusal == 0) {
		while (u->n_in_flight > 0) {
			struct uring_slot *slot = NULL;
			/* What the read gave is of no interest. Without a slot the ring is broken.
			 */
			if (uring_next(u, &slot) < 0 && !slot)
				break;
			u->n_in_flight--;
		}
		io_uring_queue_exit(&u->ring);
	}
	pread_pool_free(u->pool);
	free(u);
	return NULL;
}
