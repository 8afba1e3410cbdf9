/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/listener.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "proto/unix-path.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/wire.h"
#include "weightd/access.h"
#include "weightd/peer.h"
#include "weightd/rpc-reply.h"

enum {
	LISTENER_ACCEPTS_A_TURN = 16,
	LISTENER_PAUSE_US = 100 * 1000, /* without memory or fds, before the next accept */
	LISTENER_MAX_GIDS = 65536,      /* NGROUPS_MAX of Linux */
	LISTENER_LOG_SECONDS = 1,       /* at most one line about refusals in that time */
};

struct listener {
	struct listener_params params;
	struct event *event;
	struct pace *pace;
	uint64_t last_id;
	int fd;
	int spare_fd; /* given up to accept, and turn away, a peer when no other fd is left */
	struct unix_path_file file;
	bool has_file; /* and removes it at the end */
	time_t logged_s;
	uint32_t n_unlogged;
};

static void listener_open_spare(struct listener *l)
{
	if (l->spare_fd < 0)
		l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* ---- who may ---- */

static int listener_check_peer(const struct listener *l, const struct peer *p, struct err *ret_err)
{
	const struct access *a = l->params.access;
	socklen_t n_bytes = 0;
	_cleanup_(cleanup_free)
	uint32_t *gids = NULL;

	/* Without room for them the kernel says how many bytes there are. */
	if (a->n_gids && getsockopt(p->fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n_bytes) < 0 &&
		errno != ERANGE)
		return err_set(ret_err, errno, "groups of the peer: %s", strerror(errno));
	if (n_bytes > LISTENER_MAX_GIDS * sizeof(*gids))
		return err_set(ret_err, EACCES, "groups of the peer: expected at most %d",
			LISTENER_MAX_GIDS);
	gids = malloc(n_bytes + sizeof(*gids));
	if (!gids)
		return err_set(ret_err, ENOMEM, "out of memory");
	gids[0] = p->gid;
	if (n_bytes && getsockopt(p->fd, SOL_SOCKET, SO_PEERGROUPS, gids + 1, &n_bytes) < 0)
		return err_set(ret_err, errno, "groups of the peer: %s", strerror(errno));
	return access_check_peer(a, p->uid, gids, 1 + n_bytes / (uint32_t)sizeof(*gids), ret_err);
}

static int listener_check_crowd(const struct listener *l, const struct peer *p, struct err *ret_err)
{
	struct access_crowd crowd = {.max_all = PEER_MAX, .max_listened = l->params.max_listened};
	const struct peer *other;

	TAILQ_FOREACH(other, l->params.peers, entry)
	{
		uint32_t socket = peer_get_socket(other->id);
		bool is_here = socket == l->params.socket;
		crowd.n_all++;
		crowd.n_listened += socket != 0;
		crowd.n_here += is_here;
		crowd.n_uid += is_here && other->uid == p->uid;
	}
	return access_check_crowd(l->params.access, p->uid, &crowd, ret_err);
}

/* ---- accepting ---- */

/* Whoever tries ten thousand times does not fill the log. */
static void listener_log_refusal(struct listener *l, const struct peer *p, const char *why)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (l->logged_s && now.tv_sec - l->logged_s < LISTENER_LOG_SECONDS) {
		l->n_unlogged++;
		return;
	}
	if (l->n_unlogged)
		log_warn("%s: %u more connections were refused", l->params.access->path,
			l->n_unlogged);
	log_warn("%s: a connection of pid %d, uid %u was refused: %s", l->params.access->path,
		(int)p->pid, p->uid, why);
	l->logged_s = now.tv_sec;
	l->n_unlogged = 0;
}

uint64_t listener_take_id(struct listener *l)
{
	return peer_make_id(l->params.socket, ++l->last_id);
}

/* Takes fd. refusal: NULL, or why nobody can be served now. */
static void listener_add_peer(struct listener *l, int fd, const char *refusal)
{
	struct err err = ERR_NULL;
	struct peer *p;
	int rc = peer_new(fd, listener_take_id(l), &p);

	if (rc < 0) {
		close(fd);
		return;
	}
	p->access = l->params.access;
	p->pace = l->pace;
	if (refusal)
		rc = err_set(&err, EAGAIN, "%s", refusal);
	if (rc == 0)
		rc = listener_check_peer(l, p, &err);
	if (rc == 0)
		rc = listener_check_crowd(l, p, &err);
	if (rc == 0)
		rc = l->params.peer_fn(p, l->params.userdata, &err);
	if (rc == 0)
		return;
	listener_log_refusal(l, p, err.text);
	rpc_reply_error(p, 0, rc, &err);
	peer_free(p);
}

static void listener_on_pause_end(evutil_socket_t fd, short what, void *userdata)
{
	struct listener *l = userdata;

	(void)fd;
	(void)what;
	if (event_add(l->event, NULL) < 0)
		log_error("%s: out of memory: no connections are accepted any more",
			l->params.access->path);
}

/* The listening socket stays readable: without a pause the loop would spin on it. */
static void listener_pause(struct listener *l, int errnum)
{
	const struct timeval pause = {.tv_usec = LISTENER_PAUSE_US};

	log_warn("%s: accept: %s", l->params.access->path, strerror(errnum));
	if (event_base_once(l->params.base, -1, EV_TIMEOUT, listener_on_pause_end, l, &pause) == 0)
		event_del(l->event);
}

/* No fd is left: the one in reserve lets the connection in, to be told so. */
static bool listener_accept_spare(struct listener *l)
{
	if (l->spare_fd < 0)
		return false;
	cleanup_close(&l->spare_fd);
	int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		listener_add_peer(l, fd, "weightd has no file descriptors left");
	listener_open_spare(l);
	return fd >= 0;
}

static void listener_on_accept(evutil_socket_t listen_fd, short what, void *userdata)
{
	struct listener *l = userdata;

	(void)what;
	listener_open_spare(l);
	for (int i = 0; i < LISTENER_ACCEPTS_A_TURN; i++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			listener_add_peer(l, fd, NULL);
			continue;
		}
		int errnum = errno;
		if (errnum == EAGAIN)
			return;
		if (errnum == EINTR || errnum == ECONNABORTED ||
			(errnum == EMFILE && listener_accept_spare(l)))
			continue;
		listener_pause(l, errnum);
		return;
	}
}

/* ---- its life ---- */

static void listener_cleanup(struct listener **l)
{
	listener_free(*l);
}

int listener_new(
	const struct listener_params *params, struct err *ret_err, struct listener **ret_listener)
{
	_cleanup_(listener_cleanup)
	struct listener *l = calloc(1, sizeof(*l));

	if (!l)
		return err_set(ret_err, ENOMEM, "out of memory");
	l->params = *params;
	l->fd = -1;
	l->spare_fd = -1;
	int rc = pace_new(params->base, params->access->max_requests, &params->pace, &l->pace);
	if (rc < 0)
		return err_set(ret_err, -rc, "out of memory");
	rc = wire_listen(params->access->path, params->access->mode, ret_err, &l->fd);
	if (rc == 0)
		rc = unix_path_remember(params->access->path, ret_err, &l->file);
	if (rc < 0)
		return rc;
	l->has_file = true;
	listener_open_spare(l);
	*ret_listener = TAKE_PTR(l);
	return 0;
}

int listener_start(struct listener *l)
{
	l->event = event_new(l->params.base, l->fd, EV_READ | EV_PERSIST, listener_on_accept, l);
	return l->event && event_add(l->event, NULL) == 0 ? 0 : -ENOMEM;
}

struct listener *listener_free(struct listener *l)
{
	if (!l)
		return NULL;
	if (l->event)
		event_free(l->event);
	pace_free(l->pace);
	if (l->has_file)
		unix_path_unlink(l->params.access->path, &l->file);
	cleanup_close(&l->fd);
	cleanup_close(&l->spare_fd);
	free(l);
	return NULL;
}
