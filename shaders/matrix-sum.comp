#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finishes the tiles that several streams of matrix.comp had parts of (matrix-share.glsl): adds up
 * their sums, in the order of k.
 *
 * Shapes: as matrix.comp. Grid: x: tiles, or 2 n_streams if that is less; y: ceil(BM / SUM_ROWS).
 * Workgroup: invocations take columns. Bindings: none; addresses in struct abi_matrix.
 */
#include "common.glsl"
#include "matrix-spec.glsl"
#include "matrix-share.glsl"

const uint N_LOADS = 8; /* in flight: few rows have many parts, and memory is far away */

/* Column c of row i of tile `number`, in the order of the tile's rows of W. */
float sum_parts(uint number, uint i, uint c)
{
	uint first = number * n_steps;
	uint end = (first + n_steps - 1) / n_run;
	float sum = 0.0;

	for (uint s = first / n_run; s <= end; s += N_LOADS) {
		float v[N_LOADS];
		[[unroll]] for (uint l = 0; l < N_LOADS; l++) {
			uint from = min(s + l, end);
			uint which = from * n_run >= first ? 0 : 1;
			v[l] = Floats(partial_at(from, which)).at[i * BN + c];
		}
		[[unroll]] for (uint l = 0; l < N_LOADS; l++) {
			precise float next = s + l <= end ? sum + v[l] : sum;
			sum = next;
		}
	}
	return sum;
}

void main()
{
	uint number = gl_WorkGroupID.x;

	start_share();
	if (number >= n_shared)
		return;
	uint first = number * n_steps;
	if (first / n_run == (first + n_steps - 1) / n_run)
		return; /* one stream had all of it */
	tile t = get_tile(number);
	for (uint r = 0; r < ABI_MATRIX_SUM_ROWS; r++) {
		uint i = gl_WorkGroupID.y * ABI_MATRIX_SUM_ROWS + r;
		if (i >= BM || t.i + i >= n_m)
			return;
		for (uint j = gl_LocalInvocationID.x; j < BN_OUT; j += LOCAL_SIZE) {
			uint c = j / SN_OUT * SN + j % SN_OUT;
			float v = sum_parts(number, i, c);
			if (IS_SWIGLU)
				v = silu(v) * sum_parts(number, i, c + SN_OUT);
			put_output(t, i, j, v);
		}
	}
}
