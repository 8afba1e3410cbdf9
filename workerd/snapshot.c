/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"

enum {
	TOKEN_ALIGN = 32,
	RESERVED_BYTES = 8,
	HAS_IDENTITY = 1,
	HAS_FILE = 2,
	DIGEST_AT = SNAPSHOT_HEADER_BYTES - DIGEST_BYTES,
};

static const uint8_t magic[8] = "WDSESSN";
static const uint8_t zeros[DIGEST_BYTES];

static void snapshot_put(uint8_t **at, const void *data, uint32_t n_bytes)
{
	memcpy(*at, data, n_bytes);
	*at += n_bytes;
}

static void snapshot_put_u32(uint8_t **at, uint32_t value)
{
	snapshot_put(at, &value, sizeof(value));
}

static void snapshot_digest(const uint8_t *data, uint64_t n_bytes, uint8_t ret[DIGEST_BYTES])
{
	struct digest d;

	digest_init(&d);
	digest_add(&d, data, n_bytes);
	digest_get(&d, ret);
}

void snapshot_write_header(const struct snapshot *s, uint8_t ret_header[SNAPSHOT_HEADER_BYTES])
{
	const struct snapshot_shape *shape = &s->shape;
	const struct weights_client_contents *c = &shape->contents;
	uint8_t *at = ret_header;

	memset(ret_header, 0, SNAPSHOT_HEADER_BYTES);
	snapshot_put(&at, magic, sizeof(magic));
	snapshot_put_u32(&at, SNAPSHOT_VERSION);
	snapshot_put_u32(&at, SNAPSHOT_HEADER_BYTES);
	snapshot_put_u32(&at, s->n_tokens);
	snapshot_put_u32(&at, s->n_cached);
	snapshot_put_u32(&at, shape->type);
	snapshot_put_u32(&at, shape->n_layers);
	snapshot_put_u32(&at, shape->n_head_kv);
	snapshot_put_u32(&at, shape->head_dim);
	snapshot_put_u32(&at, shape->n_page_tokens);
	snapshot_put_u32(&at, (c->has_identity ? HAS_IDENTITY : 0) | (c->has_file ? HAS_FILE : 0));
	snapshot_put(&at, &shape->n_page_bytes, sizeof(shape->n_page_bytes));
	snapshot_put(&at, c->has_identity ? c->identity : zeros, DIGEST_BYTES);
	snapshot_put(&at, shape->tokens, DIGEST_BYTES);
	snapshot_put(&at, c->has_file ? c->file : zeros, DIGEST_BYTES);
	snapshot_digest(ret_header, DIGEST_AT, ret_header + DIGEST_AT);
}

uint64_t snapshot_get_token_bytes(const struct snapshot *s)
{
	uint64_t n_bytes = (uint64_t)s->n_tokens * sizeof(uint32_t);

	return (n_bytes + TOKEN_ALIGN - 1) / TOKEN_ALIGN * TOKEN_ALIGN;
}

uint32_t snapshot_get_n_pages(const struct snapshot *s)
{
	uint32_t n = s->shape.n_page_tokens;

	return s->n_cached / n + !!(s->n_cached % n);
}

uint64_t snapshot_get_bytes(const struct snapshot *s)
{
	return SNAPSHOT_HEADER_BYTES + snapshot_get_token_bytes(s) +
	       snapshot_get_n_pages(s) * s->shape.n_page_bytes + DIGEST_BYTES;
}

/* The fields behind magic and version; data has a whole header. */
static bool snapshot_take(struct bytes *b, struct snapshot *s)
{
	struct snapshot_shape *shape = &s->shape;
	struct weights_client_contents *c = &shape->contents;
	uint32_t flags = 0;
	bool is_whole = bytes_take_u32(b, &s->n_tokens) && bytes_take_u32(b, &s->n_cached) &&
			bytes_take_u32(b, &shape->type) && bytes_take_u32(b, &shape->n_layers) &&
			bytes_take_u32(b, &shape->n_head_kv) &&
			bytes_take_u32(b, &shape->head_dim) &&
			bytes_take_u32(b, &shape->n_page_tokens) && bytes_take_u32(b, &flags) &&
			bytes_take_u64(b, &shape->n_page_bytes);

	if (!is_whole || bytes_left(b) < 3 * DIGEST_BYTES + RESERVED_BYTES)
		return false;
	c->has_identity = flags & HAS_IDENTITY;
	c->has_file = flags & HAS_FILE;
	memcpy(c->identity, bytes_take(b, DIGEST_BYTES), DIGEST_BYTES);
	memcpy(shape->tokens, bytes_take(b, DIGEST_BYTES), DIGEST_BYTES);
	memcpy(c->file, bytes_take(b, DIGEST_BYTES), DIGEST_BYTES);
	return !(flags & ~(uint32_t)(HAS_IDENTITY | HAS_FILE)) &&
	       (c->has_identity || !memcmp(c->identity, zeros, DIGEST_BYTES)) &&
	       (c->has_file || !memcmp(c->file, zeros, DIGEST_BYTES)) &&
	       !memcmp(bytes_take(b, RESERVED_BYTES), zeros, RESERVED_BYTES);
}

static int snapshot_check_sizes(
	const struct snapshot *s, uint64_t n_file_bytes, struct err *ret_err)
{
	uint64_t n_bytes;

	if (s->n_tokens > SNAPSHOT_MAX_TOKENS || s->n_cached > s->n_tokens)
		return err_set(ret_err, EBADMSG,
			"session file: %" PRIu32 " tokens, %" PRIu32 " with keys and values: "
			"expected at most %d",
			s->n_tokens, s->n_cached, SNAPSHOT_MAX_TOKENS);
	if (!s->shape.n_page_tokens)
		return err_set(ret_err, EBADMSG, "session file: pages of 0 tokens");
	if (__builtin_mul_overflow(snapshot_get_n_pages(s), s->shape.n_page_bytes, &n_bytes) ||
		n_bytes > n_file_bytes || snapshot_get_bytes(s) != n_file_bytes)
		return err_set(ret_err, EBADMSG,
			"session file: %" PRIu32 " tokens and %" PRIu32 " pages of %" PRIu64
			" bytes are not the %" PRIu64 " bytes that it has",
			s->n_tokens, snapshot_get_n_pages(s), s->shape.n_page_bytes, n_file_bytes);
	return 0;
}

int snapshot_read_header(const uint8_t *data, uint64_t n_bytes, uint64_t n_file_bytes,
	struct err *ret_err, struct snapshot *ret_snapshot)
{
	struct bytes b = {.data = data, .n_bytes = n_bytes};
	const uint8_t *start = bytes_take(&b, sizeof(magic));
	struct snapshot s = {0};
	uint8_t digest[DIGEST_BYTES];
	uint32_t version = 0;
	uint32_t n_header = 0;

	if (!start || memcmp(start, magic, sizeof(magic)))
		return err_set(ret_err, EBADMSG, "session file: it is none");
	if (bytes_take_u32(&b, &version) && version != SNAPSHOT_VERSION)
		return err_set(ret_err, ENOTSUP,
			"session file: expected version %d, found %" PRIu32, SNAPSHOT_VERSION,
			version);
	if (n_bytes < SNAPSHOT_HEADER_BYTES)
		return err_set(ret_err, EBADMSG,
			"session file: expected a header of %d bytes, found %" PRIu64,
			SNAPSHOT_HEADER_BYTES, n_bytes);
	snapshot_digest(data, DIGEST_AT, digest);
	if (memcmp(digest, data + DIGEST_AT, DIGEST_BYTES) || !bytes_take_u32(&b, &n_header) ||
		n_header != SNAPSHOT_HEADER_BYTES || !snapshot_take(&b, &s))
		return err_set(ret_err, EBADMSG, "session file: its header is damaged");
	int r = snapshot_check_sizes(&s, n_file_bytes, ret_err);
	if (!r)
		*ret_snapshot = s;
	return r;
}

int snapshot_compare(
	const struct snapshot *s, const struct snapshot_shape *own, struct err *ret_why)
{
	const struct snapshot_shape *its = &s->shape;

	if (memcmp(its->tokens, own->tokens, DIGEST_BYTES))
		return err_set(ret_why, ESTALE,
			"session file: of another model, whose token ids mean something else");
	if (!s->n_cached)
		return 0;
	if (!weights_client_has_same_contents(&its->contents, &own->contents)) {
		err_set(ret_why, ESTALE,
			"its keys and values are of weights that are not known to be the same");
		return SNAPSHOT_TOKENS_ONLY;
	}
	if (its->type != own->type || its->n_layers != own->n_layers ||
		its->n_head_kv != own->n_head_kv || its->head_dim != own->head_dim ||
		its->n_page_tokens != own->n_page_tokens ||
		its->n_page_bytes != own->n_page_bytes) {
		err_set(ret_why, ESTALE,
			"its keys and values are kept in another way than this worker's");
		return SNAPSHOT_TOKENS_ONLY;
	}
	return 0;
}
