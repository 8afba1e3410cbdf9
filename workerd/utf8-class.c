/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/utf8-class.h"

#include <errno.h>
#include <string.h>

enum { FIRST_SURROGATE = 0xd800, LAST_SURROGATE = 0xdfff, FIRST_ROOM = 64 };

void utf8_class_fini(struct utf8_class_table *t)
{
	free(t->next);
	*t = (struct utf8_class_table){0};
}

static int compare_ranges(const void *a, const void *b)
{
	const struct utf8_class_range *x = a, *y = b;

	return (x->first > y->first) - (x->first < y->first);
}

static uint32_t join_ranges(struct utf8_class_range *ranges, uint32_t n)
{
	uint32_t n_out = 0;

	qsort(ranges, n, sizeof(*ranges), compare_ranges);
	for (uint32_t i = 0; i < n; i++) {
		struct utf8_class_range r = ranges[i];

		if (n_out && r.first <= ranges[n_out - 1].last + 1) {
			if (r.last > ranges[n_out - 1].last)
				ranges[n_out - 1].last = r.last;
		} else {
			ranges[n_out++] = r;
		}
	}
	return n_out;
}

/* What joined ranges leave of all code points; one more than there were at most. */
static uint32_t turn_over(struct utf8_class_range *ranges, uint32_t n)
{
	uint32_t n_out = 0, next = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct utf8_class_range r = ranges[i];

		/* Written behind or where it was read: n_out <= i. */
		if (r.first > next)
			ranges[n_out++] = (struct utf8_class_range){next, r.first - 1};
		next = r.last + 1;
	}
	if (next <= UTF8_CLASS_MAX)
		ranges[n_out++] = (struct utf8_class_range){next, UTF8_CLASS_MAX};
	return n_out;
}

static uint32_t cut_surrogates(struct utf8_class_range *ranges, uint32_t n)
{
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct utf8_class_range r = ranges[i];

		if (r.first < FIRST_SURROGATE && r.last > LAST_SURROGATE) {
			/* One range alone can lie about them. */
			memmove(ranges + i + 2, ranges + i + 1, (n - i - 1) * sizeof(*ranges));
			ranges[i + 1] = (struct utf8_class_range){LAST_SURROGATE + 1, r.last};
			n++;
			r.last = FIRST_SURROGATE - 1;
		} else if (r.first >= FIRST_SURROGATE && r.first <= LAST_SURROGATE) {
			r.first = LAST_SURROGATE + 1;
		} else if (r.last >= FIRST_SURROGATE && r.last <= LAST_SURROGATE) {
			r.last = FIRST_SURROGATE - 1;
		}
		if (r.first <= r.last)
			ranges[n_out++] = r;
	}
	return n_out;
}

uint32_t utf8_class_normalise(struct utf8_class_range *ranges, uint32_t n, bool is_negated)
{
	n = join_ranges(ranges, n);
	if (is_negated)
		n = turn_over(ranges, n);
	return cut_surrogates(ranges, n);
}

static int new_state(struct utf8_class_table *t, uint16_t *ret_state)
{
	/* DEAD and DONE are rows too, which lead nowhere. */
	uint32_t n = t->n_states ? t->n_states : 2;

	if (n == UTF8_CLASS_MAX_STATES)
		return -E2BIG;
	if (n + 1 > t->n_room) {
		uint32_t n_room = t->n_room ? 2 * t->n_room : FIRST_ROOM;
		void *next = reallocarray(t->next, n_room, sizeof(*t->next));

		if (!next)
			return -ENOMEM;
		t->next = next;
		memset(t->next + t->n_room, 0, (n_room - t->n_room) * sizeof(*t->next));
		t->n_room = n_room;
	}
	t->n_states = n + 1;
	*ret_state = (uint16_t)n;
	return 0;
}

/* The state that any k continuation bytes finish. */
static int get_any(struct utf8_class_table *t, int k, uint16_t *ret_state)
{
	uint16_t behind = UTF8_CLASS_DONE;

	for (int i = 1; i <= k; i++) {
		if (!t->any[i]) {
			int r = new_state(t, &t->any[i]);
			if (r)
				return r;
			for (int byte = 0x80; byte < 0xc0; byte++)
				t->next[t->any[i]][byte] = behind;
		}
		behind = t->any[i];
	}
	*ret_state = behind;
	return 0;
}

enum coverage { COVERS_NONE, COVERS_SOME, COVERS_ALL };

static enum coverage get_coverage(
	const struct utf8_class_range *ranges, uint32_t n, uint32_t first, uint32_t last)
{
	uint32_t low = 0, high = n;

	/* The first range that does not end before `first`. */
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (ranges[middle].last < first)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == n || ranges[low].first > last)
		return COVERS_NONE;
	return ranges[low].first <= first && ranges[low].last >= last ? COVERS_ALL : COVERS_SOME;
}

/*
 * The state in which k continuation bytes choose one of the 64^k code points from `first` on. Those
 * below `least` have a shorter form.
 */
static int build(struct utf8_class_table *t, const struct utf8_class_range *ranges, uint32_t n,
	uint32_t first, int k, uint32_t least, uint16_t *ret_state)
{
	uint32_t last = first + (1u << 6 * k) - 1;
	uint16_t state, child;

	if (last < least) {
		*ret_state = UTF8_CLASS_DEAD;
		return 0;
	}
	enum coverage c = get_coverage(ranges, n, first < least ? least : first, last);
	if (c == COVERS_NONE) {
		*ret_state = UTF8_CLASS_DEAD;
		return 0;
	}
	if (c == COVERS_ALL && first >= least)
		return get_any(t, k, ret_state);
	int r = new_state(t, &state);
	for (uint32_t i = 0; !r && i < 64; i++) {
		r = build(t, ranges, n, first + (i << 6 * (k - 1)), k - 1, least, &child);
		if (!r)
			t->next[state][0x80 + i] = child;
	}
	if (!r)
		*ret_state = state;
	return r;
}

int utf8_class_add(struct utf8_class_table *t, const struct utf8_class_range *ranges, uint32_t n,
	uint16_t *ret_start)
{
	uint16_t start, child;

	if (!n) {
		*ret_start = UTF8_CLASS_DEAD;
		return 0;
	}
	int r = new_state(t, &start);
	for (uint32_t byte = 0; !r && byte < 0xf5; byte++) {
		child = UTF8_CLASS_DEAD;
		if (byte < 0x80)
			child = get_coverage(ranges, n, byte, byte) == COVERS_ALL ? UTF8_CLASS_DONE
										  : UTF8_CLASS_DEAD;
		else if (byte >= 0xc2 && byte < 0xe0)
			r = build(t, ranges, n, (byte & 0x1f) << 6, 1, 0x80, &child);
		else if (byte >= 0xe0 && byte < 0xf0)
			r = build(t, ranges, n, (byte & 0xf) << 12, 2, 0x800, &child);
		else if (byte >= 0xf0)
			r = build(t, ranges, n, (byte & 7) << 18, 3, 0x10000, &child);
		if (!r)
			t->next[start][byte] = child;
	}
	if (!r)
		*ret_start = start;
	return r;
}

uint32_t utf8_class_encode(uint32_t code, uint8_t ret_bytes[4])
{
	uint32_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};

	for (uint32_t i = n - 1; i > 0; i--, code >>= 6)
		ret_bytes[i] = (uint8_t)(0x80 | (code & 0x3f));
	ret_bytes[0] = (uint8_t)(lead[n] | code);
	return n;
}

uint32_t utf8_class_decode(const char *bytes, uint64_t n_bytes, uint32_t *ret_code)
{
	static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
	uint8_t first = n_bytes ? (uint8_t)bytes[0] : 0xff;
	uint32_t n = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	uint32_t code;

	if (!n || first > 0xf4 || n > n_bytes)
		return 0;
	code = n == 1 ? first : first & (0x3fu >> (n - 1));
	for (uint32_t i = 1; i < n; i++) {
		if (((uint8_t)bytes[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | ((uint8_t)bytes[i] & 0x3f);
	}
	if (code < least[n] || code > UTF8_CLASS_MAX ||
		(code >= FIRST_SURROGATE && code <= LAST_SURROGATE))
		return 0;
	*ret_code = code;
	return n;
}
