/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/submit.h"
#include "workerd/graph.h"
#include "workerd/ops/pool.h"
#include "workerd/record.h"

enum { MAX_BUCKETS = 32, N_PARTS = 2 /* a body, then the head */, N_ENDS = 2 };

/* What is recorded. */
enum kind {
	KIND_BODY,
	KIND_SPREAD, /* the body of rows that are each of another session */
	KIND_HEAD,
	N_KINDS,
};

struct dispatch {
	uint32_t op;
	enum kernels_id id;
	uint32_t n_alike;
	uint32_t n_kindred;
};

/* A part of a step with a timestamp before all and one behind each dispatch. */
struct stamped {
	struct vk_command *command; /* NULL: not recorded yet */
	uint32_t n_dispatches;
	struct dispatch *dispatches; /* [n_dispatches] */
	uint64_t *stamps;            /* [n_dispatches + 1] */
};

struct profile {
	struct profile_params params;
	enum profile_kind kind;
	bool is_prompt;
	struct vk_command *ends[N_ENDS]; /* a timestamp each, around a step */
	struct stamped stamped[N_KINDS][MAX_BUCKETS];
	struct stamped *taken[N_PARTS]; /* of the step that was submitted last; NULL: none */
	uint64_t ns[2][2];              /* [kind][is_prompt] */
	uint32_t n_kernels;
	struct profile_kernel kernels[PROFILE_MAX_KERNELS];
	struct abi_row *rows; /* [n_rows_room] */
	uint32_t n_rows_room;
};

static int make_end(struct profile *p, struct err *ret_err, struct vk_command **ret_command)
{
	struct vk_command *c = NULL;
	int r = vk_command_new(p->params.device, 1, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	vk_command_stamp(c, 0);
	r = vk_command_end(c, ret_err);
	if (r)
		c = vk_command_free(c);
	*ret_command = c;
	return r;
}

int profile_new(
	const struct profile_params *params, struct err *ret_err, struct profile **ret_profile)
{
	struct profile *p = calloc(1, sizeof(*p));
	int r = 0;

	if (!p)
		return err_set(ret_err, ENOMEM, "profile: no memory");
	p->params = *params;
	for (int i = 0; !r && i < N_ENDS; i++)
		r = make_end(p, ret_err, &p->ends[i]);
	if (r) {
		profile_free(p);
		return r;
	}
	*ret_profile = p;
	return 0;
}

static void free_stamped(struct stamped *s)
{
	vk_command_free(s->command);
	free(s->dispatches);
	free(s->stamps);
	*s = (struct stamped){0};
}

struct profile *profile_free(struct profile *p)
{
	if (!p)
		return NULL;
	for (int i = 0; i < N_ENDS; i++)
		vk_command_free(p->ends[i]);
	for (int kind = 0; kind < N_KINDS; kind++)
		for (int i = 0; i < MAX_BUCKETS; i++)
			free_stamped(&p->stamped[kind][i]);
	free(p->rows);
	free(p);
	return NULL;
}

void profile_begin(struct profile *p, enum profile_kind kind, bool is_prompt)
{
	p->kind = kind;
	p->is_prompt = is_prompt;
}

/* ---- recording ---- */

struct watch {
	struct stamped *stamped; /* NULL: they are counted */
	uint32_t op;             /* that is being recorded */
	uint32_t n;              /* dispatches so far */
};

static void watch_dispatch(void *userdata, struct vk_command *c, enum kernels_id id, bool is_behind)
{
	struct watch *w = userdata;

	if (w->stamped && !is_behind && w->n == 0)
		vk_command_stamp(c, 0);
	if (!is_behind)
		return;
	if (w->stamped) {
		w->stamped->dispatches[w->n] = (struct dispatch){.op = w->op, .id = id};
		vk_command_stamp(c, w->n + 1);
	}
	w->n++;
}

static int record(struct profile *p, enum kind kind, uint32_t n_rows, struct watch *watch,
	struct vk_command *c, struct err *ret_err)
{
	const struct graph *g = p->params.graph;
	const struct record_range range = {.end = g->n_ops,
		.is_head = kind == KIND_HEAD,
		.is_spread = kind == KIND_SPREAD,
		.ret_op = &watch->op};

	watch->n = 0;
	op_pool_set_watch(p->params.pool, watch_dispatch, watch);
	int r = record_graph(g, p->params.addresses, p->params.pool, n_rows, &range, ret_err, c);
	op_pool_set_watch(p->params.pool, NULL, NULL);
	return r;
}

/* Which dispatches of an op share its work. */
static void relate(const struct graph *g, struct stamped *s)
{
	for (uint32_t i = 0; i < s->n_dispatches; i++) {
		struct dispatch *d = &s->dispatches[i];

		for (uint32_t k = 0; k < s->n_dispatches; k++) {
			const struct dispatch *other = &s->dispatches[k];

			if (other->op != d->op)
				continue;
			d->n_alike += other->id == d->id;
			d->n_kindred += cost_is_kindred(&g->ops[d->op], other->id, d->id);
		}
	}
}

/* Recorded once to be counted, and again with as many timestamps. */
static int make_stamped(struct profile *p, enum kind kind, uint32_t n_rows, struct err *ret_err,
	struct stamped *ret_stamped)
{
	struct stamped s = {0};
	struct watch watch = {0};
	int r = vk_command_new(p->params.device, 0, ret_err, &s.command);

	if (!r)
		r = record(p, kind, n_rows, &watch, s.command, ret_err);
	s.command = vk_command_free(s.command);
	if (r)
		return r;
	s.n_dispatches = watch.n;
	s.dispatches = calloc(watch.n + 1, sizeof(*s.dispatches));
	s.stamps = calloc(watch.n + 1, sizeof(*s.stamps));
	watch.stamped = &s;
	if (!s.dispatches || !s.stamps)
		r = err_set(ret_err, ENOMEM, "profile: no memory");
	if (!r)
		r = vk_command_new(p->params.device, watch.n + 1, ret_err, &s.command);
	if (!r)
		r = record(p, kind, n_rows, &watch, s.command, ret_err);
	if (r) {
		free_stamped(&s);
		return r;
	}
	relate(p->params.graph, &s);
	*ret_stamped = s;
	return 0;
}

static int get_stamped(struct profile *p, enum kind kind, uint32_t n_rows, struct err *ret_err,
	struct stamped **ret_stamped)
{
	uint32_t bucket = 0;

	while (n_rows > 1u << bucket)
		bucket++;
	struct stamped *s = &p->stamped[kind][bucket];
	int r = s->command ? 0 : make_stamped(p, kind, 1u << bucket, ret_err, s);
	if (!r)
		*ret_stamped = s;
	return r;
}

/* ---- steps ---- */

int profile_submit(struct profile *p, struct vk_command *body, struct vk_command *head,
	uint32_t n_rows, uint32_t n_want, bool is_spread, struct err *ret_err, uint64_t *ret_ticket)
{
	struct vk_command *commands[N_ENDS + N_PARTS];
	uint32_t n = 0;
	int r = 0;

	p->taken[0] = p->taken[1] = NULL;
	if (p->kind == PROFILE_KERNELS) {
		r = get_stamped(
			p, is_spread ? KIND_SPREAD : KIND_BODY, n_rows, ret_err, &p->taken[0]);
		if (!r && n_want)
			r = get_stamped(p, KIND_HEAD, n_want, ret_err, &p->taken[1]);
		if (r)
			return r;
		body = p->taken[0]->command;
		head = n_want ? p->taken[1]->command : NULL;
	}
	if (p->kind == PROFILE_BUSY)
		commands[n++] = p->ends[0];
	commands[n++] = body;
	if (head)
		commands[n++] = head;
	if (p->kind == PROFILE_BUSY)
		commands[n++] = p->ends[1];
	return vk_submit(p->params.device, commands, n, ret_err, ret_ticket);
}

static int read_stamps(struct vk_command *c, uint64_t *ret_stamps, struct err *ret_err)
{
	int r = vk_command_get_stamps(c, ret_stamps);

	if (r < 0)
		return err_set(ret_err, EIO, "profile: timestamps: %s", strerror(-r));
	return r;
}

/* Its row; the last one takes what there is no room for. */
static struct profile_kernel *find_kernel(struct profile *p, enum kernels_id id, const char *shape)
{
	struct profile_kernel *k = p->kernels;

	for (; k < p->kernels + p->n_kernels; k++)
		if (k->id == id && k->is_prompt == p->is_prompt && !strcmp(k->cost.shape, shape))
			return k;
	if (p->n_kernels == PROFILE_MAX_KERNELS)
		return k - 1;
	*k = (struct profile_kernel){
		.id = id, .name = kernels_get(id)->name, .is_prompt = p->is_prompt};
	memcpy(k->cost.shape, shape, sizeof(k->cost.shape));
	p->n_kernels++;
	return k;
}

static int take_stamped(
	struct profile *p, struct stamped *s, const struct cost_step *step, struct err *ret_err)
{
	int r = read_stamps(s->command, s->stamps, ret_err);

	if (r)
		return r;
	for (uint32_t i = 0; i < s->n_dispatches; i++) {
		const struct dispatch *d = &s->dispatches[i];
		struct cost cost;

		cost_get(
			step, &p->params.graph->ops[d->op], d->id, d->n_alike, d->n_kindred, &cost);
		struct profile_kernel *k = find_kernel(p, d->id, cost.shape);
		k->n_calls++;
		k->ns += s->stamps[i + 1] - s->stamps[i];
		k->cost.n_weight_bytes += cost.n_weight_bytes;
		k->cost.n_kv_bytes += cost.n_kv_bytes;
		k->cost.n_flops += cost.n_flops;
	}
	p->ns[PROFILE_KERNELS][p->is_prompt] += s->stamps[s->n_dispatches] - s->stamps[0];
	return 0;
}

/* The rows are in memory that the host may read slowly: copied once. */
static int keep_rows(struct profile *p, const struct abi_row *rows, uint32_t n, struct err *ret_err)
{
	if (n > p->n_rows_room) {
		struct abi_row *more = reallocarray(p->rows, n, sizeof(*more));

		if (!more)
			return err_set(ret_err, ENOMEM, "profile: no memory");
		p->rows = more;
		p->n_rows_room = n;
	}
	memcpy(p->rows, rows, n * sizeof(*rows));
	return 0;
}

int profile_take(struct profile *p, const struct abi_row *rows, uint32_t n_rows, uint32_t n_want,
	struct err *ret_err)
{
	uint64_t stamps[N_ENDS] = {0};
	int r = 0;

	if (p->kind == PROFILE_BUSY) {
		for (int i = 0; !r && i < N_ENDS; i++)
			r = read_stamps(p->ends[i], &stamps[i], ret_err);
		if (!r)
			p->ns[PROFILE_BUSY][p->is_prompt] += stamps[1] - stamps[0];
		return r;
	}
	r = keep_rows(p, rows, n_rows, ret_err);
	const struct cost_step step = {.graph = p->params.graph,
		.kv_type = p->params.addresses->kv_type,
		.rows = p->rows,
		.n_rows = n_rows,
		.n_want = n_want};
	for (int part = 0; !r && part < N_PARTS; part++)
		if (p->taken[part])
			r = take_stamped(p, p->taken[part], &step, ret_err);
	return r;
}

static int compare_kernels(const void *a, const void *b)
{
	uint64_t left = ((const struct profile_kernel *)a)->ns;
	uint64_t right = ((const struct profile_kernel *)b)->ns;

	return left < right ? 1 : left > right ? -1 : 0;
}

uint32_t profile_get_kernels(
	struct profile *p, struct profile_kernel ret_kernels[PROFILE_MAX_KERNELS])
{
	qsort(p->kernels, p->n_kernels, sizeof(p->kernels[0]), compare_kernels);
	memcpy(ret_kernels, p->kernels, p->n_kernels * sizeof(p->kernels[0]));
	return p->n_kernels;
}

uint64_t profile_get_ns(const struct profile *p, enum profile_kind kind, bool is_prompt)
{
	return p->ns[kind][is_prompt];
}
