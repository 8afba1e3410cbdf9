/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_CHOOSE_GLSL
#define SHADERS_CHOOSE_GLSL

/*
 * The choice of route.glsl by a whole workgroup, to the bit: the rank of an expert is how many come
 * before it, and lanes that lie side by side count those for one of them. Included behind common.glsl.
 */
#include "route.glsl"

/* Lanes that share an expert. */
const uint N_COUNTERS = LOCAL_SIZE >= 512 ? 4 : LOCAL_SIZE >= 256 ? 2 : 1;

shared uvec4 keys[ABI_MAX_EXPERTS / 4];
shared uint chosen[ABI_MAX_EXPERTS_USED];
shared float chosen_logits[ABI_MAX_EXPERTS_USED];

/* What place_key() was made of; both zeroes are the positive one. */
float key_logit(uint key)
{
	return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/*
 * This lane's part of those that come before. Of the experts with lower ids those are with the same
 * key, too: they are greater than the key less one.
 */
uint count_before(place one, uint n_expert)
{
	uint own = one.id / 4, part = gl_LocalInvocationIndex % N_COUNTERS, n = 0;

	for (uint q = part; q < (n_expert + 3) / 4; q += N_COUNTERS) {
		uint least = q < own ? one.key - 1 : one.key;
		uvec4 others = keys[q];
		[[unroll]] for (uint e = 0; e < 4; e++)
			n += others[e] > least ? 1 : 0;
	}
	if (own % N_COUNTERS == part)
		[[unroll]] for (uint e = 0; e < 3; e++)
			n += keys[own][e] == one.key && 4 * own + e < one.id ? 1 : 0;
	return n;
}

/* Logits [n_expert] f32: fills chosen and chosen_logits, [n_used]. All invocations call it once. */
void rank_experts(uvec2 logits_at, uint n_expert, uint n_used)
{
	Floats logits = Floats(logits_at);

	/* None is 0, which is behind the last expert: that comes after all of them. */
	for (uint e = gl_LocalInvocationIndex; e < (n_expert + 3) / 4 * 4; e += LOCAL_SIZE)
		keys[e / 4][e % 4] = e < n_expert ? max(place_key(logits.at[e]), 1) : 0;
	barrier();
	for (uint e0 = 0; e0 < n_expert; e0 += LOCAL_SIZE / N_COUNTERS) {
		uint e = e0 + gl_LocalInvocationIndex / N_COUNTERS;
		uint at = min(e, n_expert - 1);
		place one = place(keys[at / 4][at % 4], at);
		uint rank = count_before(one, n_expert);
		[[unroll]] for (uint d = 1; d < N_COUNTERS; d *= 2)
			rank += subgroupShuffleXor(rank, d);
		if (e < n_expert && rank < n_used) {
			chosen[rank] = e;
			chosen_logits[rank] = key_logit(one.key);
		}
	}
	barrier();
}

/* After that: the choices and their weights, at the address of [n_used]. */
void put_choices(uint n_used, uvec2 choices_at)
{
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
