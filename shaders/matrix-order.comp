#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which numbers of a matrix a lane has: what matrix-wide.comp takes for granted about a device is
 * found out with this first (workerd/ops/matrix-order.h).
 *
 * Shapes: x [16][16] f16, of which each number is its place, y [2][SUBGROUP][8] u32: the places of a
 * lane's numbers of x as the left operand, and of its transpose as the right one, each plus one.
 * Grid: one subgroup. Bindings: none; addresses in struct abi_matrix_order.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_matrix_order push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer WordsOut
{
	uint at[];
};

const int EDGE = 16;
const int N = ABI_MATRIX_ORDER_NUMBERS;

void main()
{
	coopmat<float16_t, gl_ScopeSubgroup, EDGE, EDGE, gl_MatrixUseA> a;
	coopmat<float16_t, gl_ScopeSubgroup, EDGE, EDGE, gl_MatrixUseB> b;
	WordsOut y = WordsOut(push.y);

	coopMatLoad(a, Quads(push.x).at, 0, EDGE / 8, gl_CooperativeMatrixLayoutRowMajor);
	coopMatLoad(b, Quads(push.x).at, 0, EDGE / 8, gl_CooperativeMatrixLayoutColumnMajor);
	if (a.length() != N || b.length() != N)
		return;
	[[unroll]] for (int i = 0; i < N; i++) {
		y.at[lane() * N + i] = uint(a[i]) + 1;
		y.at[(SUBGROUP + lane()) * N + i] = uint(b[i]) + 1;
	}
}
