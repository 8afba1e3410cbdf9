/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/shipped-model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/manifest-writer.h"
#include "weightd/validate.h"

static void data_path(char ret_path[4096], const char *folder, const char *name)
{
	const char *data = getenv("WEIGHTD_TEST_DATA");

	assert_non_null(data);
	snprintf(ret_path, 4096, "%s/%s/%s", data, folder, name);
}

static void succeed(int r, const struct err *err)
{
	if (r < 0)
		fail_msg("%d: %s", r, err->text);
}

/* One allocation with all tensors behind each other. */
static int write_manifest(const struct gguf *g, const struct validate_model *model)
{
	struct err err = ERR_NULL;
	struct manifest_alloc alloc = {.placement = MANIFEST_PLACEMENT_STAGED};
	_cleanup_(cleanup_free)
	uint32_t *tensor_alloc = calloc(g->n_tensors, sizeof(uint32_t));
	_cleanup_(cleanup_free)
	uint64_t *tensor_offset = calloc(g->n_tensors, sizeof(uint64_t));
	uint64_t n_bytes;
	int fd = -1;

	assert_non_null(tensor_alloc);
	assert_non_null(tensor_offset);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		tensor_offset[i] = alloc.n_bytes;
		alloc.n_bytes += (g->tensors[i].n_bytes + 255) / 256 * 256;
	}
	struct manifest_writer_placement placement = {
		.n_allocs = 1,
		.allocs = &alloc,
		.tensor_alloc = tensor_alloc,
		.tensor_offset = tensor_offset,
	};
	succeed(manifest_writer_write(g, model, &placement, 1, &err, &fd, &n_bytes), &err);
	return fd;
}

struct manifest *shipped_model_open(void)
{
	struct err err = ERR_NULL;
	struct gguf *g = NULL;
	struct validate_model model;
	struct manifest *m = NULL;
	char path[4096];

	data_path(path, "models", "atlas-dense-q8_0.gguf");
	int file = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(file >= 0);
	succeed(gguf_read(file, &err, &g), &err);
	close(file);
	succeed(validate_model(g, &err, &model), &err);
	int fd = write_manifest(g, &model);
	succeed(manifest_open(fd, &err, &m), &err);
	close(fd);
	gguf_free(g);
	return m;
}

json_t *shipped_model_ref(const char *name)
{
	char path[4096];
	json_error_t why;

	data_path(path, "ref", name);
	/* JSON_ALLOW_NUL: one of the texts is U+0000. */
	json_t *ref = json_load_file(path, JSON_ALLOW_NUL, &why);
	if (!ref)
		fail_msg("%s:%d: %s", path, why.line, why.text);
	return ref;
}
