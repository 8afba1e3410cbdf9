#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The experts of few rows, out of a matrix of f32, and the bytes of the rows for those experts:
 *
 *	logits[i][e] = sum over k of W[e][k] a[i][k],  a[i] = x[i] gain / sqrt(mean(x[i]^2) + eps)
 *	choice[i] = the n_used experts of the largest logits[i], largest first, with their weights, as
 *	            route.glsl says
 *	staging[i] = x[i] as quantize.comp makes it  with BYTES
 *
 * Shapes: W [n_expert][k] f32, k % 4 == 0, with BYTES % 64; W, x and gain at multiples of 16 bytes;
 * x [m][k] f32, logits [m][n_expert] f32, choice [m][n_used] struct abi_choice, counters [m] u32, all 0
 * before and after.
 * Grid: x: n_expert, a workgroup a logit; y: m.
 * Bindings: none; addresses in struct abi_router. Rows beyond *m are not computed.
 *
 * One matrix of little more than a MB does not keep a GPU busy: what counts is how many loads come one
 * after the other. So a workgroup has one logit, the bytes are made beside it, and the workgroup that
 * is the last of its row chooses.
 */
#include "common.glsl"
#include "quant.glsl"
#include "choose.glsl"

layout(constant_id = ABI_ROUTER_SPEC_BYTES) const uint BYTES = 0;

layout(push_constant, std430) uniform Push
{
	abi_router push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters { uint at[]; };

const uint N_SUBGROUPS = LOCAL_SIZE / SUBGROUP;
const int UNROLL = 2; /* loads of each row that an invocation has under way */

shared vec2 parts[N_SUBGROUPS]; /* of the sum, and of the sum of squares */
shared bool is_last;

/* The invocation's part of the product and of the squares. */
vec2 sum_part(uvec2 w, uvec2 x)
{
	uint n = push.k / 4;
	vec2 sum = vec2(0.0);

	for (uint first = gl_LocalInvocationIndex; first < n; first += UNROLL * LOCAL_SIZE) {
		vec4 b[UNROLL], a[UNROLL], gain[UNROLL];
		[[unroll]] for (int u = 0; u < UNROLL; u++) {
			uint at = min(first + u * LOCAL_SIZE, n - 1);
			b[u] = Vecs(w).at[at];
			a[u] = Vecs(x).at[at];
			gain[u] = NORM != 0 ? Vecs(push.gain).at[at] : vec4(1.0);
		}
		[[unroll]] for (int u = 0; u < UNROLL; u++) {
			if (first + u * LOCAL_SIZE >= n)
				continue;
			[[unroll]] for (int e = 0; e < 4; e++) {
				sum.x = fma(b[u][e], a[u][e] * gain[u][e], sum.x);
				sum.y = fma(a[u][e], a[u][e], sum.y);
			}
		}
	}
	return sum;
}

/* This workgroup's blocks of 32 numbers; the last invocations first: the first has other work. */
void stage_bytes(uint i)
{
	uint number = LOCAL_SIZE - 1 - gl_LocalInvocationIndex;
	Floats x = Floats(address_at(push.x, i, 4 * push.k));
	uvec2 row = address_at(push.staging, i, ABI_QUANT_ROW_BYTES(push.k));

	for (uint block = gl_WorkGroupID.x + number / 8 * gl_NumWorkGroups.x; block < push.k / 32;
		block += LOCAL_SIZE / 8 * gl_NumWorkGroups.x) {
		uint word = 8 * block + lane() % 8;
		float squares = 0.0;
		quant q = quant_word(read_word(x, Floats(push.gain), word, squares));
		put_word(row, push.k, word, q, NORM != 0, NORM != 0 ? sum_eight(squares) : 0.0);
	}
}

/* The first invocation: the logit, which all others have left their parts of. */
void finish_logit(uint i)
{
	vec2 sum = vec2(0.0);

	for (uint s = 0; s < N_SUBGROUPS; s++)
		sum += parts[s];
	float scale = NORM != 0 ? norm_scale(sum.y, push.k, push.eps) : 1.0;
	Logits(push.logits).at[i * push.n_expert + gl_WorkGroupID.x] = scale * sum.x;
	memoryBarrierBuffer();
	Counters counters = Counters(push.counters);
	is_last = atomicAdd(counters.at[i], 1) == push.n_expert - 1;
	if (is_last)
		atomicExchange(counters.at[i], 0);
}

void main()
{
	uint i = gl_WorkGroupID.y;
	vec2 part = sum_part(address_at(push.w, gl_WorkGroupID.x, 4 * push.k),
		address_at(push.x, i, 4 * push.k));

	if (i >= Words(push.m).at[0])
		return;
	part = vec2(sum_lanes(part.x), sum_lanes(part.y));
	if (lane() == 0)
		parts[gl_SubgroupID] = part;
	barrier();
	if (gl_LocalInvocationIndex == 0)
		finish_logit(i);
	if (BYTES != 0)
		stage_bytes(i);
	barrier();
	if (!is_last)
		return;
	memoryBarrierBuffer();
	choose(address_at(push.logits, i, 4 * push.n_expert), push.n_expert, push.n_used,
		address_at(push.choice, i, 8 * push.n_used));
}
