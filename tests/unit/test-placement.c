/* SPDX-License-Identifier: Apache-2.0 */
/* The planner on invented models and devices: nothing here needs Vulkan. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"
#include "weightd/policy.h"

enum { MAX_TENSORS = 2048, PAGE = 4096 };

#define KiB(n) ((uint64_t)(n) << 10)
#define MiB(n) ((uint64_t)(n) << 20)
#define GiB(n) ((uint64_t)(n) << 30)

struct model {
	struct gguf gguf;
	struct gguf_tensor tensors[MAX_TENSORS];
	char names[MAX_TENSORS][GGUF_MAX_NAME_BYTES];
	uint64_t n_bytes; /* of all tensors */
};

static const struct placement_limits discrete = {
	.device = "test device",
	.has_device = true,
	.max_alloc_bytes = GiB(4) - MiB(2),
	.max_window_bytes = GiB(4) - MiB(2),
	.page_bytes = PAGE,
	.host_page_bytes = PAGE,
	.free_bytes = GiB(8),
	.host_free_bytes = GiB(64),
	.file_bytes = GiB(64),
	.can_import_memfd = true,
};
static const struct policy no_policy;

static void add(struct model *m, const char *name, uint32_t n_dims, uint64_t n_bytes)
{
	struct gguf_tensor *t = &m->tensors[m->gguf.n_tensors];
	char *copy = m->names[m->gguf.n_tensors];
	uint64_t at = 5000;

	assert_true(m->gguf.n_tensors < MAX_TENSORS);
	if (m->gguf.n_tensors > 0)
		at = (t[-1].offset + t[-1].n_bytes + 31) / 32 * 32;
	else
		at = at / 32 * 32;
	snprintf(copy, GGUF_MAX_NAME_BYTES, "%s", name);
	*t = (struct gguf_tensor){.name = {.data = copy, .n_bytes = strlen(copy)},
		.n_dims = n_dims,
		.offset = at,
		.n_bytes = n_bytes};
	m->gguf.tensors = m->tensors;
	m->gguf.n_tensors++;
	m->n_bytes += n_bytes;
}

static void add_layer(
	struct model *m, unsigned layer, const char *tail, uint32_t n_dims, uint64_t n_bytes)
{
	char name[GGUF_MAX_NAME_BYTES];

	snprintf(name, sizeof(name), "blk.%u.%s", layer, tail);
	add(m, name, n_dims, n_bytes);
}

/* Layers of a norm, 100 MiB of attention and 300 MiB behind it; 500 MiB at either end. */
static struct model *make_model(unsigned n_layers, bool has_experts)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	add(m, "token_embd.weight", 2, MiB(500));
	for (unsigned i = 0; i < n_layers; i++) {
		add_layer(m, i, "attn_norm.weight", 1, KiB(16));
		add_layer(m, i, "attn_q.weight", 2, MiB(100));
		if (has_experts) {
			add_layer(m, i, "ffn_gate_exps.weight", 3, MiB(200));
			add_layer(m, i, "ffn_down_exps.weight", 3, MiB(100));
		} else {
			add_layer(m, i, "ffn_down.weight", 2, MiB(300));
		}
	}
	add(m, "output_norm.weight", 1, KiB(16));
	add(m, "output.weight", 2, MiB(500));
	return m;
}

/* ---- what holds of every plan ---- */

static void check_window(const struct placement *p, const struct placement_limits *l, uint32_t i)
{
	const struct placement_alloc *home = &p->homes[i];
	unsigned n_tensors = 0;

	bool is_paged = p->allocs[i].placement == MANIFEST_PLACEMENT_PAGED;
	uint64_t page = is_paged ? l->host_page_bytes : l->page_bytes;
	assert_int_equal(home->offset % page, 0);
	assert_int_equal(home->n_bytes % page, 0);
	assert_true(home->n_bytes >= p->allocs[i].n_bytes);
	assert_true(home->n_bytes - p->allocs[i].n_bytes < page);
	for (uint32_t t = 0; t < p->n_tensors; t++)
		n_tensors += p->tensor_alloc[t] == i;
	if (home->n_bytes > l->max_window_bytes) {
		assert_int_equal(n_tensors, 1);
		assert_int_not_equal(p->allocs[i].placement, MANIFEST_PLACEMENT_PINNED);
	}
	if (p->allocs[i].placement == MANIFEST_PLACEMENT_STAGED) {
		assert_true(home->n_bytes <= l->max_alloc_bytes);
		assert_true(home->offset + home->n_bytes <= p->memfd_bytes);
	}
	if (home->home == PLACEMENT_FILE)
		assert_true(home->offset + home->n_bytes <= (l->file_bytes + 4095) / 4096 * 4096);
}

/* Tensors of an allocation lie behind one another, where the memfd or the file has them. */
static void check_tensors(const struct gguf *g, const struct placement *p, uint64_t *ret_placed)
{
	uint64_t ends[PLACEMENT_MAX_ALLOCS] = {0};

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		uint32_t index = p->order[i];
		const struct gguf_tensor *t = &g->tensors[index];
		uint32_t alloc = p->tensor_alloc[index];
		uint64_t offset = p->tensor_offset[index];

		assert_true(alloc < p->n_allocs);
		assert_true(offset >= ends[alloc]);
		ends[alloc] = offset + t->n_bytes;
		assert_true(ends[alloc] <= p->allocs[alloc].n_bytes);
		if (p->homes[alloc].home == PLACEMENT_FILE)
			assert_int_equal(p->homes[alloc].offset + offset, t->offset);
		else
			assert_int_equal(offset % PLACEMENT_ALIGN, 0);
		if (p->homes[alloc].home == PLACEMENT_MEMFD)
			assert_int_equal(p->homes[alloc].offset + offset, p->memfd_offset[index]);
		ret_placed[p->allocs[alloc].placement] += t->n_bytes;
		if (i > 0)
			assert_true(t->offset >= g->tensors[p->order[i - 1]].offset);
	}
}

static void check_plan(const struct model *m, const struct placement *p,
	const struct placement_limits *l, const struct policy *policy)
{
	uint64_t placed[PLACEMENT_N] = {0};
	uint64_t n_device = 0, n_bytes = 0;

	assert_int_equal(p->n_tensors, m->gguf.n_tensors);
	check_tensors(&m->gguf, p, placed);
	assert_int_equal(placed[0], 0);
	for (uint32_t i = 1; i < PLACEMENT_N; i++) {
		assert_int_equal(placed[i], p->n_placed_bytes[i]);
		n_bytes += placed[i];
	}
	assert_int_equal(n_bytes, m->n_bytes);
	for (uint32_t i = 0; i < p->n_allocs; i++) {
		const struct placement_alloc *home = &p->homes[i];
		assert_true(p->allocs[i].n_bytes > 0);
		if (home->home > PLACEMENT_HOST_MEMORY) {
			check_window(p, l, i);
			continue;
		}
		assert_int_equal(home->n_bytes, p->allocs[i].n_bytes);
		assert_true(home->n_bytes <= l->max_alloc_bytes);
		n_device += home->home == PLACEMENT_DEVICE_MEMORY ? home->n_bytes : 0;
	}
	assert_true(n_device + (n_device ? policy->reserve_bytes : 0) <= l->free_bytes);
	if (policy->vram_budget && n_device)
		assert_true(n_device + l->used_bytes <= policy->vram_budget);
	n_bytes = placed[MANIFEST_PLACEMENT_PINNED] + placed[MANIFEST_PLACEMENT_STAGED];
	for (uint32_t i = 0; l->is_staged && i < p->n_tensors; i++)
		if (l->is_staged[i] && p->homes[p->tensor_alloc[i]].home == PLACEMENT_MEMFD)
			n_bytes -= m->tensors[i].n_bytes;
	for (uint32_t i = 0; l->is_pinned && i < p->n_tensors; i++)
		if (l->is_pinned[i] &&
			p->allocs[p->tensor_alloc[i]].placement == MANIFEST_PLACEMENT_PINNED)
			n_bytes -= m->tensors[i].n_bytes;
	assert_true(n_bytes <= l->host_free_bytes);
	if (policy->host_budget && n_bytes)
		assert_true(n_bytes + l->host_used_bytes <= policy->host_budget);
}

static struct placement *plan(
	const struct model *m, const struct placement_limits *l, const struct policy *policy)
{
	struct placement *p = NULL;
	struct err e = ERR_NULL;

	if (placement_new(&m->gguf, l, policy, &e, NULL, &p) < 0)
		fail_msg("%s", e.text);
	check_plan(m, p, l, policy);
	return p;
}

/* Where the tensor of this name is. */
static uint32_t where(const struct model *m, const struct placement *p, const char *name)
{
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (!strcmp(m->names[i], name))
			return p->allocs[p->tensor_alloc[i]].placement;
	fail_msg("no tensor %s", name);
	return 0;
}

static void add_rule(struct policy *policy, const char *rule)
{
	struct err e = ERR_NULL;

	if (policy_add_rule(policy, rule, &e) < 0)
		fail_msg("%s", e.text);
}

/* ---- devices ---- */

/* 8 GiB beside a BAR of 256 MiB: the caller names the big heap, and 11 GiB of model do not fit. */
static void test_layers_leave_from_the_last(void **state)
{
	struct model *m = make_model(25, false);
	struct placement *p = plan(m, &discrete, &no_policy);

	(void)state;
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "output.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.0.ffn_down.weight"), MANIFEST_PLACEMENT_DEVICE);
	/* (8192 - 1000 MiB and norms) / 400: 17 layers stay. */
	assert_int_equal(where(m, p, "blk.16.attn_q.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.16.ffn_down.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.17.attn_q.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.24.ffn_down.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.24.attn_norm.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(p->n_unmet_bytes, 0);
	placement_free(p);
	free(m);
}

static void test_experts_leave_first(void **state)
{
	struct model *m = make_model(25, true);
	struct policy policy = no_policy;
	struct placement *p = plan(m, &discrete, &policy);

	(void)state;
	/* All attention stays; (8192 - 1000 - 2500 MiB) / 300: experts of 15 layers. */
	assert_int_equal(where(m, p, "blk.24.attn_q.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.14.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.14.ffn_down_exps.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.15.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_STAGED);
	placement_free(p);

	policy.experts = POLICY_EXPERTS_HOST;
	p = plan(m, &discrete, &policy);
	assert_int_equal(where(m, p, "blk.0.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.24.attn_q.weight"), MANIFEST_PLACEMENT_DEVICE);
	placement_free(p);

	policy.experts = POLICY_EXPERTS_DEVICE;
	p = plan(m, &discrete, &policy);
	assert_int_equal(where(m, p, "blk.16.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.17.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.17.attn_q.weight"), MANIFEST_PLACEMENT_STAGED);
	placement_free(p);
	free(m);
}

/* One heap of 2 GiB, no way to import host pages: host memory that it exports, or each its own. */
static void test_small_device(void **state)
{
	struct model *m = make_model(10, false);
	struct placement_limits l = discrete;

	(void)state;
	l.free_bytes = GiB(2);
	l.can_import_memfd = false;
	l.can_export_host = true;
	struct placement *p = plan(m, &l, &no_policy);
	assert_int_equal(where(m, p, "blk.9.attn_q.weight"), MANIFEST_PLACEMENT_STAGED);
	for (uint32_t i = 0; i < p->n_allocs; i++)
		if (p->allocs[i].placement == MANIFEST_PLACEMENT_STAGED)
			assert_int_equal(p->homes[i].home, PLACEMENT_HOST_MEMORY);
	placement_free(p);
	l.can_export_host = false;
	p = plan(m, &l, &no_policy);
	assert_int_equal(where(m, p, "blk.9.attn_q.weight"), MANIFEST_PLACEMENT_PAGED);
	assert_int_equal(p->n_unmet_bytes, p->n_placed_bytes[MANIFEST_PLACEMENT_PAGED]);
	assert_true(p->n_unmet_bytes > GiB(2));
	placement_free(p);
	free(m);
}

/* Allocations of at most 128 MiB: what is larger is read a part at a time, wherever it is. */
static void test_small_allocations(void **state)
{
	struct model *m = make_model(10, false);
	struct placement_limits l = discrete;

	(void)state;
	l.max_alloc_bytes = l.max_window_bytes = MiB(128);
	struct placement *p = plan(m, &l, &no_policy);
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_PAGED);
	assert_int_equal(where(m, p, "blk.3.ffn_down.weight"), MANIFEST_PLACEMENT_PAGED);
	assert_int_equal(where(m, p, "blk.3.attn_q.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(p->n_unmet_bytes, 2 * MiB(500) + 10 * MiB(300));
	placement_free(p);
	free(m);
}

/* 24 GiB of unified memory, most of it the system's: the budget counts, not the heap. */
static void test_unified(void **state)
{
	struct model *m = make_model(40, false);
	struct placement_limits l = discrete;
	struct policy policy = {.vram_budget = GiB(6)};

	(void)state;
	l.free_bytes = GiB(24);
	l.can_pin = true;
	struct placement *p = plan(m, &l, &no_policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE], m->n_bytes);
	placement_free(p);
	p = plan(m, &l, &policy);
	assert_int_equal(where(m, p, "blk.39.attn_q.weight"), MANIFEST_PLACEMENT_PINNED);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], 0);
	placement_free(p);
	/* What other models have of the budget is taken. */
	l.used_bytes = GiB(5);
	p = plan(m, &l, &policy);
	assert_true(p->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] <= GiB(1));
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_DEVICE);
	placement_free(p);
	free(m);
}

/* Two GPUs of different size: the memfd is the same for both, whatever each takes of it. */
static void test_two_devices(void **state)
{
	struct model *m = make_model(25, false);
	struct placement_limits small = discrete;

	(void)state;
	small.free_bytes = GiB(3);
	small.page_bytes = KiB(64);
	struct placement *a = plan(m, &discrete, &no_policy);
	struct placement *b = plan(m, &small, &no_policy);
	assert_int_equal(a->memfd_bytes, b->memfd_bytes);
	assert_memory_equal(
		a->memfd_offset, b->memfd_offset, m->gguf.n_tensors * sizeof(*a->memfd_offset));
	assert_true(b->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] >
		    a->n_placed_bytes[MANIFEST_PLACEMENT_STAGED]);
	placement_free(a);
	placement_free(b);
	free(m);
}

/* A memfd as the file of another load: where tensors lie in it is where they lay before. */
static void test_memfd_as_a_file(void **state)
{
	struct model *m = make_model(5, false);
	struct err e = ERR_NULL;

	(void)state;
	struct placement *before = plan(m, &discrete, &no_policy);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(placement_move_to_memfd(&m->gguf, &e), 0);
		for (uint32_t k = 0; k < before->n_tensors; k++)
			assert_int_equal(m->tensors[k].offset, before->memfd_offset[k]);
	}
	struct placement *after = plan(m, &discrete, &no_policy);
	assert_memory_equal(before->memfd_offset, after->memfd_offset,
		before->n_tensors * sizeof(*before->memfd_offset));
	placement_free(before);
	placement_free(after);
	free(m);
}

/* A heap that is nearly full, or wholly; and devices that are nobody's. */
static void test_nearly_full(void **state)
{
	struct model *m = make_model(4, false);
	struct placement_limits l = discrete;

	(void)state;
	l.free_bytes = MiB(600);
	struct placement *p = plan(m, &l, &no_policy);
	/* Not even both ends fit: what comes last in the file leaves. */
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "output.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.0.attn_q.weight"), MANIFEST_PLACEMENT_STAGED);
	placement_free(p);
	l.free_bytes = 0;
	p = plan(m, &l, &no_policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], m->n_bytes);
	placement_free(p);
	l.has_device = false;
	l.free_bytes = GiB(1);
	struct policy policy = no_policy;
	add_rule(&policy, "*=device");
	p = plan(m, &l, &policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], m->n_bytes);
	placement_free(p);
	free(m);
}

static void test_reserve_and_host_budget(void **state)
{
	struct model *m = make_model(25, false);
	struct policy policy = {.reserve_bytes = GiB(7), .host_budget = GiB(2)};
	struct placement_limits l = discrete;

	(void)state;
	struct placement *p = plan(m, &l, &policy);
	assert_true(p->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] > MiB(900));
	assert_true(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] > GiB(1));
	assert_int_equal(p->n_unmet_bytes, p->n_placed_bytes[MANIFEST_PLACEMENT_PAGED]);
	placement_free(p);
	/* A reserve that is more than there is. */
	policy.reserve_bytes = GiB(9);
	l.host_used_bytes = GiB(3);
	p = plan(m, &l, &policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_PAGED], m->n_bytes);
	placement_free(p);
	free(m);
}

/* What the memfd has for one device costs the next one nothing. */
static void test_staged_already(void **state)
{
	struct model *m = make_model(4, false);
	struct placement_limits l = discrete;
	struct policy policy = {.host_budget = m->n_bytes + MiB(1)};
	bool is_staged[MAX_TENSORS] = {false};

	(void)state;
	add_rule(&policy, "*=staged");
	for (uint32_t i = 0; i < m->gguf.n_tensors / 2; i++) {
		is_staged[i] = true;
		l.host_used_bytes += m->tensors[i].n_bytes;
	}
	l.is_staged = is_staged;
	struct placement *p = plan(m, &l, &policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], m->n_bytes);
	placement_free(p);
	/* Of others, there is no room for the rest. */
	l.host_used_bytes = policy.host_budget;
	p = plan(m, &l, &policy);
	for (uint32_t i = 0; i < m->gguf.n_tensors; i++)
		assert_int_equal(p->allocs[p->tensor_alloc[i]].placement,
			is_staged[i] ? MANIFEST_PLACEMENT_STAGED : MANIFEST_PLACEMENT_PAGED);
	placement_free(p);
	/* Host memory of the device's own is another. */
	l.can_import_memfd = false;
	l.can_export_host = true;
	p = plan(m, &l, &policy);
	assert_int_equal(p->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], 0);
	placement_free(p);
	/* The same of pages of the file that are imported already. */
	l = discrete;
	l.can_pin = true;
	l.can_import_memfd = false;
	l.is_pinned = is_staged;
	l.host_used_bytes = policy.host_budget;
	add_rule(&policy, "*=pinned");
	p = plan(m, &l, &policy);
	for (uint32_t i = 0; i < m->gguf.n_tensors; i++)
		assert_int_equal(p->allocs[p->tensor_alloc[i]].placement,
			is_staged[i] ? MANIFEST_PLACEMENT_PINNED : MANIFEST_PLACEMENT_PAGED);
	placement_free(p);
	free(m);
}

/* ---- windows ---- */

static void test_windows_of_the_file(void **state)
{
	struct model *m = make_model(6, true);
	struct placement_limits l = discrete;
	struct policy policy = no_policy;

	(void)state;
	l.can_pin = true;
	l.max_window_bytes = MiB(301);
	add_rule(&policy, "*=pinned");
	struct placement *p = plan(m, &l, &policy);
	/* Larger than a window: staged. */
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.0.ffn_gate_exps.weight"), MANIFEST_PLACEMENT_PINNED);
	for (uint32_t i = 0; i + 1 < p->n_allocs; i++) {
		const struct placement_alloc *a = &p->homes[i], *b = &p->homes[i + 1];
		if (a->home == PLACEMENT_FILE && b->home == PLACEMENT_FILE)
			assert_true(b->offset + PAGE >= a->offset + a->n_bytes);
	}
	placement_free(p);

	/* A hole as large as a layer's attention is not taken along. */
	policy = no_policy;
	l.max_window_bytes = GiB(4);
	add_rule(&policy, "*_exps*=pinned");
	p = plan(m, &l, &policy);
	for (uint32_t i = 0; i < p->n_allocs; i++)
		if (p->homes[i].home == PLACEMENT_FILE)
			assert_true(p->homes[i].n_bytes <= MiB(300) + 2 * PAGE);
	placement_free(p);
	free(m);
}

/* The last page of a file shows what is behind its end; pages after it cannot be read. */
static void test_end_of_the_file(void **state)
{
	struct model *m = make_model(1, false);
	struct placement_limits l = discrete;
	struct policy policy = no_policy;
	const struct gguf_tensor *last = &m->tensors[m->gguf.n_tensors - 1];

	(void)state;
	l.can_pin = true;
	l.file_bytes = last->offset + last->n_bytes;
	add_rule(&policy, "*=pinned");
	struct placement *p = plan(m, &l, &policy);
	assert_int_equal(where(m, p, "output.weight"), MANIFEST_PLACEMENT_PINNED);
	placement_free(p);
	l.page_bytes = KiB(64);
	assert_true(l.file_bytes % KiB(64) != 0);
	p = plan(m, &l, &policy);
	assert_int_equal(where(m, p, "output.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "token_embd.weight"), MANIFEST_PLACEMENT_PINNED);
	placement_free(p);
	/* Who reads it asks for no such pages. */
	policy = no_policy;
	add_rule(&policy, "*=paged");
	p = plan(m, &l, &policy);
	const struct placement_alloc *end = &p->homes[p->n_allocs - 1];
	assert_int_equal(end->offset + end->n_bytes, (l.file_bytes + PAGE - 1) / PAGE * PAGE);
	placement_free(p);
	free(m);
}

/* ---- rules ---- */

static void test_last_rule_wins(void **state)
{
	struct model *m = make_model(4, false);
	struct policy policy = no_policy;
	struct placement_limits l = discrete;

	(void)state;
	add_rule(&policy, "blk.[12].*=staged");
	add_rule(&policy, "blk.2.attn_*=paged");
	add_rule(&policy, "blk.3.ffn_down.weight=pinned"); /* this device cannot */
	struct placement *p = plan(m, &l, &policy);
	assert_int_equal(where(m, p, "blk.0.attn_q.weight"), MANIFEST_PLACEMENT_DEVICE);
	assert_int_equal(where(m, p, "blk.1.attn_norm.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.2.ffn_down.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(where(m, p, "blk.2.attn_q.weight"), MANIFEST_PLACEMENT_PAGED);
	assert_int_equal(where(m, p, "blk.3.ffn_down.weight"), MANIFEST_PLACEMENT_STAGED);
	assert_int_equal(p->n_unmet_bytes, 0); /* paged was asked for */
	placement_free(p);
	free(m);
}

/* What would leave the device for want of room is short of it, if others would make that room. */
static void test_short(void **state)
{
	struct model *m = make_model(1, false);
	struct placement_limits l = discrete;
	struct policy policy = no_policy;
	struct placement *p = NULL;
	const uint64_t needs = 1468039168;
	uint64_t n_short = 7;

	(void)state;
	l.free_bytes = MiB(1000);
	l.may_free_bytes = needs - MiB(1000);
	assert_int_equal(placement_new(&m->gguf, &l, &policy, NULL, &n_short, &p), PLACEMENT_SHORT);
	assert_int_equal(n_short, needs - MiB(1000));
	assert_null(p);
	/* A budget is room too. */
	l.free_bytes = GiB(2);
	l.used_bytes = MiB(200);
	policy.vram_budget = MiB(1200);
	assert_int_equal(placement_new(&m->gguf, &l, &policy, NULL, NULL, &p), PLACEMENT_SHORT);
	policy.vram_budget = 0;
	/* They have less than it takes: it is as if they had nothing, and rules are refused. */
	l.free_bytes = MiB(1000);
	l.may_free_bytes--;
	p = plan(m, &l, &no_policy);
	assert_true(p->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] < needs);
	p = placement_free(p);
	add_rule(&policy, "*=device");
	assert_int_equal(placement_new(&m->gguf, &l, &policy, NULL, &n_short, &p), -ENOMEM);
	l.may_free_bytes++;
	assert_int_equal(placement_new(&m->gguf, &l, &policy, NULL, &n_short, &p), PLACEMENT_SHORT);
	/* What a rule wants elsewhere needs no room here. */
	policy = no_policy;
	add_rule(&policy, "*=staged");
	l.free_bytes = 0;
	l.may_free_bytes = UINT64_MAX;
	placement_free(plan(m, &l, &policy));
	free(m);
}

static void test_refusals(void **state)
{
	struct model *m = make_model(1, false);
	struct policy policy = no_policy;
	struct placement_limits l = discrete;
	struct err e = ERR_NULL;
	struct placement *p = NULL;

	(void)state;
	add_rule(&policy, "*=device");
	l.max_alloc_bytes = MiB(400);
	assert_int_equal(placement_new(&m->gguf, &l, &policy, &e, NULL, &p), -E2BIG);
	assert_string_equal(e.text, "tensor token_embd.weight: needs 524288000 bytes in one piece, "
				    "test device allocates at most 419430400");
	l = discrete;
	l.free_bytes = MiB(1000);
	assert_int_equal(placement_new(&m->gguf, &l, &policy, &e, NULL, &p), -ENOMEM);
	assert_string_equal(e.text, "weights: needs 1468039168 bytes, free 1048576000 on test "
				    "device");

	m->tensors[0].n_bytes = UINT64_MAX - 3;
	assert_int_equal(placement_new(&m->gguf, &l, &no_policy, &e, NULL, &p), -EOVERFLOW);
	m->gguf.n_tensors = 0;
	assert_int_equal(placement_new(&m->gguf, &l, &no_policy, &e, NULL, &p), -EINVAL);
	free(m);

	m = make_model(PLACEMENT_MAX_ALLOCS, false);
	l = discrete;
	l.max_alloc_bytes = l.max_window_bytes = MiB(310);
	assert_int_equal(placement_new(&m->gguf, &l, &no_policy, &e, NULL, &p), -E2BIG);
	assert_null(p);
	free(m);
}

/* ---- whatever the figures ---- */

static uint64_t draw(uint64_t *seed, uint64_t n)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (*seed >> 33) % n;
}

static struct model *draw_model(uint64_t *seed)
{
	struct model *m = calloc(1, sizeof(*m));
	unsigned n = 1 + (unsigned)draw(seed, 120);

	assert_non_null(m);
	for (unsigned i = 0; i < n; i++) {
		static const char *const tails[] = {
			"a.weight", "b_exps.weight", "c_norm.weight", "d.weight"};
		uint64_t n_bytes = 1 + draw(seed, draw(seed, 2) ? KiB(4) : MiB(2));
		if (draw(seed, 8) == 0)
			add(m, "loose.weight", 2, n_bytes);
		else
			add_layer(m, i / 6, tails[draw(seed, 4)], 1 + (uint32_t)draw(seed, 3),
				n_bytes);
	}
	return m;
}

static void test_any_figures(void **state)
{
	static const char *const rules[] = {"*=staged", "blk.1.*=pinned", "*norm*=paged",
		"*_exps*=staged", "loose*=pinned", "blk.*=paged"};
	uint64_t seed = 1;
	unsigned n_refused = 0;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		struct model *m = draw_model(&seed);
		struct policy policy = {.experts = (enum policy_experts)draw(&seed, 3)};
		struct placement_limits l = discrete;
		struct placement *p = NULL;
		const struct gguf_tensor *last = &m->tensors[m->gguf.n_tensors - 1];

		l.max_alloc_bytes = KiB(300) + draw(&seed, MiB(4));
		l.max_window_bytes =
			draw(&seed, 2) ? KiB(200) + draw(&seed, KiB(100)) : l.max_alloc_bytes;
		l.page_bytes = draw(&seed, 3) ? PAGE : KiB(64);
		l.free_bytes = draw(&seed, MiB(64));
		l.used_bytes = draw(&seed, MiB(8));
		l.host_free_bytes = draw(&seed, 3) ? GiB(1) : draw(&seed, MiB(32));
		l.file_bytes = last->offset + last->n_bytes;
		l.has_device = draw(&seed, 8) > 0;
		l.can_pin = draw(&seed, 2);
		l.can_import_memfd = draw(&seed, 3);
		l.can_export_host = draw(&seed, 2);
		policy.reserve_bytes = draw(&seed, 2) ? draw(&seed, MiB(16)) : 0;
		policy.vram_budget = draw(&seed, 2) ? MiB(8) + draw(&seed, MiB(16)) : 0;
		policy.host_budget = draw(&seed, 2) ? 1 + draw(&seed, MiB(16)) : 0;
		for (uint64_t k = draw(&seed, 3); k > 0; k--)
			add_rule(&policy, rules[draw(&seed, ARRAY_SIZE(rules))]);
		int rc = placement_new(&m->gguf, &l, &policy, NULL, NULL, &p);
		assert_true(rc == 0 || rc == -E2BIG);
		if (rc == 0)
			check_plan(m, p, &l, &policy);
		n_refused += rc < 0;
		placement_free(p);
		free(m);
	}
	assert_true(n_refused < 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_layers_leave_from_the_last),
		CASE(test_experts_leave_first),
		CASE(test_small_device),
		CASE(test_small_allocations),
		CASE(test_unified),
		CASE(test_two_devices),
		CASE(test_memfd_as_a_file),
		CASE(test_nearly_full),
		CASE(test_reserve_and_host_budget),
		CASE(test_staged_already),
		CASE(test_windows_of_the_file),
		CASE(test_end_of_the_file),
		CASE(test_last_rule_wins),
		CASE(test_short),
		CASE(test_refusals),
		CASE(test_any_figures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
