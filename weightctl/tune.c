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

/* A line for each product as soon as it is measured: who waits sees what it does. */
static void print_row(
	void *userdata, const struct worker_tune_row *row, uint32_t n_done, uint32_t n_products)
{
	double gain = row->best_ns ? (double)row->default_ns / (double)row->best_ns : 1;

	(void)userdata;
	printf("%3u/%-3u %5u %10.1f %10.1f %6.2f  ", n_done, n_products, row->n_rows,
		to_us(row->default_ns), to_us(row->best_ns), gain);
	output_clean(row->op);
	fputs(": ", stdout);
	output_clean(row->choice);
	putchar('\n');
	fflush(stdout);
}

static void print_end(const struct worker_tune_result *result)
{
	uint32_t n_faster = 0;

	for (uint32_t i = 0; i < result->n_rows; i++)
		n_faster += result->rows[i].best_ns < result->rows[i].default_ns;
	printf("%u of %u products in %.1f s, %u faster than by default, %s\n", result->n_rows,
		result->n_products, (double)result->ns / 1e9, n_faster,
		result->is_saved ? "kept on disk" : "not kept on disk: the worker's log says why");
	if (result->n_rows < result->n_products)
		puts("the others would take too long, and stay as they were");
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
	return json_pack("{s:I, s:b, s:I, s:o}", "ns", (json_int_t)result->ns, "is_saved",
		result->is_saved, "n_products", (json_int_t)result->n_products, "products", rows);
}

int tune_ask(const struct options *o, const char *socket, struct err *ret_err)
{
	struct worker_tune_result result = {0};
	struct worker_client *c = NULL;
	int r = worker_client_new(socket, ret_err, &c);

	if (!r && !o->json)
		printf("%7s %5s %10s %10s %6s  %s\n", "", "ROWS", "DEFAULT us", "BEST us", "GAIN",
			"PRODUCT: CUT");
	if (!r)
		r = worker_tune_run(c, o->has_timeout ? o->timeout_s : 0,
			o->json ? NULL : print_row, NULL, ret_err, &result);
	worker_client_free(c);
	if (!r && o->json)
		r = output_json(to_json(&result));
	else if (!r)
		print_end(&result);
	worker_tune_fini(&result);
	return r;
}

int tune_run(const struct options *o, struct err *ret_err)
{
	bool is_own = o->bench.model || o->bench.synthetic || o->bench.workers;

	return is_own ? bench_run_tune(o, ret_err) : tune_ask(o, o->worker, ret_err);
}
