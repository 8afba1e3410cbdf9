/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/matvec-site.h"

#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-blocks.h"
#include "tests/ref/ref-ops.h"

static const float eps = 1e-5f;

/* Of two bytes a number: x is taken as it is. */
static bool is_half(const struct matvec_shape *s)
{
	return s->dtypes[0] == DTYPE_F16 || s->dtypes[0] == DTYPE_BF16;
}

struct weights_tensor matvec_site_take_matrix(
	struct op_arena *a, uint32_t dtype, uint32_t n, uint32_t k, uint32_t skew)
{
	const struct dtype *t = dtype_find(dtype);
	uint64_t n_bytes = (uint64_t)n * k / t->n_block * t->n_bytes;
	uint64_t at = op_arena_take(a, n_bytes, skew), rng = op_arena_random(a, 1, UINT32_MAX);

	ref_blocks_fill(dtype, n_bytes / t->n_bytes, 0x1p-4f, 0x1p-4f, &rng, a->map + at);
	return (struct weights_tensor){.address = op_arena_address(a, at),
		.dtype = dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, 1, 1},
		.n_bytes = n_bytes};
}

/* Blocks of very different sizes, one of nothing. */
static uint64_t take_x(struct op_arena *a, uint32_t k)
{
	uint64_t at = op_arena_take_floats(a, (uint64_t)MATVEC_SITE_X_ROWS * k);
	float *x = op_arena_floats(a, at);

	for (uint64_t i = 0; i < (uint64_t)MATVEC_SITE_X_ROWS * k; i += 32) {
		float scale = op_arena_random(a, 0, 7) == 0 ? 0.0f : 1.0f;
		scale = ldexpf(scale, (int)op_arena_random(a, 0, 8) - 4);
		for (uint32_t e = 0; e < 32; e++)
			x[i + e] *= scale;
	}
	return at;
}

void matvec_site_init(struct op_arena *a, const struct matvec_shape *s, struct matvec_site *ret)
{
	*ret = (struct matvec_site){
		.p = {.n_parts = s->n_parts, .finish = s->finish, .eps = eps, .n_rows = s->m}};
	struct op_matmul_params *p = &ret->p;

	op_arena_reset(a);
	for (uint32_t i = 0; i < s->n_parts; i++) {
		uint32_t skew = s->dtypes[i] == DTYPE_Q4_K || is_half(s) ? 16 : 4;
		p->w[i] = matvec_site_take_matrix(a, s->dtypes[i], s->n[i], s->k, skew);
		ret->y_width += s->n[i];
	}
	if (s->finish == OP_MATMUL_SWIGLU)
		ret->y_width = s->n[0];
	ret->order = s->dtypes[0] == DTYPE_Q2_0   ? ABI_QUANT_ORDER_BY4
		     : s->dtypes[0] == DTYPE_Q1_0 ? ABI_QUANT_ORDER_BY8
						  : ABI_QUANT_ORDER_PLAIN;
	ret->n_y_bytes = sizeof(float) * s->m * ret->y_width;
	ret->x = take_x(a, s->k);
	ret->gain = op_arena_take_floats(a, s->k);
	ret->y = op_arena_take(a, ret->n_y_bytes, 0);
	ret->r = op_arena_take_floats(a, (uint64_t)s->m * ret->y_width);
	p->n_staging_bytes = op_matvec_staging_bytes(s->k, s->m);
	ret->staging = op_arena_take(a, p->n_staging_bytes, 0);
	for (uint32_t i = 0; i < s->m; i++)
		ret->want[i] = s->has_want ? op_arena_random(a, 0, MATVEC_SITE_X_ROWS - 1) : i;
	uint64_t want = op_arena_take(a, sizeof(ret->want), 0);
	memcpy(a->map + want, ret->want, sizeof(ret->want[0]) * s->m);
	p->x = op_arena_address(a, ret->x);
	p->y = op_arena_address(a, ret->y);
	p->r = s->finish == OP_MATMUL_ADD ? op_arena_address(a, ret->r) : 0;
	p->gain = s->has_norm ? op_arena_address(a, ret->gain) : 0;
	p->want = s->has_want ? op_arena_address(a, want) : 0;
	p->staging = op_arena_address(a, ret->staging);
	p->m = op_arena_address(a, op_arena_take_u32(a, s->m));
}

/* Byte b of word w of 32 numbers: which of them. As abi.h says. */
static uint32_t number_of(uint32_t order, uint32_t w, uint32_t b)
{
	switch (order) {
	case ABI_QUANT_ORDER_BY4: return 16 * (w / 4) + 4 * b + w % 4;
	case ABI_QUANT_ORDER_BY8: return 8 * b + w;
	default: return 4 * w + b;
	}
}

struct half {
	float scale;
	int16_t sums[2];
};

static struct half get_half_unit(const uint8_t *row, uint32_t k, uint32_t block)
{
	struct half h;
	uint32_t at = block % 2 * (k / 64) + block / 2;

	memcpy(&h, row + k + 8 * at, sizeof(h));
	return h;
}

/* v [32]: what the block was made of; ret_a [32] gets what it says. */
static void check_block(const struct op_arena *a, const struct matvec_site *site,
	const uint8_t *row, uint32_t k, uint32_t block, const float *v, float *ret_a)
{
	struct half h = get_half_unit(row, k, block);
	float top = 0;
	int sums[2] = {0};

	for (uint32_t i = 0; i < 32; i++)
		top = fmaxf(top, fabsf(v[i]));
	op_arena_check_near(a, h.scale, top / 127, 1e-6f * top / 127, "scale", block);
	for (uint32_t w = 0; w < 8; w++) {
		uint32_t quad = block % 2 * 2 + w / 4;
		const int8_t *q =
			(const int8_t *)row + (quad * (k / 64) + block / 2) * 16 + w % 4 * 4;
		for (uint32_t b = 0; b < 4; b++) {
			uint32_t i = number_of(site->order, w, b);
			ret_a[i] = h.scale * (float)q[b];
			sums[w / 4] += q[b];
			op_arena_check_near(
				a, ret_a[i], v[i], 0.5001f * h.scale, "byte", 32 * block + i);
		}
	}
	assert_int_equal(h.sums[0], sums[0]);
	assert_int_equal(h.sums[1], sums[1]);
}

/* Row i of staging; ret_a [k] gets its numbers, with the norm's factor, which it returns. */
static float check_staging(const struct op_arena *a, const struct matvec_shape *s,
	const struct matvec_site *site, uint32_t i, float *ret_a)
{
	const uint8_t *row = a->map + site->staging + i * op_matvec_staging_bytes(s->k, 1);
	const float *x = op_arena_floats(a, site->x) + (uint64_t)site->want[i] * s->k;
	const float *gain = op_arena_floats(a, site->gain);
	double squares = 0;
	float v[32];

	for (uint32_t block = 0; block < s->k / 32; block++) {
		for (uint32_t e = 0; e < 32; e++) {
			uint32_t at = 32 * block + e;
			v[e] = s->has_norm ? x[at] * gain[at] : x[at];
			squares += (double)x[at] * x[at];
		}
		if (is_half(s))
			memcpy(ret_a + 32 * block, v, sizeof(v));
		else
			check_block(a, site, row, s->k, block, v, ret_a + 32 * block);
	}
	if (!s->has_norm)
		return 1;
	double found = is_half(s) ? squares : 0;
	for (uint32_t j = 0; j < s->k / 32 && !is_half(s); j++) {
		float part;
		memcpy(&part, row + s->k / 4 * 5 + 4 * j, sizeof(part));
		found += part;
	}
	op_arena_check_near(a, (float)found, (float)squares, 1e-5f * (float)squares, "squares", i);
	return (float)(1 / sqrt(squares / s->k + (double)eps));
}

/* Of one row of x: y before finish, and how far it may be off; all [width]. */
struct expected {
	float *y;
	float *near;  /* of products of the same bytes */
	float *truth; /* of x as it is */
	float *far;   /* from that */
};

static void compute_part(const struct op_arena *a, const struct matvec_shape *s,
	const struct matvec_site *site, uint32_t part, uint32_t i, const float *staged, float norm,
	uint32_t at, struct expected *e)
{
	const struct weights_tensor *t = &site->p.w[part];
	const uint8_t *w_rows = a->map + (t->address - vk_memory_get_address(a->memory));
	const float *x = op_arena_floats(a, site->x) + (uint64_t)site->want[i] * s->k;
	const float *gain = op_arena_floats(a, site->gain);
	const uint8_t *row = a->map + site->staging + i * op_matvec_staging_bytes(s->k, 1);
	float *w = malloc(8ull * s->k), *reach = w + s->k;

	assert_non_null(w);
	for (uint32_t j = 0; j < s->n[part]; j++) {
		double y = 0, scale = 0, truth = 0, far = 0;
		ref_blocks_dequantize(
			t->dtype, w_rows + j * (t->n_bytes / s->n[part]), s->k, w, reach);
		for (uint32_t l = 0; l < s->k; l++) {
			y += (double)w[l] * staged[l];
			scale += fabs((double)reach[l] * staged[l]);
			truth += (double)w[l] * x[l] * (s->has_norm ? gain[l] : 1.0f);
			if (is_half(s))
				continue;
			far += fabs((double)w[l]) * get_half_unit(row, s->k, l / 32).scale / 2;
		}
		e->y[at + j] = (float)(norm * y);
		e->near[at + j] = (float)(4e-6 * norm * scale) + 1e-6f;
		e->truth[at + j] = (float)(norm * truth);
		e->far[at + j] = (float)(1.001 * norm * far) + e->near[at + j];
	}
	free(w);
}

static void check_output(const struct op_arena *a, const struct matvec_shape *s,
	const struct matvec_site *site, uint32_t i, const struct expected *e)
{
	const float *y = op_arena_floats(a, site->y) + (uint64_t)i * site->y_width;
	const float *r = op_arena_floats(a, site->r) + (uint64_t)i * site->y_width;

	for (uint32_t j = 0; j < site->y_width; j++) {
		uint64_t at = (uint64_t)i * site->y_width + j;
		if (s->finish == OP_MATMUL_SWIGLU) {
			float up = e->y[site->y_width + j], gate = ref_ops_silu(e->y[j]);
			/* |silu'| is at most 1.1. */
			float tolerance = 1.1f * e->near[j] * fabsf(up) +
					  fabsf(gate) * e->near[site->y_width + j] + 1e-6f;
			op_arena_check_near(a, y[j], gate * up, tolerance, "output", at);
			continue;
		}
		float before = s->finish == OP_MATMUL_ADD ? r[j] : 0;
		op_arena_check_near(a, y[j], before + e->y[j], e->near[j], "output", at);
		op_arena_check_near(a, y[j], before + e->truth[j], e->far[j], "true output", at);
	}
}

void matvec_site_check(
	const struct op_arena *a, const struct matvec_shape *s, const struct matvec_site *site)
{
	uint32_t width = s->n[0] + (s->n_parts > 1 ? s->n[1] : 0) + (s->n_parts > 2 ? s->n[2] : 0);
	float *all = malloc(sizeof(float) * (s->k + 4ull * width));

	assert_non_null(all);
	for (uint32_t i = 0; i < s->m; i++) {
		struct expected e = {all + s->k, all + s->k + width, all + s->k + 2 * width,
			all + s->k + 3 * width};
		float norm = check_staging(a, s, site, i, all);
		for (uint32_t part = 0, at = 0; part < s->n_parts; at += s->n[part++])
			compute_part(a, s, site, part, i, all, norm, at, &e);
		check_output(a, s, site, i, &e);
	}
	free(all);
}

/* What quantize.comp writes of each row. */
void matvec_site_expect_staging(
	struct op_arena *a, const struct matvec_shape *s, const struct matvec_site *site)
{
	uint32_t n_squares = s->has_norm ? s->k / 32 : 0;

	for (uint32_t i = 0; i < s->m && !is_half(s); i++)
		op_arena_expect(a, site->staging + i * op_matvec_staging_bytes(s->k, 1),
			s->k / 4 * 5 + 4 * n_squares);
}

void matvec_site_run(
	struct op_arena *a, const struct matvec_site *site, const struct op_matvec_shape *cut)
{
	struct err e = ERR_NULL;

	assert_true(op_matvec_fits(a->pool, &site->p));
	struct vk_command *c = op_arena_begin(a);
	on_device_check(op_matvec_record_shape(a->pool, c, &site->p, cut, &e), &e, "record");
	op_arena_run(a);
}

/* Forgets the last run's output. */
void matvec_site_poison(struct op_arena *a, const struct matvec_site *site)
{
	static const uint32_t poison = 0x7fc0beef;

	for (uint64_t at = 0; at < site->n_y_bytes; at += 4)
		memcpy(a->map + site->y + at, &poison, sizeof(poison));
}

void matvec_site_check_written(
	const struct op_arena *a, const struct matvec_site *site, bool is_written)
{
	for (uint64_t i = 0; i < site->n_y_bytes / 4; i++)
		assert_int_equal(isnan(op_arena_floats(a, site->y)[i]) == 0, is_written);
}
