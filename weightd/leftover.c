/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/leftover.h"

#include <errno.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "weightd/peer.h"

struct leftover_end {
	int fd;
	uint64_t process; /* see struct peer */
	int32_t pid;
	uint32_t n_fds;
	TAILQ_ENTRY(leftover_end) entry;
};

struct leftover {
	uint32_t n;
	TAILQ_HEAD(, leftover_end) ends; /* newest last */
};

int leftover_new(struct leftover **ret_leftover)
{
	struct leftover *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	TAILQ_INIT(&l->ends);
	*ret_leftover = l;
	return 0;
}

static void leftover_drop(struct leftover *l, struct leftover_end *end)
{
	TAILQ_REMOVE(&l->ends, end, entry);
	l->n--;
	cleanup_close(&end->fd);
	free(end);
}

struct leftover *leftover_free(struct leftover *l)
{
	if (!l)
		return NULL;
	while (!TAILQ_EMPTY(&l->ends))
		leftover_drop(l, TAILQ_FIRST(&l->ends));
	free(l);
	return NULL;
}

void leftover_prune(struct leftover *l)
{
	struct leftover_end *end, *next;

	for (end = TAILQ_FIRST(&l->ends); end; end = next) {
		next = TAILQ_NEXT(end, entry);
		if (!peer_has_unread(end->fd))
			leftover_drop(l, end);
	}
}

void leftover_take(struct leftover *l, struct peer *p, uint32_t n_fds)
{
	struct leftover_end *end = calloc(1, sizeof(*end));

	if (!end)
		return;
	leftover_prune(l);
	if (l->n == LEFTOVER_MAX)
		leftover_drop(l, TAILQ_FIRST(&l->ends));
	/* For the other end it is closed all the same. */
	shutdown(p->fd, SHUT_RDWR);
	*end = (struct leftover_end){
		.fd = TAKE_FD(p->fd), .process = p->process, .pid = p->pid, .n_fds = n_fds};
	TAILQ_INSERT_TAIL(&l->ends, end, entry);
	l->n++;
}

uint32_t leftover_count(struct leftover *l, const struct peer *p)
{
	const struct leftover_end *end;
	uint32_t n = 0;

	if (TAILQ_EMPTY(&l->ends))
		return 0;
	leftover_prune(l);
	TAILQ_FOREACH(end, &l->ends, entry)
	{
		const struct peer owner = {.process = end->process, .pid = end->pid};
		n += peer_is_same_process(&owner, p) ? end->n_fds : 0;
	}
	return n;
}
