/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/choice.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/placement.h"
#include "weightd/policy.h"

enum { CHOICE_NO_LAYER = -1 };

struct choice_tensor {
	uint64_t n_bytes; /* aligned */
	int32_t layer;    /* CHOICE_NO_LAYER */
	uint32_t rule;    /* enum manifest_placement, 0: none */
	bool is_staged;   /* there already, for another device */
	bool is_pinned;   /* charged already, the same */
	bool is_expert;   /* a tensor of all experts of a layer */
	bool is_vector;   /* norms and biases: too small to be worth a copy */
	bool is_on_device;
};

struct chooser {
	const struct gguf *g;
	const struct placement_limits *limits;
	const struct policy *policy;
	const uint32_t *order;
	struct choice_tensor *tensors; /* [n_tensors] by tensor index */
	uint32_t n_tensors;
	int32_t last_layer;
	uint64_t room;      /* of the device */
	uint64_t on_device; /* what is on it */
	uint64_t host_room;
};

static uint64_t choice_subtract(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t choice_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* "blk.N.": N. */
static int32_t choice_get_layer(const char *name)
{
	unsigned n;
	char dot;

	if (sscanf(name, "blk.%9u%c", &n, &dot) != 2 || dot != '.' || n >= MANIFEST_MAX_LAYERS)
		return CHOICE_NO_LAYER;
	return (int32_t)n;
}

static int choice_read_tensor(struct chooser *c, uint32_t i, struct err *ret_err)
{
	const struct gguf_tensor *t = &c->g->tensors[i];
	struct choice_tensor *ct = &c->tensors[i];
	char name[GGUF_MAX_NAME_BYTES + 1];
	bool is_large;

	snprintf(name, sizeof(name), "%.*s", (int)choice_min(t->name.n_bytes, GGUF_MAX_NAME_BYTES),
		t->name.data);
	if (!bytes_align(t->n_bytes, PLACEMENT_ALIGN, &ct->n_bytes))
		ct->n_bytes = UINT64_MAX;
	ct->layer = choice_get_layer(name);
	ct->is_expert = strstr(name, "_exps") != NULL;
	ct->is_vector = t->n_dims <= 1;
	ct->rule = policy_find(c->policy, name);
	ct->is_staged =
		c->limits->can_import_memfd && c->limits->is_staged && c->limits->is_staged[i];
	if (!c->limits->has_device && ct->rule == MANIFEST_PLACEMENT_DEVICE)
		ct->rule = 0;
	ct->is_pinned = c->limits->is_pinned && c->limits->is_pinned[i];
	if (ct->layer > c->last_layer)
		c->last_layer = ct->layer;
	is_large = ct->n_bytes > c->limits->max_alloc_bytes;
	if (is_large && ct->rule == MANIFEST_PLACEMENT_DEVICE)
		return err_set(ret_err, E2BIG,
			"tensor %s: needs %llu bytes in one piece, %s allocates at most %llu",
			gguf_label(t->name).text, (unsigned long long)t->n_bytes, c->limits->device,
			(unsigned long long)c->limits->max_alloc_bytes);
	if (ct->rule)
		ct->is_on_device = ct->rule == MANIFEST_PLACEMENT_DEVICE;
	else
		ct->is_on_device = !is_large && c->limits->has_device &&
				   !(ct->is_expert && c->policy->experts == POLICY_EXPERTS_HOST);
	if (ct->is_on_device && __builtin_add_overflow(c->on_device, ct->n_bytes, &c->on_device))
		return err_set(ret_err, EOVERFLOW, "tensors: their bytes overflow");
	return 0;
}

static void choice_leave(struct chooser *c, struct choice_tensor *t)
{
	t->is_on_device = false;
	c->on_device -= t->n_bytes;
}

/* Layer by layer from the last, until the rest fits. */
static void choice_leave_layers(struct chooser *c, bool only_experts, bool with_vectors)
{
	for (int32_t layer = c->last_layer; layer >= 0 && c->on_device > c->room; layer--)
		for (uint32_t i = 0; i < c->n_tensors; i++) {
			struct choice_tensor *t = &c->tensors[i];
			if (t->layer == layer && t->is_on_device && !t->rule &&
				(t->is_expert || !only_experts) && (!t->is_vector || with_vectors))
				choice_leave(c, t);
		}
}

static int choice_fit_device(struct chooser *c, struct err *ret_err)
{
	if (c->policy->experts == POLICY_EXPERTS_AUTO)
		choice_leave_layers(c, true, false);
	choice_leave_layers(c, false, false);
	choice_leave_layers(c, false, true);
	for (uint32_t i = c->n_tensors; i > 0 && c->on_device > c->room; i--) {
		struct choice_tensor *t = &c->tensors[c->order[i - 1]];
		if (t->is_on_device && !t->rule)
			choice_leave(c, t);
	}
	if (c->on_device > c->room)
		return err_set(ret_err, ENOMEM, "weights: needs %llu bytes, free %llu on %s",
			(unsigned long long)c->on_device, (unsigned long long)c->room,
			c->limits->device);
	return 0;
}

/* The window that a tensor at `offset` needs for itself; false when it has no end. */
static bool choice_get_window(
	const struct chooser *c, uint64_t offset, uint64_t n_bytes, uint64_t *ret_end)
{
	uint64_t page = c->limits->page_bytes;

	return !__builtin_add_overflow(offset, n_bytes, ret_end) &&
	       bytes_align(*ret_end, page, ret_end);
}

static bool choice_can_pin(const struct chooser *c, const struct gguf_tensor *t)
{
	const struct placement_limits *l = c->limits;
	uint64_t end, file_end;

	return l->can_pin && t->offset % PLACEMENT_PIN_ALIGN == 0 &&
	       choice_get_window(c, t->offset, t->n_bytes, &end) &&
	       end - t->offset / l->page_bytes * l->page_bytes <= l->max_window_bytes &&
	       /* What a mapping shows behind the file's last page cannot be read. */
	       bytes_align(l->file_bytes, l->host_page_bytes, &file_end) && end <= file_end;
}

static bool choice_can_stage(const struct chooser *c, const struct choice_tensor *ct)
{
	const struct placement_limits *l = c->limits;
	uint64_t n_bytes = ct->n_bytes;

	if (n_bytes > c->host_room && !ct->is_staged)
		return false;
	/* Somewhere in a memfd: up to a page more at either end. */
	if (l->can_import_memfd && __builtin_add_overflow(n_bytes, 2 * l->page_bytes, &n_bytes))
		return false;
	return (l->can_import_memfd || l->can_export_host) && n_bytes <= l->max_alloc_bytes;
}

static uint32_t choice_place_host(
	struct chooser *c, const struct gguf_tensor *t, const struct choice_tensor *ct)
{
	uint32_t wish = ct->rule ? ct->rule : (uint32_t)MANIFEST_PLACEMENT_PINNED;

	if (wish == MANIFEST_PLACEMENT_PINNED && (ct->n_bytes <= c->host_room || ct->is_pinned) &&
		choice_can_pin(c, t)) {
		c->host_room -= ct->is_pinned ? 0 : ct->n_bytes;
		return MANIFEST_PLACEMENT_PINNED;
	}
	if (wish != MANIFEST_PLACEMENT_PAGED && choice_can_stage(c, ct)) {
		c->host_room -= ct->is_staged ? 0 : ct->n_bytes;
		return MANIFEST_PLACEMENT_STAGED;
	}
	return MANIFEST_PLACEMENT_PAGED;
}

static void choice_set_rooms(struct chooser *c)
{
	const struct placement_limits *l = c->limits;
	const struct policy *p = c->policy;

	c->room = l->has_device ? choice_subtract(l->free_bytes, p->reserve_bytes) : 0;
	if (p->vram_budget)
		c->room = choice_min(c->room, choice_subtract(p->vram_budget, l->used_bytes));
	c->host_room = l->host_free_bytes;
	if (p->host_budget)
		c->host_room = choice_min(
			c->host_room, choice_subtract(p->host_budget, l->host_used_bytes));
}

static int choice_run(struct chooser *c, struct err *ret_err, struct choice *choice)
{
	int rc = 0;

	choice_set_rooms(c);
	for (uint32_t i = 0; i < c->n_tensors && rc == 0; i++)
		rc = choice_read_tensor(c, i, ret_err);
	if (rc < 0)
		return rc;
	if (c->on_device > c->room && c->on_device - c->room <= c->limits->may_free_bytes) {
		choice->n_short_bytes = c->on_device - c->room;
		return CHOICE_SHORT;
	}
	rc = choice_fit_device(c, ret_err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < c->n_tensors; i++) {
		uint32_t index = c->order[i];
		const struct choice_tensor *ct = &c->tensors[index];
		const struct gguf_tensor *t = &c->g->tensors[index];
		uint32_t placement = MANIFEST_PLACEMENT_DEVICE;

		if (!ct->is_on_device)
			placement = choice_place_host(c, t, ct);
		if (placement == MANIFEST_PLACEMENT_PAGED && ct->rule != MANIFEST_PLACEMENT_PAGED)
			choice->n_unmet_bytes += t->n_bytes;
		choice->placement[index] = (uint8_t)placement;
	}
	return 0;
}

int choice_init(const struct gguf *g, const uint32_t *order, const struct placement_limits *limits,
	const struct policy *policy, struct err *ret_err, struct choice *ret_choice)
{
	_cleanup_(cleanup_free)
	struct choice_tensor *tensors = calloc(g->n_tensors, sizeof(*tensors));
	struct choice choice = {.placement = calloc(g->n_tensors, 1)};
	struct chooser c = {.g = g,
		.limits = limits,
		.policy = policy,
		.order = order,
		.tensors = tensors,
		.n_tensors = (uint32_t)g->n_tensors,
		.last_layer = CHOICE_NO_LAYER};
	int rc = -ENOMEM;

	if (tensors && choice.placement)
		rc = choice_run(&c, ret_err, &choice);
	else
		err_set(ret_err, ENOMEM, "placement: out of memory");
	if (rc)
		choice_fini(&choice);
	if (rc >= 0)
		*ret_choice = choice;
	return rc;
}

void choice_fini(struct choice *c)
{
	free(c->placement);
	c->placement = NULL;
}
