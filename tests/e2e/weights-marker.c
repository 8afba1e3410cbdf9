/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights-marker SOCKET MODEL put TEXT | get | acquire
 *
 * put and get write and print 8 bytes of an allocation that belong to no tensor, through an import
 * of it as a worker makes it. acquire connects until there is a weightd, takes a lease, and prints
 * when it had it: seconds of CLOCK_MONOTONIC.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/weights.h"

enum { MARK_BYTES = 8, MARK_ALIGN = 256, MARK_TRIES = 3000 };

static struct err e;

static void check(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "weights-marker: %s: %d %s\n", what, rc, e.text);
	exit(1);
}

static struct vk_device *open_device(void)
{
	const char *select = getenv("WEIGHTD_TEST_DEVICE");
	struct vk_device *d = NULL;

	check(vk_device_new(select ? select : "software", &e, &d), "device");
	return d;
}

/* Behind which tensor there is room up to where the next may begin; none is fatal. */
static const struct manifest_tensor *find_gap(const struct manifest *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		uint64_t end = t->offset + t->n_bytes;
		uint64_t n_gap = (MARK_ALIGN - end % MARK_ALIGN) % MARK_ALIGN;

		if (n_gap >= MARK_BYTES && end + MARK_BYTES <= m->allocs[t->alloc].n_bytes)
			return t;
	}
	fprintf(stderr, "weights-marker: no tensor ends before its last 256 bytes do\n");
	exit(77);
}

static void copy(struct vk_device *d, const struct vk_slice *to, const struct vk_slice *from)
{
	struct vk_command *c = NULL;
	uint64_t ticket;

	check(vk_command_new(d, 0, &e, &c), "command");
	vk_command_begin(c);
	vk_command_copy(c, to, from);
	check(vk_command_end(c, &e), "command");
	check(vk_submit(d, &c, 1, &e, &ticket), "submit");
	check(vk_submit_wait(d, ticket, UINT64_MAX), "wait");
	vk_command_free(c);
}

static void mark(struct weights_client *client, const char *model, const char *text)
{
	const struct vk_memory_params io = {
		.role = VK_MEMORY_IO, .n_bytes = MARK_ALIGN, .name = "mark"};
	struct vk_device *d = open_device();
	struct weights *w = NULL;
	struct vk_memory *host = NULL;
	const struct weights_attach_params attach = {
		.client = client, .device = d, .model = model, .n_threads = 1};
	struct weights_refusal refusal;
	void *bytes;

	weights_client_set_handle_types(client, UINT32_C(0x6));
	check(weights_attach(&attach, &e, &refusal, &w), "attach");
	const struct manifest_tensor *t = find_gap(w->manifest);
	const struct weights_alloc *a = &w->allocs[t->alloc];
	check(vk_memory_new(d, &io, &e, &host), "memory");
	check(vk_memory_map(host, &e, &bytes), "map");
	const struct vk_slice gap = {.memory = a->memory,
		.offset = a->base + t->offset + t->n_bytes,
		.n_bytes = MARK_BYTES};
	const struct vk_slice mine = {.memory = host, .n_bytes = MARK_BYTES};
	memset(bytes, 0, MARK_BYTES);
	if (text) {
		memcpy(bytes, text, strnlen(text, MARK_BYTES));
		copy(d, &gap, &mine);
	} else {
		copy(d, &mine, &gap);
		printf("%.*s\n", MARK_BYTES, (const char *)bytes);
	}
	vk_memory_free(host);
	weights_free(w);
	vk_device_free(d);
}

/* The device first: its start is not what is measured. */
static void time_acquire(const char *socket, const char *model)
{
	const struct timespec pause = {.tv_nsec = 2 * 1000 * 1000};
	struct vk_device *d = open_device();
	const struct vk_device_info *info = vk_device_get_info(d);
	struct weights_client_acquired a;
	struct weights_client *c = NULL;
	struct timespec now;
	int rc = -1;

	printf("open\n");
	fflush(stdout);
	if (getchar() == EOF)
		exit(1);
	for (int i = 0; i < MARK_TRIES && rc; i++) {
		rc = weights_client_new(socket, WEIGHTS_CLIENT_WORKER, &e, &c);
		if (rc)
			nanosleep(&pause, NULL);
	}
	check(rc, "connect");
	weights_client_set_handle_types(c, UINT32_C(0x6));
	check(weights_client_acquire(c, model, info->uuid, info->driver_uuid, &e, &a), "acquire");
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%" PRIu64 " %.6f\n", a.generation, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	vk_device_free(d);
}

int main(int argc, char **argv)
{
	struct weights_client *c = NULL;

	if (argc < 4)
		return 2;
	if (!strcmp(argv[3], "acquire")) {
		time_acquire(argv[1], argv[2]);
		return 0;
	}
	check(weights_client_new(argv[1], WEIGHTS_CLIENT_WORKER, &e, &c), "connect");
	mark(c, argv[2], argc > 4 ? argv[4] : NULL);
	weights_client_free(c);
	return 0;
}
