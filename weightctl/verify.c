/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "weightctl/figure.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

static double get_rate(const struct weights_client_verified *v)
{
	return v->elapsed_ns ? (double)v->n_bytes / (double)v->elapsed_ns : 0;
}

static int print_json(const char *model, const struct weights_client_verified *v)
{
	json_t *rows = json_array();

	for (uint32_t i = 0; i < v->n_differences; i++) {
		const struct weights_client_difference *d = &v->differences[i];

		(void)json_array_append_new(
			rows, json_pack("{s:o, s:I, s:I, s:I}", "tensor", output_name(d->tensor),
				      "allocation", (json_int_t)d->allocation, "offset",
				      (json_int_t)d->offset, "n_bytes", (json_int_t)d->n_bytes));
	}
	return output_json(json_pack("{s:o, s:I, s:I, s:I, s:f, s:I, s:o}", "model",
		output_name(model), "generation", (json_int_t)v->generation, "n_bytes",
		(json_int_t)v->n_bytes, "elapsed_ns", (json_int_t)v->elapsed_ns, "gb_per_second",
		get_rate(v), "n_tensors", (json_int_t)v->n_tensors, "differences", rows));
}

static void print(const char *model, const struct weights_client_verified *v)
{
	printf("%s: generation %" PRIu64 ": %s in %s, %.2f GB/s: ", model, v->generation,
		figure_bytes(v->n_bytes).text, figure_time(v->elapsed_ns).text, get_rate(v));
	if (v->n_tensors == 0)
		printf("all as it was loaded\n");
	else
		printf("%" PRIu32 " tensor%s differ%s\n", v->n_tensors, v->n_tensors > 1 ? "s" : "",
			v->n_tensors > 1 ? "" : "s");
	for (uint32_t i = 0; i < v->n_differences; i++) {
		const struct weights_client_difference *d = &v->differences[i];

		printf("  tensor ");
		output_clean(d->tensor);
		printf(", allocation %" PRIu32 ": from byte %" PRIu64 " on, within %" PRIu64
		       " bytes\n",
			d->allocation, d->offset, d->n_bytes);
	}
	if (v->n_tensors > v->n_differences)
		printf("  and %" PRIu32 " more\n", v->n_tensors - v->n_differences);
}

int verify_run(const struct options *o, struct err *ret_err)
{
	struct weights_client_verified v;
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0)
		r = weights_client_verify(c, o->args[0], ret_err, &v);
	weights_client_free(c);
	if (r < 0)
		return r;
	if (o->json)
		r = print_json(o->args[0], &v);
	else
		print(o->args[0], &v);
	if (r < 0 || v.n_tensors == 0)
		return r;
	return err_set(ret_err, EBADMSG, "model %s: generation %" PRIu64 " is not what was loaded",
		o->args[0], v.generation);
}
