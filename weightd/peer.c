/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/peer.h"

#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "proto/fdlist.h"
#include "proto/util/log.h"
#include "proto/wire.h"
#include "weightd/leftover.h"
#include "weightd/process.h"

/* Linux 6.5; the C library's headers are older. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Packets of a peer that are thrown away at its end, so that its last answer reaches it. */
enum { PEER_DRAIN_PACKETS = 256 };

/* linux/magic.h, Linux 6.9: a pidfd has an inode of its own process. */
#define PEER_PID_FS_MAGIC 0x50494446

enum {
	/* Waits until its process has read what it was sent: the first, and the longest. */
	PEER_RETRY_US = 2000,
	PEER_RETRY_MAX_US = 512000,
	PEER_UNREAD_FDS_DIVISOR = 16, /* of the quota (RLIMIT_NOFILE): a process's share */
};

struct peer_packet {
	TAILQ_ENTRY(peer_packet) entry;
	struct fdlist fds;
	bool owns_fds; /* else they are never closed here */
	uint32_t n_bytes;
	uint8_t data[];
};

static int peer_open_pidfd(int sock, int32_t pid)
{
	int fd;
	socklen_t n = sizeof(fd);

	/* Of the process that connected, whatever its pid stands for by now. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0)
		return fd;
	return pid > 0 ? pidfd_open(pid, 0) : -1;
}

uint64_t peer_get_process(int pidfd)
{
	struct statfs fs;
	struct stat st;

	if (pidfd < 0 || fstatfs(pidfd, &fs) < 0 || fs.f_type != PEER_PID_FS_MAGIC ||
		fstat(pidfd, &st) < 0)
		return 0;
	return st.st_ino;
}

bool peer_is_same_process(const struct peer *a, const struct peer *b)
{
	if (a == b || (a->process && a->process == b->process))
		return true;
	return !a->process && !b->process && a->pid > 0 && a->pid == b->pid;
}

int peer_new(int fd, uint64_t id, struct peer **ret_peer)
{
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
		return -errno;
	struct peer *p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->id = id;
	p->fd = fd;
	p->pid = cred.pid;
	p->start_ticks = process_get_start_ticks(cred.pid);
	p->uid = cred.uid;
	p->gid = cred.gid;
	p->pidfd = peer_open_pidfd(fd, cred.pid);
	p->process = peer_get_process(p->pidfd);
	TAILQ_INIT(&p->queue);
	*ret_peer = p;
	return 0;
}

static void peer_drop_packet(struct peer *p, struct peer_packet *packet)
{
	TAILQ_REMOVE(&p->queue, packet, entry);
	p->n_queue_packets--;
	p->n_queue_bytes -= packet->n_bytes;
	if (packet->owns_fds) {
		p->n_queue_owned -= packet->fds.n;
		fdlist_fini(&packet->fds);
	}
	free(packet);
}

/* A socket that is closed with packets unread gives its peer ECONNRESET instead of what was sent
 * last (unix(7) sockets on Linux), so what the peer still says is taken and thrown away. */
static void peer_drain(struct peer *p)
{
	uint8_t byte;

	shutdown(p->fd, SHUT_RD);
	for (int i = 0; i < PEER_DRAIN_PACKETS; i++)
		if (recv(p->fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_TRUNC) <= 0)
			break;
}

static void peer_drop_queue(struct peer *p)
{
	struct peer_packet *packet;

	while ((packet = TAILQ_FIRST(&p->queue)))
		peer_drop_packet(p, packet);
}

void peer_finish(struct peer *p)
{
	p->is_broken = true;
	peer_flush(p);
	peer_drop_queue(p);
}

void peer_end_loans(struct peer *p)
{
	struct peer_packet *packet;

	peer_flush(p);
	TAILQ_FOREACH(packet, &p->queue, entry)
	if (packet->fds.n > 0 && !packet->owns_fds)
		break;
	if (!packet)
		return;
	peer_break(p, "%s", "its lease ended before it had read the descriptors");
	peer_drop_queue(p);
}

bool peer_has_unread(int fd)
{
	int n_bytes;

	return ioctl(fd, TIOCOUTQ, &n_bytes) < 0 || n_bytes > 0;
}

static uint32_t peer_count_unread(struct peer *p)
{
	if (p->n_unread_fds && !peer_has_unread(p->fd))
		p->n_unread_fds = 0;
	return p->n_unread_fds;
}

struct peer *peer_free(struct peer *p)
{
	if (!p)
		return NULL;
	peer_drop_queue(p);
	peer_drain(p);
	if (p->read_event)
		event_free(p->read_event);
	if (p->write_event)
		event_free(p->write_event);
	if (p->retry_event)
		event_free(p->retry_event);
	if (p->closed_event)
		event_free(p->closed_event);
	if (p->leftover && peer_count_unread(p))
		leftover_take(p->leftover, p, p->n_unread_fds);
	cleanup_close(&p->fd);
	cleanup_close(&p->pidfd);
	free(p);
	return NULL;
}

struct peer *peer_find(const struct peer_list *peers, uint64_t id)
{
	struct peer *p;

	TAILQ_FOREACH(p, peers, entry)
	if (p->id == id)
		return p;
	return NULL;
}

void peer_break(struct peer *p, const char *format, ...)
{
	va_list args;

	if (p->is_broken)
		return;
	p->is_broken = true;
	va_start(args, format);
	vsnprintf(p->broken.text, sizeof(p->broken.text), format, args);
	va_end(args);
	if (p->read_event)
		event_active(p->read_event, EV_READ, 0);
}

/* May so many descriptors go to the peer's process beside those that it has not read? */
static bool peer_may_send_fds(struct peer *p, uint32_t n_fds)
{
	uint64_t n_max = PEER_MAX_UNREAD_FDS, n_unread;
	struct rlimit limit;
	struct peer *other;

	if (n_fds == 0)
		return true;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
		limit.rlim_cur / PEER_UNREAD_FDS_DIVISOR < n_max)
		n_max = limit.rlim_cur / PEER_UNREAD_FDS_DIVISOR;
	n_unread = peer_count_unread(p) + (p->leftover ? leftover_count(p->leftover, p) : 0);
	for (other = p->peers ? TAILQ_FIRST(p->peers) : NULL; other;
		other = TAILQ_NEXT(other, entry))
		if (other != p && other->n_unread_fds && peer_is_same_process(p, other))
			n_unread += peer_count_unread(other);
	return n_unread == 0 || n_unread + n_fds <= n_max;
}

/* Its socket may well be writable: the loop would spin on that. */
static void peer_retry_later(struct peer *p)
{
	int us = p->retry_us ? p->retry_us * 2 : PEER_RETRY_US;

	p->retry_us = us < PEER_RETRY_MAX_US ? us : PEER_RETRY_MAX_US;
	const struct timeval timeout = {.tv_usec = p->retry_us};
	if (p->write_event)
		event_del(p->write_event);
	if (p->retry_event && event_add(p->retry_event, &timeout) < 0)
		peer_break(p, "%s", "out of memory");
}

static void peer_wait_for_refs(struct peer *p)
{
	static bool has_told;

	if (!has_told)
		log_warn("the kernel's quota of descriptors in flight is spent (%s): answers wait "
			 "until peers read theirs",
			strerror(ETOOMANYREFS));
	has_told = true;
	peer_retry_later(p);
}

void peer_flush(struct peer *p)
{
	struct peer_packet *packet;

	if (p->retry_event && event_pending(p->retry_event, EV_TIMEOUT, NULL))
		return;
	while ((packet = TAILQ_FIRST(&p->queue))) {
		if (!peer_may_send_fds(p, packet->fds.n)) {
			peer_retry_later(p);
			return;
		}
		int rc = wire_send(p->fd, packet->data, packet->n_bytes, &packet->fds);
		if (rc == WIRE_AGAIN) {
			if (p->write_event && event_add(p->write_event, NULL) < 0)
				peer_break(p, "%s", "out of memory");
			return;
		}
		if (rc == -ETOOMANYREFS) {
			peer_wait_for_refs(p);
			return;
		}
		if (rc == 0)
			p->n_unread_fds += packet->fds.n;
		if (packet->fds.n)
			p->retry_us = 0;
		peer_drop_packet(p, packet);
		if (rc < 0)
			peer_break(p, "send: %s", strerror(-rc));
		if (rc < 0)
			return;
	}
	if (p->write_event)
		event_del(p->write_event);
}

/* NULL: the peer is broken. */
static struct peer_packet *peer_make_packet(
	struct peer *p, const void *data, uint32_t n_bytes, const int *fds, uint32_t n_fds)
{
	if (p->is_broken)
		return NULL;
	if (n_fds > FDLIST_MAX || p->n_queue_packets >= PEER_MAX_QUEUE_PACKETS ||
		p->n_queue_bytes + n_bytes > PEER_MAX_QUEUE_BYTES) {
		peer_break(p, "it does not read: %u packets of %llu bytes wait", p->n_queue_packets,
			(unsigned long long)p->n_queue_bytes);
		return NULL;
	}
	struct peer_packet *packet = malloc(sizeof(*packet) + n_bytes);
	if (!packet) {
		peer_break(p, "%s", "out of memory");
		return NULL;
	}
	packet->fds = FDLIST_NULL;
	packet->fds.n = n_fds;
	for (uint32_t i = 0; i < n_fds; i++)
		packet->fds.fds[i] = fds[i];
	packet->owns_fds = false;
	packet->n_bytes = n_bytes;
	memcpy(packet->data, data, n_bytes);
	return packet;
}

static void peer_queue_packet(struct peer *p, struct peer_packet *packet)
{
	TAILQ_INSERT_TAIL(&p->queue, packet, entry);
	p->n_queue_packets++;
	p->n_queue_bytes += packet->n_bytes;
	peer_flush(p);
}

void peer_send(struct peer *p, const void *data, uint32_t n_bytes, const int *fds, uint32_t n_fds)
{
	struct peer_packet *packet = peer_make_packet(p, data, n_bytes, fds, n_fds);

	if (packet)
		peer_queue_packet(p, packet);
}

void peer_send_owned(
	struct peer *p, const void *data, uint32_t n_bytes, const int *fds, uint32_t n_fds)
{
	struct peer_packet *packet = peer_make_packet(p, data, n_bytes, fds, n_fds);

	if (packet && p->n_queue_owned + n_fds > PEER_MAX_QUEUE_OWNED) {
		peer_break(p, "it does not read: %u descriptors wait", p->n_queue_owned);
		free(packet);
		packet = NULL;
	}
	if (packet) {
		packet->owns_fds = true;
		p->n_queue_owned += n_fds;
		peer_queue_packet(p, packet);
		return;
	}
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]);
}

bool peer_is_running(int pidfd)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	return pidfd >= 0 && poll(&poll_fd, 1, 0) == 0;
}
