/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_STORE_GLSL
#define SHADERS_MATRIX_STORE_GLSL

/*
 * Sums of a tile out of the device's matrices: finished by way of shared memory, or as they are.
 * For kernels that have sums [N_I][N_J] a subgroup, of MAT_M rows of x and MAT_N of W, and OUT_SIZE
 * quads of `stage` for each subgroup, of rows of OUT_ROW. The includer gives store_rows, whose loop
 * is its own, and store_output.
 */

/* MAT_M rows of the subgroup's sums, from row i0 of the tile, at quad `at` of the shared memory. */
void store_rows(uint i0, uint n_live, uint at);

float staged_output(uint at)
{
	return uintBitsToFloat(stage[at / 4][at % 4]);
}

/* What is staged at float `at`, finished: with SwiGLU, up is SN_OUT behind gate. */
float finished_output(uint at)
{
	float v = staged_output(at);

	if (IS_SWIGLU)
		v = silu(v) * staged_output(at + SN_OUT);
	return v;
}

/* The sums, finished; rows from n_live on are left out. */
void store_tile(uint n_live)
{
	uint at = gl_SubgroupID * OUT_SIZE;

	[[unroll]] for (int i = 0; i < N_I; i++) {
		[[unroll]] for (int j = 0; j < N_J; j++)
			coopMatStore(sums[i][j], stage, at + j * MAT_N / 4, OUT_ROW,
				gl_CooperativeMatrixLayoutRowMajor);
		subgroupBarrier();
		store_rows(first_m() + i * MAT_M, n_live, at);
		subgroupBarrier();
	}
	barrier(); /* another tile may come */
}

/* The sums as they are: [BM][BN] at an address. */
void store_partial(uvec2 to)
{
	[[unroll]] for (int i = 0; i < N_I; i++)
		[[unroll]] for (int j = 0; j < N_J; j++)
			coopMatStore(sums[i][j], FloatsOut(to).at,
				(first_m() + i * MAT_M) * BN + first_n() + j * MAT_N, BN,
				gl_CooperativeMatrixLayoutRowMajor);
}

#endif
