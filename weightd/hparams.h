/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_HPARAMS_H
#define WEIGHTD_HPARAMS_H

/*
 * Hyperparameters of a model: the keys ARCH.* of the GGUF specification, each with its range, the
 * relations between them, and what the engine asks of them. Any one thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct gguf;

/* What is narrower here than in the manifest (MANIFEST_MAX_*). */
enum {
	HPARAMS_MAX_LAYERS = 512,
	HPARAMS_MAX_HEAD_DIM = 256, /* the attention kernel's */
	HPARAMS_MAX_EXPERTS = 512,
	HPARAMS_MAX_EXPERTS_USED = 32, /* the routing kernel's */
};

struct hparams_params {
	const char *arch; /* the prefix of the keys */
	bool has_experts; /* layers are mixtures; else n_expert, n_expert_used and n_ff_expert are 0
			   */
	bool has_unrotated; /* heads may have numbers behind those that are rotated */
	uint64_t n_tokens;  /* of the tokenizer; 0 without one: then ARCH.vocab_size is needed */
};

/*
 * Leaves strings, tied_embeddings and n_parameters alone. -EINVAL and -ENOTSUP with ret_err naming
 * the key.
 */
int must_check hparams_read(const struct gguf *g, const struct hparams_params *params,
	struct err *ret_err, struct manifest_hparams *ret_hparams);

#endif
