/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/on-device.h"

#include "vk/share.h"
#include "workerd/kv.h"

/* A page of 2 layers, 2 heads of 64: 2 * 2 * 32 * 128 * 2 bytes. */
enum { PAGE_BYTES = 32768, N_SLOTS = 3, N_CTX = 4 * KV_PAGE_TOKENS - 5, CANARY = 0x5ec3e75 };

static const struct kv_params shape = {
	.n_layers = 2,
	.n_head_kv = 2,
	.head_dim = 64,
	.n_slots = N_SLOTS,
	.n_ctx = N_CTX,
	.n_tokens = 6 * KV_PAGE_TOKENS,
};

/* Set by a test: the device allocates no more than this at once. 0: what it says itself. */
static uint64_t max_alloc_bytes;

const struct vk_device_info *__real_vk_device_get_info(const struct vk_device *d);
const struct vk_device_info *__wrap_vk_device_get_info(const struct vk_device *d);

const struct vk_device_info *__wrap_vk_device_get_info(const struct vk_device *d)
{
	static struct vk_device_info info;

	info = *__real_vk_device_get_info(d);
	if (max_alloc_bytes)
		info.max_alloc_bytes = max_alloc_bytes;
	return &info;
}

/* Set by a test: the device has no more memory for pages. */
static bool is_full;

int __real_vk_memory_new(struct vk_device *d, const struct vk_memory_params *params,
	struct err *ret_err, struct vk_memory **ret_memory);
int __wrap_vk_memory_new(struct vk_device *d, const struct vk_memory_params *params,
	struct err *ret_err, struct vk_memory **ret_memory);

int __wrap_vk_memory_new(struct vk_device *d, const struct vk_memory_params *params,
	struct err *ret_err, struct vk_memory **ret_memory)
{
	if (is_full && params->role == VK_MEMORY_KV)
		return err_set(ret_err, ENOMEM, "the device is full");
	return __real_vk_memory_new(d, params, ret_err, ret_memory);
}

static struct kv *new_kv(struct vk_device *d)
{
	struct err e = ERR_NULL;
	struct kv *kv = NULL;

	on_device_check(kv_new(d, &shape, &e, &kv), &e, "kv");
	return kv;
}

static uint32_t open_slot(struct kv *kv, uint32_t n_tokens)
{
	struct err e = ERR_NULL;
	uint32_t slot = 0;

	on_device_check(kv_open(kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(kv, slot, n_tokens, &e), &e, "reserve");
	return slot;
}

static struct vk_slice get_page(const struct kv *kv, uint32_t slot, uint32_t index)
{
	struct vk_slice page = {0};

	assert_int_equal(kv_get_page(kv, slot, index, &page), 0);
	assert_int_equal(page.n_bytes, PAGE_BYTES);
	return page;
}

static uint64_t get_address(const struct kv *kv, uint32_t slot, uint32_t index)
{
	struct vk_slice page = get_page(kv, slot, index);

	return vk_memory_slice_address(&page);
}

/* A session writes to its page. */
static void write_page(struct vk_device *d, const struct kv *kv, uint32_t slot, uint32_t index)
{
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice page = get_page(kv, slot, index);

	vk_command_begin(c);
	vk_command_fill(c, &page, CANARY);
	on_device_run(d, c);
	vk_command_free(c);
}

/* Every word of the page is value. */
static void expect_page(
	struct vk_device *d, const struct kv *kv, uint32_t slot, uint32_t index, uint32_t value)
{
	struct vk_memory *io = on_device_memory(d, VK_MEMORY_IO, PAGE_BYTES, false);
	struct vk_command *c = on_device_command(d, 0);
	struct vk_slice page = get_page(kv, slot, index);
	struct vk_slice whole = {.memory = io, .n_bytes = PAGE_BYTES};

	vk_command_begin(c);
	vk_command_copy(c, &whole, &page);
	vk_command_host_barrier(c);
	on_device_run(d, c);
	const uint32_t *words = on_device_map(io);
	for (uint32_t i = 0; i < PAGE_BYTES / 4; i++)
		assert_int_equal(words[i], value);
	vk_command_free(c);
	vk_memory_free(io);
}

/* What a closed session left is gone before another gets the page, and so is what was truncated. */
static void test_canary(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct err e = ERR_NULL;
	uint32_t slot = open_slot(kv, 2 * KV_PAGE_TOKENS);
	uint64_t address = get_address(kv, slot, 0);

	(void)state;
	/* Fresh memory is whatever the driver had there. */
	expect_page(d, kv, slot, 0, 0);
	expect_page(d, kv, slot, 1, 0);
	write_page(d, kv, slot, 0);
	write_page(d, kv, slot, 1);
	expect_page(d, kv, slot, 1, CANARY);
	kv_truncate(kv, slot, 5);
	on_device_check(kv_reserve(kv, slot, 3 * KV_PAGE_TOKENS, &e), &e, "reserve");
	expect_page(d, kv, slot, 0, CANARY);
	expect_page(d, kv, slot, 1, 0);
	expect_page(d, kv, slot, 2, 0);
	for (uint32_t i = 0; i < 3; i++)
		write_page(d, kv, slot, i);
	kv_close(kv, slot);
	slot = open_slot(kv, 3 * KV_PAGE_TOKENS);
	assert_int_equal(get_address(kv, slot, 0), address);
	for (uint32_t i = 0; i < 3; i++)
		expect_page(d, kv, slot, i, 0);
	kv_free(kv);
	vk_device_free(d);
}

static void test_pages(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct vk_slice page;
	struct err e = ERR_NULL;

	(void)state;
	assert_int_equal(kv_get_bytes(kv), 6 * PAGE_BYTES);
	assert_int_equal(kv_get_slot_pages(kv), 4);
	assert_int_equal(kv_get_free_pages(kv), 6);
	uint32_t a = open_slot(kv, KV_PAGE_TOKENS);
	uint32_t b = open_slot(kv, KV_PAGE_TOKENS + 1);
	assert_int_equal(kv_get_free_pages(kv), 3);
	uint64_t first = get_address(kv, a, 0);
	assert_int_equal(get_address(kv, b, 0), first + PAGE_BYTES);
	assert_int_equal(get_address(kv, b, 1), first + 2 * PAGE_BYTES);
	assert_int_equal(kv_get_page(kv, b, 2, &page), -ENOENT);
	/* What is reserved stays, and asking again costs nothing. */
	on_device_check(kv_reserve(kv, b, 3, &e), &e, "reserve");
	assert_int_equal(kv_get_free_pages(kv), 3);
	/* The lowest page that is free comes first. */
	kv_close(kv, a);
	on_device_check(kv_reserve(kv, b, 3 * KV_PAGE_TOKENS, &e), &e, "reserve");
	assert_int_equal(get_address(kv, b, 2), first);
	/* A page stays while one of its tokens does. */
	kv_truncate(kv, b, KV_PAGE_TOKENS + 1);
	assert_int_equal(kv_get_free_pages(kv), 4);
	kv_truncate(kv, b, KV_PAGE_TOKENS);
	assert_int_equal(kv_get_free_pages(kv), 5);
	kv_truncate(kv, b, 0);
	assert_int_equal(kv_get_free_pages(kv), 6);
	kv_free(kv);
	vk_device_free(d);
}

static void test_refusals(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct err e = ERR_NULL;
	uint32_t more;

	(void)state;
	uint32_t a = open_slot(kv, N_CTX);
	assert_int_equal(kv_reserve(kv, a, N_CTX + 1, &e), -ENOSPC);
	assert_string_equal(e.text, "context: 123 tokens, 124 asked");
	uint32_t b = open_slot(kv, KV_PAGE_TOKENS);
	assert_int_equal(kv_reserve(kv, b, 3 * KV_PAGE_TOKENS, &e), -ENOSPC);
	assert_string_equal(e.text, "kv: 2 more pages asked, 1 of 6 are free");
	assert_int_equal(kv_get_free_pages(kv), 1);
	assert_int_equal(get_address(kv, b, 0), get_address(kv, a, 3) + PAGE_BYTES);
	open_slot(kv, 0);
	assert_int_equal(kv_open(kv, &e, &more), -EAGAIN);
	assert_string_equal(e.text, "sessions: all 3 are open");
	kv_free(kv);
	vk_device_free(d);
}

/* Whole pages are one for both; what both could write is two, with the same in them. */
static void test_fork(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct err e = ERR_NULL;
	uint32_t a = open_slot(kv, KV_PAGE_TOKENS + 7);
	uint32_t b;

	(void)state;
	write_page(d, kv, a, 0);
	write_page(d, kv, a, 1);
	on_device_check(kv_open(kv, &e, &b), &e, "open");
	on_device_check(kv_fork(kv, a, KV_PAGE_TOKENS + 5, b, &e), &e, "fork");
	assert_int_equal(get_address(kv, b, 0), get_address(kv, a, 0));
	assert_int_not_equal(get_address(kv, b, 1), get_address(kv, a, 1));
	assert_int_equal(kv_get_free_pages(kv), 3);
	expect_page(d, kv, b, 1, CANARY);
	/* Writing into the shared page: b gets a copy, and a keeps its own. */
	uint64_t shared = get_address(kv, a, 0);
	kv_truncate(kv, b, 3);
	on_device_check(kv_reserve(kv, b, 4, &e), &e, "reserve");
	assert_int_equal(get_address(kv, a, 0), shared);
	assert_int_not_equal(get_address(kv, b, 0), shared);
	expect_page(d, kv, b, 0, CANARY);
	/* What the one has is not the other's to give back. */
	kv_close(kv, a);
	expect_page(d, kv, b, 0, CANARY);
	kv_close(kv, b);
	assert_int_equal(kv_get_free_pages(kv), 6);
	b = open_slot(kv, N_CTX);
	for (uint32_t i = 0; i < 4; i++)
		expect_page(d, kv, b, i, 0);
	assert_int_equal(kv_open(kv, &e, &a), 0);
	on_device_check(kv_reserve(kv, a, 2 * KV_PAGE_TOKENS, &e), &e, "reserve");
	assert_int_equal(kv_open(kv, &e, &a), 0);
	assert_int_equal(kv_fork(kv, b, 5, a, &e), -ENOSPC);
	assert_string_equal(e.text, "kv: 1 more pages asked, 0 of 6 are free");
	on_device_check(kv_fork(kv, b, KV_PAGE_TOKENS, a, &e), &e, "fork of whole pages");
	kv_free(kv);
	vk_device_free(d);
}

/* Where the device has no memory for more, what is kept for nobody makes room. */
static void test_kept_pages_on_a_full_device(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv_params params = shape;
	struct kv *kv = NULL;
	struct err e = ERR_NULL;
	uint32_t tokens[2 * KV_PAGE_TOKENS] = {0};
	uint32_t b;

	(void)state;
	params.n_chunk_bytes = 2 * PAGE_BYTES;
	on_device_check(kv_new(d, &params, &e, &kv), &e, "kv");
	uint32_t a = open_slot(kv, ARRAY_SIZE(tokens));
	write_page(d, kv, a, 0);
	write_page(d, kv, a, 1);
	kv_publish(kv, a, 7, tokens, ARRAY_SIZE(tokens));
	kv_close(kv, a);
	is_full = true;
	a = open_slot(kv, ARRAY_SIZE(tokens));
	expect_page(d, kv, a, 0, 0);
	expect_page(d, kv, a, 1, 0);
	on_device_check(kv_open(kv, &e, &b), &e, "open");
	assert_int_equal(kv_reserve(kv, b, 1, &e), -ENOSPC);
	assert_int_equal(kv_fork(kv, a, 1, b, &e), -ENOSPC);
	is_full = false;
	on_device_check(kv_fork(kv, a, 1, b, &e), &e, "fork");
	kv_free(kv);
	vk_device_free(d);
}

/* Pages of a closed session that are found again are as they were; what nobody finds is cleared. */
static void test_adopt(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct kv_counters c;
	uint32_t tokens[2 * KV_PAGE_TOKENS];
	uint32_t a = open_slot(kv, 2 * KV_PAGE_TOKENS);

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(tokens); i++)
		tokens[i] = i;
	uint64_t first = get_address(kv, a, 0);
	write_page(d, kv, a, 0);
	write_page(d, kv, a, 1);
	kv_publish(kv, a, 7, tokens, ARRAY_SIZE(tokens) - 1);
	kv_close(kv, a);
	kv_get_counters(kv, &c);
	assert_int_equal(c.n_total, 6);
	assert_int_equal(c.n_used, 0);
	assert_int_equal(c.n_cached, 1);
	/* Of another scope, or with another token, it is not there. */
	a = open_slot(kv, 0);
	assert_int_equal(kv_adopt(kv, a, 8, tokens, ARRAY_SIZE(tokens)), 0);
	tokens[1] = 9;
	assert_int_equal(kv_adopt(kv, a, 7, tokens, ARRAY_SIZE(tokens)), 0);
	tokens[1] = 1;
	assert_int_equal(kv_adopt(kv, a, 7, tokens, ARRAY_SIZE(tokens)), KV_PAGE_TOKENS);
	assert_int_equal(get_address(kv, a, 0), first);
	expect_page(d, kv, a, 0, CANARY);
	/* No more than it has. */
	assert_int_equal(kv_adopt(kv, a, 7, tokens, ARRAY_SIZE(tokens)), 0);
	uint32_t b = open_slot(kv, 3);
	assert_int_equal(kv_adopt(kv, b, 7, tokens, KV_PAGE_TOKENS), KV_PAGE_TOKENS);
	kv_get_counters(kv, &c);
	assert_int_equal(c.n_used, 1);
	assert_int_equal(c.n_shared, 1);
	assert_int_equal(c.n_cached, 0);
	kv_close(kv, a);
	kv_close(kv, b);
	/* Somebody else gets all six: the one that was kept is given back, and cleared. */
	a = open_slot(kv, N_CTX);
	b = open_slot(kv, 2 * KV_PAGE_TOKENS);
	for (uint32_t i = 0; i < 4; i++)
		expect_page(d, kv, a, i, 0);
	for (uint32_t i = 0; i < 2; i++)
		expect_page(d, kv, b, i, 0);
	kv_truncate(kv, b, 0);
	assert_int_equal(kv_adopt(kv, b, 7, tokens, ARRAY_SIZE(tokens)), 0);
	kv_free(kv);
	vk_device_free(d);
}

/* A pool of more bytes than the device allocates at once: pages do not straddle. */
static void test_several_memories(void **state)
{
	struct vk_device *d = on_device_new();
	struct err e = ERR_NULL;

	(void)state;
	max_alloc_bytes = 2 * PAGE_BYTES + 100;
	struct kv *kv = new_kv(d);
	uint32_t a = open_slot(kv, N_CTX);
	uint32_t b = open_slot(kv, 2 * KV_PAGE_TOKENS);
	struct vk_slice pages[] = {get_page(kv, a, 0), get_page(kv, a, 1), get_page(kv, a, 2)};
	assert_ptr_equal(pages[0].memory, pages[1].memory);
	assert_ptr_not_equal(pages[1].memory, pages[2].memory);
	assert_int_equal(pages[2].offset, 0);
	for (uint32_t i = 0; i < 4; i++)
		write_page(d, kv, a, i);
	for (uint32_t i = 0; i < 2; i++) {
		expect_page(d, kv, b, i, 0);
		write_page(d, kv, b, i);
	}
	kv_close(kv, a);
	kv_close(kv, b);
	a = open_slot(kv, N_CTX);
	b = open_slot(kv, 2 * KV_PAGE_TOKENS);
	for (uint32_t i = 0; i < 4; i++)
		expect_page(d, kv, a, i, 0);
	for (uint32_t i = 0; i < 2; i++)
		expect_page(d, kv, b, i, 0);
	kv_free(kv);
	max_alloc_bytes = PAGE_BYTES - 1;
	assert_int_equal(kv_new(d, &shape, &e, &kv), -EINVAL);
	max_alloc_bytes = 0;
	vk_device_free(d);
}

/* Of 128 numbers 128 bytes and 4 scales, two parts of 32 in each of 2 layers. */
static void test_q8_0_bytes(void **state)
{
	enum { BYTES = 2 * 2 * 32 * (128 + 2 * 4) };
	struct vk_device *d = on_device_new();
	struct kv_params params = shape;
	struct err e = ERR_NULL;
	uint64_t n_page_bytes = 0, n_io_bytes = 0;
	struct kv *kv = NULL;
	struct vk_slice page;

	(void)state;
	params.type = KV_LAYOUT_Q8_0;
	on_device_check(kv_measure(d, &params, &e, &n_page_bytes, &n_io_bytes), &e, "measure");
	assert_int_equal(n_page_bytes, 6 * BYTES);
	on_device_check(kv_new(d, &params, &e, &kv), &e, "kv");
	assert_int_equal(kv_get_bytes(kv), 6 * BYTES);
	assert_int_equal(kv_get_page(kv, open_slot(kv, 1), 0, &page), 0);
	assert_int_equal(page.n_bytes, BYTES);
	kv_free(kv);
	vk_device_free(d);
}

static uint64_t count_kv_bytes(struct vk_device *d)
{
	struct vk_memory_counter c[VK_MEMORY_N_ROLES];

	vk_memory_get_counters(d, c);
	return c[VK_MEMORY_KV].requested_bytes;
}

static uint32_t count_chunks(const struct kv *kv)
{
	struct kv_pool pool;

	kv_get_pool(kv, &pool);
	assert_int_equal(pool.n_chunks, 3);
	assert_int_equal(pool.n_allocated_bytes, pool.n_allocated_chunks * 2 * PAGE_BYTES);
	return pool.n_allocated_chunks;
}

/* Memory comes with the first page of a chunk, and goes with the last, but for one chunk. */
static void test_chunks_come_and_go(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv_params params = shape;
	struct err e = ERR_NULL;
	struct kv *kv = NULL;

	(void)state;
	params.n_chunk_bytes = 2 * PAGE_BYTES + 1;
	on_device_check(kv_new(d, &params, &e, &kv), &e, "kv");
	assert_int_equal(kv_get_bytes(kv), 6 * PAGE_BYTES);
	assert_int_equal(count_chunks(kv), 1);
	assert_in_range(count_kv_bytes(d), 2 * PAGE_BYTES, 4 * PAGE_BYTES - 1);
	uint32_t a = open_slot(kv, 2 * KV_PAGE_TOKENS);
	assert_int_equal(count_chunks(kv), 1);
	uint32_t b = open_slot(kv, 3 * KV_PAGE_TOKENS);
	assert_int_equal(count_chunks(kv), 3);
	for (uint32_t i = 0; i < 3; i++) {
		expect_page(d, kv, b, i, 0);
		write_page(d, kv, b, i);
	}
	/* b has chunks 1 and 2, and 0 is the one that stays. */
	kv_close(kv, a);
	assert_int_equal(count_chunks(kv), 3);
	for (uint32_t i = 0; i < 3; i++)
		expect_page(d, kv, b, i, CANARY);
	kv_close(kv, b);
	assert_int_equal(count_chunks(kv), 1);
	assert_in_range(count_kv_bytes(d), 2 * PAGE_BYTES, 4 * PAGE_BYTES - 1);
	/* Memory that comes back may be anybody's. */
	b = open_slot(kv, N_CTX);
	assert_int_equal(count_chunks(kv), 2);
	for (uint32_t i = 0; i < 4; i++)
		expect_page(d, kv, b, i, 0);
	kv_free(kv);
	vk_device_free(d);
}

/* A device without memory refuses a session, which keeps what it had, and is of use afterwards. */
static void test_no_memory_for_a_chunk(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv_params params = shape;
	struct err e = ERR_NULL;
	struct kv *kv = NULL;

	(void)state;
	params.n_chunk_bytes = 2 * PAGE_BYTES;
	on_device_check(kv_new(d, &params, &e, &kv), &e, "kv");
	uint32_t a = open_slot(kv, KV_PAGE_TOKENS);
	write_page(d, kv, a, 0);
	is_full = true;
	assert_int_equal(kv_reserve(kv, a, 3 * KV_PAGE_TOKENS, &e), -ENOSPC);
	assert_string_equal(e.text, "the device is full");
	assert_int_equal(kv_get_free_pages(kv), 5);
	assert_int_equal(count_chunks(kv), 1);
	expect_page(d, kv, a, 0, CANARY);
	on_device_check(kv_reserve(kv, a, 2 * KV_PAGE_TOKENS, &e), &e, "reserve");
	assert_int_equal(kv_new(d, &params, &e, &(struct kv *){NULL}), -ENOMEM);
	is_full = false;
	on_device_check(kv_reserve(kv, a, 3 * KV_PAGE_TOKENS, &e), &e, "reserve");
	expect_page(d, kv, a, 0, CANARY);
	expect_page(d, kv, a, 2, 0);
	kv_free(kv);
	vk_device_free(d);
}

static void test_exportable(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv_params params = shape;
	struct vk_share_params share;
	struct err e = ERR_NULL;
	struct kv *kv = new_kv(d);
	int fd = -1;

	(void)state;
	uint32_t slot = open_slot(kv, 1);
	assert_int_equal(vk_share_export(get_page(kv, slot, 0).memory, &e, &fd, &share), -EPERM);
	kv_free(kv);
	params.is_exportable = true;
	on_device_check(kv_new(d, &params, &e, &kv), &e, "kv");
	slot = open_slot(kv, 1);
	struct vk_memory *memory = get_page(kv, slot, 0).memory;
	on_device_check(vk_share_export(memory, &e, &fd, &share), &e, "export");
	assert_true(fd >= 0);
	assert_int_equal(share.buffer_bytes, vk_memory_get_bytes(memory));
	close(fd);
	kv_free(kv);
	vk_device_free(d);
}

/* Page i of the memory holds i + 1 in every word. */
static void fill_pages(struct vk_device *d, struct vk_memory *m, uint32_t n)
{
	struct vk_command *c = on_device_command(d, 0);

	vk_command_begin(c);
	for (uint32_t i = 0; i < n; i++) {
		const struct vk_slice page = {
			.memory = m, .offset = i * PAGE_BYTES, .n_bytes = PAGE_BYTES};
		vk_command_fill(c, &page, i + 1);
	}
	on_device_run(d, c);
	vk_command_free(c);
}

/* The pages of somebody else's memory: read in place by every slot, copied before they are
 * written, and found no more when they are taken back. */
static void test_lend(void **state)
{
	struct vk_device *d = on_device_new();
	struct kv *kv = new_kv(d);
	struct vk_memory *m = on_device_memory(d, VK_MEMORY_KV, 2 * PAGE_BYTES, false);
	struct vk_memory *twin = on_device_memory(d, VK_MEMORY_KV, 2 * PAGE_BYTES, false);
	uint32_t tokens[3 * KV_PAGE_TOKENS];
	struct kv_counters before, after;
	struct err e = ERR_NULL;
	uint32_t guest = 9, other = 9;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(tokens); i++)
		tokens[i] = i;
	fill_pages(d, m, 2);
	assert_int_equal(kv_lend(kv, m, tokens, KV_PAGE_TOKENS + 1, &e, &guest), -EINVAL);
	assert_int_equal(kv_lend(kv, m, tokens, 3 * KV_PAGE_TOKENS, &e, &guest), -EINVAL);
	kv_get_counters(kv, &before);
	on_device_check(kv_lend(kv, m, tokens, 2 * KV_PAGE_TOKENS, &e, &guest), &e, "lend");
	assert_false(kv_is_lent_used(kv, guest));
	uint32_t a = open_slot(kv, 0), b = open_slot(kv, 0);
	assert_int_equal(kv_adopt(kv, a, 1, tokens, ARRAY_SIZE(tokens)), 2 * KV_PAGE_TOKENS);
	assert_int_equal(kv_adopt(kv, b, 2, tokens, ARRAY_SIZE(tokens)), 2 * KV_PAGE_TOKENS);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(get_address(kv, a, i), vk_memory_get_address(m) + i * PAGE_BYTES);
		assert_int_equal(get_address(kv, b, i), get_address(kv, a, i));
	}
	/* They are none of the pool's. */
	kv_get_counters(kv, &after);
	assert_memory_equal(&before, &after, sizeof(before));
	/* In the middle of the second page: a copy of all of it. */
	kv_truncate(kv, b, KV_PAGE_TOKENS + 3);
	on_device_check(kv_reserve(kv, b, KV_PAGE_TOKENS + 4, &e), &e, "reserve");
	assert_int_equal(get_address(kv, b, 0), get_address(kv, a, 0));
	assert_int_not_equal(get_address(kv, b, 1), get_address(kv, a, 1));
	expect_page(d, kv, b, 1, 2);
	write_page(d, kv, b, 1);
	expect_page(d, kv, a, 1, 2);
	/* Another of the same tokens is not needed, until the first is gone. */
	fill_pages(d, twin, 2);
	on_device_check(kv_lend(kv, twin, tokens, 2 * KV_PAGE_TOKENS, &e, &other), &e, "twin");
	assert_true(kv_is_lent_used(kv, guest));
	assert_false(kv_is_lent_used(kv, other));
	kv_close(kv, a);
	kv_close(kv, b);
	assert_false(kv_is_lent_used(kv, guest));
	kv_unlend(kv, guest);
	vk_memory_free(m);
	a = open_slot(kv, 0);
	assert_int_equal(kv_adopt(kv, a, 1, tokens, ARRAY_SIZE(tokens)), 0);
	kv_enter_lent(kv, other, tokens);
	assert_int_equal(kv_adopt(kv, a, 1, tokens, ARRAY_SIZE(tokens)), 2 * KV_PAGE_TOKENS);
	assert_int_equal(get_address(kv, a, 0), vk_memory_get_address(twin));
	kv_close(kv, a);
	kv_unlend(kv, other);
	kv_get_counters(kv, &after);
	assert_int_equal(after.n_used + after.n_cached, 0);
	vk_memory_free(twin);
	kv_free(kv);
	vk_device_free(d);
}

/* Sizes that overflow are refused before anything is allocated. */
static void test_hostile_sizes(void **state)
{
	struct vk_device *d = on_device_new();
	struct err e = ERR_NULL;
	struct kv *kv;
	struct kv_params params[] = {shape, shape, shape, shape, shape};

	(void)state;
	params[0].n_head_kv = params[0].head_dim = params[0].n_layers = UINT32_MAX;
	params[1].n_tokens = UINT64_MAX;
	params[2].n_ctx = UINT32_MAX;
	params[3].n_slots = UINT32_MAX;
	params[4].n_layers = 0;
	for (unsigned i = 0; i < ARRAY_SIZE(params); i++) {
		assert_int_equal(kv_new(d, &params[i], &e, &kv), -EINVAL);
		assert_true(e.text[0] != '\0');
		e = ERR_NULL;
	}
	vk_device_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_canary),
		CASE(test_pages),
		CASE(test_refusals),
		CASE(test_fork),
		CASE(test_adopt),
		CASE(test_kept_pages_on_a_full_device),
		CASE(test_several_memories),
		CASE(test_q8_0_bytes),
		CASE(test_chunks_come_and_go),
		CASE(test_no_memory_for_a_chunk),
		CASE(test_exportable),
		CASE(test_lend),
		CASE(test_hostile_sizes),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
