/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_VALIDATE_H
#define WEIGHTD_VALIDATE_H

/*
 * Is this container a model that the engine can run? Hyperparameters, tokenizer and the tensors
 * that the architecture needs, each with its shape and a supported block format. What comes out is
 * plain values that the manifest is written from. Any one thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"
#include "weightd/gguf.h"

struct err;

struct validate_model {
	struct manifest_hparams hparams; /* string members unset */
	struct gguf_string architecture;
	struct gguf_string name;             /* general.name, may be empty */
	struct manifest_tokenizer tokenizer; /* chat_template unset; n_merges as in the file */
	struct gguf_string chat_template;
	const struct gguf_kv *tokens;      /* NULL: no tokenizer */
	const struct gguf_kv *token_types; /* may be NULL */
	const struct gguf_kv *scores;      /* may be NULL */
	const struct gguf_kv *merges;      /* may be NULL */
};

/* -EINVAL with one line: key or tensor, expected, found; -ENOTSUP for what is valid but not ours
 * (architecture, block format, tokenizer), with what is supported. */
int must_check validate_model(
	const struct gguf *g, struct err *ret_err, struct validate_model *ret_model);

#endif
