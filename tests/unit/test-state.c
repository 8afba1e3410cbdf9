/* SPDX-License-Identifier: Apache-2.0 */
/* The state file: what is written comes back, and nothing else is taken for one. */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/util/err.h"
#include "tests/unit/socket-dir.h"
#include "tests/unit/state-sample.h"
#include "weightd/process.h"
#include "weightd/state.h"

static void pack(const struct state *s, uint8_t **ret_data, uint64_t *ret_n_bytes)
{
	assert_int_equal(state_pack(s, "boot", ret_data, ret_n_bytes), 0);
}

static void comes_back(void **state)
{
	struct state s, t = {0};
	uint8_t *data = NULL, *again = NULL;
	uint64_t n_bytes, n_again;
	struct err e = ERR_NULL;

	(void)state;
	state_sample(&s);
	pack(&s, &data, &n_bytes);
	assert_int_equal(state_parse(data, n_bytes, "boot", &e, &t), 0);
	pack(&t, &again, &n_again);
	assert_int_equal(n_again, n_bytes);
	assert_memory_equal(again, data, n_bytes);
	/* Some of it by name, should both sides forget the same field. */
	assert_int_equal(t.last_id, 14);
	assert_int_equal(t.n_generations, 4);
	const struct state_generation *g = &t.generations[1];
	assert_true(t.generations[0].is_draining && !g->is_draining && g->is_file_writable);
	assert_int_equal(t.generations[0].expel_ns, 987654321012345);
	assert_int_equal(g->expel_ns, 0);
	assert_string_equal(g->path, "/models/atlas.gguf");
	assert_memory_equal(&g->file, &s.generations[1].file, sizeof(g->file));
	assert_memory_equal(&g->memfd, &s.generations[1].memfd, sizeof(g->memfd));
	assert_memory_equal(g->staged.data, "\x05\x01", 2);
	assert_true(g->residencies[1].is_foreign);
	assert_int_equal(g->residencies[1].slot, 2);
	const struct state_residency *r = &g->residencies[0];
	assert_memory_equal(r->device_uuid, "dddddddddddddddd", 16);
	assert_memory_equal(r->driver_uuid, "vvvvvvvvvvvvvvvv", 16);
	assert_memory_equal(r->sums.data, "sums", 4);
	assert_int_equal(r->n_placed_bytes[MANIFEST_PLACEMENT_STAGED], 8192);
	assert_memory_equal(
		r->allocs, s.generations[1].residencies[0].allocs, 2 * sizeof(struct state_alloc));
	assert_int_equal(t.holders[0].pid, 77);
	assert_int_equal(t.holders[0].start_ticks, 123456);
	assert_int_equal(t.holders[0].uid, 1000);
	assert_int_equal(t.holders[0].generations[1], 12);
	assert_int_equal(t.holders[1].socket, 3);
	assert_int_equal(t.n_listens, 3);
	assert_string_equal(t.listens[2], "/run/red.sock");
	assert_true(t.generations[0].is_replaced && !g->is_replaced);
	const struct state_generation *w = &t.generations[2];
	assert_true(w->is_warm && !w->is_loading && w->n_residencies == 0);
	assert_memory_equal(&w->summary, &s.generations[2].summary, sizeof(w->summary));
	assert_memory_equal(w->sums.data, "sums of it", 10);
	assert_true(t.generations[3].is_loading && !t.generations[3].has_memfd);
	assert_true(t.holders[2].is_hold && !t.holders[0].is_hold);
	assert_int_equal(t.holders[2].n_grants, 1);
	assert_memory_equal(
		&t.holders[2].grants[0], &s.holders[2].grants[0], sizeof(struct state_grant));
	state_fini(&s);
	state_fini(&t);
	free(data);
	free(again);
}

/* Without descriptors, and with the bytes that processes have. */
static void keeps_what_is_lost(void **state)
{
	struct state s, t = {0};
	struct err e = ERR_NULL;
	uint8_t *data = NULL;
	uint64_t n_bytes;

	(void)state;
	for (int round = 0; round < 5; round++) {
		state_sample(&s);
		struct state_generation *g = &s.generations[0];
		g->lost_why = strdup(round == 1 ? "" : "tensor a changed");
		g->is_corrupt = true;
		g->clean_ns = 77;
		g->has_memfd = round == 2;
		g->is_replaced = round == 4;
		if (!g->has_memfd) {
			free(g->staged.data);
			g->staged = (struct state_bytes){0};
		}
		for (uint32_t i = 0; i < g->n_residencies && round != 3; i++) {
			g->residencies[i].n_allocs = 0;
			g->residencies[i].n_lost_bytes = 5000 + i;
		}
		assert_int_equal(state_pack(&s, "boot", &data, &n_bytes), 0);
		int rc = state_parse(data, n_bytes, "boot", &e, &t);
		if (rc != (round == 0 ? 0 : -EINVAL))
			fail_msg("round %d: %d, %s", round, rc, e.text);
		if (rc == 0) {
			g = &t.generations[0];
			assert_string_equal(g->lost_why, "tensor a changed");
			assert_true(g->is_corrupt && g->is_draining);
			assert_int_equal(g->clean_ns, 77);
			assert_int_equal(g->residencies[1].n_lost_bytes, 5001);
			assert_null(t.generations[1].lost_why);
		}
		free(data);
		state_fini(&s);
		state_fini(&t);
	}
}

static void refuse(const uint8_t *data, uint64_t n_bytes, int code, const char *text)
{
	struct state t = {0};
	struct err e = ERR_NULL;

	assert_int_equal(state_parse(data, n_bytes, "boot", &e, &t), -code);
	if (!strstr(e.text, text))
		fail_msg("expected \"%s\", found \"%s\"", text, e.text);
	assert_null(t.generations);
}

static void refuses_damage(void **state)
{
	struct state s;
	uint8_t *data = NULL;
	uint64_t n_bytes;

	(void)state;
	state_sample(&s);
	pack(&s, &data, &n_bytes);
	for (uint64_t n = 0; n < n_bytes; n++)
		refuse(data, n, EBADMSG, "");
	for (uint64_t i = 0; i < n_bytes; i++) {
		data[i] ^= 0x40;
		refuse(data, n_bytes, EBADMSG, "");
		data[i] ^= 0x40;
	}
	state_fini(&s);
	free(data);
}

static void refuses_another_boot(void **state)
{
	struct state s, t = {0};
	uint8_t *data = NULL;
	uint64_t n_bytes;
	struct err e = ERR_NULL;

	(void)state;
	state_sample(&s);
	pack(&s, &data, &n_bytes);
	assert_int_equal(state_parse(data, n_bytes, "other", &e, &t), -ESTALE);
	assert_non_null(strstr(e.text, "another boot"));
	state_fini(&s);
	free(data);
}

/* One thing wrong in a file that is whole: the sentence says which. */
#define REFUSES(change, text)                               \
	do {                                                \
		struct state s;                             \
		uint8_t *data = NULL;                       \
		uint64_t n_bytes;                           \
		state_sample(&s);                           \
		struct state_generation *g = s.generations; \
		struct state_residency *r = g->residencies; \
		struct state_alloc *a = r->allocs;          \
		struct state_holder *h = s.holders;         \
		uint32_t n_residencies = g->n_residencies;  \
		(void)g, (void)r, (void)a, (void)h;         \
		change;                                     \
		pack(&s, &data, &n_bytes);                  \
		refuse(data, n_bytes, EINVAL, text);        \
		g->n_residencies = n_residencies;           \
		state_fini(&s);                             \
		free(data);                                 \
	} while (0)

static void same_device(struct state_generation *g)
{
	struct state_residency *r = g->residencies;

	r[1].is_foreign = false;
	memcpy(r[1].device_uuid, r[0].device_uuid, sizeof(r[1].device_uuid));
	memcpy(r[1].driver_uuid, r[0].driver_uuid, sizeof(r[1].driver_uuid));
}

static void refuses_what_is_out_of_bounds(void **state)
{
	(void)state;
	REFUSES(s.last_id = 11, "generation 1: id: expected 5 to 11, found 12");
	REFUSES(s.last_id = UINT64_MAX, "last_id");
	REFUSES(g->id = 12, "generation 1: id");
	REFUSES(g->id = 0, "generation 0: id");
	REFUSES(strcpy(g->model, "a/b"), "model name");
	REFUSES(g->n_tensors = STATE_MAX_TENSORS + 1, "staged");
	REFUSES(g->n_tensors = 17, "staged: expected a bit for each of 17");
	REFUSES(g->has_memfd = false, "staged");
	REFUSES(g->file.n_bytes = UINT64_MAX, "file: expected");
	REFUSES(g->file.mtime_ns = 1000000000, "file: expected");
	REFUSES(g->memfd.n_bytes--, "allocation 0: expected a window inside the memfd");
	REFUSES(g->n_residencies = 0, "residencies");
	REFUSES(g->residencies[1].slot = 0, "residency 1: slot");
	REFUSES(g->residencies[1].slot = SERVICE_MAX_DEVICES + 1, "residency 1: slot");
	REFUSES(same_device(g),
		"residency 1: device: expected each once, found that of residency 0");
	REFUSES(r->is_foreign = true; r->n_allocs = 1,
		"residency 1: device: expected each once, found that of residency 0");
	REFUSES(r->n_tensors = 0, "residency 0: expected 1 to");
	REFUSES(r->manifest.n_bytes = (uint64_t)MANIFEST_MAX_BYTES + 1, "manifest: expected");
	REFUSES(r->n_allocs = 0, "allocations, found 0");
	REFUSES(a->handle = 0, "known handle");
	REFUSES(a->handle = EXPORT_DMA_BUF + 1, "known handle");
	REFUSES(a->placement = PLACEMENT_N, "known handle");
	REFUSES(a->memory_type_index = 32, "known handle");
	REFUSES(a->has_opaque = true, "beside a dma-buf alone");
	REFUSES(a->buffer_bytes = 0, "buffer");
	REFUSES(a->buffer_bytes = a->n_bytes + 1, "buffer");
	REFUSES(a->file_offset = UINT64_MAX, "buffer");
	REFUSES((a->handle = EXPORT_FILE, a->file_offset = 100000), "inside the file");
	REFUSES(g->residencies[1].allocs[0].handle = EXPORT_OPAQUE_FD, "host memory");
	REFUSES(h->pid = -1, "holder 0");
	REFUSES(h->n_generations = 0, "holder 0");
	REFUSES(h[2].grants[0].n_bytes = 0, "holder 2: grant 0: expected bytes");
	REFUSES(h[2].grants[0].n_bytes = UINT64_MAX, "holder 2: grant 0: expected bytes");
	REFUSES(h[2].n_grants = 0, "holder 2");
}

static void refuses_what_cannot_be(void **state)
{
	(void)state;
	REFUSES(g->is_warm = true, "one of draining, warm and loading");
	REFUSES(g->is_loading = true, "one of draining, warm and loading");
	REFUSES(g[1].is_replaced = true, "one of draining, warm and loading");
	REFUSES(g[1].is_warm = true, "expected 0 to 0 residencies, found 2");
	REFUSES((g[1].is_loading = true), "one of draining, warm and loading");
	REFUSES(g[2].is_warm = false, "expected 1 to");
	REFUSES(g[2].is_draining = true, "one of draining, warm and loading");
	REFUSES(g[3].is_loading = false, "expected 1 to");
}

static void refuses_long_texts(void **state)
{
	char path[SERVICE_MAX_PATH_BYTES + 2];

	(void)state;
	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	REFUSES((free(g->path), g->path = strdup(path)), "path: expected at most");
	REFUSES((void)!state_bytes_set(&r->sums, NULL, STATE_MAX_SUMS_BYTES + 1),
		"sums: expected at most");
}

static void refuses_too_many(void **state)
{
	struct state s = {.last_id = 1, .n_holders = STATE_MAX_HOLDERS + 1};
	uint8_t *data = NULL;
	uint64_t n_bytes, id = 1;

	(void)state;
	s.holders = calloc(s.n_holders, sizeof(*s.holders));
	assert_non_null(s.holders);
	for (uint32_t i = 0; i < s.n_holders; i++)
		s.holders[i] = (struct state_holder){.n_generations = 1, .generations = &id};
	pack(&s, &data, &n_bytes);
	refuse(data, n_bytes, EINVAL, "holders, found 4097");
	free(s.holders);
	free(data);
	data = NULL;
	s = (struct state){.last_id = 1, .n_listens = STATE_MAX_LISTENS + 1};
	s.listens = calloc(s.n_listens, sizeof(*s.listens));
	assert_non_null(s.listens);
	pack(&s, &data, &n_bytes);
	refuse(data, n_bytes, EINVAL, "at most 64 listens, found 65");
	free(s.listens);
	free(data);
}

static void keeps_a_file(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct state s = {0};
	struct err e = ERR_NULL;
	struct stat st;
	uint8_t *data = NULL;
	uint64_t n_bytes;
	char boot_id[64], link[128];

	(void)state;
	state_get_boot_id(boot_id);
	assert_true(strlen(boot_id) > 0);
	assert_int_equal(state_read(dir.path, &e, &s), -ENOENT);
	state_sample(&s);
	assert_int_equal(state_pack(&s, boot_id, &data, &n_bytes), 0);
	state_fini(&s);
	/* Twice: the second replaces the first. */
	assert_int_equal(state_write(dir.path, "first", 5, &e), 0);
	assert_int_equal(state_write(dir.path, data, n_bytes, &e), 0);
	assert_int_equal(stat(dir.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, n_bytes);
	assert_int_equal(state_read(dir.path, &e, &s), 0);
	assert_int_equal(s.n_generations, 4);
	state_fini(&s);
	/* Files take turns, longer and shorter; what lies there and is not ours to write is not
	 * written. */
	char spare[160];
	snprintf(spare, sizeof(spare), "%s.new", dir.path);
	assert_int_equal(stat(spare, &st), 0);
	assert_int_equal(st.st_size, 5);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(state_write(dir.path, "a longer one", i ? 3 : 12, &e), 0);
		assert_int_equal(stat(dir.path, &st), 0);
		assert_int_equal(st.st_size, i ? 3 : 12);
	}
	assert_int_equal(unlink(spare), 0);
	assert_int_equal(symlink("/dev/null", spare), 0);
	assert_int_equal(state_write(dir.path, "x", 1, &e), 0);
	assert_int_equal(lstat(dir.path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	snprintf(link, sizeof(link), "%s-link", dir.path);
	assert_int_equal(rename(spare, link), 0);
	assert_int_equal(linkat(AT_FDCWD, link, AT_FDCWD, spare, 0), 0);
	assert_int_equal(state_write(dir.path, data, n_bytes, &e), 0);
	assert_int_equal(stat(link, &st), 0);
	assert_int_equal(st.st_size, 3);
	unlink(link);
	/* Somebody else could have written it. */
	assert_int_equal(chmod(dir.path, 0660), 0);
	assert_int_equal(state_read(dir.path, &e, &s), -EPERM);
	assert_int_equal(chmod(dir.path, 0600), 0);
	snprintf(link, sizeof(link), "%s-link", dir.path);
	assert_int_equal(symlink(dir.path, link), 0);
	assert_int_equal(state_read(link, &e, &s), -ELOOP);
	unlink(link);
	assert_int_equal(truncate(dir.path, (off_t)n_bytes - 1), 0);
	assert_int_equal(state_read(dir.path, &e, &s), -EBADMSG);
	assert_non_null(strstr(e.text, dir.path));
	assert_int_equal(truncate(dir.path, (off_t)STATE_MAX_BYTES + 1), 0);
	assert_int_equal(state_read(dir.path, &e, &s), -EFBIG);
	state_remove(dir.path);
	assert_int_equal(access(dir.path, F_OK), -1);
	assert_int_equal(access(spare, F_OK), -1);
	free(data);
	socket_dir_free(&dir);
}

static void knows_processes(void **state)
{
	uint64_t ticks = process_get_start_ticks(getpid());

	(void)state;
	assert_true(ticks > 0);
	assert_int_equal(process_get_start_ticks(getpid()), ticks);
	assert_int_equal(process_get_start_ticks(0), 0);
	assert_int_equal(process_get_start_ticks(-1), 0);
	assert_int_equal(process_get_start_ticks(INT32_MAX), 0);
	/* A zombie holds nothing any more. */
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(0);
	siginfo_t info;
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(process_get_start_ticks(pid), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(comes_back),
		CASE(keeps_what_is_lost),
		CASE(refuses_damage),
		CASE(refuses_another_boot),
		CASE(refuses_what_is_out_of_bounds),
		CASE(refuses_what_cannot_be),
		CASE(refuses_long_texts),
		CASE(refuses_too_many),
		CASE(keeps_a_file),
		CASE(knows_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
