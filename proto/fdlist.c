/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/fdlist.h"

#include <errno.h>

void fdlist_fini(struct fdlist *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		cleanup_close(&l->fds[i]);
	l->n = 0;
}

int fdlist_add(struct fdlist *l, int fd)
{
	if (l->n == FDLIST_MAX) {
		close(fd);
		return -E2BIG;
	}
	l->fds[l->n++] = fd;
	return 0;
}

int fdlist_take(struct fdlist *l, uint32_t index)
{
	if (index >= l->n)
		return -1;
	return TAKE_FD(l->fds[index]);
}
