/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/adopt.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "weightd/export.h"
#include "weightd/source.h"
#include "weightd/sums.h"

int adopt_new(struct state_generation *record, struct adopt **ret_adopt)
{
	struct adopt *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->file_fd = -1;
	a->memfd = -1;
	a->residencies = calloc(record->n_residencies + 1, sizeof(*a->residencies));
	bool is_full = a->residencies;
	for (uint32_t i = 0; i < record->n_residencies && is_full; i++) {
		uint32_t n = record->residencies[i].n_allocs;
		a->residencies[i].manifest_fd = -1;
		a->residencies[i].fds = malloc(n * sizeof(int));
		a->residencies[i].opaques = malloc(n * sizeof(int));
		is_full = a->residencies[i].fds && a->residencies[i].opaques;
		for (uint32_t k = 0; k < n && is_full; k++)
			a->residencies[i].fds[k] = a->residencies[i].opaques[k] = -1;
	}
	if (!is_full) {
		for (uint32_t i = 0; i < record->n_residencies && a->residencies; i++) {
			free(a->residencies[i].fds);
			free(a->residencies[i].opaques);
		}
		free(a->residencies);
		free(a);
		return -ENOMEM;
	}
	a->record = *record;
	*record = (struct state_generation){0};
	*ret_adopt = a;
	return 0;
}

void adopt_forget(struct adopt *a, uint32_t residency)
{
	struct adopt_residency *have = &a->residencies[residency];

	for (uint32_t k = 0; k < a->record.residencies[residency].n_allocs; k++)
		have->fds[k] = have->opaques[k] = -1;
	have->manifest_fd = -1;
	have->is_lent = false;
}

struct adopt *adopt_free(struct adopt *a)
{
	if (!a)
		return NULL;
	for (uint32_t i = 0; i < a->record.n_residencies; i++) {
		struct adopt_residency *have = &a->residencies[i];
		if (have->is_lent)
			adopt_forget(a, i);
		for (uint32_t k = 0; k < a->record.residencies[i].n_allocs; k++) {
			cleanup_close(&have->fds[k]);
			cleanup_close(&have->opaques[k]);
		}
		cleanup_close(&have->manifest_fd);
		free(have->fds);
		free(have->opaques);
	}
	if (!a->is_source_lent) {
		cleanup_close(&a->file_fd);
		cleanup_close(&a->memfd);
	}
	state_generation_fini(&a->record);
	free(a->residencies);
	free(a);
	return NULL;
}

/* ---- judging ---- */

static int adopt_stat(int fd, const char *what, struct err *ret_err, struct stat *ret_st)
{
	if (fstat(fd, ret_st) < 0)
		return err_set(ret_err, EINVAL, "%s: %s", what, strerror(errno));
	return 0;
}

static int adopt_refuse(
	const char *what, const struct state_file *f, const struct stat *st, struct err *ret_err)
{
	return err_set(ret_err, EINVAL,
		"%s: expected file %llu:%llu of %llu bytes, found %llu:%llu of %lld", what,
		(unsigned long long)f->dev, (unsigned long long)f->inode,
		(unsigned long long)f->n_bytes, (unsigned long long)st->st_dev,
		(unsigned long long)st->st_ino, (long long)st->st_size);
}

/* A memfd of ours, and sealed as we do: nobody can have changed what the seals are for. */
static int adopt_check_memfd(
	int fd, const char *what, const struct state_file *f, int seals, struct err *ret_err)
{
	struct stat st;
	int rc = adopt_stat(fd, what, ret_err, &st);

	if (rc < 0)
		return rc;
	if (!state_file_is(f, &st))
		return adopt_refuse(what, f, &st, ret_err);
	int found = fcntl(fd, F_GET_SEALS);
	if (found < 0 || (found & seals) != seals)
		return err_set(ret_err, EINVAL, "%s: expected seals 0x%x, found 0x%x", what,
			(unsigned)seals, found < 0 ? 0 : (unsigned)found);
	return 0;
}

/* The state's figures are believed where nothing else tells them; here something does. */
static int adopt_check_figures(const struct state_generation *g, const struct state_residency *r,
	const struct manifest *m, struct err *ret_err)
{
	uint64_t n_placed_bytes[PLACEMENT_N] = {0};

	for (uint32_t i = 0; i < m->n_allocs; i++)
		if (r->allocs[i].buffer_bytes < m->allocs[i].n_bytes ||
			r->allocs[i].placement != m->allocs[i].placement)
			return err_set(ret_err, EINVAL,
				"manifest: allocation %u: expected %llu bytes or less, placement "
				"%u, "
				"found %llu, placement %u",
				i, (unsigned long long)r->allocs[i].buffer_bytes,
				r->allocs[i].placement, (unsigned long long)m->allocs[i].n_bytes,
				m->allocs[i].placement);
	for (uint32_t i = 0; i < m->n_tensors; i++)
		n_placed_bytes[m->allocs[m->tensors[i].alloc].placement] += m->tensors[i].n_bytes;
	for (uint32_t i = 0; i < PLACEMENT_N; i++)
		if (n_placed_bytes[i] != r->n_placed_bytes[i])
			return err_set(ret_err, EINVAL,
				"manifest: bytes of tensors in placement %u: expected %llu, found "
				"%llu",
				i, (unsigned long long)r->n_placed_bytes[i],
				(unsigned long long)n_placed_bytes[i]);
	if (g->has_memfd && g->n_tensors != m->n_tensors)
		return err_set(ret_err, EINVAL,
			"manifest: expected the %u tensors that are staged or not, found %u",
			g->n_tensors, m->n_tensors);
	return 0;
}

static int adopt_check_manifest(
	const struct adopt *a, uint32_t residency, int fd, struct err *ret_err)
{
	const struct state_residency *r = &a->record.residencies[residency];
	struct manifest *m = NULL;
	int rc = adopt_check_memfd(fd, "manifest", &r->manifest,
		F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, ret_err);

	if (rc == 0)
		rc = manifest_open(fd, ret_err, &m);
	if (rc == 0 && (m->header->generation != a->record.id || m->n_allocs != r->n_allocs ||
			       m->n_tensors != r->n_tensors))
		rc = err_set(ret_err, EINVAL,
			"manifest: expected generation %llu of %u tensors in %u allocations, found "
			"%llu of %u in %u",
			(unsigned long long)a->record.id, r->n_tensors, r->n_allocs,
			(unsigned long long)m->header->generation, m->n_tensors, m->n_allocs);
	if (rc == 0)
		rc = adopt_check_figures(&a->record, r, m, ret_err);
	manifest_free(m);
	return rc < 0 ? -EINVAL : 0;
}

bool adopt_is_same_file(const struct adopt *a, int fd)
{
	const struct state_file *f = &a->record.file;
	struct stat st;

	/* Its time of change moves while its pages are imported for writing. */
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && state_file_is(f, &st) &&
	       (a->record.is_file_writable || (st.st_mtim.tv_sec == f->mtime_s &&
						      (uint32_t)st.st_mtim.tv_nsec == f->mtime_ns));
}

static int adopt_check_file(const struct adopt *a, int fd, struct err *ret_err)
{
	struct stat st;
	int rc = adopt_stat(fd, "file", ret_err, &st);

	if (rc == 0 && !adopt_is_same_file(a, fd))
		rc = adopt_refuse("file", &a->record.file, &st, ret_err);
	return rc;
}

/*
 * An opaque descriptor is what the driver made it: a memfd of its own on the software driver, a
 * device's file elsewhere, which tells nothing but that.
 */
static int adopt_check_memory(int fd, uint64_t dev, uint64_t inode, struct err *ret_err)
{
	struct stat st;
	int rc = adopt_stat(fd, "memory", ret_err, &st);

	if (rc == 0 && (st.st_dev != dev || st.st_ino != inode))
		rc = err_set(ret_err, EINVAL, "memory: expected file %llu:%llu, found %llu:%llu",
			(unsigned long long)dev, (unsigned long long)inode,
			(unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	return rc;
}

/* ---- giving ---- */

static uint32_t adopt_find_slot(const struct adopt *a, uint32_t slot)
{
	uint32_t i = 0;

	while (i < a->record.n_residencies && a->record.residencies[i].slot != slot)
		i++;
	return i;
}

/* A worker has one of the two that an allocation may have, and does not say which. */
static int *adopt_judge_memory(struct adopt *a, uint32_t residency, uint32_t index, bool is_opaque,
	int fd, struct err *ret_err, int *ret_rc)
{
	const struct state_alloc *alloc = &a->record.residencies[residency].allocs[index];

	if (alloc->has_opaque &&
		adopt_check_memory(fd, alloc->opaque_dev, alloc->opaque_inode, NULL) == 0) {
		*ret_rc = 0;
		return &a->residencies[residency].opaques[index];
	}
	if (is_opaque && !alloc->has_opaque)
		return NULL;
	*ret_rc = adopt_check_memory(fd, alloc->dev, alloc->inode, ret_err);
	return &a->residencies[residency].fds[index];
}

/* Where the descriptor belongs, NULL: nowhere; and what it must be. */
static int *adopt_judge(
	struct adopt *a, const struct stash_name *name, int fd, struct err *ret_err, int *ret_rc)
{
	uint32_t i = adopt_find_slot(a, name->slot);
	bool is_of_residency = name->kind <= STASH_OPAQUE;
	enum stash_kind kind = name->kind;

	if (is_of_residency && (i == a->record.n_residencies ||
				       (kind != STASH_MANIFEST &&
					       name->index >= a->record.residencies[i].n_allocs)))
		return NULL;
	if (kind == STASH_MANIFEST) {
		*ret_rc = adopt_check_manifest(a, i, fd, ret_err);
		return &a->residencies[i].manifest_fd;
	}
	if (kind == STASH_ALLOC || kind == STASH_OPAQUE) {
		const struct state_alloc *alloc = &a->record.residencies[i].allocs[name->index];
		if (alloc->handle == EXPORT_OPAQUE_FD || alloc->handle == EXPORT_DMA_BUF)
			return adopt_judge_memory(
				a, i, name->index, kind == STASH_OPAQUE, fd, ret_err, ret_rc);
		if (kind == STASH_OPAQUE)
			return NULL;
		kind = alloc->handle == EXPORT_MEMFD ? STASH_MEMFD : STASH_FILE;
	}
	if (kind == STASH_FILE) {
		*ret_rc = adopt_check_file(a, fd, ret_err);
		return &a->file_fd;
	}
	if (!a->record.has_memfd)
		return NULL;
	*ret_rc = adopt_check_memfd(
		fd, "memfd", &a->record.memfd, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW, ret_err);
	return &a->memfd;
}

int adopt_give(struct adopt *a, const struct stash_name *name, int fd, struct err *ret_err)
{
	char text[STASH_NAME_BYTES];
	int rc = 0;
	int *at = adopt_judge(a, name, fd, ret_err, &rc);

	stash_name_print(name, text);
	if (!at)
		rc = err_set(ret_err, EINVAL, "nothing of that name was exported");
	if (rc == 0 && *at < 0)
		*at = TAKE_FD(fd);
	cleanup_close(&fd);
	if (rc < 0)
		err_prefix(ret_err, "%s", text);
	return rc;
}

bool adopt_is_whole(const struct adopt *a, uint32_t residency)
{
	const struct state_residency *r = &a->record.residencies[residency];
	const struct adopt_residency *have = &a->residencies[residency];
	bool is_whole = have->manifest_fd >= 0;

	for (uint32_t i = 0; i < r->n_allocs; i++) {
		switch (r->allocs[i].handle) {
		case EXPORT_MEMFD: is_whole &= a->memfd >= 0; break;
		case EXPORT_FILE: is_whole &= a->file_fd >= 0; break;
		default: is_whole &= have->fds[i] >= 0 || have->opaques[i] >= 0; break;
		}
	}
	return is_whole;
}

void adopt_visit(const struct adopt *a, adopt_fn fn, void *userdata)
{
	struct stash_name name = {.kind = STASH_FILE, .generation = a->record.id};

	if (a->file_fd >= 0)
		fn(&name, a->file_fd, userdata);
	name.kind = STASH_MEMFD;
	if (a->memfd >= 0)
		fn(&name, a->memfd, userdata);
	for (uint32_t i = 0; i < a->record.n_residencies; i++) {
		const struct state_residency *r = &a->record.residencies[i];
		name = (struct stash_name){
			.kind = STASH_MANIFEST, .generation = a->record.id, .slot = r->slot};
		if (a->residencies[i].manifest_fd >= 0)
			fn(&name, a->residencies[i].manifest_fd, userdata);
		name.kind = STASH_ALLOC;
		for (name.index = 0; name.index < r->n_allocs; name.index++)
			if (a->residencies[i].fds[name.index] >= 0)
				fn(&name, a->residencies[i].fds[name.index], userdata);
		name.kind = STASH_OPAQUE;
		for (name.index = 0; name.index < r->n_allocs; name.index++)
			if (a->residencies[i].opaques[name.index] >= 0)
				fn(&name, a->residencies[i].opaques[name.index], userdata);
	}
}

/* ---- what a load would have made ---- */

int adopt_make_source(struct adopt *a, struct source_account *account, struct err *ret_err,
	struct source **ret_source)
{
	const struct state_generation *g = &a->record;
	const struct source_remains remains = {.fd = a->file_fd,
		.pin_writable = g->is_file_writable,
		.n_file_bytes = g->file.n_bytes,
		.mtime = {.tv_sec = g->file.mtime_s, .tv_nsec = g->file.mtime_ns},
		.memfd = a->memfd,
		.staged = g->staged.data,
		.n_tensors = g->n_tensors};

	struct sums *sums = NULL;
	struct source *source = NULL;
	int rc = source_adopt(&remains, account, ret_err, &source);

	if (rc == 0 && g->sums.n_bytes > 0)
		rc = sums_unpack(g->sums.data, g->sums.n_bytes, ret_err, &sums);
	if (rc == 0 && sums && source_keep_sums(source, sums) < 0)
		rc = err_set(ret_err, ENOMEM, "adopt: out of memory");
	sums_free(sums);
	if (rc < 0) {
		source_unref(source);
		return rc;
	}
	cleanup_close(&a->file_fd);
	cleanup_close(&a->memfd);
	a->file_fd = source_get_fd(source);
	a->memfd = source_get_memfd(source);
	a->is_source_lent = true;
	*ret_source = source;
	return 0;
}

/* The dma-buf and the opaque descriptor beside it, or the one of them that came back. */
static void adopt_fill_memory(
	const struct state_alloc *from, int fd, int opaque, struct export_alloc *to)
{
	const struct export_fd main = {
		.handle = (enum export_handle)from->handle, .dev = from->dev, .inode = from->inode};
	const struct export_fd beside = {
		.handle = EXPORT_OPAQUE_FD, .dev = from->opaque_dev, .inode = from->opaque_inode};

	to->main = fd >= 0 ? main : beside;
	to->main.fd = fd >= 0 ? fd : opaque;
	if (fd < 0 || opaque < 0)
		return;
	to->opaque = beside;
	to->opaque.fd = opaque;
}

static int adopt_fill_alloc(const struct adopt *a, uint32_t residency, uint32_t index,
	const struct source *source, struct export_alloc *to)
{
	const struct state_alloc *from = &a->record.residencies[residency].allocs[index];
	const struct adopt_residency *have = &a->residencies[residency];

	to->n_bytes = from->n_bytes;
	to->buffer_bytes = from->buffer_bytes;
	to->memory_type_index = from->memory_type_index;
	to->is_dedicated = from->is_dedicated;
	to->placement = from->placement;
	to->file_offset = from->file_offset;
	to->is_writable = from->is_writable;
	if (from->handle != EXPORT_MEMFD && from->handle != EXPORT_FILE) {
		adopt_fill_memory(from, have->fds[index], have->opaques[index], to);
		return 0;
	}
	to->main = (struct export_fd){.handle = (enum export_handle)from->handle,
		.fd = from->handle == EXPORT_MEMFD ? source_get_memfd(source)
						   : source_get_shared_fd(source),
		.dev = from->dev,
		.inode = from->inode};
	return to->main.fd < 0 ? -EBADF : 0;
}

/* What it has of the adoption stays there. */
static void adopt_give_up_export(struct export *e)
{
	for (uint32_t i = 0; i < e->n_allocs; i++)
		e->allocs[i].main.fd = e->allocs[i].opaque.fd = -1;
	e->manifest_fd = -1;
	export_free(e);
}

int adopt_make_export(struct adopt *a, uint32_t residency, struct source *source,
	struct err *ret_err, struct export **ret_export)
{
	const struct state_residency *r = &a->record.residencies[residency];
	struct export *e = NULL;
	int rc = export_new(r->n_allocs, source, &e);

	if (rc < 0)
		return err_set(ret_err, -rc, "weights: out of memory");
	memcpy(e->architecture, r->architecture, sizeof(e->architecture));
	memcpy(e->format, r->format, sizeof(e->format));
	memcpy(e->n_placed_bytes, r->n_placed_bytes, sizeof(e->n_placed_bytes));
	e->n_parameters = r->n_parameters;
	e->is_inherited = true;
	e->n_tensors = r->n_tensors;
	e->n_unmet_bytes = r->n_unmet_bytes;
	e->manifest_bytes = r->manifest.n_bytes;
	e->manifest_fd = a->residencies[residency].manifest_fd;
	for (uint32_t i = 0; i < r->n_allocs && rc == 0; i++) {
		struct export_alloc *to = &e->allocs[i];
		rc = adopt_fill_alloc(a, residency, i, source, to);
		if (rc < 0)
			err_set(ret_err, -rc, "allocation %u: %s", i, strerror(-rc));
		e->weights_bytes += to->n_bytes;
		e->device_bytes += export_has_memory(to) ? to->n_bytes : 0;
		if (export_has_memory(to) && to->placement == MANIFEST_PLACEMENT_STAGED)
			e->host_bytes += to->n_bytes;
	}
	/* Which tensors those are nobody has told; what there is, is charged. */
	e->host_bytes += e->n_placed_bytes[MANIFEST_PLACEMENT_PINNED];
	if (rc == 0) {
		rc = source_charge(source, e->n_tensors, e->host_bytes);
		e->is_charged = rc == 0;
		if (rc < 0)
			err_set(ret_err, -rc, "weights: out of memory");
	}
	if (rc == 0 && r->sums.n_bytes > 0) {
		e->sums = malloc(r->sums.n_bytes);
		if (!e->sums)
			rc = err_set(ret_err, ENOMEM, "weights: out of memory");
	}
	if (rc < 0) {
		adopt_give_up_export(e);
		return rc;
	}
	a->residencies[residency].is_lent = true;
	if (e->sums) {
		memcpy(e->sums, r->sums.data, r->sums.n_bytes);
		e->n_sums_bytes = r->sums.n_bytes;
	}
	*ret_export = e;
	return 0;
}
