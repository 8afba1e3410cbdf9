/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/server.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/unix-path.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify.h"
#include "proto/wire.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "weightd/holders.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/rpc-reply.h"
#include "weightd/rpc.h"
#include "weightd/service.h"
#include "weightd/source.h"

enum {
	SERVER_HELLO_SECONDS = 5,
	SERVER_PACKETS_A_TURN = 16, /* of one peer, before others have their turn */
	SERVER_ACCEPTS_A_TURN = 16,
	SERVER_PAUSE_US = 100 * 1000, /* without memory or fds, before the next accept */
	SERVER_MODE_ROOT = 0660,      /* the group decides who may connect */
	SERVER_MODE = 0600,
	SERVER_FILES_SECONDS = 1, /* between looks at the files whose pages are in use */
};

struct server {
	const struct server_params *params;
	struct event_base *base;
	struct event *listen_event;
	struct event *loader_events[SERVICE_MAX_DEVICES];
	struct event *files_event;
	struct event *signal_events[2];
	struct source_account account;
	struct loader *loaders[SERVICE_MAX_DEVICES];
	struct service_params service_params;
	struct service *service;
	struct holders *holders;
	struct peer_list peers;
	uint32_t n_peers;
	uint64_t last_peer;
	int listen_fd;
	struct unix_path_file socket_file;
	bool has_socket_file; /* and removes it at the end */
	bool is_ending;       /* a signal came */
	int spare_fd;       /* given up to accept, and turn away, a peer when no other fd is left */
	uint32_t n_loading; /* models of the command line */
	int code;           /* of the first that failed */
	struct err err;
	uint8_t packet[WIRE_MAX_BYTES];
};

static void server_close_peer(struct server *s, struct peer *p)
{
	if (p->is_broken)
		log_debug("peer %llu, pid %d: dropped: %s", (unsigned long long)p->id, (int)p->pid,
			p->broken.text);
	p->is_broken = true;
	bool has_claims = service_has_claims(s->service, p);
	peer_finish(p);
	service_close(s->service, p, has_claims ? holders_add(s->holders, p) : 0);
	TAILQ_REMOVE(&s->peers, p, entry);
	s->n_peers--;
	peer_free(p);
}

static void server_refuse_packet(struct peer *p, int code, const struct err *err)
{
	rpc_reply_error(p, 0, code, err);
	peer_break(p, "%s", err->text);
}

/* One packet; false when there is none or the peer is to go. */
static bool server_read_packet(struct server *s, struct peer *p)
{
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	struct err err = ERR_NULL;
	uint32_t n_bytes;
	bool was_greeted = p->is_greeted;
	int rc = wire_recv(p->fd, s->packet, &n_bytes, &fds, &err);

	if (rc == WIRE_AGAIN)
		return false;
	if (rc == WIRE_END)
		peer_break(p, "%s", "it closed");
	else if (rc < 0)
		server_refuse_packet(p, rc, &err);
	else
		rpc_handle(s->service, p, s->packet, n_bytes, &fds);
	/* Hello came: from here on it may be silent as long as it likes. */
	if (p->is_greeted && !was_greeted &&
		(event_del(p->read_event) < 0 || event_add(p->read_event, NULL) < 0))
		peer_break(p, "%s", "out of memory");
	return !p->is_broken;
}

static void server_on_readable(evutil_socket_t fd, short what, void *userdata)
{
	struct peer *p = userdata;
	struct server *s = p->userdata;

	(void)fd;
	if ((what & EV_TIMEOUT) && !p->is_greeted) {
		struct err err = ERR_NULL;
		int rc = err_set(
			&err, ETIMEDOUT, "Hello: expected within %d s", SERVER_HELLO_SECONDS);
		server_refuse_packet(p, rc, &err);
	}
	for (int i = 0; i < SERVER_PACKETS_A_TURN && !p->is_broken; i++)
		if (!server_read_packet(s, p))
			break;
	if (p->is_broken)
		server_close_peer(s, p);
}

static void server_on_writable(evutil_socket_t fd, short what, void *userdata)
{
	(void)fd;
	(void)what;
	peer_flush(userdata);
}

/* The peer's events; what it lacks then is freed with it. */
static int server_watch_peer(struct server *s, struct peer *p)
{
	const struct timeval hello = {.tv_sec = SERVER_HELLO_SECONDS};

	p->userdata = s;
	p->read_event = event_new(s->base, p->fd, EV_READ | EV_PERSIST, server_on_readable, p);
	p->write_event = event_new(s->base, p->fd, EV_WRITE | EV_PERSIST, server_on_writable, p);
	p->retry_event = event_new(s->base, -1, 0, server_on_writable, p);
	p->peers = &s->peers;
	if (!p->read_event || !p->write_event || !p->retry_event ||
		event_add(p->read_event, &hello) < 0)
		return -ENOMEM;
	return 0;
}

static void server_refuse_peer(struct peer *p, const char *why)
{
	struct err err = ERR_NULL;
	int rc = err_set(&err, EAGAIN, "%s", why);

	log_warn("a connection of pid %d was refused: %s", (int)p->pid, why);
	rpc_reply_error(p, 0, rc, &err);
	peer_free(p);
}

/* Takes fd. */
static void server_add_peer(struct server *s, int fd, const char *refusal)
{
	struct peer *p;
	int rc = peer_new(fd, ++s->last_peer, &p);

	if (rc < 0) {
		close(fd);
		return;
	}
	if (!refusal && s->n_peers >= PEER_MAX)
		refusal = "too many connections are open";
	if (!refusal && server_watch_peer(s, p) < 0)
		refusal = "out of memory";
	if (refusal) {
		server_refuse_peer(p, refusal);
		return;
	}
	TAILQ_INSERT_TAIL(&s->peers, p, entry);
	s->n_peers++;
}

static void server_on_pause_end(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	if (event_add(s->listen_event, NULL) < 0)
		log_error("out of memory: no connections are accepted any more");
}

/* The listening socket stays readable: without a pause the loop would spin on it. */
static void server_pause_accept(struct server *s, int errnum)
{
	const struct timeval pause = {.tv_usec = SERVER_PAUSE_US};

	log_warn("accept: %s", strerror(errnum));
	if (event_base_once(s->base, -1, EV_TIMEOUT, server_on_pause_end, s, &pause) == 0)
		event_del(s->listen_event);
}

static void server_open_spare(struct server *s)
{
	if (s->spare_fd < 0)
		s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* No fd is left: the one in reserve lets the connection in, to be told so. */
static bool server_accept_spare(struct server *s)
{
	if (s->spare_fd < 0)
		return false;
	cleanup_close(&s->spare_fd);
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		server_add_peer(s, fd, "weightd has no file descriptors left");
	server_open_spare(s);
	return fd >= 0;
}

static void server_on_accept(evutil_socket_t listen_fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)what;
	server_open_spare(s);
	for (int i = 0; i < SERVER_ACCEPTS_A_TURN; i++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			server_add_peer(s, fd, NULL);
			continue;
		}
		int errnum = errno;
		if (errnum == EAGAIN)
			return;
		if (errnum == EINTR || errnum == ECONNABORTED ||
			(errnum == EMFILE && server_accept_spare(s)))
			continue;
		server_pause_accept(s, errnum);
		return;
	}
}

static void server_on_loader(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	outcome_dispatch(s->service);
}

static void server_on_files(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	service_check_files(s->service);
	service_tick(s->service);
}

static void server_on_exit(uint64_t holder, void *userdata)
{
	struct server *s = userdata;

	service_exit(s->service, holder);
}

static void server_on_signal(evutil_socket_t signum, short what, void *userdata)
{
	struct server *s = userdata;

	(void)signum;
	(void)what;
	s->is_ending = true;
	event_base_loopbreak(s->base);
}

/* Not a log line: whatever the log level, a person and a script wait for it. */
static void server_say_ready(const struct server *s)
{
	fprintf(stderr, "weightd: info: ready: socket %s, device %s", s->params->socket,
		loader_get_info(s->loaders[0])->name);
	for (uint32_t i = 1; i < s->params->n_devices; i++)
		fprintf(stderr, " and %s", loader_get_info(s->loaders[i])->name);
	fputc('\n', stderr);
	notify_ready();
}

static void server_on_own_load(int code, const struct err *err, void *userdata)
{
	struct server *s = userdata;

	/* Unloaded while it loaded: that was asked for. */
	if (code < 0 && code != -ECANCELED && s->code == 0) {
		s->code = code;
		s->err = *err;
		event_base_loopbreak(s->base);
	}
	if (--s->n_loading == 0 && s->code == 0)
		server_say_ready(s);
}

static int server_watch_loader(struct server *s, uint32_t i)
{
	s->loader_events[i] = event_new(
		s->base, loader_get_fd(s->loaders[i]), EV_READ | EV_PERSIST, server_on_loader, s);
	return s->loader_events[i] && event_add(s->loader_events[i], NULL) == 0 ? 0 : -ENOMEM;
}

/* Before there is a socket: whenever a signal comes, the file is removed. */
static int server_init_signals(struct server *s)
{
	static const int signals[] = {SIGTERM, SIGINT};

	s->base = event_base_new();
	if (!s->base)
		return -ENOMEM;
	for (unsigned i = 0; i < ARRAY_SIZE(signals); i++) {
		s->signal_events[i] = evsignal_new(s->base, signals[i], server_on_signal, s);
		if (!s->signal_events[i] || event_add(s->signal_events[i], NULL) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Did a signal come so far? While the server starts, nothing else has an event. */
static bool server_is_ending(struct server *s)
{
	return event_base_loop(s->base, EVLOOP_NONBLOCK) < 0 || s->is_ending;
}

static int server_init_events(struct server *s)
{
	const struct timeval files = {.tv_sec = SERVER_FILES_SECONDS};

	s->listen_event =
		event_new(s->base, s->listen_fd, EV_READ | EV_PERSIST, server_on_accept, s);
	s->files_event = event_new(s->base, -1, EV_PERSIST, server_on_files, s);
	if (!s->listen_event || event_add(s->listen_event, NULL) < 0 || !s->files_event ||
		event_add(s->files_event, &files) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->params->n_devices; i++)
		if (server_watch_loader(s, i) < 0)
			return -ENOMEM;
	return holders_new(s->base, server_on_exit, s, &s->holders);
}

static int server_start_loaders(struct server *s, struct err *ret_err)
{
	struct loader_params params = {.policy = s->params->policy,
		.account = &s->account,
		.alloc_bytes = s->params->alloc_bytes,
		.window_bytes = s->params->window_bytes,
		.use_pread = s->params->use_pread};

	for (uint32_t i = 0; i < s->params->n_devices && !server_is_ending(s); i++) {
		params.device = s->params->devices[i];
		int rc = loader_new(&params, ret_err, &s->loaders[i]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Takes seconds the first time, and is then remembered. Without it nothing is imported. */
static void server_probe(struct loader *l)
{
	static const enum vk_probe_kind told[] = {VK_PROBE_MEMFD, VK_PROBE_DISK_READ_ONLY};
	const struct vk_device_info *info = loader_get_info(l);
	struct vk_probe probe = {0};
	struct err err = ERR_NULL;

	if (vk_probe_get(info, NULL, &err, &probe) < 0)
		log_warn("device %s: probe: %s", info->name, err.text);
	for (unsigned i = 0; i < ARRAY_SIZE(told); i++) {
		const struct vk_probe_result *r = &probe.kinds[told[i]];
		if (!r->is_ok)
			log_info("device %s does not import mappings of kind %s: %s", info->name,
				vk_probe_kind_name(told[i]), r->reason);
	}
	loader_set_probe(l, &probe);
}

static int server_listen(struct server *s, struct err *ret_err)
{
	int rc = wire_listen(s->params->socket, geteuid() == 0 ? SERVER_MODE_ROOT : SERVER_MODE,
		ret_err, &s->listen_fd);

	if (rc == 0)
		rc = unix_path_remember(s->params->socket, ret_err, &s->socket_file);
	s->has_socket_file = rc == 0;
	return rc;
}

/* Ends early, with is_ending set, when a signal comes. */
static int server_init(struct server *s, struct err *ret_err)
{
	int rc = server_init_signals(s);

	if (rc < 0)
		return err_set(ret_err, -rc, "out of memory");
	rc = server_listen(s, ret_err);
	if (rc < 0)
		return rc;
	server_open_spare(s);
	rc = server_start_loaders(s, ret_err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < s->params->n_devices && !server_is_ending(s); i++)
		server_probe(s->loaders[i]);
	if (s->is_ending)
		return 0;
	s->service_params = (struct service_params){.loaders = s->loaders,
		.n_loaders = s->params->n_devices,
		.peers = &s->peers,
		.account = &s->account,
		.policy = s->params->policy,
		.pin_writable = s->params->pin_writable,
		.n_pin_writable = s->params->n_pin_writable,
		.own_fn = server_on_own_load,
		.userdata = s};
	rc = service_new(&s->service_params, &s->service);
	if (rc == 0)
		rc = server_init_events(s);
	if (rc < 0)
		return err_set(ret_err, -rc, "out of memory");
	return 0;
}

static void server_free_event(struct event *event)
{
	if (event)
		event_free(event);
}

static void server_fini(struct server *s)
{
	struct peer *p;

	while ((p = TAILQ_FIRST(&s->peers))) {
		peer_finish(p);
		TAILQ_REMOVE(&s->peers, p, entry);
		peer_free(p);
	}
	holders_free(s->holders);
	service_free(s->service);
	server_free_event(s->listen_event);
	server_free_event(s->files_event);
	for (uint32_t i = 0; i < s->params->n_devices; i++) {
		server_free_event(s->loader_events[i]);
		loader_free(s->loaders[i]);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(s->signal_events); i++)
		server_free_event(s->signal_events[i]);
	if (s->base)
		event_base_free(s->base);
	if (s->has_socket_file)
		unix_path_unlink(s->params->socket, &s->socket_file);
	cleanup_close(&s->listen_fd);
	cleanup_close(&s->spare_fd);
}

static int server_start_loads(struct server *s, struct err *ret_err)
{
	s->n_loading = s->params->n_models;
	for (uint32_t i = 0; i < s->params->n_models; i++) {
		struct server_model *m = &s->params->models[i];
		int rc = service_load(s->service, NULL, 0, m->name, m->path, m->fd, false, ret_err);
		cleanup_close(&m->fd);
		if (rc < 0)
			return rc;
	}
	if (s->n_loading == 0)
		server_say_ready(s);
	return 0;
}

static void server_cleanup(struct server **s)
{
	if (*s)
		server_fini(*s);
	free(*s);
}

int server_run(const struct server_params *params, struct err *ret_err)
{
	_cleanup_(server_cleanup)
	struct server *s = calloc(1, sizeof(*s));

	if (!s)
		return err_set(ret_err, ENOMEM, "out of memory");
	s->params = params;
	s->listen_fd = -1;
	s->spare_fd = -1;
	TAILQ_INIT(&s->peers);
	int rc = server_init(s, ret_err);
	if (rc == 0 && !s->is_ending)
		rc = server_start_loads(s, ret_err);
	if (rc < 0)
		return rc;
	if (!s->is_ending && event_base_dispatch(s->base) < 0)
		return err_set(ret_err, EIO, "the event loop failed");
	notify_stopping();
	if (s->code < 0 && ret_err)
		*ret_err = s->err;
	return s->code;
}
