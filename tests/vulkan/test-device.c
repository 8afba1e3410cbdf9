/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

#include <signal.h>
#include <sys/wait.h>
#include <vulkan/vulkan_core.h>

#include "vk/matrix.h"

void __real_vkGetPhysicalDeviceFeatures2(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2 *ret);
void __wrap_vkGetPhysicalDeviceFeatures2(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2 *ret);
void __real_vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret);
void __wrap_vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret);
VkResult __real_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret);
VkResult __wrap_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret);

static bool hide_float16, hide_subgroup_control, hide_extensions, hide_matrix, hide_memory_model;
static uint32_t fake_version;

void __wrap_vkGetPhysicalDeviceFeatures2(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2 *ret)
{
	__real_vkGetPhysicalDeviceFeatures2(physical, ret);
	for (VkBaseOutStructure *s = ret->pNext; s; s = s->pNext) {
		if (hide_float16 &&
			s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)
			((VkPhysicalDeviceVulkan12Features *)s)->shaderFloat16 = false;
		if (hide_subgroup_control &&
			s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES)
			((VkPhysicalDeviceVulkan13Features *)s)->subgroupSizeControl = false;
		if (hide_memory_model &&
			s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)
			((VkPhysicalDeviceVulkan12Features *)s)->vulkanMemoryModel = false;
		if (hide_matrix &&
			s->sType ==
				VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR)
			((VkPhysicalDeviceCooperativeMatrixFeaturesKHR *)s)->cooperativeMatrix =
				false;
	}
}

void __wrap_vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret)
{
	__real_vkGetPhysicalDeviceProperties2(physical, ret);
	if (fake_version)
		ret->properties.apiVersion = fake_version;
}

VkResult __wrap_vkEnumerateDeviceExtensionProperties(
	VkPhysicalDevice physical, const char *layer, uint32_t *n, VkExtensionProperties *ret)
{
	if (!hide_extensions)
		return __real_vkEnumerateDeviceExtensionProperties(physical, layer, n, ret);
	*n = 0;
	return VK_SUCCESS;
}

static int try_device(const char *select, struct err *ret_err)
{
	struct vk_device *d = NULL;

	*ret_err = ERR_NULL;
	int r = vk_device_new(select, ret_err, &d);
	vk_device_free(d);
	if (r)
		assert_null(d);
	return r;
}

static void test_info(void **state)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);
	const uint8_t zero[16] = {0};
	bool has_local = false;

	(void)state;
	assert_true(*info->name && *info->driver);
	assert_memory_not_equal(info->uuid, zero, 16);
	assert_memory_not_equal(info->driver_uuid, zero, 16);
	assert_true(info->subgroup_size >= 1 && info->subgroup_size <= 128);
	assert_true(info->max_push_bytes >= VK_PIPELINE_MAX_PUSH_BYTES);
	assert_true(info->max_shared_bytes >= 16384);
	/* Vulkan promises 1 GiB of both limits. */
	assert_true(info->max_alloc_bytes >= (uint64_t)1 << 30);
	assert_true(info->has_export_fd);
	assert_in_range(info->n_heaps, 1, VK_DEVICE_MAX_HEAPS);
	vk_device_query_heaps(d, heaps);
	for (uint32_t i = 0; i < info->n_heaps; i++) {
		assert_int_equal(heaps[i].n_bytes, info->heaps[i].n_bytes);
		assert_true(heaps[i].n_bytes > 0 && heaps[i].budget_bytes > 0);
		has_local |= heaps[i].device_local;
		if (!info->has_memory_budget) {
			assert_int_equal(heaps[i].budget_bytes, heaps[i].n_bytes);
			assert_int_equal(heaps[i].usage_bytes, 0);
		}
	}
	assert_true(has_local);
	if (!strcmp(on_device_select(), "software"))
		assert_true(info->is_software);
	vk_device_free(d);
}

static uint32_t count_matrices(void)
{
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);
	uint32_t n = info->n_matrices;

	assert_in_range(n, 0, VK_DEVICE_MAX_MATRICES);
	for (uint32_t i = 0; i < n; i++) {
		const struct vk_device_matrix *m = &info->matrices[i];
		assert_true(m->m > 0 && m->n > 0 && m->k > 0);
		assert_true(i == 0 || m->k <= info->matrices[i - 1].k);
	}
	vk_device_free(d);
	return n;
}

/* Matrices, if there are any, need both of their features. */
static void test_matrices(void **state)
{
	(void)state;
	uint32_t n = count_matrices();
	hide_matrix = true;
	assert_int_equal(count_matrices(), 0);
	hide_matrix = false;
	hide_memory_model = true;
	assert_int_equal(count_matrices(), 0);
	hide_memory_model = false;
	assert_int_equal(count_matrices(), n);
}

static void test_select(void **state)
{
	struct vk_device *d = on_device_new();
	uint8_t uuid[16];
	char text[64];
	struct err e;

	(void)state;
	memcpy(uuid, vk_device_get_info(d)->uuid, 16);
	vk_device_free(d);
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02X", uuid[i]);
	assert_int_equal(try_device(text, &e), 0);
	assert_int_equal(try_device("0", &e), 0);
	assert_int_equal(try_device("auto", &e), 0);
	assert_int_equal(try_device("999", &e), -ENODEV);
	assert_non_null(strstr(e.text, "0: "));
	assert_int_equal(try_device("nothing", &e), -EINVAL);
}

static void test_no_driver(void **state)
{
	struct err e;

	(void)state;
	setenv("VK_DRIVER_FILES", "/dev/null", 1);
	setenv("VK_ICD_FILENAMES", "/dev/null", 1);
	int r = try_device("auto", &e);
	unsetenv("VK_DRIVER_FILES");
	unsetenv("VK_ICD_FILENAMES");
	assert_int_equal(r, -ENODEV);
	assert_non_null(strstr(e.text, "mesa-vulkan-drivers"));
}

static void test_lacking(void **state)
{
	struct err e;

	(void)state;
	hide_float16 = true;
	int r = try_device(on_device_select(), &e);
	hide_float16 = false;
	assert_int_equal(r, -ENOTSUP);
	assert_non_null(strstr(e.text, "shaderFloat16"));
	assert_null(strstr(e.text, "shaderInt8"));

	hide_extensions = true;
	r = try_device(on_device_select(), &e);
	hide_extensions = false;
	assert_int_equal(r, -ENOTSUP);
	assert_non_null(strstr(e.text, "VK_KHR_external_memory_fd"));
	assert_null(strstr(e.text, "VK_EXT"));

	fake_version = VK_MAKE_API_VERSION(0, 1, 2, 7);
	r = try_device(on_device_select(), &e);
	fake_version = 0;
	assert_int_equal(r, -ENOTSUP);
	assert_non_null(strstr(e.text, "expected Vulkan 1.3, found 1.2.7"));

	/* An optional one is only not used. */
	hide_subgroup_control = true;
	r = try_device(on_device_select(), &e);
	hide_subgroup_control = false;
	assert_int_equal(r, 0);
}

static void test_validation_words(void **state)
{
	char before[16];
	const char *old = getenv("WEIGHTD_VALIDATION");
	struct err e;

	(void)state;
	snprintf(before, sizeof(before), "%s", old ? old : "");
	setenv("WEIGHTD_VALIDATION", "yes", 1);
	assert_int_equal(try_device(on_device_select(), &e), -EINVAL);
	assert_non_null(strstr(e.text, "\"yes\""));
	/* Asked for and not there: refused, not passed over. */
	setenv("WEIGHTD_VALIDATION", "1", 1);
	setenv("VK_LAYER_PATH", "/nonexistent", 1);
	int r = try_device(on_device_select(), &e);
	unsetenv("VK_LAYER_PATH");
	assert_int_equal(r, -ENOENT);
	assert_non_null(strstr(e.text, "VK_LAYER_KHRONOS_validation"));
	setenv("WEIGHTD_VALIDATION", before, 1);
}

/* Runs this program as "leak": a device freed before its memory. Returns the wait status. */
static int run_leak(const char *validation, char ret_output[4096])
{
	int fds[2];
	size_t n = 0;
	ssize_t got;
	int status = 0;

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		setenv("WEIGHTD_VALIDATION", validation, 1);
		execl("/proc/self/exe", "test-device", "leak", (char *)NULL);
		_exit(99);
	}
	close(fds[1]);
	while (n < 4095 && (got = read(fds[0], ret_output + n, 4095 - n)) > 0)
		n += (size_t)got;
	ret_output[n] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static int leak(void)
{
	struct vk_memory_params params = {
		.role = VK_MEMORY_SCRATCH, .n_bytes = 4096, .name = "forgotten"};
	struct vk_device *d;
	struct vk_memory *m;
	struct err e;

	int r = vk_device_new(on_device_select(), &e, &d);
	if (r == -ENOENT)
		return CASE_SKIP; /* the layer was asked for and is not installed */
	if (r || vk_memory_new(d, &params, &e, &m))
		return 2;
	vk_device_free(d);
	return 0;
}

static void test_validation_works(void **state)
{
	char output[4096];

	(void)state;
	int status = run_leak("0", output);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_null(strstr(output, "validation: "));
	status = run_leak("1", output);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == CASE_SKIP)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_non_null(strstr(output, "validation: "));
	assert_non_null(strstr(output, "forgotten"));
	status = run_leak("abort", output);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
	assert_non_null(strstr(output, "validation: "));
}

static void test_many_times(void **state)
{
	(void)state;
	vk_device_free(NULL);
	/* A driver that is loaded anew each time may be worn out after some 25. */
	for (int i = 0; i < 40; i++)
		vk_device_free(on_device_new());
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_info),
		CASE(test_matrices),
		CASE(test_select),
		CASE(test_no_driver),
		CASE(test_lacking),
		CASE(test_validation_words),
		CASE(test_validation_works),
		CASE(test_many_times),
	};

	if (argc == 2 && !strcmp(argv[1], "leak"))
		return leak();
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
