/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_ATTENTION_H
#define WORKERD_OPS_ATTENTION_H

/*
 * Causal attention of the rows over their sessions' pages, query heads sharing key heads. There is
 * a kernel that gives a row the same bits in any step (shaders/attention.comp), and those that are
 * faster: one cuts the keys of each row into parts (attention-split.comp), the others multiply
 * tiles of rows by tiles of keys (attention-matrix.comp, attention-tile.comp). Rows that are alone
 * in their session are no tile: in a step of many rows both kinds run side by side. Where all rows
 * are alone, one kernel does what op_rope_kv and the next product's quantize would, too
 * (attention-fused.comp).
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/kv-layout.h"

struct abi_row;
struct err;
struct op_pool;
struct op_rope_kv_params;
struct vk_command;
struct vk_device_info;

enum op_attention_kind {
	OP_ATTENTION_AUTO, /* chosen by rows and device */
	OP_ATTENTION_ROW,
	OP_ATTENTION_SPLIT,
	OP_ATTENTION_FUSED, /* SPLIT where it cannot be */
	OP_ATTENTION_TILE,
	OP_ATTENTION_MATRIX,
};

/* 0: chosen. */
struct op_attention_tune {
	enum op_attention_kind kind;
	uint32_t n_splits;  /* subgroups that share a row's or part's keys; of a tile: subgroups */
	uint32_t n_lanes;   /* that share a key; SPLIT, FUSED */
	uint32_t n_unroll;  /* keys of a lane at once; SPLIT, FUSED */
	uint32_t n_heads;   /* query heads of a workgroup; SPLIT, FUSED */
	uint32_t n_parts;   /* of a row or tile, at most */
	uint32_t part_keys; /* at least, see abi_attention */
	uint32_t n_keys;    /* of a tile, 32 or 64; MATRIX */
	bool is_ahead;      /* the next tile's keys are read meanwhile; MATRIX */
};

struct op_attention_params {
	uint64_t qkv;   /* device address of [m][(n_head + 2 n_head_kv) head_dim] f32; q is read */
	uint64_t y;     /* of [m][n_head * head_dim] f32; 0: with next */
	uint64_t rows;  /* of [m] struct abi_row */
	uint64_t m;     /* of u32: rows of the step */
	uint64_t table; /* of the page table, see workerd/kv.h */
	uint64_t spans; /* see op_attention_fill_spans; 0: none, so no tiles */
	uint64_t sinks; /* of [n_head] f32, scores of no value; 0: none */
	uint64_t partials; /* of op_attention_needs' bytes; 0: rows have one part */
	uint64_t counters; /* the same; they are 0 before the first dispatch ever, and after each */
	uint32_t n_head;   /* a multiple of n_head_kv */
	uint32_t n_head_kv;
	uint32_t head_dim; /* even, at most OP_ATTENTION_MAX_HEAD_DIM */
	uint32_t n_slot_pages;
	uint32_t layer;
	uint32_t window; /* keys that a row sees, its own among them; 0: all before it */
	float cap;       /* scores become cap tanh(score / cap); 0: they stay */
	enum kv_layout_type kv_type;
	uint32_t n_rows;  /* the most that m can be */
	uint32_t n_spans; /* the n_rows that op_attention_fill_spans is called with */
	bool is_exact;    /* a row has the same bits in any step, unless a kind is asked for */
	bool is_spread;   /* rows are each of another session, and see few keys in all */
	/*
	 * What op_rope_kv would do with the same qkv, rows and pages is done, too (qkv stays as it
	 * is), where op_attention_takes_rope says so. NULL: it has been done.
	 */
	const struct op_rope_kv_params *rope;
	/* With rope: y as bytes, see op_matvec_take_staged; 0: not. */
	uint64_t next;
	uint32_t next_order;
	struct op_attention_tune tune;
};

enum {
	OP_ATTENTION_MAX_HEAD_DIM = 256, /* query and sums stay in a subgroup's registers */
	OP_ATTENTION_MAX_SPLITS = 16,    /* of parts */
	OP_ATTENTION_ROW_MAX_SPLITS =
		8, /* of a row: their sums take up to 17 KiB of shared memory */
	OP_ATTENTION_TILE_MIN_ROWS = 4, /* fewer are taken one by one */
	OP_ATTENTION_LIST_ROWS = 8,     /* steps of fewer rows never have tiles */
	/* Few: with more, FUSED is slower than what it takes the place of. */
	OP_ATTENTION_FUSED_KEYS = 8192,
};

/* What an op with these parameters (its addresses are not looked at) takes besides. */
struct op_attention_needs {
	uint64_t n_partial_bytes; /* of scratch, during the op */
	uint64_t n_counter_bytes; /* of memory that nobody else writes; zeros at first */
	uint32_t n_tile_rows;     /* for op_attention_fill_spans; 0: no tiles */
};

/* Any thread. */
void op_attention_get_needs(const struct vk_device_info *info,
	const struct op_attention_params *params, struct op_attention_needs *ret_needs);

/* Bytes of the spans of up to n_rows rows, in io memory. */
uint64_t op_attention_span_bytes(uint32_t n_rows);

/*
 * Before a step: finds its tiles and the rows that are none. Rows of a session are consecutive and
 * their positions ascend. ret_spans: op_attention_span_bytes(n_spans), n_spans >= n_rows. Any
 * thread.
 */
void op_attention_fill_spans(const struct abi_row *rows, uint32_t n_rows, uint32_t n_tile_rows,
	uint32_t n_spans, uint32_t *ret_spans);

/* Is it worth it, and possible, to give it the rope? (p->rope is not looked at.) */
bool op_attention_takes_rope(const struct op_pool *pool, const struct op_attention_params *params);

/* And can it make bytes of its y? */
bool op_attention_has_next(const struct op_attention_params *params);

/*
 * Records it. -ENOTSUP for heads that the kernel cannot hold, for more pages a slot than it counts,
 * and for a kind (tune) that the device or the build does not have. Engine thread.
 */
int must_check op_attention_record(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *params, struct err *ret_err);

#endif
