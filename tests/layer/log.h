/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_LOG_H
#define TESTS_LAYER_LOG_H

/*
 * A line of JSON for every vkAllocateMemory, vkFreeMemory, vkMapMemory and vkGetMemoryFdKHR,
 * appended to a file by one write each, so that several processes may share the file. Its fields:
 * layer.c. Any thread.
 */
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"

struct memory;
struct request;

struct log {
	int fd; /* -1: no log */
};

/* path may be NULL. -errno of open. */
int must_check log_open(const char *path, struct log *ret_log);
void log_close(struct log *l);

/* id: of the allocation, 0 where there is none. reason: who refused, NULL for success. */
void log_allocate(const struct log *l, const struct request *r, uint64_t id, uint32_t heap,
	VkResult result, const char *reason);
void log_free(const struct log *l, const struct memory *m);
void log_map(const struct log *l, uint32_t type, uint32_t heap);
void log_export(const struct log *l, uint64_t id, VkExternalMemoryHandleTypeFlags type, int fd);

#endif
