/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_POPULATE_H
#define WORKERD_POPULATE_H

/*
 * Page tables before a driver pins pages: it takes a fault for each 4 KiB that has no entry, one
 * after the other, at some 6 GB/s. The kernel enters sixteen at once, on several cores.
 */
#include <stdint.h>

/*
 * Pages already in memory, of a shared mapping, on at most n_threads threads. What fails costs time
 * only. Any thread.
 */
void populate_pages(void *pages, uint64_t n_bytes, uint32_t n_threads);

#endif
