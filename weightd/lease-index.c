/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/lease-index.h"

#include <errno.h>

#include "weightd/registry.h"

/* A peer's leases stay in the registry's order. */
static int lease_index_compare(const void *a, const void *b)
{
	const struct registry_lease *x = *(const struct registry_lease *const *)a;
	const struct registry_lease *y = *(const struct registry_lease *const *)b;

	if (x->peer != y->peer)
		return x->peer < y->peer ? -1 : 1;
	return (x > y) - (x < y);
}

static int lease_index_collect(
	const struct registry *r, bool is_hold, struct lease_index *ret_index)
{
	uint32_t n_all = registry_count_leases(r);
	struct lease_index index = {.leases = calloc(n_all + 1, sizeof(struct registry_lease *))};

	if (!index.leases)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_all; i++)
		if (registry_lease_at(r, i)->is_hold == is_hold)
			index.leases[index.n++] = registry_lease_at(r, i);
	qsort(index.leases, index.n, sizeof(struct registry_lease *), lease_index_compare);
	*ret_index = index;
	return 0;
}

int lease_index_init(const struct registry *r, struct lease_index *ret_index)
{
	return lease_index_collect(r, false, ret_index);
}

int lease_index_init_holds(const struct registry *r, struct lease_index *ret_index)
{
	return lease_index_collect(r, true, ret_index);
}

void lease_index_fini(struct lease_index *index)
{
	free(index->leases);
	*index = (struct lease_index){.n = 0};
}

uint32_t lease_index_find(const struct lease_index *index, uint64_t peer,
	const struct registry_lease *const **ret_leases)
{
	uint32_t low = 0, high = index->n, n = 0;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (index->leases[middle]->peer < peer)
			low = middle + 1;
		else
			high = middle;
	}
	while (low + n < index->n && index->leases[low + n]->peer == peer)
		n++;
	*ret_leases = index->leases + low;
	return n;
}
