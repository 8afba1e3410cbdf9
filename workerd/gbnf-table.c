/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/gbnf-table.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "workerd/gbnf.h"

/* Room for one more of n in *list. */
static int grow(void *list, uint32_t n, uint32_t *n_room, size_t size)
{
	void **p = list;

	if (n < *n_room)
		return 0;
	uint32_t n_new = *n_room ? 2 * *n_room : 64;
	void *bigger = reallocarray(*p, n_new, size);
	if (!bigger)
		return -ENOMEM;
	*p = bigger;
	*n_room = n_new;
	return 0;
}

int gbnf_table_init(struct gbnf_table *t)
{
	*t = (struct gbnf_table){.gbnf = calloc(1, sizeof(*t->gbnf))};
	t->slots = calloc(GBNF_TABLE_SLOTS, sizeof(*t->slots));
	return t->gbnf && t->slots ? 0 : -ENOMEM;
}

void gbnf_table_fini(struct gbnf_table *t)
{
	gbnf_free(t->gbnf);
	free(t->rules);
	free(t->alternates);
	free(t->slots);
	for (uint32_t i = 0; i < t->n_classes; i++)
		free(t->classes[i].ranges);
	free(t->classes);
}

static int add_rule(struct gbnf_table *t, const struct gbnf_table_rule *rule, uint32_t *ret_rule)
{
	if (t->n_rules == GBNF_MAX_RULES)
		return -E2BIG;
	int r = grow(&t->rules, t->n_rules, &t->n_rules_room, sizeof(*t->rules));
	if (r)
		return r;
	t->rules[t->n_rules] = *rule;
	*ret_rule = t->n_rules++;
	return 0;
}

int gbnf_table_get_rule(
	struct gbnf_table *t, const char *name, uint32_t n_name, const char *at, uint32_t *ret_rule)
{
	uint32_t slot = manifest_hash_bytes(name, n_name) % GBNF_TABLE_SLOTS;

	_Static_assert(2 * (int)GBNF_MAX_RULES <= (int)GBNF_TABLE_SLOTS, "a probe must end");
	for (; t->slots[slot]; slot = (slot + 1) % GBNF_TABLE_SLOTS) {
		const struct gbnf_table_rule *rule = &t->rules[t->slots[slot] - 1];

		if (rule->n_name == n_name && memcmp(rule->name, name, n_name) == 0) {
			*ret_rule = t->slots[slot] - 1;
			return 0;
		}
	}
	struct gbnf_table_rule rule = {.name = name, .n_name = n_name, .at = at};
	int r = add_rule(t, &rule, ret_rule);
	if (!r)
		t->slots[slot] = *ret_rule + 1;
	return r;
}

int gbnf_table_make_rule(struct gbnf_table *t, uint32_t outer, uint32_t *ret_rule)
{
	struct gbnf_table_rule rule = t->rules[outer];

	rule.is_defined = true;
	rule.is_loop = false;
	return add_rule(t, &rule, ret_rule);
}

int gbnf_table_add_alternate(
	struct gbnf_table *t, uint32_t rule, const uint32_t *elements, uint32_t n)
{
	struct gbnf *g = t->gbnf;
	int r = grow(
		&t->alternates, t->n_alternates, &t->n_alternates_room, sizeof(*t->alternates));

	if (r)
		return r;
	if (n + 1 > GBNF_MAX_ELEMENTS - g->n_elements)
		return -E2BIG;
	t->alternates[t->n_alternates++] = (struct gbnf_table_alternate){rule, g->n_elements};
	for (uint32_t i = 0; i <= n; i++) {
		r = grow(&g->elements, g->n_elements, &t->n_elements_room, sizeof(*g->elements));
		if (r)
			return r;
		g->elements[g->n_elements++] = i < n ? elements[i] : gbnf_make_element(GBNF_END, 0);
	}
	return 0;
}

int gbnf_table_get_class(struct gbnf_table *t, struct utf8_class_range *ranges, uint32_t n,
	bool is_negated, uint32_t *ret_element)
{
	uint16_t state;

	n = utf8_class_normalise(ranges, n, is_negated);
	if (!n)
		return -EINVAL;
	uint32_t hash = manifest_hash_bytes(ranges, n * (uint32_t)sizeof(*ranges));
	for (uint32_t i = 0; i < t->n_classes; i++) {
		const struct gbnf_table_class *c = &t->classes[i];

		if (c->hash == hash && c->n == n &&
			memcmp(c->ranges, ranges, n * sizeof(*ranges)) == 0) {
			*ret_element = gbnf_make_element(GBNF_CLASS, c->state);
			return 0;
		}
	}
	int r = grow(&t->classes, t->n_classes, &t->n_classes_room, sizeof(*t->classes));
	if (r)
		return r;
	r = utf8_class_add(&t->gbnf->classes, ranges, n, &state);
	if (r)
		return r;
	struct utf8_class_range *copy = malloc(n * sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	memcpy(copy, ranges, n * sizeof(*copy));
	t->classes[t->n_classes++] = (struct gbnf_table_class){copy, n, hash, state};
	*ret_element = gbnf_make_element(GBNF_CLASS, state);
	return 0;
}

int gbnf_table_finish(struct gbnf_table *t)
{
	struct gbnf *g = t->gbnf;

	g->n_rules = t->n_rules;
	g->n_alternates = t->n_alternates;
	g->first_alternate = calloc((uint64_t)t->n_rules + 2, sizeof(*g->first_alternate));
	g->alternates = calloc((uint64_t)t->n_alternates + 1, sizeof(*g->alternates));
	if (!g->first_alternate || !g->alternates)
		return -ENOMEM;
	/* Counting sort: [rule + 2] counts, then [rule + 1] is where the next of a rule goes. */
	for (uint32_t i = 0; i < t->n_alternates; i++)
		g->first_alternate[t->alternates[i].rule + 2]++;
	for (uint32_t i = 2; i < t->n_rules + 2; i++)
		g->first_alternate[i] += g->first_alternate[i - 1];
	for (uint32_t i = 0; i < t->n_alternates; i++)
		g->alternates[g->first_alternate[t->alternates[i].rule + 1]++] =
			t->alternates[i].element;
	return 0;
}

/* Which rules hold: those with an alternate all of whose rules hold. */
struct closure {
	bool *holds;       /* [n_rules] */
	uint32_t *n_open;  /* [n_alternates] rules in it that do not hold yet */
	uint32_t *rule_of; /* [n_alternates] */
	uint32_t *first;   /* [n_rules + 2] uses of a rule */
	uint32_t *uses;    /* alternates, rule by rule */
	uint32_t *pending; /* [n_rules] rules whose uses are to be told */
	uint32_t n_pending;
};

static void closure_fini(struct closure *c)
{
	free(c->holds);
	free(c->n_open);
	free(c->rule_of);
	free(c->first);
	free(c->uses);
	free(c->pending);
}

static void closure_hold(struct closure *c, uint32_t rule)
{
	if (!c->holds[rule])
		c->pending[c->n_pending++] = rule;
	c->holds[rule] = true;
}

static int closure_init(struct closure *c, const struct gbnf *g)
{
	*c = (struct closure){
		.holds = calloc(g->n_rules, sizeof(bool)),
		.n_open = calloc(g->n_alternates, sizeof(uint32_t)),
		.rule_of = calloc(g->n_alternates, sizeof(uint32_t)),
		.first = calloc((uint64_t)g->n_rules + 2, sizeof(uint32_t)),
		.uses = calloc(g->n_elements, sizeof(uint32_t)),
		.pending = calloc(g->n_rules, sizeof(uint32_t)),
	};
	return c->holds && c->n_open && c->rule_of && c->first && c->uses && c->pending ? 0
											: -ENOMEM;
}

/* Of one alternate: its rules, and with is_nullable its bytes too, which never hold. */
static void closure_count(struct closure *c, const struct gbnf *g, uint32_t a, bool is_nullable)
{
	for (const uint32_t *e = &g->elements[g->alternates[a]]; gbnf_get_kind(*e); e++) {
		bool is_rule = gbnf_get_kind(*e) == GBNF_RULE;

		if (is_rule)
			c->first[gbnf_get_value(*e) + 2]++;
		c->n_open[a] += is_rule || is_nullable;
	}
}

/* is_nullable: rules that may be empty; else rules that can end. */
static int closure_make(struct closure *c, const struct gbnf *g, bool is_nullable)
{
	int r = closure_init(c, g);

	if (r)
		return r;
	for (uint32_t rule = 0; rule < g->n_rules; rule++)
		for (uint32_t a = g->first_alternate[rule]; a < g->first_alternate[rule + 1]; a++) {
			c->rule_of[a] = rule;
			closure_count(c, g, a, is_nullable);
			if (!c->n_open[a])
				closure_hold(c, rule);
		}
	for (uint32_t i = 2; i < g->n_rules + 2; i++)
		c->first[i] += c->first[i - 1];
	for (uint32_t a = 0; a < g->n_alternates; a++)
		for (const uint32_t *e = &g->elements[g->alternates[a]]; gbnf_get_kind(*e); e++)
			if (gbnf_get_kind(*e) == GBNF_RULE)
				c->uses[c->first[gbnf_get_value(*e) + 1]++] = a;
	while (c->n_pending) {
		uint32_t rule = c->pending[--c->n_pending];

		for (uint32_t i = c->first[rule]; i < c->first[rule + 1]; i++)
			if (!--c->n_open[c->uses[i]])
				closure_hold(c, c->rule_of[c->uses[i]]);
	}
	return 0;
}

/* Where the search for left recursion stands in one rule. */
struct visit {
	uint32_t rule;
	uint32_t alternate;
	uint32_t element; /* the next to look at */
};

/* The next rule that v's may begin with; UINT32_MAX: there is no more. */
static uint32_t visit_next(const struct gbnf_table *t, const bool *nullable, struct visit *v)
{
	const struct gbnf *g = t->gbnf;

	while (v->alternate < g->first_alternate[v->rule + 1]) {
		uint32_t e = g->elements[v->element];
		uint32_t rule = gbnf_get_value(e);
		bool is_rule = gbnf_get_kind(e) == GBNF_RULE;

		if (is_rule && nullable[rule]) {
			v->element++;
		} else {
			v->alternate++;
			if (v->alternate < g->first_alternate[v->rule + 1])
				v->element = g->alternates[v->alternate];
		}
		/* `(x?)*` follows itself at its end, which adds nothing to a stack. */
		if (is_rule && !(t->rules[v->rule].is_loop && rule == v->rule))
			return rule;
	}
	return UINT32_MAX;
}

/* A depth-first search without recursion: a hostile chain of rules is as long as the cap. */
static int find_left(const struct gbnf_table *t, const bool *nullable, uint32_t *ret_rule)
{
	enum { NEW, OPEN, DONE };
	const struct gbnf *g = t->gbnf;
	_cleanup_(cleanup_free)
	uint8_t *states = calloc(g->n_rules, 1);
	_cleanup_(cleanup_free)
	struct visit *stack = calloc(g->n_rules, sizeof(*stack));

	if (!states || !stack)
		return -ENOMEM;
	for (uint32_t root = 0; root < g->n_rules; root++) {
		uint32_t n = 0, next = root;

		if (states[root] != NEW)
			continue;
		for (;;) {
			if (next != UINT32_MAX && states[next] == OPEN) {
				*ret_rule = next;
				return GBNF_TABLE_LEFT;
			}
			if (next != UINT32_MAX && states[next] == NEW) {
				uint32_t a = g->first_alternate[next];

				states[next] = OPEN;
				stack[n++] = (struct visit){next, a, g->alternates[a]};
			} else if (next == UINT32_MAX) {
				states[stack[--n].rule] = DONE;
			}
			if (!n)
				break;
			next = visit_next(t, nullable, &stack[n - 1]);
		}
	}
	return 0;
}

int gbnf_table_judge(const struct gbnf_table *t, uint32_t *ret_rule)
{
	_cleanup_(closure_fini)
	struct closure ends = {0};
	_cleanup_(closure_fini)
	struct closure nullable = {0};
	int r = closure_make(&nullable, t->gbnf, true);

	if (!r)
		r = find_left(t, nullable.holds, ret_rule);
	if (!r)
		r = closure_make(&ends, t->gbnf, false);
	for (uint32_t i = 0; !r && i < t->gbnf->n_rules; i++)
		if (!ends.holds[i]) {
			*ret_rule = i;
			return GBNF_TABLE_ENDLESS;
		}
	return r;
}
