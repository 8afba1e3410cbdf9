/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/arch.h"
#include "workerd/graph.h"
#include "workerd/kv.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/rope-kv.h"
#include "workerd/record.h"
#include "workerd/weights.h"

/* Recorded commands are for up to 1, 2, 4, ... rows. */
enum { PLAN_MAX_BUCKETS = 14, PLAN_MAX_ROWS = 1 << (PLAN_MAX_BUCKETS - 1) };

/* What a step's rows are, at the start of io memory. */
struct plan_io {
	uint32_t n_rows;
	uint32_t n_want;
};

struct plan {
	struct vk_device *d;
	struct kv *kv;
	struct plan_params params;
	uint32_t n_vocab;
	struct graph graph;
	struct op_pool *pool;
	struct vk_memory *scratch; /* values, then turns [n_rot / 2] u64 */
	struct vk_memory *io;      /* plan_io, rows, want, turns on their way, logits */
	struct plan_io *step;      /* mapped */
	struct abi_row *rows;      /* mapped, [n_rows] */
	uint32_t *want;            /* mapped, [n_logit_rows] */
	const float *logits;       /* mapped, [n_logit_rows][n_vocab] */
	struct record_addresses addresses;
	struct vk_command *body[PLAN_MAX_BUCKETS];
	struct vk_command *head[PLAN_MAX_BUCKETS];
};

static uint32_t find_bucket(uint32_t n_rows)
{
	uint32_t i = 0;

	while (n_rows > 1u << i)
		i++;
	return i;
}

/* The commands of the bucket, recorded at its first use and submitted again ever after. */
static int get_command(struct plan *p, struct vk_command **commands, uint32_t bucket, bool is_head,
	struct err *ret_err, struct vk_command **ret_command)
{
	if (!commands[bucket]) {
		struct vk_command *c = NULL;
		int r = vk_command_new(p->d, 0, ret_err, &c);
		if (!r)
			r = record_graph(&p->graph, &p->addresses, p->pool, 1u << bucket, is_head,
				ret_err, c);
		if (r) {
			vk_command_free(c);
			return r;
		}
		commands[bucket] = c;
	}
	*ret_command = commands[bucket];
	return 0;
}

static int check_model(const struct weights *w, const struct kv *kv,
	const struct plan_params *params, struct err *ret_err)
{
	const struct manifest_hparams *hp = w->manifest->hparams;
	const struct kv_params *k = kv_get_params(kv);

	if (params->n_rows == 0 || params->n_rows > PLAN_MAX_ROWS)
		return err_set(ret_err, EINVAL, "plan: rows: expected 1 to %d, found %u",
			PLAN_MAX_ROWS, params->n_rows);
	if (params->n_logit_rows == 0 || params->n_logit_rows > params->n_rows)
		return err_set(ret_err, EINVAL,
			"plan: rows with logits: expected 1 to %u, found %u", params->n_rows,
			params->n_logit_rows);
	if (k->n_layers != hp->n_layers || k->n_head_kv != hp->n_head_kv ||
		k->head_dim != hp->head_dim_k)
		return err_set(ret_err, EINVAL,
			"plan: kv cache: expected %u layers of %u heads of %u, found %u, %u, %u",
			hp->n_layers, hp->n_head_kv, hp->head_dim_k, k->n_layers, k->n_head_kv,
			k->head_dim);
	return 0;
}

/* Where things lie in io memory; false on overflow. */
struct plan_layout {
	uint64_t rows;
	uint64_t want;
	uint64_t turns;
	uint64_t logits;
	uint64_t n_bytes;
};

static bool lay_out_io(const struct plan *p, uint64_t n_turn_bytes, struct plan_layout *ret)
{
	const struct plan_params *params = &p->params;
	uint64_t n_logit_bytes = 4ull * p->n_vocab * params->n_logit_rows; /* 2^2+22+13: fits */

	return bytes_align(sizeof(struct plan_io), 64, &ret->rows) &&
	       bytes_align(ret->rows + sizeof(struct abi_row) * params->n_rows, 64, &ret->want) &&
	       bytes_align(ret->want + 4ull * params->n_logit_rows, 64, &ret->turns) &&
	       bytes_align(ret->turns + n_turn_bytes, 256, &ret->logits) &&
	       !__builtin_add_overflow(ret->logits, n_logit_bytes, &ret->n_bytes);
}

static int make_memory(struct plan *p, enum vk_memory_role role, uint64_t n_bytes,
	struct err *ret_err, struct vk_memory **ret_memory)
{
	struct vk_memory_params params = {
		.role = role, .n_bytes = n_bytes, .name = vk_memory_role_name(role)};

	return vk_memory_new(p->d, &params, ret_err, ret_memory);
}

/* Puts the table of angles from io memory, where it was written, into device memory. */
static int upload_turns(
	struct plan *p, const struct vk_slice *dst, const struct vk_slice *src, struct err *ret_err)
{
	struct vk_command *c = NULL;
	uint64_t ticket = 0;

	int r = vk_command_new(p->d, 0, ret_err, &c);
	if (r)
		return r;
	vk_command_begin(c);
	vk_command_copy(c, dst, src);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(p->d, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(p->d, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

static int make_memories(struct plan *p, struct err *ret_err)
{
	struct graph *g = &p->graph;
	struct plan_layout io = {0};
	uint64_t n_turn_bytes = g->n_rot / 2 * sizeof(uint64_t);
	uint64_t n_value_bytes = 0, turns_at = 0;
	void *map = NULL;

	int r = graph_place(g, p->params.n_rows, ret_err, &n_value_bytes);
	if (r)
		return r;
	if (!lay_out_io(p, n_turn_bytes, &io) || !bytes_align(n_value_bytes, 256, &turns_at))
		return err_set(ret_err, EOVERFLOW, "plan: %u rows overflow", p->params.n_rows);
	if ((r = make_memory(
		     p, VK_MEMORY_SCRATCH, turns_at + n_turn_bytes, ret_err, &p->scratch)) ||
		(r = make_memory(p, VK_MEMORY_IO, io.n_bytes, ret_err, &p->io)) ||
		(r = vk_memory_map(p->io, ret_err, &map)))
		return r;
	uint8_t *base = map;
	p->step = map;
	p->rows = (struct abi_row *)(base + io.rows);
	p->want = (uint32_t *)(base + io.want);
	p->logits = (const float *)(base + io.logits);
	uint64_t address = vk_memory_get_address(p->io);
	p->addresses = (struct record_addresses){
		.scratch = vk_memory_get_address(p->scratch),
		.logits = address + io.logits,
		.n_rows = address + offsetof(struct plan_io, n_rows),
		.n_want = address + offsetof(struct plan_io, n_want),
		.rows = address + io.rows,
		.want = address + io.want,
		.turns = vk_memory_get_address(p->scratch) + turns_at,
		.table = kv_get_table_address(p->kv),
		.n_slot_pages = kv_get_slot_pages(p->kv),
	};
	if (n_turn_bytes == 0)
		return 0;
	op_rope_kv_fill_turns(g->rope_base, g->n_rot, (uint64_t *)(base + io.turns));
	struct vk_slice dst = {.memory = p->scratch, .offset = turns_at, .n_bytes = n_turn_bytes};
	struct vk_slice src = {.memory = p->io, .offset = io.turns, .n_bytes = n_turn_bytes};
	return upload_turns(p, &dst, &src, ret_err);
}

static int build(struct plan *p, const struct weights *w, struct err *ret_err)
{
	const struct arch *arch = NULL;
	struct vk_command *c = NULL;

	int r = check_model(w, p->kv, &p->params, ret_err);
	if (!r)
		r = arch_find(w, ret_err, &arch);
	if (!r)
		r = arch->build(w, &p->graph, ret_err);
	if (!r)
		r = op_pool_new(p->d, ret_err, &p->pool);
	if (!r)
		r = make_memories(p, ret_err);
	/* One row's commands say whether there are kernels for every op. */
	if (!r)
		r = get_command(p, p->body, 0, false, ret_err, &c);
	return r ? r : get_command(p, p->head, 0, true, ret_err, &c);
}

int plan_new(struct vk_device *d, const struct weights *w, struct kv *kv,
	const struct plan_params *params, struct err *ret_err, struct plan **ret_plan)
{
	struct plan *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(ret_err, ENOMEM, "plan: no memory");
	p->d = d;
	p->kv = kv;
	p->params = *params;
	p->n_vocab = w->manifest->hparams->n_vocab;
	int r = build(p, w, ret_err);
	if (r) {
		plan_free(p);
		return r;
	}
	*ret_plan = p;
	return 0;
}

struct plan *plan_free(struct plan *p)
{
	if (!p)
		return NULL;
	for (int i = 0; i < PLAN_MAX_BUCKETS; i++) {
		vk_command_free(p->body[i]);
		vk_command_free(p->head[i]);
	}
	op_pool_free(p->pool);
	vk_memory_free(p->scratch);
	vk_memory_free(p->io);
	graph_fini(&p->graph);
	free(p);
	return NULL;
}

static int check_step(const struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err)
{
	const struct kv_params *k = kv_get_params(p->kv);

	if (n_rows == 0 || n_rows > p->params.n_rows || n_want > p->params.n_logit_rows)
		return err_set(ret_err, EINVAL,
			"step: expected 1 to %u rows and up to %u with logits, found %u and %u",
			p->params.n_rows, p->params.n_logit_rows, n_rows, n_want);
	for (uint32_t i = 0; i < n_rows; i++) {
		if (rows[i].token >= p->n_vocab)
			return err_set(ret_err, EINVAL,
				"step: row %u: token: expected below %u, found %u", i, p->n_vocab,
				rows[i].token);
		if (rows[i].position >= k->n_ctx)
			return err_set(ret_err, EINVAL,
				"step: row %u: position: expected below %u, found %u", i, k->n_ctx,
				rows[i].position);
		if (rows[i].slot >= k->n_slots)
			return err_set(ret_err, EINVAL,
				"step: row %u: slot: expected below %u, found %u", i, k->n_slots,
				rows[i].slot);
	}
	for (uint32_t i = 0; i < n_want; i++)
		if (want[i] >= n_rows || (i > 0 && want[i] <= want[i - 1]))
			return err_set(ret_err, EINVAL,
				"step: wanted row %u: expected ascending and below %u, found %u", i,
				n_rows, want[i]);
	return 0;
}

int plan_step(struct plan *p, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want, struct err *ret_err, const float **ret_logits)
{
	struct vk_command *commands[2] = {0};
	uint64_t ticket = 0;

	int r = check_step(p, rows, n_rows, want, n_want, ret_err);
	if (!r)
		r = get_command(p, p->body, find_bucket(n_rows), false, ret_err, &commands[0]);
	if (!r && n_want)
		r = get_command(p, p->head, find_bucket(n_want), true, ret_err, &commands[1]);
	if (r)
		return r;
	p->step->n_rows = n_rows;
	p->step->n_want = n_want;
	for (uint32_t i = 0; i < n_rows; i++)
		p->rows[i] = (struct abi_row){
			.token = rows[i].token, .position = rows[i].position, .slot = rows[i].slot};
	for (uint32_t i = 0; i < n_want; i++)
		p->want[i] = want[i];
	r = vk_submit(p->d, commands, n_want ? 2 : 1, ret_err, &ticket);
	if (r)
		return r;
	r = vk_submit_wait(p->d, ticket, UINT64_MAX);
	if (r) {
		(void)err_set(ret_err, EIO, "step: %s",
			r == VK_DEVICE_LOST ? "the device is lost" : strerror(-r));
		return r;
	}
	*ret_logits = n_want ? p->logits : NULL;
	return 0;
}

uint32_t plan_get_n_dispatches(const struct plan *p)
{
	return vk_command_get_n_dispatches(p->body[0]) + vk_command_get_n_dispatches(p->head[0]);
}

uint32_t plan_get_n_vocab(const struct plan *p)
{
	return p->n_vocab;
}
