/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/cache.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vk/device-internal.h"
#include "vk/result.h"
#include "vk/store.h"

enum { CACHE_MAX_BYTES = 64 << 20 };
#define CACHE_MAGIC UINT64_C(0x31454843414b5657) /* "WVKACHE1" */

/* What stands before the driver's bytes in the file. */
struct cache_header {
	uint64_t magic;
	uint64_t n_bytes; /* that follow */
	uint64_t hash;    /* of them */
};

/* A new driver build gets a new file: its old code is of no use to it. */
static void get_file_name(const struct vk_device *d, char ret_name[NAME_MAX])
{
	char uuid[2 * VK_UUID_SIZE + 1];
	uint64_t hash = vk_store_hash(
		VK_STORE_HASH_BASIS, d->info.driver_uuid, sizeof(d->info.driver_uuid));

	hash = vk_store_hash(hash, d->info.driver, strlen(d->info.driver));
	for (unsigned i = 0; i < VK_UUID_SIZE; i++)
		snprintf(uuid + 2 * i, 3, "%02x", d->info.uuid[i]);
	snprintf(ret_name, NAME_MAX, "%s-%016" PRIx64 ".cache", uuid, hash);
}

/* The driver's bytes in a file that vk_cache_save wrote; -EBADMSG for any other file. */
static int check_file(const void *file, uint64_t n_bytes, const void **ret_data, size_t *ret_n)
{
	struct cache_header header;

	if (n_bytes < sizeof(header))
		return -EBADMSG;
	memcpy(&header, file, sizeof(header));
	const void *data = (const char *)file + sizeof(header);
	if (header.magic != CACHE_MAGIC || header.n_bytes != n_bytes - sizeof(header) ||
		vk_store_hash(VK_STORE_HASH_BASIS, data, header.n_bytes) != header.hash)
		return -EBADMSG;
	*ret_data = data;
	*ret_n = header.n_bytes;
	return 0;
}

int vk_cache_load(struct vk_device *d)
{
	_cleanup_(cleanup_free)
	void *file = NULL;
	VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
	VkPipelineCache cache;
	char name[NAME_MAX];
	uint64_t n_bytes;

	if (d->is_lost)
		return VK_DEVICE_LOST;
	get_file_name(d, name);
	int r = vk_store_read(name, sizeof(struct cache_header) + CACHE_MAX_BYTES, &file, &n_bytes);
	if (r == -ENOMEM)
		return r;
	if (r || check_file(file, n_bytes, &info.pInitialData, &info.initialDataSize))
		return 0;
	VkResult result = vk_device_note(d, vkCreatePipelineCache(d->device, &info, NULL, &cache));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	vkDestroyPipelineCache(d->device, d->cache, NULL);
	d->cache = cache;
	d->cache_bytes = info.initialDataSize;
	return 0;
}

int vk_cache_save(struct vk_device *d)
{
	_cleanup_(cleanup_free)
	void *data = NULL;
	char name[NAME_MAX];
	size_t n_bytes = 0;

	if (d->is_lost)
		return VK_DEVICE_LOST;
	VkResult result =
		vk_device_note(d, vkGetPipelineCacheData(d->device, d->cache, &n_bytes, NULL));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	if (n_bytes <= d->cache_bytes)
		return 0;
	if (n_bytes > CACHE_MAX_BYTES)
		return -EFBIG;
	data = malloc(n_bytes);
	if (!data)
		return -ENOMEM;
	result = vk_device_note(d, vkGetPipelineCacheData(d->device, d->cache, &n_bytes, data));
	if (result != VK_SUCCESS)
		return vk_result_code(result);
	struct cache_header header = {
		.magic = CACHE_MAGIC,
		.n_bytes = n_bytes,
		.hash = vk_store_hash(VK_STORE_HASH_BASIS, data, n_bytes),
	};
	get_file_name(d, name);
	int r = vk_store_write(name, &header, sizeof(header), data, n_bytes);
	if (!r)
		d->cache_bytes = n_bytes;
	return r;
}
