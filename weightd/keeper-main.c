/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "proto/fdlist.h"
#include "proto/unix-path.h"
#include "proto/wire.h"

enum {
	MAIN_LISTEN_FD = 3,
	MAIN_MAX_PEERS = 8,
	MAIN_SEND_S = 5, /* a peer that does not read what it asked for is dropped */
};

struct kept {
	char name[KEEPER_NAME_BYTES];
	int fd;
};

struct keeper {
	const char *path;
	struct unix_path_file file;
	uint32_t n_kept;
	uint32_t n_room;
	struct kept *kept;
	uint32_t n_peers;
	int peers[MAIN_MAX_PEERS];
	bool is_ending;
	uint8_t packet[WIRE_MAX_BYTES];
};

static volatile sig_atomic_t has_signal;

static void main_on_signal(int signum)
{
	has_signal = signum;
}

static struct kept *main_find(struct keeper *k, const char *name)
{
	for (uint32_t i = 0; i < k->n_kept; i++)
		if (!strcmp(k->kept[i].name, name))
			return &k->kept[i];
	return NULL;
}

static void main_drop(struct keeper *k, const char *name)
{
	struct kept *at = main_find(k, name);

	if (!at)
		return;
	cleanup_close(&at->fd);
	*at = k->kept[--k->n_kept];
}

/* Takes fd. */
static bool main_put(struct keeper *k, const char *name, int fd)
{
	struct kept *at = main_find(k, name);

	if (!at && k->n_kept == k->n_room && k->n_room < KEEPER_MAX) {
		uint32_t n = k->n_room ? k->n_room * 2 : 64;
		struct kept *more = reallocarray(k->kept, n, sizeof(*more));
		if (more) {
			k->kept = more;
			k->n_room = n;
		}
	}
	if (!at && k->n_kept == k->n_room) {
		close(fd);
		return false;
	}
	if (!at) {
		at = &k->kept[k->n_kept++];
		at->fd = -1;
	}
	cleanup_close(&at->fd);
	strcpy(at->name, name);
	at->fd = fd;
	return true;
}

static bool main_answer(int sock, enum keeper_op op, const char *name, int fd)
{
	struct keeper_packet p = {.protocol = KEEPER_PROTOCOL, .op = op};
	const struct fdlist fds = {.n = fd >= 0, .fds = {fd}}; /* borrowed: no fini */

	snprintf(p.name, sizeof(p.name), "%s", name);
	return wire_send(sock, &p, sizeof(p), &fds) == 0;
}

static bool main_give_all(struct keeper *k, int sock)
{
	for (uint32_t i = 0; i < k->n_kept; i++)
		if (!main_answer(sock, KEEPER_HAVE, k->kept[i].name, k->kept[i].fd))
			return false;
	return main_answer(sock, KEEPER_DONE, "", -1);
}

static bool main_handle(
	struct keeper *k, int sock, const struct keeper_packet *p, struct fdlist *fds)
{
	char pid[16];

	if (p->protocol != KEEPER_PROTOCOL || p->name[sizeof(p->name) - 1] ||
		fds->n != (p->op == KEEPER_PUT))
		return false;
	switch (p->op) {
	case KEEPER_PUT: return main_put(k, p->name, fdlist_take(fds, 0));
	case KEEPER_DROP: main_drop(k, p->name); return true;
	case KEEPER_TAKE: return main_give_all(k, sock);
	case KEEPER_END:
		k->is_ending = true;
		snprintf(pid, sizeof(pid), "%d", (int)getpid());
		return main_answer(sock, KEEPER_DONE, pid, -1);
	default: return false;
	}
}

/* Every packet that is there; false: the connection ends. */
static bool main_serve(struct keeper *k, int sock)
{
	struct pollfd more = {.fd = sock, .events = POLLIN};

	do {
		_cleanup_(fdlist_fini)
		struct fdlist fds = FDLIST_NULL;
		struct keeper_packet p;
		uint32_t n_bytes;

		if (wire_recv(sock, k->packet, &n_bytes, &fds, NULL) || n_bytes != sizeof(p))
			return false;
		memcpy(&p, k->packet, sizeof(p));
		if (!main_handle(k, sock, &p, &fds))
			return false;
	} while (!k->is_ending && poll(&more, 1, 0) > 0);
	return true;
}

/*
 * The oldest first, to its end: what a weightd sent before it was killed counts before the next one
 * asks what there is.
 */
static void main_serve_all(struct keeper *k, const struct pollfd *polls, uint32_t n_polls)
{
	uint32_t n_left = 0;

	for (uint32_t i = 0; i < n_polls; i++) {
		if (polls[i].revents && !main_serve(k, k->peers[i]))
			close(k->peers[i]);
		else
			k->peers[n_left++] = k->peers[i];
	}
	k->n_peers = n_left;
}

/* Whoever may open the file is not yet ours. */
static void main_accept(struct keeper *k)
{
	const struct timeval timeout = {.tv_sec = MAIN_SEND_S};
	_cleanup_(cleanup_close)
	int sock = accept4(MAIN_LISTEN_FD, NULL, NULL, SOCK_CLOEXEC);
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (sock < 0 || k->n_peers == MAIN_MAX_PEERS ||
		getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0 || cred.uid != geteuid() ||
		setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
		return;
	k->peers[k->n_peers++] = TAKE_FD(sock);
}

static uint64_t main_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Until it is told to end, or nobody has been there for so long. */
static void main_loop(struct keeper *k, uint64_t keep_ms)
{
	uint64_t deadline_ms = main_now_ms() + keep_ms;

	while (!k->is_ending && !has_signal) {
		struct pollfd polls[MAIN_MAX_PEERS + 1] = {
			{.fd = MAIN_LISTEN_FD, .events = POLLIN}};
		uint32_t n_peers = k->n_peers;
		uint64_t now_ms = main_now_ms();

		if (n_peers > 0)
			deadline_ms = now_ms + keep_ms;
		if (now_ms >= deadline_ms)
			return;
		for (uint32_t i = 0; i < n_peers; i++)
			polls[i + 1] = (struct pollfd){.fd = k->peers[i], .events = POLLIN};
		int n = poll(polls, n_peers + 1, n_peers > 0 ? -1 : (int)(deadline_ms - now_ms));
		if (n < 0 && errno != EINTR)
			return;
		if (n > 0)
			main_serve_all(k, polls + 1, n_peers);
		if (n > 0 && polls[0].revents)
			main_accept(k);
	}
}

int keeper_main(int argc, char **argv)
{
	static struct keeper k;
	const struct sigaction on_signal = {.sa_handler = main_on_signal};
	unsigned long n_seconds = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;

	if (argc != 4 || n_seconds == 0 || n_seconds > KEEPER_MAX_SECONDS)
		return 2;
	k.path = argv[2];
	if (unix_path_remember(k.path, NULL, &k.file) < 0)
		return 1;
	sigaction(SIGTERM, &on_signal, NULL);
	/* Of a terminal that weightd was started in. */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	main_loop(&k, n_seconds * 1000);
	unix_path_unlink(k.path, &k.file);
	return 0;
}
