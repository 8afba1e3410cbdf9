#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements of its matrices a driver gives to which lane: loads matrices of which each element
 * says where it is, and writes down what every lane has.
 *
 * Shapes: y [2][SUBGROUP][ABI_FRAGMENT_ELEMENTS] u32: of A [M][K] i K + k, of B [K][N] j K + k; in
 * places behind a lane's last element ABI_FRAGMENT_NONE. Grid: one workgroup of one subgroup.
 * Bindings: none; the address in struct abi_fragment.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(constant_id = ABI_FRAGMENT_SPEC_M) const int MAT_M = 16;
layout(constant_id = ABI_FRAGMENT_SPEC_N) const int MAT_N = 8;
layout(constant_id = ABI_FRAGMENT_SPEC_K) const int MAT_K = 16;

layout(push_constant, std430) uniform Push
{
	abi_fragment push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer WordsOut
{
	uint at[];
};

/* f16 counts to 2048 without a gap. */
shared float16_t numbers[ABI_FRAGMENT_MAX_NUMBERS];

void main()
{
	coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a;
	coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b;
	WordsOut y = WordsOut(push.y);

	for (uint i = gl_LocalInvocationIndex; i < ABI_FRAGMENT_MAX_NUMBERS; i += LOCAL_SIZE)
		numbers[i] = float16_t(float(i));
	barrier();
	coopMatLoad(a, numbers, 0, MAT_K, gl_CooperativeMatrixLayoutRowMajor);
	coopMatLoad(b, numbers, 0, MAT_K, gl_CooperativeMatrixLayoutColumnMajor);
	for (int i = 0; i < ABI_FRAGMENT_ELEMENTS; i++) {
		uint at = lane() * ABI_FRAGMENT_ELEMENTS + i;
		y.at[at] = i < a.length() ? uint(a[i]) : ABI_FRAGMENT_NONE;
		y.at[SUBGROUP * ABI_FRAGMENT_ELEMENTS + at] =
			i < b.length() ? uint(b[i]) : ABI_FRAGMENT_NONE;
	}
}
