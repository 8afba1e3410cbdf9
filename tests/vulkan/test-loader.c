/* SPDX-License-Identifier: Apache-2.0 */
/* The loader from an opened file to what an importer finds behind the descriptors. */
#include "tests/vulkan/on-loader.h"

#include <fcntl.h>

#include "proto/manifest.h"
#include "weightd/export.h"

enum { WINDOW = 1 << 20 };

static void test_contents(void **state)
{
	/* An odd limit, just above the largest tensor, gives many allocations. */
	static const uint64_t limits[] = {0, 1114113};

	(void)state;
	for (unsigned i = 0; i < 2 * ARRAY_SIZE(limits); i++) {
		struct loader *l = on_loader_start(limits[i / 2], i % 2);
		struct export *e = on_loader_load_ready(l, 1);
		assert_string_equal(e->architecture, "qwen3");
		assert_string_equal(e->format, "q8_0");
		assert_true(i < 2 ? e->n_allocs == 1 : e->n_allocs > 4);
		on_loader_check_contents(e);
		on_loader_wait_weights(l, e->weights_bytes);
		loader_release(l, e);
		on_loader_wait_weights(l, 0);
		assert_null(loader_free(l));
	}
}

/* Windows of a megabyte: the embedding, which is larger, is one by itself. */
static void test_host_placements(void **state)
{
	static const struct {
		const char *rule;
		enum export_handle handle;
	} rows[] = {
		{"*=staged", EXPORT_MEMFD}, {"*=pinned", EXPORT_FILE}, {"*=paged", EXPORT_FILE}};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		on_loader_place(rows[i].rule);
		struct loader *l = on_loader_start_with(
			&(struct loader_params){.window_bytes = WINDOW, .use_pread = i % 2});
		struct export *e = on_loader_load_ready(l, 1);
		unsigned n_larger = 0;

		assert_true(e->n_allocs > 5);
		for (uint32_t k = 0; k < e->n_allocs; k++) {
			assert_int_equal(e->allocs[k].file_offset % 4096, 0);
			assert_int_equal(e->allocs[k].n_bytes % 4096, 0);
			n_larger += e->allocs[k].n_bytes > WINDOW;
			/* What is larger than a window cannot be pinned. */
			assert_int_equal(e->allocs[k].main.handle,
				e->allocs[k].placement == MANIFEST_PLACEMENT_STAGED ? EXPORT_MEMFD
										    : EXPORT_FILE);
		}
		assert_int_equal(n_larger, 1);
		/* Without a probe only a software driver is trusted with the pages of a disk file.
		 */
		bool is_staged_instead =
			strstr(rows[i].rule, "pinned") && !loader_get_info(l)->is_software;
		assert_int_equal(e->allocs[e->n_allocs - 1].main.handle,
			is_staged_instead ? EXPORT_MEMFD : rows[i].handle);
		assert_int_equal(e->device_bytes, 0);
		on_loader_check_contents(e);
		on_loader_wait_weights(l, 0);
		loader_release(l, e);
		loader_free(l);
		/* Everything that was staged is back. */
		assert_int_equal(atomic_load(&on_loader_account.n_staged_bytes), 0);
		on_loader_policy = (struct policy){0};
	}
}

/* The budget keeps some layers on the device; the rest is one memfd, whose size is fixed. */
static void test_budget(void **state)
{
	(void)state;
	on_loader_place("blk.*=staged");
	on_loader_place("blk.0.*=device");
	on_loader_policy.vram_budget = 4 << 20;
	struct loader *l = on_loader_start(0, false);
	struct export *e = on_loader_load_ready(l, 1);

	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] > 0);
	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] > 0);
	assert_int_equal(e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED], 0);
	assert_true(e->device_bytes <= on_loader_policy.vram_budget);
	on_loader_check_contents(e);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		const struct export_alloc *a = &e->allocs[i];
		if (a->main.handle != EXPORT_MEMFD)
			continue;
		assert_true(a->is_writable);
		assert_int_equal(
			fcntl(a->main.fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
		assert_int_equal(ftruncate(a->main.fd, 0), -1);
	}
	/* Only what is staged takes memory. */
	uint64_t staged = atomic_load(&on_loader_account.n_staged_bytes);
	assert_true(staged >= e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED]);
	assert_true(staged < e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] + (1 << 20));
	loader_release(l, e);
	loader_free(l);
	assert_int_equal(atomic_load(&on_loader_account.n_staged_bytes), 0);

	/* A host budget below that: paged, and counted. */
	on_loader_policy.host_budget = 1 << 20;
	l = on_loader_start(0, false);
	e = on_loader_load_ready(l, 1);
	assert_true(e->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] <= on_loader_policy.host_budget);
	assert_int_equal(e->n_unmet_bytes, e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED]);
	assert_true(e->n_unmet_bytes > 0);
	on_loader_check_contents(e);
	loader_release(l, e);
	loader_free(l);
	on_loader_policy = (struct policy){0};
}

static struct export *load_source(
	struct loader *l, uint64_t generation, struct source *source, bool is_foreign)
{
	struct err e = ERR_NULL;

	on_device_check(loader_load(l, generation, source, is_foreign, &e), &e, "load");
	struct loader_result r = on_loader_wait_result(l);
	if (r.kind != LOADER_READY)
		fail_msg("load: %d %s", r.code, r.err.text);
	assert_int_equal(r.is_foreign, is_foreign);
	return r.export;
}

/* For two devices: what is staged is there once, and the second adds what it lacks. */
static void test_one_memfd_for_all(void **state)
{
	struct source *source = NULL;
	struct err err = ERR_NULL;
	int fd = on_loader_open_model();

	(void)state;
	on_loader_place("blk.*=staged");
	struct loader *l = on_loader_start(0, false);
	assert_int_equal(source_new(fd, false, &on_loader_account, &err, &source), 0);
	close(fd);
	struct export *here = load_source(l, 1, source, false);
	uint64_t staged = atomic_load(&on_loader_account.n_staged_bytes);
	struct export *there = load_source(l, 1, source, true);

	assert_int_equal(here->allocs[here->n_allocs - 1].main.handle, EXPORT_MEMFD);
	assert_int_equal(there->device_bytes, 0);
	assert_true(atomic_load(&on_loader_account.n_staged_bytes) > staged);
	assert_true(atomic_load(&on_loader_account.n_staged_bytes) <= 7 << 20);
	for (uint32_t i = 0; i < there->n_allocs; i++) {
		assert_int_equal(there->allocs[i].main.handle, EXPORT_MEMFD);
		assert_int_equal(
			there->allocs[i].main.inode, here->allocs[here->n_allocs - 1].main.inode);
		assert_int_equal(there->allocs[i].file_offset % (64 << 10), 0);
	}
	on_loader_check_contents(here);
	on_loader_check_contents(there);
	loader_release(l, here);
	on_loader_check_contents(there);
	loader_release(l, there);
	source_unref(source);
	loader_free(l);
	assert_int_equal(atomic_load(&on_loader_account.n_staged_bytes), 0);
	on_loader_policy = (struct policy){0};
}

/* What nobody took or released goes with the loader. */
static void test_left(void **state)
{
	struct loader *l = on_loader_start(0, false);
	struct err e = ERR_NULL;

	(void)state;
	(void)on_loader_load_ready(l, 1);
	assert_int_equal(on_loader_load_fd(l, 2, on_loader_open_model(), &e), 0);
	assert_int_equal(on_loader_load_fd(l, 3, on_loader_open_model(), &e), 0);
	loader_free(l);
	assert_null(loader_free(NULL));
}

static void test_cancel(void **state)
{
	struct loader *l = on_loader_start(0, false);
	struct err e = ERR_NULL;
	unsigned n_cancelled = 0;

	(void)state;
	for (uint64_t i = 1; i <= 3; i++)
		assert_int_equal(on_loader_load_fd(l, i, on_loader_open_model(), &e), 0);
	loader_cancel(l, 3);
	loader_cancel(l, 77);
	for (int i = 0; i < 3; i++) {
		struct loader_result r = on_loader_wait_result(l);
		if (r.generation == 3) {
			assert_int_equal(r.code, -ECANCELED);
			n_cancelled++;
		} else {
			assert_int_equal(r.kind, LOADER_READY);
		}
	}
	assert_int_equal(n_cancelled, 1);
	loader_free(l);
}

static void test_too_many(void **state)
{
	struct loader *l = on_loader_start(0, false);
	struct err e = ERR_NULL;
	int rc = 0;

	(void)state;
	for (uint64_t i = 1; i <= 10 * LOADER_MAX_JOBS && rc == 0; i++) {
		rc = on_loader_load_fd(l, i, on_loader_open_model(), &e);
	}
	assert_int_equal(rc, -EBUSY);
	loader_free(l);
}

static void test_no_device(void **state)
{
	const struct loader_params params = {
		.device = "999", .policy = &on_loader_policy, .account = &on_loader_account};
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(loader_new(&params, &e, &l), -ENODEV);
	assert_true(e.text[0] != '\0');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_contents),
		CASE(test_host_placements),
		CASE(test_budget),
		CASE(test_one_memfd_for_all),
		CASE(test_left),
		CASE(test_cancel),
		CASE(test_too_many),
		CASE(test_no_device),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
