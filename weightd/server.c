/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/server.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify.h"
#include "proto/util/thread.h"
#include "proto/wire.h"
#include "vk/device.h"
#include "vk/probe.h"
#include "weightd/access.h"
#include "weightd/admission.h"
#include "weightd/holders.h"
#include "weightd/idle.h"
#include "weightd/leave.h"
#include "weightd/leftover.h"
#include "weightd/listener.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/pace.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/restart.h"
#include "weightd/rpc-reply.h"
#include "weightd/rpc.h"
#include "weightd/service.h"
#include "weightd/source.h"
#include "weightd/sum.h"

enum {
	SERVER_HELLO_SECONDS = 5,
	SERVER_PACKETS_A_TURN = 16, /* of one peer, before others have their turn */
	SERVER_TURN_NS = 1000000,   /* or that long, where a packet makes much work */
	SERVER_MODE_ROOT = 0660,    /* the group decides who may connect */
	SERVER_MODE = 0600,
	SERVER_FDS_A_PEER = 4, /* of the limit: two of its own, and as many for everything else */
	SERVER_FILES_SECONDS = 1, /* between looks at files whose pages are in use, and the like */
};

struct server {
	const struct server_params *params;
	struct event_base *base;
	struct event *loader_events[SERVICE_MAX_DEVICES];
	struct event *files_event;
	struct event *signal_events[3];
	struct source_account account;
	struct sum_key key;
	struct loader *loaders[SERVICE_MAX_DEVICES];
	struct service_params service_params;
	struct service *service;
	struct restart *restart;
	struct holders *holders;
	struct peer_list peers;
	struct leftover *leftover;
	struct access accesses[1 + SERVER_MAX_LISTENS]; /* --socket's first */
	struct listener *listeners[1 + SERVER_MAX_LISTENS];
	bool is_ending;     /* a signal came */
	bool is_executing;  /* it was SIGHUP */
	bool has_terminal;  /* at the start */
	bool has_begun;     /* what was left before is taken over: it goes with this one */
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
	pace_forget(p->pace, p);
	peer_free(p);
	restart_save(s->restart);
}

static void server_refuse_packet(struct peer *p, int code, const struct err *err)
{
	rpc_reply_error(p, 0, code, err);
	peer_break(p, "%s", err->text);
}

/* A Hello comes in time; then the peer may be silent as long as it likes. */
static void server_watch_reads(struct peer *p)
{
	const struct timeval hello = {.tv_sec = SERVER_HELLO_SECONDS};

	/* Adding it alone would keep the time-out of before. */
	if (event_del(p->read_event) < 0 ||
		event_add(p->read_event, p->is_greeted ? NULL : &hello) < 0)
		peer_break(p, "%s", "out of memory");
}

/* One packet; false when there is none or the peer is to go. */
static bool server_read_packet(struct server *s, struct peer *p)
{
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	struct err err = ERR_NULL;
	uint32_t n_bytes;
	bool was_greeted = p->is_greeted;

	if (p->is_broken)
		return false;
	uint64_t begin_ns = pace_begin();
	int rc = wire_recv(p->fd, s->packet, &n_bytes, &fds, &err);

	if (rc == WIRE_AGAIN)
		return false;
	if (rc != WIRE_END)
		pace_take(p->pace);
	if (rc == WIRE_END)
		peer_break(p, "%s", "it closed");
	else if (rc < 0)
		server_refuse_packet(p, rc, &err);
	else
		rpc_handle(s->service, p, s->packet, n_bytes, &fds);
	if (p->is_greeted && !was_greeted && event_pending(p->read_event, EV_READ, NULL))
		server_watch_reads(p);
	restart_save(s->restart);
	pace_spend(p->pace, p, begin_ns);
	return !p->is_broken;
}

/* Its socket's requests a second are spent: it is read when its turn comes. */
static void server_park_peer(struct peer *p)
{
	event_del(p->read_event);
	pace_park(p->pace, p);
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
	uint64_t start_ns = clock_now_ns();
	for (int i = 0; i < SERVER_PACKETS_A_TURN && !p->is_broken; i++) {
		bool may_go = pace_may_go(p->pace);
		if (!may_go)
			server_park_peer(p);
		if (!may_go || !server_read_packet(s, p) ||
			clock_now_ns() - start_ns > SERVER_TURN_NS)
			break;
	}
	if (p->is_broken)
		server_close_peer(s, p);
}

static bool server_on_turn(struct peer *p)
{
	return server_read_packet(p->userdata, p);
}

static void server_on_parked_end(struct peer *p)
{
	server_close_peer(p->userdata, p);
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
	p->userdata = s;
	p->read_event = event_new(s->base, p->fd, EV_READ | EV_PERSIST, server_on_readable, p);
	p->write_event = event_new(s->base, p->fd, EV_WRITE | EV_PERSIST, server_on_writable, p);
	p->retry_event = event_new(s->base, -1, 0, server_on_writable, p);
	p->peers = &s->peers;
	p->leftover = s->leftover;
	if (!p->read_event || !p->write_event || !p->retry_event)
		return -ENOMEM;
	server_watch_reads(p);
	return p->is_broken ? -ENOMEM : 0;
}

/* Whom a listening socket lets in. */
static int server_add_peer(struct peer *p, void *userdata, struct err *ret_err)
{
	struct server *s = userdata;

	if (server_watch_peer(s, p) < 0)
		return err_set(ret_err, ENOMEM, "out of memory");
	TAILQ_INSERT_TAIL(&s->peers, p, entry);
	return 0;
}

static void server_on_loader(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	outcome_dispatch(s->service);
	restart_save(s->restart);
}

static void server_on_files(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	service_check_files(s->service);
	service_tick(s->service);
	leave_check(s->service);
	idle_check(s->service);
	leftover_prune(s->leftover);
	restart_save(s->restart);
	restart_check(s->restart);
}

static void server_on_exit(uint64_t holder, void *userdata)
{
	struct server *s = userdata;

	service_exit(s->service, holder);
	restart_save(s->restart);
}

/* By a socket that is not there any more, it is ours to account for. */
static uint64_t server_on_hold(
	int32_t pid, uint32_t uid, uint64_t start_ticks, uint32_t socket, void *userdata)
{
	struct server *s = userdata;

	if (socket > s->params->n_listens)
		socket = 0;

	return holders_add_pid(
		s->holders, listener_take_id(s->listeners[socket]), pid, uid, start_ticks);
}

static bool server_has_terminal(void)
{
	_cleanup_(cleanup_close)
	int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);

	return fd >= 0;
}

static void server_on_signal(evutil_socket_t signum, short what, void *userdata)
{
	struct server *s = userdata;

	(void)what;
	/* One that just starts has nothing to hand over, and is the program that was meant. */
	if (signum == SIGHUP && !s->has_begun)
		return;
	/* A terminal that was closed says so with the same signal: that is an end. */
	s->is_executing = signum == SIGHUP && (!s->has_terminal || server_has_terminal());
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
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

	s->has_terminal = server_has_terminal();
	s->base = event_base_new();
	if (!s->base)
		return -ENOMEM;
	for (unsigned i = 0; i < ARRAY_SIZE(signals); i++) {
		s->signal_events[i] = evsignal_new(s->base, signals[i], server_on_signal, s);
		if (!s->signal_events[i] || event_add(s->signal_events[i], NULL) < 0)
			return -ENOMEM;
	}
	/* Where it is executed anew, those that came meanwhile were kept for these. */
	restart_block_signals(false);
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

	s->files_event = event_new(s->base, -1, EV_PERSIST, server_on_files, s);
	if (!s->files_event || event_add(s->files_event, &files) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i <= s->params->n_listens; i++)
		if (listener_start(s->listeners[i]) < 0)
			return -ENOMEM;
	for (uint32_t i = 0; i < s->params->n_devices; i++)
		if (server_watch_loader(s, i) < 0)
			return -ENOMEM;
	return leftover_new(&s->leftover);
}

/* Who could guess it could write weights that have the sums of others. */
static int server_make_key(struct server *s, struct err *ret_err)
{
	uint8_t secret[SUM_SECRET_BYTES];

	_Static_assert((int)SUM_SECRET_BYTES == (int)STATE_SECRET_BYTES, "one secret");
	if (!restart_get_secret(s->restart, secret) &&
		getrandom(secret, sizeof(secret), 0) != (ssize_t)sizeof(secret))
		return err_set(ret_err, errno, "key of checksums: %s", strerror(errno));
	restart_set_secret(s->restart, secret);
	sum_key_init(&s->key, secret);
	explicit_bzero(secret, sizeof(secret));
	return 0;
}

static int server_start_loaders(struct server *s, struct err *ret_err)
{
	struct loader_params params = {.policy = s->params->policy,
		.account = &s->account,
		.key = &s->key,
		.alloc_bytes = s->params->alloc_bytes,
		.window_bytes = s->params->window_bytes,
		.use_pread = s->params->use_pread,
		.scrub_ns = s->params->scrub_ns,
		.scrub_percent = s->params->scrub_percent};

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

/* Connections of all --listen sockets: neither the count nor descriptors run out for --socket. */
static uint32_t server_get_max_listened(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
		limit.rlim_cur / SERVER_FDS_A_PEER > PEER_MAX_LISTENED)
		return PEER_MAX_LISTENED;
	return (uint32_t)limit.rlim_cur / SERVER_FDS_A_PEER;
}

static int server_listen(struct server *s, struct err *ret_err)
{
	struct listener_params params = {.base = s->base,
		.peers = &s->peers,
		.max_listened = server_get_max_listened(),
		.pace = {.read = server_on_turn,
			.resume = server_watch_reads,
			.close = server_on_parked_end},
		.peer_fn = server_add_peer,
		.userdata = s};

	access_init_owner(&s->accesses[0], s->params->socket,
		geteuid() == 0 ? SERVER_MODE_ROOT : SERVER_MODE);
	s->accesses[0].max_uid_connections = PEER_MAX_OWN_UID;
	for (uint32_t i = 0; i <= s->params->n_listens; i++) {
		if (i > 0) {
			s->accesses[i] = s->params->listens[i - 1];
			access_share(&s->accesses[i], params.max_listened, s->params->n_listens);
		}
		params.access = &s->accesses[i];
		params.socket = i;
		int rc = listener_new(&params, ret_err, &s->listeners[i]);
		if (rc < 0)
			return rc;
	}
	/* The socket is ours, and with it what the weightd before left beside it. */
	if (restart_new(s->params->socket, s->params->listens, s->params->n_listens,
		    s->params->n_keep_seconds, &s->restart) < 0)
		return err_set(ret_err, ENOMEM, "out of memory");
	return 0;
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
	rc = server_make_key(s, ret_err);
	if (rc == 0)
		rc = server_start_loaders(s, ret_err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < s->params->n_devices && !server_is_ending(s); i++)
		server_probe(s->loaders[i]);
	if (s->is_ending)
		return 0;
	rc = holders_new(s->base, server_on_exit, s, &s->holders);
	if (rc < 0)
		return err_set(ret_err, -rc, "out of memory");
	s->service_params = (struct service_params){.loaders = s->loaders,
		.n_loaders = s->params->n_devices,
		.peers = &s->peers,
		.holders = s->holders,
		.idle_ns = s->params->idle_ns,
		.idle_unload_ns = s->params->idle_unload_ns,
		.account = &s->account,
		.policy = s->params->policy,
		.pin_writable = s->params->pin_writable,
		.n_pin_writable = s->params->n_pin_writable,
		.own_fn = server_on_own_load,
		.hold_fn = server_on_hold,
		.restart = s->restart,
		.userdata = s};
	rc = service_new(&s->service_params, &s->service);
	if (rc == 0)
		rc = admission_init(s->service);
	if (rc == 0)
		rc = server_init_events(s);
	if (rc == 0)
		rc = restart_attach(s->restart, s->base, s->service);
	if (rc < 0)
		return err_set(ret_err, -rc, "out of memory");
	return 0;
}

static void server_free_event(struct event *event)
{
	if (event)
		event_free(event);
}

/*
 * What failed before it took anything over leaves it to the next, and so does a start that failed
 * with memory of the weightd before in its hands: a model file that is broken today is no reason to
 * read the others again.
 */
static bool server_may_forget(const struct server *s)
{
	if (s->is_ending)
		return true;
	return s->has_begun && !(s->code < 0 && restart_has_found(s->restart));
}

static void server_fini(struct server *s)
{
	struct peer *p;

	while ((p = TAILQ_FIRST(&s->peers))) {
		peer_finish(p);
		TAILQ_REMOVE(&s->peers, p, entry);
		pace_forget(p->pace, p);
		peer_free(p);
	}
	leftover_free(s->leftover);
	holders_free(s->holders);
	if (s->restart && server_may_forget(s))
		restart_forget(s->restart);
	restart_free(s->restart);
	service_free(s->service);
	server_free_event(s->files_event);
	for (uint32_t i = 0; i < s->params->n_devices; i++) {
		server_free_event(s->loader_events[i]);
		loader_free(s->loaders[i]);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(s->signal_events); i++)
		server_free_event(s->signal_events[i]);
	for (uint32_t i = 0; i <= s->params->n_listens; i++)
		listener_free(s->listeners[i]);
	if (s->base)
		event_base_free(s->base);
}

static int server_start_loads(struct server *s, struct err *ret_err)
{
	s->n_loading = s->params->n_models;
	for (uint32_t i = 0; i < s->params->n_models; i++) {
		struct server_model *m = &s->params->models[i];
		int rc = 0;
		if (!restart_claim(s->restart, m->name, m->path, m->fd))
			rc = service_load(
				s->service, NULL, 0, m->name, m->path, m->fd, false, ret_err);
		cleanup_close(&m->fd);
		if (rc < 0)
			return rc;
	}
	s->has_begun = true;
	restart_begin(s->restart);
	if (s->params->n_models == 0)
		server_say_ready(s);
	return 0;
}

static void server_cleanup(struct server **s)
{
	if (*s)
		server_fini(*s);
	free(*s);
}

/*
 * SIGHUP: the memory stays where it is, and nothing else of this weightd. Where its descriptors
 * cannot be handed over, this one goes on: it would take the memory with it.
 */
static bool server_let_go(struct server *s)
{
	int rc = 0;

	/* What comes from here on is the next one's; what came behind SIGHUP has been caught, and
	 * would be forgotten with this loop. */
	restart_block_signals(true);
	if (event_base_loop(s->base, EVLOOP_NONBLOCK) >= 0 && s->is_executing && s->code == 0) {
		rc = restart_hold(s->restart);
		if (rc == 0)
			return true;
		s->is_executing = s->is_ending = false;
	}
	restart_block_signals(false);
	if (rc < 0)
		log_error("SIGHUP: descriptors cannot be handed over: %s: this weightd goes on",
			strerror(-rc));
	return false;
}

/* Until a signal ends it, or a load of the command line fails. True: it is to be executed anew. */
static bool server_loop(struct server *s)
{
	thread_ask_short_slice();
	/* One may have failed before there was a loop to break. */
	while (!s->is_ending && s->code == 0) {
		if (event_base_dispatch(s->base) < 0) {
			s->code = err_set(&s->err, EIO, "the event loop failed");
			return false;
		}
		if (s->is_executing && s->has_begun && s->code == 0 && server_let_go(s))
			return true;
	}
	return false;
}

int server_run(
	const struct server_params *params, struct err *ret_err, struct restart **ret_restart)
{
	_cleanup_(server_cleanup)
	struct server *s = calloc(1, sizeof(*s));

	if (!s)
		return err_set(ret_err, ENOMEM, "out of memory");
	s->params = params;
	TAILQ_INIT(&s->peers);
	int rc = server_init(s, ret_err);
	if (rc == 0 && !s->is_ending)
		rc = server_start_loads(s, ret_err);
	if (rc < 0)
		return rc;
	if (server_loop(s)) {
		*ret_restart = TAKE_PTR(s->restart);
		return SERVER_EXECUTE;
	}
	notify_stopping();
	if (s->code < 0 && ret_err)
		*ret_err = s->err;
	return s->code;
}
