/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/placement.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"

static int placement_compare(const void *a, const void *b, void *userdata)
{
	const struct gguf_tensor *tensors = userdata;
	const struct gguf_tensor *ta = &tensors[*(const uint32_t *)a];
	const struct gguf_tensor *tb = &tensors[*(const uint32_t *)b];

	if (ta->offset != tb->offset)
		return ta->offset < tb->offset ? -1 : 1;
	return 0;
}

static int placement_add_alloc(
	struct placement *p, const struct placement_limits *limits, struct err *ret_err)
{
	if (p->n_allocs >= PLACEMENT_MAX_ALLOCS)
		return err_set(ret_err, E2BIG,
			"allocations: expected at most %d, found more with at most %llu bytes each",
			PLACEMENT_MAX_ALLOCS, (unsigned long long)limits->max_alloc_bytes);
	struct manifest_alloc *allocs = reallocarray(p->allocs, p->n_allocs + 1, sizeof(*allocs));
	if (!allocs)
		return err_set(ret_err, ENOMEM, "placement: out of memory");
	p->allocs = allocs;
	p->allocs[p->n_allocs++] = (struct manifest_alloc){.placement = MANIFEST_PLACEMENT_DEVICE};
	return 0;
}

static int placement_add_tensor(struct placement *p, uint32_t index, const struct gguf_tensor *t,
	const struct placement_limits *limits, struct err *ret_err)
{
	uint64_t n_bytes;

	if (!bytes_align(t->n_bytes, PLACEMENT_ALIGN, &n_bytes) ||
		n_bytes > limits->max_alloc_bytes)
		return err_set(ret_err, E2BIG,
			"tensor %.*s: needs %llu bytes in one piece, %s allocates at most %llu",
			(int)(t->name.n_bytes < 128 ? t->name.n_bytes : 128), t->name.data,
			(unsigned long long)t->n_bytes, limits->device,
			(unsigned long long)limits->max_alloc_bytes);
	if (p->n_allocs == 0 ||
		n_bytes > limits->max_alloc_bytes - p->allocs[p->n_allocs - 1].n_bytes) {
		int rc = placement_add_alloc(p, limits, ret_err);
		if (rc < 0)
			return rc;
	}
	struct manifest_alloc *a = &p->allocs[p->n_allocs - 1];
	p->tensor_alloc[index] = p->n_allocs - 1;
	p->tensor_offset[index] = a->n_bytes;
	a->n_bytes += n_bytes;
	if (__builtin_add_overflow(p->n_bytes, n_bytes, &p->n_bytes))
		return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	return 0;
}

static void placement_cleanup(struct placement **p)
{
	placement_free(*p);
}

int placement_new(const struct gguf *g, const struct placement_limits *limits, struct err *ret_err,
	struct placement **ret_placement)
{
	_cleanup_(placement_cleanup)
	struct placement *p = calloc(1, sizeof(*p));

	if (g->n_tensors < 1 || g->n_tensors > UINT32_MAX)
		return err_set(ret_err, EINVAL, "tensors: expected 1 to %u, found %llu", UINT32_MAX,
			(unsigned long long)g->n_tensors);
	if (!p)
		return err_set(ret_err, ENOMEM, "placement: out of memory");
	p->n_tensors = (uint32_t)g->n_tensors;
	p->order = calloc(p->n_tensors, sizeof(*p->order));
	p->tensor_alloc = calloc(p->n_tensors, sizeof(*p->tensor_alloc));
	p->tensor_offset = calloc(p->n_tensors, sizeof(*p->tensor_offset));
	if (!p->order || !p->tensor_alloc || !p->tensor_offset)
		return err_set(ret_err, ENOMEM, "placement: out of memory");

	for (uint32_t i = 0; i < p->n_tensors; i++)
		p->order[i] = i;
	qsort_r(p->order, p->n_tensors, sizeof(*p->order), placement_compare, g->tensors);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		uint32_t index = p->order[i];
		int rc = placement_add_tensor(p, index, &g->tensors[index], limits, ret_err);
		if (rc < 0)
			return rc;
	}
	if (p->n_bytes > limits->free_bytes)
		return err_set(ret_err, ENOMEM, "weights: needs %llu bytes, free %llu on %s",
			(unsigned long long)p->n_bytes, (unsigned long long)limits->free_bytes,
			limits->device);
	*ret_placement = TAKE_PTR(p);
	return 0;
}

struct placement *placement_free(struct placement *p)
{
	if (p) {
		free(p->allocs);
		free(p->order);
		free(p->tensor_alloc);
		free(p->tensor_offset);
		free(p);
	}
	return NULL;
}
