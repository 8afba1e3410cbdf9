/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_ON_DEVICE_H
#define TESTS_VULKAN_ON_DEVICE_H

/*
 * What the tests of this suite share: the device they run on (WEIGHTD_TEST_DEVICE, by default the
 * software driver), and short forms of what they all do. Every helper fails the test on an error.
 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/pipeline.h"
#include "vk/submit.h"

/* Ends the test with what was refused. */
static inline void on_device_check(int r, const struct err *e, const char *what)
{
	if (r)
		fail_msg("%s: %d %s", what, r, e->text);
}

static inline const char *on_device_select(void)
{
	const char *select = getenv("WEIGHTD_TEST_DEVICE");

	return select && *select ? select : "software";
}

static inline struct vk_device *on_device_new(void)
{
	struct vk_device *d = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_device_new(on_device_select(), &e, &d), &e, "device");
	return d;
}

/*
 * For main, before the cases: skips the program where there is no such device, and lets the driver
 * open the descriptors that it keeps for the life of the process.
 */
static inline void on_device_warm_up(void)
{
	struct vk_device *d = NULL;
	struct err e = ERR_NULL;

	int r = vk_device_new(on_device_select(), &e, &d);
	if (r) {
		fprintf(stderr, "%s\n", e.text);
		exit(r == -ENODEV ? CASE_SKIP : 1);
	}
	vk_device_free(d);
}

static inline struct vk_memory *on_device_memory(
	struct vk_device *d, enum vk_memory_role role, uint64_t n_bytes, bool is_exportable)
{
	struct vk_memory_params params = {
		.role = role, .n_bytes = n_bytes, .is_exportable = is_exportable, .name = "test"};
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_memory_new(d, &params, &e, &m), &e, "memory");
	return m;
}

static inline uint32_t *on_device_map(struct vk_memory *m)
{
	void *pointer = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_memory_map(m, &e, &pointer), &e, "map");
	return pointer;
}

static inline struct vk_slice on_device_whole(struct vk_memory *m)
{
	return (struct vk_slice){.memory = m, .n_bytes = vk_memory_get_bytes(m)};
}

static inline struct vk_command *on_device_command(struct vk_device *d, uint32_t n_stamps)
{
	struct vk_command *c = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_command_new(d, n_stamps, &e, &c), &e, "command");
	return c;
}

/* Ends the recording, submits it and waits until it is done. */
static inline void on_device_run(struct vk_device *d, struct vk_command *c)
{
	struct err e = ERR_NULL;
	uint64_t ticket = 0;

	on_device_check(vk_command_end(c, &e), &e, "end");
	on_device_check(vk_submit(d, &c, 1, &e, &ticket), &e, "submit");
	on_device_check(vk_submit_wait(d, ticket, UINT64_MAX), &e, "wait");
}

/* Copies all of m, of any role, into host memory that the caller frees. */
static inline uint32_t *on_device_read(struct vk_device *d, struct vk_memory *m)
{
	uint64_t n_bytes = vk_memory_get_bytes(m);
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, n_bytes, false);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice dst = on_device_whole(io), src = on_device_whole(m);
	uint32_t *data = malloc(n_bytes);

	assert_non_null(data);
	vk_command_begin(c);
	vk_command_copy(c, &dst, &src);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	memcpy(data, on_device_map(io), n_bytes);
	vk_command_free(c);
	vk_memory_free(io);
	return data;
}

#define ON_DEVICE_PIPELINE(d, spirv_words, push_bytes, ...)                      \
	on_device_pipeline(d, &(struct vk_pipeline_params){.name = #spirv_words, \
				      .spirv = spirv_words,                      \
				      .n_spirv_bytes = sizeof(spirv_words),      \
				      .n_push_bytes = push_bytes,                \
				      __VA_ARGS__})

static inline struct vk_pipeline *on_device_pipeline(
	struct vk_device *d, const struct vk_pipeline_params *params)
{
	struct vk_pipeline *p = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_pipeline_new(d, params, &e, &p), &e, "pipeline");
	return p;
}

#endif
