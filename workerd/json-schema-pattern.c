/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "workerd/gbnf.h"
#include "workerd/json-schema-internal.h"
#include "workerd/json-schema.h"
#include "workerd/utf8-class.h"

enum { MAX_GROUPS = 32, MAX_RANGES = 1024 };

/* White space of ECMA-262, which JSON schema's patterns are. */
static const struct utf8_class_range white[] = {{9, 13}, {0x20, 0x20}, {0xa0, 0xa0},
	{0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
	{0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct utf8_class_range digits[] = {{'0', '9'}};
static const struct utf8_class_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

struct pattern {
	struct json_schema *s;
	const struct json_schema_place *at;
	FILE *f;
	const char *text;
	const char *c;
	const char *end;
	uint32_t depth;
	/* of the class that is read */
	struct utf8_class_range ranges[MAX_RANGES + 2];
	uint32_t n_ranges;
};

static int fail(const struct pattern *p, const char *expected)
{
	uint32_t code;
	int n = (int)utf8_class_decode(p->c, (uint64_t)(p->end - p->c), &code);

	return json_schema_fail(p->s, p->at, "pattern", "at byte %zu: expected %s, found %.*s",
		(size_t)(p->c - p->text), expected, n ? n : 7, n ? p->c : "the end");
}

static char peek(const struct pattern *p)
{
	return p->c < p->end ? *p->c : '\0';
}

static int add_ranges(struct pattern *p, const struct utf8_class_range *ranges, size_t n)
{
	if (n > MAX_RANGES - p->n_ranges)
		return fail(p, "at most 1024 ranges in a class");
	_Static_assert(MAX_RANGES == 1024, "the sentence says so");
	memcpy(p->ranges + p->n_ranges, ranges, n * sizeof(*ranges));
	p->n_ranges += (uint32_t)n;
	return 0;
}

/* A character as JSON has it in a string: what has to be escaped is. */
static void write_escape(FILE *f, uint32_t code)
{
	char text[8];

	if (code == '"' || code == '\\')
		snprintf(text, sizeof(text), "\\%c", (char)code);
	else if (code == '\n' || code == '\t' || code == '\r')
		snprintf(text, sizeof(text), "\\%c", code == '\n' ? 'n' : code == '\t' ? 't' : 'r');
	else
		snprintf(text, sizeof(text), "\\u%04x", (unsigned)code);
	json_schema_write_literal(f, text, strlen(text));
}

static bool is_raw(uint32_t code)
{
	return code >= 0x20 && code != '"' && code != '\\' && code != 0x7f;
}

/* The part of a range that needs no escape between the characters that do. */
static void write_raw_parts(struct pattern *p, struct utf8_class_range r, bool *has_class)
{
	while (r.first <= r.last) {
		uint32_t last = r.first;

		if (!is_raw(r.first)) {
			r.first++;
			continue;
		}
		if (r.first >= 0x80)
			last = r.last;
		while (last < r.last && is_raw(last + 1))
			last++;
		fputs(*has_class ? "" : "[", p->f);
		*has_class = true;
		fprintf(p->f, "\\U%08X-\\U%08X", r.first, last);
		r.first = last + 1;
	}
}

/* What was read of a class, as `([...] | "\\n" | ...)`. */
static int write_class(struct pattern *p, bool is_negated)
{
	bool has_class = false, has_any;
	uint32_t n = utf8_class_normalise(p->ranges, p->n_ranges, is_negated);

	putc('(', p->f);
	for (uint32_t i = 0; i < n; i++)
		write_raw_parts(p, p->ranges[i], &has_class);
	if (has_class)
		putc(']', p->f);
	has_any = has_class;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t code = p->ranges[i].first; code <= p->ranges[i].last && code < 0x80;
			code++) {
			bool is_control = code < 0x20 || code == 0x7f;

			if (is_raw(code) || (is_negated && is_control))
				continue;
			fputs(has_any ? " | " : "", p->f);
			has_any = true;
			write_escape(p->f, code);
		}
	putc(')', p->f);
	return has_any ? 0 : fail(p, "a class that has a character");
}

static int parse_hex(struct pattern *p, int n_digits, uint32_t *ret_code)
{
	uint32_t code = 0;

	for (int i = 0; i < n_digits; i++, p->c++) {
		char c = peek(p), lower = (char)(c | 0x20);

		if (c >= '0' && c <= '9')
			code = code << 4 | (uint32_t)(c - '0');
		else if (lower >= 'a' && lower <= 'f')
			code = code << 4 | (uint32_t)(lower - 'a' + 10);
		else
			return fail(p, "a hexadecimal digit");
	}
	if (code >= 0xd800 && code < 0xe000)
		return fail(p, "no surrogate before this");
	*ret_code = code;
	return 0;
}

/* Behind a backslash: one character. */
static int parse_escape(struct pattern *p, uint32_t *ret_code)
{
	static const char names[] = "tnrfv", codes[] = "\t\n\r\f\v";
	static const char plain[] = "^$\\.*+?()[]{}|/-\"'`~!@#%&=:;,<> _";
	char c = peek(p);
	const char *at = c ? strchr(names, c) : NULL;

	if (c == 'x' || c == 'u') {
		p->c++;
		return parse_hex(p, c == 'x' ? 2 : 4, ret_code);
	}
	if (!at && (!c || !strchr(plain, c)))
		return fail(p, "a character that can be escaped (\\b, \\B, \\k, \\p, \\c and back "
			       "references are not supported)");
	*ret_code = (uint8_t)(at ? codes[at - names] : c);
	p->c++;
	return 0;
}

/* The set of \d, \w, \s; false: c is none of them. */
static bool find_set(char c, const struct utf8_class_range **ret_ranges, size_t *ret_n)
{
	switch (c | 0x20) {
	case 'd':
		*ret_ranges = digits;
		*ret_n = ARRAY_SIZE(digits);
		return true;
	case 'w':
		*ret_ranges = word;
		*ret_n = ARRAY_SIZE(word);
		return true;
	case 's':
		*ret_ranges = white;
		*ret_n = ARRAY_SIZE(white);
		return true;
	default: return false;
	}
}

static int parse_char(struct pattern *p, uint32_t *ret_code)
{
	if (peek(p) == '\\') {
		p->c++;
		return parse_escape(p, ret_code);
	}
	uint32_t n = utf8_class_decode(p->c, (uint64_t)(p->end - p->c), ret_code);
	if (!n)
		return fail(p, "a character");
	p->c += n;
	return 0;
}

static int parse_range(struct pattern *p)
{
	const struct utf8_class_range *set;
	struct utf8_class_range range;
	size_t n;
	int r;

	if (peek(p) == '\\' && p->c + 1 < p->end && find_set(p->c[1], &set, &n)) {
		if (p->c[1] < 'a')
			return fail(p, "no \\D, \\W or \\S in a class");
		p->c += 2;
		if (peek(p) == '-' && p->c + 1 < p->end && p->c[1] != ']')
			return fail(p, "no range from a class");
		return add_ranges(p, set, n);
	}
	r = parse_char(p, &range.first);
	range.last = range.first;
	if (!r && peek(p) == '-' && p->c + 1 < p->end && p->c[1] != ']') {
		p->c++;
		r = parse_char(p, &range.last);
	}
	if (r)
		return r;
	if (range.last < range.first)
		return fail(p, "a range that rises before this");
	return add_ranges(p, &range, 1);
}

static int parse_class(struct pattern *p)
{
	bool is_negated;

	p->c++;
	p->n_ranges = 0;
	is_negated = peek(p) == '^';
	p->c += is_negated;
	while (peek(p) != ']') {
		int r = p->c == p->end ? fail(p, "]") : parse_range(p);
		if (r)
			return r;
	}
	p->c++;
	return write_class(p, is_negated);
}

static int parse_alternates(struct pattern *p);

static int parse_group(struct pattern *p)
{
	if (p->depth == MAX_GROUPS)
		return fail(p, "groups at most 32 deep");
	_Static_assert(MAX_GROUPS == 32, "the sentence says so");
	p->c++;
	if (peek(p) == '?') {
		if (p->end - p->c < 2 || p->c[1] != ':')
			return fail(p, "?: or no ? behind ( (look-around and names are not "
				       "supported)");
		p->c += 2;
	}
	p->depth++;
	putc('(', p->f);
	int r = parse_alternates(p);
	putc(')', p->f);
	p->depth--;
	if (r)
		return r;
	if (peek(p) != ')')
		return fail(p, ")");
	p->c++;
	return 0;
}

static int parse_literal(struct pattern *p)
{
	const struct utf8_class_range *set;
	uint8_t bytes[4];
	uint32_t code;
	size_t n;
	int r;

	if (peek(p) == '\\' && p->c + 1 < p->end && find_set(p->c[1], &set, &n)) {
		bool is_negated = p->c[1] < 'a';

		p->c += 2;
		p->n_ranges = 0;
		r = add_ranges(p, set, n);
		return r ? r : write_class(p, is_negated);
	}
	r = parse_char(p, &code);
	if (r)
		return r;
	if (is_raw(code))
		json_schema_write_literal(
			p->f, (const char *)bytes, utf8_class_encode(code, bytes));
	else
		write_escape(p->f, code);
	return 0;
}

static int parse_count(struct pattern *p, uint32_t *ret_n)
{
	uint32_t n = 0;
	const char *start = p->c;

	for (; peek(p) >= '0' && peek(p) <= '9' && n <= GBNF_MAX_REPETITION; p->c++)
		n = 10 * n + (uint32_t)(*p->c - '0');
	if (p->c == start || n > GBNF_MAX_REPETITION)
		return fail(p, "a number up to 4096");
	_Static_assert(GBNF_MAX_REPETITION == 4096, "the sentence says so");
	*ret_n = n;
	return 0;
}

static int parse_bounds(struct pattern *p)
{
	uint32_t min, max;

	p->c++;
	int r = parse_count(p, &min);
	if (r)
		return r;
	fprintf(p->f, "{%u", min);
	if (peek(p) == ',') {
		p->c++;
		putc(',', p->f);
		if (peek(p) != '}') {
			r = parse_count(p, &max);
			if (r)
				return r;
			if (max < min)
				return fail(p, "an upper bound that is not below the lower before "
					       "this");
			fprintf(p->f, "%u", max);
		}
	}
	if (peek(p) != '}')
		return fail(p, "}");
	p->c++;
	putc('}', p->f);
	return 0;
}

static int parse_repetition(struct pattern *p)
{
	char c = peek(p);
	int r = 0;

	if (c == '{') {
		r = parse_bounds(p);
	} else if (c == '*' || c == '+' || c == '?') {
		putc(c, p->f);
		p->c++;
	} else {
		return 0;
	}
	c = peek(p);
	if (!r && c && strchr("*+?{", c))
		return fail(p, "no second repetition");
	return r;
}

static int parse_atom(struct pattern *p)
{
	switch (peek(p)) {
	case '(': return parse_group(p);
	case '[': return parse_class(p);
	case '.':
		fputs("dot", p->f);
		p->c++;
		return 0;
	case '*':
	case '+':
	case '?':
	case '{':
	case '}':
	case ']':
	case '^':
	case '$': return fail(p, "a character, a class or a group");
	default: return parse_literal(p);
	}
}

/* Up to |, ) or the $ at the end. */
static int parse_sequence(struct pattern *p)
{
	int n = 0;

	while (p->c < p->end && *p->c != '|' && *p->c != ')' &&
		!(*p->c == '$' && p->c + 1 == p->end)) {
		fputs(n++ ? " " : "", p->f);
		int r = parse_atom(p);
		if (!r)
			r = parse_repetition(p);
		if (r)
			return r;
	}
	if (!n)
		fputs("\"\"", p->f);
	return 0;
}

static int parse_alternates(struct pattern *p)
{
	int r = parse_sequence(p);

	while (!r && peek(p) == '|') {
		/* ^a|b$ is not anchored: it is (^a)|(b$). */
		if (!p->depth)
			return fail(p, "| in a group alone");
		fputs(" | ", p->f);
		p->c++;
		r = parse_sequence(p);
	}
	return r;
}

int json_schema_pattern(struct json_schema *s, const char *pattern, size_t n_bytes,
	const struct json_schema_place *at, FILE *f)
{
	_cleanup_(cleanup_free)
	struct pattern *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->s = s;
	p->at = at;
	p->f = f;
	p->text = p->c = pattern;
	p->end = pattern + n_bytes;
	if (peek(p) != '^')
		return fail(p, "^ at the start");
	p->c++;
	int r = parse_alternates(p);
	if (!r && peek(p) != '$')
		r = fail(p, "$ at the end");
	return r;
}
