/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-reader.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>

#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"

enum { STACK_BYTES = 1 << 20 }; /* a worker's status is some 60 KiB, more than once */

enum state { IDLE, ASKED, ANSWERED };

struct top_reader {
	pthread_mutex_t lock;
	pthread_cond_t change;
	char *path; /* NULL: the default */
	int wake_fd;
	bool is_weightd;
	/* under lock */
	enum state state;
	bool is_dropped; /* the thread frees it */
	/* the thread's while ASKED, the owner's else */
	int r;
	struct err error;
	struct worker_client_status worker;
	struct weights_client_status weightd;
	/* the thread's */
	struct worker_client *worker_client;
	struct weights_client *weights_client;
};

static void destroy(struct top_reader *t)
{
	worker_client_free(t->worker_client);
	weights_client_free(t->weights_client);
	weights_client_status_fini(&t->weightd);
	pthread_cond_destroy(&t->change);
	pthread_mutex_destroy(&t->lock);
	free(t->path);
	free(t);
}

static int must_check read_worker(struct top_reader *t)
{
	int r = 0;

	if (!t->worker_client)
		r = worker_client_new(t->path, &t->error, &t->worker_client);
	if (r == 0)
		r = worker_client_status(t->worker_client, &t->error, &t->worker);
	if (r < 0)
		t->worker_client = worker_client_free(t->worker_client);
	return r;
}

static int must_check read_weightd(struct top_reader *t)
{
	int r = 0;

	if (!t->weights_client)
		r = weights_client_new(
			t->path, WEIGHTS_CLIENT_CONTROL, &t->error, &t->weights_client);
	weights_client_status_fini(&t->weightd);
	t->weightd = (struct weights_client_status){0};
	if (r == 0)
		r = weights_client_status(t->weights_client, &t->error, &t->weightd);
	if (r < 0)
		t->weights_client = weights_client_free(t->weights_client);
	return r;
}

static void *run(void *userdata)
{
	struct top_reader *t = userdata;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		while (t->state != ASKED && !t->is_dropped)
			pthread_cond_wait(&t->change, &t->lock);
		if (t->is_dropped)
			break;
		pthread_mutex_unlock(&t->lock);
		t->error = ERR_NULL;
		int r = t->is_weightd ? read_weightd(t) : read_worker(t);
		pthread_mutex_lock(&t->lock);
		t->r = r;
		t->state = ANSWERED;
		eventfd_write(t->wake_fd, 1);
	}
	pthread_mutex_unlock(&t->lock);
	destroy(t);
	return NULL;
}

static int must_check start(struct top_reader *t, struct err *ret_err)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int r = -pthread_attr_init(&attributes);

	if (r)
		return err_set(ret_err, -r, "a thread's attributes: %s", strerror(-r));
	r = -pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (!r)
		r = -pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (!r)
		r = -pthread_create(&thread, &attributes, run, t);
	pthread_attr_destroy(&attributes);
	if (r)
		return err_set(ret_err, -r, "cannot start a thread: %s", strerror(-r));
	return 0;
}

static int must_check make(const char *path, bool is_weightd, int wake_fd, struct err *ret_err,
	struct top_reader **ret_reader)
{
	struct top_reader *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->wake_fd = wake_fd;
	t->is_weightd = is_weightd;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->change, NULL);
	t->path = path ? strdup(path) : NULL;
	int r = path && !t->path ? -ENOMEM : start(t, ret_err);
	if (r) {
		destroy(t);
		return r;
	}
	*ret_reader = t;
	return 0;
}

int top_reader_new_worker(
	const char *path, int wake_fd, struct err *ret_err, struct top_reader **ret_reader)
{
	return make(path, false, wake_fd, ret_err, ret_reader);
}

int top_reader_new_weightd(
	const char *path, int wake_fd, struct err *ret_err, struct top_reader **ret_reader)
{
	return make(path, true, wake_fd, ret_err, ret_reader);
}

struct top_reader *top_reader_free(struct top_reader *r)
{
	if (!r)
		return NULL;
	pthread_mutex_lock(&r->lock);
	r->is_dropped = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

void top_reader_ask(struct top_reader *r)
{
	pthread_mutex_lock(&r->lock);
	if (r->state == IDLE) {
		r->state = ASKED;
		pthread_cond_signal(&r->change);
	}
	pthread_mutex_unlock(&r->lock);
}

/* After it the members of the answer are the caller's until it asks again. */
static bool take(struct top_reader *r, struct err *ret_err, int *ret_r)
{
	pthread_mutex_lock(&r->lock);
	bool is_answered = r->state == ANSWERED;
	if (is_answered)
		r->state = IDLE;
	pthread_mutex_unlock(&r->lock);
	if (is_answered) {
		*ret_r = r->r;
		*ret_err = r->error;
	}
	return is_answered;
}

bool top_reader_take_worker(struct top_reader *r, struct err *ret_err, int *ret_r,
	struct worker_client_status *ret_status)
{
	assert(!r->is_weightd);
	if (!take(r, ret_err, ret_r))
		return false;
	if (*ret_r == 0)
		*ret_status = r->worker;
	return true;
}

bool top_reader_take_weightd(struct top_reader *r, struct err *ret_err, int *ret_r,
	struct weights_client_status *ret_status)
{
	assert(r->is_weightd);
	if (!take(r, ret_err, ret_r))
		return false;
	if (*ret_r == 0) {
		*ret_status = r->weightd;
		r->weightd = (struct weights_client_status){0};
	}
	return true;
}
