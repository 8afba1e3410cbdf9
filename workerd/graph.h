/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GRAPH_H
#define WORKERD_GRAPH_H

/*
 * A model as a list of operations on values, in the order of computation. An architecture writes
 * it (workerd/arch-*.c), the plan reads it. A value is [m][width] f32, m the rows of a step; where
 * it lies is decided once, and a place is used again when its last reader is past. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "shaders/abi.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/matmul.h"
#include "workerd/weights.h"

struct err;

enum {
	GRAPH_NONE = UINT32_MAX,  /* no such value */
	GRAPH_MAX_OP_TENSORS = 8, /* that one op reads */
};

struct graph_value {
	uint32_t width;   /* words of 4 bytes a row */
	uint32_t n_extra; /* and however many rows */
	bool is_logits;   /* of the rows that want them, behind the others in scratch */
	bool is_used;
	uint32_t first_op; /* that writes it */
	uint32_t last_op;  /* that reads or writes it */
	uint64_t offset;   /* in scratch, bytes; after graph_place */
	const char *name;  /* what it is in a layer, for people; static */
};

enum graph_op_kind {
	GRAPH_EMBED,
	GRAPH_MATMUL,
	GRAPH_ROPE_KV,
	GRAPH_ATTENTION,
	GRAPH_ROUTE,
	GRAPH_EXPERTS,
	GRAPH_BEST,
};

/* What a layer's rows choose of its experts, see shaders/abi.h. */
struct graph_routing {
	uint32_t logits; /* [m][n_expert] f32 */
	uint32_t choice; /* [m][n_expert_used] struct abi_choice */
	uint32_t pairs;  /* [m * n_expert_used] u32 */
	uint32_t groups; /* struct abi_group, see op_group_count_slots */
	uint32_t wide;   /* see op_group_count_wide; GRAPH_NONE where kernels are exact */
	uint32_t cache;  /* see expert-cache.h; GRAPH_NONE: the layer has none */
};

/* Values are ids; gains are [k] f32 with address 0 where there is no norm. */
struct graph_op {
	enum graph_op_kind kind;
	bool is_head; /* for the rows that want logits, after all others */
	union {
		struct {
			struct weights_tensor w;
			uint32_t y;
		} embed;
		struct {
			uint32_t n_parts;
			struct weights_tensor w[ABI_MATMUL_MAX_PARTS];
			struct weights_tensor gain;
			uint32_t x;
			uint32_t y; /* may be r */
			uint32_t r; /* or GRAPH_NONE */
			enum op_matmul_finish finish;
		} matmul;
		struct {
			struct weights_tensor q_gain;
			struct weights_tensor k_gain;
			uint32_t qkv;
			uint32_t layer;
		} rope_kv;
		struct {
			uint32_t qkv;
			uint32_t y;
			uint32_t partials; /* graph_add_op's own, see graph_reserve_partials */
			uint32_t layer;
			uint32_t window; /* keys that a row sees; 0: all */
		} attention;
		struct graph_routing route; /* logits are read, the rest is written */
		struct {
			uint32_t n_parts;
			struct weights_tensor w[OP_EXPERTS_MAX_PARTS];
			uint32_t tables[OP_EXPERTS_MAX_PARTS]; /* see graph_fill_tables */
			struct weights_tensor gain;
			struct graph_routing routing;
			uint32_t x;
			uint32_t y;
			uint32_t z; /* with MIX, [m][n_expert_used * n]; else GRAPH_NONE */
			enum op_experts_finish finish;
			bool is_far; /* see graph_mark_far */
		} experts;
		struct {
			uint32_t logits;
		} best; /* the host gets the best of each row */
	};
};

struct graph {
	/* What all layers share. */
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_rot;
	float rope_base;
	bool is_rope_interleaved;           /* see workerd/ops/rope-kv.h */
	struct weights_tensor rope_factors; /* [n_rot / 2] f32, read once; address 0: none */
	float eps;
	uint32_t n_expert; /* 0: the model has none */
	uint32_t n_expert_used;

	/*
	 * Set before the first op: matmuls may have kernels that put x into a form of their own
	 * first, and get a place for it, [m][most k of one] f16, and for sums of parts of it
	 * (workerd/ops/matrix.h). It is theirs until the next op.
	 */
	bool wants_staging;
	uint64_t n_decoded_bytes; /* also for W of some as f16: op_matrix_get_decoded_bytes */
	bool has_staging;
	uint32_t staging;
	uint32_t few_staging; /* another one, for up to OP_MATVEC_MAX_COLUMNS rows */

	uint32_t n_placed_rows; /* of graph_place; commands may be recorded for more */
	uint32_t n_values;
	uint32_t n_values_room;
	struct graph_value *values;
	uint32_t n_table_entries;
	uint32_t n_ops;
	uint32_t n_ops_room;
	struct graph_op *ops;
};

void graph_fini(struct graph *g);

/* -ENOMEM. */
int must_check graph_add_value(
	struct graph *g, uint32_t width, bool is_logits, struct err *ret_err, uint32_t *ret_value);

/* n_extra words behind those of the rows. */
void graph_extend_value(struct graph *g, uint32_t value, uint32_t n_extra);

/* name: static. Without one it is a "value". */
void graph_name_value(struct graph *g, uint32_t value, const char *name);

/* What the partial sums of each attention take, in words; before graph_place. At first none. */
void graph_reserve_partials(struct graph *g, uint32_t n_words);

/* A place for the addresses of a tensor's ne[2] matrices, for an op's tables. */
uint32_t graph_add_table(struct graph *g, const struct weights_tensor *w);

/* Appends a copy of op; every value it reads has been written. -ENOMEM. */
int must_check graph_add_op(struct graph *g, const struct graph_op *op, struct err *ret_err);

/* The tensors that the op reads; those that it could have and has not are left out. */
uint32_t graph_op_get_tensors(
	struct graph_op *op, struct weights_tensor *ret_tensors[GRAPH_MAX_OP_TENSORS]);

/*
 * Gives each value its place for up to n_rows rows: 256-byte aligned, the lowest place that is free
 * from its first to its last op. ret_bytes: of scratch in all. -EOVERFLOW.
 */
int must_check graph_place(
	struct graph *g, uint32_t n_rows, struct err *ret_err, uint64_t *ret_bytes);

/* What a value takes for n_rows rows. */
uint64_t graph_value_bytes(const struct graph *g, uint32_t value, uint32_t n_rows);

/*
 * What the values that graph_place places would take if each had a place of its own (saturates),
 * and how many they are.
 */
uint64_t graph_sum_bytes(const struct graph *g, uint32_t n_rows, uint32_t *ret_n_values);

/* Of graph_place's values with a name: those with one place and name are one. */
struct graph_site {
	const char *name;
	uint64_t offset;
	uint64_t n_bytes;
	uint32_t n_values;
};

/*
 * The places after graph_place, by first use. Returns how many there are; the first n_room of them
 * are in ret_sites.
 */
uint32_t graph_get_sites(
	const struct graph *g, uint32_t n_rows, struct graph_site *ret_sites, uint32_t n_room);

/* Where each expert's matrices begin, as the ops have their tensors: [n_table_entries]. */
void graph_fill_tables(const struct graph *g, uint64_t *ret_addresses);

/* Marks ops with experts that w has in host memory and the device reads there. */
void graph_mark_far(struct graph *g, const struct weights *w);

#endif
