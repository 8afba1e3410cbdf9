/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/kv.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/kv-chunks.h"
#include "workerd/kv-guests.h"
#include "workerd/pages.h"
#include "workerd/prefix.h"

enum {
	/* Kernels load 16 bytes at a time; 256 is what a memory's own address is aligned to. */
	PAGE_ALIGN = 256,
	/* Page numbers are u32, and their bookkeeping is allocated: far above any real pool. */
	MAX_PAGES = 1 << 24,
	TABLE_ALIGN = 16, /* bytes; it is copied in such units */
	MAX_SLOTS = 4096,
	/* Pages of guests, in contexts: each costs its books alone. */
	N_GUEST_SLOTS = 8,
};

static const uint64_t clear_timeout_ns = 30ull * 1000 * 1000 * 1000;

struct kv {
	struct vk_device *device;
	struct kv_params params;
	uint64_t page_bytes;
	uint32_t n_pages;
	uint32_t n_slot_pages;
	struct kv_chunks *chunks; /* where pages are */
	struct kv_guests *guests; /* where those of others are */
	struct pages *pages;      /* whose they are */
	struct prefix *prefix;    /* what is in them */
	uint32_t *found;          /* [n_slot_pages], what kv_adopt works with */
	struct vk_memory *table_memory;
	uint64_t *table; /* mapped: [n_slots][n_slot_pages] */
	uint64_t table_version;
	struct vk_command *clear;
	uint64_t clear_ticket; /* of the last submission of clear, 0: none */
};

static void kv_get_slice(const struct kv *kv, uint32_t page, struct vk_slice *ret_slice)
{
	if (page < kv->n_pages)
		kv_chunks_get_slice(kv->chunks, page, 1, ret_slice);
	else
		kv_guests_get_slice(kv->guests, page, ret_slice);
}

/* The command is idle again: what it cleared last is clear. */
static int kv_clear_begin(struct kv *kv, struct err *ret_err)
{
	if (kv->clear_ticket) {
		int r = vk_submit_wait(kv->device, kv->clear_ticket, clear_timeout_ns);
		if (r == -ETIMEDOUT)
			return err_set(ret_err, ETIMEDOUT, "kv: pages were not cleared in 30 s");
		if (r)
			return r;
		kv->clear_ticket = 0;
	}
	vk_command_begin(kv->clear);
	return 0;
}

/* Not waited for: each submission sees what those before it wrote. */
static int kv_clear_submit(struct kv *kv, struct err *ret_err)
{
	int r = vk_command_end(kv->clear, ret_err);
	if (r)
		return r;
	return vk_submit(kv->device, &kv->clear, 1, ret_err, &kv->clear_ticket);
}

/* Records fills of pages[0..n), neighbours in one. */
static void kv_record_clear(struct kv *kv, const uint32_t *pages, uint32_t n)
{
	uint32_t i = 0;

	while (i < n) {
		uint32_t page = pages[i];
		uint32_t n_rest = kv_chunks_count_rest(kv->chunks, page);
		uint32_t run = 1;
		struct vk_slice slice;

		while (i + run < n && run < n_rest && pages[i + run] == page + run)
			run++;
		kv_chunks_get_slice(kv->chunks, page, run, &slice);
		vk_command_fill(kv->clear, &slice, 0);
		i += run;
	}
}

/* Memory for pages[0..n). What the device does not have is no fault of it: -ENOSPC. */
static int kv_need_pages(struct kv *kv, const uint32_t *pages, uint32_t n, struct err *ret_err)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < n; i++)
		r = kv_chunks_need(kv->chunks, pages[i], ret_err);
	return r == -ENOMEM ? -ENOSPC : r;
}

/*
 * What pages_change says about pages[0..n) of a slot: one copied whole, the rest without a trace of
 * whoever had the memory before.
 */
static int kv_fill_pages(struct kv *kv, const struct pages_change *change, const uint32_t *pages,
	uint32_t n, struct err *ret_err)
{
	uint32_t first = change->first;

	if (first == n)
		return 0;
	int r = kv_need_pages(kv, pages + first, n - first, ret_err);
	if (!r)
		r = kv_clear_begin(kv, ret_err);
	if (r)
		return r;
	if (change->copy_to != PAGES_NONE) {
		struct vk_slice from;
		struct vk_slice to;

		kv_get_slice(kv, change->copy_from, &from);
		kv_chunks_get_slice(kv->chunks, change->copy_to, 1, &to);
		vk_command_copy(kv->clear, &to, &from);
		first++;
	}
	kv_record_clear(kv, pages + first, n - first);
	return kv_clear_submit(kv, ret_err);
}

static bool kv_is_page_used(const void *userdata, uint32_t page)
{
	return pages_get_n_refs(userdata, page) > 0;
}

/* Steps have ended; a clear may not have. What is still under way there is left for the next time.
 */
static void kv_trim(struct kv *kv)
{
	if (kv->clear_ticket && vk_submit_wait(kv->device, kv->clear_ticket, clear_timeout_ns))
		return;
	kv->clear_ticket = 0;
	kv_chunks_trim(kv->chunks, kv_is_page_used, kv->pages);
}

/* Page size and counts out of the parameters, every product checked. */
static int kv_lay_out(struct kv *kv, struct err *ret_err)
{
	const struct kv_params *p = &kv->params;
	uint64_t max_bytes = vk_device_get_info(kv->device)->max_alloc_bytes;
	struct kv_layout layout;
	uint64_t n_bytes;
	uint64_t n_pages;

	if (!p->n_layers || !p->n_head_kv || !p->head_dim || !p->n_slots ||
		p->n_slots > MAX_SLOTS || !p->n_ctx || !p->n_tokens)
		return err_set(ret_err, EINVAL, "kv: a size is zero or too large");
	if (kv_layout_get(p->type, p->n_head_kv, p->head_dim, &layout) ||
		__builtin_mul_overflow(layout.n_part_bytes, 2ull * p->n_layers, &n_bytes) ||
		!bytes_align(n_bytes, PAGE_ALIGN, &n_bytes) || n_bytes > max_bytes)
		return err_set(ret_err, EINVAL,
			"kv: a page of %u layers, %u heads of %u: expected at most %llu bytes",
			p->n_layers, p->n_head_kv, p->head_dim, (unsigned long long)max_bytes);
	n_pages = p->n_tokens / KV_PAGE_TOKENS + !!(p->n_tokens % KV_PAGE_TOKENS);
	if (n_pages > MAX_PAGES)
		return err_set(ret_err, EINVAL, "kv: %llu pages: expected at most %u",
			(unsigned long long)n_pages, MAX_PAGES);
	kv->page_bytes = n_bytes;
	kv->n_pages = (uint32_t)n_pages;
	kv->n_slot_pages = p->n_ctx / KV_PAGE_TOKENS + !!(p->n_ctx % KV_PAGE_TOKENS);
	if ((uint64_t)kv->n_slot_pages * p->n_slots > MAX_PAGES)
		return err_set(ret_err, EINVAL, "kv: a table of %u slots of %u pages is too large",
			p->n_slots, kv->n_slot_pages);
	return 0;
}

static uint64_t kv_get_table_bytes(const struct kv *kv)
{
	uint64_t n_bytes = (uint64_t)kv->params.n_slots * kv->n_slot_pages * sizeof(uint64_t);

	return (n_bytes + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

int kv_measure(struct vk_device *d, const struct kv_params *params, struct err *ret_err,
	uint64_t *ret_page_bytes, uint64_t *ret_io_bytes)
{
	struct kv kv = {.device = d, .params = *params};
	int r = kv_lay_out(&kv, ret_err);

	if (r)
		return r;
	*ret_page_bytes = kv_get_bytes(&kv);
	*ret_io_bytes = kv_get_table_bytes(&kv);
	return 0;
}

static int kv_make_books(struct kv *kv)
{
	const struct pages_params pages = {
		.n_pages = kv->n_pages,
		.n_guest_pages = N_GUEST_SLOTS * kv->n_slot_pages,
		.n_page_tokens = KV_PAGE_TOKENS,
		.n_slots = kv->params.n_slots,
		.n_slot_tokens = kv->params.n_ctx,
	};

	struct prefix_params prefix = {
		.n_pages = kv->n_pages,
		.n_guest_pages = pages.n_guest_pages,
		.n_page_tokens = KV_PAGE_TOKENS,
	};
	const struct kv_guests_params guests = {
		.first_page = kv->n_pages,
		.n_pages = pages.n_guest_pages,
		.n_page_bytes = kv->page_bytes,
	};
	int r;

	/* Without it lookups are right all the same. */
	if (getrandom(&prefix.key, sizeof(prefix.key), 0) != sizeof(prefix.key))
		prefix.key = (uintptr_t)kv;
	kv->found = calloc(kv->n_slot_pages, sizeof(*kv->found));
	if (!kv->found)
		return -ENOMEM;
	r = kv_guests_new(&guests, &kv->guests);
	if (!r)
		r = pages_new(&pages, &kv->pages);
	return r ? r : prefix_new(&prefix, kv->pages, &kv->prefix);
}

static int kv_allocate_device(struct kv *kv, struct err *ret_err)
{
	uint64_t table_bytes = kv_get_table_bytes(kv);
	const struct kv_chunks_params chunks = {
		.n_page_bytes = kv->page_bytes,
		.n_pages = kv->n_pages,
		.n_bytes = kv->params.n_chunk_bytes,
		.is_exportable = kv->params.is_exportable,
	};
	void *table;
	int r = kv_chunks_new(kv->device, &chunks, ret_err, &kv->chunks);

	if (r)
		return r;
	const struct vk_memory_params params = {
		.role = VK_MEMORY_IO,
		.n_bytes = table_bytes,
		.name = "kv page table",
	};
	r = vk_memory_new(kv->device, &params, ret_err, &kv->table_memory);
	if (r)
		return r;
	r = vk_memory_map(kv->table_memory, ret_err, &table);
	if (r)
		return r;
	kv->table = table;
	memset(kv->table, 0, table_bytes);
	return vk_command_new(kv->device, 0, ret_err, &kv->clear);
}

int kv_new(struct vk_device *d, const struct kv_params *params, struct err *ret_err,
	struct kv **ret_kv)
{
	struct kv *kv = calloc(1, sizeof(*kv));
	int r;

	if (!kv)
		return -ENOMEM;
	kv->device = d;
	kv->params = *params;
	r = kv_lay_out(kv, ret_err);
	if (!r)
		r = kv_make_books(kv);
	if (!r)
		r = kv_allocate_device(kv, ret_err);
	if (r) {
		kv_free(kv);
		return r;
	}
	*ret_kv = kv;
	return 0;
}

struct kv *kv_free(struct kv *kv)
{
	if (!kv)
		return NULL;
	/* On failure the device is lost and uses nothing any more. */
	if (kv->clear_ticket && vk_submit_wait(kv->device, kv->clear_ticket, clear_timeout_ns))
		kv->clear_ticket = 0;
	vk_command_free(kv->clear);
	vk_memory_free(kv->table_memory);
	kv_chunks_free(kv->chunks);
	kv_guests_free(kv->guests);
	free(kv->found);
	prefix_free(kv->prefix);
	pages_free(kv->pages);
	free(kv);
	return NULL;
}

int kv_open(struct kv *kv, struct err *ret_err, uint32_t *ret_slot)
{
	return pages_open(kv->pages, ret_err, ret_slot);
}

/* The slot's row of the table, from index first on. */
static void kv_write_row(struct kv *kv, uint32_t slot, uint32_t first)
{
	uint64_t *row = kv->table + (size_t)slot * kv->n_slot_pages;
	uint32_t n;
	const uint32_t *pages = pages_get_list(kv->pages, slot, &n);

	for (uint32_t i = first; i < n; i++) {
		struct vk_slice slice;

		kv_get_slice(kv, pages[i], &slice);
		row[i] = vk_memory_slice_address(&slice);
	}
	for (uint32_t i = n; i < kv->n_slot_pages && row[i]; i++)
		row[i] = 0;
	kv->table_version++;
}

void kv_close(struct kv *kv, uint32_t slot)
{
	uint32_t n;
	const uint32_t *pages = pages_get_list(kv->pages, slot, &n);

	prefix_touch(kv->prefix, pages, n);
	pages_close(kv->pages, slot);
	kv_write_row(kv, slot, 0);
	kv_trim(kv);
}

/* What the books say becomes so on the device and in the table, or is undone. */
static int kv_follow(
	struct kv *kv, uint32_t slot, const struct pages_change *change, struct err *ret_err)
{
	uint32_t n;
	const uint32_t *pages = pages_get_list(kv->pages, slot, &n);
	int r = kv_fill_pages(kv, change, pages, n, ret_err);

	if (r) {
		pages_revert(kv->pages, slot, change);
		return r;
	}
	kv_write_row(kv, slot, change->first);
	return 0;
}

/* For a device that has no memory for another chunk: nothing is kept for nobody. */
static void kv_give_back_all(struct kv *kv)
{
	prefix_give_back(kv->prefix, kv->n_pages);
	kv_trim(kv);
}

static int kv_try_reserve(struct kv *kv, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	struct pages_change change;
	int r = prefix_reserve(kv->prefix, slot, n_tokens, ret_err, &change);

	return r ? r : kv_follow(kv, slot, &change, ret_err);
}

int kv_reserve(struct kv *kv, uint32_t slot, uint32_t n_tokens, struct err *ret_err)
{
	struct err first = ERR_NULL;
	int r = kv_try_reserve(kv, slot, n_tokens, &first);

	if (r != -ENOSPC || n_tokens > kv->params.n_ctx) {
		if (r)
			*ret_err = first;
		return r;
	}
	kv_give_back_all(kv);
	return kv_try_reserve(kv, slot, n_tokens, ret_err);
}

static int kv_try_fork(
	struct kv *kv, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	struct pages_change change;
	int r = prefix_fork(kv->prefix, from, n_tokens, slot, ret_err, &change);

	if (!r)
		r = kv_follow(kv, slot, &change, ret_err);
	if (!r)
		kv_write_row(kv, slot, 0);
	return r;
}

int kv_fork(struct kv *kv, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err)
{
	struct err first = ERR_NULL;
	int r = kv_try_fork(kv, from, n_tokens, slot, &first);

	if (r != -ENOSPC) {
		if (r)
			*ret_err = first;
		return r;
	}
	kv_give_back_all(kv);
	return kv_try_fork(kv, from, n_tokens, slot, ret_err);
}

uint32_t kv_adopt(
	struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	uint32_t first = pages_get_n_tokens(kv->pages, slot) / KV_PAGE_TOKENS;
	uint32_t n;

	if (n_tokens > kv->params.n_ctx)
		n_tokens = kv->params.n_ctx;
	n = prefix_find(kv->prefix, scope, tokens, n_tokens, kv->found);
	if (n * KV_PAGE_TOKENS <= pages_get_n_tokens(kv->pages, slot))
		return 0;
	for (uint32_t i = first; i < n; i++)
		pages_share(kv->pages, slot, i, kv->found[i]);
	kv_write_row(kv, slot, first);
	return n * KV_PAGE_TOKENS;
}

void kv_publish(
	struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens)
{
	uint32_t n;
	const uint32_t *pages = pages_get_list(kv->pages, slot, &n);

	prefix_add(kv->prefix, scope, tokens, pages, n_tokens / KV_PAGE_TOKENS);
}

int kv_lend(struct kv *kv, struct vk_memory *memory, const uint32_t *tokens, uint32_t n_tokens,
	struct err *ret_err, uint32_t *ret_guest)
{
	uint32_t n = n_tokens / KV_PAGE_TOKENS;
	uint32_t first = 0;

	if (!n || n_tokens % KV_PAGE_TOKENS || n > kv->n_slot_pages ||
		vk_memory_get_bytes(memory) < n * kv->page_bytes)
		return err_set(ret_err, EINVAL,
			"kv: %u tokens of others in %llu bytes: expected whole pages, at most %u",
			n_tokens, (unsigned long long)vk_memory_get_bytes(memory),
			kv->n_slot_pages);
	int r = kv_guests_add(kv->guests, memory, n, ret_err, ret_guest);
	if (r)
		return r;
	kv_guests_get_pages(kv->guests, *ret_guest, &first, &n);
	for (uint32_t i = 0; i < n; i++)
		pages_lend(kv->pages, first + i);
	kv_enter_lent(kv, *ret_guest, tokens);
	return 0;
}

void kv_enter_lent(struct kv *kv, uint32_t guest, const uint32_t *tokens)
{
	uint32_t first;
	uint32_t n;

	kv_guests_get_pages(kv->guests, guest, &first, &n);
	for (uint32_t i = 0; i < n; i++)
		kv->found[i] = first + i;
	prefix_add(kv->prefix, PREFIX_ANY, tokens, kv->found, n);
}

bool kv_is_lent_used(const struct kv *kv, uint32_t guest)
{
	uint32_t first;
	uint32_t n;

	kv_guests_get_pages(kv->guests, guest, &first, &n);
	for (uint32_t page = first; page < first + n; page++)
		if (pages_get_n_refs(kv->pages, page) > 1u + prefix_has(kv->prefix, page))
			return true;
	return false;
}

void kv_unlend(struct kv *kv, uint32_t guest)
{
	uint32_t first;
	uint32_t n;

	kv_guests_get_pages(kv->guests, guest, &first, &n);
	for (uint32_t page = first; page < first + n; page++) {
		prefix_drop(kv->prefix, page);
		pages_unref(kv->pages, page);
	}
	kv_guests_remove(kv->guests, guest);
}

void kv_truncate(struct kv *kv, uint32_t slot, uint32_t n_tokens)
{
	uint32_t n;

	pages_truncate(kv->pages, slot, n_tokens);
	(void)pages_get_list(kv->pages, slot, &n);
	kv_write_row(kv, slot, n);
}

const struct kv_params *kv_get_params(const struct kv *kv)
{
	return &kv->params;
}

void kv_get_table(const struct kv *kv, struct vk_slice *ret_table)
{
	*ret_table =
		(struct vk_slice){.memory = kv->table_memory, .n_bytes = kv_get_table_bytes(kv)};
}

uint64_t kv_get_table_version(const struct kv *kv)
{
	return kv->table_version;
}

uint32_t kv_get_slot_pages(const struct kv *kv)
{
	return kv->n_slot_pages;
}

uint64_t kv_get_bytes(const struct kv *kv)
{
	return kv->n_pages * kv->page_bytes;
}

void kv_get_pool(const struct kv *kv, struct kv_pool *ret_pool)
{
	struct kv_chunks_figures f;

	kv_chunks_get_figures(kv->chunks, &f);
	*ret_pool = (struct kv_pool){
		.n_pages = kv->n_pages,
		.n_chunks = f.n_chunks,
		.n_allocated_chunks = f.n_allocated,
		.n_allocated_bytes = f.n_allocated_bytes,
	};
}

uint64_t kv_get_page_bytes(const struct kv *kv)
{
	return kv->page_bytes;
}

uint32_t kv_get_free_pages(const struct kv *kv)
{
	return pages_get_n_free(kv->pages);
}

void kv_get_counters(const struct kv *kv, struct kv_counters *ret_counters)
{
	struct kv_counters c = {.n_total = kv->n_pages};

	for (uint32_t i = 0; i < kv->n_pages; i++) {
		uint32_t n_cached = prefix_has(kv->prefix, i);
		uint32_t n_slots = pages_get_n_refs(kv->pages, i) - n_cached;

		c.n_used += n_slots > 0;
		c.n_shared += n_slots > 1;
		c.n_cached += n_cached && !n_slots;
	}
	*ret_counters = c;
}

int kv_get_page(const struct kv *kv, uint32_t slot, uint32_t index, struct vk_slice *ret_page)
{
	uint32_t n;
	const uint32_t *pages = pages_get_list(kv->pages, slot, &n);

	if (index >= n)
		return -ENOENT;
	kv_get_slice(kv, pages[index], ret_page);
	return 0;
}
