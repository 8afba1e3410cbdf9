/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "weightctl/figure.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

enum { MAX_VALUE_BYTES = 100 }; /* of a line for people: a chat template is long */

/* A scalar as people and JSON read it; an array is its type and length alone. */
static json_t *value_of(const struct gguf_kv *kv)
{
	struct gguf_string s;
	double d;
	uint64_t u;
	bool b;

	if (kv->type == GGUF_ARRAY)
		return json_pack("{s:s, s:I}", "type", gguf_describe_type(kv), "n_elements",
			(json_int_t)kv->n_elements);
	if (kv->type == GGUF_STRING && gguf_get_string(kv, NULL, &s) == 0)
		return output_string(s.data, s.n_bytes);
	if (kv->type == GGUF_BOOL && gguf_get_bool(kv, NULL, &b) == 0)
		return json_boolean(b);
	if (gguf_get_u64(kv, NULL, &u) == 0 && u <= INT64_MAX)
		return json_integer((json_int_t)u);
	if (gguf_get_f64(kv, NULL, &d) == 0)
		return json_real(d);
	return json_string(gguf_describe_type(kv));
}

static json_t *tensor_of(const struct gguf_tensor *t)
{
	json_t *ne = json_array();

	for (uint32_t i = 0; ne && i < t->n_dims; i++)
		(void)json_array_append_new(ne, json_integer((json_int_t)t->ne[i]));
	return json_pack("{s:o, s:s, s:o, s:I, s:I}", "name",
		output_string(t->name.data, t->name.n_bytes), "format", t->dtype->name, "ne", ne,
		"offset", (json_int_t)t->offset, "n_bytes", (json_int_t)t->n_bytes);
}

static int print_json(const struct gguf *g, const char *refusal)
{
	json_t *keys = json_object();
	json_t *tensors = json_array();

	for (uint64_t i = 0; i < g->n_kv; i++) {
		const struct gguf_string *key = &g->kv[i].key;
		_cleanup_(cleanup_free)
		char *name = strndup(key->data, key->n_bytes);

		if (!name || json_object_set_new(keys, name, value_of(&g->kv[i])) < 0)
			(void)json_object_set_new(keys, gguf_label(*key).text, json_null());
	}
	for (uint64_t i = 0; i < g->n_tensors; i++)
		(void)json_array_append_new(tensors, tensor_of(&g->tensors[i]));
	return output_json(json_pack("{s:i, s:I, s:i, s:I, s:o, s:o, s:b, s:s}", "version",
		(int)g->version, "n_bytes", (json_int_t)g->n_file_bytes, "alignment",
		(int)g->alignment, "data_offset", (json_int_t)g->data_offset, "keys", keys,
		"tensors", tensors, "loads", refusal[0] == 0, "refusal", refusal));
}

static int print_text(const char *path, const struct gguf *g, const char *refusal)
{
	output_clean(path);
	printf(": GGUF version %" PRIu32 ", %s, %" PRIu64 " keys, %" PRIu64 " tensors\n",
		g->version, figure_bytes(g->n_file_bytes).text, g->n_kv, g->n_tensors);
	for (uint64_t i = 0; i < g->n_kv; i++) {
		json_t *value = value_of(&g->kv[i]);
		_cleanup_(cleanup_free)
		char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

		json_decref(value);
		if (text && strlen(text) > MAX_VALUE_BYTES)
			text[MAX_VALUE_BYTES] = '\0';
		printf("  %-44s ", gguf_label(g->kv[i].key).text);
		output_clean(text ? text : "?"); /* JSON escapes C0 alone */
		putchar('\n');
	}
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[i];

		printf("  %-44s %-6s [", gguf_label(t->name).text, t->dtype->name);
		for (uint32_t d = 0; d < t->n_dims; d++)
			printf("%s%" PRIu64, d ? ", " : "", t->ne[d]);
		printf("] %s\n", figure_bytes(t->n_bytes).text);
	}
	if (refusal[0])
		printf("would not load: %s\n", refusal);
	else
		puts("would load");
	return 0;
}

int inspect_run(const struct options *o, struct err *ret_err)
{
	const char *path = o->args[0];
	struct gguf *g = NULL;
	struct validate_model model;
	struct err refusal = ERR_NULL;
	uint64_t n_bytes;
	_cleanup_(cleanup_close)
	int fd = -1;

	int r = input_open(path, ret_err, &fd, &n_bytes);
	if (r < 0)
		return r;
	r = gguf_read(fd, ret_err, &g);
	if (r < 0) {
		err_prefix(ret_err, "%s", path);
		return r;
	}
	/* Whether it loads is the file's matter, not this command's: it has shown the file. */
	if (validate_model(g, &refusal, &model) < 0 && !refusal.text[0])
		(void)err_set(&refusal, EINVAL, "not a model");
	r = o->json ? print_json(g, refusal.text) : print_text(path, g, refusal.text);
	gguf_free(g);
	return r;
}
