/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_THREAD_H
#define PROTO_UTIL_THREAD_H

/*
 * The calling thread does little at a time and others wait for it: asks the kernel for turns that
 * are short and therefore soon (sched(7), `sched_runtime` of a normal thread, Linux 6.12). Its
 * share of the CPUs stays what it is, and no right is needed. An older kernel takes no notice.
 * Timers of the thread fire when they are due, not up to 50 us later (prctl(2), PR_SET_TIMERSLACK).
 * Threads and processes that are started afterwards inherit it, so it is called after a driver has
 * its own.
 */
void thread_ask_short_slice(void);

#endif
