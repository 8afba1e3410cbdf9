/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "weightctl/figure.h"
#include "weightctl/input.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

static void show_progress(const struct weights_client_event *event, void *userdata)
{
	const char *name = userdata;

	if (event->kind != WEIGHTS_CLIENT_PROGRESS || strcmp(event->model, name) != 0 ||
		event->total_bytes == 0)
		return;
	fprintf(stderr, "\r%s: %s of %s (%.0f%%)\033[K", name,
		figure_bytes(event->loaded_bytes).text, figure_bytes(event->total_bytes).text,
		100.0 * (double)event->loaded_bytes / (double)event->total_bytes);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One line on the terminal, that ends up empty. */
static int load(const struct options *o, const char *name, const char *path, int fd,
	struct err *ret_err, uint64_t *ret_generation)
{
	bool shows = !o->json && isatty(STDERR_FILENO);
	struct weights_client *c = NULL;
	int r = weights_client_new(o->weightd, WEIGHTS_CLIENT_CONTROL, ret_err, &c);

	if (r == 0 && shows) {
		weights_client_set_event_fn(c, show_progress, (void *)name);
		r = weights_client_watch(c, ret_err);
	}
	if (r == 0)
		r = weights_client_load(c, name, path, fd, o->replace, ret_err, ret_generation);
	if (shows)
		fputs("\r\033[K", stderr);
	weights_client_free(c);
	return r;
}

int load_run(const struct options *o, struct err *ret_err)
{
	const char *equals = strchr(o->args[0], '=');
	char real[PATH_MAX];
	uint64_t n_bytes = 0, generation = 0;
	_cleanup_(cleanup_close)
	int fd = -1;

	if (!equals || equals == o->args[0] || !equals[1]) {
		(void)err_set(ret_err, EINVAL, "load: expected NAME=FILE, found %s", o->args[0]);
		return COMMANDS_USAGE;
	}
	_cleanup_(cleanup_free)
	char *name = strndup(o->args[0], (size_t)(equals - o->args[0]));
	if (!name)
		return -ENOMEM;
	int r = input_open(equals + 1, ret_err, &fd, &n_bytes);
	if (r < 0)
		return r;
	uint64_t start_ns = now_ns();
	r = load(o, name, realpath(equals + 1, real) ? real : equals + 1, fd, ret_err, &generation);
	if (r < 0)
		return r;
	uint64_t load_ns = now_ns() - start_ns;
	if (o->json)
		return output_json(json_pack("{s:o, s:I, s:I, s:f}", "model", output_name(name),
			"generation", (json_int_t)generation, "file_bytes", (json_int_t)n_bytes,
			"load_ms", (double)load_ns / 1e6));
	printf("%s: generation %" PRIu64 " is ready, %s in %s\n", name, generation,
		figure_bytes(n_bytes).text, figure_time(load_ns).text);
	return 0;
}
