/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_SPEC_GLSL
#define SHADERS_MATRIX_SPEC_GLSL

/* How a matrix product is cut, see matrix.glsl. */
layout(constant_id = ABI_MATRIX_SPEC_BN) const int BN = 32;
layout(constant_id = ABI_MATRIX_SPEC_BM) const int BM = 32;
layout(constant_id = ABI_MATRIX_SPEC_BK) const int BK = 32;
layout(constant_id = ABI_MATRIX_SPEC_SN) const int SN = 32;
layout(constant_id = ABI_MATRIX_SPEC_SM) const int SM = 32;
layout(constant_id = ABI_MATRIX_SPEC_N) const int MAT_N = 16;
layout(constant_id = ABI_MATRIX_SPEC_M) const int MAT_M = 16;
layout(constant_id = ABI_MATRIX_SPEC_K) const int MAT_K = 16;
layout(constant_id = ABI_MATRIX_SPEC_BUFFERS) const int N_BUFFERS = 1;
layout(constant_id = ABI_MATRIX_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;
layout(constant_id = ABI_MATRIX_SPEC_RAGGED) const uint RAGGED = 0;
layout(constant_id = ABI_MATRIX_SPEC_DIRECT) const uint DIRECT = 0;
layout(constant_id = ABI_MATRIX_SPEC_ORDER) const int ORDER = 0;

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;
const int BN_OUT = IS_SWIGLU ? BN / 2 : BN; /* rows of one matrix in a tile */
const int SN_OUT = IS_SWIGLU ? SN / 2 : SN;

#endif
