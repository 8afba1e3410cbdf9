/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated device as the vk room sees it: heaps, budgets, limits, what is missing. */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/layer/layered.h"
#include "vk/device-internal.h"
#include "vk/memory-internal.h"
#include "vk/slice.h"

enum { MIB = 1 << 20 };
#define GIB ((uint64_t)1 << 30)

static int try_memory(struct vk_device *d, enum vk_memory_role role, uint64_t n_bytes,
	struct err *ret_err, struct vk_memory **ret_memory)
{
	struct vk_memory_params params = {.role = role, .n_bytes = n_bytes, .name = "test"};

	*ret_err = ERR_NULL;
	*ret_memory = NULL;
	return vk_memory_new(d, &params, ret_err, ret_memory);
}

static int try_device(struct err *ret_err)
{
	struct vk_device *d = NULL;

	*ret_err = ERR_NULL;
	int r = vk_device_new(on_device_select(), ret_err, &d);
	vk_device_free(d);
	return r;
}

static void test_transparent(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_WEIGHTS, MIB, true);

	(void)state;
	assert_int_equal(d->types.memoryTypeCount, 1);
	assert_true(d->info.has_export_fd && d->info.import_align);
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_heaps_shown(void **state)
{
	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	struct vk_device *d = on_device_new();
	const struct vk_device_heap *heaps = d->info.heaps;

	assert_int_equal(d->info.n_heaps, 3);
	assert_false(d->info.has_memory_budget);
	assert_int_equal(heaps[0].n_bytes, 8 * GIB);
	assert_int_equal(heaps[1].n_bytes, 256 * MIB);
	assert_int_equal(heaps[2].n_bytes, 16 * GIB);
	assert_true(heaps[0].device_local && heaps[1].device_local && !heaps[2].device_local);
	assert_int_equal(d->types.memoryTypeCount, 4);
	assert_int_equal(d->types.memoryTypes[LAYERED_VRAM].propertyFlags,
		VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
	assert_int_equal(d->types.memoryTypes[LAYERED_CACHED].heapIndex, 2);
	vk_device_free(d);
}

/* Each role where it belongs, the big ones never in the BAR, and all of it works. */
static void test_roles(void **state)
{
	static const uint32_t expected[VK_MEMORY_N_ROLES] = {
		[VK_MEMORY_WEIGHTS] = LAYERED_VRAM,
		[VK_MEMORY_KV] = LAYERED_VRAM,
		[VK_MEMORY_SCRATCH] = LAYERED_VRAM,
		[VK_MEMORY_STAGING] = LAYERED_HOST,
		[VK_MEMORY_IO] = LAYERED_CACHED,
	};

	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	struct vk_device *d = on_device_new();

	for (int role = 0; role < VK_MEMORY_N_ROLES; role++) {
		struct vk_memory *m = on_device_memory(d, role, MIB, role == VK_MEMORY_WEIGHTS);
		struct vk_slice whole = on_device_whole(m);
		struct vk_command *c = on_device_command(d, 0);

		assert_int_equal(vk_memory_get_type_index(m), expected[role]);
		vk_command_begin(c);
		vk_command_fill(c, &whole, 0x1234567);
		on_device_run(d, c);
		uint32_t *data = on_device_read(d, m);
		assert_int_equal(data[MIB / 4 - 1], 0x1234567);
		free(data);
		vk_command_free(c);
		vk_memory_free(m);
	}
	vk_device_free(d);
}

/* Scratch beyond the BAR: in VRAM, for there is no other type that it could have. */
static void test_scratch_outgrows_bar(void **state)
{
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];

	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	struct vk_device *d = on_device_new();
	struct vk_memory *small = on_device_memory(d, VK_MEMORY_SCRATCH, 200 * MIB, false);
	struct vk_memory *large = on_device_memory(d, VK_MEMORY_SCRATCH, 300 * MIB, false);
	struct vk_memory *kv = on_device_memory(d, VK_MEMORY_KV, 300 * MIB, false);
	struct vk_slice_place places[3];

	assert_int_equal(vk_slice_get_places(d, places, 3), 2);
	assert_int_equal(places[0].n, 2);
	assert_int_equal(places[0].n_total_bytes, (uint64_t)500 * MIB);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(places[i].type, LAYERED_VRAM);
		assert_int_equal(places[i].flags, VK_SLICE_DEVICE_LOCAL);
		assert_false(places[i].is_spilled);
	}
	vk_memory_get_heap_counters(d, heaps);
	assert_int_equal(heaps[VK_MEMORY_SCRATCH][0].placed_bytes, (uint64_t)500 * MIB);
	for (int heap = 1; heap < 3; heap++)
		assert_int_equal(heaps[VK_MEMORY_SCRATCH][heap].peak_bytes, 0);
	vk_memory_free(small);
	vk_memory_free(large);
	vk_memory_free(kv);
	vk_device_free(d);
}

/* The BAR first, where a careless search would take it. */
static void test_bar_first(void **state)
{
	(void)state;
	layered_set("HEAPS", "device+host:256M;host:1G;device:2G");
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, MIB, false);

	assert_int_equal(vk_memory_get_heap_index(m), 2);
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_heap_is_enforced(void **state)
{
	struct vk_memory_counter counters[VK_MEMORY_N_ROLES];
	struct vk_memory *a, *b, *c;
	struct err e;

	(void)state;
	layered_set("HEAPS", "device:8M;host:16M");
	struct vk_device *d = on_device_new();

	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 5 * MIB, &e, &a), 0);
	assert_int_equal(vk_memory_get_heap_index(a), 0);
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 5 * MIB, &e, &b), -ENOMEM);
	assert_non_null(strstr(e.text, "VK_ERROR_OUT_OF_DEVICE_MEMORY"));
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 5 * MIB, &e, &b), 0);
	assert_int_equal(vk_memory_get_heap_index(b), 1);
	vk_memory_get_counters(d, counters);
	assert_int_equal(counters[VK_MEMORY_SCRATCH].placed_bytes, 5 * MIB);
	assert_int_equal(counters[VK_MEMORY_SCRATCH].spilled_bytes, 5 * MIB);
	/* What is freed is there again, to the byte. */
	vk_memory_free(a);
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 8 * MIB, &e, &a), 0);
	assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 4096, &e, &c), -ENOMEM);
	vk_memory_free(a);
	vk_memory_free(b);
	vk_device_free(d);
}

static void test_budget(void **state)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t last;

	(void)state;
	layered_set("HEAPS", "device:1G;device+host:256M;host:2G");
	layered_set("BUDGET", "900M-100M;64M");
	struct vk_device *d = on_device_new();

	assert_true(d->info.has_memory_budget);
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, 3 * MIB, false);
	vk_device_query_heaps(d, heaps);
	last = heaps[0].budget_bytes;
	assert_true(last < (uint64_t)900 * MIB);
	assert_int_equal(heaps[0].usage_bytes, 3 * MIB);
	assert_int_equal(heaps[1].budget_bytes, 64 * MIB);
	assert_int_equal(heaps[1].usage_bytes, 0);
	assert_int_equal(heaps[2].budget_bytes, 2 * GIB);
	vk_memory_free(m);
	for (int i = 0; i < 12; i++) {
		vk_device_query_heaps(d, heaps);
		assert_int_equal(heaps[0].budget_bytes,
			last > (uint64_t)100 * MIB ? last - (uint64_t)100 * MIB : 0);
		last = heaps[0].budget_bytes;
	}
	assert_int_equal(last, 0);
	assert_int_equal(heaps[0].usage_bytes, 0);
	vk_device_free(d);
}

/* What spills must fit into the budget of where it goes. */
static void test_budget_stops_spill(void **state)
{
	struct vk_memory *m;
	struct err e;

	(void)state;
	layered_set("HEAPS", "device:4M;host:64M");
	layered_set("BUDGET", "full;6M");
	struct vk_device *d = on_device_new();

	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 8 * MIB, &e, &m), -ENOMEM);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, 5 * MIB, &e, &m), 0);
	assert_int_equal(vk_memory_get_heap_index(m), 1);
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_hidden(void **state)
{
	static const char *const required[] = {"VK_KHR_external_memory_fd", "shaderFloat16",
		"bufferDeviceAddress", "synchronization2"};
	struct err e;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(required); i++) {
		layered_set("HIDE", required[i]);
		assert_int_equal(try_device(&e), -ENOTSUP);
		assert_non_null(strstr(e.text, required[i]));
	}
	layered_set("HIDE", "VK_EXT_external_memory_host,subgroupSizeControl,shaderInt64");
	struct vk_device *d = on_device_new();
	assert_int_equal(d->info.import_align, 0);
	assert_false(d->can_require_size);
	vk_device_free(d);
	/* Simulated and hidden: hidden. */
	layered_set("HIDE", "VK_EXT_memory_budget");
	layered_set("BUDGET", "full");
	d = on_device_new();
	assert_false(d->info.has_memory_budget);
	vk_device_free(d);
}

static void test_limits(void **state)
{
	struct vk_memory *m;
	struct err e;

	(void)state;
	layered_set("MAX_ALLOC", "1M");
	struct vk_device *d = on_device_new();
	assert_int_equal(d->info.max_alloc_bytes, MIB);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, MIB + 1, &e, &m), -EINVAL);
	assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, MIB, &e, &m), 0);
	vk_memory_free(m);
	/* Without the room's own check, and validation 1.4's above, the layer holds the limit. */
	d->info.max_alloc_bytes = GIB;
	if (!strcmp(getenv("VK_INSTANCE_LAYERS"), LAYERED_NAME))
		assert_int_equal(try_memory(d, VK_MEMORY_SCRATCH, MIB + 1, &e, &m), -ENOMEM);
	vk_device_free(d);

	layered_set("MAX_BUFFER", "64K");
	d = on_device_new();
	assert_int_equal(d->info.max_alloc_bytes, 64 << 10);
	vk_device_free(d);
}

static void test_fail_at(void **state)
{
	struct vk_memory *m;
	struct err e;

	(void)state;
	for (int onward = 0; onward < 2; onward++) {
		layered_set("FAIL_ALLOC", onward ? "3+" : "3");
		struct vk_device *d = on_device_new();

		for (int n = 1; n <= 5; n++) {
			bool fails = n == 3 || (onward && n > 3);

			assert_int_equal(try_memory(d, VK_MEMORY_WEIGHTS, 4096, &e, &m),
				fails ? -ENOMEM : 0);
			vk_memory_free(m);
		}
		vk_device_free(d);
	}
}

static void test_bad_variables(void **state)
{
	static const char *const rows[][2] = {
		{"REFUSE", "disk"},
		{"REFUSE", "file,"},
		{"REFUSE", "file-rx"},
		{"REFUSE", "-ro"},
		{"REFUSE_FROM", "2"},
		{"POISON", "yes"},
		{"FAIL_ALLOC", "0"},
		{"FAIL_ALLOC", "2-"},
		{"HEAPS", "device"},
		{"HEAPS", "device:0"},
		{"HEAPS", "vram:8G"},
		{"HEAPS", "device:8G;"},
		{"HEAPS", "device:99999999999G"},
		{"BUDGET", "1M-"},
		{"BUDGET", "half"},
		{"HIDE", "shaderFloat61"},
		{"HIDE", "VK_EXT_a,"},
		{"MAX_ALLOC", "0"},
		{"MAX_ALLOC", "-1"},
		{"MAX_BUFFER", "1T"},
		{"DMA_BUF", "1"},
		{"QUEUES", "transfer"},
		{"QUEUES", "transfer:0"},
		{"LOG", "/nonexistent/log"},
	};
	struct err e;
	char *layers = strdup(getenv("VK_INSTANCE_LAYERS"));

	(void)state;
	/* Validation leaks megabytes where the instance below it fails: it is to come second. */
	assert_int_equal(setenv("VK_INSTANCE_LAYERS", LAYERED_NAME, 1), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		layered_clear();
		layered_set(rows[i][0], rows[i][1]);
		if (try_device(&e) >= 0)
			fail_msg("WEIGHTD_LAYER_%s=%s was taken", rows[i][0], rows[i][1]);
	}
	layered_clear();
	assert_int_equal(try_device(&e), 0);
	assert_int_equal(setenv("VK_INSTANCE_LAYERS", layers, 1), 0);
	free(layers);
}

/* The child of test_map_is_loud: maps what no GPU maps. */
static int map_scratch(void)
{
	struct vk_device *d = NULL;
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;
	void *pointer;

	/* The layer's own word, not validation's. */
	setenv("WEIGHTD_VALIDATION", "0", 1);
	setenv("VK_INSTANCE_LAYERS", LAYERED_NAME, 1);
	if (vk_device_new(on_device_select(), &e, &d) < 0 ||
		try_memory(d, VK_MEMORY_SCRATCH, 4096, &e, &m) < 0)
		return 1;
	(void)!vkMapMemory(d->device, m->memory, 0, 4096, 0, &pointer);
	return 0;
}

static void test_map_is_loud(void **state)
{
	char text[512] = "";
	int pipe_fds[2], status;

	(void)state;
	layered_set("HEAPS", LAYERED_GPU);
	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(pipe_fds[1], STDERR_FILENO);
		execl("/proc/self/exe", "test-layer", "map-scratch", (char *)NULL);
		_exit(1);
	}
	close(pipe_fds[1]);
	assert_true(read(pipe_fds[0], text, sizeof(text) - 1) > 0);
	close(pipe_fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "vkMapMemory"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		LAYERED_CASE(test_transparent),
		LAYERED_CASE(test_heaps_shown),
		LAYERED_CASE(test_roles),
		LAYERED_CASE(test_scratch_outgrows_bar),
		LAYERED_CASE(test_bar_first),
		LAYERED_CASE(test_heap_is_enforced),
		LAYERED_CASE(test_budget),
		LAYERED_CASE(test_budget_stops_spill),
		LAYERED_CASE(test_hidden),
		LAYERED_CASE(test_limits),
		LAYERED_CASE(test_fail_at),
		LAYERED_CASE(test_bad_variables),
		LAYERED_CASE(test_map_is_loud),
	};

	if (argc == 2 && !strcmp(argv[1], "map-scratch"))
		return map_scratch();
	layered_require();
	layered_clear();
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
