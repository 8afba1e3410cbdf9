/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ROPE_GLSL
#define SHADERS_ROPE_GLSL

/*
 * An angle is kept in turns, as a fixed-point fraction of 64 bits that is multiplied by the
 * position in integers: exact at any position, where position * angle in floats loses 2^-24 of an
 * angle of up to 10^5 radians. What is left is at most an eighth of a turn, where short polynomials
 * reach float accuracy; Vulkan promises only 2^-11 of sin and cos.
 */

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

#endif
