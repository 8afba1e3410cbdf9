/* SPDX-License-Identifier: Apache-2.0 */
/* The baton of a device: all workers of weightd have the same memory, whatever socket they come by,
 * and none can take it away from the others. */
#include "tests/e2e/listen-site.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/baton.h"
#include "proto/weights-baton.h"

static int take(struct weights_client *c)
{
	struct err e = ERR_NULL;
	int fd = -1;

	check(weights_baton_take(c, weights_client_get_device(c)->uuid, &e, &fd), &e, "baton");
	return fd;
}

static uint32_t *map(int fd)
{
	void *memory = mmap(NULL, BATON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static void test_same_memory(void **state)
{
	static const char *const listens[] = {"blue.sock,models=other,leases=1", NULL};
	struct site s;
	int fds[3];
	uint32_t *words[3];

	(void)state;
	listen_start(&s, listens);
	struct site blue = listen_at(&s, "blue.sock");
	struct weights_client *clients[] = {
		connect_client(&s), connect_client(&s), connect_client(&blue)};
	for (int i = 0; i < 3; i++) {
		struct stat st;

		fds[i] = take(clients[i]);
		assert_int_equal(fstat(fds[i], &st), 0);
		assert_int_equal(st.st_size, BATON_BYTES);
		words[i] = map(fds[i]);
		/* At first there is nothing in it, and what one writes the others read. */
		if (i == 0)
			for (uint32_t k = 0; k < BATON_BYTES / 4; k++)
				assert_int_equal(words[0][k], 0);
		words[i][7] = 100 + (uint32_t)i;
		assert_int_equal(words[0][7], 100 + (uint32_t)i);
	}
	/* A page that goes would kill who reads it. */
	assert_int_equal(ftruncate(fds[2], 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fds[2], 2 * BATON_BYTES), -1);
	for (int i = 0; i < 3; i++) {
		munmap(words[i], BATON_BYTES);
		close(fds[i]);
		weights_client_free(clients[i]);
	}
	site_stop(&s);
}

/* It is there as long as weightd is, though nobody has it. */
static void test_stays(void **state)
{
	static const char *const listens[] = {NULL};
	struct site s;

	(void)state;
	listen_start(&s, listens);
	for (uint32_t i = 0; i < 3; i++) {
		struct weights_client *c = connect_client(&s);
		int fd = take(c);
		uint32_t *words = map(fd);

		assert_int_equal(words[0], i);
		words[0] = i + 1;
		munmap(words, BATON_BYTES);
		close(fd);
		weights_client_free(c);
	}
	site_stop(&s);
}

static void test_refused(void **state)
{
	static const char *const listens[] = {NULL};
	struct err e = ERR_NULL;
	uint8_t uuid[16];
	struct site s;
	int fd = -1;

	(void)state;
	listen_start(&s, listens);
	struct weights_client *c = connect_client(&s);
	memcpy(uuid, weights_client_get_device(c)->uuid, sizeof(uuid));
	uuid[3] ^= 1;
	assert_int_equal(weights_baton_take(c, uuid, &e, &fd), -ENOTSUP);
	assert_non_null(strstr(e.text, "TakeBaton"));
	assert_int_equal(fd, -1);
	/* The connection goes on. */
	close(take(c));
	weights_client_free(c);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_same_memory),
		CASE(test_stays),
		CASE(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
