/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/holders.h"

#include <errno.h>
#include <event2/event.h>
#include <sys/queue.h>

#include "weightd/peer.h"

/* Of processes without a visible pid, before Linux 6.9: each of their connections makes one. */
enum { HOLDERS_MAX_UNKNOWN = 256 };

struct holder {
	struct holders *all;
	uint64_t id;
	uint64_t process; /* see struct peer */
	int32_t pid;
	int pidfd;
	struct event *event;
	TAILQ_ENTRY(holder) entry;
};

struct holders {
	struct event_base *base;
	holders_exit_fn fn;
	void *userdata;
	TAILQ_HEAD(, holder) list;
	uint32_t n_unknown; /* that nothing tells apart */
};

int holders_new(
	struct event_base *base, holders_exit_fn fn, void *userdata, struct holders **ret_holders)
{
	struct holders *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->base = base;
	h->fn = fn;
	h->userdata = userdata;
	TAILQ_INIT(&h->list);
	*ret_holders = h;
	return 0;
}

static bool holders_is_unknown(uint64_t process, int32_t pid)
{
	return !process && pid <= 0;
}

static void holders_drop(struct holder *holder)
{
	TAILQ_REMOVE(&holder->all->list, holder, entry);
	holder->all->n_unknown -= holders_is_unknown(holder->process, holder->pid);
	if (holder->event)
		event_free(holder->event);
	cleanup_close(&holder->pidfd);
	free(holder);
}

struct holders *holders_free(struct holders *h)
{
	struct holder *holder;

	if (!h)
		return NULL;
	while ((holder = TAILQ_FIRST(&h->list)))
		holders_drop(holder);
	free(h);
	return NULL;
}

static void holders_on_exit(evutil_socket_t fd, short what, void *userdata)
{
	struct holder *holder = userdata;
	struct holders *h = holder->all;
	uint64_t id = holder->id;

	(void)fd;
	(void)what;
	holders_drop(holder);
	h->fn(id, h->userdata);
}

/* A living process has its pid alone; a holder that died keeps its own until it is told. What a
 * process had by one socket is not charged to another. */
static bool holders_is_of(const struct holder *holder, const struct peer *p)
{
	if (peer_get_socket(holder->id) != peer_get_socket(p->id))
		return false;
	if (p->process || holder->process)
		return p->process == holder->process;
	return p->pid > 0 && holder->pid == p->pid && peer_is_running(holder->pidfd);
}

uint64_t holders_add(struct holders *h, struct peer *p)
{
	struct holder *holder;

	if (!peer_is_running(p->pidfd))
		return 0;
	TAILQ_FOREACH(holder, &h->list, entry)
	if (holders_is_of(holder, p))
		return holder->id;
	bool is_unknown = holders_is_unknown(p->process, p->pid);
	if (is_unknown && h->n_unknown >= HOLDERS_MAX_UNKNOWN)
		return 0;
	holder = calloc(1, sizeof(*holder));
	if (!holder)
		return 0;
	*holder = (struct holder){.all = h,
		.id = p->id,
		.process = p->process,
		.pid = p->pid,
		.pidfd = TAKE_FD(p->pidfd)};
	TAILQ_INSERT_TAIL(&h->list, holder, entry);
	h->n_unknown += is_unknown;
	holder->event = event_new(h->base, holder->pidfd, EV_READ, holders_on_exit, holder);
	if (!holder->event || event_add(holder->event, NULL) < 0) {
		holders_drop(holder);
		return 0;
	}
	return p->id;
}
