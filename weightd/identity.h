/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_IDENTITY_H
#define WEIGHTD_IDENTITY_H

/*
 * What a generation is, in 32 bytes: tensors, metadata and contents. Two generations of one weightd
 * state have the same identity if and only if a worker cannot tell them apart: it does not depend
 * on placement, device, or where things lie in the file. It is keyed by the secret of the sums that
 * it is made of, so two weightds that do not share their state give the same file different ones.
 * Pure; any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct gguf;
struct stat;
struct sum_key;
struct sums;

enum { IDENTITY_BYTES = 32 };

/*
 * SHA-256 of what a file says of its contents: tensors by name with their shapes and dtypes, then
 * keys by name with their types and values. Every string and value has its length before it.
 */
void identity_describe(const struct gguf *g, uint8_t ret_description[IDENTITY_BYTES]);

/*
 * SHA-256 of label, secret, description and sums. s is in the order of the tensors' names, as a
 * manifest is. -EAGAIN while there is a piece whose sum is not known.
 */
int must_check identity_make(const struct sum_key *key, const uint8_t description[IDENTITY_BYTES],
	const struct sums *s, uint8_t ret_identity[IDENTITY_BYTES]);

/*
 * What stands in for it while sums are missing: SHA-256 of label, secret, description, and of the
 * model file its device, inode, size and time of change. A file that nobody writes to without
 * moving its time of change holds the same bytes then.
 */
void identity_make_file(const struct sum_key *key, const uint8_t description[IDENTITY_BYTES],
	const struct stat *file, uint8_t ret_identity[IDENTITY_BYTES]);

#endif
