/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/loan.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "proto/util/err.h"

enum loan_state { LOAN_HOME, LOAN_WANTED, LOAN_LENT, LOAN_RETURNED };

struct loan {
	int event_fd;
	pthread_mutex_t mutex; /* guards what follows */
	pthread_cond_t cond;
	enum loan_state state;
	bool is_closed;
	struct weights_client *client; /* that is lent */
};

int loan_new(struct loan **ret_loan)
{
	struct loan *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->event_fd < 0) {
		int r = -errno;

		free(l);
		return r;
	}
	pthread_mutex_init(&l->mutex, NULL);
	pthread_cond_init(&l->cond, NULL);
	*ret_loan = l;
	return 0;
}

struct loan *loan_free(struct loan *l)
{
	if (!l)
		return NULL;
	assert(l->state != LOAN_LENT && l->state != LOAN_WANTED);
	close(l->event_fd);
	pthread_cond_destroy(&l->cond);
	pthread_mutex_destroy(&l->mutex);
	free(l);
	return NULL;
}

int loan_take(struct loan *l, struct err *ret_err, struct weights_client **ret_client)
{
	pthread_mutex_lock(&l->mutex);
	/* What was given back last may not have been noticed yet: it is as good as home. */
	if (!l->is_closed) {
		assert(l->state != LOAN_WANTED && l->state != LOAN_LENT);
		l->state = LOAN_WANTED;
		eventfd_write(l->event_fd, 1);
	}
	while (l->state == LOAN_WANTED && !l->is_closed)
		pthread_cond_wait(&l->cond, &l->mutex);
	bool has_it = l->state == LOAN_LENT;
	if (has_it)
		*ret_client = l->client;
	else
		l->state = LOAN_HOME;
	pthread_mutex_unlock(&l->mutex);
	return has_it ? 0 : err_set(ret_err, ENOTCONN, "weightd is gone");
}

void loan_give_back(struct loan *l)
{
	pthread_mutex_lock(&l->mutex);
	assert(l->state == LOAN_LENT);
	l->state = LOAN_RETURNED;
	eventfd_write(l->event_fd, 1);
	pthread_mutex_unlock(&l->mutex);
}

int loan_get_fd(const struct loan *l)
{
	return l->event_fd;
}

enum loan_news loan_settle(struct loan *l)
{
	enum loan_news news = LOAN_NOTHING;
	eventfd_t count;

	pthread_mutex_lock(&l->mutex);
	if (eventfd_read(l->event_fd, &count) == 0 && !l->is_closed) {
		if (l->state == LOAN_WANTED)
			news = LOAN_IS_WANTED;
		else if (l->state == LOAN_RETURNED) {
			l->state = LOAN_HOME;
			news = LOAN_IS_BACK;
		}
	}
	pthread_mutex_unlock(&l->mutex);
	return news;
}

void loan_lend(struct loan *l, struct weights_client *client)
{
	pthread_mutex_lock(&l->mutex);
	if (l->state == LOAN_WANTED) {
		l->state = LOAN_LENT;
		l->client = client;
		pthread_cond_signal(&l->cond);
	}
	pthread_mutex_unlock(&l->mutex);
}

bool loan_close(struct loan *l)
{
	pthread_mutex_lock(&l->mutex);
	l->is_closed = true;
	bool is_lent = l->state == LOAN_LENT;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->mutex);
	return is_lent;
}

void loan_open(struct loan *l)
{
	pthread_mutex_lock(&l->mutex);
	l->is_closed = false;
	pthread_mutex_unlock(&l->mutex);
}
