/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/tuning.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "workerd/ops/matmul.h"

enum {
	MAX_SUBGROUPS = 128, /* of a workgroup: 1024 invocations of 8 lanes */
	MAX_EDGE = 512,      /* of a tile */
	MAX_GROUPS = 65535,
};

struct entry {
	struct tuning_key key;
	struct tuning_choice choice;
};

struct tuning {
	uint32_t n;
	struct entry entries[TUNING_MAX_ENTRIES];
};

/* A number of a struct, and its name in the text. */
struct field {
	const char *name;
	size_t offset;
	size_t n_bytes; /* 1: a bool; 2, 4 */
};

#define FIELD(type, member)                                                                \
	{                                                                                  \
#member, offsetof(struct type, member), sizeof(((struct type *)0)->member) \
	}

static const struct field key_fields[] = {
	FIELD(tuning_key, k),
	FIELD(tuning_key, finish),
	FIELD(tuning_key, has_norm),
	FIELD(tuning_key, is_staged),
	FIELD(tuning_key, has_next),
	FIELD(tuning_key, n_rows),
};

/* All members of both structs: one that is not here would be lost on disk. */
static const struct field shape_fields[] = {
	FIELD(op_matvec_shape, n_rows),
	FIELD(op_matvec_shape, n_columns),
	FIELD(op_matvec_shape, n_unroll),
	FIELD(op_matvec_shape, n_subgroups),
	FIELD(op_matvec_shape, n_groups),
	FIELD(op_matvec_shape, is_ahead),
	FIELD(op_matvec_shape, source),
	FIELD(op_matvec_shape, n_hold),
	FIELD(op_matvec_shape, n_split),
};

static_assert(sizeof(struct op_matvec_shape) == 36, "shape_fields is to have every member");

static const struct field tile_fields[] = {
	FIELD(op_matrix_tile, bn),
	FIELD(op_matrix_tile, bm),
	FIELD(op_matrix_tile, bk),
	FIELD(op_matrix_tile, sn),
	FIELD(op_matrix_tile, sm),
	FIELD(op_matrix_tile, n),
	FIELD(op_matrix_tile, n_buffers),
	FIELD(op_matrix_tile, n_streams),
	FIELD(op_matrix_tile, is_direct),
	FIELD(op_matrix_tile, is_decoded),
	FIELD(op_matrix_tile, is_ragged),
	FIELD(op_matrix_tile, is_wide),
};

static_assert(sizeof(struct op_matrix_tile) == 20, "tile_fields is to have every member");

struct tuning *tuning_new(void)
{
	return calloc(1, sizeof(struct tuning));
}

struct tuning *tuning_free(struct tuning *t)
{
	free(t);
	return NULL;
}

uint32_t tuning_count(const struct tuning *t)
{
	return t ? t->n : 0;
}

static uint32_t round_rows(uint32_t n_rows)
{
	uint32_t n = 1;

	while (n < n_rows && n < UINT32_C(1) << 31)
		n *= 2;
	return n;
}

void tuning_get_key(const struct op_matmul_params *p, struct tuning_key *ret_key)
{
	*ret_key = (struct tuning_key){.n_parts = p->n_parts,
		.k = (uint32_t)p->w[0].ne[0],
		.finish = p->finish,
		.has_norm = p->gain != 0,
		.is_staged = p->is_staged,
		.has_next = p->next != 0,
		.n_rows = round_rows(p->n_rows)};
	for (uint32_t i = 0; i < p->n_parts && i < ABI_MATMUL_MAX_PARTS; i++) {
		ret_key->dtype[i] = p->w[i].dtype;
		ret_key->n[i] = (uint32_t)p->w[i].ne[1];
	}
}

/* 1, 2, 4 or 8. */
static bool is_small_power(uint32_t v)
{
	return v == 1 || v == 2 || v == 4 || v == 8;
}

/* What the kernels are written for, whatever the device and the product are. */
static bool is_possible(const struct tuning_choice *c)
{
	const struct op_matvec_shape *s = &c->shape;
	const struct op_matrix_tile *t = &c->tile;

	if (c->kind == TUNING_MATVEC)
		return is_small_power(s->n_rows) && is_small_power(s->n_columns) &&
		       s->n_unroll >= 1 && s->n_unroll <= 4 && s->n_subgroups >= 1 &&
		       s->n_subgroups <= MAX_SUBGROUPS && s->n_groups <= MAX_GROUPS &&
		       s->source <= OP_MATVEC_STAGED && s->n_hold <= OP_MATVEC_MAX_HOLD &&
		       s->n_split <= OP_MATVEC_MAX_SPLIT &&
		       (s->n_split < 2 || (s->n_hold && s->n_subgroups % s->n_split == 0)) &&
		       (s->n_hold == 0 || (s->n_columns == 1 && s->n_unroll == 1));
	return t->sn >= 8 && t->sm >= 8 && t->bn >= t->sn && t->bm >= t->sm && t->bn <= MAX_EDGE &&
	       t->bm <= MAX_EDGE && t->bn % t->sn == 0 && t->bm % t->sm == 0 && t->sn % 8 == 0 &&
	       t->sm % 8 == 0 && (t->bk == 32 || t->bk == 64) && t->n_buffers >= 1 &&
	       t->n_buffers <= 2;
}

static struct entry *find_entry(struct tuning *t, const struct tuning_key *key)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (!memcmp(&t->entries[i].key, key, sizeof(*key)))
			return &t->entries[i];
	return NULL;
}

int tuning_set(struct tuning *t, const struct tuning_key *key, const struct tuning_choice *choice)
{
	struct entry *e = find_entry(t, key);

	if (!is_possible(choice))
		return -EINVAL;
	if (!e && t->n == TUNING_MAX_ENTRIES) {
		t->n--;
		memmove(t->entries, t->entries + 1, t->n * sizeof(t->entries[0]));
	}
	if (!e)
		e = &t->entries[t->n++];
	*e = (struct entry){.key = *key, .choice = *choice};
	return 0;
}

const struct tuning_choice *tuning_find(
	const struct tuning *t, const struct op_matmul_params *p, enum tuning_kind kind)
{
	struct tuning_key key;

	if (!t || t->n == 0)
		return NULL;
	tuning_get_key(p, &key);
	const struct entry *e = find_entry((struct tuning *)t, &key);
	return e && e->choice.kind == kind ? &e->choice : NULL;
}

/* ---- text ---- */

static uint32_t get_field(const void *object, const struct field *f)
{
	uint8_t v8;
	uint16_t v16;
	uint32_t v32;
	const char *at = (const char *)object + f->offset;

	switch (f->n_bytes) {
	case sizeof(v8): memcpy(&v8, at, sizeof(v8)); return v8;
	case sizeof(v16): memcpy(&v16, at, sizeof(v16)); return v16;
	default: memcpy(&v32, at, sizeof(v32)); return v32;
	}
}

static bool set_field(void *object, const struct field *f, uint32_t value)
{
	char *at = (char *)object + f->offset;
	bool flag = value;
	uint16_t v16 = (uint16_t)value;

	switch (f->n_bytes) {
	case sizeof(flag): memcpy(at, &flag, sizeof(flag)); return value <= 1;
	case sizeof(v16): memcpy(at, &v16, sizeof(v16)); return value <= UINT16_MAX;
	default: memcpy(at, &value, sizeof(value)); return true;
	}
}

static const void *get_cut(const struct tuning_choice *c)
{
	return c->kind == TUNING_MATVEC ? (const void *)&c->shape : &c->tile;
}

static const struct field *choose_fields(enum tuning_kind kind, size_t *ret_n)
{
	*ret_n = kind == TUNING_MATVEC ? ARRAY_SIZE(shape_fields) : ARRAY_SIZE(tile_fields);
	return kind == TUNING_MATVEC ? shape_fields : tile_fields;
}

bool tuning_is_same(const struct tuning_choice *a, const struct tuning_choice *b)
{
	size_t n = 0;
	const struct field *fields = choose_fields(a->kind, &n);

	if (a->kind != b->kind)
		return false;
	for (size_t i = 0; i < n; i++)
		if (get_field(get_cut(a), &fields[i]) != get_field(get_cut(b), &fields[i]))
			return false;
	return true;
}

static void write_choice(FILE *f, const struct tuning_choice *c)
{
	size_t n = 0;
	const struct field *fields = choose_fields(c->kind, &n);

	fputs(c->kind == TUNING_MATVEC ? "matvec" : "matrix", f);
	for (size_t i = 0; i < n; i++)
		fprintf(f, " %s=%u", fields[i].name, get_field(get_cut(c), &fields[i]));
}

static void write_entry(FILE *f, const struct entry *e)
{
	fputs("parts=", f);
	for (uint32_t i = 0; i < e->key.n_parts; i++)
		fprintf(f, "%s%u:%u", i ? "," : "", e->key.dtype[i], e->key.n[i]);
	for (size_t i = 0; i < ARRAY_SIZE(key_fields); i++)
		fprintf(f, " %s=%u", key_fields[i].name, get_field(&e->key, &key_fields[i]));
	fputs(" : ", f);
	write_choice(f, &e->choice);
	fputc('\n', f);
}

int tuning_encode(const struct tuning *t, char **ret_text, size_t *ret_n_bytes)
{
	FILE *f = open_memstream(ret_text, ret_n_bytes);

	if (!f)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n; i++)
		write_entry(f, &t->entries[i]);
	if (fclose(f) == 0)
		return 0;
	free(*ret_text);
	*ret_text = NULL;
	return -ENOMEM;
}

static bool read_number(const char **at, uint32_t *ret_value)
{
	uint64_t value = 0;
	const char *p = *at;

	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		value = 10 * value + (uint64_t)(*p - '0');
		if (value > UINT32_MAX)
			return false;
	}
	*at = p;
	*ret_value = (uint32_t)value;
	return true;
}

static bool read_word(const char **at, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

/* All of them, in any order, each once. */
static bool read_fields(const char **at, const struct field *fields, size_t n, void *object)
{
	uint32_t seen = 0;

	for (size_t count = 0; count < n; count++) {
		uint32_t value = 0;
		size_t i = 0, n_name = 0;

		if (!read_word(at, " "))
			return false;
		n_name = strcspn(*at, "= \n");
		while (i < n && (strlen(fields[i].name) != n_name ||
					strncmp(fields[i].name, *at, n_name) != 0))
			i++;
		if (i == n || (seen & UINT32_C(1) << i))
			return false;
		*at += n_name;
		if (!read_word(at, "=") || !read_number(at, &value) ||
			!set_field(object, &fields[i], value))
			return false;
		seen |= UINT32_C(1) << i;
	}
	return true;
}

static bool read_entry(const char **at, struct entry *e)
{
	size_t n = 0;

	if (!read_word(at, "parts="))
		return false;
	do {
		uint32_t i = e->key.n_parts;

		if (i == ABI_MATMUL_MAX_PARTS || !read_number(at, &e->key.dtype[i]) ||
			!read_word(at, ":") || !read_number(at, &e->key.n[i]))
			return false;
		e->key.n_parts++;
	} while (read_word(at, ","));
	if (!read_fields(at, key_fields, ARRAY_SIZE(key_fields), &e->key) || !read_word(at, " : "))
		return false;
	if (read_word(at, "matvec"))
		e->choice.kind = TUNING_MATVEC;
	else if (read_word(at, "matrix"))
		e->choice.kind = TUNING_MATRIX;
	else
		return false;
	const struct field *fields = choose_fields(e->choice.kind, &n);
	return read_fields(at, fields, n,
		e->choice.kind == TUNING_MATVEC ? (void *)&e->choice.shape : &e->choice.tile);
}

uint32_t tuning_decode(struct tuning *t, const char *text)
{
	uint32_t n_left_out = 0;

	while (*text) {
		struct entry e = {0};
		bool is_one = read_entry(&text, &e) && *text == '\n';

		if (!is_one || tuning_set(t, &e.key, &e.choice))
			n_left_out++;
		text += strcspn(text, "\n");
		text += *text == '\n';
	}
	return n_left_out;
}

void tuning_describe_key(const struct tuning_key *key, char ret_text[TUNING_TEXT_BYTES])
{
	static const char *const finishes[] = {
		[OP_MATMUL_STORE] = "", [OP_MATMUL_ADD] = " add", [OP_MATMUL_SWIGLU] = " swiglu"};
	/* What does not fit is cut, and the last byte stays the end. */
	memset(ret_text, 0, TUNING_TEXT_BYTES);
	FILE *f = fmemopen(ret_text, TUNING_TEXT_BYTES - 1, "w");
	if (!f)
		return;
	for (uint32_t i = 0; i < key->n_parts; i++) {
		const struct dtype *dtype = dtype_find(key->dtype[i]);

		if (i == 0 || key->dtype[i] != key->dtype[i - 1])
			fprintf(f, "%s%s %u", i ? " + " : "", dtype ? dtype->name : "?", key->n[i]);
		else
			fprintf(f, "+%u", key->n[i]);
	}
	fprintf(f, " x %u%s%s%s%s", key->k, key->has_norm ? " norm" : "",
		key->finish < ARRAY_SIZE(finishes) ? finishes[key->finish] : "",
		key->is_staged ? " staged" : "", key->has_next ? " next" : "");
	fclose(f);
}

void tuning_describe_choice(const struct tuning_choice *choice, char ret_text[TUNING_TEXT_BYTES])
{
	/* What does not fit is cut, and the last byte stays the end. */
	memset(ret_text, 0, TUNING_TEXT_BYTES);
	FILE *f = fmemopen(ret_text, TUNING_TEXT_BYTES - 1, "w");
	if (!f)
		return;
	write_choice(f, choice);
	fclose(f);
}
