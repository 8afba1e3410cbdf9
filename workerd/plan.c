/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/arch.h"
#include "workerd/baton.h"
#include "workerd/cuts.h"
#include "workerd/fetch.h"
#include "workerd/gather.h"
#include "workerd/graph.h"
#include "workerd/kv.h"
#include "workerd/lane.h"
#include "workerd/mirror.h"
#include "workerd/plan-check.h"
#include "workerd/plan-internal.h"
#include "workerd/plan-layout.h"
#include "workerd/plan-sample.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/pool.h"
#include "workerd/profile.h"
#include "workerd/record.h"
#include "workerd/stream.h"
#include "workerd/tuning-file.h"
#include "workerd/turns.h"
#include "workerd/weights.h"

static int get_command(struct plan *p, struct lane *l, uint32_t bucket, bool is_head,
	struct err *ret_err, struct vk_command **ret_command)
{
	const struct lane_recorder recorder = {
		.device = p->d, .pool = p->pool, .graph = &p->graph, .addresses = &p->addresses};

	return lane_get_command(l, &recorder, bucket, is_head, ret_err, ret_command);
}

enum plan_kernels plan_choose_kernels(const struct vk_device *d)
{
	return vk_device_get_info(d)->is_software ? PLAN_KERNELS_EXACT : PLAN_KERNELS_FAST;
}

static int make_memory(struct plan *p, enum vk_memory_role role, uint64_t n_bytes,
	struct err *ret_err, struct vk_memory **ret_memory)
{
	struct vk_memory_params params = {.role = role,
		.n_bytes = n_bytes,
		.name = vk_memory_role_name(role),
		.is_home_only = role == VK_MEMORY_SCRATCH && !p->params.may_spill};

	return vk_memory_new(p->d, &params, ret_err, ret_memory);
}

/* Between io memory and scratch; done when it returns. */
static int copy_slice(
	struct plan *p, const struct vk_slice *dst, const struct vk_slice *src, struct err *ret_err)
{
	uint64_t ticket = 0;
	int r = p->copy ? 0 : vk_command_new(p->d, 0, ret_err, &p->copy);

	if (r)
		return r;
	vk_command_begin(p->copy);
	vk_command_copy(p->copy, dst, src);
	vk_command_host_barrier(p->copy);
	r = vk_command_end(p->copy, ret_err);
	if (!r)
		r = vk_submit(p->d, &p->copy, 1, ret_err, &ticket);
	if (r)
		return r;
	r = vk_submit_wait(p->d, ticket, UINT64_MAX);
	if (r)
		(void)err_set(ret_err, EIO, "copy: %s",
			r == VK_DEVICE_LOST ? "the device is lost" : strerror(-r));
	return r;
}

static void note_scratch(struct plan *p, uint64_t n_value_bytes)
{
	struct plan_scratch *s = &p->counters.scratch;

	*s = (struct plan_scratch){.n_rows = p->params.n_rows, .peak_bytes = n_value_bytes};
	s->sum_bytes = graph_sum_bytes(&p->graph, s->n_rows, &s->n_values);
	log_debug("scratch: %u values of %u rows: %" PRIu64 " bytes, %" PRIu64
		  " if each had a place of its own",
		s->n_values, s->n_rows, s->peak_bytes, s->sum_bytes);
}

/* logits: the address of lane 0's; base: where io memory is mapped. */
static void make_lanes(struct plan *p, const struct plan_layout *io, uint64_t logits,
	const struct op_attention_needs *needs, uint8_t *base)
{
	const uint64_t n_best_bytes = sizeof(struct abi_best) * ABI_BEST_N * p->params.n_logit_rows;
	const uint64_t n_logit_bytes = sizeof(float) * p->n_vocab * p->params.n_logit_rows;

	for (uint32_t i = 0; i < PLAN_LAYOUT_LANES; i++) {
		uint8_t *lane = base + i * io->n_lane_bytes;
		uint64_t best = io->best + i * n_best_bytes;

		p->lanes[i] = (struct lane){
			.index = i,
			.step = (struct plan_io *)lane,
			.want = (uint32_t *)(lane + io->want),
			.asked = (uint32_t *)(lane + io->asked),
			.rows = (struct abi_row *)(lane + io->rows),
			.spans = (uint32_t *)(lane + io->spans),
			.best = (const struct abi_best *)(base + best),
			.n_span_rows = p->params.n_rows,
			.n_tile_rows = needs->n_tile_rows,
			.best_address = vk_memory_get_address(p->io) + best,
			.logits_address = logits + i * n_logit_bytes,
		};
	}
}

/* Steps of how many rows read the spans. */
static uint32_t count_span_rows(const struct plan *p, uint32_t n_tile_rows)
{
	if (!n_tile_rows)
		return UINT32_MAX;
	return p->params.attention == OP_ATTENTION_AUTO ? OP_ATTENTION_LIST_ROWS : 1;
}

static int make_memories(struct plan *p, struct err *ret_err)
{
	struct graph *g = &p->graph;
	struct plan_layout io = {0};
	struct plan_layout_scratch scratch = {0};
	struct op_attention_needs needs;
	struct plan_constants constants;
	struct vk_slice table;
	uint64_t n_value_bytes = 0;
	void *map = NULL;

	kv_get_table(p->kv, &table);
	p->params.n_table_bytes = table.n_bytes;
	plan_layout_get_attention(g, p->d, &p->params, &needs);
	plan_layout_get_constants(g, needs.n_counter_bytes, &constants);
	graph_reserve_partials(g, (uint32_t)(needs.n_partial_bytes / 4));
	int r = graph_place(g, p->params.n_rows, ret_err, &n_value_bytes);
	if (r)
		return r;
	if (!plan_layout_get(&p->params, p->n_vocab, constants.n_bytes, &io) ||
		!plan_layout_get_scratch(&p->params, p->n_vocab, n_value_bytes, io.n_lane_bytes,
			constants.n_bytes, &scratch))
		return err_set(ret_err, EOVERFLOW, "plan: %u rows overflow", p->params.n_rows);
	if ((r = make_memory(p, VK_MEMORY_SCRATCH, scratch.n_bytes, ret_err, &p->scratch)) ||
		(r = make_memory(p, VK_MEMORY_IO, io.n_bytes, ret_err, &p->io)) ||
		(r = vk_memory_map(p->io, ret_err, &map)) ||
		(r = plan_layout_name_scratch(
			 g, p->params.n_rows, &scratch, &constants, p->scratch, ret_err)))
		return r;
	note_scratch(p, n_value_bytes);
	uint8_t *base = map;
	p->logits = (const float *)(base + io.logits);
	p->logits_at = io.logits;
	uint64_t scratch_address = vk_memory_get_address(p->scratch);
	make_lanes(p, &io, scratch_address + scratch.logits, &needs, base);
	p->addresses = (struct record_addresses){
		.scratch = scratch_address,
		.logits = p->lanes[0].logits_address,
		.best = p->lanes[0].best_address,
		.picked = scratch_address + scratch.picked,
		.parts = scratch_address + scratch.parts,
		.n_rows = scratch_address + scratch.step + offsetof(struct plan_io, n_rows),
		.n_want = scratch_address + scratch.step + offsetof(struct plan_io, n_want),
		.rows = scratch_address + scratch.step + io.rows,
		.want = scratch_address + scratch.step + io.want,
		.asked = scratch_address + scratch.step + io.asked,
		.turns = scratch_address + scratch.constants,
		.expert_tables = scratch_address + scratch.constants + constants.tables,
		.spans = needs.n_tile_rows ? scratch_address + scratch.step + io.spans : 0,
		.n_spans = p->params.n_rows,
		.attention_counters = scratch_address + scratch.constants + constants.counters,
		.attention = p->params.attention,
		.table = scratch_address + scratch.table,
		.n_slot_pages = kv_get_slot_pages(p->kv),
		.kv_type = kv_get_params(p->kv)->type,
		.is_exact = p->params.kernels == PLAN_KERNELS_EXACT,
	};
	struct mirror_params mirror = {.device = p->d,
		.pool = p->pool,
		.lane_from = {.memory = p->io, .n_bytes = io.n_lane_bytes},
		.lane_to = {.memory = p->scratch,
			.offset = scratch.step,
			.n_bytes = io.n_lane_bytes},
		.rows = io.rows,
		.spans = io.spans,
		.n_span_rows = count_span_rows(p, needs.n_tile_rows),
		.table_from = table,
		.table_to = {
			.memory = p->scratch, .offset = scratch.table, .n_bytes = table.n_bytes}};
	r = mirror_new(&mirror, ret_err, &p->mirror);
	if (r || constants.n_bytes == 0)
		return r;
	struct vk_slice turns = {
		.memory = p->io, .offset = io.constants, .n_bytes = constants.tables};
	r = turns_fill(p->d, p->weights, g, &turns, base + io.constants, ret_err);
	if (r)
		return r;
	graph_fill_tables(g, (uint64_t *)(base + io.constants + constants.tables));
	memset(base + io.constants + constants.counters, 0, needs.n_counter_bytes);
	struct vk_slice dst = {
		.memory = p->scratch, .offset = scratch.constants, .n_bytes = constants.n_bytes};
	struct vk_slice src = {
		.memory = p->io, .offset = io.constants, .n_bytes = constants.n_bytes};
	return copy_slice(p, &dst, &src, ret_err);
}

/* A `paged` embedding is read by the rows of each step. */
static int make_gather(struct plan *p, const struct weights *w, struct err *ret_err)
{
	for (uint32_t i = 0; i < p->graph.n_ops; i++) {
		struct graph_op *op = &p->graph.ops[i];

		if (op->kind != GRAPH_EMBED ||
			w->allocs[op->embed.w.alloc].placement != MANIFEST_PLACEMENT_PAGED)
			continue;
		int r = gather_new(p->d, w, &op->embed.w, p->params.n_rows, ret_err, &p->gather);
		if (r)
			return r;
		op->embed.w = *gather_get_tensor(p->gather);
		p->addresses.embed_rows = gather_get_rows_address(p->gather);
		return 0;
	}
	return 0;
}

static bool is_streamed(const struct plan *p, uint32_t bucket)
{
	return p->stream && 1u << bucket >= p->counters.stream_rows;
}

/* Records what a bucket is computed with in a lane, at its first use. */
static int prepare_in(
	struct plan *p, struct lane *l, uint32_t bucket, bool is_head, struct err *ret_err)
{
	struct vk_command *c;

	if (is_streamed(p, bucket))
		return stream_prepare(p->stream, bucket, is_head, ret_err);
	return get_command(p, l, bucket, is_head, ret_err, &c);
}

static int prepare(struct plan *p, uint32_t bucket, bool is_head, struct err *ret_err)
{
	struct lane *l = &p->lanes[0];

	l->is_spread = false;
	int r = prepare_in(p, l, bucket, is_head, ret_err);
	l->is_spread = record_may_spread(&p->addresses, p->pool);
	return r || is_head || !l->is_spread ? r : prepare_in(p, l, bucket, is_head, ret_err);
}

static int make_stream(struct plan *p, const struct weights *w, struct err *ret_err)
{
	const struct stream_params params = {
		.device = p->d,
		.weights = w,
		.graph = &p->graph,
		.pool = p->pool,
		.addresses = &p->addresses,
		.may_spill = p->params.may_spill,
	};
	int r = stream_new(&params, ret_err, &p->stream);

	p->counters.stream_rows = PLAN_NEVER_STREAM;
	if (r || !p->stream)
		return r;
	if (fetch_is_required(stream_get_fetch(p->stream)))
		p->counters.stream_rows = 1;
	else if (p->params.stream_rows)
		p->counters.stream_rows = p->params.stream_rows;
	return 0;
}

static int measure(struct plan *p, struct err *ret_err)
{
	int r = plan_sample_measure(p, ret_err);

	/* One row's commands are the slots' when it pays from the first. */
	r = r ? r : prepare(p, 0, false, ret_err);
	return r ? r : prepare(p, 0, true, ret_err);
}

/* For the plan's own graph alone: streamed steps have the experts in their slots. */
static int make_expert_cache(struct plan *p, const struct weights *w, struct err *ret_err)
{
	if (is_streamed(p, 0)) {
		if (p->params.n_expert_cache_bytes &&
			p->params.n_expert_cache_bytes != EXPERT_CACHE_AUTO)
			log_info("experts are not cached: every step copies the weights");
		return 0;
	}
	int r = expert_cache_new(p->d, w, &p->graph, p->addresses.expert_tables,
		p->params.n_expert_cache_bytes, ret_err, &p->experts);

	if (!r && p->experts)
		p->addresses.expert_caches = expert_cache_get_layers(p->experts);
	return r;
}

/* What was measured once. Exact kernels have no choice. */
static int load_tuning(struct plan *p, struct err *ret_err)
{
	if (p->params.kernels == PLAN_KERNELS_EXACT)
		return 0;
	p->tuning = tuning_new();
	if (!p->tuning)
		return err_set(ret_err, ENOMEM, "plan: no memory");
	tuning_file_load(p->d, p->tuning);
	op_pool_set_tuning(p->pool, p->tuning);
	return 0;
}

static int build(struct plan *p, const struct weights *w, struct err *ret_err)
{
	const struct arch *arch = NULL;

	int r = plan_check_model(w, p->kv, &p->params, ret_err);
	if (!r)
		r = arch_find(w, ret_err, &arch);
	p->graph.wants_staging = p->params.kernels != PLAN_KERNELS_EXACT;
	p->graph.n_decoded_bytes = op_matrix_get_decoded_bytes(vk_device_get_info(p->d));
	if (!r)
		r = arch->build(w, &p->graph, ret_err);
	if (!r)
		r = op_pool_new(p->d, ret_err, &p->pool);
	if (!r)
		r = load_tuning(p, ret_err);
	if (!r)
		r = make_memories(p, ret_err);
	if (!r)
		r = make_gather(p, w, ret_err);
	if (!r)
		r = make_stream(p, w, ret_err);
	if (!r) {
		/* The stream's own graph has been made: its experts are in device memory. */
		graph_mark_far(&p->graph, w);
		r = make_expert_cache(p, w, ret_err);
	}
	/* One row's commands say whether there are kernels for every op. */
	if (!r)
		r = prepare(p, 0, false, ret_err);
	if (!r)
		r = prepare(p, 0, true, ret_err);
	if (!r && p->stream && !p->params.stream_rows &&
		!fetch_is_required(stream_get_fetch(p->stream)))
		r = measure(p, ret_err);
	return r;
}

int plan_new(struct vk_device *d, const struct weights *w, struct kv *kv,
	const struct plan_params *params, struct err *ret_err, struct plan **ret_plan)
{
	struct plan *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(ret_err, ENOMEM, "plan: no memory");
	p->d = d;
	p->weights = w;
	p->kv = kv;
	p->params = *params;
	if (p->params.kernels == PLAN_KERNELS_AUTO)
		p->params.kernels = plan_choose_kernels(d);
	p->n_vocab = w->manifest->hparams->n_vocab;
	int r = build(p, w, ret_err);
	if (r) {
		plan_free(p);
		return r;
	}
	*ret_plan = p;
	return 0;
}

/* Until the device has done all steps, whose results stay to be taken. */
static int wait_all(struct plan *p)
{
	const struct lane *last =
		&p->lanes[(p->first + p->n_flight + PLAN_LAYOUT_LANES - 1) % PLAN_LAYOUT_LANES];

	return p->n_flight ? vk_submit_wait(p->d, last->ticket, UINT64_MAX) : 0;
}

/* None of them is under way. */
static void drop_commands(struct plan *p)
{
	for (int i = 0; i < PLAN_LAYOUT_LANES; i++)
		lane_drop_commands(&p->lanes[i]);
}

struct plan *plan_free(struct plan *p)
{
	if (!p)
		return NULL;
	/* On failure the device is lost and uses nothing any more. */
	if (wait_all(p))
		p->n_flight = 0;
	baton_rest(p->params.baton);
	drop_commands(p);
	vk_command_free(p->copy);
	mirror_free(p->mirror);
	stream_free(p->stream);
	expert_cache_free(p->experts);
	gather_free(p->gather);
	op_pool_free(p->pool);
	tuning_free(p->tuning);
	vk_memory_free(p->scratch);
	vk_memory_free(p->io);
	graph_fini(&p->graph);
	free(p);
	return NULL;
}

/* A step whose commands only a plan that has nothing else under way may use. */
static bool is_single(const struct plan *p, uint32_t n_rows)
{
	return p->gather || p->profile || is_streamed(p, lane_find_bucket(n_rows));
}

static struct vk_command *get_body(const struct lane *l, uint32_t bucket)
{
	return l->is_spread ? l->spread[bucket] : l->body[bucket];
}

/* Through the profile, behind the mirror's commands. */
static int enqueue_profiled(
	struct plan *p, struct lane *l, struct vk_command *mirror, struct err *ret_err)
{
	uint32_t body = lane_find_bucket(l->n_rows), head = lane_find_bucket(l->n_want);

	if (is_streamed(p, body) || (l->n_want && is_streamed(p, head)))
		return err_set(ret_err, ENOTSUP,
			"profile: steps of %u rows copy weights ahead of their use", l->n_rows);
	int r = vk_submit(p->d, &mirror, 1, ret_err, &l->ticket);
	return r ? r
		 : profile_submit(p->profile, get_body(l, body), l->n_want ? l->head[head] : NULL,
			   l->n_rows, l->n_want, l->is_spread, ret_err, &l->ticket);
}

/* What is streamed does not go with the rest, but behind it. */
static int enqueue(struct plan *p, struct lane *l, struct vk_command *mirror, struct err *ret_err)
{
	uint32_t body = lane_find_bucket(l->n_rows), head = lane_find_bucket(l->n_want);
	struct vk_command *commands[3] = {mirror};
	uint32_t n = 1;
	int r = 0;

	if (is_streamed(p, body)) {
		r = vk_submit(p->d, commands, n, ret_err, &l->ticket);
		n = 0;
		if (!r)
			r = stream_submit(p->stream, body, false, UINT32_MAX, ret_err, &l->ticket);
	} else {
		commands[n++] = get_body(l, body);
	}
	if (l->n_want && !is_streamed(p, head))
		commands[n++] = l->head[head];
	if (!r && n)
		r = vk_submit(p->d, commands, n, ret_err, &l->ticket);
	if (!r && l->n_want && is_streamed(p, head))
		r = stream_submit(p->stream, head, true, UINT32_MAX, ret_err, &l->ticket);
	return r;
}

/* What is in the lane. */
static int submit_lane(struct plan *p, struct lane *l, struct err *ret_err)
{
	uint32_t body = lane_find_bucket(l->n_rows), head = lane_find_bucket(l->n_want);
	struct vk_command *mirror = NULL;

	int r = prepare_in(p, l, body, false, ret_err);
	if (!r && l->n_want)
		r = prepare_in(p, l, head, true, ret_err);
	if (!r)
		r = mirror_get_command(
			p->mirror, l->index, body, kv_get_table_version(p->kv), ret_err, &mirror);
	if (r)
		return r;
	uint64_t recorded_ns = clock_now_ns();
	l->record_ns = recorded_ns - l->start_ns;
	r = p->profile ? enqueue_profiled(p, l, mirror, ret_err) : enqueue(p, l, mirror, ret_err);
	l->submit_ns = clock_now_ns() - recorded_ns;
	return r;
}

/* Those of prompts are not, nor those that wait for a bus: made beside whoever's turn it is. */
static bool is_short(const struct plan *p, uint32_t n_rows, uint32_t n_want)
{
	return n_want == n_rows &&
	       baton_is_short(p->params.baton, p->usual_ns[lane_find_bucket(n_rows)]);
}

bool plan_can_run_ahead(const struct plan *p, uint32_t n_rows)
{
	return !is_single(p, n_rows) &&
	       baton_may_go_on(p->params.baton, is_short(p, n_rows, n_rows));
}

bool plan_would_wait(const struct plan *p)
{
	return !p->n_flight && baton_would_wait(p->params.baton);
}

void plan_rest(struct plan *p)
{
	if (!p->n_flight)
		baton_rest(p->params.baton);
}

int plan_submit(struct plan *p, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want, struct err *ret_err)
{
	/* Where nothing is under way it is lane 0: the others' commands may never be needed. */
	struct lane *l = &p->lanes[p->n_flight ? (p->first + 1) % PLAN_LAYOUT_LANES : 0];
	int r = plan_check_step(p, rows, n_rows, want, n_want, ret_err);

	if (r)
		return r;
	if (p->n_flight == PLAN_LAYOUT_LANES ||
		(p->n_flight && (is_single(p, n_rows) || is_single(p, p->lanes[p->first].n_rows))))
		return err_set(ret_err, EBUSY, "step: %u are under way", p->n_flight);
	l->turn_ns = p->n_flight ? 0 : baton_begin(p->params.baton, is_short(p, n_rows, n_want));
	l->start_ns = clock_now_ns();
	l->ticket = 0;
	l->may_spread = record_may_spread(&p->addresses, p->pool);
	lane_write(l, rows, n_rows, want, n_want);
	if (p->gather)
		r = gather_fill(p->gather, l->rows, n_rows, ret_err);
	if (!r)
		r = submit_lane(p, l, ret_err);
	if (r) {
		/* What has been submitted of it is nobody's. */
		if (vk_submit_wait(p->d, l->ticket, UINT64_MAX))
			return VK_DEVICE_LOST;
		return r;
	}
	if (!p->n_flight++)
		p->first = l->index;
	return 0;
}

/*
 * Rather too short than too long: who wakes early polls, who wakes late is late. A step that was
 * done when its nap was over may have been done long before: napping for as long as the last nap
 * would find every step to take that long.
 */
static void note_usual(uint64_t *usual_ns, uint64_t ns)
{
	enum { LATE_NS = 50 * 1000 }; /* before what is usual; naps end 150 us before */

	if (*usual_ns == 0)
		*usual_ns = ns;
	else if (ns + LATE_NS < *usual_ns)
		*usual_ns = ns - ns / 4;
	else if (ns < *usual_ns)
		*usual_ns = ns;
	else
		*usual_ns += (ns - *usual_ns) / 8;
}

int plan_finish(struct plan *p, struct err *ret_err)
{
	struct lane *l = &p->lanes[p->first];

	if (!p->n_flight)
		return err_set(ret_err, EINVAL, "step: none is under way");
	p->n_flight--;
	p->first = (p->first + 1) % PLAN_LAYOUT_LANES;
	p->done = NULL;
	p->has_logits = false;
	uint64_t start_ns = clock_now_ns();
	/* Commands may have been recorded first, and kernels compiled. */
	uint64_t submitted_ns = l->start_ns + l->record_ns;
	uint64_t begin_ns = submitted_ns > p->end_ns ? submitted_ns : p->end_ns;
	uint64_t *usual_ns = &p->usual_ns[lane_find_bucket(l->n_rows)];
	/* With another step behind it the device has something to do until we look. */
	int r = p->n_flight ? vk_submit_wait(p->d, l->ticket, UINT64_MAX)
			    : vk_submit_wait_due(p->d, l->ticket, begin_ns + *usual_ns);
	uint64_t end_ns = clock_now_ns();
	p->times = (struct plan_times){.record_ns = l->record_ns,
		.submit_ns = l->submit_ns,
		.wait_ns = l->turn_ns + end_ns - start_ns};
	p->end_ns = end_ns;
	note_usual(usual_ns, end_ns - begin_ns);
	baton_end(p->params.baton, end_ns - begin_ns, p->n_flight == 0);
	if (r) {
		(void)err_set(ret_err, EIO, "step: %s",
			r == VK_DEVICE_LOST ? "the device is lost" : strerror(-r));
		return r;
	}
	if (is_streamed(p, lane_find_bucket(l->n_rows))) {
		p->counters.stream_steps++;
		p->counters.stream_ns += end_ns - l->start_ns - l->record_ns;
	}
	p->done = l;
	return p->profile ? profile_take(p->profile, l->rows, l->n_rows, l->n_want, ret_err) : 0;
}

int plan_wait(struct plan *p, struct err *ret_err)
{
	int r = wait_all(p);

	if (r)
		(void)err_set(ret_err, EIO, "step: %s",
			r == VK_DEVICE_LOST ? "the device is lost" : strerror(-r));
	return r;
}

uint32_t plan_get_n_flight(const struct plan *p)
{
	return p->n_flight;
}

int plan_step(struct plan *p, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want, struct err *ret_err, const float **ret_logits)
{
	int r = plan_submit(p, rows, n_rows, want, n_want, ret_err);

	if (!r)
		r = plan_finish(p, ret_err);
	if (r || !ret_logits)
		return r;
	*ret_logits = NULL;
	return n_want ? plan_get_logits(p, ret_err, ret_logits) : 0;
}

int plan_get_logits(struct plan *p, struct err *ret_err, const float **ret_logits)
{
	if (!p->done || p->done->n_want == 0)
		return err_set(ret_err, EINVAL, "logits: the last step has none");
	const uint64_t n_bytes = sizeof(float) * p->n_vocab * p->done->n_want;
	const struct vk_slice dst = {.memory = p->io, .offset = p->logits_at, .n_bytes = n_bytes};
	const struct vk_slice src = {.memory = p->scratch,
		.offset = p->done->logits_address - vk_memory_get_address(p->scratch),
		.n_bytes = n_bytes};
	int r = p->has_logits ? 0 : copy_slice(p, &dst, &src, ret_err);

	if (r)
		return r;
	p->has_logits = true;
	*ret_logits = p->logits;
	return 0;
}

const struct abi_best *plan_get_best(const struct plan *p)
{
	return p->done && p->done->n_want ? p->done->best : NULL;
}

uint32_t plan_get_n_dispatches(const struct plan *p)
{
	if (is_streamed(p, 0))
		return stream_get_n_dispatches(p->stream, 0, false) +
		       stream_get_n_dispatches(p->stream, 0, true);
	const struct lane *l = &p->lanes[0];
	return vk_command_get_n_dispatches(l->spread[0] ? l->spread[0] : l->body[0]) +
	       vk_command_get_n_dispatches(l->head[0]);
}

bool plan_is_software(const struct plan *p)
{
	return vk_device_get_info(p->d)->is_software;
}

uint32_t plan_get_n_vocab(const struct plan *p)
{
	return p->n_vocab;
}

void plan_get_times(const struct plan *p, struct plan_times *ret_times)
{
	*ret_times = p->times;
}

void plan_get_profile_params(struct plan *p, struct profile_params *ret_params)
{
	*ret_params = (struct profile_params){
		.device = p->d, .graph = &p->graph, .addresses = &p->addresses, .pool = p->pool};
}

void plan_set_profile(struct plan *p, struct profile *profile)
{
	p->profile = profile;
}

int plan_bench_memory(struct plan *p, struct err *ret_err,
	struct bench_memory_rate ret_rates[BENCH_MEMORY_MAX_RATES], uint32_t *ret_n)
{
	const struct bench_memory_params params = {
		.device = p->d,
		.weights = p->weights,
		.pool = p->pool,
		.fetch = p->stream ? stream_get_fetch(p->stream) : NULL,
	};

	return bench_memory_run(&params, ret_err, ret_rates, ret_n);
}

int plan_make_cuts(struct plan *p, struct err *ret_err, struct cuts **ret_cuts)
{
	const struct cuts_params params = {
		.device = p->d,
		.graph = &p->graph,
		.addresses = &p->addresses,
		.n_rows = p->params.n_rows,
		.n_logit_rows = p->params.n_logit_rows,
	};

	if (p->params.kernels == PLAN_KERNELS_EXACT)
		return err_set(ret_err, ENOTSUP,
			"tune: exact kernels have no choice (workerd --kernels fast)");
	if (p->stream)
		return err_set(ret_err, ENOTSUP, "tune: weights are outside device memory");
	return cuts_new(&params, ret_err, ret_cuts);
}

int plan_set_tuning(struct plan *p, struct tuning *t, struct err *ret_err)
{
	op_pool_set_tuning(p->pool, t);
	tuning_free(p->tuning);
	p->tuning = t;
	drop_commands(p);
	int r = prepare(p, 0, false, ret_err);
	return r ? r : prepare(p, 0, true, ret_err);
}

void plan_get_values(const struct plan *p, struct vk_slice *ret_values)
{
	*ret_values =
		(struct vk_slice){.memory = p->scratch, .n_bytes = p->counters.scratch.peak_bytes};
}

void plan_get_counters(const struct plan *p, struct plan_counters *ret_counters)
{
	*ret_counters = p->counters;
	if (p->stream) {
		const struct fetch_counters *f = fetch_get_counters(stream_get_fetch(p->stream));

		ret_counters->stream_bytes = f->copied_bytes;
		ret_counters->paged_bytes = f->paged_bytes;
	}
	if (p->gather)
		ret_counters->paged_bytes += gather_get_bytes(p->gather);
	if (p->experts)
		expert_cache_get_counters(p->experts, &ret_counters->experts);
}
