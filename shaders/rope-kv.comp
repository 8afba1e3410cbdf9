#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries and keys of the rows made ready for attention, keys and values put into their pages:
 *
 *	a = x gain / sqrt(mean(x^2) + eps)    over a head, q and k each with its gain; without: a =
 *x b[l] = a[l] cos t - a[h] sin t        pair i < n_rot / 2 of numbers l and h, b[h] = a[h] cos t +
 *a[l] sin t        t = position angle[i] b[j] = a[j]                           j >= n_rot
 *
 * where l, h are i, i + n_rot / 2 (NEOX: the halves rotate against each other) or, interleaved,
 * 2 i, 2 i + 1 (NORM).
 *
 * q is changed in place; k (as b) and v (as it is) go to the row's page, as f16 or in blocks of 32
 * numbers (Q8_0):
 *
 *	scale = largest |x| / 127 as f16, and each number round(x / that before it was rounded)
 *
 * Shapes: qkv [m][(n_head + 2 n_head_kv) head_dim] f32, pages as in workerd/kv-layout.h (KV_F16 or
 * KV_Q8_0).
 * Grid: x: ceil((n_head + n_head_kv) / subgroups of a workgroup), a subgroup a head of q or of k
 * and v; y: m.
 * Bindings: none; addresses in struct abi_rope_kv. Rows beyond *m are not computed.
 */
#include "kv.glsl"
#include "rope.glsl"

layout(push_constant, std430) uniform Push
{
	abi_rope_kv push;
};

Floats x; /* the head as it came */
Floats gain;
bool has_norm;
float scale; /* of the norm */
uint position;

/* Number e of the head, normed where there is a norm. */
float normed(uint e)
{
	return has_norm ? x.at[e] * scale * gain.at[e] : x.at[e];
}

/* The two numbers of pair i, the lower first. */
uvec2 pair(uint i)
{
	return push.is_interleaved != 0 ? uvec2(2 * i, 2 * i + 1) : uvec2(i, i + push.n_rot / 2);
}

/* What the numbers of pair i become. */
vec2 turned(uint i, uvec2 at)
{
	vec2 r = rotation(Pairs(push.turns).at[i], position);
	float a0 = normed(at.x), a1 = normed(at.y);

	return vec2(fma(a0, r.x, -(a1 * r.y)), fma(a1, r.x, a0 * r.y));
}

#if defined(KV_Q8_0)

/* Number e of the head, normed and rotated. */
float rotated(uint e)
{
	uint n_half = push.n_rot / 2;

	if (e >= 2 * n_half)
		return normed(e);
	bool is_low = push.is_interleaved != 0 ? (e & 1) == 0 : e < n_half;
	uint i = push.is_interleaved != 0 ? e / 2 : (is_low ? e : e - n_half);
	vec2 t = turned(i, pair(i));
	return is_low ? t.x : t.y;
}

/*
 * Puts v or, rotated, k into its row: eight lanes share a block, four numbers each, a word. What is
 * behind the head in the last word is 0.
 */
void store_blocks(uvec2 part_at, uint row, bool is_key, Floats values)
{
	uint dim = push.head_dim, n_scales = kv_scales(dim);
	uvec2 scales_at = kv_scales_at(part_at, push.n_head_kv, dim);
	WordsOut words = WordsOut(address_at(part_at, row, kv_row_bytes(dim)));
	HalvesOut scales = HalvesOut(address_at(scales_at, row, 2 * n_scales));

	for (uint block = lane() / 8; block < n_scales; block += SUBGROUP / 8) {
		uint e0 = block * KV_BLOCK + 4 * (lane() % 8);
		vec4 v = vec4(0.0);
		[[unroll]] for (uint i = 0; i < 4; i++) if (e0 + i < dim) v[i] =
			is_key ? rotated(e0 + i) : values.at[e0 + i];
		vec4 magnitude = abs(v);
		float top = max(max(magnitude.x, magnitude.y), max(magnitude.z, magnitude.w));
		[[unroll]] for (uint d = 1; d < 8; d *= 2) top =
			max(top, subgroupShuffleXor(top, d));
		float d = top / 127.0;
		float inverse = d > 0.0 ? 1.0 / d : 0.0;
		/* Away from 0 at the middle, as round() of C. */
		ivec4 n = ivec4(sign(v) * floor(fma(magnitude, vec4(inverse), vec4(0.5))));
		n = clamp(n, -127, 127);
		if (e0 < dim)
			words.at[e0 / 4] = (uint(n.x) & 255) | (uint(n.y) & 255) << 8 |
					   (uint(n.z) & 255) << 16 | uint(n.w) << 24;
		if (lane() % 8 == 0)
			scales.at[block] = float16_t(d);
	}
}

void store_kv(uvec2 keys_at, uvec2 values_at, uint row, Floats v)
{
	store_blocks(keys_at, row, true, v);
	store_blocks(values_at, row, false, v);
}

#else

void store_kv(uvec2 keys_at, uvec2 values_at, uint row, Floats v)
{
	uint dim = push.head_dim, n_half = push.n_rot / 2;
	HalvesOut k = HalvesOut(address_at(keys_at, row, kv_row_bytes(dim)));
	HalvesOut v_out = HalvesOut(address_at(values_at, row, kv_row_bytes(dim)));

	for (uint e = lane(); e < n_half; e += SUBGROUP) {
		uvec2 at = pair(e);
		vec2 t = turned(e, at);
		k.at[at.x] = float16_t(t.x);
		k.at[at.y] = float16_t(t.y);
	}
	for (uint e = 2 * n_half + lane(); e < dim; e += SUBGROUP)
		k.at[e] = float16_t(normed(e));
	for (uint e = lane(); e < dim; e += SUBGROUP)
		v_out.at[e] = float16_t(v.at[e]);
}

#endif

void turn_query(FloatsOut q)
{
	uint n_half = push.n_rot / 2;

	for (uint e = lane(); e < n_half; e += SUBGROUP) {
		uvec2 at = pair(e);
		vec2 t = turned(e, at);
		q.at[at.x] = t.x;
		q.at[at.y] = t.y;
	}
	for (uint e = 2 * n_half + lane(); e < push.head_dim; e += SUBGROUP)
		q.at[e] = normed(e);
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
	x = Floats(x_at);
	uvec2 gain_at = is_q ? push.q_gain : push.k_gain;
	gain = Floats(gain_at);
	has_norm = any(notEqual(gain_at, uvec2(0)));
	position = row.position;

	if (has_norm) {
		float squares = 0.0;
		for (uint e = lane(); e < dim; e += SUBGROUP)
			squares = fma(x.at[e], x.at[e], squares);
		scale = norm_scale(sum_lanes(squares), dim, push.eps);
	}
	if (is_q) {
		turn_query(FloatsOut(x_at));
		return;
	}
	uint entry = row.slot * push.n_slot_pages + position / ABI_KV_PAGE_TOKENS;
	uvec2 page = Pairs(push.table).at[entry];
	uvec2 keys_at = kv_part_at(page, 2 * push.layer, push.n_head_kv, dim);
	uvec2 values_at = kv_part_at(page, 2 * push.layer + 1, push.n_head_kv, dim);
	store_kv(keys_at, values_at, kv_row(head - push.n_head, position),
		Floats(address_at(x_at, push.n_head_kv, 4 * dim)));
}
