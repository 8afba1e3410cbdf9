/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/sharing.h"

#include <stddef.h>

const struct weights_client_generation *sharing_find_generation(
	const struct weights_client_status *s, uint64_t id)
{
	for (uint32_t i = 0; i < s->n_models; i++)
		for (uint32_t k = 0; k < s->models[i].n_generations; k++)
			if (s->models[i].generations[k].id == id)
				return &s->models[i].generations[k];
	return NULL;
}

static void count_worker(const struct weights_client_status *s,
	const struct weights_client_peer *worker, struct sharing *sharing)
{
	const struct weights_client_report *report = &worker->report;

	sharing->n_workers++;
	if (worker->has_report)
		sharing->private_bytes +=
			report->kv_bytes + report->scratch_bytes + report->io_bytes;
	for (uint32_t i = 0; i < worker->n_leases; i++) {
		const struct weights_client_generation *g =
			sharing_find_generation(s, worker->leases[i].generation);

		sharing->n_leases++;
		if (g)
			sharing->separate_bytes += g->weights_bytes + g->paged_bytes;
	}
}

struct sharing sharing_count(const struct weights_client_status *s)
{
	struct sharing sharing = {0};

	for (uint32_t i = 0; i < s->n_models; i++)
		for (uint32_t k = 0; k < s->models[i].n_generations; k++)
			sharing.resident_bytes += s->models[i].generations[k].weights_bytes;
	for (uint32_t i = 0; i < s->n_peers; i++)
		if (s->peers[i].role == WEIGHTS_CLIENT_WORKER && !s->peers[i].is_gone)
			count_worker(s, &s->peers[i], &sharing);
	return sharing;
}
