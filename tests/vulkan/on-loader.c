/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-loader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/manifest.h"
#include "vk/share.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/sum.h"

enum { WAIT_MS = 50000 };

struct policy on_loader_policy;
struct source_account on_loader_account;

int on_loader_open_model(void)
{
	char path[4096];

	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/* A copy that a test may change. */
int on_loader_copy_model(void)
{
	struct stat st;
	int from = on_loader_open_model();
	int fd = memfd_create("test-loader", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fstat(from, &st), 0);
	uint8_t *data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(pread(from, data, (size_t)st.st_size, 0), st.st_size);
	assert_int_equal(pwrite(fd, data, (size_t)st.st_size, 0), st.st_size);
	free(data);
	close(from);
	return fd;
}

struct loader *on_loader_start_with(const struct loader_params *params)
{
	static struct sum_key key;
	struct loader_params p = *params;
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	sum_key_init(&key, (const uint8_t[SUM_SECRET_BYTES]){1});
	p.key = &key;
	p.device = on_device_select();
	p.policy = &on_loader_policy;
	p.account = &on_loader_account;
	on_device_check(loader_new(&p, &e, &l), &e, "loader");
	return l;
}

struct loader *on_loader_start(uint64_t alloc_bytes, bool use_pread)
{
	return on_loader_start_with(
		&(struct loader_params){.alloc_bytes = alloc_bytes, .use_pread = use_pread});
}

void on_loader_place(const char *rule)
{
	struct err e = ERR_NULL;

	on_device_check(policy_add_rule(&on_loader_policy, rule, &e), &e, "rule");
}

/* Closes fd. */
int on_loader_load_fd(struct loader *l, uint64_t generation, int fd, struct err *ret_err)
{
	struct source *source = NULL;
	int rc = source_new(fd, false, &on_loader_account, ret_err, &source);

	close(fd);
	if (rc == 0)
		rc = loader_load(l, generation, source, false, ret_err);
	source_unref(source);
	return rc;
}

/* The next result that is no progress. */
struct loader_result on_loader_wait_result(struct loader *l)
{
	struct loader_result r;

	for (;;) {
		struct pollfd p = {.fd = loader_get_fd(l), .events = POLLIN};
		while (loader_take_result(l, &r))
			if (r.kind != LOADER_PROGRESS)
				return r;
		assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	}
}

struct loader_result on_loader_load(struct loader *l, uint64_t generation, int fd)
{
	struct err e = ERR_NULL;

	on_device_check(on_loader_load_fd(l, generation, fd, &e), &e, "load");
	struct loader_result r = on_loader_wait_result(l);
	assert_int_equal(r.generation, generation);
	return r;
}

struct export *on_loader_load_ready(struct loader *l, uint64_t generation)
{
	struct loader_result r = on_loader_load(l, generation, on_loader_open_model());

	if (r.kind != LOADER_READY)
		fail_msg("load: %d %s", r.code, r.err.text);
	assert_true(r.load_ns > 0);
	return r.export;
}

uint64_t on_loader_count_weights(struct loader *l)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights[VK_DEVICE_MAX_HEAPS];
	uint64_t n = 0;

	loader_get_heaps(l, heaps, weights);
	for (uint32_t i = 0; i < loader_get_info(l)->n_heaps; i++)
		n += weights[i];
	return n;
}

/* The account follows the loader thread, some time later. */
void on_loader_wait_weights(struct loader *l, uint64_t n_bytes)
{
	for (int i = 0; i < 1000 && on_loader_count_weights(l) != n_bytes; i++)
		usleep(5000);
	assert_int_equal(on_loader_count_weights(l), n_bytes);
}

/* The loader's thread frees what was released, in its own time. */
void on_loader_wait_nothing_staged(void)
{
	for (int i = 0; i < 1000 && atomic_load(&on_loader_account.n_staged_bytes); i++)
		usleep(5000);
	assert_int_equal(atomic_load(&on_loader_account.n_staged_bytes), 0);
}

/* What another process gets of an allocation with memory of its own: imported and read whole. */
static uint8_t *import_memory(struct vk_device *d, const struct export_alloc *a)
{
	const struct vk_share_params params = {.n_bytes = a->n_bytes,
		.buffer_bytes = a->buffer_bytes,
		.memory_type_index = a->memory_type_index,
		.is_dedicated = a->is_dedicated};
	struct vk_memory *m = NULL;
	struct err err = ERR_NULL;
	int fd = fcntl(a->main.fd, F_DUPFD_CLOEXEC, 0);

	on_device_check(vk_share_import(d, fd, &params, VK_MEMORY_WEIGHTS, "import", &err, &m),
		&err, "import");
	struct vk_command *c = on_device_command(d, 0);
	vk_command_begin(c);
	vk_command_acquire(c, m);
	on_device_run(d, c);
	vk_command_free(c);
	uint8_t *data = (uint8_t *)on_device_read(d, m);
	vk_memory_free(m);
	return data;
}

/* Of a window: what its mapping shows. */
static uint8_t *read_window(const struct export_alloc *a)
{
	int prot = a->is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
	uint8_t *data = malloc(a->buffer_bytes);
	void *map = mmap(NULL, a->n_bytes, prot, MAP_SHARED, a->main.fd, (off_t)a->file_offset);

	assert_non_null(data);
	assert_true(map != MAP_FAILED);
	memcpy(data, map, a->buffer_bytes);
	munmap(map, a->n_bytes);
	return data;
}

static uint8_t **import_all(struct vk_device *d, const struct export *e)
{
	uint8_t **data = calloc(e->n_allocs, sizeof(*data));

	assert_non_null(data);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		const struct export_alloc *a = &e->allocs[i];
		struct stat st;

		assert_int_equal(fstat(a->main.fd, &st), 0);
		assert_int_equal(a->main.inode, st.st_ino);
		assert_int_equal(a->main.dev, st.st_dev);
		data[i] = export_has_memory(a) ? import_memory(d, a) : read_window(a);
	}
	return data;
}

static uint64_t count_zeros(const uint8_t *data, uint64_t n_bytes)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < n_bytes; i++)
		n += data[i] == 0;
	return n;
}

/* Every tensor is byte for byte what the file says; every byte of device memory that is no
 * tensor's is zero. */
void on_loader_check_contents(const struct export *e)
{
	struct vk_device *d = on_device_new();
	uint8_t **data = import_all(d, e);
	int fd = on_loader_open_model();
	struct gguf *g = NULL;
	struct manifest *m = NULL;
	struct err err = ERR_NULL;
	uint64_t n_tensor_bytes = 0, n_alloc_bytes = 0, n_zeros = 0, n_tensor_zeros = 0;

	on_device_check(gguf_read(fd, &err, &g), &err, "gguf");
	on_device_check(manifest_open(e->manifest_fd, &err, &m), &err, "manifest");
	assert_int_equal(m->n_allocs, e->n_allocs);
	assert_int_equal(m->n_tensors, g->n_tensors);
	assert_int_equal(e->n_tensors, g->n_tensors);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[i];
		char name[128];
		snprintf(name, sizeof(name), "%.*s", (int)t->name.n_bytes, t->name.data);
		const struct manifest_tensor *mt = manifest_find_tensor(m, name);
		assert_non_null(mt);
		uint8_t *expected = malloc(t->n_bytes);
		assert_non_null(expected);
		assert_int_equal(
			pread(fd, expected, t->n_bytes, (off_t)t->offset), (ssize_t)t->n_bytes);
		assert_memory_equal(expected, data[mt->alloc] + mt->offset, t->n_bytes);
		n_tensor_bytes += t->n_bytes;
		n_tensor_zeros += count_zeros(expected, t->n_bytes);
		free(expected);
	}
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		assert_int_equal(m->allocs[i].n_bytes, e->allocs[i].buffer_bytes);
		n_alloc_bytes += e->allocs[i].buffer_bytes;
		n_zeros += count_zeros(data[i], e->allocs[i].buffer_bytes);
		free(data[i]);
	}
	/* Windows overlap and show what is between tensors in a file. */
	if (e->device_bytes == e->weights_bytes)
		assert_int_equal(n_zeros - n_tensor_zeros, n_alloc_bytes - n_tensor_bytes);
	free(data);
	manifest_free(m);
	gguf_free(g);
	close(fd);
	vk_device_free(d);
}
