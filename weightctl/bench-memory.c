/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "weightctl/figure.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

enum { READ_BYTES = 8 << 20 };

/* What a load took, beside what reading the same file here and now takes. */
struct load {
	uint64_t n_bytes; /* 0: weightd does not say */
	uint64_t load_ns;
	uint64_t n_read_bytes; /* 0: the file cannot be read from here */
	uint64_t read_ns;
};

struct result {
	struct worker_client_rate rates[WORKER_CLIENT_MAX_PLACEMENTS];
	uint32_t n_rates;
	struct load load;
};

/* 10^9 bytes a second; 0 where nothing was measured. */
static double rate(uint64_t n_bytes, uint64_t ns)
{
	return ns ? (double)n_bytes / (double)ns : 0;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A file that is not there any more, or not here, is no reason to refuse the rest. */
static void read_file(const char *path, struct load *load)
{
	_cleanup_(cleanup_close)
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	_cleanup_(cleanup_free)
	void *buffer = malloc(READ_BYTES);
	uint64_t n_bytes = 0, start_ns = now_ns();
	ssize_t n = -1;

	while (fd >= 0 && buffer && (n = read(fd, buffer, READ_BYTES)) > 0)
		n_bytes += (uint64_t)n;
	if (n < 0)
		return;
	load->n_read_bytes = n_bytes;
	load->read_ns = now_ns() - start_ns;
}

static void find_load(const struct weights_client_status *s,
	const struct worker_client_status *worker, struct load *ret_load)
{
	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct weights_client_model *m = &s->models[i];

		for (uint32_t k = 0; k < m->n_generations; k++) {
			const struct weights_client_generation *g = &m->generations[k];

			if (g->id != worker->generation || strcmp(m->name, worker->model) != 0)
				continue;
			ret_load->n_bytes = g->loaded_bytes;
			ret_load->load_ns = g->load_ns;
			if (g->path)
				read_file(g->path, ret_load);
			return;
		}
	}
}

static int ask_worker(const struct options *o, struct err *ret_err, struct result *result,
	struct worker_client_status *ret_status)
{
	struct worker_client *c = NULL;
	int r = worker_client_new(o->worker, ret_err, &c);

	if (!r)
		r = worker_client_status(c, ret_err, ret_status);
	if (!r)
		r = worker_client_bench_memory(c, ret_err, result->rates, &result->n_rates);
	worker_client_free(c);
	return r;
}

static int ask_weightd(const struct options *o, const struct worker_client_status *worker,
	struct err *ret_err, struct load *ret_load)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status s = {0};
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (!r)
		r = weights_client_status(c, ret_err, &s);
	weights_client_free(c);
	if (!r)
		find_load(&s, worker, ret_load);
	return r;
}

static void print_rate(uint64_t n_bytes, uint64_t ns)
{
	if (ns)
		printf(" %10.1f", rate(n_bytes, ns));
	else
		printf(" %10s", "-");
}

static int print(const struct result *result)
{
	const struct load *load = &result->load;

	printf("%-9s %10s %10s %10s %10s   GB/s\n", "PLACEMENT", "WEIGHTS", "READ", "COPY",
		"STREAM");
	for (uint32_t i = 0; i < result->n_rates; i++) {
		const struct worker_client_rate *r = &result->rates[i];

		output_clean(r->placement);
		printf("%*s %10s", 9 - (int)strlen(r->placement), "",
			figure_bytes(r->n_bytes).text);
		print_rate(r->n_bytes, r->read_ns);
		print_rate(r->n_bytes, r->copy_ns);
		print_rate(r->n_stream_bytes, r->stream_ns);
		putchar('\n');
	}
	if (load->load_ns && load->n_bytes == 0)
		printf("load: nothing was read, in %s\n", figure_time(load->load_ns).text);
	else if (load->load_ns)
		printf("load: %s in %s, %.2f GB/s\n", figure_bytes(load->n_bytes).text,
			figure_time(load->load_ns).text, rate(load->n_bytes, load->load_ns));
	if (load->read_ns)
		printf("read of the same file: %s in %s, %.2f GB/s\n",
			figure_bytes(load->n_read_bytes).text, figure_time(load->read_ns).text,
			rate(load->n_read_bytes, load->read_ns));
	return 0;
}

static json_t *to_json(const struct result *result)
{
	const struct load *load = &result->load;
	json_t *rates = json_array();

	for (uint32_t i = 0; rates && i < result->n_rates; i++) {
		const struct worker_client_rate *r = &result->rates[i];
		json_t *row = json_pack("{s:o, s:I, s:I, s:f, s:I, s:f, s:I, s:I, s:f}",
			"placement", output_name(r->placement), "weights_bytes",
			(json_int_t)r->n_bytes, "read_ns", (json_int_t)r->read_ns, "read_gb_s",
			rate(r->n_bytes, r->read_ns), "copy_ns", (json_int_t)r->copy_ns,
			"copy_gb_s", rate(r->n_bytes, r->copy_ns), "stream_bytes",
			(json_int_t)r->n_stream_bytes, "stream_ns", (json_int_t)r->stream_ns,
			"stream_gb_s", rate(r->n_stream_bytes, r->stream_ns));

		if (json_array_append_new(rates, row) < 0) {
			json_decref(rates);
			rates = NULL;
		}
	}
	return json_pack("{s:o, s:{s:I, s:I, s:f, s:I, s:I, s:f}}", "rates", rates, "load",
		"loaded_bytes", (json_int_t)load->n_bytes, "load_ns", (json_int_t)load->load_ns,
		"load_gb_s", rate(load->n_bytes, load->load_ns), "read_bytes",
		(json_int_t)load->n_read_bytes, "read_ns", (json_int_t)load->read_ns, "read_gb_s",
		rate(load->n_read_bytes, load->read_ns));
}

int bench_memory_run(const struct options *o, struct err *ret_err)
{
	struct worker_client_status worker;
	struct result result = {0};
	int r = ask_worker(o, ret_err, &result, &worker);

	if (!r)
		r = ask_weightd(o, &worker, ret_err, &result.load);
	if (r)
		return r;
	return o->json ? output_json(to_json(&result)) : print(&result);
}
