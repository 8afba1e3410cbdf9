/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_NOTIFY_FDS_H
#define PROTO_UTIL_NOTIFY_FDS_H

/*
 * The service manager's store of descriptors (systemd.service(5), FileDescriptorStoreMax=): what is
 * put there comes back to the next process of the unit. The datagrams are those of sd_notify(3),
 * written here, so that a build without libsystemd has them. Any thread, but see notify_fds_take.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

enum { NOTIFY_FDS_MAX = 1024, NOTIFY_FDS_NAME_BYTES = 64 };

/* Is there a manager with a store? $NOTIFY_SOCKET, and $FDSTORE with its room (sd_notify(3)). */
bool notify_fds_has_store(void);

/* fd is borrowed. name: no colon, no control character. -errno of the datagram. */
int must_check notify_fds_put(const char *name, int fd);
int must_check notify_fds_drop(const char *name);

typedef void (*notify_fds_fn)(const char *name, int fd, void *userdata);

/*
 * Calls fn with each descriptor that came from before ($LISTEN_PID, $LISTEN_FDS, $LISTEN_FDNAMES:
 * sd_listen_fds_with_names(3)) and gives it away, O_CLOEXEC; the variables are removed from the
 * environment. Once, before there are other threads.
 */
void notify_fds_take(notify_fds_fn fn, void *userdata);

/*
 * For a program that executes itself anew: lays the descriptors where notify_fds_take of the next
 * one finds them and sets the variables. All others are closed by the execve. Right before it;
 * nothing else of this process may use descriptors afterwards. -errno.
 */
int must_check notify_fds_hand_over(const char *const *names, const int *fds, uint32_t n);

#endif
