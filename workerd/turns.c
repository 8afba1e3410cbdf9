/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/turns.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/slice.h"
#include "vk/submit.h"
#include "workerd/graph.h"
#include "workerd/ops/rope-kv.h"
#include "workerd/weights.h"

static int copy_back(struct vk_device *d, const struct vk_slice *room, const struct vk_slice *from,
	struct err *ret_err)
{
	struct vk_command *c = NULL;
	uint64_t ticket = 0;

	int r = vk_command_new(d, 0, ret_err, &c);
	if (r)
		return r;
	vk_command_begin(c);
	vk_command_copy(c, room, from);
	vk_command_host_barrier(c);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(d, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(d, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

static int read_factors(struct vk_device *d, const struct weights *w,
	const struct weights_tensor *t, const struct vk_slice *room, const void *map,
	struct err *ret_err, float *ret_factors)
{
	const struct weights_alloc *a = &w->allocs[t->alloc];
	const struct vk_slice from = {
		.memory = a->memory, .offset = a->base + t->offset, .n_bytes = t->n_bytes};
	const struct vk_slice to = {
		.memory = room->memory, .offset = room->offset, .n_bytes = t->n_bytes};
	int r;

	if (a->placement == MANIFEST_PLACEMENT_PAGED)
		r = weights_read(a, t->offset, t->n_bytes, ret_factors, ret_err);
	else if (!(r = copy_back(d, &to, &from, ret_err)))
		memcpy(ret_factors, map, t->n_bytes);
	if (r)
		return r;
	for (uint64_t i = 0; i < t->ne[0]; i++)
		if (!isfinite(ret_factors[i]) || ret_factors[i] <= 0.0f)
			return err_set(ret_err, EINVAL,
				"rope_freqs.weight: number %" PRIu64
				": expected one above 0 and finite, found %g",
				i, (double)ret_factors[i]);
	return 0;
}

int turns_fill(struct vk_device *d, const struct weights *w, const struct graph *g,
	const struct vk_slice *room, void *map, struct err *ret_err)
{
	float factors[MANIFEST_MAX_HEAD_DIM / 2];
	bool has_factors = g->rope_factors.address != 0;
	int r = 0;

	/* Of [n_rot / 2] f32: half of the room. */
	if (has_factors)
		r = read_factors(d, w, &g->rope_factors, room, map, ret_err, factors);
	if (!r)
		op_rope_kv_fill_turns(g->rope_base, has_factors ? factors : NULL, g->n_rot, map);
	return r;
}
