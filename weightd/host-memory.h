/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_HOST_MEMORY_H
#define WEIGHTD_HOST_MEMORY_H

#include <stdint.h>

/*
 * Bytes that can be had without swapping, as the kernel estimates them (MemAvailable, proc(5));
 * UINT64_MAX where it does not say. Any thread.
 */
uint64_t host_memory_get_free(void);

#endif
