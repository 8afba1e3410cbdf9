/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "proto/weights-prefix.h"
#include "proto/worker-client.h"
#include "proto/worker-prefix.h"
#include "weightctl/figure.h"
#include "weightctl/input.h"
#include "weightctl/number.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

static int usage(struct err *ret_err, const char *expected)
{
	(void)err_set(ret_err, EINVAL, "prefix: expected %s", expected);
	return COMMANDS_USAGE;
}

/* ---- add ---- */

static int check_model(struct worker_client *c, const char *model, struct err *ret_err)
{
	const struct worker_client_info *info = worker_client_get_info(c);

	if (strcmp(info->model, model) == 0)
		return 0;
	return err_set(
		ret_err, EINVAL, "prefix: the worker serves model %s, not %s", info->model, model);
}

static int publish(const struct options *o, struct worker_client *c, struct err *ret_err)
{
	const char *file = o->args[o->n_args - 1];
	_cleanup_(cleanup_free)
	char *text = NULL;
	struct worker_prefix_params params = {
		.has_bos = true, .name = o->name, .is_shared = o->shared};
	struct worker_prefix p;
	int r = o->n_args == 3 ? check_model(c, o->args[1], ret_err) : 0;

	if (r == 0 && strcmp(file, "-") == 0)
		r = input_read(file, ret_err, &text, &params.n_bytes);
	else if (r == 0)
		r = input_read_file(file, ret_err, &text, &params.n_bytes);
	params.text = text;
	if (r == 0)
		r = worker_prefix_publish(c, &params, ret_err, &p);
	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack("{s:I, s:I, s:I, s:I, s:b}", "id", (json_int_t)p.id,
			"n_tokens", (json_int_t)p.n_tokens, "n_bytes", (json_int_t)p.n_bytes,
			"computed_tokens", (json_int_t)p.n_computed, "existed", p.existed));
	printf("prefix %" PRIu64 ": %" PRIu32 " tokens, %s, %s\n", p.id, p.n_tokens,
		figure_bytes(p.n_bytes).text, p.existed ? "there already" : "published");
	return 0;
}

static int add(const struct options *o, struct err *ret_err)
{
	struct worker_client *c = NULL;

	if (o->n_args < 2 || o->n_args > 3)
		return usage(ret_err, "add [MODEL] FILE");
	int r = worker_client_new(o->worker, ret_err, &c);
	if (r < 0)
		return r;
	r = publish(o, c, ret_err);
	worker_client_free(c);
	return r;
}

/* ---- ls and rm ---- */

static int print_json(const struct weights_prefix *rows, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++) {
		const struct weights_prefix *p = &rows[i];

		(void)json_array_append_new(list,
			json_pack("{s:I, s:o, s:I, s:o, s:I, s:I, s:b, s:I, s:I}", "id",
				(json_int_t)p->id, "model", output_name(p->model), "generation",
				(json_int_t)p->generation, "name", output_name(p->name), "n_tokens",
				(json_int_t)p->n_tokens, "n_bytes", (json_int_t)p->n_bytes,
				"shared", p->is_shared, "pid", (json_int_t)p->pid, "leases",
				(json_int_t)p->n_leases));
	}
	return output_json(json_pack("{s:o}", "prefixes", list));
}

static int print(const struct weights_prefix *rows, uint32_t n)
{
	printf("%-20s %-24s %10s %8s %12s %6s %6s  %s\n", "ID", "MODEL", "GENERATION", "TOKENS",
		"BYTES", "LEASES", "SHARED", "NAME");
	for (uint32_t i = 0; i < n; i++) {
		const struct weights_prefix *p = &rows[i];

		printf("%-20" PRIu64 " %-24s %10" PRIu64 " %8" PRIu32 " %12s %6" PRIu32 " %6s  ",
			p->id, p->model, p->generation, p->n_tokens, figure_bytes(p->n_bytes).text,
			p->n_leases, p->is_shared ? "yes" : "no");
		output_clean(p->name);
		printf("\n");
	}
	return 0;
}

static int list(const struct options *o, struct weights_client *c, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	struct weights_prefix *rows = NULL;
	uint32_t n = 0;
	int r = weights_prefix_list(
		c, o->n_args == 2 ? o->args[1] : "", 0, NULL, NULL, 0, ret_err, &rows, &n);

	if (r < 0)
		return r;
	return o->json ? print_json(rows, n) : print(rows, n);
}

static int drop(const struct options *o, struct weights_client *c, uint64_t id, struct err *ret_err)
{
	int r = weights_prefix_remove(c, id, ret_err);

	if (r < 0)
		return r;
	if (o->json)
		return output_json(json_pack("{s:I}", "removed", (json_int_t)id));
	printf("prefix %" PRIu64 ": removed; it is gone when the last worker has let go\n", id);
	return 0;
}

int prefix_run(const struct options *o, struct err *ret_err)
{
	bool is_list = strcmp(o->args[0], "ls") == 0;
	struct weights_client *c = NULL;
	uint64_t id = 0;

	if (strcmp(o->args[0], "add") == 0)
		return add(o, ret_err);
	if (is_list ? o->n_args > 2
		    : strcmp(o->args[0], "rm") != 0 || o->n_args != 2 ||
				number_parse_u64(o->args[1], &id))
		return usage(ret_err, "add [MODEL] FILE, ls [MODEL] or rm ID");
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);
	if (r < 0)
		return r;
	r = is_list ? list(o, c, ret_err) : drop(o, c, id, ret_err);
	weights_client_free(c);
	return r;
}
