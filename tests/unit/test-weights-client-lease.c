/* SPDX-License-Identifier: Apache-2.0 */
/* What goes with a lease: reserve, release, and resume with another weightd. */
#include "tests/case.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/unit/weights-peer.h"

static int make_memfd(uint64_t n_bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
	return fd;
}

/* One answered Reserve of 100 bytes, or of as few as 40. */
static int reserve(struct weights_client *c, uint32_t request, uint64_t n_answer, struct err *e,
	uint64_t *ret_bytes)
{
	static const uint8_t uuid[16] = {5};
	Wd__Reserved reserved = WD__RESERVED__INIT;
	struct fdlist fds;

	reserved.n_bytes = n_answer;
	weights_peer_reply(request, WD__REPLY__BODY_RESERVED, &reserved, NULL);
	int r = weights_client_reserve(c, uuid, 100, 40, true, e, ret_bytes);
	Wd__Request *q = weights_peer_take(&fds);
	assert_int_equal(q->reserve->device_uuid.len, 16);
	assert_int_equal(q->reserve->device_uuid.data[0], 5);
	assert_int_equal(q->reserve->n_bytes, 100);
	assert_int_equal(q->reserve->least_bytes, 40);
	assert_true(q->reserve->modest);
	wd__request__free_unpacked(q, NULL);
	return r;
}

static void reserves_and_releases(void **state)
{
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	struct fdlist fds;
	uint64_t n_bytes = 0;

	(void)state;
	assert_int_equal(reserve(c, 2, 100, &e, &n_bytes), 0);
	assert_int_equal(n_bytes, 100);
	assert_int_equal(reserve(c, 3, 40, &e, &n_bytes), 0);
	assert_int_equal(n_bytes, 40);
	weights_peer_done(4, 9);
	assert_int_equal(weights_client_release(c, 9, &e), 0);
	Wd__Request *r = weights_peer_take(&fds);
	assert_int_equal(r->release->generation, 9);
	wd__request__free_unpacked(r, NULL);
	/* Less than the least is no grant, and more than was asked for none either. */
	assert_int_equal(reserve(c, 5, 39, &e, &n_bytes), -EPROTO);
	assert_non_null(strstr(e.text, "expected 40 to 100 bytes, found 39"));
	assert_int_equal(reserve(c, 6, 101, &e, &n_bytes), -EPROTO);
	assert_int_equal(n_bytes, 40);
	weights_peer_close(c);
}

enum { N_HELD = 100 };

static void answer_resumed(uint64_t id, uint64_t generation, bool wants)
{
	static uint8_t digest[] = "0123456789abcdef0123456789abcdef";
	Wd__Resumed m = WD__RESUMED__INIT;

	m.generation = generation;
	m.wants_descriptors = wants;
	/* Only with the generation. */
	if (!wants)
		m.identity = (ProtobufCBinaryData){.len = 32, .data = digest};
	weights_peer_reply(id, WD__REPLY__BODY_RESUMED, &m, NULL);
}

static uint64_t get_inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

/* What the client sent next: a Resume with these descriptors. */
static void expect_resume(uint32_t first, uint32_t n_fds, bool has_manifest, bool more,
	const struct weights_client_held *held)
{
	struct fdlist fds;
	Wd__Request *r = weights_peer_take(&fds);
	const Wd__Resume *m = r->resume;

	assert_int_equal(r->body_case, WD__REQUEST__BODY_RESUME);
	assert_string_equal(m->model, "tiny");
	assert_int_equal(m->generation, 7);
	assert_int_equal(m->device_uuid.len, 16);
	assert_int_equal(m->n_reserved_bytes, 1234);
	assert_int_equal(m->manifest_inode, get_inode(held->manifest_fd));
	assert_int_equal(m->first, first);
	assert_int_equal(m->has_manifest, has_manifest);
	assert_int_equal(m->more, more);
	assert_int_equal(fds.n, n_fds);
	if (has_manifest)
		assert_int_equal(get_inode(fds.fds[0]), get_inode(held->manifest_fd));
	for (uint32_t i = has_manifest; i < n_fds; i++)
		assert_int_equal(get_inode(fds.fds[i]),
			get_inode(held->fds[first + i - (has_manifest ? 1 : 0)]));
	fdlist_fini(&fds);
	wd__request__free_unpacked(r, NULL);
}

static void resumes(void **state)
{
	int fds[N_HELD], odd = make_memfd(1), even = make_memfd(1);
	const struct weights_client_held held = {.model = "tiny",
		.generation = 7,
		.device_uuid = weights_peer_uuid,
		.driver_uuid = weights_peer_uuid,
		.n_reserved_bytes = 1234,
		.manifest_fd = make_memfd(1),
		.n_allocs = N_HELD,
		.fds = fds};
	struct weights_client *c = weights_peer_client();
	struct err e = ERR_NULL;
	struct weights_client_contents contents = {0};
	bool gave = true;

	(void)state;
	for (int i = 0; i < N_HELD; i++)
		fds[i] = i % 2 ? odd : even;
	/* It is there: nothing is sent. */
	answer_resumed(2, 7, false);
	assert_int_equal(weights_client_resume(c, &held, &e, &gave, &contents), 0);
	assert_false(gave);
	expect_resume(0, 0, false, false, &held);
	/* It is not: everything, in two packets, and one answer to the last. */
	answer_resumed(3, 7, true);
	answer_resumed(5, 7, false);
	assert_int_equal(weights_client_resume(c, &held, &e, &gave, &contents), 0);
	assert_true(gave);
	assert_true(contents.has_identity && !contents.has_file);
	assert_int_equal(contents.identity[31], 'f');
	expect_resume(0, 0, false, false, &held);
	expect_resume(0, 64, true, true, &held);
	expect_resume(63, 37, false, false, &held);
	/* Refused, and nonsense. */
	weights_peer_error(6, ENOENT, "generation 7 is not to be had any more");
	assert_int_equal(weights_client_resume(c, &held, &e, &gave, &contents), -ENOENT);
	answer_resumed(7, 8, false);
	assert_int_equal(weights_client_resume(c, &held, &e, &gave, &contents), -EPROTO);
	answer_resumed(8, 7, true);
	answer_resumed(10, 7, true);
	assert_int_equal(weights_client_resume(c, &held, &e, &gave, &contents), -EPROTO);
	assert_non_null(strstr(e.text, "again"));
	close(odd);
	close(even);
	close(held.manifest_fd);
	weights_peer_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(reserves_and_releases),
		CASE(resumes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
