/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/fetch.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/fetch-ring.h"
#include "workerd/graph.h"
#include "workerd/weights.h"

enum { N_SLOTS = 2 };

/* Of places in a slot; an offset's rest is kept, because kernels are chosen by it. */
enum { ALIGN = 256 };

/* What lies between two tensors of a layer is copied with them when it is less than a copy costs.
 */
enum { MAX_GAP_BYTES = 64 << 10 };

/* A part of an allocation and its place in the slot. */
struct copy {
	uint32_t alloc;
	uint64_t offset;
	uint64_t n_bytes;
	uint64_t at;
};

/* A tensor of the moved graph that lies in a slot. */
struct move {
	struct weights_tensor *tensor;
	uint32_t slot;
	uint64_t at;
};

/* What of a paged allocation goes through one place of the ring. */
struct piece {
	uint32_t alloc;
	uint64_t offset;
	uint64_t n_bytes;
	struct vk_command *command;
};

struct segment {
	struct fetch_segment public;
	uint32_t slot;
	uint32_t first_copy;
	uint32_t end_copy;
	uint32_t first_piece;
	uint32_t end_piece;
	struct vk_command *command; /* of all copies that need no ring; NULL: none */
	uint64_t n_copied_bytes;    /* by it */
};

struct fetch {
	struct vk_device *d;
	const struct weights *w;
	struct graph moved; /* ops are its own, the rest is the graph's */
	uint32_t n_segments;
	struct segment *segments; /* [n_ops] */
	uint32_t n_copies;
	struct copy *copies; /* [n_ops * GRAPH_MAX_OP_TENSORS] */
	uint32_t n_moves;
	struct move *moves; /* [n_ops * GRAPH_MAX_OP_TENSORS] */
	uint32_t n_pieces;
	struct piece *pieces;
	bool may_spill;
	bool is_required;
	uint64_t n_slot_bytes;
	struct vk_memory *slots[N_SLOTS];
	uint64_t busy[N_SLOTS]; /* the compute ticket that frees it */
	struct fetch_ring *ring;
	uint64_t places[FETCH_RING_N_PLACES]; /* the transfer ticket that frees it */
	uint64_t last;                        /* transfer ticket */
	struct fetch_counters counters;
};

static bool is_on_host(const struct fetch *f, const struct weights_tensor *t)
{
	return f->w->allocs[t->alloc].placement != MANIFEST_PLACEMENT_DEVICE;
}

static bool is_paged(const struct fetch *f, uint32_t alloc)
{
	return f->w->allocs[alloc].placement == MANIFEST_PLACEMENT_PAGED;
}

/* Of an embedding only the rows of the step are read, so it is never copied. */
static uint32_t get_moving(const struct fetch *f, struct graph_op *op,
	struct weights_tensor *ret_tensors[GRAPH_MAX_OP_TENSORS])
{
	struct weights_tensor *tensors[GRAPH_MAX_OP_TENSORS];
	uint32_t n_tensors = graph_op_get_tensors(op, tensors);
	uint32_t n = 0;

	for (uint32_t i = 0; op->kind != GRAPH_EMBED && i < n_tensors; i++)
		if (is_on_host(f, tensors[i]))
			ret_tensors[n++] = tensors[i];
	return n;
}

/* The layer of an op without weights is that of the op before it. */
static uint32_t find_layer(struct graph_op *op, uint32_t before)
{
	struct weights_tensor *tensors[GRAPH_MAX_OP_TENSORS];
	uint32_t n = graph_op_get_tensors(op, tensors);

	return n ? tensors[0]->layer : before;
}

/* The ops from first on that are of one layer; *ret_moves: some weights of theirs are copied. */
static uint32_t find_end(struct fetch *f, uint32_t first, bool *ret_moves)
{
	struct graph_op *ops = f->moved.ops;
	struct weights_tensor *tensors[GRAPH_MAX_OP_TENSORS];
	uint32_t layer = find_layer(&ops[first], WEIGHTS_NO_LAYER);
	uint32_t i = first;

	*ret_moves = false;
	for (; i < f->moved.n_ops && ops[i].is_head == ops[first].is_head; i++) {
		if (find_layer(&ops[i], layer) != layer)
			break;
		if (get_moving(f, &ops[i], tensors))
			*ret_moves = true;
	}
	return i;
}

static int compare_moves(const void *a, const void *b)
{
	const struct weights_tensor *x = ((const struct move *)a)->tensor;
	const struct weights_tensor *y = ((const struct move *)b)->tensor;

	if (x->alloc != y->alloc)
		return x->alloc < y->alloc ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Gives the tensors of the segment's ops their places in its slot: copies, as few as can be. */
static int lay_out_segment(struct fetch *f, struct segment *s, struct err *ret_err)
{
	struct weights_tensor *tensors[GRAPH_MAX_OP_TENSORS];
	struct move *moves = f->moves + f->n_moves;
	struct copy *c = NULL;
	uint64_t end = 0;
	uint32_t n = 0;

	for (uint32_t i = s->public.first; i < s->public.end; i++) {
		uint32_t n_tensors = get_moving(f, &f->moved.ops[i], tensors);
		for (uint32_t k = 0; k < n_tensors; k++)
			moves[n++] = (struct move){.tensor = tensors[k], .slot = s->slot};
	}
	qsort(moves, n, sizeof(*moves), compare_moves);
	s->first_copy = f->n_copies;
	for (uint32_t i = 0; i < n; i++) {
		const struct weights_tensor *t = moves[i].tensor;
		if (!c || c->alloc != t->alloc ||
			t->offset > c->offset + c->n_bytes + MAX_GAP_BYTES) {
			if (!bytes_align(end, ALIGN, &end))
				return err_set(ret_err, EOVERFLOW, "slot: a layer overflows");
			c = &f->copies[f->n_copies++];
			*c = (struct copy){.alloc = t->alloc,
				.offset = t->offset,
				.at = end + t->offset % ALIGN};
		}
		if (t->offset + t->n_bytes > c->offset + c->n_bytes)
			c->n_bytes = t->offset + t->n_bytes - c->offset;
		moves[i].at = c->at + (t->offset - c->offset);
		end = c->at + c->n_bytes;
	}
	s->end_copy = f->n_copies;
	f->n_moves += n;
	for (uint32_t i = s->first_copy; i < s->end_copy; i++) {
		s->public.n_bytes += f->copies[i].n_bytes;
		f->is_required |= is_paged(f, f->copies[i].alloc);
	}
	if (end > f->n_slot_bytes)
		f->n_slot_bytes = end;
	return 0;
}

static int cut(struct fetch *f, struct err *ret_err)
{
	const struct graph_op *ops = f->moved.ops;
	uint32_t n_copied = 0, end;
	bool moves;

	for (uint32_t first = 0; first < f->moved.n_ops; first = end) {
		struct segment *s = f->n_segments ? &f->segments[f->n_segments - 1] : NULL;
		bool is_head = ops[first].is_head;

		assert(!s || is_head || !s->public.is_head);
		end = find_end(f, first, &moves);
		if (s && !moves && !s->public.n_bytes && s->public.is_head == is_head) {
			s->public.end = end;
			continue;
		}
		s = &f->segments[f->n_segments++];
		*s = (struct segment){
			.public = {.first = first, .end = end, .is_head = is_head},
			.slot = n_copied % N_SLOTS,
		};
		if (!moves)
			continue;
		n_copied++;
		int r = lay_out_segment(f, s, ret_err);
		if (r)
			return r;
	}
	return 0;
}

/* Slots elsewhere than in device memory would only move the reads; where there is no other way to
 * the weights, even that. */
static int make_slots(struct fetch *f, struct err *ret_err)
{
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		const struct vk_memory_params params = {.role = VK_MEMORY_SCRATCH,
			.n_bytes = f->n_slot_bytes,
			.name = i ? "weights slot 1" : "weights slot 0",
			.is_home_only = !(f->is_required && f->may_spill)};
		int r = vk_memory_new(f->d, &params, ret_err, &f->slots[i]);

		if (r)
			return r;
	}
	for (uint32_t i = 0; i < f->n_moves; i++)
		f->moves[i].tensor->address =
			vk_memory_get_address(f->slots[f->moves[i].slot]) + f->moves[i].at;
	return 0;
}

static void get_slot_slice(const struct fetch *f, const struct segment *s, uint64_t at,
	uint64_t n_bytes, struct vk_slice *ret_slice)
{
	*ret_slice =
		(struct vk_slice){.memory = f->slots[s->slot], .offset = at, .n_bytes = n_bytes};
}

/* One command for all that the device copies by itself. */
static int record_copies(struct fetch *f, struct segment *s, struct err *ret_err)
{
	struct vk_slice dst, src;

	for (uint32_t i = s->first_copy; i < s->end_copy; i++)
		if (!is_paged(f, f->copies[i].alloc))
			s->n_copied_bytes += f->copies[i].n_bytes;
	if (!s->n_copied_bytes)
		return 0;
	int r = vk_command_new_on(f->d, VK_QUEUE_TRANSFER, 0, ret_err, &s->command);
	if (r)
		return r;
	vk_command_begin(s->command);
	for (uint32_t i = s->first_copy; i < s->end_copy; i++) {
		const struct copy *c = &f->copies[i];
		if (is_paged(f, c->alloc))
			continue;
		get_slot_slice(f, s, c->at, c->n_bytes, &dst);
		src = (struct vk_slice){.memory = f->w->allocs[c->alloc].memory,
			.offset = f->w->allocs[c->alloc].base + c->offset,
			.n_bytes = c->n_bytes};
		vk_command_copy(s->command, &dst, &src);
	}
	return vk_command_end(s->command, ret_err);
}

/* Piece i goes through place i % n, whichever step it is, so that its command stays. */
static int record_piece(struct fetch *f, const struct segment *s, const struct copy *c,
	uint64_t done, struct err *ret_err)
{
	uint64_t n_left = c->n_bytes - done;
	uint64_t n_bytes = n_left < FETCH_RING_PIECE_BYTES ? n_left : FETCH_RING_PIECE_BYTES;
	struct piece *p = &f->pieces[f->n_pieces];
	struct vk_slice dst, src;

	*p = (struct piece){.alloc = c->alloc, .offset = c->offset + done, .n_bytes = n_bytes};
	get_slot_slice(f, s, c->at + done, n_bytes, &dst);
	fetch_ring_get_slice(f->ring, f->n_pieces % FETCH_RING_N_PLACES, n_bytes, &src);
	int r = vk_command_new_on(f->d, VK_QUEUE_TRANSFER, 0, ret_err, &p->command);
	if (r)
		return r;
	f->n_pieces++;
	vk_command_begin(p->command);
	vk_command_copy(p->command, &dst, &src);
	return vk_command_end(p->command, ret_err);
}

static int record_pieces(struct fetch *f, struct err *ret_err)
{
	uint64_t n_pieces = 0;
	int r;

	for (uint32_t i = 0; i < f->n_copies; i++)
		if (is_paged(f, f->copies[i].alloc))
			n_pieces += f->copies[i].n_bytes / FETCH_RING_PIECE_BYTES + 1;
	if (!n_pieces)
		return 0;
	f->pieces = calloc(n_pieces, sizeof(*f->pieces));
	if (!f->pieces)
		return err_set(ret_err, ENOMEM, "paged weights: no memory");
	r = fetch_ring_new(f->d, ret_err, &f->ring);
	for (uint32_t i = 0; !r && i < f->n_segments; i++) {
		struct segment *s = &f->segments[i];

		s->first_piece = f->n_pieces;
		for (uint32_t k = s->first_copy; !r && k < s->end_copy; k++) {
			const struct copy *c = &f->copies[k];
			if (!is_paged(f, c->alloc))
				continue;
			for (uint64_t at = 0; !r && at < c->n_bytes; at += FETCH_RING_PIECE_BYTES)
				r = record_piece(f, s, c, at, ret_err);
		}
		s->end_piece = f->n_pieces;
	}
	return r;
}

static int find_copies(struct fetch *f, const struct graph *g, struct err *ret_err)
{
	f->moved = *g;
	f->moved.ops = calloc(g->n_ops, sizeof(*g->ops));
	f->segments = calloc(g->n_ops, sizeof(*f->segments));
	f->copies = calloc(g->n_ops, GRAPH_MAX_OP_TENSORS * sizeof(*f->copies));
	f->moves = calloc(g->n_ops, GRAPH_MAX_OP_TENSORS * sizeof(*f->moves));
	if (!f->moved.ops || !f->segments || !f->copies || !f->moves)
		return err_set(ret_err, ENOMEM, "slots: no memory");
	memcpy(f->moved.ops, g->ops, g->n_ops * sizeof(*g->ops));
	return cut(f, ret_err);
}

static int make_copies(struct fetch *f, struct err *ret_err)
{
	int r = make_slots(f, ret_err);

	for (uint32_t i = 0; !r && i < f->n_segments; i++)
		r = record_copies(f, &f->segments[i], ret_err);
	return r ? r : record_pieces(f, ret_err);
}

int fetch_new(struct vk_device *d, const struct weights *w, const struct graph *g, bool may_spill,
	struct err *ret_err, struct fetch **ret_fetch)
{
	struct fetch *f = calloc(1, sizeof(*f));
	struct err e = ERR_NULL;

	if (!f)
		return err_set(ret_err, ENOMEM, "slots: no memory");
	f->d = d;
	f->w = w;
	f->may_spill = may_spill;
	int r = find_copies(f, g, ret_err);
	bool is_wanted = !r && f->n_copies > 0;
	if (is_wanted)
		r = make_copies(f, &e);
	if (is_wanted && r < 0 && !f->is_required) {
		log_info("weights in host memory are read where they are: %s", e.text);
		is_wanted = false;
		r = 0;
	} else if (r && e.text[0] && ret_err) {
		*ret_err = e;
	}
	if (r || !is_wanted)
		f = fetch_free(f);
	if (!r)
		*ret_fetch = f;
	return r;
}

struct fetch *fetch_free(struct fetch *f)
{
	if (!f)
		return NULL;
	for (uint32_t i = 0; i < f->n_segments; i++)
		vk_command_free(f->segments[i].command);
	for (uint32_t i = 0; f->pieces && i < f->n_pieces; i++)
		vk_command_free(f->pieces[i].command);
	fetch_ring_free(f->ring);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		vk_memory_free(f->slots[i]);
	free(f->pieces);
	free(f->moves);
	free(f->copies);
	free(f->segments);
	free(f->moved.ops);
	free(f);
	return NULL;
}

bool fetch_is_required(const struct fetch *f)
{
	return f->is_required;
}

const struct graph *fetch_get_graph(const struct fetch *f)
{
	return &f->moved;
}

uint32_t fetch_get_n_segments(const struct fetch *f)
{
	return f->n_segments;
}

const struct fetch_segment *fetch_get_segment(const struct fetch *f, uint32_t segment)
{
	return &f->segments[segment].public;
}

/* On the transfer queue, after what frees the slot. */
static int submit(struct fetch *f, const struct segment *s, struct vk_command *c,
	struct err *ret_err, uint64_t *ret_ticket)
{
	int r = vk_submit_on(
		f->d, VK_QUEUE_TRANSFER, &c, 1, &f->busy[s->slot], 1, ret_err, &f->last);

	if (!r)
		*ret_ticket = f->last;
	return r;
}

static int copy_piece(struct fetch *f, const struct segment *s, uint32_t piece, struct err *ret_err,
	uint64_t *ret_ticket)
{
	const struct piece *p = &f->pieces[piece];
	uint64_t *place = &f->places[piece % FETCH_RING_N_PLACES];

	int r = vk_submit_wait(f->d, *place, UINT64_MAX);
	if (!r)
		r = fetch_ring_fill(f->ring, piece % FETCH_RING_N_PLACES, &f->w->allocs[p->alloc],
			p->offset, p->n_bytes, ret_err);
	if (!r)
		r = submit(f, s, p->command, ret_err, place);
	if (r)
		return r;
	f->counters.paged_bytes += p->n_bytes;
	*ret_ticket = *place;
	return 0;
}

int fetch_begin(struct fetch *f, uint32_t segment, struct err *ret_err, uint64_t *ret_ticket)
{
	const struct segment *s = &f->segments[segment];
	uint64_t ticket = 0;
	int r = 0;

	if (s->command)
		r = submit(f, s, s->command, ret_err, &ticket);
	if (!r)
		f->counters.copied_bytes += s->n_copied_bytes;
	for (uint32_t i = s->first_piece; !r && i < s->end_piece; i++)
		r = copy_piece(f, s, i, ret_err, &ticket);
	if (!r)
		*ret_ticket = ticket;
	return r;
}

void fetch_end(struct fetch *f, uint32_t segment, uint64_t ticket)
{
	if (f->segments[segment].public.n_bytes)
		f->busy[f->segments[segment].slot] = ticket;
}

int fetch_all(struct fetch *f, struct err *ret_err, uint64_t *ret_bytes)
{
	const struct fetch_counters before = f->counters;
	uint64_t ticket = 0, n_bytes = 0;
	int r = 0;

	for (uint32_t i = 0; !r && i < f->n_segments; i++) {
		r = fetch_begin(f, i, ret_err, &ticket);
		n_bytes += f->segments[i].public.n_bytes;
	}
	int waited = vk_submit_wait(f->d, f->last, UINT64_MAX);
	f->counters = before;
	if (!r)
		r = waited;
	if (!r)
		*ret_bytes = n_bytes;
	return r;
}

void fetch_drain(struct fetch *f)
{
	if (vk_submit_wait(f->d, f->last, UINT64_MAX))
		log_debug("copies of weights: the device is lost, and copies nothing either");
}

const struct fetch_counters *fetch_get_counters(const struct fetch *f)
{
	return &f->counters;
}

void fetch_reset_counters(struct fetch *f)
{
	f->counters = (struct fetch_counters){0};
}
