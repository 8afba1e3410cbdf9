/* SPDX-License-Identifier: Apache-2.0 */
/* gguf-read and gguf-get: from a descriptor, and values as types. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"

static struct gguf_build *new_values(void)
{
	struct gguf_build *b = gguf_build_new();
	int64_t i64 = -5;
	double f64 = 0.5;

	gguf_build_set(b, "u8", GGUF_U8, "\xff", 1);
	gguf_build_set(b, "i8", GGUF_I8, "\x7f", 1);
	gguf_build_set(b, "i16", GGUF_I16, "\xff\xff", 2);
	gguf_build_set(b, "i64", GGUF_I64, &i64, 8);
	gguf_build_set(b, "f64", GGUF_F64, &f64, 8);
	gguf_build_set_f32(b, "f32", 1.5f);
	gguf_build_set_bool(b, "bool", true);
	gguf_build_set_string(b, "string", "text");
	gguf_build_set_strings(b, "strings", (const char *const[]){"a", "", "bc"}, 3);
	return b;
}

static void test_values(void **state)
{
	(void)state;
	struct gguf_build *b = new_values();
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	struct gguf_string s;
	uint64_t u = 0, at = 0;
	double f = 0;
	bool flag = false;
	uint64_t n;
	uint8_t *data = gguf_build_metadata(b, &n);

	assert_int_equal(gguf_parse(data, n, n, &e, &g), 0);
	g->metadata = data;
	assert_int_equal(gguf_get_u64(gguf_find(g, "u8"), &e, &u), 0);
	assert_int_equal(u, 255);
	assert_int_equal(gguf_get_u64(gguf_find(g, "i8"), &e, &u), 0);
	assert_int_equal(u, 127);
	assert_int_equal(gguf_get_u64(gguf_find(g, "i16"), &e, &u), -EINVAL);
	assert_string_equal(e.text, "key i16: expected 0 or more, found -1");
	assert_int_equal(gguf_get_u64(gguf_find(g, "i64"), &e, &u), -EINVAL);
	assert_string_equal(e.text, "key i64: expected 0 or more, found -5");
	assert_int_equal(gguf_get_u64(gguf_find(g, "f32"), &e, &u), -EINVAL);
	assert_string_equal(e.text, "key f32: expected an integer, found f32");
	assert_int_equal(u, 127);
	assert_int_equal(gguf_get_f64(gguf_find(g, "f32"), &e, &f), 0);
	assert_true(f == 1.5);
	assert_int_equal(gguf_get_f64(gguf_find(g, "f64"), &e, &f), 0);
	assert_true(f == 0.5);
	assert_int_equal(gguf_get_f64(gguf_find(g, "u8"), &e, &f), -EINVAL);
	assert_int_equal(gguf_get_bool(gguf_find(g, "bool"), &e, &flag), 0);
	assert_true(flag);
	assert_int_equal(gguf_get_bool(gguf_find(g, "u8"), &e, &flag), -EINVAL);
	assert_int_equal(gguf_get_string(gguf_find(g, "string"), &e, &s), 0);
	assert_true(s.n_bytes == 4 && memcmp(s.data, "text", 4) == 0);
	assert_int_equal(gguf_get_string(gguf_find(g, "strings"), &e, &s), -EINVAL);
	assert_string_equal(e.text, "key strings: expected string, found array of string");
	assert_true(gguf_next_string(gguf_find(g, "strings"), &at, &s) && s.n_bytes == 1);
	assert_true(gguf_next_string(gguf_find(g, "strings"), &at, &s) && s.n_bytes == 0);
	assert_true(gguf_next_string(gguf_find(g, "strings"), &at, &s) && s.n_bytes == 2);
	assert_false(gguf_next_string(gguf_find(g, "strings"), &at, &s));
	at = 0;
	assert_false(gguf_next_string(gguf_find(g, "string"), &at, &s));
	gguf_free(g);
	gguf_build_free(b);
}

static int make_memfd(const void *data, uint64_t n_bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, n_bytes), n_bytes);
	return fd;
}

/* fd is closed. */
static void refuse_fd(int fd, int code, const char *words)
{
	struct err e = ERR_NULL;
	struct gguf *g = NULL;

	assert_true(fd >= 0);
	assert_int_equal(gguf_read(fd, &e, &g), code);
	if (!strstr(e.text, words))
		fail_msg("expected \"%s\" in: %s", words, e.text);
	assert_null(g);
	close(fd);
}

static void test_read_refused(void **state)
{
	(void)state;
	int pipes[2], sockets[2];

	refuse_fd(open("/", O_RDONLY | O_CLOEXEC), -EINVAL, "found a directory");
	refuse_fd(open("/dev/zero", O_RDONLY | O_CLOEXEC), -EINVAL, "found a character device");
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	refuse_fd(pipes[0], -EINVAL, "found a pipe");
	close(pipes[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	refuse_fd(sockets[0], -EINVAL, "found a socket");
	close(sockets[1]);
	refuse_fd(make_memfd("", 0), -EINVAL, "found an empty file");
	refuse_fd(make_memfd("GG", 2), -EINVAL, "magic: beyond end of file");
	refuse_fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), -EINVAL, "found \"?ELF\"");
	int fd = make_memfd("GGUF", 4);
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refuse_fd(open(path, O_WRONLY | O_CLOEXEC), -EBADF, "cannot read");
	close(fd);
	/* A sparse file whose one key says that it has almost all of it. */
	uint8_t hole[24 + 8 + 1 + 4 + 4 + 8] = "GGUF\3";
	uint64_t n_elements = 1ull << 39;
	hole[16] = 1;
	hole[24] = 1;
	hole[33] = GGUF_ARRAY;
	memcpy(hole + 41, &n_elements, 8);
	fd = make_memfd(hole, sizeof(hole));
	assert_int_equal(ftruncate(fd, 1ll << 40), 0);
	refuse_fd(fd, -EINVAL, "metadata: expected at most 268435456 bytes, found more");
}

/* Metadata of some 3 MiB: three reads. */
static void test_read_grows(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){.type = DTYPE_F32});
	uint64_t n_blob = 3 << 20, n;
	uint8_t *blob = calloc(1, n_blob);
	struct err e = ERR_NULL;
	struct gguf *g = NULL;

	assert_non_null(blob);
	gguf_build_set_array(b, "a.blob", GGUF_U8, blob, n_blob, 1);
	uint8_t *file = gguf_build_file(b, &n);
	int fd = make_memfd(file, n);
	assert_int_equal(gguf_read(fd, &e, &g), 0);
	assert_int_equal(gguf_find(g, "a.blob")->n_elements, n_blob);
	assert_int_equal(g->n_file_bytes, n);
	gguf_free(g);
	assert_int_equal(ftruncate(fd, (off_t)n - 1), 0);
	refuse_fd(fd, -EINVAL, "data beyond end of file");
	free(file);
	free(blob);
	gguf_build_free(b);
}

static void test_atlas(void **state)
{
	(void)state;
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	char path[4096];

	assert_non_null(getenv("WEIGHTD_TEST_DATA"));
	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(gguf_read(fd, &e, &g), 0);
	close(fd);
	assert_int_equal(g->n_kv, 28);
	assert_int_equal(g->n_tensors, 68);
	assert_int_equal(gguf_find(g, "tokenizer.ggml.tokens")->n_elements, 4096);
	const struct gguf_tensor *t = gguf_find_tensor(g, "blk.5.ffn_down.weight");
	assert_int_equal(t->dtype->id, DTYPE_Q8_0);
	assert_int_equal(t->ne[0], 768);
	assert_int_equal(t->ne[1], 256);
	assert_int_equal(t->n_bytes, 768 / 32 * 34 * 256);
	assert_int_equal(t->offset, g->data_offset + 5516288);
	gguf_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_values),
		CASE(test_read_refused),
		CASE(test_read_grows),
		CASE(test_atlas),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
