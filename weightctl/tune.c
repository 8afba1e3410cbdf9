/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/worker-tune.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

static double to_us(uint64_t ns)
{
	return (double)ns / 1000;
}

static int print(const struct worker_tune_result *result)
{
	int width = (int)strlen("PRODUCT");

	for (uint32_t i = 0; i < result->n_rows; i++) {
		int n = (int)strlen(result->rows[i].op);
		width = n > width ? n : width;
	}
	printf("%-*s %5s %11s %11s   %s\n", width, "PRODUCT", "ROWS", "DEFAULT us", "BEST us",
		"CUT");
	for (uint32_t i = 0; i < result->n_rows; i++) {
		const struct worker_tune_row *row = &result->rows[i];

		output_clean(row->op);
		printf("%*s %5u %11.1f %11.1f   ", width - (int)strlen(row->op), "", row->n_rows,
			to_us(row->default_ns), to_us(row->best_ns));
		output_clean(row->choice);
		putchar('\n');
	}
	printf("%u choices in %.1f s, %s\n", result->n_rows, (double)result->ns / 1e9,
		result->is_saved ? "kept on disk" : "not kept on disk: the worker's log says why");
	return 0;
}

static json_t *to_json(const struct worker_tune_result *result)
{
	json_t *rows = json_array();

	for (uint32_t i = 0; rows && i < result->n_rows; i++) {
		const struct worker_tune_row *from = &result->rows[i];
		json_t *row = json_pack("{s:o, s:I, s:I, s:I, s:o}", "product",
			output_name(from->op), "rows", (json_int_t)from->n_rows, "default_ns",
			(json_int_t)from->default_ns, "best_ns", (json_int_t)from->best_ns, "cut",
			output_name(from->choice));

		if (json_array_append_new(rows, row) < 0) {
			json_decref(rows);
			rows = NULL;
		}
	}
	return json_pack("{s:I, s:b, s:o}", "ns", (json_int_t)result->ns, "is_saved",
		result->is_saved, "products", rows);
}

int tune_ask(const struct options *o, const char *socket, struct err *ret_err)
{
	struct worker_tune_result result = {0};
	struct worker_client *c = NULL;
	int r = worker_client_new(socket, ret_err, &c);

	if (!r)
		r = worker_tune_run(c, ret_err, &result);
	worker_client_free(c);
	if (!r)
		r = o->json ? output_json(to_json(&result)) : print(&result);
	worker_tune_fini(&result);
	return r;
}

int tune_run(const struct options *o, struct err *ret_err)
{
	bool is_own = o->bench.model || o->bench.synthetic || o->bench.workers;

	return is_own ? bench_run_tune(o, ret_err) : tune_ask(o, o->worker, ret_err);
}
