/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ROUTE_GLSL
#define SHADERS_ROUTE_GLSL

/*
 * The experts that a row takes: those of the n_used largest logits, of equal ones the lower id.
 * Weights are the softmax over all experts, then scaled to a sum of 1: the sum over all drops out,
 * and what is left is the softmax over the chosen.
 */
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Choices
{
	abi_choice at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer ChoicesOut { abi_choice at[]; };

const uint NO_EXPERT = 0xffffffffu;

/* A place in the order of experts: larger keys first, of equal ones the lower id. */
struct place {
	uint key;
	uint id;
};

/* Keys order as floats do; both zeroes are one. */
uint place_key(float logit)
{
	uint bits = floatBitsToUint(logit);

	if ((bits & 0x7fffffffu) == 0)
		return 0x80000000u;
	return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

bool is_before(place a, place b)
{
	return a.key > b.key || (a.key == b.key && a.id < b.id);
}

/* The expert behind `last`, in all lanes. A NaN is somewhere; the id is below n_expert whatever. */
place next_place(Floats logits, uint n_expert, place last)
{
	place best = place(0, NO_EXPERT);

	for (uint e = lane(); e < n_expert; e += SUBGROUP) {
		place r = place(place_key(logits.at[e]), e);
		if (is_before(last, r) && is_before(r, best))
			best = r;
	}
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d == 0)
			continue;
		place r = place(subgroupShuffleXor(best.key, d), subgroupShuffleXor(best.id, d));
		if (is_before(r, best))
			best = r;
	}
	return place(best.key, min(best.id, n_expert - 1));
}

/* In front of every expert. */
place first_place(Floats logits, uint n_expert)
{
	return next_place(logits, n_expert, place(0xffffffffu, 0));
}

/* The expert of the row with that rank, in all lanes. */
uint route_one(Floats logits, uint n_expert, uint i)
{
	place r = first_place(logits, n_expert);

	for (; i > 0; i--)
		r = next_place(logits, n_expert, r);
	return r.id;
}

/* Lanes keep the choices until the sum of their weights is known. */
const int N_KEPT = int((ABI_MAX_EXPERTS_USED + SUBGROUP - 1) / SUBGROUP);

/* All choices of a row, [n_used]; the last one's expert in all lanes. */
uint route_all(Floats logits, uint n_expert, uint n_used, ChoicesOut choices)
{
	abi_choice kept[N_KEPT];
	place r = first_place(logits, n_expert);
	float highest = logits.at[r.id];
	float sum = 0.0;

	for (uint i = 0; i < n_used; i++) {
		if (i > 0)
			r = next_place(logits, n_expert, r);
		precise float below = logits.at[r.id] - highest;
		precise float weight = exp(below);
		sum += weight;
		[[unroll]] for (int s = 0; s < N_KEPT; s++)
			if (i == s * SUBGROUP + lane())
				kept[s] = abi_choice(r.id, weight);
	}
	[[unroll]] for (int s = 0; s < N_KEPT; s++) {
		uint i = s * SUBGROUP + lane();
		if (i < n_used)
			choices.at[i] = abi_choice(kept[s].expert, kept[s].weight / sum);
	}
	return r.id;
}

#endif
