#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As many multiplications of the device's matrices as there can be: out of registers, four by four
 * accumulators a subgroup, n_rounds * 16 of them. Out of memory once, or a compiler would know them;
 * nothing is stored unless they sum to a number that they do not.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const int N = 16;
layout(constant_id = 1) const int M = 16;
layout(constant_id = 2) const int K = 16;
layout(local_size_x_id = 3) in;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
layout(buffer_reference, std430) buffer Floats { float at[]; };
layout(push_constant, std430) uniform Push
{
	uvec2 x; /* [8][32 by 16] f16 */
	uvec2 y;
	uint n_rounds;
	uint pad;
};

void main()
{
	coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a[4];
	coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[4];
	coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> c[4][4];

	[[unroll]] for (int i = 0; i < 4; i++) {
		coopMatLoad(a[i], Quads(x).at, 64 * i, 2, gl_CooperativeMatrixLayoutRowMajor);
		coopMatLoad(b[i], Quads(x).at, 64 * (4 + i), 2, gl_CooperativeMatrixLayoutColumnMajor);
		[[unroll]] for (int j = 0; j < 4; j++)
			c[i][j] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(
				0.0);
	}
	for (uint r = 0; r < n_rounds; r++)
		[[unroll]] for (int i = 0; i < 4; i++)
			[[unroll]] for (int j = 0; j < 4; j++)
				c[i][j] = coopMatMulAdd(a[i], b[j], c[i][j]);
	[[unroll]] for (int i = 0; i < 4; i++)
		[[unroll]] for (int j = 0; j < 4; j++)
			if (c[i][j][0] == 12345.0)
				Floats(y).at[i * 4 + j] = c[i][j][0];
}
