/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/layer/chain.h"
#include "tests/layer/mapping.h"
#include "tests/layer/memory-list.h"
#include "tests/layer/request.h"

int log_open(const char *path, struct log *ret_log)
{
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;

	if (path && fd < 0)
		return -errno;
	*ret_log = (struct log){.fd = fd};
	return 0;
}

void log_close(struct log *l)
{
	cleanup_close(&l->fd);
}

static void put_string(FILE *f, const char *text)
{
	fputc('"', f);
	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		/* Bytes above 127 as Latin-1: a path need not be UTF-8, JSON must. */
		if (*c < 0x20 || *c == '"' || *c == '\\' || *c > 0x7e)
			fprintf(f, "\\u%04x", *c);
		else
			fputc(*c, f);
	}
	fputc('"', f);
}

static const char *handle_name(VkExternalMemoryHandleTypeFlags type)
{
	switch (type) {
	case VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT: return "opaque-fd";
	case VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT: return "dma-buf";
	case VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT: return "host-allocation";
	case VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_MAPPED_FOREIGN_MEMORY_BIT_EXT:
		return "host-mapped-foreign";
	default: return "other";
	}
}

static const char *result_name(VkResult r)
{
	switch (r) {
	case VK_SUCCESS: return "VK_SUCCESS";
	case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
	case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
	case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
	case VK_ERROR_INVALID_EXTERNAL_HANDLE: return "VK_ERROR_INVALID_EXTERNAL_HANDLE";
	default: return "other";
	}
}

static void put_chain(FILE *f, const void *next)
{
	fputs(",\"next\":[", f);
	for (const VkBaseInStructure *s = next; s; s = s->pNext) {
		const char *name = chain_name(s->sType);

		if (name)
			fprintf(f, "\"%s\"", name);
		else
			fprintf(f, "\"%d\"", (int)s->sType);
		if (s->pNext)
			fputc(',', f);
	}
	fputc(']', f);
}

static void put_exports(FILE *f, VkExternalMemoryHandleTypeFlags types)
{
	const char *comma = "";

	fputs(",\"export\":[", f);
	for (VkExternalMemoryHandleTypeFlags bit = 1; bit && bit <= types; bit <<= 1) {
		if (types & bit) {
			fprintf(f, "%s\"%s\"", comma, handle_name(bit));
			comma = ",";
		}
	}
	fputc(']', f);
}

static void put_import(FILE *f, const struct request *r)
{
	const struct mapping *m = &r->mapping;

	fprintf(f, ",\"import\":{\"handle\":\"%s\",\"kind\":\"%s\",\"path\":",
		handle_name(r->import_type), mapping_kind_name(m->kind));
	put_string(f, m->path);
	fprintf(f, ",\"inode\":%" PRIu64, m->inode);
	if (r->pointer)
		fprintf(f,
			",\"pointer\":\"%p\",\"offset\":%" PRIu64 ",\"access\":\"%s\",\"areas\":%u",
			r->pointer, m->offset, m->is_writable ? "rw" : "ro", m->n_areas);
	else
		fprintf(f, ",\"fd\":%d", r->fd);
	fputc('}', f);
}

/* Begins a line in memory; *text and *n_text are valid after put_end. NULL without a log. */
static FILE *put_begin(const struct log *l, const char *call, char **text, size_t *n_text)
{
	FILE *f = l->fd < 0 ? NULL : open_memstream(text, n_text);

	if (f)
		fprintf(f, "{\"call\":\"%s\",\"pid\":%d", call, (int)getpid());
	return f;
}

static void put_end(const struct log *l, FILE *f, char **text, const size_t *n_text)
{
	fputs("}\n", f);
	/* A line that is not there fails the test that looks for it; but somebody should know why.
	 */
	if (fclose(f) || write(l->fd, *text, *n_text) != (ssize_t)*n_text)
		fprintf(stderr, "weightd layer: log: %m\n");
	free(*text);
}

void log_allocate(const struct log *l, const struct request *r, uint64_t id, uint32_t heap,
	VkResult result, const char *reason)
{
	char *text = NULL;
	size_t n_text = 0;
	FILE *f = put_begin(l, "allocate", &text, &n_text);

	if (!f)
		return;
	fprintf(f, ",\"id\":%" PRIu64 ",\"size\":%" PRIu64 ",\"type\":%u,\"heap\":%u", id,
		(uint64_t)r->info->allocationSize, r->info->memoryTypeIndex, heap);
	put_chain(f, r->info->pNext);
	fprintf(f, ",\"flags\":%u,\"dedicated\":%s", r->flags, r->is_dedicated ? "true" : "false");
	if (r->export_types)
		put_exports(f, r->export_types);
	if (r->import_type)
		put_import(f, r);
	fprintf(f, ",\"result\":\"%s\",\"code\":%d", result_name(result), (int)result);
	if (reason)
		fprintf(f, ",\"reason\":\"%s\"", reason);
	put_end(l, f, &text, &n_text);
}

void log_free(const struct log *l, const struct memory *m)
{
	char *text = NULL;
	size_t n_text = 0;
	FILE *f = put_begin(l, "free", &text, &n_text);

	if (!f)
		return;
	fprintf(f, ",\"id\":%" PRIu64 ",\"size\":%" PRIu64 ",\"type\":%u,\"heap\":%u", m->id,
		m->n_bytes, m->type_index, m->heap);
	put_end(l, f, &text, &n_text);
}

void log_map(const struct log *l, uint32_t type, uint32_t heap)
{
	char *text = NULL;
	size_t n_text = 0;
	FILE *f = put_begin(l, "map", &text, &n_text);

	if (!f)
		return;
	fprintf(f, ",\"type\":%u,\"heap\":%u", type, heap);
	put_end(l, f, &text, &n_text);
}

void log_export(const struct log *l, uint64_t id, VkExternalMemoryHandleTypeFlags type, int fd)
{
	char *text = NULL;
	size_t n_text = 0;
	struct mapping m;
	FILE *f = put_begin(l, "export", &text, &n_text);

	if (!f)
		return;
	fprintf(f, ",\"id\":%" PRIu64 ",\"handle\":\"%s\"", id, handle_name(type));
	if (mapping_of_fd(fd, &m) == 0)
		fprintf(f, ",\"inode\":%" PRIu64, m.inode);
	put_end(l, f, &text, &n_text);
}
