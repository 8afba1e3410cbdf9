/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_CHOOSE_GLSL
#define SHADERS_CHOOSE_GLSL

/*
 * The choice of route.glsl by a whole workgroup, to the bit: each invocation counts for an expert of
 * its own how many come before it, which is its rank. Included behind common.glsl.
 */
#include "route.glsl"

/* Written by one workgroup, and perhaps read by another. */
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Logits { float at[]; };

shared uvec4 keys[ABI_MAX_EXPERTS / 4];
shared uint chosen[ABI_MAX_EXPERTS_USED];
shared float chosen_logits[ABI_MAX_EXPERTS_USED];

/* How many experts come before this one. */
uint rank_of(uint expert, uint n_expert)
{
	uint key = keys[expert / 4][expert % 4], n_before = 0;

	for (uint q = 0; q < (n_expert + 3) / 4; q++) {
		uvec4 others = keys[q];
		[[unroll]] for (uint e = 0; e < 4; e++)
			n_before += is_before(place(others[e], 4 * q + e), place(key, expert)) ? 1 : 0;
	}
	return n_before;
}

/* Logits [n_expert] f32 and choices [n_used] at these addresses; all invocations call it once. */
void choose(uvec2 logits_at, uint n_expert, uint n_used, uvec2 choices_at)
{
	Logits logits = Logits(logits_at);

	/* Behind the last expert: what comes after all of them. */
	for (uint e = gl_LocalInvocationIndex; e < (n_expert + 3) / 4 * 4; e += LOCAL_SIZE)
		keys[e / 4][e % 4] = e < n_expert ? place_key(logits.at[e]) : 0;
	barrier();
	for (uint e = gl_LocalInvocationIndex; e < n_expert; e += LOCAL_SIZE) {
		uint rank = rank_of(e, n_expert);
		if (rank < n_used) {
			chosen[rank] = e;
			chosen_logits[rank] = logits.at[e];
		}
	}
	barrier();
	for (uint r = gl_LocalInvocationIndex; r < n_used; r += LOCAL_SIZE) {
		float sum = 0.0, own = 0.0;
		for (uint other = 0; other < n_used; other++) {
			precise float below = chosen_logits[other] - chosen_logits[0];
			precise float weight = exp(below);
			sum += weight;
			own = other == r ? weight : own;
		}
		ChoicesOut(choices_at).at[r] = abi_choice(chosen[r], own / sum);
	}
}

#endif
