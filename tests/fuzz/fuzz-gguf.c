/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a model file from anywhere, with a mebibyte of data behind it: refused with a
 * sentence, or a model whose manifest every worker accepts.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "weightd/gguf.h"
#include "weightd/manifest-writer.h"
#include "weightd/validate.h"

enum { DATA_BYTES = 1 << 20 };

static void check_refusal(int r, const struct err *e)
{
	if (r < 0 && r != -ENOMEM && !e->text[0])
		abort();
}

static void open_manifest(int fd)
{
	struct manifest *m = NULL;
	struct err e = ERR_NULL;

	if (manifest_open(fd, &e, &m) < 0)
		abort();
	for (uint32_t i = 0; i < m->n_vocab; i++) {
		struct manifest_string s = m->tokens[i].bytes;
		uint32_t id = manifest_find_token(m, manifest_get_string(m, s), s.n_bytes);
		if (id == MANIFEST_NONE || (m->tokens[i].type == MANIFEST_TOKEN_NORMAL && id != i))
			abort();
	}
	manifest_free(m);
}

/* All tensors behind each other. */
static void write_manifest(const struct gguf *g, const struct validate_model *model)
{
	struct manifest_alloc alloc = {.placement = MANIFEST_PLACEMENT_STAGED};
	_cleanup_(cleanup_free)
	uint32_t *tensor_alloc = calloc(g->n_tensors, sizeof(*tensor_alloc));
	_cleanup_(cleanup_free)
	uint64_t *tensor_offset = calloc(g->n_tensors, sizeof(*tensor_offset));
	_cleanup_(cleanup_close)
	int fd = -1;
	struct err e = ERR_NULL;
	uint64_t n_bytes;

	if (!tensor_alloc || !tensor_offset)
		return;
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		tensor_offset[i] = alloc.n_bytes;
		alloc.n_bytes += g->tensors[i].n_bytes;
	}
	struct manifest_writer_placement placement = {
		.n_allocs = 1,
		.allocs = &alloc,
		.tensor_alloc = tensor_alloc,
		.tensor_offset = tensor_offset,
	};
	int r = manifest_writer_write(g, model, &placement, 1, &e, &fd, &n_bytes);
	check_refusal(r, &e);
	if (r == 0)
		open_manifest(fd);
}

static void run(const uint8_t *data, size_t n_bytes, uint64_t n_file_bytes)
{
	struct validate_model model;
	struct gguf *g = NULL;
	struct err e = ERR_NULL;
	int r = gguf_parse(data, n_bytes, n_file_bytes, &e, &g);

	check_refusal(r, &e);
	if (r == GGUF_MORE && n_bytes == n_file_bytes)
		abort();
	if (r != 0)
		return;
	r = validate_model(g, &e, &model);
	check_refusal(r, &e);
	if (r == 0)
		write_manifest(g, &model);
	gguf_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	run(data, n_bytes, n_bytes);
	run(data, n_bytes, n_bytes + DATA_BYTES);
	return 0;
}
