/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching to what weightd hands out; weights_client_acquire is this file's. */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "proto/weights-client.h"
#include "tests/unit/manifest-block.h"
#include "vk/share.h"
#include "workerd/weights.h"

enum { GENERATION = 7, PATTERN = 0x5eed, N_ALLOCS = 2 };

/* What the next Acquire is answered with. */
static struct weights_client_acquired offer;

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
	}
}

static void free_memories(struct vk_memory *memories[N_ALLOCS])
{
	for (uint32_t i = 0; i < N_ALLOCS; i++)
		vk_memory_free(memories[i]);
}

static void test_attach(void **state)
{
	struct vk_device *d = on_device_new();
	struct vk_memory *memories[N_ALLOCS];
	struct weights *w = NULL;
	struct weights_tensor t;
	struct err e = ERR_NULL;

	(void)state;
	make_offer(d, memories);
	on_device_check(weights_attach(NULL, d, "tiny", &e, &w), &e, "attach");
	assert_int_equal(w->generation, GENERATION);
	assert_int_equal(w->n_memories, N_ALLOCS);
	assert_int_equal(w->n_bytes, 4096 + 16);
	assert_true(w->attach_ns > 0);
	on_device_check(weights_find(w, "b.weight", &e, &t), &e, "find");
	assert_int_equal(t.address, vk_memory_get_address(w->memories[0]) + 4096 - 4 * 34);
	assert_int_equal(t.dtype, DTYPE_Q8_0);
	assert_int_equal(t.ne[0], 64);
	assert_int_equal(t.ne[1], 2);
	assert_int_equal(t.n_bytes, 4 * 34);
	on_device_check(weights_find(w, "b.weight.2", &e, &t), &e, "find");
	assert_int_equal(t.address, vk_memory_get_address(w->memories[1]));
	assert_int_equal(weights_find(w, "c", &e, &t), -ENOENT);
	assert_string_equal(e.text, "tensor c: the model has none");
	/* The bytes are the exporter's, also when it has gone. */
	free_memories(memories);
	for (uint32_t i = 0; i < N_ALLOCS; i++) {
		uint32_t *words = on_device_read(d, w->memories[i]);

		for (uint64_t k = 0; k < vk_memory_get_bytes(w->memories[i]) / 4; k++)
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

static void make_memfd(void)
{
	offer.allocs[0].handle_type = WEIGHTS_CLIENT_MEMFD;
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
		{make_memfd,
			"model tiny: allocation 0: expected an opaque descriptor, found handle "
			"type 2"},
		{break_type, "model tiny: import of weights 1: memory type"},
		{swap_manifest, "model tiny: manifest"},
	};
	struct vk_device *d = on_device_new();

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct vk_memory *memories[N_ALLOCS];
		struct weights *w = NULL;
		struct err e = ERR_NULL;

		make_offer(d, memories);
		rows[i].change();
		assert_true(weights_attach(NULL, d, "tiny", &e, &w) < 0);
		assert_null(w);
		if (strncmp(e.text, rows[i].text, strlen(rows[i].text)) != 0)
			fail_msg("expected %s, found %s", rows[i].text, e.text);
		free_memories(memories);
	}
	struct weights *w = NULL;
	struct err e = ERR_NULL;
	assert_int_equal(weights_attach(NULL, d, "other", &e, &w), -ENOENT);
	assert_string_equal(e.text, "model other: there is none");
	weights_free(NULL);
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_attach),
		CASE(test_refusals),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
