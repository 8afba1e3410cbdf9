/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "weightctl/figure.h"
#include "weightctl/map-text.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/status-names.h"

struct map {
	struct weights_client_acquired described;
	struct weights_client_status status;
	struct manifest *manifest;
};

static void map_fini(struct map *m)
{
	manifest_free(m->manifest);
	weights_client_acquired_fini(&m->described);
	weights_client_status_fini(&m->status);
}

/* The manifest says how tensors lie in allocations, weightd what these are. */
static int map_ask(const struct options *o, const char *model, struct err *ret_err, struct map *m)
{
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_describe(c, model, ret_err, &m->described);
	if (r == 0)
		r = weights_client_status(c, ret_err, &m->status);
	weights_client_free(c);
	if (r == 0)
		r = manifest_open(m->described.manifest_fd, ret_err, &m->manifest);
	if (r == 0 && m->manifest->n_allocs != m->described.n_allocs)
		r = err_set(ret_err, EPROTO,
			"model %s: expected %" PRIu32
			" allocations as in its manifest, found %" PRIu32,
			model, m->manifest->n_allocs, m->described.n_allocs);
	return r;
}

static uint32_t map_get_placement(const struct map *m, const struct manifest_tensor *t)
{
	return m->described.allocs[t->alloc].placement;
}

static json_t *map_tensor(const struct map *m, const struct manifest_tensor *t)
{
	const struct dtype *dtype = dtype_find(t->dtype);
	json_t *ne = json_array();

	for (uint32_t i = 0; ne && i < t->n_dims; i++)
		(void)json_array_append_new(ne, json_integer((json_int_t)t->ne[i]));
	return json_pack("{s:o, s:s, s:o, s:I, s:s, s:I, s:I}", "name",
		output_string(
			(const char *)manifest_get_string(m->manifest, t->name), t->name.n_bytes),
		"format", dtype ? dtype->name : "unknown", "ne", ne, "n_bytes",
		(json_int_t)t->n_bytes, "placement",
		status_names_placement(map_get_placement(m, t)), "allocation", (json_int_t)t->alloc,
		"offset", (json_int_t)t->offset);
}

static json_t *map_alloc(const struct weights_client_alloc *a)
{
	return json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:b, s:I}", "index", (json_int_t)a->index,
		"placement", status_names_placement(a->placement), "handle_type",
		status_names_handle(a->handle_type), "n_bytes", (json_int_t)a->n_bytes,
		"buffer_bytes", (json_int_t)a->buffer_bytes, "file_offset",
		(json_int_t)a->file_offset, "writable", a->writable, "inode", (json_int_t)a->inode);
}

static int map_print_json(const struct map *m, const char *model)
{
	json_t *tensors = json_array(), *allocs = json_array(), *bytes = json_object();

	for (uint32_t p = MANIFEST_PLACEMENT_DEVICE; p <= MANIFEST_PLACEMENT_PAGED; p++) {
		uint64_t n = 0;
		for (uint32_t i = 0; i < m->manifest->n_tensors; i++)
			if (map_get_placement(m, &m->manifest->tensors[i]) == p)
				n += m->manifest->tensors[i].n_bytes;
		(void)json_object_set_new(
			bytes, status_names_placement(p), json_integer((json_int_t)n));
	}
	for (uint32_t i = 0; i < m->manifest->n_tensors; i++)
		(void)json_array_append_new(tensors, map_tensor(m, &m->manifest->tensors[i]));
	for (uint32_t i = 0; i < m->described.n_allocs; i++)
		(void)json_array_append_new(allocs, map_alloc(&m->described.allocs[i]));
	return output_json(json_pack("{s:o, s:I, s:o, s:o, s:o}", "model", output_name(model),
		"generation", (json_int_t)m->described.generation, "bytes", bytes, "allocations",
		allocs, "tensors", tensors));
}

/* Names of tensors in the manifest have no end of their own: one copy for all of them. */
static char *map_copy_names(const struct manifest *m, struct map_text_tensor *tensors)
{
	size_t n_bytes = 1;

	for (uint32_t i = 0; i < m->n_tensors; i++)
		n_bytes += m->tensors[i].name.n_bytes + 1;
	char *names = malloc(n_bytes), *at = names;
	for (uint32_t i = 0; i < m->n_tensors && names; i++) {
		struct manifest_string s = m->tensors[i].name;
		tensors[i].name = at;
		memcpy(at, manifest_get_string(m, s), s.n_bytes);
		at[s.n_bytes] = '\0';
		at += s.n_bytes + 1;
	}
	return names;
}

static int map_print(const struct map *m, const char *model)
{
	const struct weights_client_device *d = &m->status.device;
	struct map_text_heap heaps[ARRAY_SIZE(d->heaps)];
	uint32_t n = m->manifest->n_tensors;
	_cleanup_(cleanup_free)
	struct map_text_tensor *tensors = calloc((size_t)n + 1, sizeof(*tensors));
	_cleanup_(cleanup_free)
	char *names = tensors ? map_copy_names(m->manifest, tensors) : NULL;
	struct map_text text = {.tensors = tensors,
		.n_tensors = n,
		.heaps = heaps,
		.n_heaps = d->n_heaps,
		.has_color = isatty(STDOUT_FILENO)};

	if (!names)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		tensors[i].n_bytes = m->manifest->tensors[i].n_bytes;
		tensors[i].placement = map_get_placement(m, &m->manifest->tensors[i]);
	}
	for (uint32_t i = 0; i < d->n_heaps; i++)
		heaps[i] = (struct map_text_heap){.n_bytes = d->heaps[i].n_bytes,
			.weights_bytes = d->heaps[i].weights_bytes,
			.device_local = d->heaps[i].device_local};
	for (uint32_t i = 0; i < m->described.n_allocs; i++)
		text.n_allocs[m->described.allocs[i].placement]++;
	printf("model %s, generation %" PRIu64 ", on ", model, m->described.generation);
	output_clean(d->name);
	putchar('\n');
	map_text_print(&text, stdout);
	return 0;
}

int map_run(const struct options *o, struct err *ret_err)
{
	_cleanup_(map_fini)
	struct map m = {.described = {.manifest_fd = -1}};
	int r = map_ask(o, o->args[0], ret_err, &m);

	if (r < 0)
		return r;
	return o->json ? map_print_json(&m, o->args[0]) : map_print(&m, o->args[0]);
}
