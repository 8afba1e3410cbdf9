/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching to what weightd hands out; the client is this file's. */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "proto/manifest.h"
#include "proto/weights-client.h"
#include "tests/unit/manifest-block.h"
#include "vk/host.h"
#include "vk/share.h"
#include "workerd/populate.h"
#include "workerd/weights.h"

enum { GENERATION = 7, PATTERN = 0x5eed, N_ALLOCS = 2 };

/* What the next Acquire is answered with. */
static struct weights_client_acquired offer;
/*
 * The exporter's own descriptors, open until its memory goes: in another process they would be out
 * of the way, and validation 1.4 takes whatever gets the number of one that was closed for it.
 */
static int exported_fds[N_ALLOCS];

int weights_client_acquire(struct weights_client *c, const char *model, const uint8_t *device_uuid,
	const uint8_t *driver_uuid, struct err *ret_err,
	struct weights_client_acquired *ret_acquired)
{
	(void)c;
	(void)device_uuid;
	(void)driver_uuid;
	if (strcmp(model, "tiny") != 0)
		return err_set(ret_err, ENOENT, "model %s: there is none", model);
	*ret_acquired = offer;
	offer = (struct weights_client_acquired){.manifest_fd = -1};
	return 0;
}

/* The generation that was given back last. */
static uint64_t released;

int weights_client_release(struct weights_client *c, uint64_t generation, struct err *ret_err)
{
	(void)c;
	(void)ret_err;
	released = generation;
	return 0;
}

void weights_client_acquired_fini(struct weights_client_acquired *a)
{
	for (uint32_t i = 0; i < a->n_allocs; i++)
		cleanup_close(&a->allocs[i].fd);
	cleanup_close(&a->manifest_fd);
	free(a->allocs);
}

/* Exported memory with the pattern in it, given up to whoever imports it. */
static struct vk_memory *export_memory(
	struct vk_device *d, uint64_t n_bytes, struct weights_client_alloc *ret_alloc)
{
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_WEIGHTS, n_bytes, true);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice whole = on_device_whole(m);
	struct vk_share_params params;
	struct err e = ERR_NULL;
	int fd = -1;

	vk_command_begin(c);
	vk_command_fill(c, &whole, PATTERN);
	vk_command_release(c, m);
	on_device_run(d, c);
	vk_command_free(c);
	on_device_check(vk_share_export(m, &e, &fd, &params), &e, "export");
	*ret_alloc = (struct weights_client_alloc){
		.n_bytes = params.n_bytes,
		.buffer_bytes = params.buffer_bytes,
		.handle_type = WEIGHTS_CLIENT_OPAQUE_FD,
		.placement = MANIFEST_PLACEMENT_DEVICE,
		.memory_type_index = params.memory_type_index,
		.dedicated = params.is_dedicated,
		.fd = fd,
	};
	return m;
}

/* The manifest of manifest-block.h, whose two allocations are exported. */
static void make_offer(struct vk_device *d, struct vk_memory *ret_memories[N_ALLOCS])
{
	static struct manifest_block block;
	static const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

	manifest_block_build(&block);
	offer = (struct weights_client_acquired){
		.generation = GENERATION,
		.manifest_fd = memfd_create("manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING),
		.n_allocs = N_ALLOCS,
		.allocs = calloc(N_ALLOCS, sizeof(*offer.allocs)),
	};
	assert_non_null(offer.allocs);
	assert_int_equal(write(offer.manifest_fd, block.data, block.n_bytes), block.n_bytes);
	assert_int_equal(fcntl(offer.manifest_fd, F_ADD_SEALS, seals), 0);
	for (uint32_t i = 0; i < N_ALLOCS; i++) {
		ret_memories[i] = export_memory(d, block.allocs[i].n_bytes, &offer.allocs[i]);
		offer.allocs[i].index = i;
		exported_fds[i] = TAKE_FD(offer.allocs[i].fd);
		offer.allocs[i].fd = fcntl(exported_fds[i], F_DUPFD_CLOEXEC, 0);
		assert_true(offer.allocs[i].fd >= 0);
	}
}

static void free_memories(struct vk_memory *memories[N_ALLOCS])
{
	for (uint32_t i = 0; i < N_ALLOCS; i++) {
		vk_memory_free(memories[i]);
		cleanup_close(&exported_fds[i]);
	}
}

static int attach(struct vk_device *d, const char *model, uint32_t n_threads, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct weights **ret_weights)
{
	const struct weights_attach_params params = {
		.device = d, .model = model, .n_threads = n_threads};

	return weights_attach(&params, ret_err, ret_refusal, ret_weights);
}

static void test_attach(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *memories[N_ALLOCS];
	struct weights *w = NULL;
	struct weights_refusal refusal;
	struct weights_tensor t;
	struct err e = ERR_NULL;

	(void)state;
	make_offer(d, memories);
	on_device_check(attach(d, "tiny", 0, &e, &refusal, &w), &e, "attach");
	assert_int_equal(w->generation, GENERATION);
	assert_int_equal(w->n_allocs, N_ALLOCS);
	assert_int_equal(w->n_bytes, 4096 + 16);
	assert_true(w->attach_ns > 0);
	on_device_check(weights_find(w, "b.weight", &e, &t), &e, "find");
	assert_int_equal(t.address, vk_memory_get_address(w->allocs[0].memory) + 4096 - 4 * 34);
	assert_int_equal(t.dtype, DTYPE_Q8_0);
	assert_int_equal(t.ne[0], 64);
	assert_int_equal(t.ne[1], 2);
	assert_int_equal(t.n_bytes, 4 * 34);
	on_device_check(weights_find(w, "b.weight.2", &e, &t), &e, "find");
	assert_int_equal(t.address, vk_memory_get_address(w->allocs[1].memory));
	assert_int_equal(weights_find(w, "c", &e, &t), -ENOENT);
	assert_string_equal(e.text, "tensor c: the model has none");
	/* The bytes are the exporter's, also when it has gone. */
	free_memories(memories);
	for (uint32_t i = 0; i < N_ALLOCS; i++) {
		uint32_t *words = on_device_read(d, w->allocs[i].memory);

		for (uint64_t k = 0; k < vk_memory_get_bytes(w->allocs[i].memory) / 4; k++)
			assert_int_equal(words[k], PATTERN);
		free(words);
	}
	weights_free(w);
	vk_device_free(d);
}

static void change_generation(void)
{
	offer.generation++;
}

static void drop_alloc(void)
{
	cleanup_close(&offer.allocs[--offer.n_allocs].fd);
}

static void repeat_index(void)
{
	offer.allocs[1].index = 0;
}

static void pass_index(void)
{
	offer.allocs[1].index = UINT32_MAX;
}

static void shrink_buffer(void)
{
	offer.allocs[1].buffer_bytes = 15;
}

/* Allocation 0 as pages at 4096 of a file of n_file_bytes, each word its number times 3. */
static void give_pages(uint32_t handle_type, uint32_t placement, uint64_t n_file_bytes, int seals)
{
	struct weights_client_alloc *a = &offer.allocs[0];
	int fd = memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	for (uint32_t i = 0; i < n_file_bytes / 4; i++) {
		uint32_t word = 3 * i;
		assert_int_equal(pwrite(fd, &word, 4, 4 * i), 4);
	}
	assert_int_equal(ftruncate(fd, (off_t)n_file_bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	cleanup_close(&a->fd);
	*a = (struct weights_client_alloc){.n_bytes = 4096,
		.buffer_bytes = 4096,
		.handle_type = handle_type,
		.placement = placement,
		.file_offset = 4096,
		.writable = true,
		.fd = fd};
}

static void give_memfd(void)
{
	give_pages(WEIGHTS_CLIENT_MEMFD, MANIFEST_PLACEMENT_STAGED, 8192, F_SEAL_SHRINK);
}

static void give_small_memfd(void)
{
	give_pages(WEIGHTS_CLIENT_MEMFD, MANIFEST_PLACEMENT_STAGED, 8188, F_SEAL_SHRINK);
}

static void give_unsealed_memfd(void)
{
	give_pages(WEIGHTS_CLIENT_MEMFD, MANIFEST_PLACEMENT_STAGED, 8192, F_SEAL_GROW);
}

static void give_short_file(void)
{
	give_pages(WEIGHTS_CLIENT_FILE, MANIFEST_PLACEMENT_PINNED, 4096, F_SEAL_GROW);
}

static void give_unaligned_window(void)
{
	give_memfd();
	offer.allocs[0].file_offset = 512;
}

static void give_endless_window(void)
{
	give_memfd();
	offer.allocs[0].n_bytes = UINT64_MAX - 4095;
}

static void give_paged_memfd(void)
{
	give_pages(WEIGHTS_CLIENT_MEMFD, MANIFEST_PLACEMENT_PAGED, 8192, F_SEAL_SHRINK);
}

static void give_pipe(void)
{
	int fds[2];

	give_memfd();
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	close(fds[1]);
	close(offer.allocs[0].fd);
	offer.allocs[0].fd = fds[0];
}

static void page_opaque(void)
{
	offer.allocs[0].placement = MANIFEST_PLACEMENT_PAGED;
}

static void place_nowhere(void)
{
	offer.allocs[1].placement = 0;
}

static void break_type(void)
{
	offer.allocs[1].memory_type_index = UINT32_MAX;
}

static void swap_manifest(void)
{
	close(offer.manifest_fd);
	offer.manifest_fd = memfd_create("empty", MFD_CLOEXEC);
}

/* What is paged is read, not imported, and has an address that no device has. */
static void test_paged(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *memories[N_ALLOCS];
	struct weights *w = NULL;
	struct weights_tensor t;
	struct err e = ERR_NULL;
	struct weights_refusal refusal;
	uint32_t words[4];

	(void)state;
	make_offer(d, memories);
	give_paged_memfd();
	on_device_check(attach(d, "tiny", 0, &e, &refusal, &w), &e, "attach");
	assert_null(w->allocs[0].memory);
	assert_null(w->allocs[0].map);
	assert_int_equal(weights_count_bytes(w, MANIFEST_PLACEMENT_PAGED), 4096);
	assert_int_equal(weights_count_bytes(w, MANIFEST_PLACEMENT_DEVICE), 16);
	on_device_check(weights_find(w, "b.weight", &e, &t), &e, "find");
	assert_int_equal(t.alloc, 0);
	assert_int_equal(t.layer, WEIGHTS_NO_LAYER);
	assert_int_equal(t.address, WEIGHTS_PAGED_ADDRESS + t.offset);
	on_device_check(weights_read(&w->allocs[0], 8, sizeof(words), words, &e), &e, "read");
	for (uint32_t i = 0; i < ARRAY_SIZE(words); i++)
		assert_int_equal(words[i], 3 * (1024 + 2 + i));
	assert_int_equal(weights_read(&w->allocs[0], 4092, sizeof(words), words, &e), -EIO);
	assert_string_equal(e.text, "paged weights: 12 bytes at 8192: the file ends before them");
	weights_free(w);
	free_memories(memories);
	vk_device_free(d);
}

/* What imports of host pages are answered with; 0: by the driver. */
static int import_result;
/* Imports of host pages meet here, so many at a time; 0: nobody waits. */
static pthread_barrier_t import_barrier;
static bool has_barrier;
/* In index order: who else but the last is answered so. */
static int result_of_0;

int __real_vk_host_import(struct vk_device *d, void *pointer, uint64_t n_bytes,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory);
int __wrap_vk_host_import(struct vk_device *d, void *pointer, uint64_t n_bytes,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory);

int __wrap_vk_host_import(struct vk_device *d, void *pointer, uint64_t n_bytes,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory)
{
	int result = result_of_0 && !strcmp(name, "weights 0") ? result_of_0 : import_result;

	if (has_barrier)
		pthread_barrier_wait(&import_barrier);
	if (!result)
		return __real_vk_host_import(d, pointer, n_bytes, role, name, ret_err, ret_memory);
	(void)err_set(ret_err, EIO, "import of %s: the driver says no", name);
	return result;
}

static void give_file(void)
{
	give_pages(WEIGHTS_CLIENT_FILE, MANIFEST_PLACEMENT_PINNED, 4096 + 4096, 0);
}

/* A window's last page may end behind the file's end. */
static void give_file_end(void)
{
	give_pages(WEIGHTS_CLIENT_FILE, MANIFEST_PLACEMENT_PINNED, 4096 + 4096 + 512, 0);
	offer.allocs[0].n_bytes = 8192;
}

static bool is_mapped(const void *map)
{
	unsigned char vec;

	return mincore((void *)map, 4096, &vec) == 0;
}

/* Pages are the memory, as long as it is there. */
static void test_pages(void **state)
{
	static void (*const gives[])(void) = {give_memfd, give_file, give_file_end};
	struct vk_device *d = on_device_new();

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(gives); i++) {
		struct vk_memory *memories[N_ALLOCS];
		struct weights *w = NULL;
		struct weights_tensor t;
		struct err e = ERR_NULL;
		struct weights_refusal refusal;

		make_offer(d, memories);
		gives[i]();
		int fd = dup(offer.allocs[0].fd);
		on_device_check(attach(d, "tiny", 0, &e, &refusal, &w), &e, "attach");
		uint32_t *words = on_device_read(d, w->allocs[0].memory);
		for (uint32_t k = 0; k < 1024; k++)
			assert_int_equal(words[k], 3 * (1024 + k));
		free(words);
		/* The file's own pages: what is written there is seen. */
		assert_int_equal(pwrite(fd, "seen", 4, 4096), 4);
		words = on_device_read(d, w->allocs[0].memory);
		assert_memory_equal(words, "seen", 4);
		free(words);
		close(fd);
		on_device_check(weights_find(w, "b.weight", &e, &t), &e, "find");
		assert_int_equal(t.address, vk_memory_get_address(w->allocs[0].memory) + t.offset);
		void *map = w->allocs[0].map;
		assert_true(is_mapped(map));
		weights_free(w);
		assert_false(is_mapped(map));
		free_memories(memories);
	}
	vk_device_free(d);
}

/* Pages of a shared mapping get entries; behind a file's end that kills nobody. */
static void test_populate(void **state)
{
	static const uint64_t sizes[] = {4096, 8192 + 4096, 16 << 20, 40 << 20};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t n = sizes[i];
		int fd = memfd_create("populate", MFD_CLOEXEC);

		assert_int_equal(ftruncate(fd, (off_t)n), 0);
		assert_int_equal(fallocate(fd, 0, 0, (off_t)n), 0);
		void *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(map, MAP_FAILED);
		populate_pages(map, n, 1 + i % 3);
		/* Bit 63 of an entry: the page is present (Linux, admin-guide/mm/pagemap). */
		int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		uint64_t entry = 0, at = (uintptr_t)map / 4096 + n / 4096 - 1;
		assert_int_equal(pread(pagemap, &entry, 8, (off_t)(8 * at)), 8);
		assert_true(entry >> 63);
		close(pagemap);
		assert_int_equal(ftruncate(fd, 0), 0);
		populate_pages(map, n, 1 + i % 3);
		munmap(map, n);
		close(fd);
	}
}

/* The driver's refusal is told apart from every other, with what it was of. */
static void test_import_refused(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *memories[N_ALLOCS];
	struct weights *w = NULL;
	struct err e = ERR_NULL;
	struct weights_refusal refusal = {.index = 99};

	(void)state;
	make_offer(d, memories);
	give_file();
	import_result = VK_HOST_REFUSED;
	released = 0;
	assert_int_equal(attach(d, "tiny", 1, &e, &refusal, &w), WEIGHTS_REFUSED);
	assert_int_equal(refusal.handle_type, WEIGHTS_CLIENT_FILE);
	assert_int_equal(refusal.index, 0);
	assert_true(refusal.is_exact);
	assert_string_equal(e.text, "model tiny: import of weights 0: the driver says no");
	free_memories(memories);

	refusal.index = 99;
	make_offer(d, memories);
	give_memfd();
	import_result = -ENOMEM;
	assert_int_equal(released, 0);
	assert_int_equal(attach(d, "tiny", 0, &e, &refusal, &w), -ENOMEM);
	assert_int_equal(refusal.index, 99);
	/* The lease goes back; after a refused import it goes with the connection. */
	assert_int_equal(released, GENERATION);
	assert_null(w);
	import_result = 0;
	free_memories(memories);
	vk_device_free(d);
}

/* Both allocations as windows of one memfd of three pages: the second overlaps none. */
static void give_two_windows(void)
{
	struct weights_client_alloc *b = &offer.allocs[1];

	give_pages(WEIGHTS_CLIENT_MEMFD, MANIFEST_PLACEMENT_STAGED, 12288, F_SEAL_SHRINK);
	cleanup_close(&b->fd);
	*b = offer.allocs[0];
	b->index = 1;
	b->file_offset = 8192;
	b->fd = fcntl(offer.allocs[0].fd, F_DUPFD_CLOEXEC, 0);
	assert_true(b->fd >= 0);
}

/* Imports run beside each other where that was asked for, over one mapping, and count right. */
static void test_beside_each_other(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *memories[N_ALLOCS];
	struct vk_memory_counter before[VK_MEMORY_N_ROLES], after[VK_MEMORY_N_ROLES];
	struct weights *w = NULL;
	struct err e = ERR_NULL;
	struct weights_refusal refusal;

	(void)state;
	make_offer(d, memories);
	give_two_windows();
	vk_memory_get_counters(d, before);
	/* One that came alone would wait until the test's time is over. */
	assert_int_equal(pthread_barrier_init(&import_barrier, NULL, 2), 0);
	has_barrier = true;
	on_device_check(attach(d, "tiny", 2, &e, &refusal, &w), &e, "attach");
	has_barrier = false;
	pthread_barrier_destroy(&import_barrier);
	vk_memory_get_counters(d, after);
	assert_int_equal(
		after[VK_MEMORY_WEIGHTS].imported_bytes - before[VK_MEMORY_WEIGHTS].imported_bytes,
		8192);
	assert_int_equal(w->n_maps, 1);
	assert_ptr_equal((uint8_t *)w->allocs[0].map + 4096, w->allocs[1].map);
	for (uint32_t i = 0; i < N_ALLOCS; i++) {
		uint32_t *words = on_device_read(d, w->allocs[i].memory);

		for (uint32_t k = 0; k < 1024; k++)
			assert_int_equal(words[k], 3 * (1024 * (i + 1) + k));
		free(words);
	}
	weights_free(w);
	free_memories(memories);
	vk_device_free(d);
}

/*
 * A refusal beside others is told as one, whatever those before it came to: the poison may have
 * been theirs too, so the index is not to be believed.
 */
static void test_refused_beside_others(void **state)
{
	static const struct {
		int first;
		uint32_t index;
	} rows[] = {{-ENOTRECOVERABLE, 1}, {VK_HOST_REFUSED, 0}};
	struct vk_device *d = on_device_new();

	(void)state;
	assert_int_equal(pthread_barrier_init(&import_barrier, NULL, 2), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct vk_memory *memories[N_ALLOCS];
		struct weights *w = NULL;
		struct err e = ERR_NULL;
		struct weights_refusal refusal = {.is_exact = true};

		make_offer(d, memories);
		give_two_windows();
		has_barrier = true;
		import_result = VK_HOST_REFUSED;
		result_of_0 = rows[i].first;
		assert_int_equal(attach(d, "tiny", 2, &e, &refusal, &w), WEIGHTS_REFUSED);
		has_barrier = false;
		import_result = result_of_0 = 0;
		assert_int_equal(refusal.index, rows[i].index);
		assert_int_equal(refusal.handle_type, WEIGHTS_CLIENT_MEMFD);
		assert_false(refusal.is_exact);
		free_memories(memories);
	}
	pthread_barrier_destroy(&import_barrier);
	vk_device_free(d);
}

/* Each refused in a sentence about the model, with nothing left open. */
static void test_refusals(void **state)
{
	static const struct {
		void (*change)(void);
		const char *text;
	} rows[] = {
		{change_generation, "model tiny: manifest: expected generation 8, found 7"},
		{drop_alloc, "model tiny: expected 2 allocations as in the manifest, found 1"},
		{repeat_index, "model tiny: allocation 0: expected each of 2 once"},
		{pass_index, "model tiny: allocation 4294967295: expected each of 2 once"},
		{shrink_buffer,
			"model tiny: allocation 1: expected 16 bytes as in the manifest, found 15"},
		{give_small_memfd,
			"model tiny: allocation 0: expected a file of 8192 bytes or more, found "
			"8188"},
		{give_unsealed_memfd,
			"model tiny: allocation 0: expected a memfd sealed against shrinking"},
		{give_short_file,
			"model tiny: allocation 0: expected a file of 8192 bytes or more, found "
			"4096"},
		{give_unaligned_window,
			"model tiny: allocation 0: expected pages of 4096 bytes, found a window "
			"of 4096 at 512"},
		{give_endless_window,
			"model tiny: allocation 0: expected pages of 4096 bytes, found a window "
			"of 18446744073709547520 at 4096"},
		{give_pipe,
			"model tiny: allocation 0: expected a descriptor of a file, found another"},
		{page_opaque,
			"model tiny: allocation 0: placement 4: expected a descriptor that can be "
			"imported, found handle type 1"},
		{place_nowhere, "model tiny: allocation 1: expected a placement, found 0"},
		{break_type, "model tiny: import of weights 1: memory type"},
		{swap_manifest, "model tiny: manifest"},
	};
	struct vk_device *d = on_device_new();

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct vk_memory *memories[N_ALLOCS];
		struct weights *w = NULL;
		struct weights_refusal refusal;
		struct err e = ERR_NULL;

		make_offer(d, memories);
		rows[i].change();
		assert_true(attach(d, "tiny", 0, &e, &refusal, &w) < 0);
		assert_null(w);
		if (strncmp(e.text, rows[i].text, strlen(rows[i].text)) != 0)
			fail_msg("expected %s, found %s", rows[i].text, e.text);
		free_memories(memories);
	}
	struct weights *w = NULL;
	struct weights_refusal refusal;
	struct err e = ERR_NULL;
	assert_int_equal(attach(d, "other", 0, &e, &refusal, &w), -ENOENT);
	assert_string_equal(e.text, "model other: there is none");
	weights_free(NULL);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_attach),
		CASE(test_paged),
		CASE(test_pages),
		CASE(test_populate),
		CASE(test_import_refused),
		CASE(test_beside_each_other),
		CASE(test_refused_beside_others),
		CASE(test_refusals),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
