/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/link.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/wire.h"
#include "vk/device.h"
#include "workerd/lease.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/notice.h"
#include "workerd/queue.h"

/* Between tries to reach weightd: the first and the longest. A killed one is back in less than a
 * second where something starts it again; where nothing does, a look a second costs nothing. */
enum { LINK_RETRY_MS = 20, LINK_RETRY_MAX_MS = 1000 };

enum link_state {
	LINK_UP,
	LINK_WAITING, /* for the next try */
	LINK_TRYING,  /* on a thread */
};

struct link {
	struct link_params params;
	char path[108];
	enum link_state state;
	struct weights_client *weightd; /* while up */
	struct event *weightd_event;
	struct event *loan;
	struct event *retry;
	int retry_ms;
	bool is_stopping; /* nothing is lent any more */
	/* Generation that the weightd which is there now does not know: it hears nothing of it. 0:
	 * none. Written while no try runs. */
	uint64_t refused;

	/* One try. The thread's, until done_fd is readable; then it is joined. */
	pthread_t thread;
	int done_fd; /* an eventfd, its event */
	struct event *done;
	struct lease_copy try_lease;
	uint64_t try_serial, try_generation; /* of it, when it is done */
	struct weights_client *try_weightd;
	int try_code;
	bool try_is_refused; /* weightd said no, nothing just failed */
	bool try_gave;
	struct weights_client_contents try_contents; /* of the generation that is leased again */
	struct err try_err;
	/* What weightd tells behind its answer waits here until the engine can have its client: to
	 * let go of what was lost, it needs that. The thread's, then the loop's. */
	struct queue *early;
	struct notice_params early_notice;

	pthread_mutex_t mutex; /* guards what follows */
	int try_fd;            /* a duplicate of the try's socket, to end it by; -1 */
	bool is_ending;
};

/* ---- a try, on its thread ---- */

/* -ECANCELED when the link is ending. */
static int link_publish(struct link *l, int sock)
{
	int rc = 0;

	pthread_mutex_lock(&l->mutex);
	if (l->is_ending) {
		rc = -ECANCELED;
	} else {
		l->try_fd = dup(sock);
		rc = l->try_fd < 0 ? -errno : 0;
	}
	pthread_mutex_unlock(&l->mutex);
	return rc;
}

/* Who parked has nothing to resume, nor has who was refused. */
static int link_resume(struct link *l, struct err *ret_err)
{
	const struct lease_copy *lease = &l->try_lease;
	const struct weights_client_held held = {.model = l->params.model,
		.generation = lease->generation,
		.device_uuid = l->params.device->uuid,
		.driver_uuid = l->params.device->driver_uuid,
		.n_reserved_bytes = lease->n_granted_bytes,
		.manifest_fd = lease->manifest_fd,
		.n_allocs = lease->n_allocs,
		.fds = lease->fds};
	int r = 0;

	if (lease->generation && lease->generation != l->refused)
		r = weights_client_resume(
			l->try_weightd, &held, ret_err, &l->try_gave, &l->try_contents);
	/* -EAGAIN: it has too much to do just now. */
	l->try_is_refused = r < 0 && r != -ECONNRESET && r != -ETIMEDOUT && r != -EAGAIN;
	if (!r)
		r = weights_client_report(l->try_weightd, &lease->report, ret_err);
	return r;
}

static int link_try(struct link *l, struct err *ret_err)
{
	int sock = -1;
	int r = wire_connect(l->path, ret_err, &sock);

	if (r)
		return r;
	r = link_publish(l, sock);
	if (r) {
		close(sock);
		return err_set(ret_err, -r, "weightd: %s", strerror(-r));
	}
	r = weights_client_new_connected(sock, WEIGHTS_CLIENT_WORKER, ret_err, &l->try_weightd);
	if (r)
		return r;
	weights_client_set_handle_types(l->try_weightd, l->params.handle_types);
	weights_client_set_event_fn(l->try_weightd, notice_on_event, &l->early_notice);
	r = lease_take(l->params.lease, ret_err, &l->try_lease);
	if (!r)
		r = link_resume(l, ret_err);
	if (r)
		l->try_weightd = weights_client_free(l->try_weightd);
	return r;
}

static void *link_main(void *userdata)
{
	struct link *l = userdata;
	uint64_t one = 1;

	l->try_code = link_try(l, &l->try_err);
	if (write(l->done_fd, &one, sizeof(one)) < 0) /* fails only when it is readable already */
		return NULL;
	return NULL;
}

/* ---- the loop's side ---- */

static void link_wait(struct link *l)
{
	const struct timeval pause = {
		.tv_sec = l->retry_ms / 1000, .tv_usec = l->retry_ms % 1000 * 1000};

	l->state = LINK_WAITING;
	l->retry_ms *= 2;
	if (l->retry_ms > LINK_RETRY_MAX_MS)
		l->retry_ms = LINK_RETRY_MAX_MS;
	if (event_add(l->retry, &pause) < 0)
		log_error("out of memory: weightd is not looked for any more");
}

static void link_on_readable(evutil_socket_t fd, short what, void *userdata)
{
	struct link *l = userdata;
	struct err e = ERR_NULL;

	(void)fd;
	(void)what;
	if (!weights_client_dispatch(l->weightd, &e))
		return;
	event_free(l->weightd_event);
	l->weightd_event = NULL;
	(void)loan_close(l->params.loan); /* here, for what is lent is not watched */
	l->weightd = weights_client_free(l->weightd);
	*l->params.is_connected = false;
	log_warn("weightd is gone (%s); serving goes on", e.text);
	l->retry_ms = LINK_RETRY_MS;
	link_wait(l);
}

static int link_watch(struct link *l)
{
	l->weightd_event = event_new(l->params.base, weights_client_get_fd(l->weightd),
		EV_READ | EV_PERSIST, link_on_readable, l);
	return l->weightd_event && event_add(l->weightd_event, NULL) == 0 ? 0 : -ENOMEM;
}

/* The engine wants weightd's client, or has given it back. */
static void link_on_loan(evutil_socket_t fd, short what, void *userdata)
{
	struct link *l = userdata;

	(void)fd;
	switch (loan_settle(l->params.loan)) {
	case LOAN_IS_WANTED:
		event_del(l->weightd_event);
		loan_lend(l->params.loan, l->weightd);
		break;
	case LOAN_IS_BACK:
		event_add(l->weightd_event, NULL);
		link_on_readable(weights_client_get_fd(l->weightd), what, l);
		break;
	case LOAN_NOTHING: break;
	}
}

/* Signals are the loop's. */
static void link_on_retry(evutil_socket_t fd, short what, void *userdata)
{
	struct link *l = userdata;
	sigset_t all, old;

	(void)fd;
	(void)what;
	l->try_is_refused = false;
	l->try_gave = false;
	l->try_contents = (struct weights_client_contents){0};
	l->try_err = ERR_NULL;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&l->thread, NULL, link_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc == 0)
		l->state = LINK_TRYING;
	else
		link_wait(l);
}

/* target NULL: they are dropped with the connection that they came by. */
static void link_pass_on(struct link *l, struct queue *target)
{
	struct queue_node *node;

	while ((node = queue_take(l->early)))
		if (target)
			queue_push(target, node);
		else
			message_free(message_from_node(node));
}

static void link_join(struct link *l)
{
	pthread_join(l->thread, NULL);
	cleanup_close(&l->try_fd);
	l->try_serial = l->try_lease.serial;
	l->try_generation = l->try_lease.generation == l->refused ? 0 : l->try_lease.generation;
	lease_copy_fini(&l->try_lease);
}

/* It has the generation no more, and the engine is to do without: the next try says Hello alone. */
static void link_on_refused(struct link *l)
{
	log_warn("weightd is back without generation %" PRIu64
		 " (%s): what is under way is finished, then it is let go of",
		l->try_generation, l->try_err.text);
	l->refused = l->try_generation;
	notice_tell_unleased(l->params.notice, l->try_generation, l->try_err.text);
	l->retry_ms = LINK_RETRY_MS;
	link_wait(l);
}

static void link_on_done(evutil_socket_t fd, short what, void *userdata)
{
	struct link *l = userdata;
	uint64_t count;

	(void)what;
	if (read(fd, &count, sizeof(count)) < 0)
		return;
	link_join(l);
	if (l->try_code < 0)
		link_pass_on(l, NULL);
	if (l->try_code < 0 && !l->try_is_refused) {
		log_debug("weightd is not back: %s", l->try_err.text);
		link_wait(l);
		return;
	}
	if (l->try_code < 0) {
		link_on_refused(l);
		return;
	}
	/* The weights were dropped meanwhile: this connection has a lease on what nobody has. */
	if (lease_get_serial(l->params.lease) != l->try_serial) {
		l->try_weightd = weights_client_free(l->try_weightd);
		link_pass_on(l, NULL);
		link_wait(l);
		return;
	}
	l->state = LINK_UP;
	l->refused = 0;
	l->weightd = TAKE_PTR(l->try_weightd);
	weights_client_set_event_fn(l->weightd, notice_on_event, l->params.notice);
	if (link_watch(l) < 0) {
		log_error("out of memory: the connection to weightd is not watched");
		return;
	}
	*l->params.is_connected = true;
	if (!l->is_stopping) {
		loan_open(l->params.loan);
		notice_tell_back(l->params.notice, l->try_generation, &l->try_contents);
	}
	link_pass_on(l, l->is_stopping ? NULL : l->params.notice->engine);
	if (l->try_generation)
		log_info("weightd is back: generation %" PRIu64 " is leased again%s",
			l->try_generation,
			l->try_gave ? ", its memory was brought back to it" : "");
	else
		log_info("weightd is back");
}

static int link_init(struct link *l, struct err *ret_err)
{
	int n = 0;

	if (l->params.path)
		n = snprintf(l->path, sizeof(l->path), "%s", l->params.path);
	else if (weights_client_default_path(l->path, sizeof(l->path)) < 0)
		n = -1;
	if (n < 0 || (size_t)n >= sizeof(l->path))
		return err_set(ret_err, ENAMETOOLONG, "weightd's socket: path too long");
	l->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->done_fd < 0)
		return err_set(ret_err, errno, "eventfd: %s", strerror(errno));
	int r = queue_new(&l->early);
	if (r)
		return r;
	l->early_notice = *l->params.notice;
	l->early_notice.engine = l->early;
	l->retry = evtimer_new(l->params.base, link_on_retry, l);
	l->done = event_new(l->params.base, l->done_fd, EV_READ | EV_PERSIST, link_on_done, l);
	l->loan = event_new(
		l->params.base, loan_get_fd(l->params.loan), EV_READ | EV_PERSIST, link_on_loan, l);
	if (!l->retry || !l->done || !l->loan || event_add(l->done, NULL) < 0 ||
		event_add(l->loan, NULL) < 0)
		return -ENOMEM;
	return 0;
}

static void link_cleanup(struct link **l)
{
	link_free(*l);
}

int link_new(const struct link_params *params, struct weights_client *weightd, struct err *ret_err,
	struct link **ret_link)
{
	_cleanup_(link_cleanup)
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->params = *params;
	l->done_fd = -1;
	l->try_lease.manifest_fd = -1;
	l->try_fd = -1;
	pthread_mutex_init(&l->mutex, NULL);
	int r = link_init(l, ret_err);
	if (r)
		return r;
	l->weightd = weightd;
	r = link_watch(l);
	if (r) {
		l->weightd = NULL;
		return r;
	}
	*l->params.is_connected = true;
	*ret_link = TAKE_PTR(l);
	return 0;
}

void link_stop(struct link *l)
{
	l->is_stopping = true;
	/* The engine may wait for weightd, which would take its time. */
	if (loan_close(l->params.loan))
		shutdown(weights_client_get_fd(l->weightd), SHUT_RDWR);
}

struct link *link_free(struct link *l)
{
	if (!l)
		return NULL;
	if (l->state == LINK_TRYING) {
		pthread_mutex_lock(&l->mutex);
		l->is_ending = true;
		if (l->try_fd >= 0)
			shutdown(l->try_fd, SHUT_RDWR);
		pthread_mutex_unlock(&l->mutex);
		link_join(l);
		l->try_weightd = weights_client_free(l->try_weightd);
	}
	if (l->early)
		link_pass_on(l, NULL);
	queue_free(l->early);
	if (l->weightd_event)
		event_free(l->weightd_event);
	if (l->retry)
		event_free(l->retry);
	if (l->done)
		event_free(l->done);
	if (l->loan)
		event_free(l->loan);
	weights_client_free(l->weightd);
	cleanup_close(&l->done_fd);
	pthread_mutex_destroy(&l->mutex);
	free(l);
	return NULL;
}
