/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_CHAIN_H
#define TESTS_LAYER_CHAIN_H

/* pNext chains of what an application gives: found, named, and copied to be changed. */
#include <vulkan/vulkan_core.h>

/* The structure of this type in a chain, or NULL. */
const void *chain_find(const void *next, VkStructureType type);

/* The same of a chain that is to be filled. */
void *chain_find_out(void *next, VkStructureType type);

/* "VkExportMemoryAllocateInfo"; NULL for a type that is not known here. */
const char *chain_name(VkStructureType type);

/*
 * A copy whose members may be changed, each of them to any type named here. Ends the process at a
 * type whose size is not known: what the application asked for must not get lost. NULL for an empty
 * chain.
 */
void *chain_copy(const void *next);
void *chain_free(void *copy);

#endif
