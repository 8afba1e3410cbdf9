/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/guests.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/util/clock.h"
#include "proto/util/log.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "vk/submit.h"
#include "workerd/engine-internal.h"
#include "workerd/kv-guests.h"
#include "workerd/kv.h"
#include "workerd/loan.h"
#include "workerd/options.h"
#include "workerd/stack.h"

enum { MAX_OFFERS = WEIGHTS_PREFIX_MAX_ROWS, MAX_DROPS = 256 };

static const uint64_t timeout_ns = 30ull * 1000 * 1000 * 1000;

/* One that weightd has. */
struct offer {
	uint64_t id;
	uint64_t head_hash;
	bool is_bad; /* it could not be had, and will not be asked for again */
};

/* One that is imported, or this worker's own. */
struct guest {
	struct guests_own of; /* its tokens are the guest's; its name is below */
	char name[WEIGHTS_PREFIX_NAME_BYTES];
	uint32_t kv_guest;
	bool is_orphan; /* weightd will not have it: it goes as soon as it can */
	bool is_seen;   /* in the list that is being read */
	uint64_t used_ns;
};

struct guests {
	uint32_t n_offers;
	struct offer offers[MAX_OFFERS];
	uint32_t n;
	struct guest rows[KV_GUESTS_MAX];
	/* Let go of here, and weightd is still to be told. */
	uint32_t n_drops;
	uint64_t drops[MAX_DROPS];
	bool is_stale; /* the offers are to be asked for */
	bool is_back;  /* weightd may not know the rows */
};

int guests_new(struct guests **ret_guests)
{
	struct guests *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	g->is_stale = true;
	*ret_guests = g;
	return 0;
}

struct guests *guests_free(struct guests *g)
{
	free(g);
	return NULL;
}

void guests_note_changed(struct guests *g)
{
	g->is_stale = true;
}

void guests_note_back(struct guests *g)
{
	g->is_stale = g->is_back = true;
}

static void guests_put_u32(uint8_t **at, uint32_t value)
{
	for (int shift = 0; shift < 32; shift += 8)
		*(*at)++ = (uint8_t)(value >> shift);
}

void guests_get_layout(const struct engine *e, uint8_t ret_layout[GUESTS_LAYOUT_BYTES])
{
	const struct kv_params *p = kv_get_params(e->stack->kv);
	uint64_t n_page_bytes = kv_get_page_bytes(e->stack->kv);
	uint8_t *at = ret_layout;

	memset(ret_layout, 0, GUESTS_LAYOUT_BYTES);
	guests_put_u32(&at, GUESTS_LAYOUT_VERSION);
	guests_put_u32(&at, p->type);
	guests_put_u32(&at, KV_PAGE_TOKENS);
	guests_put_u32(&at, (uint32_t)n_page_bytes);
	guests_put_u32(&at, (uint32_t)(n_page_bytes >> 32));
	guests_put_u32(&at, p->n_layers);
	guests_put_u32(&at, p->n_head_kv);
	guests_put_u32(&at, p->head_dim);
}

/* ---- the device ---- */

/* Ownership of what another process released, or this one for others. */
static int guests_acquire(struct engine *e, struct vk_memory *m, struct err *ret_err)
{
	struct vk_command *c = NULL;
	uint64_t ticket = 0;
	int r = vk_command_new(e->site.device, 0, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	vk_command_acquire(c, m);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(e->site.device, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(e->site.device, ticket, timeout_ns);
	if (r == -ETIMEDOUT) /* the device still has the command */
		return err_set(ret_err, EIO, "shared prefix: the device does not answer");
	vk_command_free(c);
	return r;
}

/* Whoever sends less than it says kills who reads: the software driver's are files. */
static int guests_check_fd(
	const struct weights_prefix_taken *t, uint64_t n_page_bytes, struct err *ret_err)
{
	uint64_t n_bytes = t->prefix.n_tokens / KV_PAGE_TOKENS * n_page_bytes;
	struct stat st;

	if (t->prefix.n_tokens % KV_PAGE_TOKENS || t->memory.buffer_bytes < n_bytes)
		return err_set(ret_err, EINVAL,
			"prefix %" PRIu64 ": expected whole pages in %" PRIu64
			" bytes, found %" PRIu32 " tokens in %" PRIu64,
			t->prefix.id, n_bytes, t->prefix.n_tokens, t->memory.buffer_bytes);
	if (fstat(t->memory_fd, &st) < 0)
		return err_set(
			ret_err, errno, "prefix %" PRIu64 ": %s", t->prefix.id, strerror(errno));
	if (S_ISREG(st.st_mode) && (uint64_t)st.st_size < t->memory.n_bytes)
		return err_set(ret_err, EINVAL,
			"prefix %" PRIu64 ": expected %" PRIu64 " bytes, found %jd", t->prefix.id,
			t->memory.n_bytes, (intmax_t)st.st_size);
	return 0;
}

/* ---- rows ---- */

static struct guest *guests_find(struct guests *g, uint64_t id)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (g->rows[i].of.id == id)
			return &g->rows[i];
	return NULL;
}

static void guests_note_drop(struct guests *g, uint64_t id)
{
	/* More than there is room for weightd learns when the process ends. */
	if (id && g->n_drops < MAX_DROPS)
		g->drops[g->n_drops++] = id;
}

static int guests_enter(struct engine *e, const struct guests_own *own, struct err *ret_err)
{
	struct guests *g = e->guests;
	struct guest row = {.of = *own, .used_ns = clock_now_ns()};
	size_t n_bytes = (size_t)own->n_tokens * sizeof(*own->tokens);
	_cleanup_(cleanup_free)
	uint32_t *tokens = malloc(n_bytes);

	if (!tokens)
		return -ENOMEM;
	if (g->n == KV_GUESTS_MAX)
		return err_set(ret_err, ENOSPC, "shared prefixes: %d are imported, the most",
			KV_GUESTS_MAX);
	memcpy(tokens, own->tokens, n_bytes);
	snprintf(row.name, sizeof(row.name), "%s", own->name);
	int r = guests_acquire(e, own->memory, ret_err);
	if (!r)
		r = kv_lend(
			e->stack->kv, own->memory, tokens, own->n_tokens, ret_err, &row.kv_guest);
	if (r)
		return r;
	row.of.tokens = TAKE_PTR(tokens);
	g->rows[g->n++] = row;
	return 0;
}

int guests_add(struct engine *e, const struct guests_own *own, struct err *ret_err)
{
	int r = guests_enter(e, own, ret_err);

	if (r)
		guests_note_drop(e->guests, own->id);
	return r;
}

/* No slot has a page of it. */
static void guests_remove(struct engine *e, uint32_t index)
{
	struct guests *g = e->guests;
	struct guest *row = &g->rows[index];

	log_debug("shared prefix %" PRIu64 " is let go of", row->of.id);
	kv_unlend(e->stack->kv, row->kv_guest);
	vk_memory_free(row->of.memory);
	close(row->of.fd);
	free((void *)row->of.tokens);
	guests_note_drop(g, row->of.id);
	*row = g->rows[--g->n];
	/* What went with it, or found no room before. */
	for (uint32_t i = 0; i < g->n_offers; i++)
		g->offers[i].is_bad = false;
	for (uint32_t i = 0; i < g->n; i++)
		kv_enter_lent(e->stack->kv, g->rows[i].kv_guest, g->rows[i].of.tokens);
}

void guests_clear(struct engine *e)
{
	while (e->guests->n)
		guests_remove(e, e->guests->n - 1);
	e->guests->n_offers = 0;
	e->guests->is_stale = true;
}

bool guests_has(const struct guests *g, const uint32_t *tokens, uint32_t n_tokens, bool is_shared,
	uint64_t *ret_id, uint64_t *ret_n_bytes)
{
	for (uint32_t i = 0; i < g->n; i++) {
		const struct guests_own *of = &g->rows[i].of;

		if (!of->id || of->n_tokens != n_tokens || of->is_shared != is_shared ||
			memcmp(of->tokens, tokens, n_tokens * sizeof(*tokens)))
			continue;
		*ret_id = of->id;
		*ret_n_bytes = of->shape.n_bytes;
		return true;
	}
	return false;
}

void guests_count(const struct guests *g, uint32_t *ret_n, uint64_t *ret_n_bytes)
{
	*ret_n = g->n;
	*ret_n_bytes = 0;
	for (uint32_t i = 0; i < g->n; i++)
		*ret_n_bytes += g->rows[i].of.shape.n_bytes;
}

/* ---- weightd ---- */

int guests_publish(struct engine *e, struct weights_client *c, const struct guests_own *own,
	struct err *ret_err, uint64_t *ret_id, bool *ret_existed)
{
	const struct vk_device_info *info = vk_device_get_info(e->site.device);
	uint8_t layout[GUESTS_LAYOUT_BYTES];
	_cleanup_(cleanup_close)
	int tokens_fd = -1;
	int r = weights_prefix_make_tokens(own->tokens, own->n_tokens, ret_err, &tokens_fd);

	if (r)
		return r;
	guests_get_layout(e, layout);
	const struct weights_prefix_publish params = {
		.model = e->site.options->model,
		.generation = e->generation,
		.device_uuid = info->uuid,
		.driver_uuid = info->driver_uuid,
		.name = own->name,
		.is_shared = own->is_shared,
		.n_tokens = own->n_tokens,
		.layout = layout,
		.n_layout_bytes = sizeof(layout),
		.memory = own->shape,
		.tokens_fd = tokens_fd,
		.memory_fd = own->fd,
	};
	return weights_prefix_publish(c, &params, ret_err, ret_id, ret_existed);
}

/* -ENOSPC of the first try: it is not there, and its bytes are to be reserved. */
static int guests_publish_again(
	struct engine *e, struct weights_client *c, struct guest *row, struct err *ret_err)
{
	const uint8_t *uuid = vk_device_get_info(e->site.device)->uuid;
	uint64_t n_granted = e->stack->n_granted_bytes;
	struct err ignored = ERR_NULL;
	struct guests_own own = row->of;
	bool existed;
	uint64_t n_got;

	own.name = row->name;
	int r = guests_publish(e, c, &own, ret_err, &row->of.id, &existed);
	if (r != -ENOSPC)
		return r;
	/* The memory is there, whatever weightd says: nobody parks or waits for it. */
	r = weights_client_reserve(
		c, uuid, n_granted + own.shape.n_bytes, n_granted, true, ret_err, &n_got);
	if (r)
		return r;
	r = guests_publish(e, c, &own, ret_err, &row->of.id, &existed);
	if ((r || existed) &&
		weights_client_reserve(c, uuid, n_granted, n_granted, false, &ignored, &n_got))
		log_debug("%s", ignored.text);
	return r;
}

/* Ids are another weightd's now, or the same one's. */
static int guests_restore(struct engine *e, struct weights_client *c)
{
	struct guests *g = e->guests;

	g->is_back = false;
	for (uint32_t i = 0; i < g->n; i++) {
		struct guest *row = &g->rows[i];
		struct err error = ERR_NULL;

		row->of.id = 0;
		int r = guests_publish_again(e, c, row, &error);
		if (r == -ENOTCONN || r == -ECONNRESET)
			return r;
		row->is_orphan = r != 0;
		if (r)
			log_warn("a shared prefix of %" PRIu32 " tokens is not published again: %s",
				row->of.n_tokens, error.text);
		else
			log_info("a shared prefix of %" PRIu32 " tokens is published again",
				row->of.n_tokens);
	}
	return 0;
}

static bool guests_is_bad(const struct offer *offers, uint32_t n, uint64_t id)
{
	for (uint32_t i = 0; i < n; i++)
		if (offers[i].id == id)
			return offers[i].is_bad;
	return false;
}

/* What is imported and no longer there was removed. */
static void guests_take_list(struct guests *g, const struct weights_prefix *rows, uint32_t n)
{
	static struct offer offers[MAX_OFFERS]; /* the engine thread's alone */

	for (uint32_t i = 0; i < g->n; i++)
		g->rows[i].is_seen = false;
	for (uint32_t i = 0; i < n; i++) {
		struct guest *row = guests_find(g, rows[i].id);

		offers[i] = (struct offer){.id = rows[i].id,
			.head_hash = rows[i].head_hash,
			.is_bad = guests_is_bad(g->offers, g->n_offers, rows[i].id)};
		if (row)
			row->is_seen = true;
	}
	memcpy(g->offers, offers, n * sizeof(*offers));
	g->n_offers = n;
	for (uint32_t i = 0; i < g->n; i++)
		g->rows[i].is_orphan |= !g->rows[i].is_seen;
}

static int guests_list(struct engine *e, struct weights_client *c, struct err *ret_err)
{
	uint8_t layout[GUESTS_LAYOUT_BYTES];
	_cleanup_(cleanup_free)
	struct weights_prefix *rows = NULL;
	uint32_t n = 0;

	guests_get_layout(e, layout);
	int r = weights_prefix_list(c, e->site.options->model, e->generation,
		vk_device_get_info(e->site.device)->uuid, layout, sizeof(layout), ret_err, &rows,
		&n);
	if (!r)
		guests_take_list(e->guests, rows, n);
	return r;
}

static void guests_tell_drops(struct guests *g, struct weights_client *c)
{
	while (g->n_drops) {
		struct err ignored = ERR_NULL;

		/* -ENOENT: of a weightd that is no more. */
		int r = weights_prefix_drop(c, g->drops[g->n_drops - 1], &ignored);
		if (r && r != -ENOENT)
			return;
		g->n_drops--;
	}
}

void guests_tell_dropped(struct engine *e)
{
	guests_tell_drops(e->guests, e->site.weightd);
}

/* What can be said to weightd is; what cannot waits for the next time. */
static void guests_talk(struct engine *e)
{
	struct guests *g = e->guests;
	struct weights_client *c = NULL;
	struct err error = ERR_NULL;
	int r = loan_take(e->params.loan, &error, &c);

	if (r)
		return; /* it will be back */
	guests_tell_drops(g, c);
	if (e->stack && g->is_back)
		r = guests_restore(e, c);
	if (!r && e->stack && g->is_stale) {
		g->is_stale = false;
		r = guests_list(e, c, &error);
		if (r)
			log_debug("shared prefixes: %s", error.text);
	}
	loan_give_back(e->params.loan);
}

/* ---- between steps ---- */

static bool guests_is_over(const struct guest *row, bool is_pressed, uint64_t now_ns)
{
	return is_pressed || row->is_orphan || now_ns - row->used_ns >= GUESTS_IDLE_NS;
}

static void guests_let_go(struct engine *e, bool is_pressed)
{
	struct guests *g = e->guests;
	uint64_t now_ns = clock_now_ns();

	for (uint32_t i = g->n; i > 0; i--) {
		struct guest *row = &g->rows[i - 1];

		if (kv_is_lent_used(e->stack->kv, row->kv_guest))
			row->used_ns = now_ns;
		else if (guests_is_over(row, is_pressed, now_ns))
			guests_remove(e, i - 1);
	}
}

void guests_attend(struct engine *e, bool is_pressed)
{
	struct guests *g = e->guests;

	if (e->stack && e->generation != e->lost && (g->is_stale || g->is_back))
		guests_talk(e);
	if (e->stack)
		guests_let_go(e, is_pressed);
	if (g->n_drops)
		guests_talk(e);
}

uint64_t guests_get_deadline(const struct engine *e)
{
	uint64_t deadline_ns = UINT64_MAX;

	for (uint32_t i = 0; e->stack && i < e->guests->n; i++)
		if (e->guests->rows[i].used_ns + GUESTS_IDLE_NS < deadline_ns)
			deadline_ns = e->guests->rows[i].used_ns + GUESTS_IDLE_NS;
	return deadline_ns;
}

/* ---- a prompt ---- */

/* The name and the tokens are t's. */
static int guests_import(struct engine *e, struct weights_prefix_taken *t, struct err *ret_err,
	struct guests_own *ret_own)
{
	const struct vk_share_params params = {
		.n_bytes = t->memory.n_bytes,
		.buffer_bytes = t->memory.buffer_bytes,
		.memory_type_index = t->memory.memory_type_index,
		.is_dedicated = t->memory.is_dedicated,
		.handle = VK_HANDLE_OPAQUE_FD,
	};
	struct guests_own own = {.id = t->prefix.id,
		.name = t->prefix.name,
		.is_shared = t->prefix.is_shared,
		.tokens = t->tokens,
		.n_tokens = t->prefix.n_tokens,
		.shape = t->memory,
		/* The driver gets the other, this is for a weightd that comes back without. */
		.fd = fcntl(t->memory_fd, F_DUPFD_CLOEXEC, 0)};

	if (own.fd < 0)
		return err_set(ret_err, errno, "prefix: descriptor: %s", strerror(errno));
	int r = vk_share_import(e->site.device, t->memory_fd, &params, VK_MEMORY_KV,
		"shared prefix", ret_err, &own.memory);
	if (r) {
		close(own.fd);
		return r;
	}
	t->memory_fd = -1;
	*ret_own = own;
	return 0;
}

static int guests_take_one(struct engine *e, struct weights_client *c, const struct offer *offer,
	const uint32_t *tokens, struct err *ret_err)
{
	struct weights_prefix_taken t = {.memory_fd = -1};
	int r = weights_prefix_take(c, offer->id, ret_err, &t);

	if (r)
		return r;
	/* A hash is a hint. */
	if (t.prefix.n_tokens < WEIGHTS_PREFIX_HEAD_TOKENS ||
		memcmp(t.tokens, tokens, WEIGHTS_PREFIX_HEAD_TOKENS * sizeof(*tokens)))
		r = err_set(ret_err, ENOENT, "prefix %" PRIu64 ": of other tokens", offer->id);
	if (!r)
		r = guests_check_fd(&t, kv_get_page_bytes(e->stack->kv), ret_err);
	struct guests_own own = {.memory = NULL, .fd = -1};
	if (!r)
		r = guests_import(e, &t, ret_err, &own);
	if (r)
		guests_note_drop(e->guests, offer->id);
	else
		r = guests_add(e, &own, ret_err);
	if (r) {
		vk_memory_free(own.memory);
		cleanup_close(&own.fd);
	}
	weights_prefix_taken_fini(&t);
	return r;
}

void guests_seek(struct engine *e, const uint32_t *tokens, uint32_t n_tokens)
{
	struct guests *g = e->guests;
	struct weights_client *c = NULL;
	struct err error = ERR_NULL;

	if (n_tokens < WEIGHTS_PREFIX_HEAD_TOKENS)
		return;
	/* A stack that was made for this prompt has asked for nothing yet. */
	if (g->is_stale || g->is_back)
		guests_talk(e);
	uint64_t hash = weights_prefix_hash(tokens, WEIGHTS_PREFIX_HEAD_TOKENS);
	for (uint32_t i = 0; i < g->n_offers; i++) {
		struct offer *offer = &g->offers[i];

		if (offer->head_hash != hash || offer->is_bad || guests_find(g, offer->id))
			continue;
		if (!c && loan_take(e->params.loan, &error, &c))
			return;
		int r = guests_take_one(e, c, offer, tokens, &error);
		offer->is_bad = r != 0;
		if (r > 0) {
			engine_set_failed(e, r, &error);
			break;
		}
		if (r)
			log_debug("shared prefix %" PRIu64 ": %s", offer->id, error.text);
		else
			log_debug("shared prefix %" PRIu64 " is imported", offer->id);
	}
	if (c)
		loan_give_back(e->params.loan);
}
