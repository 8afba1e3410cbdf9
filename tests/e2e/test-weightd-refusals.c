/* SPDX-License-Identifier: Apache-2.0 */
/* What weightd makes of drivers' refusals that Acquire tells it: which allocation comes how. */
#include "tests/e2e/weightd-site.h"

#include <sys/mman.h>

#include "proto/manifest.h"

enum { ALL = 1 << WEIGHTS_CLIENT_OPAQUE_FD | 1 << WEIGHTS_CLIENT_MEMFD | 1 << WEIGHTS_CLIENT_FILE };

/* Layer 0 in a memfd, the rest in the file, both in small windows. */
static void start(struct site *s)
{
	char model[4200];

	snprintf(model, sizeof(model), "atlas=%s", model_path());
	site_start(s,
		(const char *const[]){"--model", model, "--place", "*=pinned", "--place",
			"blk.0.*=staged", "--window", "512K", NULL},
		0);
}

/* NULL: nothing was refused. */
static struct weights_client_acquired get(
	const struct site *s, const uint32_t *file_from, const uint32_t *memfd_from)
{
	struct weights_client *c = connect_client(s);
	struct weights_client_acquired a;

	weights_client_set_handle_types(c, ALL);
	if (file_from)
		assert_int_equal(weights_client_add_refusal(c, WEIGHTS_CLIENT_FILE, *file_from), 0);
	if (memfd_from)
		assert_int_equal(
			weights_client_add_refusal(c, WEIGHTS_CLIENT_MEMFD, *memfd_from), 0);
	a = acquire(c, "atlas");
	weights_client_free(c);
	return a;
}

static void check_same_bytes(
	const struct weights_client_alloc *a, const struct weights_client_alloc *b)
{
	void *x = mmap(NULL, a->n_bytes, PROT_READ, MAP_SHARED, a->fd, (off_t)a->file_offset);
	void *y = mmap(NULL, b->n_bytes, PROT_READ, MAP_SHARED, b->fd, (off_t)b->file_offset);

	assert_true(x != MAP_FAILED && y != MAP_FAILED);
	assert_memory_equal(x, y, a->buffer_bytes);
	munmap(x, a->n_bytes);
	munmap(y, b->n_bytes);
}

/* Handle types and placements of all, and the bytes, against those without a refusal. */
static void check_moved(
	const struct weights_client_acquired *all, const struct site *s, uint32_t k, uint32_t j)
{
	struct weights_client_acquired a = get(s, &k, &j);

	assert_int_equal(a.n_allocs, all->n_allocs);
	for (uint32_t i = 0; i < a.n_allocs; i++) {
		const struct weights_client_alloc *was = &all->allocs[i], *is = &a.allocs[i];
		bool is_file = was->handle_type == WEIGHTS_CLIENT_FILE;
		uint32_t placement = was->placement;

		if (is_file && i >= k)
			placement = MANIFEST_PLACEMENT_STAGED;
		if (placement == MANIFEST_PLACEMENT_STAGED && i >= j)
			placement = MANIFEST_PLACEMENT_PAGED;
		assert_int_equal(is->placement, placement);
		assert_int_equal(is->handle_type, placement == MANIFEST_PLACEMENT_STAGED
							  ? WEIGHTS_CLIENT_MEMFD
							  : WEIGHTS_CLIENT_FILE);
		assert_int_equal(is->writable, placement == MANIFEST_PLACEMENT_STAGED);
		assert_int_equal(is->file_offset, was->file_offset);
		assert_int_equal(is->buffer_bytes, was->buffer_bytes);
		/* Only a copy is another file. */
		assert_int_equal(
			is->inode != was->inode, is_file && placement == MANIFEST_PLACEMENT_STAGED);
		check_same_bytes(was, is);
	}
	weights_client_acquired_fini(&a);
}

static void test_moves_what_follows(void **state)
{
	struct site s;

	(void)state;
	start(&s);
	struct weights_client_acquired all = get(&s, NULL, NULL);
	uint32_t n = all.n_allocs, n_memfd = 0;

	while (n_memfd < n && all.allocs[n_memfd].handle_type == WEIGHTS_CLIENT_MEMFD)
		n_memfd++;
	assert_true(n_memfd >= 2 && n >= n_memfd + 5);
	for (uint32_t i = n_memfd; i < n; i++)
		assert_int_equal(all.allocs[i].placement, MANIFEST_PLACEMENT_PINNED);
	/* The file in the middle, the memfd behind it; the other way round; and whole. */
	check_moved(&all, &s, n_memfd + 3, n);
	check_moved(&all, &s, n_memfd + 2, n_memfd + 4);
	check_moved(&all, &s, n_memfd + 2, 1);
	check_moved(&all, &s, n, 1);
	check_moved(&all, &s, n - 1, n);
	check_moved(&all, &s, 0, n);
	check_moved(&all, &s, 0, 0);
	weights_client_acquired_fini(&all);
	site_stop(&s);
}

/* Several who wait for the same copy, one that wants more of it, and one that has gone. */
static void test_waiting_for_the_copy(void **state)
{
	enum { N = 6 };
	struct site s;
	int socks[N];

	(void)state;
	start(&s);
	struct weights_client *c = connect_client(&s);
	const struct weights_client_device *d = weights_client_get_device(c);
	for (uint32_t i = 0; i < N; i++) {
		Wd__Request request = WD__REQUEST__INIT;
		Wd__Acquire m = WD__ACQUIRE__INIT;
		Wd__Refusal refusal = WD__REFUSAL__INIT;
		Wd__Refusal *refusals[] = {&refusal};

		socks[i] = greeted(&s);
		refusal.handle_type = WD__HANDLE_TYPE__HANDLE_TYPE_FILE;
		refusal.index = N - i;
		m.model = (char *)"atlas";
		m.device_uuid = (ProtobufCBinaryData){.data = (uint8_t *)d->uuid, .len = 16};
		m.driver_uuid = (ProtobufCBinaryData){.data = (uint8_t *)d->driver_uuid, .len = 16};
		m.handle_types = ALL;
		m.n_refusals = 1;
		m.refusals = refusals;
		request.id = 2;
		request.body_case = WD__REQUEST__BODY_ACQUIRE;
		request.acquire = &m;
		send_request(socks[i], &request, NULL);
	}
	close(socks[2]);
	for (uint32_t i = 0; i < N; i++) {
		if (i == 2)
			continue;
		Wd__Reply *reply = receive(socks[i]);
		assert_int_equal(reply->body_case, WD__REPLY__BODY_ACQUIRED);
		for (uint32_t k = N - i; k < reply->acquired->n_allocations; k++)
			assert_int_equal(reply->acquired->allocations[k]->placement,
				WD__PLACEMENT__PLACEMENT_STAGED);
		wd__reply__free_unpacked(reply, NULL);
		close(socks[i]);
	}
	weights_client_free(c);
	site_stop(&s);
}

/* What a peer may say of refusals is checked, and it goes on being served. */
static void test_bad_refusals(void **state)
{
	static const struct {
		uint32_t types[3];
		uint32_t index;
		uint32_t n;
	} rows[] = {
		{{0}, 0, 1},
		{{WEIGHTS_CLIENT_N_HANDLES}, 0, 1},
		{{UINT32_MAX}, 0, 1},
		{{WEIGHTS_CLIENT_FILE, WEIGHTS_CLIENT_MEMFD, WEIGHTS_CLIENT_FILE}, 3, 3},
		{{WEIGHTS_CLIENT_FILE}, UINT32_MAX, 1},
	};
	struct site s;

	(void)state;
	start(&s);
	struct weights_client *c = connect_client(&s);
	const struct weights_client_device *d = weights_client_get_device(c);
	int sock = greeted(&s);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		Wd__Request request = WD__REQUEST__INIT;
		Wd__Acquire m = WD__ACQUIRE__INIT;
		Wd__Refusal refusals[3];
		Wd__Refusal *list[3];

		for (uint32_t k = 0; k < rows[i].n; k++) {
			wd__refusal__init(&refusals[k]);
			refusals[k].handle_type = (Wd__HandleType)rows[i].types[k];
			refusals[k].index = rows[i].index;
			list[k] = &refusals[k];
		}
		m.model = (char *)"atlas";
		m.device_uuid = (ProtobufCBinaryData){.data = (uint8_t *)d->uuid, .len = 16};
		m.driver_uuid = (ProtobufCBinaryData){.data = (uint8_t *)d->driver_uuid, .len = 16};
		m.handle_types = ALL;
		m.n_refusals = rows[i].n;
		m.refusals = list;
		request.id = 2 + i;
		request.body_case = WD__REQUEST__BODY_ACQUIRE;
		request.acquire = &m;
		send_request(sock, &request, NULL);
		expect_error(sock, "Acquire: refusals: expected each");
	}
	close(sock);
	assert_string_equal(get_state(c, 1), "ready");
	weights_client_free(c);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_moves_what_follows),
		CASE(test_waiting_for_the_copy),
		CASE(test_bad_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
