/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/archive.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "workerd/engine-internal.h"
#include "workerd/identity.h"
#include "workerd/kv.h"
#include "workerd/message.h"
#include "workerd/page-io.h"
#include "workerd/park.h"
#include "workerd/scheduler.h"
#include "workerd/session.h"
#include "workerd/snapshot.h"
#include "workerd/store.h"

/* A file that is written or read from its start on, and the digest of what was. */
struct archive {
	struct engine *engine;
	const char *name;
	int fd;
	struct digest digest;
	struct snapshot snapshot;
	struct page_io *io; /* NULL: no pages */
	bool uses_pages;    /* of a restore */
	uint32_t *tokens;   /* [n_tokens] and zeros up to snapshot_get_token_bytes, of a restore */
};

static void archive_fini(struct archive *a)
{
	page_io_free(a->io);
	free(a->tokens);
	if (a->fd >= 0)
		close(a->fd);
}

/* While it is parked nothing has keys and values, and their shape does not matter. */
static struct snapshot_shape archive_get_shape(const struct engine *e)
{
	struct snapshot_shape shape = {
		.n_page_tokens = KV_PAGE_TOKENS,
		.contents = e->contents,
	};

	identity_get_tokens(e->manifest, shape.tokens);
	if (e->stack) {
		const struct kv_params *p = kv_get_params(e->stack->kv);

		shape.type = p->type;
		shape.n_layers = p->n_layers;
		shape.n_head_kv = p->n_head_kv;
		shape.head_dim = p->head_dim;
		shape.n_page_bytes = kv_get_page_bytes(e->stack->kv);
	}
	return shape;
}

static int archive_write(struct archive *a, const void *data, uint64_t n_bytes, struct err *ret_err)
{
	const uint8_t *at = data;

	digest_add(&a->digest, data, n_bytes);
	while (n_bytes) {
		ssize_t n = write(a->fd, at, n_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_set(
				ret_err, errno, "session file: %s: %s", a->name, strerror(errno));
		at += n;
		n_bytes -= (uint64_t)n;
	}
	return 0;
}

/* The file was as long as its header says when it was opened. */
static int archive_read(struct archive *a, void *data, uint64_t n_bytes, struct err *ret_err)
{
	uint8_t *at = data;
	uint64_t n_left = n_bytes;

	while (n_left) {
		ssize_t n = read(a->fd, at, n_left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_set(
				ret_err, errno, "session file: %s: %s", a->name, strerror(errno));
		if (n == 0)
			return err_set(ret_err, EBADMSG,
				"session file: %s: it ends %" PRIu64 " bytes early", a->name,
				n_left);
		at += n;
		n_left -= (uint64_t)n;
	}
	digest_add(&a->digest, data, n_bytes);
	return 0;
}

static int archive_write_pages(struct archive *a, uint32_t slot, struct err *ret_err)
{
	uint32_t n_pages = snapshot_get_n_pages(&a->snapshot);
	uint32_t n;

	for (uint32_t i = 0; i < n_pages; i += n) {
		n = n_pages - i;
		if (n > page_io_get_max(a->io))
			n = page_io_get_max(a->io);
		int r = page_io_read(a->io, a->engine->stack->kv, slot, i, n, ret_err);
		if (!r)
			r = archive_write(a, page_io_get_bytes(a->io),
				n * a->snapshot.shape.n_page_bytes, ret_err);
		if (r)
			return r;
	}
	return 0;
}

static int archive_write_all(struct archive *a, const struct session *s, struct err *ret_err)
{
	static const uint8_t zeros[DIGEST_BYTES];
	uint64_t n_token_bytes = s->n_tokens * sizeof(*s->tokens);
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	uint8_t digest[DIGEST_BYTES];

	snapshot_write_header(&a->snapshot, header);
	int r = archive_write(a, header, sizeof(header), ret_err);
	if (!r)
		r = archive_write(a, s->tokens, n_token_bytes, ret_err);
	if (!r)
		r = archive_write(
			a, zeros, snapshot_get_token_bytes(&a->snapshot) - n_token_bytes, ret_err);
	if (!r)
		r = archive_write_pages(a, s->slot, ret_err);
	digest_get(&a->digest, digest);
	return r ? r : archive_write(a, digest, sizeof(digest), ret_err);
}

/* A device that is lost, or does not answer, is not to be asked again. */
static int archive_note_failure(const struct archive *a, int r, struct err *ret_err)
{
	struct engine *e = a->engine;

	if (r <= 0 && !(a->io && page_io_is_stuck(a->io)))
		return r;
	engine_set_failed(e, r, ret_err);
	*ret_err = e->error;
	return e->code;
}

static int archive_check(const struct engine *e, const struct message *m, struct err *ret_err)
{
	if (!e->params.store)
		return err_set(ret_err, ENOTSUP,
			"sessions: this worker saves none: it has no --sessions-dir");
	if (!m->archive.name)
		return err_set(ret_err, EINVAL, "session file: expected a name");
	return 0;
}

int archive_save(struct engine *e, struct message *m, struct err *ret_err)
{
	_cleanup_(archive_fini)
	struct archive a = {.engine = e, .name = m->archive.name, .fd = -1};
	const struct session *s = NULL;
	int r = archive_check(e, m, ret_err);

	if (!r)
		r = scheduler_borrow(e->scheduler, m->client, m->archive.session, ret_err, &s);
	if (r)
		return r;
	a.snapshot = (struct snapshot){
		.shape = archive_get_shape(e), .n_tokens = s->n_tokens, .n_cached = s->n_cached};
	if (s->n_cached)
		r = page_io_new(e->site.device, a.snapshot.shape.n_page_bytes, ret_err, &a.io);
	if (!r)
		r = store_create(e->params.store, m->scope, a.name, ret_err, &a.fd);
	if (r)
		return archive_note_failure(&a, r, ret_err);
	digest_init(&a.digest);
	r = archive_write_all(&a, s, ret_err);
	if (!r)
		r = store_commit(e->params.store, m->scope, a.name, ret_err);
	if (r) {
		store_abandon(e->params.store, m->scope, a.name);
		return archive_note_failure(&a, r, ret_err);
	}
	m->archive.n_tokens = s->n_tokens;
	m->archive.n_cached = s->n_cached;
	m->archive.n_bytes = snapshot_get_bytes(&a.snapshot);
	return 0;
}

static int archive_open(struct archive *a, const struct message *m, struct err *ret_err)
{
	uint8_t header[SNAPSHOT_HEADER_BYTES];
	uint64_t n_file_bytes = 0;
	int r = store_open(
		a->engine->params.store, m->scope, a->name, ret_err, &a->fd, &n_file_bytes);

	if (r)
		return r;
	uint64_t n_bytes = n_file_bytes < sizeof(header) ? n_file_bytes : sizeof(header);
	digest_init(&a->digest);
	r = archive_read(a, header, n_bytes, ret_err);
	if (!r)
		r = snapshot_read_header(header, n_bytes, n_file_bytes, ret_err, &a->snapshot);
	return r;
}

static int archive_read_tokens(struct archive *a, struct err *ret_err)
{
	uint64_t n_bytes = snapshot_get_token_bytes(&a->snapshot);

	a->tokens = calloc(1, n_bytes + 1);
	return a->tokens ? archive_read(a, a->tokens, n_bytes, ret_err) : -ENOMEM;
}

/* Pages that are of no use here are read all the same: the digest is of them too. */
static int archive_fill(void *userdata, uint32_t slot, struct err *ret_err)
{
	struct archive *a = userdata;
	uint64_t n_left = snapshot_get_n_pages(&a->snapshot) * a->snapshot.shape.n_page_bytes;
	uint64_t n_page_bytes = kv_get_page_bytes(a->engine->stack->kv);
	uint64_t n_most = page_io_get_max(a->io) * n_page_bytes;
	uint8_t digest[DIGEST_BYTES];
	uint8_t expected[DIGEST_BYTES];
	uint32_t first = 0;

	while (n_left) {
		uint64_t n_bytes = n_left < n_most ? n_left : n_most;
		uint32_t n = (uint32_t)(n_bytes / n_page_bytes);
		int r = archive_read(a, page_io_get_bytes(a->io), n_bytes, ret_err);

		if (!r && a->uses_pages)
			r = page_io_write(a->io, a->engine->stack->kv, slot, first, n, ret_err);
		if (r)
			return r;
		first += n;
		n_left -= n_bytes;
	}
	digest_get(&a->digest, expected);
	int r = archive_read(a, digest, sizeof(digest), ret_err);
	if (!r && memcmp(digest, expected, sizeof(digest)))
		r = err_set(ret_err, EBADMSG, "session file: %s: it is damaged", a->name);
	return r;
}

int archive_restore(struct engine *e, struct message *m, struct err *ret_err)
{
	_cleanup_(archive_fini)
	struct archive a = {.engine = e, .name = m->archive.name, .fd = -1};
	struct err why = ERR_NULL;
	int r = archive_check(e, m, ret_err);

	/* Where keys and values go. */
	if (!r && !e->stack)
		r = park_unpark(e, ret_err);
	if (!r)
		r = archive_open(&a, m, ret_err);
	if (r)
		return r;
	const struct snapshot_shape own = archive_get_shape(e);
	r = snapshot_compare(&a.snapshot, &own, &why);
	if (r < 0) {
		*ret_err = why;
		return r;
	}
	a.uses_pages = r == 0;
	r = archive_read_tokens(&a, ret_err);
	if (!r)
		r = page_io_new(e->site.device, own.n_page_bytes, ret_err, &a.io);
	const struct scheduler_restore_params params = {
		.client = m->client,
		.scope = engine_get_scope(e, m),
		.tokens = a.tokens,
		.n_tokens = a.snapshot.n_tokens,
		.n_cached = a.uses_pages ? a.snapshot.n_cached : 0,
		.fill = archive_fill,
		.userdata = &a,
	};
	if (!r)
		r = scheduler_restore(e->scheduler, &params, ret_err, &m->archive.session);
	if (r)
		return archive_note_failure(&a, r, ret_err);
	m->archive.n_tokens = params.n_tokens;
	m->archive.n_cached = params.n_cached;
	m->archive.n_bytes = snapshot_get_bytes(&a.snapshot);
	snprintf(m->archive.why, sizeof(m->archive.why), "%s", why.text);
	return 0;
}
