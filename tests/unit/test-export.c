/* SPDX-License-Identifier: Apache-2.0 */
/* What an importer gets of each allocation, and what a refusal in the middle moves. */
#include "weightd/export.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "weightd/source.h"

enum { N = 8, PAGE = 4096, N_FILE_BYTES = 16 * PAGE + 100 };

#define ALL (1u << EXPORT_OPAQUE_FD | 1u << EXPORT_MEMFD | 1u << EXPORT_FILE)

static struct source_account account;

static struct source *make_source(void)
{
	static uint8_t data[N_FILE_BYTES];
	struct source *s = NULL;
	struct err e = ERR_NULL;
	int fd = memfd_create("model", MFD_CLOEXEC);

	for (uint32_t i = 0; i < N_FILE_BYTES; i++)
		data[i] = (uint8_t)(i * 7 + i / PAGE);
	assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
	assert_int_equal(source_new(fd, false, &account, &e, &s), 0);
	close(fd);
	return s;
}

/* d: memory of a device, m: a window of the memfd, f: pinned, p: to be read. */
static struct export *make_export(struct source *source, const char *kinds)
{
	struct export *e = NULL;

	assert_int_equal(export_new((uint32_t)strlen(kinds), source, &e), 0);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		struct export_alloc *a = &e->allocs[i];

		a->main.inode = i;
		switch (kinds[i]) {
		case 'd': continue;
		case 'm':
			a->main.handle = EXPORT_MEMFD;
			a->placement = MANIFEST_PLACEMENT_STAGED;
			a->is_writable = true;
			break;
		case 'f':
			a->main.handle = EXPORT_FILE;
			a->placement = MANIFEST_PLACEMENT_PINNED;
			break;
		default: a->main.handle = EXPORT_FILE; a->placement = MANIFEST_PLACEMENT_PAGED;
		}
		a->main.fd = source ? source_get_shared_fd(source) : -1;
		a->file_offset = (uint64_t)i * PAGE;
		a->n_bytes = PAGE;
	}
	return e;
}

/* The same letters for what is offered; "-": nothing. */
static void check_offers(
	const struct export *e, const struct export_importer *importer, const char *expected)
{
	char found[N + 1] = "";

	for (uint32_t i = 0; i < e->n_allocs; i++) {
		struct export_offer offer;

		if (export_get_offer(e, i, importer, &offer) < 0) {
			found[i] = '-';
			continue;
		}
		switch (offer.placement) {
		case MANIFEST_PLACEMENT_DEVICE:
			assert_int_equal(offer.fd.handle, EXPORT_OPAQUE_FD);
			found[i] = 'd';
			break;
		case MANIFEST_PLACEMENT_STAGED:
			assert_int_equal(offer.fd.handle, EXPORT_MEMFD);
			assert_true(offer.is_writable);
			found[i] = 'm';
			break;
		case MANIFEST_PLACEMENT_PINNED:
			assert_int_equal(offer.fd.handle, EXPORT_FILE);
			found[i] = 'f';
			break;
		default:
			assert_int_equal(offer.fd.handle, EXPORT_FILE);
			assert_false(offer.is_writable);
			found[i] = 'p';
		}
	}
	assert_string_equal(found, expected);
}

struct row {
	const char *kinds;
	uint32_t handle_types;
	uint32_t file_from; /* UINT32_MAX: not refused */
	uint32_t memfd_from;
	uint32_t copied_from;
	const char *offers;
	uint32_t to_copy; /* the first window that could be a copy */
};

static const struct row rows[] = {
	{"dmmffp", ALL, UINT32_MAX, UINT32_MAX, UINT32_MAX, "dmmffp", 6},
	{"dmmffp", 0, UINT32_MAX, UINT32_MAX, UINT32_MAX, "d-----", 6},
	{"dmmffp", 1u << EXPORT_OPAQUE_FD, UINT32_MAX, UINT32_MAX, UINT32_MAX, "dppppp", 6},
	{"dmmffp", 1u << EXPORT_MEMFD, UINT32_MAX, UINT32_MAX, UINT32_MAX, "-mmppp", 3},
	/* A memfd's windows from the one that was refused are copied by the worker. */
	{"dmmmmp", ALL, UINT32_MAX, 3, UINT32_MAX, "dmmppp", 6},
	{"dmmmmp", ALL, UINT32_MAX, 0, UINT32_MAX, "dppppp", 6},
	/* A file's are to come from its copy, and do once it is there. */
	{"dffffp", ALL, 3, UINT32_MAX, UINT32_MAX, "dffppp", 3},
	{"dffffp", ALL, 3, UINT32_MAX, 3, "dffmmp", 3},
	{"dffffp", ALL, 0, UINT32_MAX, 1, "dmmmmp", 1},
	/* Somebody else's copy, which begins later or earlier. */
	{"dffffp", ALL, 2, UINT32_MAX, 4, "dfppmp", 2},
	{"dffffp", ALL, 4, UINT32_MAX, 1, "dfffmp", 4},
	{"dffffp", ALL, UINT32_MAX, UINT32_MAX, 1, "dffffp", 6},
	/* Both kinds, one after the other, in either order. */
	{"dffffp", ALL, 2, 4, 2, "dfmmpp", 2},
	{"mmffff", ALL, 4, 1, 4, "mpffpp", 6},
	{"mmffff", ALL, 3, 5, 3, "mmfmmp", 3},
	/* No memfds at all: the worker copies. */
	{"dffffp", ALL & ~(1u << EXPORT_MEMFD), 2, UINT32_MAX, 1, "dfpppp", 6},
	/* Memory of the device has no other way. */
	{"dd", ALL, UINT32_MAX, UINT32_MAX, UINT32_MAX, "dd", 2},
};

static void test_offers(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct export *e = make_export(NULL, rows[i].kinds);
		struct export_importer importer;
		struct source *source = make_source();

		e->source = source;
		e->copied_from = rows[i].copied_from;
		export_init_importer(&importer, rows[i].handle_types);
		importer.refused_from[EXPORT_FILE] = rows[i].file_from;
		importer.refused_from[EXPORT_MEMFD] = rows[i].memfd_from;
		assert_int_equal(export_find_copied(e, &importer), rows[i].to_copy);
		check_offers(e, &importer, rows[i].offers);
		export_free(e);
	}
}

static void test_device_memory_refused(void **state)
{
	struct export *e = make_export(NULL, "dd");
	struct export_importer importer;

	(void)state;
	export_init_importer(&importer, ALL);
	importer.refused_from[EXPORT_OPAQUE_FD] = 1;
	check_offers(e, &importer, "d-");
	export_free(e);
}

/* The copy has the file's bytes where the file has them, takes memory for these alone and is
 * counted. */
static void test_copy(void **state)
{
	struct source *source = make_source();
	struct export *e = make_export(source, "ffff");
	struct export_importer importer;
	struct export_offer offer, other;
	struct err err = ERR_NULL;
	struct stat st;
	uint8_t copied[PAGE], original[PAGE];

	(void)state;
	assert_int_equal(source_copy(source, 2 * PAGE, 2 * PAGE, true, NULL, &err), 0);
	assert_int_equal(source_get_staged_bytes(source), 2 * PAGE);
	/* Its last page ends behind the file. */
	assert_int_equal(source_copy(source, 16 * PAGE, PAGE, true, NULL, &err), 0);
	assert_int_equal(source_copy(source, 16 * PAGE, PAGE, true, NULL, &err), 0);
	assert_int_equal(account.n_staged_bytes, 3 * PAGE);
	assert_int_equal(source_count_uncopied(source, PAGE, 16 * PAGE), 13 * PAGE);
	assert_int_equal(source_count_uncopied(source, 3 * PAGE, PAGE), 0);
	assert_int_equal(source_copy(source, 17 * PAGE, PAGE, true, NULL, &err), -EINVAL);
	assert_int_equal(
		source_copy(source, PAGE, UINT64_MAX - PAGE + 1, true, NULL, &err), -EINVAL);
	e->copied_from = 2;
	export_init_importer(&importer, ALL);
	importer.refused_from[EXPORT_FILE] = 2;
	assert_int_equal(export_get_offer(e, 1, &importer, &other), 0);
	assert_int_equal(other.fd.fd, source_get_shared_fd(source));
	assert_int_equal(export_get_offer(e, 3, &importer, &offer), 0);
	assert_int_equal(fstat(offer.fd.fd, &st), 0);
	assert_int_equal(offer.fd.inode, st.st_ino);
	assert_int_equal(offer.fd.dev, st.st_dev);
	assert_int_equal(
		fcntl(offer.fd.fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
	for (uint32_t i = 2; i < 4; i++) {
		assert_int_equal(pread(offer.fd.fd, copied, PAGE, i * PAGE), PAGE);
		assert_int_equal(pread(other.fd.fd, original, PAGE, i * PAGE), PAGE);
		assert_memory_equal(copied, original, PAGE);
	}
	assert_int_equal(pread(offer.fd.fd, copied, PAGE, 16 * PAGE), PAGE);
	assert_int_equal(pread(other.fd.fd, original, 100, 16 * PAGE), 100);
	assert_memory_equal(copied, original, 100);
	export_free(e);
	source_unref(source);
	assert_int_equal(account.n_staged_bytes, 0);
}

/* Tensors in the file's pages are charged once, and until the last export goes; host memory of a
 * device is each export's. */
static void test_charges(void **state)
{
	struct source *source = make_source();
	struct export *exports[2];
	bool is_staged[3], is_pinned[3];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		exports[i] = make_export(source, "ff");
		exports[i]->host_bytes = 1000;
		assert_int_equal(source_charge(source, 3, 1000), 0);
		exports[i]->is_charged = true;
		source_charge_tensor(source, 2 * i, 7);
		source_charge_tensor(source, 1, 50);
		source_charge_tensor(source, 1, 50);
		assert_int_equal(source_get_pinned_bytes(source), 57 + 7 * i);
		assert_int_equal(source_account_sum(&account), 1057 + 1007 * i);
	}
	source_list_host(source, 3, is_staged, is_pinned);
	for (unsigned i = 0; i < 3; i++)
		assert_true(is_pinned[i] && !is_staged[i]);
	export_free(exports[0]);
	assert_int_equal(source_account_sum(&account), 1064);
	export_free(exports[1]);
	assert_int_equal(source_account_sum(&account), 0);
	source_list_host(source, 3, is_staged, is_pinned);
	assert_false(is_pinned[1]);
	source_unref(source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_offers),
		CASE(test_device_memory_refused),
		CASE(test_copy),
		CASE(test_charges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
