/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_PROBE_CACHE_H
#define VK_PROBE_CACHE_H

/* Answers of vk_probe_run on disk. Inside vk/ only. */
#include "vk/probe.h"

/*
 * Puts what a line says after its first word, "KIND yes", "KIND no REASON" or, where may_doubt,
 * "KIND unsure REASON", into *ret_result; the line has no line break. False for anything else.
 */
bool vk_probe_cache_parse_line(const char *line, bool may_doubt, enum vk_probe_kind *ret_kind,
	struct vk_probe_result *ret);

/* The other way, with a line break. At most VK_PROBE_CACHE_LINE_BYTES with the NUL. */
enum { VK_PROBE_CACHE_LINE_BYTES = VK_PROBE_REASON_BYTES + 64 };
int vk_probe_cache_format_line(enum vk_probe_kind kind, const struct vk_probe_result *result,
	char ret_line[VK_PROBE_CACHE_LINE_BYTES]);

/* -ENOENT when there is no file to be believed. */
int must_check vk_probe_cache_load(
	const struct vk_device_info *info, const char *disk_dir, struct vk_probe *ret_probe);

/* Failure costs the next start some time only. */
int must_check vk_probe_cache_save(
	const struct vk_device_info *info, const char *disk_dir, const struct vk_probe *probe);

#endif
