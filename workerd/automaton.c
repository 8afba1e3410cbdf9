/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/automaton.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "workerd/gbnf.h"

enum {
	N_STATE_SLOTS = 2 * AUTOMATON_MAX_STATES,
	N_NODE_SLOTS = 2 * AUTOMATON_MAX_NODES,
	N_SEEN_SLOTS = 2 * AUTOMATON_MAX_STACKS,
	AT_END = UINT32_MAX, /* of the text */
};

/* What comes behind a rule: the element `at`, then the node `rest`. Node 0: nothing. */
struct node {
	uint32_t at;
	uint32_t rest;
	uint32_t depth;
};

/* One stack. part: of the class at `at`, where its code point is so far; 0 of a byte. */
struct stack {
	uint32_t at;
	uint32_t part;
	uint32_t rest;
};

struct state {
	uint32_t first; /* in stacks, sorted */
	uint32_t n;
};

struct seen {
	struct stack stack;
	uint32_t stamp;
};

/* Node and state numbers begin at 1 and 2; zeroed memory that is not used is not resident. */
struct tables {
	uint16_t (*next)[256]; /* [AUTOMATON_MAX_STATES][256] */
	struct state *states;  /* [AUTOMATON_MAX_STATES] */
	uint16_t *state_slots; /* [N_STATE_SLOTS] */
	struct node *nodes;    /* [AUTOMATON_MAX_NODES] */
	uint32_t *node_slots;  /* [N_NODE_SLOTS] */
	struct stack *stacks;  /* [AUTOMATON_MAX_KEPT] */
	uint32_t n_states;
	uint32_t n_nodes;
	uint32_t n_stacks;
};

struct automaton {
	const struct gbnf *gbnf;
	struct tables tables;
	struct automaton_pin *pins;
	/* The step that is being made. */
	struct stack *work; /* [AUTOMATON_MAX_STACKS] all that was come to, as a queue */
	uint32_t n_work;
	struct stack *found; /* [AUTOMATON_MAX_STACKS] of those, what waits for a byte */
	struct seen *seen;   /* [N_SEEN_SLOTS] those in work, of this stamp */
	uint32_t stamp;
	uint64_t n_budget; /* stacks that may still be looked at */
};

static void tables_fini(struct tables *t)
{
	free(t->next);
	free(t->states);
	free(t->state_slots);
	free(t->nodes);
	free(t->node_slots);
	free(t->stacks);
}

static int tables_init(struct tables *t)
{
	*t = (struct tables){
		.next = calloc(AUTOMATON_MAX_STATES, sizeof(*t->next)),
		.states = calloc(AUTOMATON_MAX_STATES, sizeof(*t->states)),
		.state_slots = calloc(N_STATE_SLOTS, sizeof(*t->state_slots)),
		.nodes = calloc(AUTOMATON_MAX_NODES, sizeof(*t->nodes)),
		.node_slots = calloc(N_NODE_SLOTS, sizeof(*t->node_slots)),
		.stacks = calloc(AUTOMATON_MAX_KEPT, sizeof(*t->stacks)),
		.n_states = AUTOMATON_DEAD + 1,
		.n_nodes = 1,
	};
	if (t->next && t->states && t->state_slots && t->nodes && t->node_slots && t->stacks)
		return 0;
	tables_fini(t);
	return -ENOMEM;
}

int automaton_new(const struct gbnf *g, struct automaton **ret_automaton)
{
	struct automaton *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->gbnf = g;
	a->work = calloc(AUTOMATON_MAX_STACKS, sizeof(*a->work));
	a->found = calloc(AUTOMATON_MAX_STACKS, sizeof(*a->found));
	a->seen = calloc(N_SEEN_SLOTS, sizeof(*a->seen));
	if (!a->work || !a->found || !a->seen || tables_init(&a->tables)) {
		a->tables = (struct tables){0};
		automaton_free(a);
		return -ENOMEM;
	}
	*ret_automaton = a;
	return 0;
}

struct automaton *automaton_free(struct automaton *a)
{
	if (!a)
		return NULL;
	assert(!a->pins);
	tables_fini(&a->tables);
	free(a->work);
	free(a->found);
	free(a->seen);
	free(a);
	return NULL;
}

/* The finalizer of MurmurHash3 (Austin Appleby, public domain), over words. */
static uint32_t mix(uint32_t hash, uint32_t word)
{
	hash = (hash ^ word) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

static uint32_t hash_stacks(const struct stack *stacks, uint32_t n)
{
	uint32_t hash = n;

	for (uint32_t i = 0; i < n; i++)
		hash = mix(mix(mix(hash, stacks[i].at), stacks[i].part), stacks[i].rest);
	return hash;
}

static bool is_same(const struct stack *a, const struct stack *b)
{
	return a->at == b->at && a->part == b->part && a->rest == b->rest;
}

static int compare_stacks(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct stack));
}

/* One node for equal contents: stacks are then equal where their nodes are. */
static int get_node(struct tables *t, uint32_t at, uint32_t rest, uint32_t *ret_node)
{
	uint32_t slot = mix(mix(0, at), rest) % N_NODE_SLOTS;

	for (; t->node_slots[slot]; slot = (slot + 1) % N_NODE_SLOTS) {
		const struct node *n = &t->nodes[t->node_slots[slot]];

		if (n->at == at && n->rest == rest) {
			*ret_node = t->node_slots[slot];
			return 0;
		}
	}
	if (t->n_nodes == AUTOMATON_MAX_NODES)
		return -ENOBUFS;
	t->nodes[t->n_nodes] = (struct node){at, rest, t->nodes[rest].depth + 1};
	t->node_slots[slot] = t->n_nodes;
	*ret_node = t->n_nodes++;
	return 0;
}

/* The state of n sorted stacks. */
static int get_state(struct tables *t, const struct stack *stacks, uint32_t n, uint16_t *ret_state)
{
	uint32_t slot = hash_stacks(stacks, n) % N_STATE_SLOTS;

	if (!n) {
		*ret_state = AUTOMATON_DEAD;
		return 0;
	}
	for (; t->state_slots[slot]; slot = (slot + 1) % N_STATE_SLOTS) {
		const struct state *s = &t->states[t->state_slots[slot]];

		if (s->n == n && memcmp(&t->stacks[s->first], stacks, n * sizeof(*stacks)) == 0) {
			*ret_state = t->state_slots[slot];
			return 0;
		}
	}
	if (t->n_states == AUTOMATON_MAX_STATES || n > AUTOMATON_MAX_KEPT - t->n_stacks)
		return -ENOBUFS;
	t->states[t->n_states] = (struct state){t->n_stacks, n};
	memcpy(&t->stacks[t->n_stacks], stacks, n * sizeof(*stacks));
	t->n_stacks += n;
	t->state_slots[slot] = (uint16_t)t->n_states;
	*ret_state = (uint16_t)t->n_states++;
	return 0;
}

/* Puts a stack into the step's work unless it was there. */
static int add_work(struct automaton *a, uint32_t at, uint32_t part, uint32_t rest)
{
	const struct stack s = {at, part, rest};
	uint32_t slot = hash_stacks(&s, 1) % N_SEEN_SLOTS;

	for (; a->seen[slot].stamp == a->stamp; slot = (slot + 1) % N_SEEN_SLOTS)
		if (is_same(&a->seen[slot].stack, &s))
			return 0;
	if (a->n_work == AUTOMATON_MAX_STACKS)
		return -E2BIG;
	a->seen[slot] = (struct seen){s, a->stamp};
	a->work[a->n_work++] = s;
	return 0;
}

/* Goes into a rule: all its alternates, with what is behind it on the stack. */
static int enter_rule(struct automaton *a, const struct stack *s, uint32_t rule)
{
	const struct gbnf *g = a->gbnf;
	uint32_t rest = s->rest;

	/* The last of an alternate leaves nothing behind: loops do not grow the stack. */
	if (gbnf_get_kind(g->elements[s->at + 1]) != GBNF_END) {
		int r = get_node(&a->tables, s->at + 1, s->rest, &rest);
		if (r)
			return r;
	}
	if (a->tables.nodes[rest].depth > AUTOMATON_MAX_DEPTH)
		return 0;
	for (uint32_t i = g->first_alternate[rule]; i < g->first_alternate[rule + 1]; i++) {
		int r = add_work(a, g->alternates[i], 0, rest);
		if (r)
			return r;
	}
	return 0;
}

/* From a stack to those that wait for a byte, one of which it may be itself. */
static int expand(struct automaton *a, const struct stack *s, uint32_t *n_found)
{
	const struct node *node;
	uint32_t element;

	if (s->at == AT_END || s->part) {
		a->found[(*n_found)++] = *s;
		return 0;
	}
	element = a->gbnf->elements[s->at];
	switch (gbnf_get_kind(element)) {
	case GBNF_BYTE: a->found[(*n_found)++] = *s; return 0;
	case GBNF_CLASS: return add_work(a, s->at, gbnf_get_value(element), s->rest);
	case GBNF_RULE: return enter_rule(a, s, gbnf_get_value(element));
	case GBNF_END: break;
	}
	if (!s->rest)
		return add_work(a, AT_END, 0, 0);
	node = &a->tables.nodes[s->rest];
	return add_work(a, node->at, 0, node->rest);
}

static void begin_step(struct automaton *a)
{
	a->n_work = 0;
	if (++a->stamp == 0) {
		memset(a->seen, 0, N_SEEN_SLOTS * sizeof(*a->seen));
		a->stamp = 1;
	}
}

void automaton_set_budget(struct automaton *a, uint64_t n_stacks)
{
	a->n_budget = n_stacks;
}

/* The state of all that the step's work leads to. */
static int end_step(struct automaton *a, uint16_t *ret_state)
{
	uint32_t n_found = 0;

	for (uint32_t i = 0; i < a->n_work; i++) {
		const struct stack s = a->work[i];
		int r = expand(a, &s, &n_found);

		if (r)
			return r;
	}
	if (a->n_work > a->n_budget)
		return -EOVERFLOW;
	a->n_budget -= a->n_work;
	qsort(a->found, n_found, sizeof(*a->found), compare_stacks);
	return get_state(&a->tables, a->found, n_found, ret_state);
}

static int add_start(struct automaton *a)
{
	const struct gbnf *g = a->gbnf;
	int r = 0;

	for (uint32_t i = g->first_alternate[g->root]; !r && i < g->first_alternate[g->root + 1];
		i++)
		r = add_work(a, g->alternates[i], 0, 0);
	return r;
}

int automaton_pin(struct automaton *a, struct automaton_pin *pin)
{
	begin_step(a);
	int r = add_start(a);
	if (!r)
		r = end_step(a, &pin->state);
	if (r)
		return r;
	pin->previous = NULL;
	pin->next = a->pins;
	if (a->pins)
		a->pins->previous = pin;
	a->pins = pin;
	return 0;
}

void automaton_unpin(struct automaton *a, struct automaton_pin *pin)
{
	if (pin->next)
		pin->next->previous = pin->previous;
	if (pin->previous)
		pin->previous->next = pin->next;
	else
		a->pins = pin->next;
}

/* What one stack becomes with a byte. */
static int step_stack(struct automaton *a, const struct stack *s, uint8_t byte)
{
	uint32_t part;

	if (s->at == AT_END)
		return 0;
	if (!s->part)
		return gbnf_get_value(a->gbnf->elements[s->at]) == byte
			       ? add_work(a, s->at + 1, 0, s->rest)
			       : 0;
	part = a->gbnf->classes.next[s->part][byte];
	if (part == UTF8_CLASS_DEAD)
		return 0;
	if (part == UTF8_CLASS_DONE)
		return add_work(a, s->at + 1, 0, s->rest);
	return add_work(a, s->at, part, s->rest);
}

uint16_t automaton_look_up(const struct automaton *a, uint16_t state, uint8_t byte)
{
	return a->tables.next[state][byte];
}

int automaton_step(struct automaton *a, uint16_t state, uint8_t byte, uint16_t *ret_state)
{
	const struct state *s = &a->tables.states[state];
	uint16_t *next = &a->tables.next[state][byte];
	int r = 0;

	if (state == AUTOMATON_DEAD) {
		*ret_state = AUTOMATON_DEAD;
		return 0;
	}
	if (*next == AUTOMATON_UNKNOWN) {
		begin_step(a);
		for (uint32_t i = 0; !r && i < s->n; i++)
			r = step_stack(a, &a->tables.stacks[s->first + i], byte);
		if (!r)
			r = end_step(a, next);
		if (r)
			return r;
	}
	*ret_state = *next;
	return 0;
}

bool automaton_is_complete(const struct automaton *a, uint16_t state)
{
	const struct state *s = &a->tables.states[state];

	for (uint32_t i = 0; i < s->n; i++)
		if (a->tables.stacks[s->first + i].at == AT_END)
			return true;
	return false;
}

bool automaton_is_final(const struct automaton *a, uint16_t state)
{
	const struct state *s = &a->tables.states[state];

	return s->n == 1 && a->tables.stacks[s->first].at == AT_END;
}

/* A node of the old tables in the new ones; at most AUTOMATON_MAX_DEPTH + 1 deep. */
static int move_node(
	struct tables *to, const struct tables *from, uint32_t node, uint32_t *ret_node)
{
	uint32_t rest;

	if (!node) {
		*ret_node = 0;
		return 0;
	}
	int r = move_node(to, from, from->nodes[node].rest, &rest);
	return r ? r : get_node(to, from->nodes[node].at, rest, ret_node);
}

static int move_state(struct automaton *a, struct tables *to, uint16_t state, uint16_t *ret_state)
{
	const struct state *s = &a->tables.states[state];

	if (state == AUTOMATON_DEAD) {
		*ret_state = AUTOMATON_DEAD;
		return 0;
	}
	for (uint32_t i = 0; i < s->n; i++) {
		a->found[i] = a->tables.stacks[s->first + i];
		int r = move_node(to, &a->tables, a->found[i].rest, &a->found[i].rest);
		if (r)
			return r;
	}
	qsort(a->found, s->n, sizeof(*a->found), compare_stacks);
	return get_state(to, a->found, s->n, ret_state);
}

int automaton_flush(struct automaton *a)
{
	struct tables to;
	int r = tables_init(&to);

	if (r)
		return r;
	/* What is pinned was in tables of this size, and is so in these. */
	for (struct automaton_pin *pin = a->pins; !r && pin; pin = pin->next)
		r = move_state(a, &to, pin->state, &pin->state);
	assert(!r);
	tables_fini(&a->tables);
	a->tables = to;
	return r;
}
