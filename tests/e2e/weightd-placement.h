/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_E2E_WEIGHTD_PLACEMENT_H
#define TESTS_E2E_WEIGHTD_PLACEMENT_H

/* A weightd that places the model atlas, and what its clients get of it. */
#include "tests/e2e/weightd-site.h"

#include <sys/mman.h>

#include "proto/manifest.h"

enum {
	ALL_HANDLES = 1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_MEMFD |
		      1 << WEIGHTS_CLIENT_FILE,
	NO_MEMFD = 1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_FILE,
};

static char cache_dir[] = "/tmp/weightd-cache-XXXXXX";

/* weightd with the model atlas and these options. */
static inline void start(struct site *s, const char *const *options)
{
	const char *args[16] = {"--model"};
	char model[4200];
	int n = 2;

	snprintf(model, sizeof(model), "atlas=%s", model_path());
	args[1] = model;
	while (options && *options)
		args[n++] = *options++;
	site_start(s, args, 0);
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline int acquire_as(struct weights_client *c, const char *model, uint32_t handle_types,
	uint8_t change_uuid, struct err *ret_err, struct weights_client_acquired *ret)
{
	const struct weights_client_device *d = weights_client_get_device(c);
	uint8_t uuid[16];

	memcpy(uuid, d->uuid, sizeof(uuid));
	uuid[15] ^= change_uuid;
	weights_client_set_handle_types(c, handle_types);
	return weights_client_acquire(c, model, uuid, d->driver_uuid, ret_err, ret);
}

static inline struct weights_client_acquired get(
	struct weights_client *c, uint32_t handle_types, uint8_t change_uuid)
{
	struct weights_client_acquired a;
	struct err e = ERR_NULL;

	check(acquire_as(c, "atlas", handle_types, change_uuid, &e, &a), &e, "acquire");
	return a;
}

/* Bytes of buffers, by placement. */
struct sums {
	uint64_t n_bytes[5];
};

static inline struct sums sum(const struct weights_client_acquired *a)
{
	struct sums s = {0};

	for (uint32_t i = 0; i < a->n_allocs; i++)
		s.n_bytes[a->allocs[i].placement] += a->allocs[i].buffer_bytes;
	return s;
}

/* Every window shows the tensors that the manifest says it has, as they are in the file. */
static inline void check_windows(const struct weights_client_acquired *a)
{
	struct manifest *m = NULL;
	struct err e = ERR_NULL;
	struct stat st;
	int fd = open_model();
	unsigned n_checked = 0;

	assert_int_equal(fstat(fd, &st), 0);
	uint8_t *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(file != MAP_FAILED);
	check(manifest_open(a->manifest_fd, &e, &m), &e, "manifest");
	assert_int_equal(m->n_allocs, a->n_allocs);
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		const struct weights_client_alloc *w = &a->allocs[t->alloc];
		if (w->handle_type != WEIGHTS_CLIENT_MEMFD && w->handle_type != WEIGHTS_CLIENT_FILE)
			continue;
		uint8_t *map =
			mmap(NULL, w->n_bytes, w->writable ? PROT_READ | PROT_WRITE : PROT_READ,
				MAP_SHARED, w->fd, (off_t)w->file_offset);
		assert_true(map != MAP_FAILED);
		assert_true(t->offset + t->n_bytes <= w->buffer_bytes);
		assert_non_null(memmem(file, (size_t)st.st_size, map + t->offset, t->n_bytes));
		munmap(map, w->n_bytes);
		n_checked++;
	}
	assert_true(n_checked > 0);
	manifest_free(m);
	munmap(file, (size_t)st.st_size);
	close(fd);
}

/* For which devices the one generation is resident, as ls has it. */
static inline uint32_t get_residency(struct weights_client *c)
{
	struct weights_client_status s;
	struct err e = ERR_NULL;

	check(weights_client_list(c, &e, &s), &e, "list");
	assert_int_equal(s.n_models, 1);
	assert_int_equal(s.models[0].n_generations, 1);
	uint32_t residency = s.models[0].generations[0].residency;
	weights_client_status_fini(&s);
	return residency;
}

/* Bytes that a check sums, of all devices that have the model; it finds nothing. */
static inline uint64_t verify(struct weights_client *c)
{
	struct weights_client_verified v;
	struct err e = ERR_NULL;

	check(weights_client_verify(c, "atlas", &e, &v), &e, "verify");
	assert_int_equal(v.n_tensors, 0);
	return v.n_bytes;
}

/* main of both; what these devices are found to do is nobody else's. */
static inline int site_run_tests(const struct CMUnitTest *tests, size_t n_tests)
{
	char command[200];

	signal(SIGPIPE, SIG_IGN);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	if (!mkdtemp(cache_dir) || setenv("WEIGHTD_CACHE", cache_dir, 1) < 0)
		return 1;
	int failed = _cmocka_run_group_tests("placement", tests, n_tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", cache_dir);
	return system(command) ? 1 : failed;
}

#endif
