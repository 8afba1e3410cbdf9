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

/* constant_id: every kernel has the first two. */
#define ABI_SPEC_LOCAL_SIZE 0 /* invocations of a workgroup: a multiple of the subgroup size */
#define ABI_SPEC_SUBGROUP 1   /* invocations of a subgroup: 8 to 64 */
#define ABI_SPEC_KERNEL 2     /* the kernel's own from here on */

/* matmul: rows of W and rows of x of one subgroup's register tile, then what is fused. */
#define ABI_MATMUL_SPEC_TILE_N (ABI_SPEC_KERNEL + 0)
#define ABI_MATMUL_SPEC_TILE_M (ABI_SPEC_KERNEL + 1)
#define ABI_MATMUL_SPEC_NORM (ABI_SPEC_KERNEL + 2)   /* 1: x is RMS-normalised on the way in */
#define ABI_MATMUL_SPEC_GATHER (ABI_SPEC_KERNEL + 3) /* 1: row i of x is x[want[i]] */
#define ABI_MATMUL_SPEC_FINISH (ABI_SPEC_KERNEL + 4) /* ABI_MATMUL_FINISH_* */

#define ABI_MATMUL_FINISH_STORE 0  /* y = W x */
#define ABI_MATMUL_FINISH_ADD 1    /* y = r + W x */
#define ABI_MATMUL_FINISH_GATE 2   /* y = silu(r) * W x */
#define ABI_MATMUL_FINISH_SWIGLU 3 /* y = silu(W[0] x) * W[1] x */

/* attention: query heads of one subgroup, all of the same key head. */
#define ABI_ATTENTION_SPEC_HEADS (ABI_SPEC_KERNEL + 0)
#define ABI_ATTENTION_SPEC_HEAD_DIM (ABI_SPEC_KERNEL + 1)

/* One row of a step, in io memory: one token of one session. */
struct abi_row {
	ABI_U32 token;
	ABI_U32 position;
	ABI_U32 slot;
};

struct abi_embed {
	ABI_ADDRESS w;    /* [n_vocab][k] */
	ABI_ADDRESS rows; /* [m] struct abi_row */
	ABI_ADDRESS m;    /* u32: rows of this step */
	ABI_ADDRESS y;    /* [m][k] f32 */
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

struct abi_rope_kv {
	ABI_ADDRESS qkv; /* [m][(n_head + 2 * n_head_kv) * head_dim] f32; q is changed in place */
	ABI_ADDRESS q_gain; /* [head_dim] f32 */
	ABI_ADDRESS k_gain; /* [head_dim] f32 */
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
};

struct abi_attention {
	ABI_ADDRESS qkv;   /* [m][(n_head + 2 * n_head_kv) * head_dim] f32; q is read */
	ABI_ADDRESS y;     /* [m][n_head * head_dim] f32 */
	ABI_ADDRESS rows;  /* [m] struct abi_row */
	ABI_ADDRESS m;     /* u32: rows of this step */
	ABI_ADDRESS table; /* [n_slots][n_slot_pages] u64, see workerd/kv.h */
	ABI_U32 n_head;
	ABI_U32 n_head_kv;
	ABI_U32 n_slot_pages;
	ABI_U32 layer;
	ABI_F32 scale; /* 1 / sqrt(head_dim) */
};

/* Positions of a page; the same as KV_PAGE_TOKENS of workerd/kv.h. */
#define ABI_KV_PAGE_TOKENS 32

#endif
