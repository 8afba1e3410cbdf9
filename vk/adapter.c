/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/adapter.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/result.h"

/* More than any machine has; those beyond it are not seen. */
enum { MAX_ADAPTERS = 64, UUID_DIGITS = 2 * VK_UUID_SIZE, MAX_INDEX_DIGITS = 4 };

struct adapter {
	VkPhysicalDevice physical;
	VkPhysicalDeviceType type;
	uint8_t uuid[VK_UUID_SIZE];
	char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
};

static int digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static bool parse_uuid(const char *text, uint8_t ret_uuid[VK_UUID_SIZE])
{
	unsigned n = 0;

	memset(ret_uuid, 0, VK_UUID_SIZE);
	for (; *text; text++) {
		if (*text == '-')
			continue;
		int value = digit_value(*text);
		if (value < 0 || n == UUID_DIGITS)
			return false;
		ret_uuid[n / 2] = (uint8_t)(ret_uuid[n / 2] << 4 | value);
		n++;
	}
	return n == UUID_DIGITS;
}

static bool parse_index(const char *text, uint32_t *ret_index)
{
	uint32_t index = 0;

	if (!*text || strlen(text) > MAX_INDEX_DIGITS)
		return false;
	for (; *text; text++) {
		if (!isdigit((unsigned char)*text))
			return false;
		index = index * 10 + (uint32_t)(*text - '0');
	}
	*ret_index = index;
	return true;
}

int vk_adapter_parse(const char *text, struct err *ret_err, struct vk_adapter_choice *ret_choice)
{
	struct vk_adapter_choice choice = {.kind = VK_ADAPTER_AUTO};

	if (!strcmp(text, "auto"))
		choice.kind = VK_ADAPTER_AUTO;
	else if (!strcmp(text, "software"))
		choice.kind = VK_ADAPTER_SOFTWARE;
	else if (parse_index(text, &choice.index))
		choice.kind = VK_ADAPTER_INDEX;
	else if (parse_uuid(text, choice.uuid))
		choice.kind = VK_ADAPTER_UUID;
	else
		return err_set(ret_err, EINVAL,
			"device: expected auto, software, an index or a UUID of 32 hex digits, "
			"found \"%s\"",
			text);
	*ret_choice = choice;
	return 0;
}

static int list_adapters(VkInstance instance, struct err *ret_err,
	struct adapter ret_adapters[MAX_ADAPTERS], uint32_t *ret_n)
{
	VkPhysicalDevice physicals[MAX_ADAPTERS];
	uint32_t n = MAX_ADAPTERS;

	VkResult r = vkEnumeratePhysicalDevices(instance, &n, physicals);
	/* The loader's answer when drivers are installed and none of them finds a device. */
	if (r == VK_ERROR_INITIALIZATION_FAILED)
		n = 0;
	else if (r != VK_SUCCESS && r != VK_INCOMPLETE)
		return vk_result_fail(r, ret_err, "device: list of Vulkan devices");
	for (uint32_t i = 0; i < n; i++) {
		VkPhysicalDeviceIDProperties id = {
			.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
		VkPhysicalDeviceProperties2 properties = {
			.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
		struct adapter *a = &ret_adapters[i];

		vkGetPhysicalDeviceProperties2(physicals[i], &properties);
		a->physical = physicals[i];
		a->type = properties.properties.deviceType;
		memcpy(a->uuid, id.deviceUUID, sizeof(a->uuid));
		snprintf(a->name, sizeof(a->name), "%s", properties.properties.deviceName);
	}
	*ret_n = n;
	return 0;
}

/* The first of the best type: discrete, integrated, virtual, other, software. */
static const struct adapter *find_auto(const struct adapter *adapters, uint32_t n)
{
	static const VkPhysicalDeviceType order[] = {
		VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
		VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
		VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU,
		VK_PHYSICAL_DEVICE_TYPE_OTHER,
		VK_PHYSICAL_DEVICE_TYPE_CPU,
	};

	for (unsigned t = 0; t < ARRAY_SIZE(order); t++)
		for (uint32_t i = 0; i < n; i++)
			if (adapters[i].type == order[t])
				return &adapters[i];
	return NULL;
}

static const struct adapter *find_choice(
	const struct adapter *adapters, uint32_t n, const struct vk_adapter_choice *choice)
{
	if (choice->kind == VK_ADAPTER_AUTO)
		return find_auto(adapters, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct adapter *a = &adapters[i];

		if (choice->kind == VK_ADAPTER_SOFTWARE && a->type == VK_PHYSICAL_DEVICE_TYPE_CPU)
			return a;
		if (choice->kind == VK_ADAPTER_INDEX && choice->index == i)
			return a;
		if (choice->kind == VK_ADAPTER_UUID && !memcmp(a->uuid, choice->uuid, VK_UUID_SIZE))
			return a;
	}
	return NULL;
}

static void format_uuid(const uint8_t uuid[VK_UUID_SIZE], char ret_text[UUID_DIGITS + 1])
{
	for (unsigned i = 0; i < VK_UUID_SIZE; i++)
		snprintf(ret_text + 2 * i, 3, "%02x", uuid[i]);
}

static int refuse(const struct adapter *adapters, uint32_t n,
	const struct vk_adapter_choice *choice, struct err *ret_err)
{
	char wanted[64], list[ERR_TEXT_BYTES] = "", uuid[UUID_DIGITS + 1];
	size_t at = 0;

	if (n == 0)
		return err_set(ret_err, ENODEV,
			"no Vulkan device: a driver is installed but finds none; check the "
			"rights on /dev/dri and /dev/nvidia*, or install mesa-vulkan-drivers");
	if (choice->kind == VK_ADAPTER_SOFTWARE) {
		snprintf(wanted, sizeof(wanted), "no software device");
	} else if (choice->kind == VK_ADAPTER_INDEX) {
		snprintf(wanted, sizeof(wanted), "no device with index %u", choice->index);
	} else {
		format_uuid(choice->uuid, uuid);
		snprintf(wanted, sizeof(wanted), "no device with UUID %s", uuid);
	}
	for (uint32_t i = 0; i < n && at < sizeof(list); i++) {
		format_uuid(adapters[i].uuid, uuid);
		at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%u: %s %s", i ? "; " : "",
			i, adapters[i].name, uuid);
	}
	return err_set(ret_err, ENODEV, "%s; there are %s", wanted, list);
}

int vk_adapter_find(VkInstance instance, const struct vk_adapter_choice *choice,
	struct err *ret_err, VkPhysicalDevice *ret_physical)
{
	struct adapter adapters[MAX_ADAPTERS];
	uint32_t n = 0;

	int r = list_adapters(instance, ret_err, adapters, &n);
	if (r)
		return r;
	const struct adapter *a = find_choice(adapters, n, choice);
	if (!a)
		return refuse(adapters, n, choice, ret_err);
	*ret_physical = a->physical;
	return 0;
}
