/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ABI_H
#define SHADERS_ABI_H

/*
 * What C and GLSL agree on: the push constants of every kernel, its specialization constants and
 * the structs in io memory. Read by both compilers, so only what both understand: plain structs
 * whose members lie the same way in C and in std430. ABI_ADDRESS is a 64-bit device address.
 */
#ifdef VULKAN
#define ABI_ADDRESS uvec2
#define ABI_U32 uint
#define ABI_F32 float
#else
#include <stdint.h>
#define ABI_ADDRESS uint64_t
#define ABI_U32 uint32_t
#define ABI_F32 float
#endif

/* Most matrices that one dispatch multiplies by the same rows: q, k and v. */
#define ABI_MATMUL_MAX_PARTS 3

/* Most experts of a layer, and of those that one row takes. */
#define ABI_MAX_EXPERTS 512
#define ABI_MAX_EXPERTS_USED 32

/* Rows of a group: all of one expert, multiplied together. */
#define ABI_GROUP_ROWS 4
#define ABI_MIN_WIDE_ROWS 16 /* of a wide group, on matrices; it has a multiple */

/* Rows of a tile that a workgroup of matrix-sum finishes. */
#define ABI_MATRIX_SUM_ROWS 8

/* constant_id: every kernel has the first two. */
#define ABI_SPEC_LOCAL_SIZE 0 /* invocations of a workgroup: a multiple of the subgroup size */
#define ABI_SPEC_SUBGROUP 1   /* invocations of a subgroup: 8 to 64 */
#define ABI_SPEC_KERNEL 2     /* the kernel's own from here on */

/* A tile (tile.glsl): rows of W and rows of x of one subgroup's registers, then what is fused. */
#define ABI_TILE_SPEC_N (ABI_SPEC_KERNEL + 0)
#define ABI_TILE_SPEC_M (ABI_SPEC_KERNEL + 1)
#define ABI_TILE_SPEC_NORM (ABI_SPEC_KERNEL + 2)   /* 1: x is RMS-normalised on the way in */
#define ABI_TILE_SPEC_FINISH (ABI_SPEC_KERNEL + 3) /* ABI_TILE_FINISH_* */
#define ABI_TILE_SPEC_KERNEL (ABI_SPEC_KERNEL + 4) /* the kernel's own from here on */

#define ABI_TILE_FINISH_STORE 0  /* y = W x */
#define ABI_TILE_FINISH_ADD 1    /* y = r + W x */
#define ABI_TILE_FINISH_GATE 2   /* y = silu(r) * W x */
#define ABI_TILE_FINISH_SWIGLU 3 /* y = silu(W[0] x) * W[1] x */
#define ABI_TILE_FINISH_MIX 4    /* y = y + sum over a row's experts of weight * W x */

#define ABI_MATMUL_SPEC_GATHER (ABI_TILE_SPEC_KERNEL + 0) /* 1: row i of x is x[want[i]] */

/*
 * quantize: rows of x as signed bytes, for the integer kernels. A row of k, k % 64 == 0, is cut
 * into units of 64 numbers, those into four quads of 16. In staging, one after the other:
 *
 *	[4][k / 64] uvec4     the quads: those of one place in their units side by side
 *	[2][k / 64] uvec2     of the halves of the units: f32 scale d, i16 sums of its two quads
 *	[k / 32] f32          sums of the squares of 32 numbers each, before the gain
 *
 * x = d q. What number a byte of a half is, ABI_QUANT_ORDER says: that which falls out of the
 * weights' bits by a shift and a mask.
 */
#define ABI_QUANT_SPEC_NORM (ABI_SPEC_KERNEL + 0)   /* 1: x gain, and the squares are summed */
#define ABI_QUANT_SPEC_GATHER (ABI_SPEC_KERNEL + 1) /* 1: row i of x is x[want[i]] */
#define ABI_QUANT_SPEC_ORDER (ABI_SPEC_KERNEL + 2)  /* ABI_QUANT_ORDER_* */

/* Byte b of word w (0 to 7) of 32 numbers is number */
#define ABI_QUANT_ORDER_PLAIN 0 /* 4 w + b */
#define ABI_QUANT_ORDER_BY4 1   /* 16 (w / 4) + 4 b + w % 4 */
#define ABI_QUANT_ORDER_BY8 2   /* 8 b + w */

/* Bytes from one row of staging to the next. */
#define ABI_QUANT_ROW_BYTES(k) (((k) + (k) / 4 + (k) / 8 + 15) / 16 * 16)

/* router: the first three as quantize has them. */
#define ABI_ROUTER_SPEC_BYTES (ABI_SPEC_KERNEL + 3) /* 1: rows of x are staged as bytes */

/* matvec: the first two as quantize has them. */
#define ABI_MATVEC_SPEC_ROWS (ABI_SPEC_KERNEL + 3)    /* of W, of a subgroup */
#define ABI_MATVEC_SPEC_COLUMNS (ABI_SPEC_KERNEL + 4) /* rows of x */
#define ABI_MATVEC_SPEC_UNROLL (ABI_SPEC_KERNEL + 5)  /* units of a lane in one round */
#define ABI_MATVEC_SPEC_AHEAD \
	(ABI_SPEC_KERNEL + 6) /* 1: the next round is loaded before one is summed */
#define ABI_MATVEC_SPEC_FINISH (ABI_SPEC_KERNEL + 7) /* ABI_TILE_FINISH_* */
#define ABI_MATVEC_SPEC_UNITS \
	(ABI_SPEC_KERNEL + 8) /* 0: reads staging; else quantises, k <= 64 of it */
#define ABI_MATVEC_SPEC_WHOLE (ABI_SPEC_KERNEL + 9) /* 1: rows of W are whole rounds */
/* 1 + ABI_QUANT_ORDER_*: y is staged too, for whoever multiplies it next; 0: not. */
#define ABI_MATVEC_SPEC_NEXT (ABI_SPEC_KERNEL + 10)
/* 1: y gain, and the squares are summed */
#define ABI_MATVEC_SPEC_NEXT_NORM (ABI_SPEC_KERNEL + 11)

/* Units of a lane whose x stays in registers; 0: x is read for each tile. */
#define ABI_MATVEC_SPEC_HOLD (ABI_SPEC_KERNEL + 12)
/* Subgroups that share a tile, each with HOLD units a lane: k <= 64 SUBGROUP HOLD SPLIT */
#define ABI_MATVEC_SPEC_SPLIT (ABI_SPEC_KERNEL + 13)
/* Tiles of each that they make before they add up; without NEXT, which says it itself */
#define ABI_MATVEC_SPEC_RUN (ABI_SPEC_KERNEL + 14)

/* Of experts: as matvec; UNITS: with MIX those of a row's pairs, else 0. */
#define ABI_MATVEC_EXPERTS_SPEC_ROUTE ABI_QUANT_SPEC_GATHER /* 1: choice is made from logits */
/* SWIGLU: units of a lane whose x stays in registers, or 0; MIX: k / 64 */
#define ABI_MATVEC_EXPERTS_SPEC_X ABI_MATVEC_SPEC_HOLD

#define ABI_EXPERTS_SPEC_ROWS (ABI_TILE_SPEC_KERNEL + 0) /* ABI_EXPERTS_ROWS_* */
#define ABI_EXPERTS_SPEC_FAR (ABI_TILE_SPEC_KERNEL + 1)  /* 1: W is in host memory (far.glsl) */

/* Which rows a tile of experts has. */
#define ABI_EXPERTS_ROWS_CHOICE 0 /* one, of one of its experts, which the choice says */
#define ABI_EXPERTS_ROWS_ROUTE 1  /* the same, chosen from the logits on the way; MIX: no such */
#define ABI_EXPERTS_ROWS_GROUP 2  /* of a group, all of one expert */

/* matrix: rows of W and of x of a workgroup, its steps of k; those of a subgroup; the device's. */
#define ABI_MATRIX_SPEC_BN (ABI_SPEC_KERNEL + 0)
#define ABI_MATRIX_SPEC_BM (ABI_SPEC_KERNEL + 1)
#define ABI_MATRIX_SPEC_BK (ABI_SPEC_KERNEL + 2)
#define ABI_MATRIX_SPEC_SN (ABI_SPEC_KERNEL + 3)
#define ABI_MATRIX_SPEC_SM (ABI_SPEC_KERNEL + 4)
#define ABI_MATRIX_SPEC_N (ABI_SPEC_KERNEL + 5)
#define ABI_MATRIX_SPEC_M (ABI_SPEC_KERNEL + 6)
#define ABI_MATRIX_SPEC_K (ABI_SPEC_KERNEL + 7)
#define ABI_MATRIX_SPEC_BUFFERS (ABI_SPEC_KERNEL + 8) /* of steps in shared memory: 1 or 2 */
#define ABI_MATRIX_SPEC_FINISH (ABI_SPEC_KERNEL + 9)  /* ABI_TILE_FINISH_* but MIX */
#define ABI_MATRIX_SPEC_RAGGED (ABI_SPEC_KERNEL + 10) /* 1: tiles may have few rows of x */
#define ABI_MATRIX_SPEC_DIRECT (ABI_SPEC_KERNEL + 11) /* 1: x is not put into shared memory */
#define ABI_MATRIX_SPEC_ORDER (ABI_SPEC_KERNEL + 12)  /* 0: unknown, see matrix-wide.glsl */

/* fragment: the shape of a matrix. */
#define ABI_FRAGMENT_SPEC_M (ABI_SPEC_KERNEL + 0)
#define ABI_FRAGMENT_SPEC_N (ABI_SPEC_KERNEL + 1)
#define ABI_FRAGMENT_SPEC_K (ABI_SPEC_KERNEL + 2)
#define ABI_FRAGMENT_MAX_NUMBERS 1024 /* of a matrix */
#define ABI_FRAGMENT_ELEMENTS 32      /* of a lane, at most */
#define ABI_FRAGMENT_NONE 0xffffffffu

/*
 * skinny: matrices of rows of W and sets of rows of x of a subgroup; subgroups side by side, and
 * with shares of k of the same rows; the device's matrices, and lanes that share a row in them.
 */
#define ABI_SKINNY_SPEC_FRAGMENTS (ABI_SPEC_KERNEL + 0)
#define ABI_SKINNY_SPEC_SETS (ABI_SPEC_KERNEL + 1)
#define ABI_SKINNY_SPEC_GROUPS (ABI_SPEC_KERNEL + 2)
#define ABI_SKINNY_SPEC_SHARES (ABI_SPEC_KERNEL + 3)
#define ABI_SKINNY_SPEC_M (ABI_SPEC_KERNEL + 4)
#define ABI_SKINNY_SPEC_K (ABI_SPEC_KERNEL + 5)
#define ABI_SKINNY_SPEC_LANES (ABI_SPEC_KERNEL + 6)
#define ABI_SKINNY_SPEC_FINISH (ABI_SPEC_KERNEL + 7) /* ABI_TILE_FINISH_* but MIX */
#define ABI_SKINNY_SPEC_STEP (ABI_SPEC_KERNEL + 8)   /* 1: lanes of a subgroup run in step */
#define ABI_SKINNY_SPEC_NEXT (ABI_SPEC_KERNEL + 9)   /* 1 + ABI_SKINNY_ORDER_*; 0: y is stored */

#define ABI_SKINNY_STAGE_SPEC_NORM (ABI_SPEC_KERNEL + 0)
#define ABI_SKINNY_STAGE_SPEC_GATHER (ABI_SPEC_KERNEL + 1)
#define ABI_SKINNY_STAGE_SPEC_ORDER (ABI_SPEC_KERNEL + 2) /* ABI_SKINNY_ORDER_* */
#define ABI_SKINNY_STAGE_SPEC_LANES (ABI_SPEC_KERNEL + 3)

#define ABI_SKINNY_COLUMNS 8 /* rows of x of a set: the n of the device's matrices */
#define ABI_SKINNY_CHUNK 128 /* numbers of k that lanes share */

/* Units of eight numbers of a chunk that a piece of W has: piece p of four has unit j at */
#define ABI_SKINNY_ORDER_PLAIN 0 /* 4 p + j */
#define ABI_SKINNY_ORDER_BY8 1   /* 4 j + p */
#define ABI_SKINNY_ORDER_BY16 2  /* 8 (p / 2) + 4 (j / 2) + 2 (p % 2) + j % 2 */

#define ABI_STAGE_SPEC_NORM (ABI_SPEC_KERNEL + 0)
#define ABI_STAGE_SPEC_GATHER (ABI_SPEC_KERNEL + 1)
#define ABI_STAGE_SPEC_BLOCKS (ABI_SPEC_KERNEL + 2)

/* attention: query heads of one workgroup, all of the same key head. */
#define ABI_ATTENTION_SPEC_HEADS (ABI_SPEC_KERNEL + 0)
#define ABI_ATTENTION_SPEC_HEAD_DIM (ABI_SPEC_KERNEL + 1)
#define ABI_ATTENTION_SPEC_LANES (ABI_SPEC_KERNEL + 2)  /* that share a key */
#define ABI_ATTENTION_SPEC_SPLITS (ABI_SPEC_KERNEL + 3) /* subgroups of a workgroup */
#define ABI_ATTENTION_SPEC_FLAGS (ABI_SPEC_KERNEL + 4)  /* ABI_ATTENTION_FLAG_* */
#define ABI_ATTENTION_SPEC_UNROLL (ABI_SPEC_KERNEL + 5) /* split: keys of a lane in one round */
/* fused, too: numbers that turn; the cap's bits; 1 + ABI_QUANT_ORDER_*: y as bytes, 0: none. */
#define ABI_ATTENTION_SPEC_ROT (ABI_SPEC_KERNEL + 6)
#define ABI_ATTENTION_SPEC_CAP (ABI_SPEC_KERNEL + 7)
#define ABI_ATTENTION_SPEC_NEXT (ABI_SPEC_KERNEL + 8)
#define ABI_ATTENTION_SPEC_GROUP (ABI_SPEC_KERNEL + 9) /* query heads of a key head */
#define ABI_ATTENTION_UNROLL 4                         /* the same of the kernel for a row */

#define ABI_ATTENTION_FLAG_CAP 1    /* scores become cap tanh(score / cap) */
#define ABI_ATTENTION_FLAG_SINKS 2  /* each head has a score of no value */
#define ABI_ATTENTION_FLAG_LIST 4   /* rows are those of the list, not all */
#define ABI_ATTENTION_FLAG_STEP 8   /* lanes of a subgroup run in step, see attention-matrix.comp */
#define ABI_ATTENTION_FLAG_AHEAD 16 /* matrix: keys are read while others are computed with */

#define ABI_ATTENTION_FLAG_ONE 32        /* fused: the step has one row */
#define ABI_ATTENTION_FLAG_NEIGHBOURS 64 /* fused: x[2i] and x[2i+1] turn together; else halves */

/* attention in tiles: query heads of one key head, rows and keys of a tile, shapes of matrices. */
#define ABI_ATTENTION_TILE_SPEC_HEADS (ABI_SPEC_KERNEL + 0)
#define ABI_ATTENTION_TILE_SPEC_HEAD_DIM (ABI_SPEC_KERNEL + 1)
#define ABI_ATTENTION_TILE_SPEC_KEYS (ABI_SPEC_KERNEL + 2)
#define ABI_ATTENTION_TILE_SPEC_ROWS (ABI_SPEC_KERNEL + 3)
#define ABI_ATTENTION_TILE_SPEC_FLAGS ABI_ATTENTION_SPEC_FLAGS
#define ABI_ATTENTION_TILE_SPEC_M (ABI_SPEC_KERNEL + 5)
#define ABI_ATTENTION_TILE_SPEC_N (ABI_SPEC_KERNEL + 6)
#define ABI_ATTENTION_TILE_SPEC_K (ABI_SPEC_KERNEL + 7)

/*
 * Keys of a row or tile are cut into parts, of workgroups that leave their sums in slots; the last
 * of them adds those up. There are so many slots, and so many parts of a row or tile, at most.
 */
#define ABI_ATTENTION_SLOTS 1024
#define ABI_ATTENTION_TILE_SLOTS 512
#define ABI_ATTENTION_MAX_PARTS 64

/* One row of a step, in io memory: one token of one session. */
/* As a row's token: what was picked for wanted row (token without this bit) of the step before. */
#define ABI_ROW_PICKED 0x80000000u

struct abi_row {
	ABI_U32 token; /* or ABI_ROW_PICKED | row, for embed */
	ABI_U32 position;
	ABI_U32 slot;
};

struct abi_embed {
	ABI_ADDRESS w;      /* [n_vocab][k] */
	ABI_ADDRESS rows;   /* [m] struct abi_row */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_ADDRESS y;      /* [m][k] f32 */
	ABI_ADDRESS picked; /* [rows that best was for] u32; 0: no row has ABI_ROW_PICKED */
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
};

struct abi_matmul {
	ABI_ADDRESS w[ABI_MATMUL_MAX_PARTS]; /* [n][k] each; 0 where unused */
	ABI_ADDRESS x;                       /* [m][k] f32, or what want chooses from */
	ABI_ADDRESS y;                       /* [m][y_stride] f32 */
	ABI_ADDRESS gain;                    /* [k] f32 with NORM */
	ABI_ADDRESS r;                       /* [m][y_stride] f32 with ADD and GATE; may be y */
	ABI_ADDRESS m;                       /* u32: rows of this step */
	ABI_ADDRESS want;                    /* [m] u32 with GATHER */
	ABI_U32 n[ABI_MATMUL_MAX_PARTS];     /* rows of each matrix; 0 where unused */
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 y_stride;    /* floats */
	ABI_F32 eps;
};

struct abi_matrix {
	ABI_ADDRESS w[ABI_MATMUL_MAX_PARTS]; /* [n][k] each; 0 where unused */
	ABI_ADDRESS x;                       /* [m][k] f16 */
	ABI_ADDRESS y;                       /* [m][y_stride] f32 */
	ABI_ADDRESS r;                       /* [m][y_stride] f32 with ADD and GATE; may be y */
	ABI_ADDRESS m;                       /* u32: rows of this step */
	ABI_ADDRESS partial;                 /* [n_streams][2][BM][BN] f32 */
	ABI_U32 n[ABI_MATMUL_MAX_PARTS];     /* rows of each matrix; 0 where unused */
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 y_stride;    /* floats */
	ABI_U32 n_streams;   /* see matrix-share.glsl; 0: none */
	ABI_U32 pad;
};

/* Numbers of a matrix of 16 by 16 that each of 32 lanes has. */
#define ABI_MATRIX_ORDER_NUMBERS 8

struct abi_matrix_order {
	ABI_ADDRESS x; /* [16][16] f16 */
	ABI_ADDRESS y; /* [2][32][ABI_MATRIX_ORDER_NUMBERS] u32 */
};

struct abi_matrix_decode {
	ABI_ADDRESS w; /* [n][k] in a block format */
	ABI_ADDRESS y; /* [n][k] f16 */
	ABI_U32 n;
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 pad;
};

/*
 * Orders of the f16 in a row: as they are, or of each four the second and the third in each other's
 * place (matrix-q4_k.glsl).
 */
#define ABI_STAGE_PLAIN 0
#define ABI_STAGE_SWAPPED 1

struct abi_stage {
	ABI_ADDRESS x;    /* [m n_share][k] f32, or what want chooses from */
	ABI_ADDRESS y;    /* [m n_share][k] f16 */
	ABI_ADDRESS gain; /* [k] f32 with NORM */
	ABI_ADDRESS want; /* [m n_share] u32 with GATHER */
	ABI_ADDRESS m;    /* u32: rows of this step */
	ABI_U32 n_share;  /* rows of x for each of *m */
	ABI_U32 k;        /* a multiple of 8 */
	ABI_F32 eps;
	ABI_U32 order; /* ABI_STAGE_* */
};

struct abi_fragment {
	ABI_ADDRESS y; /* [2][lanes][ABI_FRAGMENT_ELEMENTS] u32 */
};

struct abi_skinny_stage {
	ABI_ADDRESS x;        /* [m][k] f32, or what want chooses from */
	ABI_ADDRESS y;        /* see skinny-order.glsl */
	ABI_ADDRESS gain;     /* [k] f32 with NORM */
	ABI_ADDRESS want;     /* [m] u32 with GATHER */
	ABI_ADDRESS m;        /* u32: rows of this step */
	ABI_ADDRESS counters; /* [n_counters] u32 */
	ABI_U32 k;
	ABI_U32 n_sets;
	ABI_U32 n_counters;
	ABI_F32 eps;
};

struct abi_skinny {
	ABI_ADDRESS w[ABI_MATMUL_MAX_PARTS]; /* [n][k] each; 0 where unused */
	ABI_ADDRESS x;                       /* see skinny-order.glsl */
	ABI_ADDRESS y;                       /* [m][y_stride] f32 */
	ABI_ADDRESS r;                       /* [m][y_stride] f32 with ADD and GATE; may be y */
	ABI_ADDRESS m;                       /* u32: rows of this step */
	ABI_ADDRESS partials; /* [workgroups][rows of W][SETS * 8] f32; where n_splits > 1 */
	ABI_ADDRESS counters; /* [tiles] u32, 0; where n_splits > 1 */
	ABI_ADDRESS next;     /* with NEXT: x of the next op, and its counters */
	ABI_ADDRESS next_counters;
	ABI_U32 n[ABI_MATMUL_MAX_PARTS]; /* rows of each matrix; 0 where unused */
	ABI_U32 n_slices;                /* of a row of W */
	ABI_U32 n_row_bytes;             /* of W */
	ABI_U32 y_stride;                /* floats */
	ABI_U32 n_splits;                /* workgroups that share a tile */
	ABI_U32 n_next_counters;
};

struct abi_quantize {
	ABI_ADDRESS x;       /* [m][k] f32, or what want chooses from */
	ABI_ADDRESS gain;    /* [k] f32 with NORM */
	ABI_ADDRESS m;       /* u32: rows of this step */
	ABI_ADDRESS want;    /* [m] u32 with GATHER */
	ABI_ADDRESS staging; /* [m] rows of ABI_QUANT_ROW_BYTES(k) */
	ABI_U32 k;
	ABI_U32 pad;
};

struct abi_matvec {
	ABI_ADDRESS w[ABI_MATMUL_MAX_PARTS]; /* [n][k] each; 0 where unused */
	ABI_ADDRESS x;                       /* as in abi_matmul; unused where staging is read */
	ABI_ADDRESS y;                       /* [m][y_stride] f32; 0 with NEXT: only staged */
	ABI_ADDRESS gain;                    /* [k] f32 with NORM */
	ABI_ADDRESS r;                       /* [m][y_stride] f32 with ADD; may be y */
	ABI_ADDRESS m;                       /* u32: rows of this step */
	ABI_ADDRESS want;                    /* [m] u32 with GATHER */
	ABI_ADDRESS staging;                 /* [m] rows of ABI_QUANT_ROW_BYTES(k) */
	ABI_ADDRESS next;                    /* [m] rows of ABI_QUANT_ROW_BYTES(y_stride) */
	ABI_ADDRESS next_gain;               /* [y_stride] f32 with NEXT_NORM */
	ABI_U32 n[ABI_MATMUL_MAX_PARTS];     /* rows of each matrix; 0 where unused */
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 y_stride;    /* floats */
	ABI_F32 eps;
	ABI_U32 pad;
};

struct abi_rope_kv {
	ABI_ADDRESS qkv; /* [m][(n_head + 2 * n_head_kv) * head_dim] f32; q is changed in place */
	ABI_ADDRESS q_gain; /* [head_dim] f32; 0: q has no norm */
	ABI_ADDRESS k_gain; /* [head_dim] f32; 0: k has no norm */
	ABI_ADDRESS turns;  /* [n_rot / 2] uvec2, see op_rope_kv_fill_turns; the low word first */
	ABI_ADDRESS rows;   /* [m] struct abi_row */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_ADDRESS table;  /* [n_slots][n_slot_pages] u64, see workerd/kv.h */
	ABI_U32 n_head;
	ABI_U32 n_head_kv;
	ABI_U32 head_dim;
	ABI_U32 n_rot;
	ABI_U32 n_slot_pages;
	ABI_U32 layer;
	ABI_F32 eps;
	ABI_U32 is_interleaved; /* 1: x[2i] and x[2i+1] turn together; 0: the halves do */
};

/* Rows [first, first + n) of a step, all of one session, of positions one after the other. */
struct abi_span {
	ABI_U32 first;
	ABI_U32 n;
	ABI_U32 slot;
	ABI_U32 position; /* of the first */
};

/* All kernels for attention. */
struct abi_attention {
	ABI_ADDRESS qkv;      /* [m][(n_head + 2 * n_head_kv) * head_dim] f32; q is read */
	ABI_ADDRESS y;        /* [m][n_head * head_dim] f32 */
	ABI_ADDRESS rows;     /* [m] struct abi_row */
	ABI_ADDRESS m;        /* u32: rows of this step */
	ABI_ADDRESS table;    /* [n_slots][n_slot_pages] u64, see workerd/kv.h */
	ABI_ADDRESS list;     /* u32 n, 3 u32, then [n] struct abi_span; with LIST and of tiles */
	ABI_ADDRESS sinks;    /* [n_head] f32 with SINKS */
	ABI_ADDRESS partials; /* of the slots, see attention.glsl; where n_parts > 1 */
	ABI_ADDRESS counters; /* u32 each, 0 between dispatches; where n_parts > 1 */
	ABI_U32 n_head;
	ABI_U32 n_head_kv;
	ABI_U32 n_slot_pages;
	ABI_U32 layer;
	ABI_U32 window;    /* keys that a row sees, its own among them; 0: all */
	ABI_U32 n_parts;   /* of a row or tile, at most */
	ABI_U32 part_keys; /* a part has no fewer, unless it is the only one */
	ABI_F32 scale;     /* 1 / sqrt(head_dim) */
	ABI_F32 cap;       /* with CAP */
	ABI_U32 pad;
};

/* attention with the rotation before it: rows of a step that are each of another session. */
struct abi_attention_fused {
	ABI_ADDRESS qkv;      /* [m][(n_head + 2 * n_head_kv) * head_dim] f32, as projected */
	ABI_ADDRESS y;        /* [m][n_head * head_dim] f32; 0 with NEXT: only staged */
	ABI_ADDRESS rows;     /* [m] struct abi_row */
	ABI_ADDRESS m;        /* u32: rows of this step; without ONE */
	ABI_ADDRESS table;    /* [n_slots][n_slot_pages] u64, see workerd/kv.h */
	ABI_ADDRESS sinks;    /* [n_head] f32 with SINKS */
	ABI_ADDRESS partials; /* of the slots, see attention.glsl; where n_parts > 1 */
	ABI_ADDRESS counters; /* u32 each, 0 between dispatches; where n_parts > 1 */
	ABI_ADDRESS q_gain;   /* [head_dim] f32; 0: q has no norm */
	ABI_ADDRESS k_gain;   /* [head_dim] f32; 0: k has no norm */
	ABI_ADDRESS turns;    /* [n_rot / 2] uvec2, see op_rope_kv_fill_turns; the low word first */
	ABI_ADDRESS next;     /* [m] rows of ABI_QUANT_ROW_BYTES(n_head * head_dim) with NEXT */
	ABI_U32 n_head;
	ABI_U32 n_head_kv;
	ABI_U32 n_slot_pages;
	ABI_U32 layer;
	ABI_U32 window;    /* keys that a row sees, its own among them; 0: all */
	ABI_U32 n_parts;   /* of a row, at most; with ONE a power of two, and there are slots for it
			    */
	ABI_U32 part_keys; /* a part has no fewer, unless it is the only one; with ONE whole pages
			    */
	ABI_F32 eps;       /* of the norms */
};

/* An expert that a row takes, and how much of it. */
struct abi_choice {
	ABI_U32 expert;
	ABI_F32 weight;
};

/* Pairs [first, first + n) of the sorted ones, of one expert; n is 0 in a slot that is not used. */
struct abi_group {
	ABI_U32 expert;
	ABI_U32 first;
	ABI_U32 n; /* at most ABI_GROUP_ROWS, or wide_rows */
};

struct abi_route {
	ABI_ADDRESS logits; /* [m][n_expert] f32 */
	ABI_ADDRESS choice; /* [m][n_used] struct abi_choice */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n_expert;
	ABI_U32 n_used;
};

struct abi_router {
	ABI_ADDRESS w;       /* [n_expert][k] f32 */
	ABI_ADDRESS x;       /* [m][k] f32 */
	ABI_ADDRESS gain;    /* [k] f32 with NORM */
	ABI_ADDRESS logits;  /* [m][n_expert] f32 */
	ABI_ADDRESS staging; /* [m] rows of ABI_QUANT_ROW_BYTES(k) with BYTES */
	ABI_ADDRESS m;       /* u32: rows of this step */
	ABI_U32 n_expert;
	ABI_U32 k;
	ABI_F32 eps;
	ABI_U32 pad;
};

struct abi_group_push {
	ABI_ADDRESS choice; /* [m][n_used] struct abi_choice */
	ABI_ADDRESS pairs;  /* [m * n_used] u32: row * n_used + rank, sorted by expert */
	ABI_ADDRESS groups; /* [m * n_used / ABI_GROUP_ROWS + n_expert] struct abi_group */
	ABI_ADDRESS wide;   /* as groups, of wide_rows; 0: not wanted */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n_expert;
	ABI_U32 n_used;
	ABI_U32 wide_rows;
	ABI_U32 pad;
};

struct abi_experts {
	ABI_ADDRESS w[2];   /* [n_expert] u64 each: where an expert's [n][k] begins */
	ABI_ADDRESS x;      /* [m * n_used / x_share][k] f32 */
	ABI_ADDRESS y;      /* [m * n_used][n] f32; with MIX [m][n], added to */
	ABI_ADDRESS gain;   /* [k] f32 with NORM */
	ABI_ADDRESS logits; /* [m][n_expert] f32 with ROUTE */
	ABI_ADDRESS choice; /* [m][n_used] struct abi_choice; written with ROUTE */
	ABI_ADDRESS pairs;  /* with GROUP, see abi_group_push */
	ABI_ADDRESS groups; /* with GROUP */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n;
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 n_expert;
	ABI_U32 n_used;
	ABI_U32 x_share; /* pairs that have one row of x: n_used or 1 */
	ABI_F32 eps;
	ABI_U32 pad;
};

struct abi_matrix_experts {
	ABI_ADDRESS w[2];   /* [n_expert] u64 each: where an expert's [n][k] begins */
	ABI_ADDRESS x;      /* [m * n_used / x_share][k] f16 */
	ABI_ADDRESS y;      /* [m * n_used][n] f32, or f16 */
	ABI_ADDRESS pairs;  /* see abi_group_push */
	ABI_ADDRESS groups; /* its wide ones */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n;
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 n_expert;
	ABI_U32 n_used;
	ABI_U32 x_share; /* pairs that have one row of x: n_used or 1 */
	ABI_U32 is_half; /* 1: y is f16 */
	ABI_U32 order;   /* of it: ABI_STAGE_* */
};

/* Experts of few rows by bytes. */
struct abi_matvec_experts {
	ABI_ADDRESS w[2]; /* [n_expert][n][k] each, or [n_expert] u64: where those begin */
	ABI_ADDRESS x;    /* SWIGLU: [m] rows of ABI_QUANT_ROW_BYTES(k); MIX: [m * n_used][k] f32 */
	ABI_ADDRESS y;    /* SWIGLU: [m * n_used][n] f32; MIX: [m][n] f32, added to */
	ABI_ADDRESS logits;    /* [m][n_expert] f32 with ROUTE */
	ABI_ADDRESS choice;    /* [m][n_used] struct abi_choice; written with ROUTE */
	ABI_ADDRESS m;         /* u32: rows of this step */
	ABI_ADDRESS next;      /* y: [m] rows of ABI_QUANT_ROW_BYTES(n) with NEXT */
	ABI_ADDRESS next_gain; /* [n] f32 with NEXT_NORM */
	ABI_U32 n;
	ABI_U32 k;
	ABI_U32 n_row_bytes; /* of W */
	ABI_U32 n_expert;
	ABI_U32 n_used;
	ABI_U32 n_expert_bytes; /* of W; 0: w are tables */
	ABI_F32 eps;
	ABI_U32 pad;
};

#define ABI_MIX_COLUMNS 4 /* of a lane */

struct abi_mix {
	ABI_ADDRESS z;      /* [m * n_used][n] f32 */
	ABI_ADDRESS y;      /* [m][n] f32, added to */
	ABI_ADDRESS choice; /* [m][n_used] struct abi_choice */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n;
	ABI_U32 n_used;
};

/* The best of a row of logits, found in parts first. */
#define ABI_BEST_N 64
#define ABI_BEST_PARTS 64
#define ABI_BEST_HELD 4096 /* keys of a part that a workgroup keeps in registers */
#define ABI_BEST_NONE 0xffffffffu

struct abi_best {
	ABI_F32 logit;
	ABI_U32 index; /* or ABI_BEST_NONE: there are fewer */
};

struct abi_best_push {
	ABI_ADDRESS logits; /* [m][n] f32 */
	ABI_ADDRESS parts;  /* [m][n_parts][ABI_BEST_N] struct abi_best */
	ABI_ADDRESS y;      /* [m][ABI_BEST_N] struct abi_best */
	ABI_ADDRESS picked; /* [m] u32, the index of the best, 0 where there is none; 0: nowhere */
	ABI_ADDRESS asked;  /* [m] u32, 1: of the row the best alone, else all; 0: all of each */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n;
	ABI_U32 n_parts; /* of a row: 1 to ABI_BEST_PARTS */
};

struct abi_memory {
	ABI_ADDRESS src; /* [n] units of 16 bytes */
	ABI_ADDRESS dst; /* the same, or one word */
	ABI_U32 n;
	ABI_U32 pad;
};

/* fma: chains of four numbers each in registers, and so many steps of all of them a round. */
#define ABI_FMA_CHAINS 3 /* 12 registers: a processor has 16 */
#define ABI_FMA_UNROLL 8
#define ABI_FMA_ROUND_FLOPS (2 * 4 * ABI_FMA_CHAINS * ABI_FMA_UNROLL)

struct abi_fma {
	ABI_ADDRESS dst; /* one word */
	ABI_U32 n_rounds;
	ABI_F32 factor;
	ABI_F32 addend;
	ABI_U32 pad;
};

/* matrix-peak: so many matrices of A, and of B, in registers; the numbers in them. */
#define ABI_MATRIX_PEAK_SPEC_M (ABI_SPEC_KERNEL + 0)
#define ABI_MATRIX_PEAK_SPEC_N (ABI_SPEC_KERNEL + 1)
#define ABI_MATRIX_PEAK_SPEC_K (ABI_SPEC_KERNEL + 2)
#define ABI_MATRIX_PEAK_SIDE 4
#define ABI_MATRIX_PEAK_FACTOR 2654435761u

struct abi_matrix_peak {
	ABI_ADDRESS y; /* a word for each subgroup */
	ABI_U32 n_rounds;
	ABI_U32 pad;
};

/*
 * The cache of a layer's experts: where their matrices are in host memory, and the slots of device
 * memory for some of them. Parts are gate, up and down.
 */
#define ABI_CACHE_PARTS 3
#define ABI_CACHE_NO_EXPERT 0xffffffffu

struct abi_cache_layer {
	ABI_ADDRESS tables[ABI_CACHE_PARTS];   /* [n_expert] u64 each, which abi_experts.w reads */
	ABI_ADDRESS home[ABI_CACHE_PARTS];     /* [n_expert][n_part_bytes] */
	ABI_ADDRESS slots;                     /* [n_slots][n_slot_bytes] */
	ABI_U32 n_part_bytes[ABI_CACHE_PARTS]; /* multiples of 16 */
	ABI_U32 part_at[ABI_CACHE_PARTS];      /* in a slot */
	ABI_U32 n_slot_bytes;
	ABI_U32 pad;
};

struct abi_cache_slot {
	ABI_U32 expert; /* or ABI_CACHE_NO_EXPERT */
	ABI_U32 used;   /* the clock of the step that used it last */
};

struct abi_cache_miss {
	ABI_U32 expert;
	ABI_U32 slot;
};

struct abi_cache_state {
	ABI_U32 clock; /* steps so far; a slot's `used` is one of them, or 0 */
	ABI_U32 n_misses;
};

/* In io memory. Experts that steps wanted, each counted once a step where it had a slot. */
struct abi_cache_counts {
	ABI_U32 n_found;   /* in a slot */
	ABI_U32 n_fetched; /* into one */
	ABI_U32 n_direct;  /* read where they are, all slots being in use; counted by pair */
	ABI_U32 pad;
};

/* Both kernels of the cache. */
struct abi_cache {
	ABI_ADDRESS layer;  /* struct abi_cache_layer */
	ABI_ADDRESS state;  /* struct abi_cache_state */
	ABI_ADDRESS slots;  /* [n_slots] struct abi_cache_slot */
	ABI_ADDRESS misses; /* [n_slots] struct abi_cache_miss */
	ABI_ADDRESS counts; /* struct abi_cache_counts */
	ABI_ADDRESS choice; /* [m][n_used] struct abi_choice */
	ABI_ADDRESS m;      /* u32: rows of this step */
	ABI_U32 n_slots;
	ABI_U32 n_used;
};

/*
 * Checksums (weightd/sum.h). ABI_CHECKSUM_PARTS subgroups share ABI_CHECKSUM_GROUP pieces: each
 * word of the key is read once for all of them.
 */
#define ABI_CHECKSUM_UNIT_BYTES 16
#define ABI_CHECKSUM_GROUP 8
#define ABI_CHECKSUM_PARTS 16
#define ABI_CHECKSUM_SUMS \
	17 /* a piece: of the parts, and of the bytes behind the last whole unit */

struct abi_checksum_piece {
	ABI_ADDRESS data; /* a multiple of ABI_CHECKSUM_UNIT_BYTES */
	ABI_U32 n_bytes;  /* > 0, at most SUM_PIECE_BYTES */
	ABI_U32 pad;
};

struct abi_checksum {
	ABI_ADDRESS pieces; /* [n] struct abi_checksum_piece */
	ABI_ADDRESS keys;   /* [SUM_PIECE_BYTES / ABI_CHECKSUM_UNIT_BYTES][4] u32 */
	ABI_ADDRESS sums;   /* [n][ABI_CHECKSUM_SUMS] uvec2, the low word first */
	ABI_U32 n;
	ABI_U32 pad;
};

/* Positions of a page; the same as KV_PAGE_TOKENS of workerd/kv-layout.h. */
#define ABI_KV_PAGE_TOKENS 32

#endif
