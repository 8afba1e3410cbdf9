/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_NOTIFY_H
#define PROTO_UTIL_NOTIFY_H

/*
 * What the service manager is told (sd_notify(3)); nothing where there is none or the build has no
 * libsystemd. Any thread.
 */
void notify_ready(void);
void notify_stopping(void);

#endif
