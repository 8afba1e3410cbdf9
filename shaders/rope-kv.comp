#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries and keys of the rows made ready for attention, keys and values put into their pages:
 *
 *	a = x gain / sqrt(mean(x^2) + eps)                  over a head, q and k each with its gain
 *	b[i]     = a[i] cos t - a[i + h] sin t              i < h = n_rot / 2, t = position angle[i]
 *	b[i + h] = a[i + h] cos t + a[i] sin t              (NEOX: the halves rotate against each other)
 *	b[i] = a[i]                                         i >= n_rot
 *
 * q is changed in place; k (as b) and v (as it is) go to the row's page as f16.
 *
 * Shapes: qkv [m][(n_head + 2 n_head_kv) head_dim] f32, pages as in workerd/kv.h.
 * Grid: x: ceil((n_head + n_head_kv) / subgroups of a workgroup), a subgroup a head of q or of k
 * and v; y: m.
 * Bindings: none; addresses in struct abi_rope_kv. Rows beyond *m are not computed.
 *
 * An angle is kept in turns, as a fixed-point fraction of 64 bits that is multiplied by the
 * position in integers: exact at any position, where position * angle in floats loses 2^-24 of an
 * angle of up to 10^5 radians. What is left is at most an eighth of a turn, where short polynomials
 * reach float accuracy; Vulkan promises only 2^-11 of sin and cos.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_rope_kv push;
};

/* cos and sin of turns * position, turns in units of 2^-64. */
vec2 rotation(uvec2 turns, uint position)
{
	uint low, high;

	umulExtended(turns.x, position, high, low);
	uint fraction = turns.y * position + high;
	uint quarter = (fraction + (1u << 29)) >> 30;
	/* Within 2^29: an eighth of a turn; 2 pi / 2^32 makes it radians. */
	float t = float(int(fraction - (quarter << 30))) * 1.4629180792671596e-9;
	float t2 = t * t;

	/* Taylor series to t^11 and t^10: the next terms are below 2^-33 at pi / 4. */
	float s = fma(t2, -2.5052108385e-8, 2.7557319224e-6);
	s = fma(t2, s, -1.9841269841e-4);
	s = fma(t2, s, 8.3333333333e-3);
	s = fma(t2, s, -1.6666666667e-1);
	s = fma(t * t2, s, t);
	float c = fma(t2, -2.7557319224e-7, 2.4801587302e-5);
	c = fma(t2, c, -1.3888888889e-3);
	c = fma(t2, c, 4.1666666667e-2);
	c = fma(t2, c, -0.5);
	c = fma(t2, c, 1.0);

	vec2 r = (quarter & 1) == 0 ? vec2(c, s) : vec2(-s, c);
	return (quarter & 2) == 0 ? r : -r;
}

void main()
{
	uint i = gl_WorkGroupID.y;
	uint head = subgroup_x();

	if (i >= Words(push.m).at[0] || head >= push.n_head + push.n_head_kv)
		return;
	bool is_q = head < push.n_head;
	uint dim = push.head_dim;
	abi_row row = Rows(push.rows).at[i];
	uvec2 qkv = address_at(push.qkv, i, 4 * dim * (push.n_head + 2 * push.n_head_kv));
	uvec2 x_at = address_at(qkv, head, 4 * dim);
	Floats x = Floats(x_at);
	FloatsOut q = FloatsOut(x_at);
	Floats gain = Floats(is_q ? push.q_gain : push.k_gain);

	/* The place of this position's keys in its page; the values lie a page's tokens further on. */
	uint kv_width = push.n_head_kv * dim;
	uint entry = row.slot * push.n_slot_pages + row.position / ABI_KV_PAGE_TOKENS;
	uint token = 2 * push.layer * ABI_KV_PAGE_TOKENS + row.position % ABI_KV_PAGE_TOKENS;
	uvec2 k_at = uvec2(0);
	if (!is_q) {
		k_at = address_at(Pairs(push.table).at[entry], token, 2 * kv_width);
		k_at = address_at(k_at, head - push.n_head, 2 * dim);
	}
	HalvesOut k = HalvesOut(k_at);

	float squares = 0.0;
	for (uint e = lane(); e < dim; e += SUBGROUP)
		squares = fma(x.at[e], x.at[e], squares);
	float scale = norm_scale(sum_lanes(squares), dim, push.eps);

	uint n_half = push.n_rot / 2;
	for (uint e = lane(); e < n_half; e += SUBGROUP) {
		vec2 r = rotation(Pairs(push.turns).at[e], row.position);
		float a0 = x.at[e] * scale * gain.at[e];
		float a1 = x.at[e + n_half] * scale * gain.at[e + n_half];
		float b0 = fma(a0, r.x, -(a1 * r.y));
		float b1 = fma(a1, r.x, a0 * r.y);
		if (is_q) {
			q.at[e] = b0;
			q.at[e + n_half] = b1;
		} else {
			k.at[e] = float16_t(b0);
			k.at[e + n_half] = float16_t(b1);
		}
	}
	for (uint e = 2 * n_half + lane(); e < dim; e += SUBGROUP) {
		float a = x.at[e] * scale * gain.at[e];
		if (is_q)
			q.at[e] = a;
		else
			k.at[e] = float16_t(a);
	}
	if (is_q)
		return;

	Floats v = Floats(address_at(x_at, push.n_head_kv, 4 * dim));
	HalvesOut v_out = HalvesOut(address_at(k_at, ABI_KV_PAGE_TOKENS, 2 * kv_width));
	for (uint e = lane(); e < dim; e += SUBGROUP)
		v_out.at[e] = float16_t(v.at[e]);
}
