#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows times a matrix of f32 that chooses their experts, and the bytes of the rows for those:
 *
 *	logits[i][e] = sum over k of W[e][k] a[i][k],  a[i] = x[i] gain / sqrt(mean(x[i]^2) + eps)
 *	staging[i] = x[i] as quantize.comp makes it  with BYTES
 *
 * Shapes: W [n_expert][k] f32, k % 4 == 0, with BYTES % 64; W, x and gain at multiples of 16 bytes;
 * x [m][k] f32, logits [m][n_expert] f32.
 * Grid: x: n_expert, a workgroup a logit; y: m.
 * Bindings: none; addresses in struct abi_router. Rows beyond *m are not computed.
 *
 * One matrix of little more than a MB does not keep a GPU busy: what counts is how many loads come one
 * after the other. So a workgroup has one logit, and the bytes are made beside it. The choice is left
 * to who reads the logits (choose.glsl): the last one here would have to wait for all others, and
 * those would wait for it.
 */
#include "common.glsl"
#include "quant.glsl"

layout(constant_id = ABI_ROUTER_SPEC_BYTES) const uint BYTES = 0;

layout(push_constant, std430) uniform Push
{
	abi_router push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };

const uint N_SUBGROUPS = LOCAL_SIZE / SUBGROUP;
const int UNROLL = 2; /* loads of each row that an invocation has under way */

shared vec2 parts[N_SUBGROUPS]; /* of the sum, and of the sum of squares */

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

/* This workgroup's blocks of 32 numbers. */
void stage_bytes(uint i)
{
	uint number = gl_LocalInvocationIndex;
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

void main()
{
	uint i = gl_WorkGroupID.y;
	/* Nothing waits for it. */
	uint m = Words(push.m).at[0];
	vec2 part = sum_part(address_at(push.w, gl_WorkGroupID.x, 4 * push.k),
		address_at(push.x, i, 4 * push.k));

	if (i >= m)
		return;
	part = vec2(sum_lanes(part.x), sum_lanes(part.y));
	if (lane() == 0)
		parts[gl_SubgroupID] = part;
	if (BYTES != 0)
		stage_bytes(i);
	barrier();
	if (gl_LocalInvocationIndex != 0)
		return;
	vec2 sum = vec2(0.0);
	for (uint s = 0; s < N_SUBGROUPS; s++)
		sum += parts[s];
	float scale = NORM != 0 ? norm_scale(sum.y, push.k, push.eps) : 1.0;
	FloatsOut(push.logits).at[i * push.n_expert + gl_WorkGroupID.x] = scale * sum.x;
}
