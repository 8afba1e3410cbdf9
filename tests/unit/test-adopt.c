/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a generation that comes back: each is what the state says, or is not taken. */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "tests/unit/manifest-block.h"
#include "tests/unit/state-sample.h"
#include "weightd/adopt.h"
#include "weightd/export.h"
#include "weightd/source.h"

enum {
	GENERATION = 7, /* of manifest_block_build */
	N_TENSORS = 3,  /* and its tensors */
	MEMFD_BYTES = 3 * 4096,
	ALL_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
	SIZE_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW,
};

static int make_memfd(const void *data, uint64_t n_bytes, int seals)
{
	int fd = memfd_create("adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
	if (data)
		assert_int_equal(pwrite(fd, data, n_bytes, 0), n_bytes);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int make_manifest(uint64_t generation)
{
	struct manifest_block b;

	manifest_block_build(&b);
	b.header->generation = generation;
	/* Those of state_sample. */
	b.allocs[0].placement = MANIFEST_PLACEMENT_STAGED;
	b.allocs[1].placement = MANIFEST_PLACEMENT_DEVICE;
	return make_memfd(b.data, b.n_bytes, ALL_SEALS);
}

/* What make_manifest's tensors come to. */
static void count_placed(uint64_t ret_n_placed_bytes[PLACEMENT_N])
{
	struct manifest_block b;

	manifest_block_build(&b);
	memset(ret_n_placed_bytes, 0, PLACEMENT_N * sizeof(*ret_n_placed_bytes));
	for (uint32_t i = 0; i < N_TENSORS; i++)
		ret_n_placed_bytes[b.tensors[i].alloc == 0 ? MANIFEST_PLACEMENT_STAGED
							   : MANIFEST_PLACEMENT_DEVICE] +=
			b.tensors[i].n_bytes;
}

/* The originals: what an earlier weightd had. */
struct left {
	int manifest;
	int memory;
	int opaque; /* beside memory */
	int memfd;
	int file;
	struct adopt *adopt;
};

static struct state_file file_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return state_file_from_stat(&st);
}

static void open_left(struct left *l)
{
	struct state_generation g = {0};

	l->manifest = make_manifest(GENERATION);
	l->memory = make_memfd(NULL, 5000, F_SEAL_SEAL);
	l->memfd = make_memfd(NULL, MEMFD_BYTES, SIZE_SEALS);
	l->file = make_memfd("a model", 7, F_SEAL_SEAL);
	state_sample_generation(&g, GENERATION);
	g.file = file_of(l->file);
	g.memfd = file_of(l->memfd);
	struct state_residency *r = &g.residencies[0];
	r->manifest = g.residencies[1].manifest = file_of(l->manifest);
	r->n_tensors = g.residencies[1].n_tensors = g.n_tensors = N_TENSORS;
	g.staged.n_bytes = 1;
	count_placed(r->n_placed_bytes);
	r->allocs[1].dev = file_of(l->memory).dev;
	r->allocs[1].inode = file_of(l->memory).inode;
	l->opaque = make_memfd(NULL, 5000, F_SEAL_SEAL);
	r->allocs[1].opaque_dev = file_of(l->opaque).dev;
	r->allocs[1].opaque_inode = file_of(l->opaque).inode;
	assert_int_equal(adopt_new(&g, &l->adopt), 0);
	assert_null(g.residencies);
}

static void close_left(struct left *l)
{
	l->adopt = adopt_free(l->adopt);
	close(l->manifest);
	close(l->memory);
	close(l->opaque);
	close(l->memfd);
	close(l->file);
}

/* A duplicate of fd under the name. */
static int give(struct left *l, const char *text, int fd, struct err *ret_err)
{
	struct stash_name name;

	assert_int_equal(stash_name_parse(text, &name), 0);
	return adopt_give(l->adopt, &name, fcntl(fd, F_DUPFD_CLOEXEC, 0), ret_err);
}

static void give_all(struct left *l)
{
	struct err e = ERR_NULL;

	assert_int_equal(give(l, "g7.manifest.0", l->manifest, &e), 0);
	assert_int_equal(give(l, "g7.alloc.0.1", l->memory, &e), 0);
	assert_int_equal(give(l, "g7.memfd", l->memfd, &e), 0);
	assert_int_equal(give(l, "g7.file", l->file, &e), 0);
}

static void is_whole_when_all_is_there(void **state)
{
	struct left l;
	struct err e = ERR_NULL;

	(void)state;
	open_left(&l);
	assert_false(adopt_is_whole(l.adopt, 0));
	assert_int_equal(give(&l, "g7.manifest.0", l.manifest, &e), 0);
	assert_int_equal(give(&l, "g7.alloc.0.1", l.memory, &e), 0);
	assert_false(adopt_is_whole(l.adopt, 0));
	/* A worker sends windows by their index. */
	assert_int_equal(give(&l, "g7.alloc.0.0", l.memfd, &e), 0);
	assert_true(adopt_is_whole(l.adopt, 0));
	assert_true(l.adopt->memfd >= 0);
	assert_false(adopt_is_whole(l.adopt, 1));
	/* Twice is closed, as the count of this case's descriptors shows. */
	give_all(&l);
	close_left(&l);
}

static void refuse(struct left *l, const char *name, int fd, const char *text)
{
	struct err e = ERR_NULL;

	assert_int_equal(give(l, name, fd, &e), -EINVAL);
	if (!strstr(e.text, text))
		fail_msg("expected \"%s\", found \"%s\"", text, e.text);
	close(fd);
}

static void takes_nothing_else(void **state)
{
	struct left l;
	struct manifest_block b;

	(void)state;
	open_left(&l);
	manifest_block_build(&b);
	/* The same bytes in another file are another file. */
	refuse(&l, "g7.manifest.0", make_manifest(GENERATION), "g7.manifest.0: manifest: expected");
	refuse(&l, "g7.alloc.0.1", make_memfd(NULL, 5000, F_SEAL_SEAL), "memory: expected");
	refuse(&l, "g7.memfd", make_memfd(NULL, MEMFD_BYTES, SIZE_SEALS), "memfd: expected");
	refuse(&l, "g7.alloc.0.0", make_memfd(NULL, MEMFD_BYTES, SIZE_SEALS), "memfd: expected");
	refuse(&l, "g7.file", make_memfd("a model", 7, F_SEAL_SEAL), "file: expected");
	refuse(&l, "g7.alloc.0.2", make_memfd(NULL, 1, F_SEAL_SEAL), "nothing of that name");
	refuse(&l, "g7.alloc.1.0", make_memfd(NULL, 1, F_SEAL_SEAL), "nothing of that name");
	refuse(&l, "g7.manifest.1", make_manifest(GENERATION), "nothing of that name");
	assert_false(adopt_is_whole(l.adopt, 0));
	give_all(&l);
	assert_true(adopt_is_whole(l.adopt, 0));
	close_left(&l);
}

/* The right file, but what the seals are for may have happened. */
static void looks_at_seals_and_contents(void **state)
{
	struct manifest_block b;
	struct left l;
	int fd;

	(void)state;
	open_left(&l);
	manifest_block_build(&b);
	fd = make_memfd(b.data, b.n_bytes, F_SEAL_SHRINK | F_SEAL_GROW);
	l.adopt->record.residencies[0].manifest = file_of(fd);
	refuse(&l, "g7.manifest.0", fd, "seals");
	fd = make_memfd(NULL, MEMFD_BYTES, F_SEAL_SHRINK);
	l.adopt->record.memfd = file_of(fd);
	refuse(&l, "g7.memfd", fd, "seals");
	fd = make_manifest(GENERATION + 1);
	l.adopt->record.residencies[0].manifest = file_of(fd);
	refuse(&l, "g7.manifest.0", fd, "found 8 of 3");
	memset(b.data, 0, 16);
	fd = make_memfd(b.data, b.n_bytes, ALL_SEALS);
	l.adopt->record.residencies[0].manifest = file_of(fd);
	refuse(&l, "g7.manifest.0", fd, "g7.manifest.0: ");
	close_left(&l);
}

/* What the state counts is what the manifest's tensors come to. */
static void looks_at_the_figures(void **state)
{
	struct left l;
	struct err e = ERR_NULL;

	(void)state;
	open_left(&l);
	struct state_residency *r = &l.adopt->record.residencies[0];
	r->allocs[0].buffer_bytes = 4095;
	refuse(&l, "g7.manifest.0", dup(l.manifest), "allocation 0: expected 4095 bytes or less");
	r->allocs[0].buffer_bytes = 4096;
	r->allocs[1].placement = MANIFEST_PLACEMENT_PAGED;
	refuse(&l, "g7.manifest.0", dup(l.manifest), "allocation 1: expected");
	r->allocs[1].placement = MANIFEST_PLACEMENT_DEVICE;
	r->n_placed_bytes[MANIFEST_PLACEMENT_PINNED]++;
	refuse(&l, "g7.manifest.0", dup(l.manifest), "bytes of tensors in placement 2: expected 1");
	r->n_placed_bytes[MANIFEST_PLACEMENT_PINNED]--;
	l.adopt->record.n_tensors++;
	refuse(&l, "g7.manifest.0", dup(l.manifest), "expected the 4 tensors that are staged");
	l.adopt->record.n_tensors--;
	r->n_allocs--;
	refuse(&l, "g7.manifest.0", dup(l.manifest), "expected generation 7");
	r->n_allocs++;
	assert_int_equal(give(&l, "g7.manifest.0", l.manifest, &e), 0);
	close_left(&l);
}

static void knows_a_changed_file(void **state)
{
	struct left l;
	struct err e = ERR_NULL;

	(void)state;
	open_left(&l);
	assert_true(adopt_is_same_file(l.adopt, l.file));
	assert_false(adopt_is_same_file(l.adopt, l.memfd));
	usleep(20000); /* the clock of file times is coarse */
	assert_int_equal(pwrite(l.file, "b", 1, 0), 1);
	assert_false(adopt_is_same_file(l.adopt, l.file));
	assert_int_equal(give(&l, "g7.file", l.file, &e), -EINVAL);
	/* Its time moves by itself while its pages are imported for writing. */
	l.adopt->record.is_file_writable = true;
	assert_true(adopt_is_same_file(l.adopt, l.file));
	close_left(&l);
}

static void count(const struct stash_name *name, int fd, void *userdata)
{
	char text[STASH_NAME_BYTES];

	stash_name_print(name, text);
	assert_true(fcntl(fd, F_GETFD) >= 0);
	strcat(userdata, text);
	strcat(userdata, " ");
}

static uint32_t count_open(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void makes_what_a_load_made(void **state)
{
	struct source_account account = {0};
	struct source *source = NULL;
	struct export *e = NULL;
	char names[256] = "";
	uint8_t *bits = NULL;
	uint32_t n_tensors = 0;
	struct err err = ERR_NULL;
	struct left l;

	(void)state;
	open_left(&l);
	give_all(&l);
	adopt_visit(l.adopt, count, names);
	assert_string_equal(names, "g7.file g7.memfd g7.manifest.0 g7.alloc.0.1 ");
	uint32_t n_open = count_open();
	assert_int_equal(adopt_make_source(l.adopt, &account, &err, &source), 0);
	assert_int_equal(source_get_bytes(source), 7);
	assert_int_equal(source_check(source, &err), 0);
	assert_int_equal(source_copy_staged(source, &bits, &n_tensors), 0);
	assert_int_equal(n_tensors, N_TENSORS);
	assert_memory_equal(bits, "\x05", 1);
	assert_int_equal(adopt_make_export(l.adopt, 0, source, &err, &e), 0);
	assert_string_equal(e->architecture, "qwen3");
	assert_int_equal(e->n_allocs, 2);
	assert_int_equal(e->weights_bytes, 8192 + 5000);
	assert_int_equal(e->device_bytes, 5000);
	assert_int_equal(e->n_sums_bytes, 4);
	assert_memory_equal(e->sums, "sums", 4);
	assert_int_equal(e->allocs[0].main.handle, EXPORT_MEMFD);
	assert_int_equal(e->allocs[0].file_offset, 4096);
	assert_int_equal(e->allocs[0].main.fd, source_get_memfd(source));
	assert_int_equal(e->allocs[1].memory_type_index, 7);
	assert_true(e->allocs[1].is_dedicated);
	struct stat st;
	assert_int_equal(fstat(e->allocs[1].main.fd, &st), 0);
	assert_int_equal(st.st_ino, file_of(l.memory).inode);
	/* The descriptor for workers is new; the others are those that came, and are still told. */
	assert_int_equal(count_open(), n_open + 1);
	assert_int_equal(e->allocs[1].main.fd, l.adopt->residencies[0].fds[1]);
	names[0] = '\0';
	adopt_visit(l.adopt, count, names);
	assert_string_equal(names, "g7.file g7.memfd g7.manifest.0 g7.alloc.0.1 ");
	free(bits);
	export_free(e);
	source_unref(source);
	close_left(&l);
}

/* Either descriptor of a memory is enough, and a worker does not say which it has. */
static void takes_the_opaque_one_beside_a_dma_buf(void **state)
{
	struct source_account account = {0};
	struct source *source = NULL;
	struct export *e = NULL;
	char names[256] = "";
	struct err err = ERR_NULL;
	struct left l;

	(void)state;
	open_left(&l);
	assert_int_equal(give(&l, "g7.manifest.0", l.manifest, &err), 0);
	assert_int_equal(give(&l, "g7.memfd", l.memfd, &err), 0);
	assert_int_equal(give(&l, "g7.alloc.0.1", l.opaque, &err), 0);
	assert_true(adopt_is_whole(l.adopt, 0));
	adopt_visit(l.adopt, count, names);
	assert_string_equal(names, "g7.memfd g7.manifest.0 g7.opaque.0.1 ");
	assert_int_equal(adopt_make_source(l.adopt, &account, &err, &source), 0);
	assert_int_equal(adopt_make_export(l.adopt, 0, source, &err, &e), 0);
	assert_int_equal(e->allocs[1].main.handle, EXPORT_OPAQUE_FD);
	assert_int_equal(e->allocs[1].main.inode, file_of(l.opaque).inode);
	assert_int_equal(e->allocs[1].opaque.fd, -1);
	export_free(e);
	adopt_forget(l.adopt, 0);
	assert_false(adopt_is_whole(l.adopt, 0));
	assert_int_equal(give(&l, "g7.manifest.0", l.manifest, &err), 0);
	assert_int_equal(give(&l, "g7.alloc.0.1", l.memory, &err), 0);
	assert_int_equal(give(&l, "g7.opaque.0.1", l.opaque, &err), 0);
	assert_int_equal(adopt_make_export(l.adopt, 0, source, &err, &e), 0);
	assert_int_equal(e->allocs[1].main.handle, EXPORT_DMA_BUF);
	assert_int_equal(e->allocs[1].opaque.handle, EXPORT_OPAQUE_FD);
	assert_int_equal(e->allocs[1].opaque.inode, file_of(l.opaque).inode);
	export_free(e);
	source_unref(source);
	refuse(&l, "g7.opaque.0.0", make_memfd(NULL, 1, F_SEAL_SEAL), "nothing of that name");
	refuse(&l, "g7.opaque.0.1", make_memfd(NULL, 1, F_SEAL_SEAL), "memory: expected");
	close_left(&l);
}

/* Memory came back, the file did not: no further copies, but all that there is. */
static void does_without_the_file(void **state)
{
	struct source_account account = {0};
	struct source *source = NULL;
	struct err err = ERR_NULL;
	struct left l;

	(void)state;
	open_left(&l);
	assert_int_equal(adopt_make_source(l.adopt, &account, &err, &source), 0);
	assert_int_equal(source_get_fd(source), -1);
	assert_int_equal(source_get_shared_fd(source), -1);
	assert_int_equal(source_get_bytes(source), 7);
	source_unref(source);
	close_left(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(is_whole_when_all_is_there),
		CASE(takes_nothing_else),
		CASE(looks_at_seals_and_contents),
		CASE(looks_at_the_figures),
		CASE(knows_a_changed_file),
		CASE(makes_what_a_load_made),
		CASE(takes_the_opaque_one_beside_a_dma_buf),
		CASE(does_without_the_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
