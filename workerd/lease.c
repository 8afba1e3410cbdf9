/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/weights.h"

struct lease {
	pthread_mutex_t mutex; /* guards what follows */
	uint64_t serial;
	const struct weights *weights; /* NULL: none */
	uint64_t n_granted_bytes;
	struct weights_client_report report;
};

int lease_new(struct lease **ret_lease)
{
	struct lease *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->mutex, NULL);
	*ret_lease = l;
	return 0;
}

struct lease *lease_free(struct lease *l)
{
	if (!l)
		return NULL;
	pthread_mutex_destroy(&l->mutex);
	free(l);
	return NULL;
}

void lease_set(struct lease *l, const struct weights *w, uint64_t n_granted_bytes,
	const struct weights_client_report *report)
{
	pthread_mutex_lock(&l->mutex);
	l->serial++;
	l->weights = w;
	l->n_granted_bytes = n_granted_bytes;
	l->report = *report;
	pthread_mutex_unlock(&l->mutex);
}

void lease_clear(struct lease *l)
{
	pthread_mutex_lock(&l->mutex);
	l->serial++;
	l->weights = NULL;
	l->n_granted_bytes = 0;
	l->report = (struct weights_client_report){
		.n_sessions = l->report.n_sessions, .socket = l->report.socket};
	pthread_mutex_unlock(&l->mutex);
}

uint64_t lease_get_serial(struct lease *l)
{
	pthread_mutex_lock(&l->mutex);
	uint64_t serial = l->serial;
	pthread_mutex_unlock(&l->mutex);
	return serial;
}

static int lease_duplicate(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	return copy < 0 ? -errno : copy;
}

/* Under the mutex. */
static int lease_fill(const struct weights *w, struct lease_copy *c)
{
	c->generation = w->generation;
	c->fds = calloc(w->n_allocs, sizeof(*c->fds));
	if (w->n_allocs && !c->fds)
		return -ENOMEM;
	c->manifest_fd = lease_duplicate(w->manifest_fd);
	if (c->manifest_fd < 0)
		return c->manifest_fd;
	for (uint32_t i = 0; i < w->n_allocs; i++) {
		uint32_t owner = w->allocs[i].owner;
		int fd = owner == i ? lease_duplicate(w->allocs[i].kept_fd) : c->fds[owner];
		if (fd < 0)
			return fd;
		c->fds[c->n_allocs++] = fd;
	}
	return 0;
}

int lease_take(struct lease *l, struct err *ret_err, struct lease_copy *ret_copy)
{
	struct lease_copy c = {.manifest_fd = -1};
	int r = 0;

	pthread_mutex_lock(&l->mutex);
	c.serial = l->serial;
	c.report = l->report;
	c.n_granted_bytes = l->n_granted_bytes;
	if (l->weights)
		r = lease_fill(l->weights, &c);
	pthread_mutex_unlock(&l->mutex);
	if (r) {
		lease_copy_fini(&c);
		return err_set(ret_err, -r, "descriptors of the weights: %s", strerror(-r));
	}
	*ret_copy = c;
	return 0;
}

/* Of those with the same descriptor, which is closed once. */
static bool lease_is_first(const struct lease_copy *c, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++)
		if (c->fds[i] == c->fds[index])
			return false;
	return true;
}

void lease_copy_fini(struct lease_copy *c)
{
	cleanup_close(&c->manifest_fd);
	for (uint32_t i = c->n_allocs; i > 0; i--)
		if (lease_is_first(c, i - 1))
			cleanup_close(&c->fds[i - 1]);
	free(c->fds);
	*c = (struct lease_copy){.manifest_fd = -1};
}
