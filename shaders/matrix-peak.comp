#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arithmetic gives to a kernel that multiplies the device's matrices out of registers: four of
 * A by four of B into sixteen accumulators, n_rounds times, so that none waits for its own last
 * result. Numbers of A and B differ as those of a model do, since a device may run slower the more
 * bits change. What is summed is stored, so that nothing can be left out.
 *
 *	A_i[r][c] = number(i, r * K + c), B_j[r][c] = number(4 + j, r + c * K)
 *	y[subgroup] = n_rounds * sum of all numbers of A_i B_j, i and j below 4
 *
 * Shapes: y [subgroups of the grid] f32.
 * Grid: x: as many workgroups as one likes, all do the same.
 * Bindings: none; struct abi_matrix_peak.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "common.glsl"

layout(constant_id = ABI_MATRIX_PEAK_SPEC_M) const int MAT_M = 16;
layout(constant_id = ABI_MATRIX_PEAK_SPEC_N) const int MAT_N = 16;
layout(constant_id = ABI_MATRIX_PEAK_SPEC_K) const int MAT_K = 16;

layout(push_constant, std430) uniform Push
{
	abi_matrix_peak push;
};

const int SIDE = ABI_MATRIX_PEAK_SIDE;
const int MAX_SIDE = MAT_M > MAT_N ? MAT_M : MAT_N;

/* One matrix of all subgroups at a time, rows of A and columns of B of K numbers each. */
shared uvec4 stage[MAX_SIDE * MAT_K / 8];

/* -1 to 1 in steps of 1/512, which f16 has. */
float number(uint matrix, uint at)
{
	uint v = (matrix * 8192 + at) * ABI_MATRIX_PEAK_FACTOR;

	return float(int(v >> 22) - 512) * 0.001953125;
}

void fill(uint matrix)
{
	barrier();
	for (uint i = gl_LocalInvocationID.x; i < MAX_SIDE * MAT_K / 2; i += LOCAL_SIZE)
		stage[i / 4][i % 4] =
			packHalf2x16(vec2(number(matrix, 2 * i), number(matrix, 2 * i + 1)));
	barrier();
}

void main()
{
	coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a[SIDE];
	coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b[SIDE];
	coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> c[SIDE][SIDE];

	[[unroll]] for (int i = 0; i < SIDE; i++) {
		fill(i);
		coopMatLoad(a[i], stage, 0, MAT_K / 8, gl_CooperativeMatrixLayoutRowMajor);
		fill(SIDE + i);
		coopMatLoad(b[i], stage, 0, MAT_K / 8, gl_CooperativeMatrixLayoutColumnMajor);
		[[unroll]] for (int j = 0; j < SIDE; j++)
			c[i][j] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N,
				gl_MatrixUseAccumulator>(0.0);
	}
	for (uint round = 0; round < push.n_rounds; round++)
		[[unroll]] for (int i = 0; i < SIDE; i++)
			[[unroll]] for (int j = 0; j < SIDE; j++)
				c[i][j] = coopMatMulAdd(a[i], b[j], c[i][j]);

	float sum = 0;
	[[unroll]] for (int i = 0; i < SIDE; i++)
		[[unroll]] for (int j = 0; j < SIDE; j++)
			for (int e = 0; e < c[i][j].length(); e++)
				sum += c[i][j][e];
	sum = sum_lanes(sum);
	if (lane() == 0)
		FloatsOut(push.y).at[subgroup_x()] = sum;
}
