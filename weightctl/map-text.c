/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/map-text.h"

#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"
#include "weightctl/figure.h"
#include "weightctl/status-names.h"

enum { BAR_CELLS = 32, N_PLACEMENTS = 5, NAME_CELLS = 40 };

static const char letters[N_PLACEMENTS] = {
	[MANIFEST_PLACEMENT_DEVICE] = 'D',
	[MANIFEST_PLACEMENT_PINNED] = 'P',
	[MANIFEST_PLACEMENT_STAGED] = 'S',
	[MANIFEST_PLACEMENT_PAGED] = 'G',
};

/* Green, cyan, yellow, red: the faster, the cooler. */
static const char *const colors[N_PLACEMENTS] = {
	[MANIFEST_PLACEMENT_DEVICE] = "\033[32m",
	[MANIFEST_PLACEMENT_PINNED] = "\033[36m",
	[MANIFEST_PLACEMENT_STAGED] = "\033[33m",
	[MANIFEST_PLACEMENT_PAGED] = "\033[31m",
};

static const char *const group_names[MAP_TEXT_N_GROUPS] = {
	[MAP_TEXT_NORM] = "norm",
	[MAP_TEXT_ATTENTION] = "attn",
	[MAP_TEXT_ROUTER] = "router",
	[MAP_TEXT_EXPERTS] = "experts",
	[MAP_TEXT_FFN] = "ffn",
	[MAP_TEXT_OTHER] = "other",
};

/* A layer's row: bytes by group and placement. */
struct row {
	uint32_t layer;
	uint64_t n_bytes[MAP_TEXT_N_GROUPS][N_PLACEMENTS];
};

static enum map_text_group read_group(const char *tail)
{
	if (strstr(tail, "_exps"))
		return MAP_TEXT_EXPERTS;
	if (strstr(tail, "norm"))
		return MAP_TEXT_NORM;
	if (strstr(tail, "_inp"))
		return MAP_TEXT_ROUTER;
	if (!strncmp(tail, "attn", 4))
		return MAP_TEXT_ATTENTION;
	return strncmp(tail, "ffn", 3) ? MAP_TEXT_OTHER : MAP_TEXT_FFN;
}

bool map_text_read_name(const char *name, uint32_t *ret_layer, enum map_text_group *ret_group)
{
	int n = 0;
	uint32_t layer;

	if (sscanf(name, "blk.%9" SCNu32 ".%n", &layer, &n) != 1 || n == 0 || name[4] < '0' ||
		name[4] > '9') /* scanf would take a sign or a space */
		return false;
	*ret_layer = layer;
	*ret_group = read_group(name + n);
	return true;
}

static void print_letter(const struct map_text *m, uint32_t placement, FILE *out)
{
	if (m->has_color)
		fprintf(out, "%s%c\033[0m", colors[placement], letters[placement]);
	else
		fputc(letters[placement], out);
}

/* What is there at all shows. */
static void print_bar(uint64_t n, uint64_t total, char fill, FILE *out)
{
	uint32_t n_cells = total ? (uint32_t)((double)n / (double)total * BAR_CELLS + 0.5) : 0;

	if (n > 0 && n_cells == 0)
		n_cells = 1;
	if (n_cells > BAR_CELLS)
		n_cells = BAR_CELLS;
	fputc('[', out);
	for (uint32_t i = 0; i < BAR_CELLS; i++)
		fputc(i < n_cells ? fill : '.', out);
	fputc(']', out);
}

static void print_heaps(const struct map_text *m, FILE *out)
{
	for (uint32_t i = 0; i < m->n_heaps; i++) {
		const struct map_text_heap *h = &m->heaps[i];

		fprintf(out, "heap %-4" PRIu32, i);
		print_bar(h->weights_bytes, h->n_bytes, '#', out);
		fprintf(out, " %s of weights in %s%s\n", figure_bytes(h->weights_bytes).text,
			figure_bytes(h->n_bytes).text, h->device_local ? ", device-local" : "");
	}
}

static void print_placements(const struct map_text *m, FILE *out)
{
	uint64_t n_bytes[N_PLACEMENTS] = {0};
	uint64_t total = 0;

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		n_bytes[m->tensors[i].placement] += m->tensors[i].n_bytes;
		total += m->tensors[i].n_bytes;
	}
	for (uint32_t p = MANIFEST_PLACEMENT_DEVICE; p < N_PLACEMENTS; p++) {
		if (n_bytes[p] == 0)
			continue;
		print_letter(m, p, out);
		fprintf(out, " %-7s", status_names_placement(p));
		print_bar(n_bytes[p], total, letters[p], out);
		fprintf(out, " %5.1f%%  %s in %" PRIu32 " allocation%s\n",
			100.0 * (double)n_bytes[p] / (double)total, figure_bytes(n_bytes[p]).text,
			m->n_allocs[p], m->n_allocs[p] == 1 ? "" : "s");
	}
	fprintf(out, "total   %s in %" PRIu32 " tensors\n", figure_bytes(total).text, m->n_tensors);
}

static void print_cell(const struct map_text *m, const uint64_t *n_bytes, FILE *out)
{
	int n = 0;

	for (uint32_t p = MANIFEST_PLACEMENT_DEVICE; p < N_PLACEMENTS; p++) {
		if (n_bytes[p] == 0)
			continue;
		print_letter(m, p, out);
		n++;
	}
	if (n == 0) {
		fputc('-', out);
		n = 1;
	}
	fprintf(out, "%*s", 8 - n, "");
}

static void print_row(const struct map_text *m, const struct row *row, FILE *out)
{
	uint64_t total = 0;

	fprintf(out, "layer %-4" PRIu32 "  ", row->layer);
	for (int g = 0; g < MAP_TEXT_N_GROUPS; g++) {
		print_cell(m, row->n_bytes[g], out);
		for (int p = 0; p < N_PLACEMENTS; p++)
			total += row->n_bytes[g][p];
	}
	fprintf(out, "%s\n", figure_bytes(total).text);
}

static struct row *find_row(struct row *rows, uint32_t *n, uint32_t layer)
{
	for (uint32_t i = 0; i < *n; i++)
		if (rows[i].layer == layer)
			return &rows[i];
	rows[*n] = (struct row){.layer = layer};
	return &rows[(*n)++];
}

static int compare_rows(const void *a, const void *b)
{
	const struct row *ra = a, *rb = b;

	return ra->layer < rb->layer ? -1 : ra->layer > rb->layer;
}

static void print_layers(const struct map_text *m, FILE *out)
{
	_cleanup_(cleanup_free)
	struct row *rows = calloc((size_t)m->n_tensors + 1, sizeof(*rows));
	uint32_t n_rows = 0, layer;
	enum map_text_group group;

	for (uint32_t i = 0; i < m->n_tensors && rows; i++) {
		const struct map_text_tensor *t = &m->tensors[i];
		if (map_text_read_name(t->name, &layer, &group))
			find_row(rows, &n_rows, layer)->n_bytes[group][t->placement] += t->n_bytes;
	}
	if (n_rows == 0)
		return;
	qsort(rows, n_rows, sizeof(*rows), compare_rows);
	fputs("\n            ", out);
	for (int g = 0; g < MAP_TEXT_N_GROUPS; g++)
		fprintf(out, "%-8s", group_names[g]);
	fputs("bytes\n", out);
	for (uint32_t i = 0; i < n_rows; i++)
		print_row(m, &rows[i], out);
}

/* A name is whatever the file says. */
static void print_name(const char *name, FILE *out)
{
	int n = 0;

	for (; name[n] && n < NAME_CELLS; n++)
		fputc(name[n] < 0x20 || name[n] > 0x7e ? '?' : name[n], out);
	fprintf(out, "%*s", NAME_CELLS - n, "");
}

static void print_others(const struct map_text *m, FILE *out)
{
	uint32_t layer;
	enum map_text_group group;
	bool is_first = true;

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct map_text_tensor *t = &m->tensors[i];
		if (map_text_read_name(t->name, &layer, &group))
			continue;
		if (is_first)
			fputc('\n', out);
		is_first = false;
		print_name(t->name, out);
		fputc(' ', out);
		print_letter(m, t->placement, out);
		fprintf(out, "  %s\n", figure_bytes(t->n_bytes).text);
	}
}

void map_text_print(const struct map_text *m, FILE *out)
{
	print_heaps(m, out);
	print_placements(m, out);
	print_layers(m, out);
	print_others(m, out);
}
