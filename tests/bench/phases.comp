#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Phases of reading, each of which may begin when all of the one before is done, as the ops of a
 * layer are: what memory gives to them as a dispatch each, and in one kernel whose workgroups wait
 * for each other.
 *
 * Grid: x: as many workgroups as one likes; IS_ONE: no more than run at the same time, or all of
 * them wait in vain until MAX_SPINS.
 */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model

layout(constant_id = 0) const uint LOCAL_SIZE = 256;
layout(constant_id = 1) const uint IS_ONE = 0;
layout(constant_id = 2) const uint IS_AHEAD = 0; /* the next phase's first loads before the wait */
layout(local_size_x_id = 0) in;

const uint N_SIZES = 5;
const uint DEPTH = 4; /* loads of an invocation that are under way */
const uint MAX_SPINS = 2000000;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Units { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(push_constant, std430) uniform Push
{
	uvec2 data;
	uvec2 sums;    /* a word an invocation, so that nothing can be left out */
	uvec2 arrived; /* a word, 0 at first */
	uint n_phases; /* of one kernel */
	uint first;    /* unit of 16 bytes */
	uint n_units[N_SIZES]; /* of phases 0, 1, ..., and again */
};

uint n_awaited = 0;
uvec4 loaded[DEPTH];

void wait_for_all()
{
	controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
		gl_SemanticsAcquireRelease);
	if (gl_LocalInvocationIndex == 0) {
		n_awaited += gl_NumWorkGroups.x;
		atomicAdd(Words(arrived).at[0], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
			gl_SemanticsRelease);
		for (uint i = 0; i < MAX_SPINS; i++)
			if (atomicLoad(Words(arrived).at[0], gl_ScopeDevice,
				    gl_StorageSemanticsBuffer, gl_SemanticsAcquire) >= n_awaited)
				break;
	}
	controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
		gl_SemanticsAcquireRelease);
}

/* What is behind the end is the last unit again. */
void load(uint base, uint i, uint n, uint stride)
{
	[[unroll]] for (uint u = 0; u < DEPTH; u++)
		loaded[u] = Units(data).at[base + min(i + u * stride, n - 1)];
}

void main()
{
	uint stride = LOCAL_SIZE * gl_NumWorkGroups.x, base = first;
	bool is_loaded = false;
	uvec4 sum = uvec4(0);

	for (uint p = 0; p < n_phases; p++) {
		uint n = n_units[p % N_SIZES], n_next = n_units[(p + 1) % N_SIZES];
		uint i = gl_GlobalInvocationID.x;
		if (n > 0 && !is_loaded)
			load(base, i, n, stride);
		for (; i < n; i += DEPTH * stride) {
			uvec4 part = uvec4(0);
			[[unroll]] for (uint u = 0; u < DEPTH; u++)
				part += loaded[u];
			if (i + DEPTH * stride < n)
				load(base, i + DEPTH * stride, n, stride);
			sum += part;
		}
		base += n;
		if (IS_ONE == 0)
			break;
		is_loaded = IS_AHEAD != 0 && p + 1 < n_phases && n_next > 0;
		if (is_loaded)
			load(base, gl_GlobalInvocationID.x, n_next, stride);
		wait_for_all();
	}
	Words(sums).at[gl_GlobalInvocationID.x] = sum.x + sum.y + sum.z + sum.w;
}
