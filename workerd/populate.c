/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include "workerd/crew.h"

/* A thread costs some 50 us, which is what it does with this much. */
enum { MIN_PART_BYTES = 16 << 20 };

struct pages {
	uint8_t *at;
	uint64_t n_bytes;
	uint64_t n_part_bytes;
};

static int run(uint32_t i, void *userdata)
{
	const struct pages *p = userdata;
	uint64_t begin = i * p->n_part_bytes;
	uint64_t n = p->n_bytes - begin < p->n_part_bytes ? p->n_bytes - begin : p->n_part_bytes;

	/* Old kernels have no such advice, and a file may have been cut: the import will say so. */
	(void)madvise(p->at + begin, n, MADV_POPULATE_READ);
	return 0;
}

void populate_pages(void *pages, uint64_t n_bytes, uint32_t n_threads)
{
	struct pages p = {.at = pages, .n_bytes = n_bytes};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t n_parts = n_bytes / MIN_PART_BYTES + 1;

	if (n_parts > n_threads)
		n_parts = n_threads;
	if (n_parts == 0)
		n_parts = 1;
	p.n_part_bytes = (n_bytes / n_parts + page) / page * page;
	crew_run((uint32_t)((n_bytes + p.n_part_bytes - 1) / p.n_part_bytes), n_threads, run, &p);
}
