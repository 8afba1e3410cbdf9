/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_MAP_TEXT_H
#define WEIGHTCTL_MAP_TEXT_H

/*
 * The picture of where a model's tensors live: a bar a heap and a placement, a row a layer with a
 * letter for each placement that a group of its tensors has. Text out of values, nothing else.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct map_text_tensor {
	const char *name;
	uint64_t n_bytes;
	uint32_t placement; /* enum manifest_placement */
};

struct map_text_heap {
	uint64_t n_bytes;
	uint64_t weights_bytes; /* of all models */
	bool device_local;
};

struct map_text {
	const struct map_text_tensor *tensors;
	uint32_t n_tensors;
	const struct map_text_heap *heaps;
	uint32_t n_heaps;
	uint32_t n_allocs[5]; /* by enum manifest_placement */
	bool has_color;       /* ECMA-48 sequences */
};

/* What a tensor of a layer belongs to. */
enum map_text_group {
	MAP_TEXT_NORM,
	MAP_TEXT_ATTENTION,
	MAP_TEXT_ROUTER,
	MAP_TEXT_EXPERTS,
	MAP_TEXT_FFN,
	MAP_TEXT_OTHER,
	MAP_TEXT_N_GROUPS,
};

/* "blk.7.attn_q.weight": 7 and MAP_TEXT_ATTENTION. False: of no layer. */
bool map_text_read_name(const char *name, uint32_t *ret_layer, enum map_text_group *ret_group);

/* Writes to out, whose errors are its owner's. */
void map_text_print(const struct map_text *m, FILE *out);

#endif
