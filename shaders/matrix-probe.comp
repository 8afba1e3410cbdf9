#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/* What meson.build asks glslc whether it compiles: the least that kernels with matrices need. */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(constant_id = 0) const int SIZE = 16;
layout(local_size_x = 32) in;

shared uvec4 stage[64];

void main()
{
	coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> a;
	coopmat<float16_t, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> b;
	coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> c;

	coopMatLoad(a, stage, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
	coopMatLoad(b, stage, 0, 2, gl_CooperativeMatrixLayoutColumnMajor);
	c = coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator>(0.0);
	c = coopMatMulAdd(a, b, c);
	coopMatStore(c, stage, 0, 4, gl_CooperativeMatrixLayoutRowMajor);
}
