#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i] = W[rows[i].token], or W[picked[j]] where that is ABI_ROW_PICKED | j
 *
 * Shapes: W [n_vocab][k], y [m][k] f32, picked [] u32.
 * Grid: x: ceil(chunks / subgroups of a workgroup), where the subgroups of a row share its units
 * evenly (more chunks than units is harmless); y: m.
 * Bindings: none; addresses in struct abi_embed. Rows beyond *m are not computed.
 */
#include "common.glsl"
#include "dtype.glsl"

layout(push_constant, std430) uniform Push
{
	abi_embed push;
};

uint token_of(uint i)
{
	uint token = Rows(push.rows).at[i].token;

	if ((token & ABI_ROW_PICKED) != 0 && push.picked != uvec2(0))
		token = Words(push.picked).at[token & ~ABI_ROW_PICKED];
	return token;
}

void main()
{
	uint i = gl_WorkGroupID.y;

	if (i >= Words(push.m).at[0])
		return;
	uint n_chunks = gl_NumWorkGroups.x * (LOCAL_SIZE / SUBGROUP);
	uvec2 w_row = address_at(push.w, token_of(i), push.n_row_bytes);
	FloatsOut y = FloatsOut(address_at(push.y, i, 4 * push.k));

	uint step = n_chunks * unit_stride();
	for (uint u = subgroup_x() * unit_stride() + first_unit(); u < n_units(push.k); u += step) {
		uint raw[N_RAW];
		float w[N_ELEMENTS];

		load_raw(w_row, u, raw);
		decode(raw, load_shared(w_row, u), 0, w);
		[[unroll]] for (int e = 0; e < N_ELEMENTS; e++)
			y.at[element(u, e)] = w[e];
	}
}
