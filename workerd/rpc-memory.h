/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_MEMORY_H
#define WORKERD_RPC_MEMORY_H

/* The members of Status that tell of memory. */
#include "proto/workerd.pb-c.h"
#include "workerd/ledger.h"

struct message_status;

/* What the members point into. */
struct rpc_memory {
	Wk__Role roles[VK_MEMORY_N_ROLES];
	Wk__Role *role_list[VK_MEMORY_N_ROLES];
	Wk__RoleHeap role_heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	Wk__RoleHeap *role_heap_list[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	Wk__Heap heaps[VK_DEVICE_MAX_HEAPS];
	Wk__Heap *heap_list[VK_DEVICE_MAX_HEAPS];
	Wk__Slice slices[LEDGER_MAX_SLICES];
	Wk__Slice *slice_list[LEDGER_MAX_SLICES];
	Wk__Scratch scratch;
	Wk__Chunk chunk;
};

/* *ret_memory and s are to live as long as *status is used. Any thread. */
void rpc_memory_fill(
	const struct message_status *s, struct rpc_memory *ret_memory, Wk__Status *status);

#endif
