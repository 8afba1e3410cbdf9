/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/probe-cache.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "vk/device.h"
#include "vk/store.h"

/*
 *	weightd-probe 1
 *	key DEVICE-UUID DRIVER-UUID kernel RELEASE memlock BYTES driver "VERSION" dir "PATH"
 *	KIND yes
 *	KIND no REASON
 *	end
 * every kind once, in the order of the enum.
 */
#define MAGIC_LINE "weightd-probe 1\n"
#define END_LINE "end\n"

enum { KEY_BYTES = PATH_MAX + 1024, FILE_BYTES = KEY_BYTES + VK_PROBE_N * 300 };
_Static_assert(VK_PROBE_CACHE_LINE_BYTES <= 300, "all lines fit");

/* Whether and what the text says after a prefix; NULL if it does not begin with it. */
static const char *after(const char *text, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(text, prefix, n) ? NULL : text + n;
}

/* A reason is printable ASCII; a name from a file could forge lines otherwise. */
static bool is_reason(const char *text)
{
	if (!*text || strlen(text) >= VK_PROBE_REASON_BYTES)
		return false;
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

static bool find_kind(const char *line, enum vk_probe_kind *ret_kind, const char **ret_rest)
{
	for (int i = 0; i < VK_PROBE_N; i++) {
		const char *rest = after(line, vk_probe_kind_name((enum vk_probe_kind)i));

		if (rest && *rest == ' ') {
			*ret_kind = (enum vk_probe_kind)i;
			*ret_rest = rest + 1;
			return true;
		}
	}
	return false;
}

bool vk_probe_cache_parse_line(const char *line, bool may_doubt, enum vk_probe_kind *ret_kind,
	struct vk_probe_result *ret_result)
{
	struct vk_probe_result result = {.is_sure = true};
	const char *rest, *reason;

	if (!find_kind(line, ret_kind, &rest))
		return false;
	if (!strcmp(rest, "yes")) {
		result.is_ok = true;
		*ret_result = result;
		return true;
	}
	reason = after(rest, "no ");
	if (!reason && may_doubt) {
		reason = after(rest, "unsure ");
		result.is_sure = false;
	}
	if (!reason || !is_reason(reason))
		return false;
	snprintf(result.reason, sizeof(result.reason), "%s", reason);
	*ret_result = result;
	return true;
}

int vk_probe_cache_format_line(enum vk_probe_kind kind, const struct vk_probe_result *result,
	char ret_line[VK_PROBE_CACHE_LINE_BYTES])
{
	const char *verdict = result->is_ok ? "yes" : result->is_sure ? "no " : "unsure ";
	int n = snprintf(ret_line, VK_PROBE_CACHE_LINE_BYTES, "%s %s%s\n", vk_probe_kind_name(kind),
		verdict, result->is_ok ? "" : result->reason);

	for (int i = 0; i < n - 1; i++)
		if (ret_line[i] < ' ' || ret_line[i] > '~')
			ret_line[i] = '?';
	return n;
}

static void format_uuid(const uint8_t uuid[16], char ret_text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(ret_text + 2 * i, 3, "%02x", uuid[i]);
}

/* The file's name and its key line. The name alone is no proof: it has a hash of the key. */
static int make_key(const struct vk_device_info *info, const char *disk_dir,
	char ret_key[KEY_BYTES], char ret_name[NAME_MAX])
{
	char uuid[33], driver_uuid[33];
	struct utsname kernel;
	struct rlimit lock;

	if (uname(&kernel) < 0 || getrlimit(RLIMIT_MEMLOCK, &lock) < 0)
		return -errno;
	format_uuid(info->uuid, uuid);
	format_uuid(info->driver_uuid, driver_uuid);
	int n = snprintf(ret_key, KEY_BYTES,
		"key %s %s kernel %s memlock %ju driver \"%s\" dir \"%s\"\n", uuid, driver_uuid,
		kernel.release, (uintmax_t)lock.rlim_cur, info->driver, disk_dir);
	if (n >= KEY_BYTES || strchr(ret_key, '\n') != ret_key + n - 1)
		return -ENAMETOOLONG;
	snprintf(ret_name, NAME_MAX, "%s-%016" PRIx64 ".probe", uuid,
		vk_store_hash(VK_STORE_HASH_BASIS, ret_key, (size_t)n));
	return 0;
}

/* Strict: what was not written by vk_probe_cache_save is not believed. */
static bool parse(char *text, const char *key, struct vk_probe *ret_probe)
{
	struct vk_probe probe = {0};
	char *at = (char *)after(text, MAGIC_LINE);

	if (at)
		at = (char *)after(at, key);
	for (int i = 0; at && i < VK_PROBE_N; i++) {
		char *end = strchr(at, '\n');
		enum vk_probe_kind kind;

		if (!end)
			return false;
		*end = '\0';
		if (!vk_probe_cache_parse_line(at, false, &kind, &probe.kinds[i]) || (int)kind != i)
			return false;
		at = end + 1;
	}
	if (!at || strcmp(at, END_LINE))
		return false;
	*ret_probe = probe;
	return true;
}

int vk_probe_cache_load(
	const struct vk_device_info *info, const char *disk_dir, struct vk_probe *ret_probe)
{
	_cleanup_(cleanup_free)
	void *data = NULL;
	char key[KEY_BYTES], name[NAME_MAX];
	uint64_t n_bytes;

	int r = make_key(info, disk_dir, key, name);
	if (!r)
		r = vk_store_read(name, FILE_BYTES, &data, &n_bytes);
	if (r == -ENOMEM)
		return r;
	if (r || memchr(data, '\0', n_bytes) || !parse(data, key, ret_probe))
		return -ENOENT;
	return 0;
}

int vk_probe_cache_save(
	const struct vk_device_info *info, const char *disk_dir, const struct vk_probe *probe)
{
	char key[KEY_BYTES], name[NAME_MAX], text[FILE_BYTES];
	size_t n;

	int r = make_key(info, disk_dir, key, name);
	if (r)
		return r;
	n = (size_t)snprintf(text, sizeof(text), MAGIC_LINE "%s", key);
	for (int i = 0; i < VK_PROBE_N; i++) {
		char line[VK_PROBE_CACHE_LINE_BYTES];
		int n_line =
			vk_probe_cache_format_line((enum vk_probe_kind)i, &probe->kinds[i], line);

		memcpy(text + n, line, (size_t)n_line);
		n += (size_t)n_line;
	}
	return vk_store_write(name, text, n, END_LINE, strlen(END_LINE));
}
