/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/earley.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "workerd/gbnf.h"

/* Of `rule`, begun behind the first `origin` bytes, the element `at` is next. */
struct item {
	uint32_t rule;
	uint32_t at;
	uint32_t part; /* of the code point of a class that has begun; 0: none has */
	uint32_t origin;
};

struct set {
	struct item *items;
	uint32_t n;
	uint32_t n_room;
};

struct earley {
	const struct gbnf *gbnf;
	struct set *sets; /* [n + 1] behind so many bytes */
	uint32_t n;
	uint32_t n_room;
};

static void set_add(struct set *s, struct item x)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (memcmp(&s->items[i], &x, sizeof(x)) == 0)
			return;
	if (s->n == s->n_room) {
		s->n_room = s->n_room ? 2 * s->n_room : 16;
		s->items = reallocarray(s->items, s->n_room, sizeof(x));
		assert_non_null(s->items);
	}
	s->items[s->n++] = x;
}

static void predict(const struct gbnf *g, struct set *s, uint32_t rule, uint32_t origin)
{
	for (uint32_t i = g->first_alternate[rule]; i < g->first_alternate[rule + 1]; i++)
		set_add(s, (struct item){rule, g->alternates[i], 0, origin});
}

/* Predictions and completions until there are no more; empty rules make that more than one round.
 */
static void complete(const struct earley *e, uint32_t k)
{
	const struct gbnf *g = e->gbnf;
	struct set *s = &e->sets[k];
	uint32_t n_before;

	do {
		n_before = s->n;
		for (uint32_t i = 0; i < s->n; i++) {
			struct item x = s->items[i];
			enum gbnf_kind kind = gbnf_get_kind(g->elements[x.at]);
			uint32_t n_origin = e->sets[x.origin].n;

			if (kind == GBNF_RULE)
				predict(g, s, gbnf_get_value(g->elements[x.at]), k);
			for (uint32_t j = 0; kind == GBNF_END && j < n_origin; j++) {
				struct item y = e->sets[x.origin].items[j];
				uint32_t wanted = g->elements[y.at];

				if (wanted == gbnf_make_element(GBNF_RULE, x.rule)) {
					y.at++;
					set_add(s, y);
				}
			}
		}
	} while (s->n != n_before);
}

struct earley *earley_new(const struct gbnf *g)
{
	struct earley *e = calloc(1, sizeof(*e));

	assert_non_null(e);
	e->gbnf = g;
	e->n_room = 64;
	e->sets = calloc(e->n_room, sizeof(*e->sets));
	assert_non_null(e->sets);
	predict(g, &e->sets[0], g->root, 0);
	complete(e, 0);
	return e;
}

void earley_free(struct earley *e)
{
	for (uint32_t i = 0; i < e->n_room; i++)
		free(e->sets[i].items);
	free(e->sets);
	free(e);
}

static void scan(const struct earley *e, struct item x, uint8_t byte, struct set *next)
{
	uint32_t element = e->gbnf->elements[x.at];

	if (gbnf_get_kind(element) == GBNF_BYTE && gbnf_get_value(element) == byte) {
		x.at++;
		set_add(next, x);
	} else if (gbnf_get_kind(element) == GBNF_CLASS) {
		x.part = e->gbnf->classes.next[x.part ? x.part : gbnf_get_value(element)][byte];
		if (x.part == UTF8_CLASS_DEAD)
			return;
		if (x.part == UTF8_CLASS_DONE) {
			x.part = 0;
			x.at++;
		}
		set_add(next, x);
	}
}

bool earley_push(struct earley *e, uint8_t byte)
{
	if (e->n + 2 > e->n_room) {
		e->sets = reallocarray(e->sets, 2 * e->n_room, sizeof(*e->sets));
		assert_non_null(e->sets);
		memset(e->sets + e->n_room, 0, e->n_room * sizeof(*e->sets));
		e->n_room *= 2;
	}
	e->sets[e->n + 1].n = 0;
	for (uint32_t i = 0; i < e->sets[e->n].n; i++)
		scan(e, e->sets[e->n].items[i], byte, &e->sets[e->n + 1]);
	if (!e->sets[e->n + 1].n)
		return false;
	e->n++;
	complete(e, e->n);
	return true;
}

void earley_truncate(struct earley *e, uint32_t n)
{
	e->n = n;
}

bool earley_is_complete(const struct earley *e)
{
	const struct set *s = &e->sets[e->n];

	for (uint32_t i = 0; i < s->n; i++)
		if (s->items[i].rule == e->gbnf->root && s->items[i].origin == 0 &&
			gbnf_get_kind(e->gbnf->elements[s->items[i].at]) == GBNF_END)
			return true;
	return false;
}

bool earley_matches(const struct gbnf *g, const char *text, uint64_t n_bytes)
{
	struct earley *e = earley_new(g);
	bool is_match = true;

	for (uint64_t i = 0; is_match && i < n_bytes; i++)
		is_match = earley_push(e, (uint8_t)text[i]);
	is_match = is_match && earley_is_complete(e);
	earley_free(e);
	return is_match;
}
