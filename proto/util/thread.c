/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/thread.h"

#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The shortest that the kernel gives; its own choice is some milliseconds. */
static const uint64_t slice_ns = 100 * 1000;

/* struct sched_attr of the kernel, version 0: glibc has it from 2.41 on, under the same name. */
struct thread_attr {
	uint32_t n_bytes;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns;
	uint64_t deadline_ns;
	uint64_t period_ns;
};

void thread_ask_short_slice(void)
{
	struct thread_attr attr = {0};

	/* What is waited for until a time is not to be waited for 50 us longer. */
	(void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	/* What it is set to otherwise (a nice value, a real-time policy) is somebody's decision. */
	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) || attr.policy != 0)
		return;
	attr.runtime_ns = slice_ns;
	/* Where it is refused turns come as they come. */
	(void)syscall(SYS_sched_setattr, 0, &attr, 0);
}
