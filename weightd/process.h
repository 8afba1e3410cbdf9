/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PROCESS_H
#define WEIGHTD_PROCESS_H

/*
 * Which process a pid means: the number is used again, its start time with it is not. Any thread.
 */
#include <stdint.h>

/* Field 22 of /proc/PID/stat (proc(5)), in clock ticks since boot; 0: no such process is visible,
 * or it has ended and was not waited for yet. */
uint64_t process_get_start_ticks(int32_t pid);

#endif
