#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] x[i][k]) of many rows, on the device's matrices (matrix-wide.glsl)
 *
 *	finish: STORE v; ADD r[i][j] + v; GATE silu(r[i][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *
 * Shapes: w[p] [n[p]][k] in a block format or f16 in blocks (matrix-blocks.comp), x f16 in blocks
 * (stage.comp with BLOCKS), y and r [m][y_stride] f32. The
 * outputs of the parts lie one behind the other in a row of y; SWIGLU has two parts of the same n and
 * one output of that width.
 * Grid: x: n_streams and as many as there are tiles; of W ceil(n[p] / BN) for each p, with SWIGLU
 * ceil(n[0] / (BN / 2)), times of x ceil(m / BM), which are beside each other. See matrix-share.glsl;
 * matrix-sum.comp comes after it if there are streams.
 * Bindings: none; addresses in struct abi_matrix. Rows beyond *m are not stored.
 */
#include "common.glsl"
#include "matrix-spec.glsl"
#include "matrix-share.glsl"
#include "matrix-wide.glsl"

tile t;

/* Rows behind the matrix's last are the last one again. */
uvec2 w_row(uint matrix, uint j)
{
	uint part = t.part + matrix;
	uvec2 base = part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];

	return address_at(base, min(t.j + j, push.n[t.part] - 1), push.n_row_bytes);
}

uvec2 w_blocks(uint matrix)
{
	uint part = t.part + matrix;

	return part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];
}

uint w_block(uint matrix, uint j)
{
	return min(t.j + j, push.n[t.part] - 1) / 16;
}

uint x_row(uint i)
{
	return min(t.i + i, n_m - 1);
}

void store_output(uint i, uint j, float v)
{
	put_output(t, i, j, v);
}

void main()
{
	uint group = gl_WorkGroupID.x, first, end;

	start_share();
	bool is_stream = n_shared > 0 && group < push.n_streams;
	if (is_stream) {
		first = min(group * n_run, n_shared * n_steps);
		end = min(first + n_run, n_shared * n_steps);
	} else {
		uint number = n_shared > 0 ? n_shared + group - push.n_streams : group;
		first = number * n_steps;
		end = number < count_tiles() ? first + n_steps : first;
	}
	for (uint at = first; at < end;) {
		uint number = at / n_steps, step = at % n_steps;
		uint n = min(n_steps - step, end - at);
		t = get_tile(number);
		start_tile(push.k);
		sum_steps(push.x, push.k, step, step + n, n_m - t.i);
		if (n == n_steps)
			store_tile(n_m - t.i);
		else
			store_partial(partial_at(group, at == first ? 0 : 1));
		at += n;
	}
}
