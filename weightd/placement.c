/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/placement.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/choice.h"
#include "weightd/gguf.h"

enum {
	/* Bytes of no tensor that a window takes along rather than end there: what is imported is
	 * pinned whole. */
	PLACEMENT_GAP_BYTES = 64 << 10,
	/* The memfd ends at a page of every size that devices ask for. */
	PLACEMENT_MAX_PAGE_BYTES = 64 << 10,
};

/* The allocation that tensors of one kind go into, while it takes them. */
struct placement_pack {
	struct placement *p;
	const struct gguf *g;
	const struct placement_limits *limits;
	uint32_t placement; /* enum manifest_placement */
	enum placement_home home;
	bool is_open; /* the last allocation is of this kind */
	uint64_t end; /* windows: where its last tensor ends in the memfd or file */
};

static int placement_compare(const void *a, const void *b, void *userdata)
{
	const struct gguf_tensor *tensors = userdata;
	const struct gguf_tensor *ta = &tensors[*(const uint32_t *)a];
	const struct gguf_tensor *tb = &tensors[*(const uint32_t *)b];

	if (ta->offset != tb->offset)
		return ta->offset < tb->offset ? -1 : 1;
	return 0;
}

static int placement_open_alloc(struct placement_pack *k, uint64_t offset, struct err *ret_err)
{
	struct placement *p = k->p;

	if (p->n_allocs >= PLACEMENT_MAX_ALLOCS)
		return err_set(ret_err, E2BIG,
			"allocations: expected at most %d, found more with at most %llu bytes each",
			PLACEMENT_MAX_ALLOCS, (unsigned long long)k->limits->max_alloc_bytes);
	p->allocs[p->n_allocs] = (struct manifest_alloc){.placement = k->placement};
	p->homes[p->n_allocs++] = (struct placement_alloc){.home = k->home, .offset = offset};
	k->is_open = true;
	return 0;
}

/* Memory of the device: tensors side by side. */
static int placement_pack_memory(struct placement_pack *k, uint32_t index, struct err *ret_err)
{
	struct placement *p = k->p;
	uint64_t n_bytes;
	int rc = 0;

	/* What does not fit at all was not chosen for it. */
	if (!bytes_align(k->g->tensors[index].n_bytes, PLACEMENT_ALIGN, &n_bytes))
		return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	if (!k->is_open ||
		n_bytes > k->limits->max_alloc_bytes - p->allocs[p->n_allocs - 1].n_bytes)
		rc = placement_open_alloc(k, 0, ret_err);
	if (rc < 0)
		return rc;
	struct manifest_alloc *a = &p->allocs[p->n_allocs - 1];
	p->tensor_alloc[index] = p->n_allocs - 1;
	p->tensor_offset[index] = a->n_bytes;
	a->n_bytes += n_bytes;
	p->homes[p->n_allocs - 1].n_bytes = a->n_bytes;
	return 0;
}

/* A window of a file: tensors lie where they lie, windows end where the next would be too far. */
static int placement_pack_window(struct placement_pack *k, uint32_t index, struct err *ret_err)
{
	struct placement *p = k->p;
	const struct gguf_tensor *t = &k->g->tensors[index];
	bool is_memfd = k->home == PLACEMENT_MEMFD;
	/* What nobody imports ends with the file's last page, whatever devices ask for. */
	uint64_t page = k->placement == MANIFEST_PLACEMENT_PAGED ? k->limits->host_page_bytes
								 : k->limits->page_bytes;
	uint64_t begin = is_memfd ? p->memfd_offset[index] : t->offset;
	uint64_t end, page_end;
	int rc = 0;

	if (__builtin_add_overflow(begin, t->n_bytes, &end) ||
		(is_memfd && !bytes_align(end, PLACEMENT_ALIGN, &end)) ||
		!bytes_align(end, page, &page_end))
		return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	if (!k->is_open || begin - k->end > PLACEMENT_GAP_BYTES ||
		page_end - p->homes[p->n_allocs - 1].offset > k->limits->max_window_bytes)
		rc = placement_open_alloc(k, begin / page * page, ret_err);
	if (rc < 0)
		return rc;
	struct placement_alloc *home = &p->homes[p->n_allocs - 1];
	p->tensor_alloc[index] = p->n_allocs - 1;
	p->tensor_offset[index] = begin - home->offset;
	p->allocs[p->n_allocs - 1].n_bytes = end - home->offset;
	home->n_bytes = page_end - home->offset;
	k->end = end;
	return 0;
}

static int placement_pack(struct placement *p, const struct gguf *g,
	const struct placement_limits *limits, const struct choice *choice, struct err *ret_err)
{
	const struct {
		uint32_t placement;
		enum placement_home home;
	} kinds[] = {
		{MANIFEST_PLACEMENT_DEVICE, PLACEMENT_DEVICE_MEMORY},
		{MANIFEST_PLACEMENT_STAGED,
			limits->can_import_memfd ? PLACEMENT_MEMFD : PLACEMENT_HOST_MEMORY},
		{MANIFEST_PLACEMENT_PINNED, PLACEMENT_FILE},
		{MANIFEST_PLACEMENT_PAGED, PLACEMENT_FILE},
	};

	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++) {
		struct placement_pack pack = {.p = p,
			.g = g,
			.limits = limits,
			.placement = kinds[k].placement,
			.home = kinds[k].home};
		for (uint32_t i = 0; i < p->n_tensors; i++) {
			uint32_t index = p->order[i];
			if (choice->placement[index] != kinds[k].placement)
				continue;
			int rc = pack.home <= PLACEMENT_HOST_MEMORY
					 ? placement_pack_memory(&pack, index, ret_err)
					 : placement_pack_window(&pack, index, ret_err);
			if (rc < 0)
				return rc;
			p->n_placed_bytes[kinds[k].placement] += g->tensors[index].n_bytes;
		}
	}
	for (uint32_t i = 0; i < p->n_allocs; i++)
		p->n_bytes += p->allocs[i].n_bytes;
	return 0;
}

static void placement_cleanup(struct placement **p)
{
	placement_free(*p);
}

static int placement_init(struct placement *p, const struct gguf *g, struct err *ret_err)
{
	uint64_t at = 0;

	p->n_tensors = (uint32_t)g->n_tensors;
	p->order = calloc(p->n_tensors, sizeof(*p->order));
	p->tensor_alloc = calloc(p->n_tensors, sizeof(*p->tensor_alloc));
	p->tensor_offset = calloc(p->n_tensors, sizeof(*p->tensor_offset));
	p->memfd_offset = calloc(p->n_tensors, sizeof(*p->memfd_offset));
	p->allocs = calloc(PLACEMENT_MAX_ALLOCS, sizeof(*p->allocs));
	p->homes = calloc(PLACEMENT_MAX_ALLOCS, sizeof(*p->homes));
	if (!p->order || !p->tensor_alloc || !p->tensor_offset || !p->memfd_offset || !p->allocs ||
		!p->homes)
		return err_set(ret_err, ENOMEM, "placement: out of memory");
	for (uint32_t i = 0; i < p->n_tensors; i++)
		p->order[i] = i;
	qsort_r(p->order, p->n_tensors, sizeof(*p->order), placement_compare, g->tensors);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		p->memfd_offset[p->order[i]] = at;
		if (__builtin_add_overflow(at, g->tensors[p->order[i]].n_bytes, &at) ||
			!bytes_align(at, PLACEMENT_ALIGN, &at))
			return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	}
	if (!bytes_align(at, PLACEMENT_MAX_PAGE_BYTES, &p->memfd_bytes))
		return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	return 0;
}

int placement_move_to_memfd(struct gguf *g, struct err *ret_err)
{
	_cleanup_(placement_cleanup)
	struct placement *p = calloc(1, sizeof(*p));
	int rc = p ? placement_init(p, g, ret_err)
		   : err_set(ret_err, ENOMEM, "placement: out of memory");

	for (uint32_t i = 0; rc == 0 && i < p->n_tensors; i++)
		g->tensors[i].offset = p->memfd_offset[i];
	return rc;
}

int placement_new(const struct gguf *g, const struct placement_limits *limits,
	const struct policy *policy, struct err *ret_err, uint64_t *ret_short_bytes,
	struct placement **ret_placement)
{
	_cleanup_(placement_cleanup)
	struct placement *p = calloc(1, sizeof(*p));
	struct choice choice = {0};

	if (g->n_tensors < 1 || g->n_tensors > UINT32_MAX)
		return err_set(ret_err, EINVAL, "tensors: expected 1 to %u, found %llu", UINT32_MAX,
			(unsigned long long)g->n_tensors);
	if (!p)
		return err_set(ret_err, ENOMEM, "placement: out of memory");
	int rc = placement_init(p, g, ret_err);
	if (rc == 0)
		rc = choice_init(g, p->order, limits, policy, ret_err, &choice);
	if (rc == CHOICE_SHORT) {
		if (ret_short_bytes)
			*ret_short_bytes = choice.n_short_bytes;
		return PLACEMENT_SHORT;
	}
	if (rc == 0)
		rc = placement_pack(p, g, limits, &choice, ret_err);
	p->n_unmet_bytes = choice.n_unmet_bytes;
	choice_fini(&choice);
	if (rc)
		return rc;
	*ret_placement = TAKE_PTR(p);
	return 0;
}

struct placement *placement_free(struct placement *p)
{
	if (p) {
		free(p->allocs);
		free(p->homes);
		free(p->order);
		free(p->tensor_alloc);
		free(p->tensor_offset);
		free(p->memfd_offset);
		free(p);
	}
	return NULL;
}
