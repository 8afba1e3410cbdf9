/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PEER_H
#define WEIGHTD_PEER_H

/*
 * One connection: who it is, and the packets that wait until it reads. A peer that does not read is
 * dropped when its queue is full; nobody else waits for it. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"

struct access;
struct event;
struct event_base;
struct leftover;
struct pace;

enum {
	PEER_MAX = 1024, /* connections at a time */
	/* Of them, those of all --listen sockets together: the owner can always get in. */
	PEER_MAX_LISTENED = PEER_MAX / 8 * 7,
	PEER_MAX_OWN_UID = PEER_MAX / 2, /* of one uid on --socket */
	PEER_SOCKET_SHIFT = 56,          /* in an id, of the listening socket's number */
	PEER_MAX_QUEUE_BYTES = 4 << 20,
	PEER_MAX_QUEUE_PACKETS = 4096,
	PEER_MAX_PENDING = 64, /* requests whose answer waits for a load */
	PEER_MAX_SOCKET_BYTES = 256,
	/* Descriptors that a process has been sent and has not read: the kernel counts them all
	 * against weightd's user (unix(7), ETOOMANYREFS). One packet goes out in any case. */
	PEER_MAX_UNREAD_FDS = 256,
	PEER_MAX_QUEUE_OWNED = 16, /* descriptors of a peer that weightd has open for it alone */
};

/* What a worker told about itself; see WorkerReport in weightd.proto. */
struct peer_report {
	uint64_t kv_bytes;
	uint64_t scratch_bytes;
	uint64_t io_bytes;
	uint32_t n_sessions;
	uint64_t attach_ns;
	char socket[PEER_MAX_SOCKET_BYTES];
};

struct peer_packet;
TAILQ_HEAD(peer_queue, peer_packet);

struct peer {
	uint64_t id;          /* never used again; see peer_make_id */
	int fd;               /* owned */
	int pidfd;            /* owned; -1: the process cannot be watched */
	uint64_t process;     /* the pidfd's inode, one a process from Linux 6.9 on; 0: unknown */
	int32_t pid;          /* SO_PEERCRED at accept; 0: in a namespace that we cannot see */
	uint64_t start_ticks; /* see process_get_start_ticks */
	uint32_t uid;
	uint32_t gid;
	uint32_t role; /* Role of weightd.proto */
	bool is_greeted;
	bool is_watching;
	bool is_broken; /* to be dropped; broken says why */
	struct err broken;
	uint32_t n_pending;
	bool has_report;
	struct peer_report report;
	const struct access *access; /* what its listening socket allows; NULL: everything */
	struct pace *pace;           /* of that socket; NULL: none */
	bool is_parked;              /* waits for its turn there */
	bool asks_long;              /* the last request took the loop long */
	struct event *closed_event;  /* while it does */
	TAILQ_ENTRY(peer) pace_entry;
	uint64_t reserved_bytes;  /* granted to it, see Reserve in weightd.proto */
	void *userdata;           /* the server's */
	struct event *read_event; /* made by the server */
	struct event *write_event;
	struct event *retry_event;     /* a timer that flushes */
	const struct peer_list *peers; /* all there are, set by the server; NULL: itself */
	struct leftover *leftover;     /* of those that were dropped, set by the server; or NULL */
	int retry_us;                  /* the last wait */
	uint32_t n_unread_fds;         /* sent, perhaps not read */
	uint32_t n_queue_owned;
	uint32_t n_queue_packets;
	uint64_t n_queue_bytes;
	struct peer_queue queue;
	TAILQ_ENTRY(peer) entry;
};

TAILQ_HEAD(peer_list, peer);

/*
 * An id says by which listening socket the peer came, 0 being --socket: what is left of a
 * connection after its end (a hold in the registry) is then still that socket's.
 */
static inline uint64_t peer_make_id(uint32_t socket, uint64_t number)
{
	return (uint64_t)socket << PEER_SOCKET_SHIFT | number;
}

static inline uint32_t peer_get_socket(uint64_t id)
{
	return (uint32_t)(id >> PEER_SOCKET_SHIFT);
}

/* A peer of an accepted socket, which it owns on success: credentials and pidfd are taken. */
int must_check peer_new(int fd, uint64_t id, struct peer **ret_peer);

/*
 * What waits is tried once, then dropped. Before the leases of the peer end: borrowed descriptors
 * are not looked at afterwards.
 */
void peer_finish(struct peer *p);

/*
 * Before a lease of the peer ends while its connection goes on: what was lent to its queue must
 * have left. A peer that has not read it is dropped, and the queue with it.
 */
void peer_end_loans(struct peer *p);

/* Do both belong to one process? True for itself; false where nobody can tell. */
bool peer_is_same_process(const struct peer *a, const struct peer *b);

/* Is anything on the way that the other end of the socket has not received, and not closed on? */
bool peer_has_unread(int fd);

/* Ends the connection; what waits is dropped. Accepts NULL; returns NULL. */
struct peer *peer_free(struct peer *p);

struct peer *peer_find(const struct peer_list *peers, uint64_t id);

/*
 * Sends a packet now or queues it. The descriptors are borrowed until it is sent: they are those of
 * a generation that this peer has a lease on. They leave no faster than its process reads them.
 * Marks the peer broken when that is not possible.
 */
void peer_send(struct peer *p, const void *data, uint32_t n_bytes, const int *fds, uint32_t n_fds);

/* The same, and the descriptors are closed once they are sent, or cannot be. */
void peer_send_owned(
	struct peer *p, const void *data, uint32_t n_bytes, const int *fds, uint32_t n_fds);

/* Sends what waits as far as it goes. */
void peer_flush(struct peer *p);

/* The peer is dropped when its read event comes round, at once. */
void peer_break(struct peer *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The pidfd's inode where it is one a process, else 0. */
uint64_t peer_get_process(int pidfd);

/* Does the process of a pidfd live? False for -1: nobody can tell. */
bool peer_is_running(int pidfd);

#endif
