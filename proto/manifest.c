/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/manifest-check.h"
#include "proto/util/err.h"
#include "proto/util/fnv.h"

_Static_assert(sizeof(struct manifest_header) % MANIFEST_ALIGN == 0, "sections start aligned");
_Static_assert(sizeof(struct manifest_hparams) == 96, "part of the format");
_Static_assert(sizeof(struct manifest_alloc) == 16, "part of the format");
_Static_assert(sizeof(struct manifest_tensor) == 72, "part of the format");
_Static_assert(sizeof(struct manifest_tokenizer) == 72, "part of the format");
_Static_assert(sizeof(struct manifest_token) == 16, "part of the format");
_Static_assert(sizeof(struct manifest_merge) == 16, "part of the format");

/* Row size of each section, and how many rows it must have (0: any). */
static const struct {
	uint32_t n_row_bytes;
	uint32_t n_rows;
} manifest_sections[MANIFEST_N_SECTIONS] = {
	[MANIFEST_STRINGS] = {1, 0},
	[MANIFEST_HPARAMS] = {sizeof(struct manifest_hparams), 1},
	[MANIFEST_ALLOCS] = {sizeof(struct manifest_alloc), 0},
	[MANIFEST_TENSORS] = {sizeof(struct manifest_tensor), 0},
	[MANIFEST_TOKENIZER] = {sizeof(struct manifest_tokenizer), 1},
	[MANIFEST_TOKENS] = {sizeof(struct manifest_token), 0},
	[MANIFEST_TOKEN_HASH] = {sizeof(uint32_t), 0},
	[MANIFEST_BYTE_TOKENS] = {sizeof(uint32_t), 0},
	[MANIFEST_MERGES] = {sizeof(struct manifest_merge), 0},
	[MANIFEST_SPECIALS] = {sizeof(uint32_t), 0},
};

static int must_check check_header(
	const struct manifest_header *h, uint64_t n_bytes, struct err *ret_err)
{
	if (h->magic != MANIFEST_MAGIC)
		return err_set(ret_err, EINVAL, "manifest: magic: expected 0x%llx, found 0x%llx",
			MANIFEST_MAGIC, (unsigned long long)h->magic);
	if (h->version != MANIFEST_VERSION)
		return err_set(ret_err, EINVAL, "manifest: version: expected %d, found %u",
			MANIFEST_VERSION, h->version);
	if (h->n_sections != MANIFEST_N_SECTIONS)
		return err_set(ret_err, EINVAL, "manifest: sections: expected %d, found %u",
			MANIFEST_N_SECTIONS, h->n_sections);
	if (h->n_bytes != n_bytes)
		return err_set(ret_err, EINVAL, "manifest: size: expected %llu bytes, found %llu",
			(unsigned long long)h->n_bytes, (unsigned long long)n_bytes);
	for (unsigned i = 0; i < MANIFEST_N_SECTIONS; i++) {
		const struct manifest_section *s = &h->sections[i];
		uint64_t n_rows = s->n_bytes / manifest_sections[i].n_row_bytes;

		if (s->offset % MANIFEST_ALIGN != 0 || s->offset < sizeof(*h) ||
			s->offset > n_bytes || s->n_bytes > n_bytes - s->offset)
			return err_set(ret_err, EINVAL,
				"manifest: section %u: %llu bytes at %llu are outside the block's "
				"%llu "
				"or not aligned",
				i, (unsigned long long)s->n_bytes, (unsigned long long)s->offset,
				(unsigned long long)n_bytes);
		if (s->n_bytes % manifest_sections[i].n_row_bytes != 0 ||
			(manifest_sections[i].n_rows && n_rows != manifest_sections[i].n_rows))
			return err_set(ret_err, EINVAL,
				"manifest: section %u: %llu bytes are not the rows it must have", i,
				(unsigned long long)s->n_bytes);
	}
	return 0;
}

static const void *section_data(const struct manifest *m, enum manifest_section_kind kind)
{
	return (const uint8_t *)m->header + m->header->sections[kind].offset;
}

/* A section lies within MANIFEST_MAX_BYTES, so rows fit in 32 bits. */
static uint32_t section_rows(const struct manifest *m, enum manifest_section_kind kind)
{
	return (uint32_t)(m->header->sections[kind].n_bytes / manifest_sections[kind].n_row_bytes);
}

/* mask of a table of n slots; 0 for an empty one, whose callers look at n_vocab first. */
static uint32_t table_mask(uint32_t n)
{
	return n > 0 ? n - 1 : 0;
}

static void bind_sections(struct manifest *m)
{
	m->strings = section_data(m, MANIFEST_STRINGS);
	m->n_string_bytes = section_rows(m, MANIFEST_STRINGS);
	m->hparams = section_data(m, MANIFEST_HPARAMS);
	m->allocs = section_data(m, MANIFEST_ALLOCS);
	m->n_allocs = section_rows(m, MANIFEST_ALLOCS);
	m->tensors = section_data(m, MANIFEST_TENSORS);
	m->n_tensors = section_rows(m, MANIFEST_TENSORS);
	m->tokenizer = section_data(m, MANIFEST_TOKENIZER);
	m->tokens = section_data(m, MANIFEST_TOKENS);
	m->n_vocab = section_rows(m, MANIFEST_TOKENS);
	m->token_hash = section_data(m, MANIFEST_TOKEN_HASH);
	m->token_hash_mask = table_mask(section_rows(m, MANIFEST_TOKEN_HASH));
	m->byte_tokens = section_data(m, MANIFEST_BYTE_TOKENS);
	m->merges = section_data(m, MANIFEST_MERGES);
	m->merge_mask = table_mask(section_rows(m, MANIFEST_MERGES));
	m->specials = section_data(m, MANIFEST_SPECIALS);
	m->n_specials = section_rows(m, MANIFEST_SPECIALS);
}

int manifest_open_bytes(
	const void *data, uint64_t n_bytes, struct err *ret_err, struct manifest **ret_manifest)
{
	_cleanup_(cleanup_free)
	struct manifest *m = NULL;
	int r;

	if (n_bytes < sizeof(struct manifest_header) || n_bytes > MANIFEST_MAX_BYTES)
		return err_set(ret_err, EINVAL,
			"manifest: size: expected %zu to %d bytes, found %llu",
			sizeof(struct manifest_header), MANIFEST_MAX_BYTES,
			(unsigned long long)n_bytes);
	if ((uintptr_t)data % MANIFEST_ALIGN != 0)
		return err_set(
			ret_err, EINVAL, "manifest: not aligned to %d bytes", MANIFEST_ALIGN);
	r = check_header(data, n_bytes, ret_err);
	if (r < 0)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(ret_err, ENOMEM, "manifest: no memory");
	m->n_bytes = n_bytes;
	m->header = data;
	bind_sections(m);
	r = manifest_check(m, ret_err);
	if (r < 0)
		return r;
	*ret_manifest = TAKE_PTR(m);
	return 0;
}

int manifest_open(int fd, struct err *ret_err, struct manifest **ret_manifest)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	int r;

	if (seals < 0)
		return err_set(ret_err, EINVAL, "manifest: expected a memfd: %s", strerror(errno));
	if ((seals & wanted) != wanted)
		return err_set(ret_err, EINVAL, "manifest: seals: expected 0x%x, found 0x%x",
			(unsigned)wanted, (unsigned)seals);
	if (fstat(fd, &st) < 0)
		return err_set(ret_err, errno, "manifest: %s", strerror(errno));
	if (st.st_size < (off_t)sizeof(struct manifest_header) || st.st_size > MANIFEST_MAX_BYTES)
		return err_set(ret_err, EINVAL,
			"manifest: size: expected %zu to %d bytes, found %lld",
			sizeof(struct manifest_header), MANIFEST_MAX_BYTES, (long long)st.st_size);
	/* Private, because Linux before 6.7 refuses any shared mapping of a write-sealed memfd; the
	 * pages are shared all the same, nobody writes. */
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return err_set(ret_err, errno, "manifest: map of %lld bytes: %s",
			(long long)st.st_size, strerror(errno));
	r = manifest_open_bytes(map, (uint64_t)st.st_size, ret_err, ret_manifest);
	if (r < 0) {
		munmap(map, (size_t)st.st_size);
		return r;
	}
	(*ret_manifest)->map = map;
	return 0;
}

struct manifest *manifest_ref(struct manifest *m)
{
	atomic_fetch_add(&m->n_refs, 1);
	return m;
}

bool manifest_has_same_tokens(const struct manifest *a, const struct manifest *b)
{
	if (a->n_vocab != b->n_vocab)
		return false;
	for (uint32_t i = 0; i < a->n_vocab; i++) {
		struct manifest_string x = a->tokens[i].bytes, y = b->tokens[i].bytes;
		if (a->tokens[i].type != b->tokens[i].type || x.n_bytes != y.n_bytes ||
			memcmp(manifest_get_string(a, x), manifest_get_string(b, y), x.n_bytes))
			return false;
	}
	return true;
}

struct manifest *manifest_free(struct manifest *m)
{
	if (m && atomic_fetch_sub(&m->n_refs, 1) > 0)
		return NULL;
	if (m && m->map)
		munmap(m->map, m->n_bytes);
	free(m);
	return NULL;
}

const struct manifest_tensor *manifest_find_tensor(const struct manifest *m, const char *name)
{
	const size_t n_name = strlen(name);
	uint32_t low = 0, high = m->n_tensors;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		const struct manifest_tensor *t = &m->tensors[mid];
		size_t n = n_name < t->name.n_bytes ? n_name : t->name.n_bytes;
		int order = memcmp(name, manifest_get_string(m, t->name), n);

		if (order == 0)
			order = (n_name > t->name.n_bytes) - (n_name < t->name.n_bytes);
		if (order == 0)
			return t;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

uint32_t manifest_find_token(const struct manifest *m, const void *data, uint32_t n_bytes)
{
	if (m->n_vocab == 0)
		return MANIFEST_NONE;
	for (uint32_t at = manifest_hash_bytes(data, n_bytes);; at++) {
		uint32_t id = m->token_hash[at & m->token_hash_mask];

		if (id == MANIFEST_NONE)
			return MANIFEST_NONE;
		struct manifest_string s = m->tokens[id].bytes;
		if (s.n_bytes == n_bytes &&
			(n_bytes == 0 || !memcmp(manifest_get_string(m, s), data, n_bytes)))
			return id;
	}
}

const struct manifest_merge *manifest_find_merge(
	const struct manifest *m, uint32_t left, uint32_t right)
{
	if (m->n_vocab == 0)
		return NULL;
	for (uint32_t at = manifest_hash_pair(left, right);; at++) {
		const struct manifest_merge *e = &m->merges[at & m->merge_mask];

		if (e->left == MANIFEST_NONE)
			return NULL;
		if (e->left == left && e->right == right)
			return e;
	}
}

bool manifest_is_eog(const struct manifest *m, uint32_t token)
{
	for (uint32_t i = 0; i < m->tokenizer->n_eog; i++)
		if (m->tokenizer->eog[i] == token)
			return true;
	return false;
}

uint32_t manifest_hash_bytes(const void *data, uint32_t n_bytes)
{
	uint64_t hash = fnv_hash(data, n_bytes);

	return (uint32_t)(hash >> 32) ^ (uint32_t)hash;
}

uint32_t manifest_hash_pair(uint32_t left, uint32_t right)
{
	const uint32_t pair[2] = {left, right};

	return manifest_hash_bytes(pair, sizeof(pair));
}
