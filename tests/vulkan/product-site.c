/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/product-site.h"

#include "proto/manifest.h"
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/matrix-sample.h"

enum { ARENA_BYTES = 4 << 20, STAGING_BYTES = 4 << 20 };
static const float eps = 1e-5f;

void product_site_init(struct product_site *s, uint64_t seed, product_site_record_fn record)
{
	op_arena_init(&s->a, ARENA_BYTES, seed);
	s->staging = on_device_memory(s->a.d, VK_MEMORY_SCRATCH, STAGING_BYTES, false);
	s->record = record;
}

void product_site_fini(struct product_site *s)
{
	vk_memory_free(s->staging);
	op_arena_fini(&s->a);
}

struct weights_tensor product_site_take_matrix(
	struct product_site *s, uint32_t dtype, uint32_t n, uint32_t k)
{
	struct op_arena *a = &s->a;
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, k);
	uint64_t offset = op_arena_take(a, n * n_row_bytes, 0);
	uint64_t rng = op_arena_random(a, 1, UINT32_MAX);

	for (uint32_t j = 0; j < n; j++)
		matrix_sample_fill(dtype, k, &rng, a->map + offset + j * n_row_bytes);
	return (struct weights_tensor){
		.address = op_arena_address(a, offset),
		.dtype = dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, 1, 1},
		.n_bytes = n * n_row_bytes,
	};
}

struct op_matmul_params product_site_get_params(const struct product_site *s, uint32_t n_rows)
{
	return (struct op_matmul_params){.staging = vk_memory_get_address(s->staging),
		.n_staging_bytes = STAGING_BYTES,
		.n_rows = n_rows};
}

struct op_matmul_params product_site_take_product(
	struct product_site *s, uint32_t dtype, uint32_t n, uint32_t k, uint32_t m)
{
	struct op_matmul_params p = product_site_get_params(s, m);

	p.n_parts = 1;
	p.w[0] = product_site_take_matrix(s, dtype, n, k);
	p.x = op_arena_address(&s->a, op_arena_take_floats(&s->a, (uint64_t)m * k));
	p.m = op_arena_address(&s->a, op_arena_take_u32(&s->a, m));
	return p;
}

/* Row j of the matrix times x. */
static struct matrix_sample_dot dot(
	const struct op_arena *a, const struct weights_tensor *w, uint32_t j, const float *x)
{
	uint32_t k = (uint32_t)w->ne[0];
	float *row = malloc(2 * sizeof(float) * k);
	const uint8_t *data = a->map + (w->address - vk_memory_get_address(a->memory));

	assert_non_null(row);
	matrix_sample_get(w->dtype, data + j * (w->n_bytes / w->ne[1]), k, row, row + k);
	struct matrix_sample_dot d = matrix_sample_dot(row, row + k, x, k);
	free(row);
	return d;
}

static void check_row(const struct op_arena *a, const struct product_shape *s,
	const struct op_matmul_params *p, const float *x, const float *y, const float *r)
{
	uint32_t at = 0;

	if (s->finish == OP_MATMUL_SWIGLU) {
		for (uint32_t j = 0; j < s->n[0]; j++) {
			struct matrix_sample_dot d = matrix_sample_swiglu(
				dot(a, &p->w[0], j, x), dot(a, &p->w[1], j, x));
			op_arena_check_near(a, y[j], (float)d.y, (float)d.tolerance, "swiglu", j);
		}
		return;
	}
	for (uint32_t part = 0; part < s->n_parts; part++) {
		for (uint32_t j = 0; j < s->n[part]; j++, at++) {
			struct matrix_sample_dot d = dot(a, &p->w[part], j, x);
			if (s->finish == OP_MATMUL_ADD)
				d.y += r[at];
			op_arena_check_near(
				a, y[at], (float)d.y, (float)d.tolerance + 1e-6f, "output", at);
		}
	}
}

static uint32_t get_width(const struct product_shape *s)
{
	uint32_t width = 0;

	for (uint32_t i = 0; i < s->n_parts; i++)
		width += s->n[i];
	return s->finish == OP_MATMUL_SWIGLU ? s->n[0] : width;
}

void product_site_poison_staging(const struct product_site *s, struct vk_command *c)
{
	struct vk_slice staging = on_device_whole(s->staging);

	vk_command_fill(c, &staging, 0x7fc1fe7fu); /* NaN as f32 and as two f16 */
	vk_command_barrier(c);
}

void product_site_run(struct product_site *s, const struct op_matmul_params *p, const void *cut)
{
	struct vk_command *c = op_arena_begin(&s->a);
	struct err e = ERR_NULL;

	product_site_poison_staging(s, c);
	on_device_check(s->record(&s->a, c, p, cut, &e), &e, "record");
	op_arena_run(&s->a);
}

void product_site_run_shape(struct product_site *site, const struct product_shape *s)
{
	struct op_arena *a = &site->a;
	struct op_matmul_params p = product_site_get_params(site, s->n_rows);
	uint32_t width = get_width(s), want[PRODUCT_SITE_X_ROWS];

	op_arena_reset(a);
	p.n_parts = s->n_parts;
	p.finish = s->finish;
	p.eps = eps;
	for (uint32_t i = 0; i < s->n_parts; i++)
		p.w[i] = product_site_take_matrix(site, s->dtypes[i], s->n[i], s->k);
	uint64_t n_y = (uint64_t)s->m * width;
	uint64_t x = op_arena_take_floats(a, (uint64_t)PRODUCT_SITE_X_ROWS * s->k);
	uint64_t gain = op_arena_take_floats(a, s->k);
	uint64_t y = op_arena_take(a, sizeof(float) * n_y, 0);
	uint64_t r = op_arena_take_floats(a, n_y);
	uint64_t want_at = op_arena_take(a, sizeof(want), 0);
	for (uint32_t i = 0; i < s->m; i++)
		want[i] = s->has_want ? op_arena_random(a, 0, PRODUCT_SITE_X_ROWS - 1) : i;
	memcpy(a->map + want_at, want, sizeof(want[0]) * s->m);
	p.x = op_arena_address(a, x);
	p.y = op_arena_address(a, y);
	p.r = s->finish == OP_MATMUL_ADD ? op_arena_address(a, r) : 0;
	p.gain = s->has_norm ? op_arena_address(a, gain) : 0;
	p.want = s->has_want ? op_arena_address(a, want_at) : 0;
	p.m = op_arena_address(a, op_arena_take_u32(a, s->m));
	op_arena_expect(a, y, sizeof(float) * n_y);
	product_site_run(site, &p, s->cut);

	float *h = malloc(sizeof(float) * s->k);
	assert_non_null(h);
	for (uint32_t i = 0; i < s->m; i++) {
		const float *row = op_arena_floats(a, x) + (uint64_t)want[i] * s->k;
		memcpy(h, row, sizeof(float) * s->k);
		if (s->has_norm)
			ref_ops_rms_norm(row, op_arena_floats(a, gain), s->k, eps, h);
		check_row(a, s, &p, h, op_arena_floats(a, y) + (uint64_t)i * width,
			op_arena_floats(a, r) + (uint64_t)i * width);
	}
	free(h);
}

void product_site_check_repeats(
	struct product_site *s, struct op_matmul_params p, const void *cut, uint32_t n)
{
	uint64_t n_bytes = sizeof(float) * p.n_rows * p.w[0].ne[1];
	uint8_t *first = malloc(n_bytes);

	assert_non_null(first);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t y = op_arena_take(&s->a, n_bytes, 0);
		p.y = op_arena_address(&s->a, y);
		op_arena_expect(&s->a, y, n_bytes);
		product_site_run(s, &p, cut);
		if (i == 0)
			memcpy(first, s->a.map + y, n_bytes);
		assert_memory_equal(s->a.map + y, first, n_bytes);
	}
	free(first);
}

void product_site_check_fits(const struct product_site *s,
	bool (*fits)(const struct op_pool *pool, const struct op_matmul_params *p),
	const struct op_matmul_params *good)
{
	struct op_matmul_params p = *good;

	assert_true(fits(s->a.pool, &p));
#define REFUSED(change)                            \
	do {                                       \
		p = *good;                         \
		change;                            \
		assert_false(fits(s->a.pool, &p)); \
	} while (0)
	REFUSED(p.is_exact = true);
	REFUSED(p.staging = 0);
	REFUSED(p.n_staging_bytes--);
	REFUSED(p.w[0].layout = 7);
	REFUSED(p.w[0].address += 2);
	REFUSED(p.w[0].ne[1]++);
	REFUSED(p.w[0].ne[2] = 2);
	REFUSED(p.x += 4);
	REFUSED(p.n_parts = 0);
	REFUSED(p.n_parts = ABI_MATMUL_MAX_PARTS + 1);
	REFUSED(p.finish = OP_MATMUL_SWIGLU);
#undef REFUSED
}
