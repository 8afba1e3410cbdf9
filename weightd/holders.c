/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/holders.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <sys/pidfd.h>
#include <sys/queue.h>

#include "weightd/peer.h"
#include "weightd/process.h"

/* Of processes without a visible pid, before Linux 6.9: each of their connections makes one. */
enum { HOLDERS_MAX_UNKNOWN = 256, HOLDERS_WORKER = 1 /* Role of weightd.proto */ };

struct holder {
	struct holders *all;
	uint64_t id;
	uint64_t process; /* see struct peer */
	struct holders_process who;
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
	holder->all->n_unknown -= holders_is_unknown(holder->process, holder->who.pid);
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
	if (holder->id == p->id) /* its very connection, that was expelled */
		return true;
	if (peer_get_socket(holder->id) != peer_get_socket(p->id))
		return false;
	if (p->process || holder->process)
		return p->process == holder->process;
	return p->pid > 0 && holder->who.pid == p->pid && peer_is_running(holder->pidfd);
}

uint64_t holders_find(const struct holders *h, const struct peer *p)
{
	const struct holder *holder;

	TAILQ_FOREACH(holder, &h->list, entry)
	if (holders_is_of(holder, p))
		return holder->id;
	return 0;
}

const struct holders_process *holders_find_process(const struct holders *h, uint64_t id)
{
	const struct holder *holder;

	TAILQ_FOREACH(holder, &h->list, entry)
	if (holder->id == id)
		return &holder->who;
	return NULL;
}

void holders_visit(const struct holders *h, holders_fn fn, void *userdata)
{
	const struct holder *holder;

	TAILQ_FOREACH(holder, &h->list, entry)
	fn(holder->id, &holder->who, userdata);
}

/* Takes pidfd. */
static uint64_t holders_watch(struct holders *h, uint64_t id, uint64_t process,
	const struct holders_process *who, int pidfd)
{
	bool is_unknown = holders_is_unknown(process, who->pid);
	struct holder *holder = NULL;

	if (!is_unknown || h->n_unknown < HOLDERS_MAX_UNKNOWN)
		holder = calloc(1, sizeof(*holder));
	if (!holder) {
		close(pidfd);
		return 0;
	}
	*holder = (struct holder){
		.all = h, .id = id, .process = process, .who = *who, .pidfd = pidfd};
	TAILQ_INSERT_TAIL(&h->list, holder, entry);
	h->n_unknown += is_unknown;
	holder->event = event_new(h->base, holder->pidfd, EV_READ, holders_on_exit, holder);
	if (!holder->event || event_add(holder->event, NULL) < 0) {
		holders_drop(holder);
		return 0;
	}
	return id;
}

uint64_t holders_add_pid(
	struct holders *h, uint64_t id, int32_t pid, uint32_t uid, uint64_t start_ticks)
{
	_cleanup_(cleanup_close)
	int pidfd = pid > 0 ? pidfd_open(pid, 0) : -1;

	/* Looked at behind pidfd_open: from there on the pid cannot become another's. */
	if (pidfd < 0 || !start_ticks || process_get_start_ticks(pid) != start_ticks)
		return 0;
	uint64_t process = peer_get_process(pidfd);
	const struct holders_process who = {
		.pid = pid, .uid = uid, .role = HOLDERS_WORKER, .start_ticks = start_ticks};
	const struct holder *holder;
	/* What one process had by one socket is one holder's, however often it is told. */
	TAILQ_FOREACH(holder, &h->list, entry)
	if (peer_get_socket(holder->id) == peer_get_socket(id) && holder->who.pid == pid &&
		holder->who.start_ticks == start_ticks && peer_is_running(holder->pidfd))
		return holder->id;
	return holders_watch(h, id, process, &who, TAKE_FD(pidfd));
}

uint64_t holders_add(struct holders *h, struct peer *p)
{
	if (!peer_is_running(p->pidfd))
		return 0;
	uint64_t id = holders_find(h, p);
	if (id)
		return id;
	const struct holders_process who = {.pid = p->pid,
		.uid = p->uid,
		.gid = p->gid,
		.role = p->role,
		.start_ticks = p->start_ticks};
	/* Its own: the connection may live on, and end another lease later. */
	int pidfd = fcntl(p->pidfd, F_DUPFD_CLOEXEC, 0);
	return holders_watch(h, p->id, p->process, &who, pidfd >= 0 ? pidfd : TAKE_FD(p->pidfd));
}
