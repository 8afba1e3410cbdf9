/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_STORE_H
#define VK_STORE_H

/*
 * Small files that save the next start some time: $WEIGHTD_CACHE, else $XDG_CACHE_HOME/weightd,
 * else
 * ~/.cache/weightd. The directory must be this uid's, mode 0700 and no link, else it is not used:
 * what another uid wrote there would be code for our GPU or a lie about it. Inside vk/,
 * and for workerd/tuning-file.h.
 */
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

/*
 * FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv/): against damage, not against malice;
 * malice is kept out by the directory's owner and mode.
 */
#define VK_STORE_HASH_BASIS UINT64_C(0xcbf29ce484222325)
uint64_t vk_store_hash(uint64_t hash, const void *data, size_t n_bytes);

/* The directory's path, which need not exist; -ENOENT when the environment names none. */
int must_check vk_store_get_dir(char ret_path[PATH_MAX]);

/* The same, made if it is not there; -EPERM when it is not ours alone. */
int must_check vk_store_make_dir(char ret_path[PATH_MAX]);

/*
 * All of a file, which the caller frees; a zero byte follows it. -EPERM for a directory or file
 * that is not ours, -EFBIG for more than max_bytes, -ENOMEM, or why it cannot be read.
 */
int must_check vk_store_read(
	const char *name, uint64_t max_bytes, void **ret_data, uint64_t *ret_n_bytes);

/* Replaces the file by head followed by data, all or nothing; makes the directory. */
int must_check vk_store_write(const char *name, const void *head, uint64_t n_head_bytes,
	const void *data, uint64_t n_bytes);

#endif
