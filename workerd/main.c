/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify.h"
#include "proto/worker-client.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "workerd/engine.h"
#include "workerd/kv.h"
#include "workerd/lease.h"
#include "workerd/link.h"
#include "workerd/loan.h"
#include "workerd/loop.h"
#include "workerd/message.h"
#include "workerd/notice.h"
#include "workerd/options.h"
#include "workerd/plan.h"
#include "workerd/queue.h"
#include "workerd/rpc.h"
#include "workerd/scheduler.h"
#include "workerd/store.h"
#include "workerd/text.h"
#include "workerd/weights.h"
#include "workerd/worker.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

/* The three threads and the queues between them; the main thread is the loop. */
struct threads {
	struct queue *text_queue;
	struct queue *engine_queue; /* weightd's client pushes to it too: it outlives the threads */
	struct queue *loop_queue;
	struct text *text;
	struct engine *engine;
	struct loop *loop;
	struct loan *loan;
	struct lease *lease;
	struct store *store;
};

static int start_loop(struct threads *t, struct worker *w, const struct options *o,
	struct rpc_worker *self, struct err *ret_err)
{
	const struct link_params link = {
		.path = o->weights,
		.model = o->model,
		.device = vk_device_get_info(w->site.device),
		.handle_types = w->handle_types,
		.lease = t->lease,
		.loan = t->loan,
		.notice = w->notice,
		.is_connected = &self->is_weightd_connected,
	};
	const struct loop_params loop = {
		.path = w->site.socket,
		.worker = self,
		.weightd = w->site.weightd,
		.link = &link,
		.text = t->text,
		.engine = t->engine,
		.text_queue = t->text_queue,
		.engine_queue = t->engine_queue,
		.in = t->loop_queue,
	};
	int r = loop_new(&loop, ret_err, &t->loop);

	if (!r)
		w->site.weightd = NULL; /* the loop's */
	return r;
}

static int threads_start(struct threads *t, struct worker *w, const struct options *o,
	struct rpc_worker *self, struct err *ret_err)
{
	int r = queue_new(&t->text_queue);

	if (!r)
		r = queue_new(&t->loop_queue);
	if (!r)
		r = loan_new(&t->loan);
	if (!r)
		r = lease_new(&t->lease);
	if (!r && o->sessions_dir)
		r = store_new(o->sessions_dir, ret_err, &t->store);
	if (r)
		return r;
	const struct text_params text = {
		.manifest = w->stack->weights->manifest,
		.in = t->text_queue,
		.engine = t->engine_queue,
		.out = t->loop_queue,
	};
	r = text_new(&text, ret_err, &t->text);
	if (r)
		return r;
	self->has_chat_template = text_has_chat_template(t->text);
	const struct scheduler_limits limits = {
		.n_shared_rows = o->n_step_tokens,
		.n_client_sessions = o->n_client_sessions,
		.ttl_ns = o->session_ttl_ns,
	};
	const struct engine_params engine = {
		.site = &w->site,
		.stack = w->stack,
		.loan = t->loan,
		.lease = t->lease,
		.park_after_ns = o->park_after_ns,
		.no_park = o->no_park,
		.store = t->store,
		.limits = &limits,
		.shares_prefixes = o->shares_prefixes,
		.in = t->engine_queue,
		.text = t->text_queue,
		.out = t->loop_queue,
	};
	r = engine_new(&engine, ret_err, &t->engine);
	if (r)
		return r;
	w->stack = NULL;
	return start_loop(t, w, o, self, ret_err);
}

static void free_queue(struct queue *q)
{
	if (q)
		message_drain(q);
	queue_free(q);
}

/* The text thread first: it pushes to the engine. */
static void threads_end(struct threads *t)
{
	text_free(t->text);
	/* Without a loop there is nobody to lend it. */
	if (t->loan)
		(void)loan_close(t->loan);
	engine_free(t->engine);
	loop_free(t->loop);
	loan_free(t->loan);
	lease_free(t->lease);
	store_free(t->store);
	free_queue(t->text_queue);
	free_queue(t->loop_queue);
}

static void describe(const struct options *o, const struct worker *w, uint64_t start_ns,
	struct rpc_worker *ret_self)
{
	const struct vk_device_info *info = vk_device_get_info(w->site.device);

	*ret_self = (struct rpc_worker){
		.model = o->model,
		.device = info->name,
		.is_software = info->is_software,
		.is_weightd_connected = true,
		.max_sessions = o->n_sessions,
		.n_ctx = kv_get_params(w->stack->kv)->n_ctx,
		.n_dispatches = plan_get_n_dispatches(w->stack->plan),
		.generation = w->stack->weights->generation,
		.weights_bytes = w->stack->weights->n_bytes,
		.start_ns = start_ns,
		.attach_ns = w->stack->weights->attach_ns,
	};
	ret_self->has_identity = weights_get_identity(w->stack->weights, ret_self->identity);
	for (uint32_t p = 0; p < RPC_N_PLACEMENTS; p++)
		ret_self->placed_bytes[p] = weights_count_bytes(w->stack->weights, p);
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

static int serve(const struct options *o, struct worker *w, uint64_t start_ns, struct err *ret_err)
{
	struct threads threads = {.engine_queue = w->notice->engine};
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
	r = threads_start(&threads, w, o, &self, ret_err);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!r) {
		say_ready(&self, w->site.socket);
		r = loop_run(threads.loop, ret_err);
	}
	threads_end(&threads);
	return r;
}

static int run(const struct options *o, uint64_t start_ns, struct err *ret_err)
{
	struct notice_params notice = {.model = o->model};
	struct worker *w = NULL;
	char socket[128];
	int r;

	if (!o->socket) {
		r = worker_client_default_path(socket, sizeof(socket));
		if (r)
			return err_set(ret_err, -r, "the default client socket: %s", strerror(-r));
	}
	r = queue_new(&notice.engine);
	if (r)
		return r;
	r = worker_new(o, o->socket ? o->socket : socket, &notice, ret_err, &w);
	if (!r)
		r = serve(o, w, start_ns, ret_err);
	worker_free(w);
	free_queue(notice.engine);
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
