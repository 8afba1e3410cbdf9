/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_MANIFEST_WRITER_H
#define WEIGHTD_MANIFEST_WRITER_H

/*
 * Writes the manifest (proto/manifest.h) of a validated and placed model into a memfd sealed SEAL,
 * SHRINK, GROW and WRITE. Builds the tokenizer's tables once for all workers. Any one thread.
 */
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct validate_model;

/* Where each tensor of gguf->tensors lives, by the same index. All borrowed. */
struct manifest_writer_placement {
	uint32_t n_allocs;
	const struct manifest_alloc *allocs;
	const uint32_t *tensor_alloc;  /* [n_tensors] */
	const uint64_t *tensor_offset; /* [n_tensors] bytes into the allocation */
};

/* -EINVAL with ret_err for what only shows while the tables are built (a token or key twice, a
 * merge of unknown tokens); -errno of memfd_create and friends. */
int must_check manifest_writer_write(const struct gguf *g, const struct validate_model *model,
	const struct manifest_writer_placement *placement, uint64_t generation, struct err *ret_err,
	int *ret_fd, uint64_t *ret_n_bytes);

#endif
