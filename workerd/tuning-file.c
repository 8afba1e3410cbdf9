/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/tuning-file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/log.h"
#include "shaders/kernels.h"
#include "vk/device.h"
#include "vk/store.h"
#include "workerd/tuning.h"

enum { MAX_BYTES = 1 << 20, HEAD_BYTES = 160, VERSION = 1 };

static uint64_t hash_driver(const struct vk_device_info *info)
{
	uint64_t hash =
		vk_store_hash(VK_STORE_HASH_BASIS, info->driver_uuid, sizeof(info->driver_uuid));

	return vk_store_hash(hash, info->driver, strlen(info->driver));
}

/* Which build's kernels these are. */
static uint64_t hash_kernels(void)
{
	uint64_t hash = VK_STORE_HASH_BASIS;

	for (unsigned id = 0; id < KERNELS_N; id++) {
		const struct kernels_row *row = kernels_get((enum kernels_id)id);

		if (row->spirv)
			hash = vk_store_hash(hash, row->spirv, row->n_spirv_bytes);
	}
	return hash;
}

static void write_uuid(const struct vk_device_info *info, char ret_text[33])
{
	for (size_t i = 0; i < sizeof(info->uuid); i++)
		snprintf(ret_text + 2 * i, 3, "%02x", info->uuid[i]);
}

static void get_name(const struct vk_device *d, char ret_name[NAME_MAX])
{
	const struct vk_device_info *info = vk_device_get_info(d);
	char uuid[33];

	write_uuid(info, uuid);
	snprintf(ret_name, NAME_MAX, "%s-%016" PRIx64 ".tuning", uuid, hash_driver(info));
}

/* The first line, of a file whose other lines are these. */
static int write_head(
	const struct vk_device *d, const char *text, size_t n_bytes, char ret_head[HEAD_BYTES])
{
	const struct vk_device_info *info = vk_device_get_info(d);
	char uuid[33];

	write_uuid(info, uuid);
	return snprintf(ret_head, HEAD_BYTES,
		"weightd-tuning %d device=%s driver=%016" PRIx64 " kernels=%016" PRIx64
		" rest=%016" PRIx64 "\n",
		VERSION, uuid, hash_driver(info), hash_kernels(),
		vk_store_hash(VK_STORE_HASH_BASIS, text, n_bytes));
}

void tuning_file_load(const struct vk_device *d, struct tuning *t)
{
	_cleanup_(cleanup_free)
	void *file = NULL;
	char name[NAME_MAX], head[HEAD_BYTES];
	uint64_t n_bytes = 0;

	get_name(d, name);
	int r = vk_store_read(name, MAX_BYTES, &file, &n_bytes);
	if (r) {
		log_debug("tuning: %s: %s", name, strerror(-r));
		return;
	}
	const char *text = file, *end = strchr(text, '\n');
	size_t n_head = end ? (size_t)(end - text) + 1 : 0;
	int n = write_head(d, text + n_head, n_bytes - n_head, head);
	/* One that could have been written here and now; a zero byte inside is none of its bytes.
	 */
	if ((size_t)n != n_head || memcmp(head, text, n_head) != 0 || strlen(text) != n_bytes) {
		log_debug("tuning: %s: of another device, driver or build, or damaged: ignored",
			name);
		return;
	}
	uint32_t n_left_out = tuning_decode(t, text + n_head);
	log_debug(
		"tuning: %u choices from %s, %u lines left out", tuning_count(t), name, n_left_out);
}

int tuning_file_save(const struct vk_device *d, const struct tuning *t)
{
	_cleanup_(cleanup_free)
	char *text = NULL;
	char name[NAME_MAX], head[HEAD_BYTES];
	size_t n_bytes = 0;
	int r = tuning_encode(t, &text, &n_bytes);

	if (r)
		return r;
	if (n_bytes + HEAD_BYTES > MAX_BYTES)
		return -EFBIG;
	int n = write_head(d, text, n_bytes, head);
	get_name(d, name);
	return vk_store_write(name, head, (uint64_t)n, text, n_bytes);
}
