/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

static const uint32_t pattern[] =
#include "pattern.comp.inc"
	;
static const uint32_t spec[] =
#include "spec.comp.inc"
	;

struct pattern_push {
	uint64_t words;
	uint32_t n;
	uint32_t seed;
	uint32_t step;
	uint32_t pad;
};

static void test_runs(void **state)
{
	enum { N = 1000 };
	struct vk_device *d = on_device_new();
	struct vk_pipeline *p = ON_DEVICE_PIPELINE(d, pattern, sizeof(struct pattern_push));
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_SCRATCH, N * 4, false);
	struct vk_command *c = on_device_command(d, 0);
	struct pattern_push push = {
		.words = vk_memory_get_address(m), .n = N, .seed = 7, .step = 3};

	(void)state;
	assert_string_equal(vk_pipeline_get_name(p), "pattern");
	vk_command_begin(c);
	vk_command_dispatch(c, p, &push, sizeof(push), (N + 63) / 64, 1, 1);
	on_device_run(d, c);
	uint32_t *data = on_device_read(d, m);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(data[i], 7 + 3 * i);
	free(data);
	vk_command_free(c);
	vk_memory_free(m);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* What spec.comp says of a pipeline: [6] u32. */
static void run_spec(struct vk_device *d, struct vk_pipeline *p, uint32_t ret[6])
{
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, 24, false);
	struct vk_command *c = on_device_command(d, 0);
	uint64_t push = vk_memory_get_address(io);

	memset(on_device_map(io), 0, 24);
	vk_command_begin(c);
	vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	memcpy(ret, on_device_map(io), 24);
	vk_command_free(c);
	vk_memory_free(io);
}

static void test_constants(void **state)
{
	struct vk_device *d = on_device_new();
	uint32_t subgroup = vk_device_get_info(d)->subgroup_size, got[6];
	struct vk_pipeline *p =
		ON_DEVICE_PIPELINE(d, spec, 8, .n_spec = 3, .spec = {4 * subgroup, 100, 200});

	(void)state;
	run_spec(d, p, got);
	assert_int_equal(got[0], 100);
	assert_int_equal(got[1], 200);
	assert_int_equal(got[2], 4 * subgroup);
	assert_int_equal(got[3], subgroup);
	assert_int_equal(got[4], 4);
	assert_int_equal(got[5], 4 * subgroup);
	vk_pipeline_free(p);
	/* Those not given keep their defaults. */
	p = ON_DEVICE_PIPELINE(d, spec, 8, .n_spec = 2, .spec = {subgroup, 5});
	run_spec(d, p, got);
	assert_int_equal(got[0], 5);
	assert_int_equal(got[1], 22);
	assert_int_equal(got[4], 1);
	vk_pipeline_free(p);
	vk_device_free(d);
}

/* Workgroups that full subgroups cannot be promised for work all the same. */
static void test_odd_groups(void **state)
{
	const uint32_t sizes[] = {1, 3, 12, 100, 128, 1024};
	struct vk_device *d = on_device_new();
	uint32_t got[6];

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct vk_pipeline *p =
			ON_DEVICE_PIPELINE(d, spec, 8, .n_spec = 1, .spec = {sizes[i]});

		run_spec(d, p, got);
		assert_int_equal(got[2], sizes[i]);
		assert_int_equal(got[5], sizes[i]);
		vk_pipeline_free(p);
	}
	vk_device_free(d);
}

static int try_pipeline(
	struct vk_device *d, const struct vk_pipeline_params *params, struct err *ret_err)
{
	struct vk_pipeline *p = NULL;

	*ret_err = ERR_NULL;
	int r = vk_pipeline_new(d, params, ret_err, &p);
	vk_pipeline_free(p);
	return r;
}

static void test_refused(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_pipeline_params good = {
		.name = "bad one", .spirv = spec, .n_spirv_bytes = sizeof(spec), .n_push_bytes = 8};
	struct vk_pipeline_params params = good;
	uint32_t garbage[64] = {0};
	struct err e;

	(void)state;
	assert_int_equal(try_pipeline(d, &params, &e), 0);
	params.n_push_bytes = 132;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	assert_non_null(strstr(e.text, "bad one"));
	params.n_push_bytes = 6;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	params = good;
	params.n_spec = VK_PIPELINE_MAX_SPEC + 1;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	params = good;
	params.spirv = garbage;
	params.n_spirv_bytes = sizeof(garbage);
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	params = good;
	params.n_spirv_bytes -= 2;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	params = good;
	params.n_spec = 1;
	params.spec[0] = 0;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	params.spec[0] = 1 << 30;
	assert_int_equal(try_pipeline(d, &params, &e), -EINVAL);
	assert_non_null(strstr(e.text, "workgroup"));
	vk_pipeline_free(NULL);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_runs),
		CASE(test_constants),
		CASE(test_odd_groups),
		CASE(test_refused),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
