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

void main()
{
	if (gl_WorkGroupID.y >= State(push.state).at.n_misses)
		return;
	abi_cache_miss miss = Misses(push.misses).at[gl_WorkGroupID.y];
	abi_cache_layer layer = Layer(push.layer).at;
	uvec2 slot = address_at(layer.slots, miss.slot, layer.n_slot_bytes);
	uint n_lanes = gl_NumWorkGroups.x * LOCAL_SIZE;

	for (uint p = 0; p < ABI_CACHE_PARTS; p++) {
		Units src = Units(address_at(layer.home[p], miss.expert, layer.n_part_bytes[p]));
		UnitsOut dst = UnitsOut(address_at(slot, 1, layer.part_at[p]));
		uint n = layer.n_part_bytes[p] / 16;
		for (uint i = subgroup_x() * SUBGROUP + lane(); i < n; i += n_lanes)
			dst.at[i] = src.at[i];
	}
}
