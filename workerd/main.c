/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "workerd/clock.h"
#include "workerd/engine.h"
#include "workerd/kv.h"
#include "workerd/link.h"
#include "workerd/loop.h"
#include "workerd/message.h"
#include "workerd/options.h"
#include "workerd/plan.h"
#include "workerd/queue.h"
#include "workerd/rpc.h"
#include "workerd/text.h"
#include "workerd/weights.h"
#include "workerd/worker.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

/* The three threads and the queues between them; the main thread is the loop. */
struct threads {
	struct queue *text_queue;
	struct queue *engine_queue;
	struct queue *loop_queue;
	struct text *text;
	struct engine *engine;
	struct loop *loop;
	struct weights_client_report report; /* what the worker tells weightd of itself */
};

static int start_loop(struct threads *t, const struct options *o, struct worker *w,
	struct rpc_worker *self, const char *socket, struct err *ret_err)
{
	struct link_params link = {
		.path = o->weights,
		.model = o->model,
		.device = vk_device_get_info(w->device),
		.weights = w->weights,
		.handle_types = w->handle_types,
		.is_connected = &self->is_weightd_connected,
	};
	const struct loop_params loop = {
		.path = socket,
		.worker = self,
		.weightd = w->weightd,
		.link = &link,
		.text = t->text,
		.engine = t->engine,
		.text_queue = t->text_queue,
		.engine_queue = t->engine_queue,
		.in = t->loop_queue,
	};

	link.report = t->report;
	int r = loop_new(&loop, ret_err, &t->loop);
	if (!r)
		w->weightd = NULL; /* the loop's */
	return r;
}

static int threads_start(struct threads *t, const struct options *o, struct worker *w,
	struct rpc_worker *self, const char *socket, struct err *ret_err)
{
	int r = queue_new(&t->text_queue);

	if (!r)
		r = queue_new(&t->engine_queue);
	if (!r)
		r = queue_new(&t->loop_queue);
	if (r)
		return r;
	const struct text_params text = {
		.manifest = w->weights->manifest,
		.in = t->text_queue,
		.engine = t->engine_queue,
		.out = t->loop_queue,
	};
	r = text_new(&text, ret_err, &t->text);
	if (r)
		return r;
	self->has_chat_template = text_has_chat_template(t->text);
	const struct engine_params engine = {
		.device = w->device,
		.manifest = w->weights->manifest,
		.kv = w->kv,
		.plan = w->plan,
		.n_rows = w->n_rows,
		.in = t->engine_queue,
		.out = t->loop_queue,
	};
	worker_describe(w, socket, &t->report);
	r = engine_new(&engine, ret_err, &t->engine);
	return r ? r : start_loop(t, o, w, self, socket, ret_err);
}

/* The text thread first: it pushes to the engine. */
static void threads_end(struct threads *t)
{
	text_free(t->text);
	engine_free(t->engine);
	loop_free(t->loop);
	struct queue *const queues[] = {t->text_queue, t->engine_queue, t->loop_queue};
	for (unsigned i = 0; i < ARRAY_SIZE(queues); i++) {
		if (queues[i])
			message_drain(queues[i]);
		queue_free(queues[i]);
	}
}

static void describe(const struct options *o, const struct worker *w, uint64_t start_ns,
	struct rpc_worker *ret_self)
{
	const struct vk_device_info *info = vk_device_get_info(w->device);

	*ret_self = (struct rpc_worker){
		.model = o->model,
		.device = info->name,
		.is_software = info->is_software,
		.is_weightd_connected = true,
		.max_sessions = o->n_sessions,
		.n_ctx = kv_get_params(w->kv)->n_ctx,
		.n_dispatches = plan_get_n_dispatches(w->plan),
		.generation = w->weights->generation,
		.weights_bytes = w->weights->n_bytes,
		.start_ns = start_ns,
		.attach_ns = w->weights->attach_ns,
	};
	for (uint32_t p = 0; p < RPC_N_PLACEMENTS; p++)
		ret_self->placed_bytes[p] = weights_count_bytes(w->weights, p);
}

/* Whatever the log level: scripts wait for this line. */
static void say_ready(struct rpc_worker *self, const char *socket)
{
	self->ready_ns = clock_now_ns() - self->start_ns;
	fprintf(stderr,
		"workerd: ready: model %s, generation %" PRIu64 ", on %s, socket %s, attached in "
		"%.1f ms\n",
		self->model, self->generation, self->device, socket, (double)self->attach_ns / 1e6);
	notify_ready();
}

static int serve(const struct options *o, struct worker *w, const char *socket, uint64_t start_ns,
	struct err *ret_err)
{
	struct threads threads = {0};
	struct rpc_worker self;
	sigset_t signals;
	sigset_t old;
	int r;

	describe(o, w, start_ns, &self);
	/* Signals are the loop's: the other threads start with them blocked. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, &old);
	r = threads_start(&threads, o, w, &self, socket, ret_err);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!r) {
		say_ready(&self, socket);
		r = loop_run(threads.loop, ret_err);
	}
	threads_end(&threads);
	return r;
}

static int run(const struct options *o, uint64_t start_ns, struct err *ret_err)
{
	char socket[128];
	struct worker *w;
	int r;

	if (!o->socket) {
		r = worker_client_default_path(socket, sizeof(socket));
		if (r)
			return err_set(ret_err, -r, "the default client socket: %s", strerror(-r));
	}
	r = worker_new(o, ret_err, &w);
	if (r)
		return r;
	r = serve(o, w, o->socket ? o->socket : socket, start_ns, ret_err);
	worker_free(w);
	return r;
}

/*
 * Until the loop takes the signals over: there is no socket yet, and weightd takes the lease back
 * with the connection, so that nothing is left to do.
 */
static void end_early(int signum)
{
	(void)signum;
	_exit(0);
}

int main(int argc, char **argv)
{
	uint64_t start_ns = clock_now_ns();

	if (argc > 1 && !strcmp(argv[1], "--probe"))
		return vk_probe_main(argc, argv);
	struct options o;
	struct err e = ERR_NULL;
	int r = options_parse(argc, argv, &e, &o);

	if (r == OPTIONS_HELP) {
		fputs(options_usage, stdout);
		return 0;
	}
	if (r == OPTIONS_VERSION) {
		puts("workerd " WEIGHTD_VERSION);
		return 0;
	}
	if (r) {
		fprintf(stderr, "workerd: %s%s\n", e.text, r == -EINVAL ? " (see --help)" : "");
		return r == -EINVAL ? EXIT_USAGE : EXIT_REFUSED;
	}
	log_init("workerd", o.log_level);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTERM, end_early);
	signal(SIGINT, end_early);
	r = run(&o, start_ns, &e);
	if (!r)
		return 0;
	/* VK_DEVICE_LOST, the one condition, has a sentence of its own. */
	log_error("%s", e.text[0] ? e.text : r < 0 ? strerror(-r) : "the device was lost");
	return EXIT_REFUSED;
}
