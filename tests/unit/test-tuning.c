/* SPDX-License-Identifier: Apache-2.0 */
/* Choices of cuts: found by what products are, and on disk no lie about another device. */
#include "workerd/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/dtype.h"
#include "tests/case.h"
#include "vk/device.h"
#include "workerd/ops/matmul.h"
#include "workerd/tuning-file.h"

enum { TEXT_BYTES = 8192 };

static struct vk_device_info info = {.driver = "a driver 1.2", .uuid = {1, 2, 0xfe}};

const struct vk_device_info *vk_device_get_info(const struct vk_device *d)
{
	(void)d;
	return &info;
}

static const struct op_matmul_params product = {
	.n_parts = 2,
	.w = {{.dtype = DTYPE_Q4_K, .ne = {4096, 1024, 1, 1}},
		{.dtype = DTYPE_Q6_K, .ne = {4096, 512, 1, 1}}},
	.gain = 16,
	.finish = OP_MATMUL_STORE,
	.n_rows = 4,
};

static const struct tuning_choice matvec = {.kind = TUNING_MATVEC,
	.shape = {.n_rows = 4,
		.n_columns = 1,
		.n_unroll = 1,
		.n_subgroups = 16,
		.n_groups = 777,
		.is_ahead = true,
		.source = OP_MATVEC_STAGED,
		.n_hold = 3,
		.n_split = 8}};

static const struct tuning_choice matrix = {.kind = TUNING_MATRIX,
	.tile = {.bn = 256,
		.bm = 64,
		.bk = 32,
		.sn = 64,
		.sm = 16,
		.n = 8,
		.n_buffers = 2,
		.n_streams = OP_MATRIX_TILE_NO_STREAMS,
		.is_direct = true,
		.is_ragged = true,
		.is_wide = true}};

static void set(struct tuning *t, uint32_t n_rows, const struct tuning_choice *choice)
{
	struct op_matmul_params p = product;
	struct tuning_key key;

	p.n_rows = n_rows;
	tuning_get_key(&p, &key);
	assert_int_equal(tuning_set(t, &key, choice), 0);
}

/* Two entries, one of each kind. */
static struct tuning *make(void)
{
	struct tuning *t = tuning_new();

	assert_non_null(t);
	set(t, 4, &matvec);
	set(t, 512, &matrix);
	assert_int_equal(tuning_count(t), 2);
	return t;
}

static void expect(const struct tuning *t, uint32_t n_rows, const struct tuning_choice *choice)
{
	struct op_matmul_params p = product;
	enum tuning_kind other = choice->kind == TUNING_MATVEC ? TUNING_MATRIX : TUNING_MATVEC;

	p.n_rows = n_rows;
	const struct tuning_choice *found = tuning_find(t, &p, choice->kind);
	assert_non_null(found);
	assert_true(tuning_is_same(found, choice));
	assert_null(tuning_find(t, &p, other));
}

static void expect_none(const struct tuning *t, const struct op_matmul_params *p)
{
	assert_null(tuning_find(t, p, TUNING_MATVEC));
	assert_null(tuning_find(t, p, TUNING_MATRIX));
}

/* Every member of what a product is counts, and no other. */
static void test_find(void **state)
{
	struct tuning *t = make();
	struct op_matmul_params p = product;

	(void)state;
	expect_none(NULL, &product);
	expect(t, 4, &matvec);
	expect(t, 3, &matvec);
	expect(t, 512, &matrix);
	expect(t, 257, &matrix);
	p.x = 4096;
	p.staging = 256;
	p.gain = 32;
	p.w[1].address = 512;
	assert_non_null(tuning_find(t, &p, TUNING_MATVEC));
	struct op_matmul_params others[9];
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		others[i] = product;
	others[0].n_rows = 2;
	others[1].n_rows = 5;
	others[2].gain = 0;
	others[3].is_staged = true;
	others[4].next = 16;
	others[5].finish = OP_MATMUL_ADD;
	others[6].w[0].ne[0] = others[6].w[1].ne[0] = 4160;
	others[7].w[1].dtype = DTYPE_Q4_K;
	others[8].n_parts = 1;
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		expect_none(t, &others[i]);
	/* The newest counts. */
	struct tuning_choice other = matvec;
	other.shape.n_hold = other.shape.n_split = 0;
	assert_false(tuning_is_same(&other, &matvec));
	set(t, 4, &other);
	assert_int_equal(tuning_count(t), 2);
	expect(t, 4, &other);
	tuning_free(t);
}

static void test_full(void **state)
{
	struct tuning *t = tuning_new();
	struct tuning_key key;

	(void)state;
	tuning_get_key(&product, &key);
	for (key.k = 0; key.k < TUNING_MAX_ENTRIES; key.k++)
		assert_int_equal(tuning_set(t, &key, &matvec), 0);
	/* The oldest makes room, which is that of k = 0; then one that is there has it already. */
	struct op_matmul_params p = product;
	assert_int_equal(tuning_set(t, &key, &matvec), 0);
	key.k = 7;
	assert_int_equal(tuning_set(t, &key, &matrix), 0);
	assert_int_equal(tuning_count(t), TUNING_MAX_ENTRIES);
	p.w[0].ne[0] = 0;
	expect_none(t, &p);
	for (uint32_t k = 1; k <= TUNING_MAX_ENTRIES; k++) {
		p.w[0].ne[0] = k;
		assert_non_null(tuning_find(t, &p, k == 7 ? TUNING_MATRIX : TUNING_MATVEC));
	}
	tuning_free(t);
}

static void test_text(void **state)
{
	struct tuning *t = make(), *read = tuning_new();
	char *text = NULL, line[TUNING_TEXT_BYTES];
	size_t n = 0;

	(void)state;
	assert_int_equal(tuning_encode(t, &text, &n), 0);
	assert_int_equal(strlen(text), n);
	assert_int_equal(tuning_decode(read, text), 0);
	assert_int_equal(tuning_count(read), 2);
	expect(read, 4, &matvec);
	expect(read, 512, &matrix);
	tuning_describe_choice(&matvec, line);
	assert_string_equal(line,
		"matvec n_rows=4 n_columns=1 n_unroll=1 n_subgroups=16 n_groups=777 "
		"is_ahead=1 source=2 n_hold=3 n_split=8");
	assert_non_null(strstr(text, line));
	struct tuning_key key;
	tuning_get_key(&product, &key);
	tuning_describe_key(&key, line);
	assert_string_equal(line, "q4_K 1024 + q6_K 512 x 4096 norm");
	free(text);
	tuning_free(t);
	tuning_free(read);
}

#define KEY "parts=12:1024,14:512 k=4096 finish=0 has_norm=1 is_staged=0 has_next=0 n_rows=4 : "
#define SHAPE(rows, unroll, more) \
	"matvec n_rows=" rows " n_columns=1 n_unroll=" unroll " n_subgroups=4 n_groups=0 " more
#define TILE(bn, sn, bk)                                  \
	"matrix bn=" bn " bm=32 bk=" bk " sn=" sn         \
	" sm=32 n=0 n_buffers=1 n_streams=0 is_direct=0 " \
	"is_decoded=0 is_ragged=0 is_wide=0"

/* Each is left out, and those before and behind it are not. */
static void test_bad_lines(void **state)
{
	static const char good[] =
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=0 n_split=0") "\n";
	static const char moved[] =
		KEY SHAPE("2", "1", "n_hold=0 n_split=0 source=1 is_ahead=1") "\n";
	static const char *const bad[] = {
		"",
		"#",
		"parts=",
		KEY,
		KEY "matvec",
		KEY SHAPE("2", "1", "is_ahead=1"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 is_ahead=1"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=0 n_split=0 new=1"),
		KEY SHAPE("2", "1", "is_ahead=2 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("2", "1", "is_ahead=1 source=3 n_hold=0 n_split=0"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=1"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=0 n_split=2"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=1 n_split=3"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=1 n_split=64"),
		KEY SHAPE("2", "1", "is_ahead=1 source=1 n_hold=5 n_split=0"),
		KEY SHAPE("2", "2", "is_ahead=1 source=1 n_hold=3 n_split=0"),
		KEY "matvec n_rows=2 n_columns=2 n_unroll=1 n_subgroups=4 n_groups=0 is_ahead=1 "
		    "source=1 n_hold=1 n_split=0",
		KEY SHAPE("3", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("0", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("2", "0", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("2", "5", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("-2", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("4294967298", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		KEY SHAPE("2", "1", "is_ahead=1  source=1 n_hold=0 n_split=0"),
		KEY TILE("0", "0", "32"),
		KEY TILE("65600", "64", "32"),
		KEY TILE("96", "64", "32"),
		KEY TILE("1024", "64", "32"),
		KEY TILE("128", "12", "32"),
		KEY TILE("128", "64", "48"),
		"parts=12:1,12:1,12:1,12:1 k=64 finish=0 has_norm=1 is_staged=0 has_next=0 "
		"n_rows=4 : " SHAPE("2", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
		"parts=12:1024 k=4096 finish=0 has_norm=1 is_staged=0 n_rows=4 : " SHAPE(
			"2", "1", "is_ahead=1 source=1 n_hold=0 n_split=0"),
	};
	char text[TEXT_BYTES];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct tuning *t = tuning_new();

		snprintf(text, sizeof(text), "%s%s\n" KEY TILE("128", "64", "64") "\n", good,
			bad[i]);
		uint32_t n_left_out = tuning_decode(t, text);
		if (n_left_out != 1 || tuning_count(t) != 1)
			fail_msg("\"%s\": %u left out, %u taken", bad[i], n_left_out,
				tuning_count(t));
		assert_non_null(tuning_find(t, &product, TUNING_MATRIX));
		tuning_free(t);
	}
	/* Order does not matter; the last line's end does. */
	struct tuning *t = tuning_new();
	assert_int_equal(tuning_decode(t, moved), 0);
	assert_int_equal(tuning_count(t), 1);
	snprintf(text, sizeof(text), "%.*s", (int)sizeof(good) - 3, good);
	assert_int_equal(tuning_decode(t, text), 1);
	tuning_free(t);
}

/* ---- on disk ---- */

static char dir[] = "/tmp/weightd-test-tuning-XXXXXX";

static int open_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) && setenv("WEIGHTD_CACHE", dir, 1) == 0 ? 0 : -1;
}

static void get_path(char ret_path[PATH_MAX])
{
	/* The hash is of this driver's uuid and name. */
	snprintf(ret_path, PATH_MAX, "ls %s", dir);
	FILE *f = popen(ret_path, "r");
	char name[256];

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%255s", name), 1);
	assert_int_equal(pclose(f), 0);
	snprintf(ret_path, PATH_MAX, "%s/%s", dir, name);
}

static int close_dir(void **state)
{
	char path[PATH_MAX];

	(void)state;
	get_path(path);
	return unlink(path) || rmdir(dir);
}

static uint32_t count_loaded(void)
{
	struct tuning *t = tuning_new();

	tuning_file_load(NULL, t);
	uint32_t n = tuning_count(t);
	if (n) {
		expect(t, 4, &matvec);
		expect(t, 512, &matrix);
	}
	tuning_free(t);
	return n;
}

static size_t read_file(const char *path, char ret_text[TEXT_BYTES])
{
	FILE *f = fopen(path, "r");

	assert_non_null(f);
	size_t n = fread(ret_text, 1, TEXT_BYTES, f);
	assert_true(n > 100 && n < TEXT_BYTES);
	fclose(f);
	return n;
}

static void write_file(const char *path, const char *text, size_t n)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void test_file(void **state)
{
	struct tuning *t = make();
	char path[PATH_MAX], text[TEXT_BYTES], damaged[TEXT_BYTES];
	struct stat st;

	(void)state;
	assert_int_equal(count_loaded(), 0); /* there is none */
	assert_int_equal(tuning_file_save(NULL, t), 0);
	assert_int_equal(count_loaded(), 2);
	get_path(path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	size_t n = read_file(path, text);
	/* Cut anywhere, or with one byte another one, it is no file of ours. */
	for (size_t i = 0; i < n; i += 5) {
		write_file(path, text, n - 1 - i);
		assert_int_equal(count_loaded(), 0);
		memcpy(damaged, text, n);
		damaged[i] ^= 1;
		write_file(path, damaged, n);
		assert_int_equal(count_loaded(), 0);
	}
	write_file(path, text, n);
	assert_int_equal(count_loaded(), 2);
	/* Under another device's name it is still this one's. */
	char other_path[PATH_MAX];
	info.uuid[0] ^= 1;
	assert_int_equal(count_loaded(), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(tuning_file_save(NULL, t), 0);
	get_path(other_path);
	assert_string_not_equal(path, other_path);
	assert_int_equal(count_loaded(), 2);
	write_file(other_path, text, n);
	assert_int_equal(count_loaded(), 0);
	assert_int_equal(unlink(other_path), 0);
	info.uuid[0] ^= 1;
	write_file(path, text, n);
	assert_int_equal(count_loaded(), 2);
	/* A directory that others may read is not used. */
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(count_loaded(), 0);
	assert_int_equal(tuning_file_save(NULL, t), -EPERM);
	assert_int_equal(chmod(dir, 0700), 0);
	tuning_free(t);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		CASE(test_find),
		CASE(test_full),
		CASE(test_text),
		CASE(test_bad_lines),
		cmocka_unit_test_setup_teardown(test_file, open_dir, close_dir),
	};

	return cmocka_run_group_tests(cases, NULL, NULL);
}
