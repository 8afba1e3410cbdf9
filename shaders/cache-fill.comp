#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the experts that cache.comp gave slots to from host memory into them.
 *
 * Shapes: misses [state.n_misses] struct abi_cache_miss; parts in units of 16 bytes.
 * Grid: x: any number of subgroups, which share an expert's bytes; y: at least n_misses.
 * Bindings: none; addresses in struct abi_cache.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_cache push;
};

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Layer
{
	abi_cache_layer at;
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer State
{
	abi_cache_state at;
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Misses
{
	abi_cache_miss at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Units { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer UnitsOut { uvec4 at[]; };

/* Units that a lane has under way at once: what few misses there are must fill the bus too. */
const int N_AHEAD = 4;

/*
 * n units. A subgroup's loads begin at lines of 128 bytes wherever the expert does, so that across
 * the bus no line is asked for in two parts.
 */
void copy(uvec2 from, uvec2 to, uint n, uint n_lanes)
{
	Units src = Units(from);
	UnitsOut dst = UnitsOut(to);
	uint skip = from.x / 16 % 8;
	uvec4 v[N_AHEAD];

	for (uint i = subgroup_x() * SUBGROUP + lane(); i < n + skip; i += N_AHEAD * n_lanes) {
		/* Before the first unit i - skip wraps, which is as far out as behind the last. */
		[[unroll]] for (int a = 0; a < N_AHEAD; a++)
			v[a] = src.at[min(i + a * n_lanes - skip, n - 1)];
		[[unroll]] for (int a = 0; a < N_AHEAD; a++)
			if (i + a * n_lanes - skip < n)
				dst.at[i + a * n_lanes - skip] = v[a];
	}
}

void main()
{
	if (gl_WorkGroupID.y >= State(push.state).at.n_misses)
		return;
	abi_cache_miss miss = Misses(push.misses).at[gl_WorkGroupID.y];
	abi_cache_layer layer = Layer(push.layer).at;
	uvec2 slot = address_at(layer.slots, miss.slot, layer.n_slot_bytes);
	uint n_lanes = gl_NumWorkGroups.x * LOCAL_SIZE;

	for (uint p = 0; p < ABI_CACHE_PARTS; p++) {
		uvec2 home = address_at(layer.home[p], miss.expert, layer.n_part_bytes[p]);
		copy(home, address_at(slot, 1, layer.part_at[p]), layer.n_part_bytes[p] / 16,
			n_lanes);
	}
}
