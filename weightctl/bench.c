/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "weightctl/bench-crew.h"
#include "weightctl/bench-json.h"
#include "weightctl/bench-options.h"
#include "weightctl/bench-profile.h"
#include "weightctl/bench-result.h"
#include "weightctl/bench-site.h"
#include "weightctl/bench-table.h"
#include "weightctl/figure.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/synthetic.h"

/* What a private weightd knows the model as. */
static const char private_name[] = "bench";

struct bench {
	const struct options *options;
	struct bench_options o;
	struct bench_site *site; /* NULL: a worker that is there is asked */
	const char *weightd;     /* a socket; NULL: the default */
	char name[256];          /* that weightd has the model by */
	char shown[256];         /* for people */
	struct worker_client_status worker;
	struct bench_crew *crew;
	json_t *tests;
	uint64_t make_ns; /* of a synthetic model; 0: none */
	uint64_t load_ns; /* into a private weightd; 0: none */
	bool has_head;    /* of the table */
	bool is_tune;     /* the first worker is tuned, and nothing else */
};

/* ---- where the model is ---- */

static bool is_file(const char *model)
{
	size_t n = strlen(model);

	return strchr(model, '/') || (n > 5 && !strcmp(model + n - 5, ".gguf"));
}

/* A weightd of our own with this file alone. */
static int load(struct bench *b, int fd, const char *path, struct err *ret_err)
{
	struct weights_client *c = NULL;
	uint64_t generation, start_ns = clock_now_ns();
	int r = bench_site_start_weightd(b->site, b->o.device, ret_err);

	if (r)
		return r;
	b->weightd = bench_site_get_weightd(b->site);
	snprintf(b->name, sizeof(b->name), "%s", private_name);
	r = weights_client_new(b->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);
	start_ns = clock_now_ns();
	if (!r)
		r = weights_client_load(c, b->name, path, fd, false, ret_err, &generation);
	b->load_ns = clock_now_ns() - start_ns;
	weights_client_free(c);
	return r;
}

/* Before there are daemons: a signal ends this at once. */
static int make_synthetic(struct bench *b, struct err *ret_err, int *ret_fd)
{
	uint64_t n_bytes = 0, start_ns = clock_now_ns();
	int r = synthetic_make(b->o.synthetic, b->o.seed, ret_err, ret_fd, &n_bytes);

	if (r)
		return r;
	b->make_ns = clock_now_ns() - start_ns;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "%s: %s made in %s\n", b->o.synthetic, figure_bytes(n_bytes).text,
			figure_time(b->make_ns).text);
	return 0;
}

static int open_file(struct bench *b, struct err *ret_err, int *ret_fd)
{
	const char *slash = strrchr(b->o.model, '/');
	uint64_t n_bytes;

	snprintf(b->shown, sizeof(b->shown), "%s", slash ? slash + 1 : b->o.model);
	return input_open(b->o.model, ret_err, ret_fd, &n_bytes);
}

static int start_private(struct bench *b, struct err *ret_err)
{
	_cleanup_(cleanup_close)
	int fd = -1;
	int r = b->o.synthetic ? make_synthetic(b, ret_err, &fd) : open_file(b, ret_err, &fd);

	if (b->o.synthetic)
		snprintf(b->shown, sizeof(b->shown), "%s", b->o.synthetic);
	if (!r)
		r = bench_site_new(ret_err, &b->site);
	if (!r)
		r = load(b, fd, b->shown, ret_err);
	if (r)
		err_prefix(ret_err, "%s", b->shown);
	return r;
}

/* The model of a weightd that runs: the one that was named, else the only one. */
static int find_model(struct bench *b, struct err *ret_err)
{
	_cleanup_(weights_client_status_fini)
	struct weights_client_status s = {0};
	struct weights_client *c = NULL;
	int r = weights_client_new(b->options->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (!r)
		r = weights_client_status(c, ret_err, &s);
	weights_client_free(c);
	if (r) {
		err_prefix(ret_err, "bench: expected -m FILE or --synthetic, or a weightd");
		return r;
	}
	if (b->o.model || s.n_models == 1) {
		snprintf(
			b->name, sizeof(b->name), "%s", b->o.model ? b->o.model : s.models[0].name);
		snprintf(b->shown, sizeof(b->shown), "%s", b->name);
		return 0;
	}
	return err_set(
		ret_err, EINVAL, "bench: weightd has %u models: expected -m NAME", s.n_models);
}

static int start_beside(struct bench *b, struct err *ret_err)
{
	int r = find_model(b, ret_err);

	b->weightd = b->options->weightd;
	return r ? r : bench_site_new(ret_err, &b->site);
}

/* ---- tests ---- */

static int look(struct bench *b, const char *socket, struct err *ret_err)
{
	struct worker_client *c = NULL;
	int r = worker_client_new(socket, ret_err, &c);

	if (!r)
		r = worker_client_status(c, ret_err, &b->worker);
	worker_client_free(c);
	if (!r && !b->shown[0])
		snprintf(b->shown, sizeof(b->shown), "%s", b->worker.model);
	return r;
}

static int show(struct bench *b, const struct bench_result *result)
{
	if (b->options->json)
		return json_array_append_new(b->tests, bench_json_get_result(result)) ? -ENOMEM : 0;
	if (!b->has_head)
		bench_table_print_head(stdout);
	b->has_head = true;
	bench_table_print_row(stdout, result);
	if (result->profile) {
		bench_profile_print(stdout, result);
		b->has_head = false; /* the next table is another */
	}
	fflush(stdout);
	return 0;
}

static int run_test(struct bench *b, struct bench_result *result, struct err *ret_err)
{
	const struct worker_bench_params params = {.n_sessions = result->n_sessions,
		.n_depth = result->n_depth,
		.n_prompt = result->n_prompt,
		.n_generate = result->n_generate,
		.seed = result->seed};
	int r = bench_crew_begin(b->crew, &params, ret_err, &result->ready);

	for (uint32_t i = 0; !r && i < b->o.n_repeats; i++) {
		r = bench_crew_run(b->crew, false, ret_err);
		if (!r)
			r = bench_result_add(result, b->crew);
	}
	if (!r && b->o.profile) {
		r = bench_crew_run(b->crew, true, ret_err);
		if (!r)
			r = bench_result_set_profile(result, b->crew);
	}
	return r ? r : show(b, result);
}

static int run_tests(struct bench *b, const struct bench_options_split *split, uint32_t n_sessions,
	uint32_t n_depth, struct err *ret_err)
{
	const struct bench_options *o = &b->o;
	int r = 0;

	for (uint32_t i = 0; !r && i < o->prompts.n + o->generates.n; i++) {
		bool is_prompt = i < o->prompts.n;
		struct bench_result result = {.model = {.name = b->shown,
						      .device = b->worker.device,
						      .software = b->worker.software,
						      .weights_bytes = b->worker.weights_bytes},
			.n_prompt = is_prompt ? o->prompts.values[i] : 0,
			.n_generate = is_prompt ? 0 : o->generates.values[i - o->prompts.n],
			.n_depth = n_depth,
			.n_sessions = n_sessions,
			.n_workers = split->n_workers,
			.seed = o->seed};

		r = run_test(b, &result, ret_err);
		bench_result_fini(&result);
	}
	return r;
}

static int run_all_tests(
	struct bench *b, const struct bench_options_split *split, struct err *ret_err)
{
	const struct bench_options *o = &b->o;
	uint32_t n_sessions = split->n_sessions ? 1 : o->sessions.n;
	int r = 0;

	for (uint32_t i = 0; !r && i < n_sessions; i++)
		for (uint32_t k = 0; !r && k < o->depths.n; k++)
			r = run_tests(b, split,
				split->n_sessions ? split->n_sessions : o->sessions.values[i],
				o->depths.values[k], ret_err);
	return r;
}

/* Workers of our own, as many as this, and all tests of them. */
static int run_split(struct bench *b, const struct bench_options_split *split, struct err *ret_err)
{
	const struct bench_site_workers workers = {.n = split->n_workers,
		.weightd = b->weightd,
		.model = b->name,
		.n_ctx = bench_options_get_ctx(&b->o),
		.n_sessions = bench_options_get_sessions(&b->o, split),
		.kv_type = b->o.kv_type,
		.chunk = b->o.chunk,
		.kernels = b->o.kernels,
		.device = bench_site_get_weightd(b->site)[0] ? NULL : b->o.device};
	const char *sockets[BENCH_OPTIONS_MAX_WORKERS];
	int r = bench_site_start_workers(b->site, &workers, ret_err);

	for (uint32_t i = 0; i < split->n_workers; i++)
		sockets[i] = bench_site_get_worker(b->site, i);
	if (!r)
		r = look(b, sockets[0], ret_err);
	if (!r && b->is_tune) {
		r = tune_ask(b->options, sockets[0], ret_err);
	} else if (!r) {
		r = bench_crew_new(sockets, split->n_workers, ret_err, &b->crew);
		if (!r)
			r = run_all_tests(b, split, ret_err);
	}
	b->crew = bench_crew_free(b->crew);
	bench_site_stop_workers(b->site);
	return r;
}

static int run_own(struct bench *b, struct err *ret_err)
{
	bool is_private = b->o.synthetic || (b->o.model && is_file(b->o.model));
	int r = is_private ? start_private(b, ret_err) : start_beside(b, ret_err);

	for (uint32_t i = 0; !r && i < b->o.n_splits; i++)
		r = run_split(b, &b->o.splits[i], ret_err);
	/* What else went wrong is because of it. */
	if (r && b->site && bench_site_is_interrupted(b->site))
		r = err_set(ret_err, EINTR, "interrupted");
	b->site = bench_site_free(b->site);
	return r;
}

/* A worker that is there, as it is. */
static int run_there(struct bench *b, struct err *ret_err)
{
	int r = bench_crew_new(&b->options->worker, 1, ret_err, &b->crew);

	if (!r)
		r = look(b, b->options->worker, ret_err);
	if (!r)
		r = run_all_tests(b, &b->o.splits[0], ret_err);
	b->crew = bench_crew_free(b->crew);
	return r;
}

int bench_run(const struct options *o, struct err *ret_err)
{
	struct bench b = {.options = o, .tests = json_array()};
	int r = b.tests ? bench_options_parse(o, ret_err, &b.o) : -ENOMEM;

	if (!r)
		r = b.o.model || b.o.synthetic || b.o.has_workers ? run_own(&b, ret_err)
								  : run_there(&b, ret_err);
	if (r || !o->json) {
		json_decref(b.tests);
		return r;
	}
	return output_json(json_pack("{s:o, s:f, s:f}", "tests", b.tests, "make_ms",
		(double)b.make_ns / 1e6, "load_ms", (double)b.load_ns / 1e6));
}

int bench_run_tune(const struct options *o, struct err *ret_err)
{
	struct bench b = {.options = o, .is_tune = true};
	int r = bench_options_parse(o, ret_err, &b.o);

	return r ? r : run_own(&b, ret_err);
}
