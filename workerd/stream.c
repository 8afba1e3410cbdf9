/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/stream.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/fetch.h"
#include "workerd/graph.h"
#include "workerd/record.h"

/* One layer's copy and compute overlap only beside another's: some of them are a fair sample. */
enum { N_SAMPLE_LAYERS = 3 };

struct stream {
	struct stream_params params;
	struct record_addresses addresses; /* of the moved graph */
	struct vk_memory *tables;          /* [n_table_entries] u64; NULL: the graph has none */
	struct fetch *fetch;
	struct vk_command **commands[STREAM_MAX_BUCKETS]; /* [n_segments] each */
};

/* Where the experts are in the slots, in device memory as the graph's own tables are. */
static int upload_tables(struct stream *s, struct vk_memory *staging, struct err *ret_err)
{
	struct vk_slice dst = {.memory = s->tables, .n_bytes = vk_memory_get_bytes(s->tables)};
	struct vk_slice src = {.memory = staging, .n_bytes = dst.n_bytes};
	struct vk_command *c = NULL;
	uint64_t ticket;
	void *map;

	int r = vk_memory_map(staging, ret_err, &map);
	if (r)
		return r;
	graph_fill_tables(fetch_get_graph(s->fetch), map);
	r = vk_command_new(s->params.device, 0, ret_err, &c);
	if (r)
		return r;
	vk_command_begin(c);
	vk_command_copy(c, &dst, &src);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(s->params.device, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(s->params.device, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

static int make_tables(struct stream *s, struct err *ret_err)
{
	uint32_t n = fetch_get_graph(s->fetch)->n_table_entries;
	struct vk_memory_params params = {.role = VK_MEMORY_SCRATCH,
		.n_bytes = n * sizeof(uint64_t),
		.name = "expert tables of the slots",
		.is_home_only = !s->params.may_spill};
	struct vk_memory *staging = NULL;

	if (!n)
		return 0;
	int r = vk_memory_new(s->params.device, &params, ret_err, &s->tables);
	params.role = VK_MEMORY_STAGING;
	if (!r)
		r = vk_memory_new(s->params.device, &params, ret_err, &staging);
	if (!r)
		r = upload_tables(s, staging, ret_err);
	vk_memory_free(staging);
	if (!r)
		s->addresses.expert_tables = vk_memory_get_address(s->tables);
	return r;
}

static int fill(struct stream *s, struct err *ret_err)
{
	int r = fetch_new(s->params.device, s->params.weights, s->params.graph, s->params.may_spill,
		ret_err, &s->fetch);

	if (r || !s->fetch)
		return r;
	s->addresses = *s->params.addresses;
	return make_tables(s, ret_err);
}

int stream_new(const struct stream_params *params, struct err *ret_err, struct stream **ret_stream)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return err_set(ret_err, ENOMEM, "stream: no memory");
	s->params = *params;
	int r = fill(s, ret_err);
	if (r || !s->fetch)
		s = stream_free(s);
	if (!r)
		*ret_stream = s;
	return r;
}

struct stream *stream_free(struct stream *s)
{
	if (!s)
		return NULL;
	uint32_t n_segments = s->fetch ? fetch_get_n_segments(s->fetch) : 0;
	for (uint32_t b = 0; b < STREAM_MAX_BUCKETS; b++) {
		for (uint32_t i = 0; s->commands[b] && i < n_segments; i++)
			vk_command_free(s->commands[b][i]);
		free(s->commands[b]);
	}
	vk_memory_free(s->tables);
	fetch_free(s->fetch);
	free(s);
	return NULL;
}

struct fetch *stream_get_fetch(const struct stream *s)
{
	return s->fetch;
}

uint32_t stream_get_sample_end(const struct stream *s)
{
	uint32_t n_segments = fetch_get_n_segments(s->fetch);
	uint32_t n_layers = 0, end = 0;

	for (uint32_t i = 0; i < n_segments && n_layers < N_SAMPLE_LAYERS; i++) {
		const struct fetch_segment *segment = fetch_get_segment(s->fetch, i);

		if (segment->is_head || !segment->n_bytes)
			continue;
		end = segment->end;
		n_layers++;
	}
	return end;
}

static int record_segment(struct stream *s, uint32_t bucket, uint32_t segment, struct err *ret_err)
{
	const struct fetch_segment *f = fetch_get_segment(s->fetch, segment);
	const struct record_range range = {.first = f->first, .end = f->end, .is_head = f->is_head};
	struct vk_command *c = NULL;

	int r = vk_command_new(s->params.device, 0, ret_err, &c);
	if (!r)
		r = record_graph(fetch_get_graph(s->fetch), &s->addresses, s->params.pool,
			1u << bucket, &range, ret_err, c);
	if (r) {
		vk_command_free(c);
		return r;
	}
	s->commands[bucket][segment] = c;
	return 0;
}

int stream_prepare(struct stream *s, uint32_t bucket, bool is_head, struct err *ret_err)
{
	uint32_t n_segments = fetch_get_n_segments(s->fetch);

	if (!s->commands[bucket])
		s->commands[bucket] = calloc(n_segments, sizeof(struct vk_command *));
	if (!s->commands[bucket])
		return err_set(ret_err, ENOMEM, "stream: no memory");
	for (uint32_t i = 0; i < n_segments; i++) {
		if (s->commands[bucket][i] || fetch_get_segment(s->fetch, i)->is_head != is_head)
			continue;
		int r = record_segment(s, bucket, i, ret_err);
		if (r)
			return r;
	}
	return 0;
}

static int submit_segment(struct stream *s, uint32_t bucket, uint32_t segment, struct err *ret_err,
	uint64_t *ret_ticket)
{
	uint64_t copied = 0;
	int r = fetch_begin(s->fetch, segment, ret_err, &copied);

	if (!r)
		r = vk_submit_on(s->params.device, VK_QUEUE_COMPUTE, &s->commands[bucket][segment],
			1, &copied, 1, ret_err, ret_ticket);
	if (!r)
		fetch_end(s->fetch, segment, *ret_ticket);
	return r;
}

int stream_submit(struct stream *s, uint32_t bucket, bool is_head, uint32_t end_op,
	struct err *ret_err, uint64_t *ret_ticket)
{
	uint32_t n_segments = fetch_get_n_segments(s->fetch);
	uint64_t ticket = 0;

	for (uint32_t i = 0; i < n_segments; i++) {
		const struct fetch_segment *f = fetch_get_segment(s->fetch, i);

		if (f->is_head != is_head || f->first >= end_op)
			continue;
		int r = submit_segment(s, bucket, i, ret_err, &ticket);
		if (r) {
			int waited = vk_submit_wait(s->params.device, ticket, UINT64_MAX);
			fetch_drain(s->fetch);
			return waited > 0 ? waited : r;
		}
	}
	*ret_ticket = ticket;
	return 0;
}

uint32_t stream_get_n_dispatches(const struct stream *s, uint32_t bucket, bool is_head)
{
	uint32_t n_segments = fetch_get_n_segments(s->fetch);
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_segments; i++)
		if (fetch_get_segment(s->fetch, i)->is_head == is_head)
			n += vk_command_get_n_dispatches(s->commands[bucket][i]);
	return n;
}
