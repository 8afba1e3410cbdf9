/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that was taken over: takes a lease, imports the memory as any worker does and writes
 * into it. Says "wrote" and keeps lease and memory until its standard input ends.
 *
 *	rogue SOCKET MODEL TENSOR OFFSET [TENSOR OFFSET]...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "vk/submit.h"

/* Ends the program unless rc is 0. */
static void check(int rc, const struct err *e, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "rogue: %s: %d %s\n", what, rc, e->text);
	exit(1);
}

static struct vk_memory *import(struct vk_device *d, struct weights_client_alloc *a)
{
	const struct vk_share_params params = {.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->dedicated,
		.handle = VK_HANDLE_OPAQUE_FD};
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	check(vk_share_import(d, dup(a->fd), &params, VK_MEMORY_WEIGHTS, "rogue", &e, &m), &e,
		"import");
	return m;
}

/* Four bytes around the offset turned over, by the device. */
static void write_device(struct weights_client_alloc *a, uint64_t offset)
{
	const struct vk_memory_params io_params = {
		.role = VK_MEMORY_IO, .n_bytes = 256, .name = "rogue"};
	struct vk_device *d = NULL;
	struct vk_memory *io = NULL;
	struct vk_command *c = NULL;
	struct err e = ERR_NULL;
	uint64_t ticket;
	void *map;

	const char *select = getenv("WEIGHTD_TEST_DEVICE");
	check(vk_device_new(select ? select : "software", &e, &d), &e, "device");
	struct vk_memory *weights = import(d, a);
	check(vk_memory_new(d, &io_params, &e, &io), &e, "memory");
	check(vk_memory_map(io, &e, &map), &e, "map");
	check(vk_command_new(d, 0, &e, &c), &e, "command");
	const struct vk_slice there = {.memory = weights, .offset = offset & ~3ull, .n_bytes = 4};
	const struct vk_slice here = {.memory = io, .n_bytes = 4};
	for (int i = 0; i < 2; i++) {
		vk_command_begin(c);
		vk_command_acquire(c, weights);
		vk_command_copy(c, i ? &there : &here, i ? &here : &there);
		vk_command_host_barrier(c);
		vk_command_release(c, weights);
		check(vk_command_end(c, &e), &e, "end");
		check(vk_submit(d, &c, 1, &e, &ticket), &e, "submit");
		check(vk_submit_wait(d, ticket, UINT64_MAX), &e, "wait");
		*(uint32_t *)map = ~*(uint32_t *)map;
	}
	vk_command_free(c);
	vk_memory_free(io);
	vk_memory_free(weights);
	vk_device_free(d);
}

/* One byte, through a mapping. */
static void write_mapping(struct weights_client_alloc *a, uint64_t offset)
{
	struct err e = ERR_NULL;
	uint8_t *map = mmap(
		NULL, a->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, (off_t)a->file_offset);

	check(map == MAP_FAILED ? -1 : 0, &e, "mmap");
	map[offset] ^= 1;
	munmap(map, a->n_bytes);
}

int main(int argc, char **argv)
{
	struct weights_client *c = NULL;
	struct weights_client_acquired a;
	struct manifest *m = NULL;
	struct err e = ERR_NULL;

	if (argc < 5 || argc % 2 == 0)
		return 2;
	check(weights_client_new(argv[1], WEIGHTS_CLIENT_WORKER, &e, &c), &e, "connect");
	weights_client_set_handle_types(c, 1u << WEIGHTS_CLIENT_OPAQUE_FD |
						   1u << WEIGHTS_CLIENT_MEMFD |
						   1u << WEIGHTS_CLIENT_FILE);
	const struct weights_client_device *d = weights_client_get_device(c);
	check(weights_client_acquire(c, argv[2], d->uuid, d->driver_uuid, &e, &a), &e, "acquire");
	check(manifest_open(a.manifest_fd, &e, &m), &e, "manifest");
	for (int i = 3; i < argc; i += 2) {
		const struct manifest_tensor *t = manifest_find_tensor(m, argv[i]);
		check(t ? 0 : -1, &e, argv[i]);
		uint64_t offset = t->offset + strtoull(argv[i + 1], NULL, 0);
		if (a.allocs[t->alloc].handle_type == WEIGHTS_CLIENT_OPAQUE_FD)
			write_device(&a.allocs[t->alloc], offset);
		else
			write_mapping(&a.allocs[t->alloc], offset);
	}
	puts("wrote");
	fflush(stdout);
	while (getchar() != EOF)
		continue;
	manifest_free(m);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	return 0;
}
