/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a text means, over machines that are made up here. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/adapter.h"

struct fake {
	VkPhysicalDeviceType type;
	const char *name;
	uint8_t uuid_fill;
};

static const struct fake *fakes;
static uint32_t n_fakes;

VkResult __wrap_vkEnumeratePhysicalDevices(VkInstance instance, uint32_t *n, VkPhysicalDevice *ret);
void __wrap_vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret);

/* The handle of fake i is i + 1. */
VkResult __wrap_vkEnumeratePhysicalDevices(VkInstance instance, uint32_t *n, VkPhysicalDevice *ret)
{
	(void)instance;
	if (n_fakes == 0)
		return VK_ERROR_INITIALIZATION_FAILED;
	for (uint32_t i = 0; i < n_fakes; i++)
		ret[i] = (VkPhysicalDevice)(uintptr_t)(i + 1);
	*n = n_fakes;
	return VK_SUCCESS;
}

void __wrap_vkGetPhysicalDeviceProperties2(
	VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret)
{
	const struct fake *f = &fakes[(uintptr_t)physical - 1];
	VkPhysicalDeviceIDProperties *id = ret->pNext;

	ret->properties.deviceType = f->type;
	snprintf(ret->properties.deviceName, sizeof(ret->properties.deviceName), "%s", f->name);
	memset(id->deviceUUID, f->uuid_fill, VK_UUID_SIZE);
}

/* The index that text selects, or the error code. */
static int find(const char *text, struct err *ret_err)
{
	struct vk_adapter_choice choice;
	VkPhysicalDevice physical = VK_NULL_HANDLE;

	int r = vk_adapter_parse(text, ret_err, &choice);
	if (!r)
		r = vk_adapter_find(VK_NULL_HANDLE, &choice, ret_err, &physical);
	return r ? r : (int)(uintptr_t)physical - 1;
}

static const struct fake machine[] = {
	{VK_PHYSICAL_DEVICE_TYPE_CPU, "llvmpipe", 0x11},
	{VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, "Small", 0x22},
	{VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, "Big", 0xab},
	{VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, "Twin", 0xab},
};

static void use(const struct fake *f, uint32_t n)
{
	fakes = f;
	n_fakes = n;
}

static void test_auto(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	use(machine, 4);
	assert_int_equal(find("auto", &e), 2);
	use(machine, 2);
	assert_int_equal(find("auto", &e), 1);
	use(machine, 1);
	assert_int_equal(find("auto", &e), 0);
	assert_string_equal(e.text, "");
}

static void test_by_name(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	use(machine, 4);
	assert_int_equal(find("software", &e), 0);
	assert_int_equal(find("0", &e), 0);
	assert_int_equal(find("3", &e), 3);
	assert_int_equal(find("22222222222222222222222222222222", &e), 1);
	/* Of two with one UUID, the first. */
	assert_int_equal(find("abababab-ABAB-abab-abab-abababababab", &e), 2);
}

static void test_refused(void **state)
{
	struct err e = ERR_NULL;

	(void)state;
	use(machine + 1, 3);
	assert_int_equal(find("software", &e), -ENODEV);
	assert_non_null(strstr(e.text, "0: Small 22222222222222222222222222222222"));
	assert_non_null(strstr(e.text, "2: Twin abababab"));
	assert_int_equal(find("3", &e), -ENODEV);
	assert_non_null(strstr(e.text, "index 3"));
	assert_int_equal(find("33333333333333333333333333333333", &e), -ENODEV);
	assert_non_null(strstr(e.text, "UUID 33333333"));
	use(machine, 0);
	assert_int_equal(find("auto", &e), -ENODEV);
	assert_non_null(strstr(e.text, "no Vulkan device"));
}

static void test_not_a_choice(void **state)
{
	static const char *const texts[] = {"", "-", "Auto", "-1", "1 ", "0x1", "99999",
		"2222222222222222222222222222222", "222222222222222222222222222222222",
		"2222222222222222222222222222222g", "software\n"};

	(void)state;
	use(machine, 4);
	for (unsigned i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct err e = ERR_NULL;

		assert_int_equal(find(texts[i], &e), -EINVAL);
		assert_non_null(strstr(e.text, "expected auto"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_auto),
		CASE(test_by_name),
		CASE(test_refused),
		CASE(test_not_a_choice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
