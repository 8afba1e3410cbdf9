/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "weightd/checksum.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/source.h"
#include "weightd/sum-file.h"
#include "weightd/sum.h"
#include "weightd/sums.h"

struct check {
	struct manifest *manifest;
	struct sums *sums;
	uint32_t *order; /* [n_tensors] by allocation and offset */
	uint64_t n_bytes;
	uint8_t description[IDENTITY_BYTES];
	uint8_t identity[IDENTITY_BYTES]; /* constant once has_identity is set */
	atomic_bool has_identity;
	atomic_uint_fast64_t clean_ns;
};

/* The pieces of one step, all of one allocation. */
struct check_batch {
	uint32_t alloc;
	uint32_t n;
	struct check_piece {
		uint32_t tensor;
		uint64_t piece;
	} pieces[CHECKSUM_MAX_PIECES];
	struct sum_range ranges[CHECKSUM_MAX_PIECES]; /* from the allocation's start */
	bool has_main;                                /* sums: of the allocation itself */
	uint64_t sums[CHECKSUM_MAX_PIECES];
	bool has_copy; /* of the source's copy of the file's window */
	uint64_t copy_sums[CHECKSUM_MAX_PIECES];
};

static void check_cleanup(struct check **c)
{
	check_free(*c);
}

static int check_compare(const void *a, const void *b, void *userdata)
{
	const struct manifest_tensor *tensors = userdata;
	const struct manifest_tensor *x = &tensors[*(const uint32_t *)a];
	const struct manifest_tensor *y = &tensors[*(const uint32_t *)b];

	if (x->alloc != y->alloc)
		return x->alloc < y->alloc ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int check_make_tables(struct check *c, struct err *ret_err)
{
	const struct manifest *m = c->manifest;
	_cleanup_(cleanup_free)
	uint64_t *n_bytes = calloc(m->n_tensors + 1, sizeof(*n_bytes));

	c->order = calloc(m->n_tensors + 1, sizeof(*c->order));
	if (!n_bytes || !c->order)
		return err_set(ret_err, ENOMEM, "%s", "checksums: out of memory");
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		c->order[i] = i;
		n_bytes[i] = m->tensors[i].n_bytes;
		c->n_bytes += n_bytes[i];
	}
	qsort_r(c->order, m->n_tensors, sizeof(*c->order), check_compare, (void *)m->tensors);
	int rc = sums_new(m->n_tensors, n_bytes, &c->sums);
	if (rc < 0)
		return err_set(ret_err, -rc, "checksums: %s", strerror(-rc));
	return 0;
}

static int check_judge_sums(const struct check *c, const struct sums *sums, struct err *ret_err)
{
	bool is_same = sums->n_tensors == c->sums->n_tensors;

	for (uint32_t i = 0; i < c->sums->n_tensors && is_same; i++)
		is_same = sums->tensors[i].n_bytes == c->sums->tensors[i].n_bytes;
	if (is_same)
		return 0;
	return err_set(ret_err, EINVAL, "%s", "checksums: they are those of another model");
}

int check_new(int manifest_fd, const uint8_t description[IDENTITY_BYTES], struct sums *sums,
	struct err *ret_err, struct check **ret_check)
{
	_cleanup_(check_cleanup)
	struct check *c = calloc(1, sizeof(*c));

	if (!c)
		return err_set(ret_err, ENOMEM, "%s", "checksums: out of memory");
	memcpy(c->description, description, IDENTITY_BYTES);
	int rc = manifest_open(manifest_fd, ret_err, &c->manifest);
	if (rc == 0)
		rc = check_make_tables(c, ret_err);
	if (rc == 0 && sums)
		rc = check_judge_sums(c, sums, ret_err);
	if (rc < 0)
		return rc;
	if (sums) {
		sums_free(c->sums);
		c->sums = sums;
	}
	*ret_check = TAKE_PTR(c);
	return 0;
}

struct check *check_free(struct check *c)
{
	if (!c)
		return NULL;
	manifest_free(c->manifest);
	sums_free(c->sums);
	free(c->order);
	free(c);
	return NULL;
}

const uint8_t *check_get_description(const struct check *c)
{
	return c->description;
}

const struct sums *check_get_sums(const struct check *c)
{
	return c->sums;
}

uint64_t check_get_bytes(const struct check *c)
{
	return c->n_bytes;
}

uint64_t check_get_clean_ns(const struct check *c)
{
	return atomic_load(&c->clean_ns);
}

bool check_get_identity(const struct check *c, uint8_t ret_identity[IDENTITY_BYTES])
{
	if (!atomic_load(&c->has_identity))
		return false;
	memcpy(ret_identity, c->identity, IDENTITY_BYTES);
	return true;
}

bool check_is_over(const struct check *c, const struct check_pass *pass)
{
	return pass->next >= c->manifest->n_tensors;
}

/* ---- one step ---- */

/* Some worker may have it from the source's copy of the file, and write to it there. */
static bool check_has_copy(const struct export *e, const struct manifest_tensor *t)
{
	const struct export_alloc *a = &e->allocs[t->alloc];

	return a->main.handle == EXPORT_FILE && a->placement == MANIFEST_PLACEMENT_PINNED &&
	       source_count_uncopied(e->source, a->file_offset + t->offset, t->n_bytes) == 0;
}

static bool check_is_skipped(
	const struct check *c, const struct export *e, uint32_t tensor, enum check_scope scope)
{
	const struct manifest_tensor *t = &c->manifest->tensors[tensor];
	bool is_in_file = e->allocs[t->alloc].main.handle == EXPORT_FILE;

	if (t->n_bytes == 0 || (is_in_file && scope == CHECK_MEMORY))
		return true;
	if (!is_in_file || scope != CHECK_WRITABLE || source_is_writable(e->source))
		return false;
	/* Against what the file's own bytes came to, once those have been summed. */
	return !sums_is_complete(c->sums) || !check_has_copy(e, t);
}

uint64_t check_count_bytes(const struct check *c, const struct export *e, enum check_scope scope)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < c->manifest->n_tensors; i++)
		if (!check_is_skipped(c, e, i, scope))
			n_bytes += c->manifest->tensors[i].n_bytes;
	return n_bytes;
}

/* Takes pieces, from where the pass is, and moves it on. */
static void check_gather(struct check *c, const struct export *e, uint32_t max_pieces,
	struct check_pass *pass, struct check_batch *b)
{
	const struct manifest *m = c->manifest;

	b->n = 0;
	b->has_main = true;
	for (; pass->next < m->n_tensors; pass->next++, pass->piece = 0) {
		uint32_t index = c->order[pass->next];
		const struct manifest_tensor *t = &m->tensors[index];
		if (check_is_skipped(c, e, index, pass->scope))
			continue;
		if (b->n > 0 && t->alloc != b->alloc)
			return;
		/* Windows are copied whole: what is true of one tensor is true of its neighbours.
		 */
		if (b->n > 0 && check_has_copy(e, t) != b->has_copy)
			return;
		b->alloc = t->alloc;
		b->has_copy = check_has_copy(e, t);
		b->has_main = !b->has_copy || pass->scope != CHECK_WRITABLE ||
			      source_is_writable(e->source);
		for (; pass->piece < sum_count_pieces(t->n_bytes); pass->piece++) {
			if (b->n == max_pieces)
				return;
			b->pieces[b->n] = (struct check_piece){index, pass->piece};
			b->ranges[b->n++] =
				(struct sum_range){t->offset + pass->piece * SUM_PIECE_BYTES,
					sum_get_piece_bytes(t->n_bytes, pass->piece)};
		}
	}
}

static int check_sum_copy(const struct export *e, const struct check_means *means,
	struct check_batch *b, struct err *ret_err)
{
	uint64_t inode, dev;
	int fd = source_get_copy(e->source, &inode, &dev);

	return sum_file_run(means->key, fd, b->ranges, b->n, ret_err, b->copy_sums);
}

static int check_sum_batch(const struct export *e, const struct check_means *means,
	struct check_batch *b, struct err *ret_err)
{
	const struct export_alloc *a = &e->allocs[b->alloc];

	if (!export_has_memory(a)) {
		for (uint32_t i = 0; i < b->n; i++)
			b->ranges[i].offset += a->file_offset;
		int fd_rc = 0;
		if (b->has_main)
			fd_rc = sum_file_run(
				means->key, a->main.fd, b->ranges, b->n, ret_err, b->sums);
		if (b->has_copy && fd_rc == 0)
			fd_rc = check_sum_copy(e, means, b, ret_err);
		return fd_rc;
	}
	if (!a->memory || !means->checksum)
		return err_set(ret_err, ENODEV, "%s", "checksums: the device was lost");
	int rc = checksum_run(means->checksum, a->memory, b->ranges, b->n, ret_err, b->sums);
	return rc == CHECKSUM_DEVICE_LOST ? CHECK_DEVICE_LOST : rc;
}

static void check_add_difference(
	struct check *c, const struct check_batch *b, uint32_t i, struct check_report *r)
{
	const struct manifest_tensor *t = &c->manifest->tensors[b->pieces[i].tensor];
	const struct gguf_label name = gguf_label((struct gguf_string){
		(const char *)manifest_get_string(c->manifest, t->name), t->name.n_bytes});
	uint64_t offset = b->pieces[i].piece * SUM_PIECE_BYTES;
	uint32_t k = r->n_differences;

	r->n_differing_bytes += b->ranges[i].n_bytes;
	/* Pieces of a tensor come one after the other. */
	if (k > 0 && !strcmp(r->differences[k - 1].tensor, name.text)) {
		r->differences[k - 1].n_bytes += b->ranges[i].n_bytes;
		return;
	}
	if (k == CHECK_MAX_DIFFERENCES)
		return;
	struct check_difference *d = &r->differences[r->n_differences++];
	*d = (struct check_difference){
		.alloc = b->alloc, .offset = offset, .n_bytes = b->ranges[i].n_bytes};
	snprintf(d->tensor, sizeof(d->tensor), "%s", name.text);
}

static void check_judge_batch(struct check *c, const struct export *e, const struct check_batch *b,
	struct check_pass *pass, struct check_report *r)
{
	for (uint32_t i = 0; i < b->n; i++) {
		const struct check_piece *p = &b->pieces[i];
		/* The file first: it says what is right where nothing is known yet. */
		bool is_main_good =
			!b->has_main || sums_put(c->sums, p->tensor, p->piece, b->sums[i]);
		bool is_copy_good =
			!b->has_copy || sums_put(c->sums, p->tensor, p->piece, b->copy_sums[i]);
		r->n_bytes += b->ranges[i].n_bytes * (uint64_t)(b->has_main + b->has_copy);
		if (is_main_good && is_copy_good)
			continue;
		if (!is_main_good)
			r->is_in_file |= e->allocs[b->alloc].main.handle == EXPORT_FILE;
		if (!pass->has_difference || pass->last_difference != p->tensor)
			r->n_tensors++;
		pass->has_difference = true;
		pass->last_difference = p->tensor;
		check_add_difference(c, b, i, r);
	}
}

static void check_end_pass(struct check *c, const struct export *e, const struct check_means *means,
	const struct check_pass *pass)
{
	if (pass->has_difference)
		return;
	if (!atomic_load(&c->has_identity) &&
		identity_make(means->key, c->description, c->sums, c->identity) == 0)
		atomic_store(&c->has_identity, true);
	if (check_count_bytes(c, e, pass->scope) >= check_count_bytes(c, e, CHECK_WRITABLE))
		atomic_store(&c->clean_ns, pass->start_ns);
}

int check_step(struct check *c, const struct export *e, const struct check_means *means,
	uint32_t max_pieces, struct check_pass *pass, struct err *ret_err,
	struct check_report *report)
{
	_cleanup_(cleanup_free)
	struct check_batch *b = malloc(sizeof(*b));
	uint64_t start_ns = clock_now_ns();
	int rc = 0;

	if (!b)
		return err_set(ret_err, ENOMEM, "%s", "checksums: out of memory");
	if (means->is_given_up && atomic_load(means->is_given_up))
		return err_set(ret_err, ECANCELED, "%s", "checksums: given up");
	if (pass->start_ns == 0)
		pass->start_ns = start_ns;
	check_gather(c, e, max_pieces, pass, b);
	if (b->n > 0)
		rc = check_sum_batch(e, means, b, ret_err);
	if (rc)
		return rc;
	check_judge_batch(c, e, b, pass, report);
	report->elapsed_ns += clock_now_ns() - start_ns;
	if (check_is_over(c, pass))
		check_end_pass(c, e, means, pass);
	return 0;
}

int check_run(struct check *c, const struct export *e, const struct check_means *means,
	enum check_scope scope, struct err *ret_err, struct check_report *ret_report)
{
	struct check_pass pass = {.scope = scope};
	int rc = 0;

	memset(ret_report, 0, sizeof(*ret_report));
	while (rc == 0 && !check_is_over(c, &pass))
		rc = check_step(c, e, means, CHECKSUM_MAX_PIECES, &pass, ret_err, ret_report);
	return rc;
}
