/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generation that cools and is heated: what is staged, what it costs, and that the bytes are the
 * same; a load that says what is missing; and a loop thread that waits for no driver.
 */
#include "tests/vulkan/on-device.h"

#include <poll.h>
#include <time.h>
#include <vulkan/vulkan_core.h>

#include "proto/manifest.h"
#include "tests/vulkan/on-loader.h"
#include "vk/probe.h"
#include "weightd/check.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/policy.h"
#include "weightd/source.h"
#include "weightd/sum.h"

enum { WAIT_MS = 50000, DRIVER_MS = 400, WINDOW = 1 << 20 };

VkResult __real_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
void __real_vkFreeMemory(
	VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator);
void __wrap_vkFreeMemory(
	VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator);
void __real_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);
void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret);

static volatile bool is_slow;           /* the driver */
static volatile unsigned n_slow;        /* calls that were */
static volatile unsigned n_imports;     /* of host pages */
static volatile unsigned refuse_import; /* this one of them, from 1; 0: none */

static void wait_for_driver(void)
{
	if (!is_slow)
		return;
	n_slow++;
	usleep(DRIVER_MS * 1000);
}

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	wait_for_driver();
	for (const VkBaseInStructure *s = info->pNext; s; s = s->pNext)
		if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT &&
			++n_imports == refuse_import)
			return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	return __real_vkAllocateMemory(device, info, allocator, ret);
}

void __wrap_vkFreeMemory(
	VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator)
{
	wait_for_driver();
	__real_vkFreeMemory(device, memory, allocator);
}

void __wrap_vkGetPhysicalDeviceMemoryProperties2(
	VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 *ret)
{
	wait_for_driver();
	__real_vkGetPhysicalDeviceMemoryProperties2(device, ret);
}

static struct policy policy; /* of the loader; set before start */
static struct source_account account;

static struct loader *start(bool imports_memfd)
{
	static struct sum_key key;
	const struct loader_params params = {.device = on_device_select(),
		.key = &key,
		.policy = &policy,
		.account = &account,
		.window_bytes = WINDOW};
	struct vk_probe probe = {0};
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	n_imports = refuse_import = 0;
	sum_key_init(&key, (const uint8_t[SUM_SECRET_BYTES]){1});
	on_device_check(loader_new(&params, &e, &l), &e, "loader");
	probe.kinds[VK_PROBE_MEMFD].is_ok = imports_memfd && loader_get_info(l)->import_align > 0;
	loader_set_probe(l, &probe);
	return l;
}

static struct source *open_source(void)
{
	struct source *source = NULL;
	struct err e = ERR_NULL;
	int fd = on_loader_open_model();

	on_device_check(source_new(fd, false, &account, &e, &source), &e, "source");
	close(fd);
	return source;
}

static struct loader_result run(
	struct loader *l, struct source *source, enum load_goal goal, uint64_t may_free_bytes)
{
	const struct loader_request request = {.goal = goal,
		.generation = 1,
		.source = source,
		.is_foreign = goal == LOAD_COOL,
		.room_bytes = UINT64_MAX,
		.may_free_bytes = may_free_bytes};
	struct loader_result r;
	struct err e = ERR_NULL;

	on_device_check(loader_ask(l, &request, &e), &e, "ask");
	for (;;) {
		struct pollfd p = {.fd = loader_get_fd(l), .events = POLLIN};
		while (loader_take_result(l, &r))
			if (r.kind != LOADER_PROGRESS)
				return r;
		assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	}
}

static struct export *run_ready(struct loader *l, struct source *source, enum load_goal goal)
{
	struct loader_result r = run(l, source, goal, 0);

	if (r.kind != LOADER_READY)
		fail_msg("load: %d %s", r.code, r.err.text);
	return r.export;
}

static uint64_t count_weights(struct loader *l)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights[VK_DEVICE_MAX_HEAPS];
	uint64_t n = 0;

	loader_get_heaps(l, heaps, weights);
	for (uint32_t i = 0; i < loader_get_info(l)->n_heaps; i++)
		n += weights[i];
	return n;
}

static void wait_weights(struct loader *l, uint64_t n_bytes)
{
	for (int i = 0; i < 1000 && count_weights(l) != n_bytes; i++)
		usleep(5000);
	assert_int_equal(count_weights(l), n_bytes);
}

/* By imports where there are any, then through the ring: the same bytes, and one copy. */
static void test_cool_and_heat(void **state)
{
	(void)state;
	for (unsigned imports = 0; imports < 2; imports++) {
		struct loader *l = start(imports);
		struct source *source = open_source();
		struct export *e = run_ready(l, source, LOAD_NEW);
		uint64_t n_bytes = e->device_bytes;

		assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
		struct loader_result r = run(l, source, LOAD_COOL, 0);
		assert_int_equal(r.kind, LOADER_COOL);
		assert_null(r.export);
		uint64_t n_staged = atomic_load(&account.n_staged_bytes);
		assert_true(n_staged >= n_bytes - (64 << 10) && n_staged <= n_bytes + (2 << 20));
		/* Again: everything is there, within what there is for host memory. */
		policy.host_budget = n_staged;
		assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
		assert_int_equal(atomic_load(&account.n_staged_bytes), n_staged);
		policy = (struct policy){0};
		loader_release(l, e);
		wait_weights(l, 0);

		unsigned n_before = n_imports;
		e = run_ready(l, source, LOAD_HEAT);
		bool has_imports = imports && loader_get_info(l)->import_align > 0;
		assert_int_equal(n_imports > n_before + 3, has_imports);
		assert_int_equal(e->device_bytes, n_bytes);
		on_loader_check_contents(e);
		assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
		assert_int_equal(source_get_memfd(source), -1);
		loader_release(l, e);
		source_unref(source);
		loader_free(l);
	}
}

/* A generation in place of one whose file is no good: of its memfd, whose bytes have to be right.
 */
static void test_recover(void **state)
{
	uint8_t identity[IDENTITY_BYTES], again[IDENTITY_BYTES];
	struct loader *l = start(true);
	struct source *source = open_source(), *recovered = NULL;
	struct err err = ERR_NULL;

	(void)state;
	struct export *e = run_ready(l, source, LOAD_NEW);
	assert_true(check_get_identity(e->check, identity));
	assert_int_equal(source_recover(source, &err, &recovered), -ENODATA);
	assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
	on_device_check(source_recover(source, &err, &recovered), &err, "recover");
	loader_release(l, e);
	source_unref(source);
	e = run_ready(l, recovered, LOAD_NEW);
	source_end_recovery(recovered);
	on_loader_check_contents(e);
	assert_true(check_get_identity(e->check, again));
	assert_memory_equal(identity, again, sizeof(identity));
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
	/* Of that nothing is left to load from. */
	assert_int_equal(source_get_fd(recovered), -1);
	assert_int_equal(run(l, recovered, LOAD_COOL, 0).code, -EBADF);
	loader_release(l, e);
	source_unref(recovered);

	/* Its bytes are judged by the sums that were known, and only where all were. */
	source = open_source();
	assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
	assert_int_equal(source_recover(source, &err, &recovered), -ENODATA);
	source_unref(source);
	source = open_source();
	e = run_ready(l, source, LOAD_NEW);
	assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
	assert_int_equal(pwrite(source_get_memfd(source), "damage", 6, 4000), 6);
	on_device_check(source_recover(source, &err, &recovered), &err, "recover");
	struct loader_result r = run(l, recovered, LOAD_NEW, 0);
	assert_int_equal(r.kind, LOADER_FAILED);
	assert_int_equal(r.code, -EBADMSG);
	assert_non_null(strstr(r.err.text, "those that were loaded before"));
	loader_release(l, e);
	source_unref(source);
	source_unref(recovered);
	loader_free(l);
}

/* Heated into less: what is staged anyway stays where it is. */
static void test_heat_into_less(void **state)
{
	struct loader *l = start(true);
	struct source *source = open_source();

	(void)state;
	assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
	policy.vram_budget = 3 << 20;
	struct export *e = run_ready(l, source, LOAD_HEAT);
	assert_true(e->device_bytes > 0 && e->device_bytes <= policy.vram_budget);
	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] > 0 ||
		    loader_get_info(l)->import_align == 0);
	on_loader_check_contents(e);
	loader_release(l, e);
	source_unref(source);
	loader_free(l);
	policy = (struct policy){0};
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
}

/* Not a part of it: what is not all there is nothing to heat from. */
static void test_no_room_to_cool(void **state)
{
	struct loader *l = start(true);
	struct source *source = open_source();

	(void)state;
	policy.host_budget = 1 << 20;
	struct loader_result r = run(l, source, LOAD_COOL, 0);
	assert_int_equal(r.kind, LOADER_FAILED);
	assert_int_equal(r.code, -ENOSPC);
	assert_non_null(strstr(r.err.text, "host memory has no room"));
	assert_int_equal(atomic_load(&account.n_staged_bytes), 0);
	policy = (struct policy){0};
	/* From the file then. */
	struct export *e = run_ready(l, source, LOAD_HEAT);
	on_loader_check_contents(e);
	loader_release(l, e);
	source_unref(source);
	loader_free(l);
}

/* A refusal costs the device; the next one is not tried. */
static void test_import_refused(void **state)
{
	struct loader *l = start(true);
	struct source *source = open_source();

	(void)state;
	assert_int_equal(run(l, source, LOAD_COOL, 0).kind, LOADER_COOL);
	if (loader_get_info(l)->import_align > 0) {
		refuse_import = n_imports + 2;
		struct loader_result r = run(l, source, LOAD_HEAT, 0);
		assert_int_equal(r.kind, LOADER_LOST);
		assert_int_equal(n_imports, refuse_import);
	}
	unsigned n_before = n_imports;
	struct export *e = run_ready(l, source, LOAD_HEAT);
	assert_int_equal(n_imports, n_before);
	on_loader_check_contents(e);
	loader_release(l, e);
	source_unref(source);
	loader_free(l);
}

static void test_short(void **state)
{
	struct loader *l;
	struct source *source = open_source();

	(void)state;
	policy.vram_budget = 3 << 20;
	l = start(true);
	/* Nobody would help: the policy decides. */
	struct loader_result r = run(l, source, LOAD_NEW, 1);
	assert_int_equal(r.kind, LOADER_READY);
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < PLACEMENT_N; i++)
		n_bytes += r.export->n_placed_bytes[i];
	loader_release(l, r.export);
	r = run(l, source, LOAD_NEW, UINT64_MAX);
	assert_int_equal(r.kind, LOADER_SHORT);
	assert_null(r.export);
	/* All of it is to be on the device, and pads are small. */
	assert_true(r.short_bytes >= n_bytes - policy.vram_budget);
	assert_true(r.short_bytes < n_bytes - policy.vram_budget + (64 << 10));
	/* With exactly that much more there is room. */
	uint64_t n_short = r.short_bytes;
	policy.vram_budget += n_short;
	r = run(l, source, LOAD_NEW, UINT64_MAX);
	assert_int_equal(r.kind, LOADER_READY);
	assert_int_equal(r.export->device_bytes, r.export->weights_bytes);
	loader_release(l, r.export);
	source_unref(source);
	loader_free(l);
	policy = (struct policy){0};
}

/* What was released before is free, whoever asked for heaps last. */
static void test_released_is_free(void **state)
{
	struct loader *l = start(false);
	struct source *source = open_source();
	struct export *e = run_ready(l, source, LOAD_NEW);

	(void)state;
	policy.vram_budget = e->device_bytes;
	for (int i = 0; i < 10; i++) {
		count_weights(l);
		usleep(20000); /* the heaps are asked for, and a job is next */
		loader_release(l, e);
		struct loader_result r = run(l, source, LOAD_NEW, UINT64_MAX);
		assert_int_equal(r.kind, LOADER_READY);
		e = r.export;
	}
	loader_release(l, e);
	source_unref(source);
	loader_free(l);
	policy = (struct policy){0};
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What the loop thread calls comes back at once, while each call of the driver takes long. */
static void test_nobody_waits_for_the_driver(void **state)
{
	struct loader *l = start(false);
	struct source *source = open_source();
	struct export *e = run_ready(l, source, LOAD_NEW);
	struct err err = ERR_NULL;
	struct loader_result r;
	uint64_t longest = 0, start_ms;

	(void)state;
	is_slow = true;
	loader_release(l, e);
	on_device_check(loader_load(l, 2, source, false, &err), &err, "load");
	for (bool is_over = false; !is_over;) {
		start_ms = now_ms();
		count_weights(l);
		is_over = loader_take_result(l, &r) && r.kind != LOADER_PROGRESS;
		if (now_ms() - start_ms > longest)
			longest = now_ms() - start_ms;
		usleep(500);
	}
	is_slow = false;
	assert_true(n_slow >= 4);
	print_message("# %u calls of the driver of %d ms each; longest wait of the loop %llu ms\n",
		n_slow, DRIVER_MS, (unsigned long long)longest);
	assert_true(longest < DRIVER_MS / 2);
	assert_int_equal(r.kind, LOADER_READY);
	loader_release(l, r.export);
	source_unref(source);
	loader_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_cool_and_heat),
		CASE(test_recover),
		CASE(test_heat_into_less),
		CASE(test_no_room_to_cool),
		CASE(test_import_refused),
		CASE(test_short),
		CASE(test_released_is_free),
		CASE(test_nobody_waits_for_the_driver),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
