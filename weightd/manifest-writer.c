/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/manifest-writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/dtype.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/token-table.h"
#include "weightd/validate.h"

struct writer {
	const struct gguf *g;
	const struct validate_model *model;
	const struct manifest_writer_placement *placement;
	struct token_table tokens;
	struct manifest_header header;
	uint8_t *map;      /* [header.n_bytes] */
	uint64_t n_string; /* bytes of MANIFEST_STRINGS that are filled */
};

/* Places the sections one behind the other. */
static int lay_out(struct writer *w, struct err *e)
{
	const struct token_table *t = &w->tokens;
	uint64_t n_names = 0;

	for (uint64_t i = 0; i < w->g->n_tensors; i++)
		n_names += w->g->tensors[i].name.n_bytes;
	const uint64_t n_bytes[MANIFEST_N_SECTIONS] = {
		/* Each is at most the size of the metadata in memory: no sum overflows. */
		[MANIFEST_STRINGS] = t->n_string_bytes + w->model->architecture.n_bytes +
				     w->model->name.n_bytes + w->model->chat_template.n_bytes +
				     n_names,
		[MANIFEST_HPARAMS] = sizeof(struct manifest_hparams),
		[MANIFEST_ALLOCS] = w->placement->n_allocs * sizeof(struct manifest_alloc),
		[MANIFEST_TENSORS] = w->g->n_tensors * sizeof(struct manifest_tensor),
		[MANIFEST_TOKENIZER] = sizeof(struct manifest_tokenizer),
		[MANIFEST_TOKENS] = t->n_vocab * sizeof(struct manifest_token),
		[MANIFEST_TOKEN_HASH] = t->n_hash * sizeof(uint32_t),
		[MANIFEST_BYTE_TOKENS] = t->n_vocab > 0 ? sizeof(t->byte_tokens) : 0,
		[MANIFEST_MERGES] = t->n_merges * sizeof(struct manifest_merge),
		[MANIFEST_SPECIALS] = t->n_specials * sizeof(uint32_t),
	};
	uint64_t at = sizeof(struct manifest_header);

	for (int i = 0; i < MANIFEST_N_SECTIONS; i++) {
		if (!bytes_align(at, MANIFEST_ALIGN, &at))
			return -EOVERFLOW;
		w->header.sections[i] =
			(struct manifest_section){.offset = at, .n_bytes = n_bytes[i]};
		if (__builtin_add_overflow(at, n_bytes[i], &at) || at > MANIFEST_MAX_BYTES)
			return err_set(e, EINVAL,
				"manifest: expected at most %d bytes of names and tables, found "
				"more",
				MANIFEST_MAX_BYTES);
	}
	w->header.n_bytes = at;
	return 0;
}

static void *get_section(const struct writer *w, enum manifest_section_kind kind)
{
	return w->map + w->header.sections[kind].offset;
}

static struct manifest_string add_string(struct writer *w, const void *data, uint64_t n_bytes)
{
	struct manifest_string s = {.offset = (uint32_t)w->n_string, .n_bytes = (uint32_t)n_bytes};
	uint8_t *strings = get_section(w, MANIFEST_STRINGS);

	if (n_bytes > 0)
		memcpy(strings + w->n_string, data, n_bytes);
	w->n_string += n_bytes;
	return s;
}

static void fill_tensors(struct writer *w)
{
	struct manifest_tensor *out = get_section(w, MANIFEST_TENSORS);
	const struct manifest_writer_placement *p = w->placement;

	for (uint64_t i = 0; i < w->g->n_tensors; i++) {
		uint32_t from = w->g->tensor_index[i];
		const struct gguf_tensor *t = &w->g->tensors[from];
		uint32_t alloc = p->tensor_alloc[from];

		assert(alloc < p->n_allocs && t->n_bytes <= p->allocs[alloc].n_bytes &&
			p->tensor_offset[from] <= p->allocs[alloc].n_bytes - t->n_bytes);
		out[i] = (struct manifest_tensor){
			.name = add_string(w, t->name.data, t->name.n_bytes),
			.dtype = t->dtype->id,
			.n_dims = t->n_dims,
			.ne = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]},
			.alloc = alloc,
			.layout = MANIFEST_LAYOUT_RAW,
			.offset = p->tensor_offset[from],
			.n_bytes = t->n_bytes,
		};
	}
}

static void fill_model(struct writer *w)
{
	struct manifest_hparams *h = get_section(w, MANIFEST_HPARAMS);
	struct manifest_tokenizer *t = get_section(w, MANIFEST_TOKENIZER);
	const struct validate_model *m = w->model;

	*h = m->hparams;
	h->architecture = add_string(w, m->architecture.data, m->architecture.n_bytes);
	h->name = add_string(w, m->name.data, m->name.n_bytes);
	*t = m->tokenizer;
	t->chat_template = add_string(w, m->chat_template.data, m->chat_template.n_bytes);
}

static void fill_section(struct writer *w, enum manifest_section_kind kind, const void *data)
{
	uint64_t n = w->header.sections[kind].n_bytes;

	if (n > 0)
		memcpy(get_section(w, kind), data, n);
}

static void fill(struct writer *w)
{
	const struct token_table *t = &w->tokens;

	memcpy(w->map, &w->header, sizeof(w->header));
	/* First, so that the tokens' offsets hold as they are. */
	add_string(w, t->strings, t->n_string_bytes);
	fill_section(w, MANIFEST_TOKENS, t->tokens);
	fill_section(w, MANIFEST_TOKEN_HASH, t->hash);
	fill_section(w, MANIFEST_BYTE_TOKENS, t->byte_tokens);
	fill_section(w, MANIFEST_MERGES, t->merges);
	fill_section(w, MANIFEST_SPECIALS, t->specials);
	fill_section(w, MANIFEST_ALLOCS, w->placement->allocs);
	fill_model(w);
	fill_tensors(w);
}

static int refuse_memfd(struct err *e, const char *what)
{
	int errnum = errno;

	return err_set(e, errnum, "manifest: cannot %s a memfd: %s", what, strerror(errnum));
}

static int write_memfd(struct writer *w, struct err *e, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = memfd_create("weightd-manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return refuse_memfd(e, "create");
	/* Unlike ftruncate, this fails here instead of at the first write to the mapping. */
	if (fallocate(fd, 0, 0, (off_t)w->header.n_bytes) < 0)
		return refuse_memfd(e, "size");
	w->map = mmap(NULL, w->header.n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w->map == MAP_FAILED)
		return refuse_memfd(e, "map");
	fill(w);
	munmap(w->map, w->header.n_bytes);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return refuse_memfd(e, "seal");
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int manifest_writer_write(const struct gguf *g, const struct validate_model *model,
	const struct manifest_writer_placement *placement, uint64_t generation, struct err *ret_err,
	int *ret_fd, uint64_t *ret_n_bytes)
{
	struct writer w = {
		.g = g,
		.model = model,
		.placement = placement,
		.tokens = TOKEN_TABLE_NULL,
		.header = {.magic = MANIFEST_MAGIC,
			.version = MANIFEST_VERSION,
			.n_sections = MANIFEST_N_SECTIONS,
			.generation = generation},
	};

	int r = token_table_init(model, ret_err, &w.tokens);
	if (r == 0)
		r = lay_out(&w, ret_err);
	if (r == 0)
		r = write_memfd(&w, ret_err, ret_fd);
	if (r == 0)
		*ret_n_bytes = w.header.n_bytes;
	token_table_fini(&w.tokens);
	return r;
}
