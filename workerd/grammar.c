/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/grammar.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/automaton.h"
#include "workerd/gbnf.h"
#include "workerd/vocab-trie.h"

enum { MIN_MASKS = 8, NONE = 0 };

/* A kept mask; in a ring through masks[0], most recently used first. */
struct kept {
	uint32_t *mask;
	uint16_t state;
	uint16_t next;
	uint16_t previous;
};

struct grammar {
	unsigned n_refs; /* atomic */
	struct gbnf *gbnf;
	struct vocab_trie *trie; /* a reference */
	struct automaton *automaton;
	uint32_t n_words;   /* of a mask */
	uint16_t *path;     /* [trie->max_bytes + 1] states along a token */
	struct kept *masks; /* [n_masks_room + 1], 0 is the ring's head */
	uint16_t n_masks;   /* in use */
	uint16_t n_masks_room;
	uint16_t *mask_of; /* [AUTOMATON_MAX_STATES] index into masks; NONE */
	struct grammar_counters counters;
};

struct grammar_cursor {
	struct automaton_pin pin;
	struct grammar *grammar; /* a reference */
};

static uint16_t get_room(uint32_t n_words)
{
	uint64_t n = GRAMMAR_MASK_BYTES / ((uint64_t)n_words * sizeof(uint32_t));

	if (n < MIN_MASKS)
		return MIN_MASKS;
	return n < AUTOMATON_MAX_STATES ? (uint16_t)n : AUTOMATON_MAX_STATES;
}

int grammar_new(struct gbnf *gbnf, struct vocab_trie *trie, struct grammar **ret_grammar)
{
	struct grammar *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->n_refs = 1;
	g->trie = vocab_trie_ref(trie);
	g->n_words = trie->n_vocab / 32 + 1;
	g->n_masks_room = get_room(g->n_words);
	g->path = calloc((uint64_t)trie->max_bytes + 1, sizeof(*g->path));
	g->masks = calloc((uint64_t)g->n_masks_room + 1, sizeof(*g->masks));
	g->mask_of = calloc(AUTOMATON_MAX_STATES, sizeof(*g->mask_of));
	if (!g->path || !g->masks || !g->mask_of || automaton_new(gbnf, &g->automaton)) {
		grammar_free(g);
		return -ENOMEM;
	}
	g->gbnf = gbnf;
	*ret_grammar = g;
	return 0;
}

struct grammar *grammar_ref(struct grammar *g)
{
	__atomic_fetch_add(&g->n_refs, 1, __ATOMIC_RELAXED);
	return g;
}

struct grammar *grammar_free(struct grammar *g)
{
	if (!g || __atomic_sub_fetch(&g->n_refs, 1, __ATOMIC_ACQ_REL) > 0)
		return NULL;
	automaton_free(g->automaton);
	gbnf_free(g->gbnf);
	vocab_trie_free(g->trie);
	for (uint32_t i = 1; g->masks && i <= g->n_masks_room; i++)
		free(g->masks[i].mask);
	free(g->masks);
	free(g->mask_of);
	free(g->path);
	free(g);
	return NULL;
}

const struct grammar_counters *grammar_get_counters(const struct grammar *g)
{
	return &g->counters;
}

static int refuse(int r, struct err *ret_err)
{
	if (r == -E2BIG)
		return err_set(ret_err, E2BIG,
			"grammar: expected a text to be read in at most %d ways, found more",
			AUTOMATON_MAX_STACKS);
	if (r == -ENOBUFS)
		return err_set(ret_err, E2BIG,
			"grammar: expected at most %d states along the next tokens, with %d ways "
			"to read the text in all, found more",
			AUTOMATON_MAX_STATES, AUTOMATON_MAX_KEPT);
	if (r == -EOVERFLOW)
		return err_set(ret_err, EOVERFLOW,
			"grammar: expected at most %d steps to find the next tokens, found more",
			GRAMMAR_BUDGET);
	return r;
}

/* States get other numbers: what is kept by them is no more. The buffers stay. */
static int flush(struct grammar *g)
{
	int r = automaton_flush(g->automaton);

	if (r)
		return r;
	memset(g->mask_of, 0, AUTOMATON_MAX_STATES * sizeof(*g->mask_of));
	g->masks[0].next = g->masks[0].previous = 0;
	g->n_masks = 0;
	g->counters.flushed++;
	return 0;
}

int grammar_cursor_new(struct grammar *g, struct err *ret_err, struct grammar_cursor **ret_cursor)
{
	struct grammar_cursor *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	automaton_set_budget(g->automaton, GRAMMAR_BUDGET);
	r = automaton_pin(g->automaton, &c->pin);
	if (r == -ENOBUFS) {
		r = flush(g);
		if (!r)
			r = automaton_pin(g->automaton, &c->pin);
	}
	if (r) {
		free(c);
		return refuse(r, ret_err);
	}
	c->grammar = grammar_ref(g);
	*ret_cursor = c;
	return 0;
}

struct grammar_cursor *grammar_cursor_free(struct grammar_cursor *c)
{
	if (c) {
		automaton_unpin(c->grammar->automaton, &c->pin);
		grammar_free(c->grammar);
		free(c);
	}
	return NULL;
}

static inline int step(struct grammar *g, uint16_t state, uint8_t byte, uint16_t *ret_state)
{
	uint16_t next = automaton_look_up(g->automaton, state, byte);

	if (next == AUTOMATON_UNKNOWN)
		return automaton_step(g->automaton, state, byte, ret_state);
	*ret_state = next;
	return 0;
}

/*
 * The tokens of one first byte, which leads to path[1]. n_alive: how many bytes of the entry before
 * the grammar could go on with; what shares more than those is as dead.
 */
static int walk_byte(struct grammar *g, uint32_t byte, uint32_t *mask)
{
	const struct vocab_trie *t = g->trie;
	const uint8_t *more = t->bytes + t->first[byte].byte;
	uint32_t n_alive = 0;

	for (uint32_t i = t->first[byte].entry; i < t->first[byte + 1].entry; i++) {
		const struct vocab_trie_entry *e = &t->entries[i];
		uint32_t n = e->n_shared, n_all = (uint32_t)e->n_shared + e->n_more;

		if (n <= n_alive) {
			for (; n < n_all; n++) {
				int r = step(g, g->path[n], more[n - e->n_shared], &g->path[n + 1]);

				if (r)
					return r;
				if (g->path[n + 1] == AUTOMATON_DEAD)
					break;
			}
			n_alive = n;
			if (n == n_all)
				mask[e->token / 32] |= 1u << e->token % 32;
		}
		more += e->n_more;
	}
	return 0;
}

static int walk(struct grammar *g, uint16_t state, uint32_t *mask)
{
	const struct vocab_trie *t = g->trie;

	memset(mask, 0, g->n_words * sizeof(*mask));
	g->path[0] = state;
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint16_t next;

		if (t->first[byte].entry == t->first[byte + 1].entry)
			continue;
		int r = step(g, state, (uint8_t)byte, &next);
		if (!r && next != AUTOMATON_DEAD)
			r = walk_byte(g, byte, mask);
		if (r)
			return r;
	}
	if (automaton_is_complete(g->automaton, state))
		for (uint32_t i = 0; i < t->n_ends; i++)
			mask[t->ends[i] / 32] |= 1u << t->ends[i] % 32;
	return 0;
}

static void take_out(struct grammar *g, uint16_t i)
{
	g->masks[g->masks[i].next].previous = g->masks[i].previous;
	g->masks[g->masks[i].previous].next = g->masks[i].next;
}

static void put_first(struct grammar *g, uint16_t i)
{
	g->masks[i].next = g->masks[0].next;
	g->masks[i].previous = 0;
	g->masks[g->masks[0].next].previous = i;
	g->masks[0].next = i;
}

/* A buffer that is free, or the one that was not asked for longest; of no state then. */
static int get_buffer(struct grammar *g, uint16_t *ret_index)
{
	uint16_t i;

	if (g->n_masks < g->n_masks_room) {
		i = g->n_masks + 1;
		if (!g->masks[i].mask)
			g->masks[i].mask = malloc(g->n_words * sizeof(uint32_t));
		if (!g->masks[i].mask)
			return -ENOMEM;
		g->n_masks++;
	} else {
		i = g->masks[0].previous;
		g->mask_of[g->masks[i].state] = NONE;
		take_out(g, i);
	}
	g->masks[i].state = AUTOMATON_DEAD;
	put_first(g, i);
	*ret_index = i;
	return 0;
}

static int make_mask(struct grammar_cursor *c, uint16_t *ret_index)
{
	struct grammar *g = c->grammar;
	uint16_t i = 0;
	int r = get_buffer(g, &i);

	automaton_set_budget(g->automaton, GRAMMAR_BUDGET);
	if (!r)
		r = walk(g, c->pin.state, g->masks[i].mask);
	if (r == -ENOBUFS) {
		r = flush(g);
		if (!r)
			r = get_buffer(g, &i);
		if (!r)
			r = walk(g, c->pin.state, g->masks[i].mask);
	}
	if (r)
		return r;
	g->masks[i].state = c->pin.state;
	g->mask_of[c->pin.state] = i;
	*ret_index = i;
	return 0;
}

int grammar_get_mask(struct grammar_cursor *c, struct err *ret_err, const uint32_t **ret_mask)
{
	struct grammar *g = c->grammar;
	uint16_t i = g->mask_of[c->pin.state];

	if (i) {
		g->counters.found++;
		take_out(g, i);
		put_first(g, i);
	} else {
		int r = make_mask(c, &i);
		if (r)
			return refuse(r, ret_err);
		g->counters.made++;
	}
	*ret_mask = g->masks[i].mask;
	return 0;
}

/* *ret_state: where the bytes lead. */
static int follow(
	const struct grammar_cursor *c, const char *bytes, uint32_t n_bytes, uint16_t *ret_state)
{
	uint16_t state = c->pin.state;

	for (uint32_t i = 0; i < n_bytes; i++) {
		int r = step(c->grammar, state, (uint8_t)bytes[i], &state);
		if (r)
			return r;
		if (state == AUTOMATON_DEAD)
			return -EINVAL;
	}
	*ret_state = state;
	return 0;
}

int grammar_accept(
	struct grammar_cursor *c, const char *bytes, uint32_t n_bytes, struct err *ret_err)
{
	automaton_set_budget(c->grammar->automaton, GRAMMAR_BUDGET);
	int r = follow(c, bytes, n_bytes, &c->pin.state);

	if (r == -ENOBUFS) {
		r = flush(c->grammar);
		if (!r)
			r = follow(c, bytes, n_bytes, &c->pin.state);
	}
	if (r == -EINVAL)
		return err_set(
			ret_err, EINVAL, "grammar: expected a token that it allows, found another");
	return r ? refuse(r, ret_err) : 0;
}

bool grammar_is_complete(const struct grammar_cursor *c)
{
	return automaton_is_complete(c->grammar->automaton, c->pin.state);
}

bool grammar_is_final(const struct grammar_cursor *c)
{
	return automaton_is_final(c->grammar->automaton, c->pin.state);
}

bool grammar_has_end(const struct grammar_cursor *c)
{
	return c->grammar->trie->n_ends > 0;
}
