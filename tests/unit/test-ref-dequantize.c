/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalar reference of block formats against numbers of ggml's own functions (libggml-base
 * 0.25.1 of node-llama-cpp 3.22.1, commit 0ad4a86, dequantize_row_* and ggml_bf16_to_fp32_row): two
 * random blocks each, the second with scales below the smallest normal f16.
 */
#include "tests/case.h"

#include "proto/dtype.h"
#include "proto/util/cleanup.h"
#include "proto/util/fnv.h"
#include "tests/ref/ref-ops.h"

enum { MAX_BYTES = 512, MAX_NUMBERS = 512, N_SHOWN = 8 };

struct sample {
	uint32_t dtype;
	uint32_t n;        /* numbers */
	const char *bytes; /* hexadecimal */
	struct {
		uint32_t i;
		float value;
	} shown[N_SHOWN];
	uint64_t hash; /* fnv_hash of all of them */
};

/* clang-format off */
static const struct sample samples[] = {
	{DTYPE_BF16, 8,
		"4e4033c02bc05dc054c0b5bf6cc02e40",
		{{0, 0x1.9c0000p+1f}, {1, -0x1.660000p+1f}, {2, -0x1.560000p+1f}, {3, -0x1.ba0000p+1f},
			{4, -0x1.a80000p+1f}, {5, -0x1.6a0000p+0f}, {6, -0x1.d80000p+1f}, {7, 0x1.5c0000p+1f}},
		0x90ebd9333b97001c},
	{DTYPE_Q8_0, 64,
		"d622f39f4ea046a92bc0c1183b3cfc4d8d6935c88d2b162a87e23fdc0618fb89049b3c81eaa53aeb"
		"5554cbf40399a360898d98df55d7c178a8d77fc402b8b08782403065",
		{{0, -0x1.637800p-3f}, {13, 0x1.072f00p+0f}, {23, -0x1.9a2800p-2f}, {28, -0x1.117000p-4f},
			{32, 0x1.b28000p-12f}, {35, 0x1.9ec000p-12f}, {46, 0x1.00c000p-9f}, {63, -0x1.f2b000p-10f}},
		0xd749ec61b00b45df},
	{DTYPE_Q4_0, 64,
		"b1240844386bc04fe15694f4878628dd892ea180d508166d6966cd5f349fc1b636578a2d",
		{{0, 0x0.0p+0f}, {15, 0x1.c26000p-4f}, {20, 0x1.2c4000p-4f}, {24, 0x1.2c4000p-6f},
			{32, 0x1.e30000p-16f}, {40, 0x1.420000p-15f}, {42, 0x1.19c000p-14f}, {63, 0x1.e30000p-15f}},
		0xff3b9fd7df85e156},
	{DTYPE_Q4_K, 512,
		"f42406a5692e8dde3a153e2e7937c7358b29c8824b0f082cadd441e18f5d3ea8fc6012459d2b05a7"
		"0c60116719e228dd33969269e20668d8e7d89c3b12fbdee145dffcd0bb322a8b9ee1e594e907af20"
		"e475bb896c5162fc2f3260e83cb4e448b26425e9bcb1e47695148dfb2cb2ac0b93d7da39dde97150"
		"b063b11d9336d19e4a8022d56fad171408dc3687128d3ec1f980c000bf6241cb428816ef55eddcb5"
		"c1720490b17dde52455bd88709bae03150770f55f31c521ae423ff53b7c2d6b4359c4178ccb2bd92"
		"414b711de3247b71d80fa33e10ab534150e31b861569c492d800ec73c38e1a3672b595f2367969b4"
		"da7090b0a1d96e73227af33c0431d4406d76601acb6e502d4641b49f55e61f347b1faa1ea84fb67c"
		"3165d9eb4c2fd905",
		{{0, 0x1.3ba700p+3f}, {91, 0x1.1c8200p+1f}, {142, 0x1.093d00p+1f}, {191, 0x1.e24000p-5f},
			{328, -0x1.179000p-12f}, {344, -0x1.080000p-12f}, {488, -0x1.f4e800p-9f}, {511, -0x1.620000p-11f}},
		0x3e2083131c843a47},
	{DTYPE_Q5_K, 512,
		"6a24aea43a8e8ecf989a7d18a4038017808123494cdfb91014a633881646807db59b4c4d29e41d0a"
		"0b797e72cc207fc5877ff0b234237ef04bc2a7883688a7eca476a888077976701ee54a888fbfbc85"
		"2659d97b9e22a209b5d75e6e5c5a5031b931906e89724a3f7cf9e63c3e5d67c7151e276517c258ac"
		"2d063d5ffbc1eed6489aed3ff6df07e7e2f05282b1931dcec7db53534ab97dd26ba8a120553c925a"
		"16551a4b84af9c148e0d293949981b5edc80b50005786a43d115e10459cf69860f3a2448bc0b90bd"
		"2a5ea74d5a35a75a35469f63c38c8a25c03eab426cd642d7b45ff2abe38f5442c6378c7f5a47bb0f"
		"97607ad0937d9a14df57d6d9b73f08338432efb9748e32699130231beee58fffca3422d3916579d6"
		"5b3b505419d5d88a178ecae41b2fba541ab83af00595dc40609f84c84bd4ee7a522464f87d742c84"
		"a927f9616cac3a907fec27f318a2a64796bfae687bd7c37287667ed037747d98",
		{{0, 0x1.dc1b00p+2f}, {14, 0x1.dc1b00p+2f}, {68, 0x1.0b6bc0p+3f}, {116, 0x1.a95800p+2f},
			{130, 0x1.402400p+0f}, {366, -0x1.774000p-12f}, {437, -0x1.62d000p-8f}, {511, -0x1.de5000p-8f}},
		0x58176ff0b9b777b5},
	{DTYPE_Q6_K, 512,
		"bd79d8ab5ac1f3aedf33c1478fecbc8aef76861cfc1dd98793a08f2fa83cf9fd8a52c9e4e3600ed2"
		"09dbe78887b15fe2d0a4ec6a27d184775e3a79e6ed688e5629c48b94847ff7cd767bcaba6c21c861"
		"a490e63d0c406eff082918d5d76b365f93fbda2fc241c6ed4b55e82319070d1cf60dd21ebb723f19"
		"01b4c089d4a82d970c37a25146c73e74da36b69b9aaeb161fb8dfc7bc8a5a47f81a233815df35189"
		"69a7a631713daae8f6a1218a588a594ef89713d5a3f8622450af01f30fd8fb5189fffd89cd462e59"
		"faade65c82761c5b86247d4d22c8a1299f0b5501db5d083ae8cd3556b79bea05d62c60fae9de536d"
		"4a3307601f1cb9dd662a6ec00fea50182cd6406e03e601ae606b0614d8ce32949db5cf5e242414ba"
		"80128bef9036a383a64f45bbf9c13796a44d89a2043f14089366ac467db04112371632c63bd7962b"
		"8b2a775f4d9ae7e7a08e0d3706a7e5f625939c16bbc4e07be2f8a49edc4a7fbe092806a1c792a2c8"
		"6ebdd2a3fdcf2f9b24c7dceab3fc68758bdcc18cec72dea4164cf47de50e7b50d498ae485b102751"
		"76144e38fe0b848cd30e903c6231b49ba7e47980",
		{{0, 0x1.3f9bf0p+5f}, {179, -0x1.a02800p+1f}, {240, 0x1.8ec4f0p+5f}, {269, -0x1.70ac00p-8f},
			{278, -0x1.3da000p-9f}, {283, -0x1.8d0800p-7f}, {360, 0x1.fe7800p-10f}, {511, -0x1.306400p-8f}},
		0xbc34143f5d0d02d6},
	{DTYPE_TQ2_0, 512,
		"cb0f55c2da7963206a6cb0dd388bd75611153f449a1ec699ec6572e972b8b925d604368a0d37dae8"
		"190e2c3631ec4d9718106544d3f810238df156aedaad1c1650203d7af323e968e08e45d503a02a49"
		"409ad073ebfd64aafed9859479fe958733601a14e54ee269c342f1c17bdfc9d066fe65fa7600094c"
		"367b50c3c383469d61aa2581",
		{{0, 0x1.140000p-6f}, {286, -0x1.250000p-15f}, {330, 0x1.250000p-16f}, {411, -0x1.250000p-15f},
			{420, 0x1.250000p-16f}, {444, -0x0.0p+0f}, {457, 0x1.250000p-16f}, {511, -0x1.250000p-16f}},
		0xd8d07043c3e286d1},
	{DTYPE_Q2_0, 128,
		"9a2028de20f03e678a6c5364e5804a7652a3758072256007dbaee86a51ff4649f60c987e",
		{{0, -0x1.268000p-7f}, {44, -0x1.268000p-7f}, {46, -0x1.268000p-7f}, {80, -0x1.d40000p-17f},
			{84, -0x1.d40000p-18f}, {94, -0x1.d40000p-18f}, {102, -0x1.d40000p-17f}, {127, -0x0.0p+0f}},
		0x2b6faf6224403a35},
	{DTYPE_Q1_0, 256,
		"1c241ff635ee0d7b38c23f2d0cf2141f43331a8147f0b835235fbd25af565a72b6b3cee9",
		{{0, 0x1.070000p-6f}, {66, 0x1.070000p-6f}, {70, -0x1.070000p-6f}, {93, 0x1.070000p-6f},
			{109, -0x1.070000p-6f}, {219, 0x1.1a0000p-16f}, {227, 0x1.1a0000p-16f}, {255, -0x1.1a0000p-16f}},
		0x77ac9ffba52a2ca5},
};
/* clang-format on */

static uint32_t read_bytes(const char *text, uint8_t *ret)
{
	uint32_t n = 0;
	unsigned byte;

	for (; sscanf(text + 2 * n, "%2x", &byte) == 1; n++)
		ret[n] = (uint8_t)byte;
	return n;
}

static void is_what_ggml_makes(void **state)
{
	uint8_t bytes[MAX_BYTES];
	float y[MAX_NUMBERS];

	(void)state;
	for (size_t s = 0; s < ARRAY_SIZE(samples); s++) {
		const struct sample *sample = &samples[s];
		const struct dtype *t = dtype_find(sample->dtype);

		assert_int_equal(
			read_bytes(sample->bytes, bytes), sample->n / t->n_block * t->n_bytes);
		ref_ops_dequantize(sample->dtype, bytes, sample->n, y);
		for (uint32_t i = 0; i < N_SHOWN; i++)
			if (y[sample->shown[i].i] != sample->shown[i].value)
				fail_msg("%s: number %u: expected %a, found %a", t->name,
					sample->shown[i].i, (double)sample->shown[i].value,
					(double)y[sample->shown[i].i]);
		assert_int_equal(fnv_hash(y, sizeof(float) * sample->n), sample->hash);
	}
}

/* Every format that the engine is said to have has a row above, or is plain. */
static void knows_all_that_is_supported(void **state)
{
	(void)state;
	for (uint32_t id = 0; id < 256; id++) {
		const struct dtype *t = dtype_find(id);
		bool is_known = id == DTYPE_F32 || id == DTYPE_F16;

		for (size_t s = 0; s < ARRAY_SIZE(samples); s++)
			is_known |= samples[s].dtype == id;
		if (t && t->is_supported && !is_known)
			fail_msg("%s has no sample", t->name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(is_what_ggml_makes),
		CASE(knows_all_that_is_supported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
