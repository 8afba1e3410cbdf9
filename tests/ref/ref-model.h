/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REF_REF_MODEL_H
#define TESTS_REF_REF_MODEL_H

/*
 * A llama, qwen3 or qwen3moe model computed by the scalar references, one token after the other,
 * its matrices dequantised from the same bytes that the device reads; keys and values are kept as
 * f16 or Q8_0, as the engine keeps them. Any one thread.
 */
#include <stdbool.h>
#include <stdint.h>

struct manifest;
struct ref_model;

/* image: the model's only allocation; both are borrowed for the call. Aborts without memory. */
struct ref_model *ref_model_new(const struct manifest *m, const uint8_t *image);

/* Accepts NULL; returns NULL. */
struct ref_model *ref_model_free(struct ref_model *m);

/* Keeps keys and values as Q8_0 from here on; without it they are f16. */
void ref_model_use_q8_0_kv(struct ref_model *m);

/* Forgets all tokens. */
void ref_model_restart(struct ref_model *m);

/*
 * Forgets tokens [n_keep, n_keep + n_gone) and uses again what is kept of those behind: values as
 * they are, keys rotated back by n_gone positions and, but for is_exact, kept once more as f16 or
 * Q8_0. What those keys and values were computed from still has the forgotten tokens in it.
 */
void ref_model_drop(struct ref_model *m, uint32_t n_keep, uint32_t n_gone, bool is_exact);

/* Computes the next token; [n_vocab] logits, valid until the next call. */
const float *ref_model_step(struct ref_model *m, uint32_t token);

#endif
