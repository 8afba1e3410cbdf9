/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/gbnf.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/gbnf-table.h"

enum { MAX_FOUND_BYTES = 24, FIRST_ELEMENTS = 256 };

struct parser {
	const char *text;
	const char *at;
	const char *end;
	struct err *err;
	struct gbnf_table table;
	uint32_t depth;
	uint32_t *elements; /* of the alternates that are being read, the outer ones first */
	uint32_t n_elements;
	uint32_t n_elements_room;
	struct utf8_class_range *ranges; /* of the class that is being read */
	uint32_t n_ranges_room;
};

/* What is read of one alternate. */
struct sequence {
	uint32_t rule;
	uint32_t start;  /* in p->elements */
	uint32_t symbol; /* the last one's start: what a repetition repeats */
	bool has_symbol;
};

static void place(const struct parser *p, const char *at, uint32_t *ret_line, uint32_t *ret_column)
{
	*ret_line = *ret_column = 1;
	for (const char *c = p->text; c < at; c++) {
		if (*c == '\n') {
			++*ret_line;
			*ret_column = 1;
		} else if ((*c & 0xc0) != 0x80) {
			++*ret_column;
		}
	}
}

static int fail(struct parser *p, const char *at, const char *expected)
{
	uint32_t line, column, code;
	char found[MAX_FOUND_BYTES + 1] = "the end";

	place(p, at, &line, &column);
	if (at < p->end) {
		uint32_t n = utf8_class_decode(at, (uint64_t)(p->end - at), &code);

		if (*at == '\n')
			snprintf(found, sizeof(found), "the end of the line");
		else if (n)
			snprintf(found, sizeof(found), "'%.*s'", (int)n, at);
		else
			snprintf(found, sizeof(found), "byte 0x%02x", (uint8_t)*at);
	}
	return err_set(p->err, EINVAL, "grammar:%u:%u: expected %s, found %s", line, column,
		expected, found);
}

/* About a rule: cut, so that its text has room. */
static int fail_rule(struct parser *p, uint32_t rule, const char *what)
{
	const struct gbnf_table_rule *x = &p->table.rules[rule];
	uint32_t line, column;

	place(p, x->at, &line, &column);
	return err_set(p->err, EINVAL, "grammar:%u:%u: rule \"%.*s\": %s", line, column,
		(int)(x->n_name < 64 ? x->n_name : 64), x->name, what);
}

/* The sentence of what the table refused at p->at. */
static int check(struct parser *p, int r)
{
	uint32_t line, column;

	if (r != -E2BIG)
		return r;
	place(p, p->at, &line, &column);
	return err_set(p->err, E2BIG,
		"grammar:%u:%u: expected at most %d rules, %d elements and %d states of classes "
		"with "
		"repetitions written out, found more",
		line, column, GBNF_MAX_RULES, GBNF_MAX_ELEMENTS, UTF8_CLASS_MAX_STATES);
}

static int push(struct parser *p, uint32_t element)
{
	if (p->n_elements == GBNF_MAX_ELEMENTS)
		return check(p, -E2BIG);
	if (p->n_elements == p->n_elements_room) {
		uint32_t n_room = 2 * p->n_elements_room;
		uint32_t *elements = reallocarray(p->elements, n_room, sizeof(*elements));

		if (!elements)
			return -ENOMEM;
		p->elements = elements;
		p->n_elements_room = n_room;
	}
	p->elements[p->n_elements++] = element;
	return 0;
}

static char peek(const struct parser *p)
{
	return p->at < p->end ? *p->at : '\0';
}

/* Blanks and comments; line ends where a rule may go on behind them. */
static void skip(struct parser *p, bool over_lines)
{
	for (; p->at < p->end; p->at++) {
		if (*p->at == '#')
			while (p->at < p->end && *p->at != '\n')
				p->at++;
		char c = peek(p);
		if (c != ' ' && c != '\t' && !(over_lines && (c == '\n' || c == '\r')))
			return;
	}
}

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-';
}

static int parse_name(struct parser *p, const char *expected, uint32_t *ret_rule)
{
	const char *start = p->at;

	while (is_name(peek(p)))
		p->at++;
	if (p->at == start)
		return fail(p, p->at, expected);
	return check(p,
		gbnf_table_get_rule(&p->table, start, (uint32_t)(p->at - start), start, ret_rule));
}

static int parse_hex(struct parser *p, uint32_t n_digits, uint32_t *ret_code)
{
	const char *start = p->at - 2;
	uint32_t code = 0;

	for (uint32_t i = 0; i < n_digits; i++, p->at++) {
		char c = peek(p);
		char lower = (char)(c | 0x20);

		if (c >= '0' && c <= '9')
			code = code << 4 | (uint32_t)(c - '0');
		else if (lower >= 'a' && lower <= 'f')
			code = code << 4 | (uint32_t)(lower - 'a' + 10);
		else
			return fail(p, p->at, "a hexadecimal digit");
	}
	if (code > UTF8_CLASS_MAX || (code >= 0xd800 && code < 0xe000))
		return fail(p, start, "a code point up to 10FFFF that is no surrogate");
	*ret_code = code;
	return 0;
}

/* One character of a literal or a class, escapes undone. */
static int parse_char(struct parser *p, uint32_t *ret_code)
{
	uint32_t n;

	if (peek(p) != '\\' || p->at == p->end) {
		n = utf8_class_decode(p->at, (uint64_t)(p->end - p->at), ret_code);
		if (!n || *ret_code == '\n')
			return fail(p, p->at, "a character");
		p->at += n;
		return 0;
	}
	p->at += 2;
	switch (p->at <= p->end ? p->at[-1] : '\0') {
	case 'x': return parse_hex(p, 2, ret_code);
	case 'u': return parse_hex(p, 4, ret_code);
	case 'U': return parse_hex(p, 8, ret_code);
	case 't': *ret_code = '\t'; return 0;
	case 'r': *ret_code = '\r'; return 0;
	case 'n': *ret_code = '\n'; return 0;
	case '\\':
	case '"':
	case '[':
	case ']':
	case '-':
	case '^': *ret_code = (uint8_t)p->at[-1]; return 0;
	default:
		p->at = p->at <= p->end ? p->at - 1 : p->end;
		return fail(p, p->at, "x, u, U, t, r, n, \\, \", [, ], - or ^ behind \\");
	}
}

static int parse_literal(struct parser *p)
{
	uint32_t code;
	uint8_t bytes[4];

	for (p->at++; peek(p) != '"';) {
		if (p->at == p->end)
			return fail(p, p->at, "\" at the end of the literal");
		int r = parse_char(p, &code);
		uint32_t n = r ? 0 : utf8_class_encode(code, bytes);

		for (uint32_t i = 0; !r && i < n; i++)
			r = push(p, gbnf_make_element(GBNF_BYTE, bytes[i]));
		if (r)
			return r;
	}
	p->at++;
	return 0;
}

/* Room for n ranges and the two that turning them over may add. */
static int reserve_ranges(struct parser *p, uint32_t n)
{
	if (n + 2 <= p->n_ranges_room)
		return 0;
	uint32_t n_room = 2 * (n + 2);
	void *ranges = reallocarray(p->ranges, n_room, sizeof(*p->ranges));
	if (!ranges)
		return -ENOMEM;
	p->ranges = ranges;
	p->n_ranges_room = n_room;
	return 0;
}

static int parse_range(struct parser *p, struct utf8_class_range *range)
{
	const char *start = p->at;
	int r = parse_char(p, &range->first);

	range->last = range->first;
	if (r || peek(p) != '-' || p->at + 1 >= p->end || p->at[1] == ']')
		return r;
	p->at++;
	r = parse_char(p, &range->last);
	if (!r && range->last < range->first)
		return fail(p, start, "a range that rises");
	return r;
}

static int add_class(struct parser *p, const char *start, uint32_t n, bool is_negated)
{
	uint32_t element;
	int r = gbnf_table_get_class(&p->table, p->ranges, n, is_negated, &element);

	if (r == -EINVAL)
		return fail(p, start, "a class that has a character");
	return r ? check(p, r) : push(p, element);
}

static int parse_class(struct parser *p)
{
	const char *start = p->at++;
	bool is_negated = peek(p) == '^';
	uint32_t n = 0;

	p->at += is_negated;
	while (peek(p) != ']') {
		if (p->at == p->end)
			return fail(p, p->at, "] at the end of the class");
		int r = reserve_ranges(p, n + 1);
		if (!r)
			r = parse_range(p, &p->ranges[n++]);
		if (r)
			return r;
	}
	p->at++;
	if (!n)
		return fail(p, start, "a class that has a character");
	return add_class(p, start, n, is_negated);
}

static int parse_any(struct parser *p)
{
	int r = reserve_ranges(p, 0);

	return r ? r : add_class(p, p->at++, 0, true);
}

/* The last symbol as one element, a rule where it is several; it is taken off p->elements. */
static int take_symbol(struct parser *p, const struct sequence *s, uint32_t *ret_element)
{
	uint32_t n = p->n_elements - s->symbol, rule;
	int r;

	*ret_element = p->elements[s->symbol];
	p->n_elements = s->symbol;
	if (n == 1)
		return 0;
	r = gbnf_table_make_rule(&p->table, s->rule, &rule);
	if (!r)
		r = gbnf_table_add_alternate(&p->table, rule, p->elements + s->symbol, n);
	*ret_element = gbnf_make_element(GBNF_RULE, rule);
	return check(p, r);
}

/* A rule: element and what follows it (unless that is END), or nothing. */
static int add_optional(struct parser *p, uint32_t rule, uint32_t element, uint32_t next)
{
	const uint32_t elements[] = {element, next};
	int r = gbnf_table_add_alternate(
		&p->table, rule, elements, gbnf_get_kind(next) == GBNF_END ? 1 : 2);

	if (!r)
		r = gbnf_table_add_alternate(&p->table, rule, NULL, 0);
	return check(p, r);
}

static int repeat_loop(struct parser *p, uint32_t outer, uint32_t element)
{
	uint32_t rule;
	int r = check(p, gbnf_table_make_rule(&p->table, outer, &rule));

	if (r)
		return r;
	p->table.rules[rule].is_loop = true;
	r = add_optional(p, rule, element, gbnf_make_element(GBNF_RULE, rule));
	return r ? r : push(p, gbnf_make_element(GBNF_RULE, rule));
}

/* x{0,n} is (x (x (x)?)?)?, which is read in one way only. */
static int repeat_at_most(struct parser *p, uint32_t outer, uint32_t element, uint32_t n)
{
	uint32_t next = gbnf_make_element(GBNF_END, 0), rule;

	for (uint32_t i = 0; i < n; i++) {
		int r = check(p, gbnf_table_make_rule(&p->table, outer, &rule));

		if (!r)
			r = add_optional(p, rule, element, next);
		if (r)
			return r;
		next = gbnf_make_element(GBNF_RULE, rule);
	}
	return n ? push(p, next) : 0;
}

static int repeat(struct parser *p, const struct sequence *s, uint32_t min, uint32_t max)
{
	uint32_t element;
	int r;

	if (p->n_elements == s->symbol)
		return 0; /* "" however often */
	r = take_symbol(p, s, &element);
	for (uint32_t i = 0; !r && i < min; i++)
		r = push(p, element);
	if (r)
		return r;
	return max == UINT32_MAX ? repeat_loop(p, s->rule, element)
				 : repeat_at_most(p, s->rule, element, max - min);
}

static int parse_count(struct parser *p, uint32_t *ret_n)
{
	const char *start = p->at;
	uint32_t n = 0;

	for (; peek(p) >= '0' && peek(p) <= '9' && n <= GBNF_MAX_REPETITION; p->at++)
		n = 10 * n + (uint32_t)(*p->at - '0');
	if (p->at == start)
		return fail(p, p->at, "a number");
	if (n > GBNF_MAX_REPETITION) {
		_Static_assert(GBNF_MAX_REPETITION == 4096, "the sentence says so");
		return fail(p, start, "a repetition of at most 4096");
	}
	*ret_n = n;
	return 0;
}

/* Behind `{`. */
static int parse_bounds(struct parser *p, const struct sequence *s)
{
	const char *start = p->at++;
	uint32_t min = 0, max;

	skip(p, true);
	int r = parse_count(p, &min);
	max = min;
	skip(p, true);
	if (!r && peek(p) == ',') {
		p->at++;
		skip(p, true);
		max = UINT32_MAX;
		if (peek(p) != '}')
			r = parse_count(p, &max);
		skip(p, true);
	}
	if (r)
		return r;
	if (peek(p) != '}')
		return fail(p, p->at, "}");
	p->at++;
	if (max < min)
		return fail(p, start, "an upper bound that is not below the lower");
	return repeat(p, s, min, max);
}

static int parse_repetition(struct parser *p, const struct sequence *s)
{
	if (!s->has_symbol)
		return fail(p, p->at, "something to repeat");
	switch (peek(p)) {
	case '{': return parse_bounds(p, s);
	case '*': p->at++; return repeat(p, s, 0, UINT32_MAX);
	case '+': p->at++; return repeat(p, s, 1, UINT32_MAX);
	default: p->at++; return repeat(p, s, 0, 1);
	}
}

static int parse_alternates(struct parser *p, uint32_t rule);

static int parse_group(struct parser *p, const struct sequence *s)
{
	uint32_t rule;
	int r;

	if (p->depth == GBNF_MAX_DEPTH)
		return fail(p, p->at, "parentheses at most 64 deep");
	_Static_assert(GBNF_MAX_DEPTH == 64, "the sentence says so");
	p->depth++;
	p->at++;
	skip(p, true);
	r = check(p, gbnf_table_make_rule(&p->table, s->rule, &rule));
	if (!r)
		r = parse_alternates(p, rule);
	if (r)
		return r;
	if (peek(p) != ')')
		return fail(p, p->at, ")");
	p->at++;
	p->depth--;
	return push(p, gbnf_make_element(GBNF_RULE, rule));
}

static int parse_use(struct parser *p)
{
	uint32_t rule;
	int r = parse_name(p, "a name", &rule);

	return r ? r : push(p, gbnf_make_element(GBNF_RULE, rule));
}

/* One element with its repetition; 1: there is none here. */
static int parse_element(struct parser *p, struct sequence *s)
{
	char c = peek(p);
	uint32_t start = p->n_elements;
	int r;

	if (c == '*' || c == '+' || c == '?' || c == '{')
		return parse_repetition(p, s);
	if (c == '"')
		r = parse_literal(p);
	else if (c == '[')
		r = parse_class(p);
	else if (c == '.')
		r = parse_any(p);
	else if (c == '(')
		r = parse_group(p, s);
	else if (is_name(c))
		r = parse_use(p);
	else
		return 1;
	s->symbol = start;
	s->has_symbol = true;
	return r;
}

static int parse_sequence(struct parser *p, uint32_t rule)
{
	struct sequence s = {.rule = rule, .start = p->n_elements};
	int r;

	while ((r = parse_element(p, &s)) == 0)
		skip(p, p->depth > 0);
	if (r < 0)
		return r;
	r = gbnf_table_add_alternate(
		&p->table, rule, p->elements + s.start, p->n_elements - s.start);
	p->n_elements = s.start;
	return check(p, r);
}

static int parse_alternates(struct parser *p, uint32_t rule)
{
	int r = parse_sequence(p, rule);

	while (!r && peek(p) == '|') {
		p->at++;
		skip(p, true);
		r = parse_sequence(p, rule);
	}
	return r;
}

static int parse_rule(struct parser *p)
{
	const char *start = p->at;
	uint32_t rule;
	int r = parse_name(p, "the name of a rule", &rule);

	if (r)
		return r;
	if (p->table.rules[rule].is_defined)
		return fail_rule(p, rule, "expected one definition, found another");
	p->table.rules[rule].is_defined = true;
	p->table.rules[rule].at = start;
	skip(p, false);
	if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
		return fail(p, p->at, "::=");
	p->at += 3;
	skip(p, true);
	r = parse_alternates(p, rule);
	if (r)
		return r;
	if (peek(p) == '\r')
		p->at++;
	if (p->at < p->end && *p->at != '\n')
		return fail(p, p->at, "an element, | or the end of the line");
	skip(p, true);
	return 0;
}

static int judge(struct parser *p)
{
	uint32_t rule;
	int r = gbnf_table_get_rule(&p->table, "root", 4, p->text, &p->table.gbnf->root);

	if (r)
		return check(p, r);
	for (uint32_t i = 0; i < p->table.n_rules; i++)
		if (!p->table.rules[i].is_defined)
			return fail_rule(p, i, "expected a definition, found none");
	r = gbnf_table_finish(&p->table);
	if (r)
		return r;
	r = gbnf_table_judge(&p->table, &rule);
	if (r == GBNF_TABLE_LEFT)
		return fail_rule(
			p, rule, "expected something before it comes again, found left recursion");
	if (r == GBNF_TABLE_ENDLESS)
		return fail_rule(p, rule, "expected an alternate that ends, found none");
	return r;
}

static void parser_fini(struct parser *p)
{
	gbnf_table_fini(&p->table);
	free(p->elements);
	free(p->ranges);
}

int gbnf_parse(const char *text, uint64_t n_bytes, uint64_t max_bytes, struct err *ret_err,
	struct gbnf **ret_gbnf)
{
	_cleanup_(parser_fini)
	struct parser p = {.text = text, .at = text, .end = text + n_bytes, .err = ret_err};
	int r;

	if (n_bytes > max_bytes)
		return err_set(ret_err, E2BIG, "grammar: expected at most %llu bytes, found %llu",
			(unsigned long long)max_bytes, (unsigned long long)n_bytes);
	r = gbnf_table_init(&p.table);
	if (r)
		return r;
	p.elements = calloc(FIRST_ELEMENTS, sizeof(*p.elements));
	if (!p.elements)
		return -ENOMEM;
	p.n_elements_room = FIRST_ELEMENTS;
	skip(&p, true);
	while (!r && p.at < p.end)
		r = parse_rule(&p);
	if (!r)
		r = judge(&p);
	if (r)
		return r;
	*ret_gbnf = TAKE_PTR(p.table.gbnf);
	return 0;
}

struct gbnf *gbnf_free(struct gbnf *g)
{
	if (g) {
		free(g->first_alternate);
		free(g->alternates);
		free(g->elements);
		utf8_class_fini(&g->classes);
		free(g);
	}
	return NULL;
}
