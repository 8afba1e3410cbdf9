/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/stack.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-baton.h"
#include "proto/weights-client.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/baton.h"
#include "workerd/kv.h"
#include "workerd/options.h"
#include "workerd/plan-layout.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum {
	DEFAULT_CTX = 4096,
	DEFAULT_CHUNK = 256,
	FAST_CHUNK = 1024, /* where there are matrices: they are fast when there is much to do */
	/* Drivers round allocations up; what that was is known, and given back, afterwards. */
	SLACK_BYTES = 1 << 20,
};

static int stack_get_kv_params(const struct stack_params *params, const struct weights *w,
	struct err *ret_err, struct kv_params *ret_kv)
{
	const struct manifest_hparams *h = w->manifest->hparams;
	const struct options *o = params->options;
	uint32_t n_ctx = o->n_ctx;

	if (h->head_dim_k != h->head_dim_v)
		return err_set(ret_err, ENOTSUP,
			"model %s: keys of %" PRIu32 " and values of %" PRIu32
			" dimensions: expected the same",
			o->model, h->head_dim_k, h->head_dim_v);
	if (n_ctx > h->n_ctx_train)
		return err_set(ret_err, EINVAL,
			"--ctx: expected at most the %" PRIu32
			" that model %s was trained for, found %" PRIu32,
			h->n_ctx_train, o->model, n_ctx);
	if (!n_ctx)
		n_ctx = h->n_ctx_train < DEFAULT_CTX ? h->n_ctx_train : DEFAULT_CTX;
	if (o->n_kv_tokens && o->n_kv_tokens < n_ctx)
		return err_set(ret_err, EINVAL,
			"--kv-tokens: expected at least the %" PRIu32
			" of a context, found %" PRIu32,
			n_ctx, o->n_kv_tokens);
	/* Each slot's last page may be partly used, so a slot's pages are counted whole. */
	uint64_t n_slot_tokens = (n_ctx + KV_PAGE_TOKENS - 1ull) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
	*ret_kv = (struct kv_params){
		.type = o->kv_type,
		.n_layers = h->n_layers,
		.n_head_kv = h->n_head_kv,
		.head_dim = h->head_dim_k,
		.n_slots = o->n_sessions,
		.n_ctx = n_ctx,
		.n_tokens = o->n_kv_tokens ? o->n_kv_tokens : o->n_sessions * n_slot_tokens,
	};
	return 0;
}

/* Where all memory is the device's own, copies of it are no faster, and io memory counts too. */
static bool stack_has_host_memory(const struct stack_params *params)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);

	for (uint32_t i = 0; i < info->n_heaps; i++)
		if (!info->heaps[i].device_local)
			return true;
	return false;
}

/* The smallest chunk: each session has a row. */
static uint32_t stack_get_least_rows(const struct stack_params *params)
{
	uint32_t n = params->options->n_sessions + OPTIONS_CHUNK_STEP - 1;

	return n / OPTIONS_CHUNK_STEP * OPTIONS_CHUNK_STEP;
}

static struct plan_params stack_get_plan_params(const struct stack_params *params, uint32_t n_rows)
{
	const struct options *o = params->options;
	struct plan_params p = {.n_rows = n_rows,
		.n_logit_rows = o->n_sessions,
		.stream_rows = o->stream_rows,
		.kernels = o->kernels == PLAN_KERNELS_AUTO ? plan_choose_kernels(params->device)
							   : o->kernels,
		/* Anything but host memory first: there a step is slower than many small ones. */
		.may_spill = n_rows <= stack_get_least_rows(params)};

	if (!p.stream_rows && !stack_has_host_memory(params))
		p.stream_rows = PLAN_NEVER_STREAM;
	return p;
}

/* Of the device, with steps of n_rows. */
static int stack_measure(const struct stack_params *params, const struct weights *w,
	const struct kv_params *kv, uint32_t n_rows, struct err *ret_err, uint64_t *ret_bytes)
{
	struct plan_params plan = stack_get_plan_params(params, n_rows);
	struct plan_layout_bytes bytes = {0};
	uint64_t n_page_bytes = 0, n_io_bytes = 0;
	int r = kv_measure(params->device, kv, ret_err, &n_page_bytes, &n_io_bytes);

	plan.n_table_bytes = n_io_bytes;
	if (!r)
		r = plan_layout_measure(params->device, w, &plan, ret_err, &bytes);
	if (r)
		return r;
	*ret_bytes = n_page_bytes + bytes.n_scratch_bytes + SLACK_BYTES;
	if (!stack_has_host_memory(params))
		*ret_bytes += n_io_bytes + bytes.n_io_bytes;
	return 0;
}

/*
 * What will be there of what stack_measure counts: what is now, and the chunks of the KV cache that
 * are not allocated yet, rounded up as those that are.
 */
static uint64_t stack_count_bytes(const struct stack_params *params, const struct kv *kv)
{
	struct vk_memory_counter c[VK_MEMORY_N_ROLES];
	struct kv_pool pool;
	uint64_t n_bytes;

	vk_memory_get_counters(params->device, c);
	kv_get_pool(kv, &pool);
	n_bytes = c[VK_MEMORY_KV].placed_bytes + c[VK_MEMORY_SCRATCH].placed_bytes;
	n_bytes += kv_get_bytes(kv) - pool.n_allocated_bytes;
	n_bytes += (c[VK_MEMORY_KV].requested_bytes - pool.n_allocated_bytes) /
		   pool.n_allocated_chunks * (pool.n_chunks - pool.n_allocated_chunks);
	if (!stack_has_host_memory(params))
		n_bytes += c[VK_MEMORY_IO].placed_bytes + c[VK_MEMORY_STAGING].placed_bytes;
	return n_bytes;
}

/*
 * The most rows, in steps from n_least on, that take no more than is granted; n_least where none
 * does. Measuring lays a whole graph out, so not every step is tried.
 */
static int stack_fit_rows(const struct stack_params *params, const struct weights *w,
	const struct kv_params *kv, uint32_t n_asked, uint64_t n_granted, struct err *ret_err,
	uint32_t *ret_rows)
{
	uint32_t n_least = stack_get_least_rows(params);
	uint32_t n_fit = 0, n_unfit = (n_asked - n_least) / OPTIONS_CHUNK_STEP; /* steps */

	while (n_unfit - n_fit > 1) {
		uint32_t n = n_fit + (n_unfit - n_fit) / 2;
		uint64_t n_bytes = 0;
		int r = stack_measure(
			params, w, kv, n_least + n * OPTIONS_CHUNK_STEP, ret_err, &n_bytes);

		if (r)
			return r;
		if (n_bytes <= n_granted)
			n_fit = n;
		else
			n_unfit = n;
	}
	*ret_rows = n_least + n_fit * OPTIONS_CHUNK_STEP;
	return 0;
}

/* why: of figures. */
static void stack_say_chunk(const struct ledger_chunk *c, const char *why)
{
	log_info("chunk: %" PRIu32 " tokens a step, there is no memory for %" PRIu32 " (%s): %s",
		c->n_rows, c->n_asked, c->is_default ? "the default" : "--chunk", why);
}

static void stack_say_fitted(const struct ledger_chunk *c, uint64_t n_bytes)
{
	char why[128];

	snprintf(why, sizeof(why),
		"with KV it would take %" PRIu64 " bytes, and weightd granted %" PRIu64, n_bytes,
		c->budget_bytes);
	stack_say_chunk(c, why);
}

/* Room for the chunk that was asked for, or for less: chunk, whose n_asked is there. */
static int stack_reserve(const struct stack_params *params, const struct weights *w,
	const struct kv_params *kv, struct err *ret_err, struct ledger_chunk *chunk)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);
	uint32_t n_least = stack_get_least_rows(params);
	uint64_t n_bytes = 0, n_least_bytes = 0;
	int r = stack_measure(params, w, kv, n_least, ret_err, &n_least_bytes);

	if (!r)
		r = stack_measure(params, w, kv, chunk->n_asked, ret_err, &n_bytes);
	/* A sum that fits less of is no reason to ask for less. */
	if (!r && n_least_bytes > n_bytes)
		n_least_bytes = n_bytes;
	if (!r)
		r = weights_client_reserve(params->weightd, info->uuid, n_bytes, n_least_bytes,
			false, ret_err, &chunk->budget_bytes);
	chunk->n_rows = chunk->n_asked;
	if (!r && n_bytes > chunk->budget_bytes) {
		r = stack_fit_rows(params, w, kv, chunk->n_asked, chunk->budget_bytes, ret_err,
			&chunk->n_rows);
		if (!r)
			stack_say_fitted(chunk, n_bytes);
	}
	return r;
}

/*
 * What may be spent on a cache of experts: of what nobody has, so that nobody parks for it, and by
 * itself (auto) not all of that. *n_granted grows by it.
 */
static int stack_reserve_cache(const struct stack_params *params, const struct weights *w,
	struct err *ret_err, uint64_t *n_granted, uint64_t *ret_bytes)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);
	const struct options *o = params->options;
	bool is_auto = o->expert_cache == OPTIONS_EXPERT_CACHE_AUTO;
	uint64_t n_host_bytes = w->n_bytes - weights_count_bytes(w, MANIFEST_PLACEMENT_DEVICE);
	uint64_t n_bytes = is_auto ? n_host_bytes : o->expert_cache_bytes;
	uint64_t n_got = *n_granted;

	if (o->expert_cache == OPTIONS_EXPERT_CACHE_OFF ||
		(is_auto && (info->is_software || !stack_has_host_memory(params))))
		n_bytes = 0;
	/* Beyond that there is nothing to cache: slots, and their books. */
	if (n_bytes > n_host_bytes + n_host_bytes / 8)
		n_bytes = n_host_bytes + n_host_bytes / 8;
	if (n_bytes == 0) {
		*ret_bytes =
			o->expert_cache == OPTIONS_EXPERT_CACHE_BYTES ? o->expert_cache_bytes : 0;
		return 0;
	}
	int r = weights_client_reserve(params->weightd, info->uuid, *n_granted + n_bytes,
		*n_granted, true, ret_err, &n_got);
	if (r)
		return r;
	n_bytes = n_got - *n_granted;
	*n_granted = n_got;
	*ret_bytes = is_auto ? n_bytes - n_bytes / 8 : n_bytes;
	return 0;
}

/*
 * The chunk that there is room for, or less where the device has no memory for it all the same:
 * then weightd's account is wrong, and every try makes a whole plan, so halves are tried.
 */
static int stack_make_plan(struct stack *s, const struct stack_params *params,
	uint64_t n_cache_bytes, struct err *ret_err)
{
	uint32_t n_least = stack_get_least_rows(params), n_rows = s->chunk.n_rows;

	for (;;) {
		struct plan_params plan = stack_get_plan_params(params, n_rows);
		struct err error = ERR_NULL;
		plan.n_expert_cache_bytes = n_cache_bytes;
		plan.baton = s->baton;
		int r = plan_new(params->device, s->weights, s->kv, &plan, &error, &s->plan);

		if (r != -ENOMEM || n_rows <= n_least) {
			if (r)
				*ret_err = error;
			else if (n_rows < s->chunk.n_rows) {
				s->chunk.n_rows = n_rows;
				stack_say_chunk(
					&s->chunk, "the device has less than weightd granted");
			}
			return r;
		}
		log_debug("%s", error.text);
		n_rows = n_rows / 2 / OPTIONS_CHUNK_STEP * OPTIONS_CHUNK_STEP;
		n_rows = n_rows < n_least ? n_least : n_rows;
	}
}

/* One line for all that did not fit where it belongs. */
int stack_check_spills(struct stack *s, const struct stack_params *params, struct err *ret_err)
{
	uint64_t n_spills = ledger_count_spills(params->device);
	char line[256];

	if (n_spills == s->n_spills)
		return 0;
	s->n_spills = n_spills;
	ledger_describe_spills(params->device, line, sizeof(line));
	/* What spilled is gone already. */
	if (!line[0])
		return 0;
	if (params->options->fail_on_spill) {
		(void)err_set(
			ret_err, ENOMEM, "spilled out of the memory they belong in: %s", line);
		return STACK_SPILLED;
	}
	log_warn("spilled out of the memory they belong in: %s", line);
	return 0;
}

/* The slow placement is never silent. */
static void stack_say_paged(const struct weights *w)
{
	uint64_t n_bytes = weights_count_bytes(w, MANIFEST_PLACEMENT_PAGED);

	if (n_bytes)
		log_warn("%" PRIu64 " of %" PRIu64 " bytes of weights are paged: every step copies "
			 "them through the processor",
			n_bytes, w->n_bytes);
}

/* w NULL: without weights. */
static struct weights_client_report stack_make_report(
	const struct stack_params *params, const struct weights *w)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];

	vk_memory_get_counters(params->device, counters);
	return (struct weights_client_report){
		.kv_bytes = counters[VK_MEMORY_KV].requested_bytes,
		.scratch_bytes = counters[VK_MEMORY_SCRATCH].requested_bytes,
		.io_bytes = counters[VK_MEMORY_IO].requested_bytes +
			    counters[VK_MEMORY_STAGING].requested_bytes,
		.n_sessions = params->options->n_sessions,
		.attach_ns = w ? w->attach_ns : 0,
		.socket = params->socket,
	};
}

/* The grant becomes what there is: less than was granted, or more, which may be refused. */
static int stack_settle(
	struct stack *s, const struct stack_params *params, uint64_t n_granted, struct err *ret_err)
{
	uint64_t n_bytes = stack_count_bytes(params, s->kv);
	struct kv_pool pool;
	int r = 0;

	kv_get_pool(s->kv, &pool);

	if (n_bytes > n_granted)
		log_debug("%" PRIu64 " bytes of the device were granted and %" PRIu64 " are used",
			n_granted, n_bytes);
	if (n_bytes != n_granted)
		r = weights_client_reserve(params->weightd,
			vk_device_get_info(params->device)->uuid, n_bytes, n_bytes, false, ret_err,
			&n_granted);
	s->n_granted_bytes = n_granted;
	s->report = stack_make_report(params, s->weights);
	/* What others cannot have of the device counts, allocated or not. */
	s->report.kv_bytes += kv_get_bytes(s->kv) - pool.n_allocated_bytes;
	return r ? r : weights_client_report(params->weightd, &s->report, ret_err);
}

/* Do the kernels of many rows have them? */
static bool stack_has_matrices(const struct stack_params *params)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);

	return !info->is_software && info->n_matrices &&
	       params->options->kernels != PLAN_KERNELS_EXACT;
}

/*
 * On a device that changes between processes; a software device's are the kernel's threads. It is
 * no harm where there is none: who breaks the connection is met again.
 */
static void stack_take_baton(struct stack *s, const struct stack_params *params)
{
	const struct vk_device_info *info = vk_device_get_info(params->device);
	const struct options *o = params->options;
	struct err error = ERR_NULL;
	int fd = -1;

	if (o->turn == OPTIONS_TURN_OFF || (o->turn == OPTIONS_TURN_AUTO && info->is_software))
		return;
	uint64_t turn_ns = o->turn == OPTIONS_TURN_AUTO ? BATON_TURN_NS : o->turn_ns;
	int r = weights_baton_take(params->weightd, info->uuid, &error, &fd);
	if (!r)
		r = baton_new(fd, turn_ns, &error, &s->baton);
	if (!r)
		return;
	if (fd >= 0)
		close(fd);
	log_debug("this worker takes no turns: %s", error.text);
}

static int stack_fill(struct stack *s, const struct stack_params *params, struct err *ret_err)
{
	const struct options *o = params->options;
	struct ledger_chunk *chunk = &s->chunk;
	uint64_t n_granted = 0, n_cache_bytes = 0;
	struct kv_params kv = {0};
	int r;

	stack_say_paged(s->weights);
	chunk->is_default = !o->n_chunk;
	chunk->n_asked = o->n_chunk                   ? o->n_chunk
			 : stack_has_matrices(params) ? FAST_CHUNK
						      : DEFAULT_CHUNK;
	if (chunk->n_asked < o->n_sessions)
		return err_set(ret_err, EINVAL,
			"--chunk: expected at least the %" PRIu32 " of --sessions, found %" PRIu32,
			o->n_sessions, chunk->n_asked);
	r = stack_get_kv_params(params, s->weights, ret_err, &kv);
	if (!r)
		r = stack_reserve(params, s->weights, &kv, ret_err, chunk);
	if (!r)
		r = kv_new(params->device, &kv, ret_err, &s->kv);
	n_granted = chunk->budget_bytes;
	if (!r)
		r = stack_reserve_cache(params, s->weights, ret_err, &n_granted, &n_cache_bytes);
	if (!r)
		stack_take_baton(s, params);
	if (!r)
		r = stack_make_plan(s, params, n_cache_bytes, ret_err);
	if (!r)
		r = stack_check_spills(s, params, ret_err);
	if (!r)
		r = stack_settle(s, params, n_granted, ret_err);
	return r;
}

int stack_new(const struct stack_params *params, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct stack **ret_stack)
{
	struct stack *s = calloc(1, sizeof(*s));
	struct err ignored = ERR_NULL;
	uint64_t generation;
	int r;

	if (!s)
		return -ENOMEM;
	s->n_spills = ledger_count_spills(params->device);
	const struct weights_attach_params attach = {
		.client = params->weightd,
		.device = params->device,
		.model = params->options->model,
		.n_threads = params->n_import_threads,
	};
	r = weights_attach(&attach, ret_err, ret_refusal, &s->weights);
	if (r) {
		free(s);
		return r;
	}
	generation = s->weights->generation;
	r = stack_fill(s, params, ret_err);
	if (r) {
		stack_free(s);
		/* Where weightd is gone it has taken both back. */
		if (stack_leave(params, generation, &ignored))
			log_debug("%s", ignored.text);
		return r;
	}
	*ret_stack = s;
	return 0;
}

static void stack_say_turns(const struct stack *s)
{
	struct baton_counters c;

	baton_get_counters(s->baton, &c);
	if (s->baton)
		log_debug("turns: %" PRIu64 ", of which %" PRIu64 " were waited for, %" PRIu64
			  " ms in all; passed by: %" PRIu64,
			c.n_turns, c.n_waits, c.wait_ns / 1000000, c.n_passed);
}

struct stack *stack_free(struct stack *s)
{
	if (!s)
		return NULL;
	plan_free(s->plan);
	stack_say_turns(s);
	baton_free(s->baton);
	kv_free(s->kv);
	weights_free(s->weights);
	free(s);
	return NULL;
}

int stack_leave(const struct stack_params *params, uint64_t generation, struct err *ret_err)
{
	uint64_t n_granted;
	int r = weights_client_release(params->weightd, generation, ret_err);

	/* weightd may have ended the lease itself. */
	if (!r || r == -ENOENT)
		r = weights_client_reserve(params->weightd,
			vk_device_get_info(params->device)->uuid, 0, 0, false, ret_err, &n_granted);
	const struct weights_client_report report = stack_make_report(params, NULL);

	return r ? r : weights_client_report(params->weightd, &report, ret_err);
}

int stack_describe(
	const struct stack_params *params, struct err *ret_err, struct manifest **ret_manifest)
{
	struct weights_client_acquired described = {.manifest_fd = -1};
	int r = weights_client_describe(
		params->weightd, params->options->model, ret_err, &described);

	if (!r)
		r = manifest_open(described.manifest_fd, ret_err, ret_manifest);
	weights_client_acquired_fini(&described);
	return r;
}
