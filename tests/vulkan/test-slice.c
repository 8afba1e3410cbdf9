/* SPDX-License-Identifier: Apache-2.0 */
/* Named parts of memories: what is found, what has a host pointer, and where they live. */
#include "tests/vulkan/on-device.h"

#include "vk/slice.h"

enum { N_BYTES = 65536 };

static const struct vk_slice_name names[] = {
	{.name = "qkv", .offset = 0, .n_bytes = 4096},
	{.name = "hidden", .offset = 1024, .n_bytes = 1024},
	{.name = "turns", .offset = N_BYTES - 256, .n_bytes = 256},
};

static struct vk_memory *make(struct vk_device *d, enum vk_memory_role role)
{
	struct vk_memory_params params = {.role = role, .n_bytes = N_BYTES, .name = "pool"};
	struct vk_memory *m = NULL;
	struct err e = ERR_NULL;

	on_device_check(vk_memory_new(d, &params, &e, &m), &e, "memory");
	on_device_check(vk_slice_set_names(m, names, ARRAY_SIZE(names), &e), &e, "names");
	return m;
}

static void test_names_refused(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, N_BYTES, false);
	const struct vk_slice_name bad[] = {
		{.name = "empty", .offset = 0, .n_bytes = 0},
		{.name = "outside", .offset = N_BYTES, .n_bytes = 1},
		{.name = "too long", .offset = N_BYTES - 256, .n_bytes = 257},
		{.name = "wraps", .offset = UINT64_MAX, .n_bytes = 2},
	};
	struct vk_slice_place place;
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(vk_slice_set_names(m, &bad[i], 1, &e), -EINVAL);
		assert_non_null(strstr(e.text, bad[i].name));
	}
	/* What has no names is one part with its own. */
	assert_int_equal(vk_slice_get_places(d, &place, 1), 1);
	assert_string_equal(place.name, "test");
	assert_int_equal(place.n_bytes, N_BYTES);
	on_device_check(vk_slice_set_names(m, names, 1, &e), &e, "names");
	assert_int_equal(vk_slice_set_names(m, names, 1, &e), -EINVAL);
	vk_memory_free(m);
	vk_device_free(d);
}

/* Of scratch none has a pointer, and the refusal says which it was; of io each has. */
static void test_map(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *scratch = make(d, VK_MEMORY_SCRATCH), *io = make(d, VK_MEMORY_IO);
	uint8_t *base = (uint8_t *)on_device_map(io);

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
		struct vk_slice slice = {0};
		struct err e = ERR_NULL;
		void *pointer = d;
		char expected[256];

		on_device_check(vk_slice_find(scratch, names[i].name, &e, &slice), &e, "find");
		assert_int_equal(slice.offset, names[i].offset);
		assert_int_equal(slice.n_bytes, names[i].n_bytes);
		assert_int_equal(vk_slice_map(&slice, &e, &pointer), -EPERM);
		assert_ptr_equal(pointer, d);
		snprintf(expected, sizeof(expected), "slice %s: memory pool: scratch memory has no",
			names[i].name);
		assert_memory_equal(e.text, expected, strlen(expected));
		on_device_check(vk_slice_find(io, names[i].name, &e, &slice), &e, "find");
		on_device_check(vk_slice_map(&slice, &e, &pointer), &e, "map");
		assert_ptr_equal(pointer, base + names[i].offset);
	}
	vk_memory_free(scratch);
	vk_memory_free(io);
	vk_device_free(d);
}

/* By its own name, by that of what it is a part of, else by where it is. */
static void test_map_names_what_was_asked(void **state)
{
	static const struct {
		uint64_t offset, n_bytes;
		const char *expected;
	} rows[] = {
		{1024, 1024, "slice hidden: "}, {1028, 4, "slice qkv: "}, /* of both; the first */
		{4096, 16, "slice of 16 bytes at 4096: "},
		{4000, 1000, "slice of 1000 bytes at 4000: "}, /* of none alone */
	};
	struct vk_device *d = on_device_new();
	struct vk_memory *m = make(d, VK_MEMORY_SCRATCH);
	struct vk_slice slice = {.memory = m};
	void *pointer = NULL;
	struct err e = ERR_NULL;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		slice.offset = rows[i].offset;
		slice.n_bytes = rows[i].n_bytes;
		assert_int_equal(vk_slice_map(&slice, &e, &pointer), -EPERM);
		assert_memory_equal(e.text, rows[i].expected, strlen(rows[i].expected));
	}
	slice = (struct vk_slice){.memory = m, .offset = N_BYTES, .n_bytes = 1};
	assert_int_equal(vk_slice_map(&slice, &e, &pointer), -EINVAL);
	assert_int_equal(vk_slice_find(m, "nosuch", &e, &slice), -ENOENT);
	assert_non_null(strstr(e.text, "memory pool: no slice nosuch"));
	vk_memory_free(m);
	vk_device_free(d);
}

static void test_places(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_slice_place places[8];
	struct vk_memory *a = make(d, VK_MEMORY_SCRATCH), *b = make(d, VK_MEMORY_SCRATCH);
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, 4096, false);

	(void)state;
	/* Parts that lie alike are one place; by age. */
	assert_int_equal(vk_slice_get_places(d, places, ARRAY_SIZE(places)), 4);
	for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
		assert_string_equal(places[i].name, names[i].name);
		assert_int_equal(places[i].role, VK_MEMORY_SCRATCH);
		assert_int_equal(places[i].n, 2);
		assert_int_equal(places[i].n_bytes, names[i].n_bytes);
		assert_int_equal(places[i].n_total_bytes, 2 * names[i].n_bytes);
		assert_int_equal(places[i].heap, vk_memory_get_heap_index(a));
		assert_int_equal(places[i].type, vk_memory_get_type_index(a));
		assert_true(places[i].flags & VK_SLICE_DEVICE_LOCAL);
		assert_false(places[i].is_spilled);
	}
	assert_string_equal(places[3].name, "test");
	assert_int_equal(places[3].role, VK_MEMORY_IO);
	assert_true(places[3].flags & VK_SLICE_HOST_VISIBLE);
	/* Those that there is no room for are counted. */
	memset(places, 0x5a, sizeof(places));
	assert_true(vk_slice_get_places(d, places, 1) > 1);
	assert_string_equal(places[0].name, "qkv");
	assert_int_equal(places[1].n, 0x5a5a5a5a);
	/* What is gone is not there. */
	vk_memory_free(a);
	vk_memory_free(io);
	assert_int_equal(vk_slice_get_places(d, places, ARRAY_SIZE(places)), 3);
	assert_int_equal(places[0].n, 1);
	vk_memory_free(b);
	assert_int_equal(vk_slice_get_places(d, places, ARRAY_SIZE(places)), 0);
	vk_device_free(d);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_names_refused),
		CASE(test_map),
		CASE(test_map_names_what_was_asked),
		CASE(test_places),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
