/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/uring.h"

#include <errno.h>
#include <limits.h>
#include <liburing.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "weightd/pread-pool.h"

enum {
	/* Reads of cached files copy: as many at a time as there are CPUs (16 threads reach 84 GB/s
	 * on 16 CPUs), beyond 16 the memory has no more. Reads of a disk wait: it wants some in
	 * flight where CPUs are few. */
	URING_MIN_THREADS = 8,
	URING_MAX_THREADS = 16,
};

/* Of an entry that is nobody's, in place of a slot. */
#define URING_NOBODY UINT64_MAX

/* What is under way for a read, one after the other; only fresh ones have the outer two. */
enum uring_stage { URING_POPULATE, URING_READ, URING_UNMAP };

struct uring_slot {
	bool is_used;
	enum uring_stage stage;
	int fd;
	uint8_t *data; /* where the rest goes */
	uint64_t n_left;
	uint64_t offset;
	uint64_t tag;
	void *pages; /* around data; NULL where they are there */
	uint64_t n_pages_bytes;
	struct pread_pool_read read; /* without a ring */
};

struct uring {
	int refusal;
	struct io_uring ring;    /* initialised where refusal is 0 */
	struct pread_pool *pool; /* elsewhere */
	uint32_t n_in_flight;
	uint32_t depth;
	uint64_t page_bytes;
	struct uring_slot slots[URING_MAX_DEPTH];
};

static uint32_t uring_count_threads(uint32_t depth)
{
	uint32_t n = URING_MIN_THREADS;
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > (int)n)
		n = (uint32_t)CPU_COUNT(&cpus);
	if (n > URING_MAX_THREADS)
		n = URING_MAX_THREADS;
	return n < depth ? n : depth;
}

int uring_new(uint32_t depth, bool use_pread, struct uring **ret_uring)
{
	if (depth < 1 || depth > URING_MAX_DEPTH)
		return -EINVAL;
	struct uring *u = calloc(1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->depth = depth;
	u->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	u->refusal = use_pread ? -1 : -io_uring_queue_init(depth, &u->ring, 0);
	if (u->refusal) {
		int rc = pread_pool_new(uring_count_threads(depth), &u->pool);
		if (rc < 0) {
			free(u);
			return rc;
		}
	} else {
		/* The kernel's workers copy too; more than there are CPUs would keep this thread
		 * from one. A kernel without the call has as many as it likes. */
		unsigned max[2] = {uring_count_threads(depth), 0};
		io_uring_register_iowq_max_workers(&u->ring, max);
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

/* The ring has an entry for every slot and each is submitted at once, so one is always free, but
 * for those that could not be submitted. */
static struct io_uring_sqe *uring_get_entry(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	if (sqe)
		return sqe;
	int ignored = io_uring_submit(&u->ring);
	(void)ignored;
	return io_uring_get_sqe(&u->ring);
}

static int uring_submit(struct uring *u, struct uring_slot *slot)
{
	struct io_uring_sqe *sqe = uring_get_entry(u);
	int rc;

	if (!sqe)
		return -EAGAIN;
	if (slot->stage == URING_READ)
		io_uring_prep_read(sqe, slot->fd, slot->data, (unsigned)slot->n_left, slot->offset);
	else
		io_uring_prep_madvise(sqe, slot->pages, (off_t)slot->n_pages_bytes,
			slot->stage == URING_POPULATE ? MADV_POPULATE_WRITE : MADV_DONTNEED);
	/* Cached pages are otherwise copied by this thread, inside the submit, one read after the
	 * other; kernel workers copy them side by side. */
	io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data64(sqe, (uint64_t)(slot - u->slots));
	do
		rc = io_uring_submit(&u->ring);
	while (rc == -EINTR);
	if (rc >= 0)
		return 0;
	/* The entry stays in the queue and goes with the next one, when the slot may be another
	 * read's and the buffer gone. */
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data64(sqe, URING_NOBODY);
	return rc;
}

static void uring_set_pages(const struct uring *u, struct uring_slot *slot)
{
	uint64_t skip = (uintptr_t)slot->data % u->page_bytes;
	uint64_t n_bytes = skip + slot->n_left + u->page_bytes - 1;

	slot->pages = slot->data - skip;
	slot->n_pages_bytes = n_bytes - n_bytes % u->page_bytes;
	slot->stage = URING_POPULATE;
}

static int uring_start(struct uring *u, struct uring_slot *slot)
{
	if (u->refusal == 0)
		return uring_submit(u, slot);
	slot->read = (struct pread_pool_read){.fd = slot->fd,
		.data = slot->data,
		.n_bytes = slot->n_left,
		.offset = slot->offset,
		.pages = slot->pages,
		.n_pages_bytes = slot->n_pages_bytes};
	pread_pool_start(u->pool, &slot->read);
	return 0;
}

int uring_read(struct uring *u, const struct uring_read_params *params)
{
	struct uring_slot *slot = NULL;

	if (params->n_bytes < 1 || params->n_bytes > INT_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < u->depth && !slot; i++)
		if (!u->slots[i].is_used)
			slot = &u->slots[i];
	if (!slot)
		return -EAGAIN;
	*slot = (struct uring_slot){.stage = URING_READ,
		.fd = params->fd,
		.data = params->data,
		.n_left = params->n_bytes,
		.offset = params->offset,
		.tag = params->tag};
	if (params->is_fresh)
		uring_set_pages(u, slot);
	int rc = uring_start(u, slot);
	if (rc < 0)
		return rc;
	slot->is_used = true;
	u->n_in_flight++;
	return 0;
}

/* The next slot with news and what it returned: bytes or -errno. -EAGAIN without a slot: none. */
static int uring_next(struct uring *u, bool may_wait, struct uring_slot **ret_slot)
{
	struct io_uring_cqe *cqe;
	int rc;

	for (;;) {
		rc = may_wait ? io_uring_wait_cqe(&u->ring, &cqe)
			      : io_uring_peek_cqe(&u->ring, &cqe);
		if (rc == -EINTR)
			continue;
		if (rc < 0)
			return rc;
		if (io_uring_cqe_get_data64(cqe) != URING_NOBODY)
			break;
		io_uring_cqe_seen(&u->ring, cqe);
	}
	*ret_slot = &u->slots[io_uring_cqe_get_data64(cqe)];
	rc = cqe->res;
	io_uring_cqe_seen(&u->ring, cqe);
	return rc;
}

enum { URING_GOES_ON = 1 };

/* What a stage returned moves the slot on; 0 and -errno: it is over. */
static int uring_advance(struct uring_slot *slot, int result)
{
	if (slot->stage == URING_UNMAP)
		return 0; /* pages that stay in the mapping do no harm */
	if (slot->stage == URING_POPULATE) {
		/* One that could not be made is heard of as EFAULT by the read. */
		slot->stage = URING_READ;
		return URING_GOES_ON;
	}
	if (result == 0)
		return -ENODATA;
	if (result < 0)
		return result == -EINTR || result == -EAGAIN ? URING_GOES_ON : result;
	slot->data += result;
	slot->offset += (uint64_t)result;
	slot->n_left -= (uint64_t)result;
	if (slot->n_left > 0) /* short: the rest of it */
		return URING_GOES_ON;
	slot->stage = URING_UNMAP;
	return slot->pages ? URING_GOES_ON : 0;
}

/* Until one is over: its slot and outcome. -EAGAIN without a slot: none is. */
static int uring_take_ring(struct uring *u, bool may_wait, struct uring_slot **ret_slot)
{
	for (;;) {
		struct uring_slot *slot = NULL;
		int rc = uring_next(u, may_wait, &slot);

		if (!slot)
			return rc;
		rc = uring_advance(slot, rc);
		if (rc == URING_GOES_ON) {
			rc = uring_submit(u, slot);
			if (rc == 0)
				continue;
		}
		slot->is_used = false;
		*ret_slot = slot;
		return rc;
	}
}

static int uring_take_pool(struct uring *u, bool may_wait, struct uring_slot **ret_slot)
{
	struct pread_pool_read *r = pread_pool_take(u->pool, may_wait);

	if (!r)
		return -EAGAIN;
	*ret_slot = (struct uring_slot *)((uint8_t *)r - offsetof(struct uring_slot, read));
	(*ret_slot)->is_used = false;
	return r->code;
}

static int uring_take(struct uring *u, bool may_wait, uint64_t *ret_tag)
{
	struct uring_slot *slot = NULL;

	if (u->n_in_flight == 0)
		return -EINVAL;
	int rc = u->refusal ? uring_take_pool(u, may_wait, &slot)
			    : uring_take_ring(u, may_wait, &slot);
	if (!slot)
		return rc;
	u->n_in_flight--;
	*ret_tag = slot->tag;
	return rc == -EFAULT && slot->pages ? -ENOMEM : rc;
}

int uring_wait(struct uring *u, uint64_t *ret_tag)
{
	return uring_take(u, true, ret_tag);
}

int uring_poll(struct uring *u, uint64_t *ret_tag)
{
	return uring_take(u, false, ret_tag);
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
			if (uring_next(u, true, &slot) < 0 && !slot)
				break;
			u->n_in_flight--;
		}
		io_uring_queue_exit(&u->ring);
	}
	pread_pool_free(u->pool);
	free(u);
	return NULL;
}
