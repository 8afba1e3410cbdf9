/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of what a loader holds: what is told of them, and what becomes of those that cannot be
 * made.
 */
#include "tests/vulkan/on-device.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <vulkan/vulkan_core.h>

#include "weightd/check.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/policy.h"
#include "weightd/source.h"
#include "weightd/sum.h"
#include "weightd/sums.h"

enum { WAIT_MS = 50000 };

VkResult __real_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);
VkResult __wrap_vkQueueSubmit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence);

static atomic_bool is_lost; /* the next submission loses the device */

VkResult __wrap_vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	if (atomic_exchange(&is_lost, false))
		return VK_ERROR_DEVICE_LOST;
	return __real_vkQueueSubmit2(queue, n, infos, fence);
}

static struct source_account account;
static struct sum_key key;

/* A copy of the model that may be handed out for writing. */
static struct source *make_source(int *ret_fd)
{
	char path[4096];
	struct stat st;
	struct source *source = NULL;
	struct err e = ERR_NULL;

	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	int from = open(path, O_RDONLY | O_CLOEXEC), fd = memfd_create("test", MFD_CLOEXEC);
	assert_true(from >= 0 && fd >= 0 && fstat(from, &st) == 0);
	uint8_t *data = malloc((size_t)st.st_size);
	assert_non_null(data);
	assert_int_equal(read(from, data, (size_t)st.st_size), st.st_size);
	assert_int_equal(write(fd, data, (size_t)st.st_size), st.st_size);
	free(data);
	close(from);
	on_device_check(source_new(fd, true, &account, &e, &source), &e, "source");
	if (ret_fd)
		*ret_fd = fd;
	else
		close(fd);
	return source;
}

static struct loader *start(const struct policy *policy)
{
	const struct loader_params params = {
		.device = on_device_select(), .policy = policy, .account = &account, .key = &key};
	struct loader *l = NULL;
	struct err e = ERR_NULL;

	on_device_check(loader_new(&params, &e, &l), &e, "loader");
	return l;
}

/* What a check hands over. */
static void drop(struct loader_result *r)
{
	free(r->report);
	free(r->sums);
}

static struct loader_result wait_result(struct loader *l)
{
	struct loader_result r;

	for (;;) {
		struct pollfd p = {.fd = loader_get_fd(l), .events = POLLIN};
		while (loader_take_result(l, &r))
			if (r.kind != LOADER_PROGRESS)
				return r;
		assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	}
}

static struct loader_result load(struct loader *l, uint64_t generation, struct source *source)
{
	struct err e = ERR_NULL;

	on_device_check(loader_load(l, generation, source, false, &e), &e, "load");
	return wait_result(l);
}

static void start_check(struct loader *l, struct export *e, uint64_t tag)
{
	struct err err = ERR_NULL;

	on_device_check(loader_check(l, e, tag, &err), &err, "check");
}

static void test_clean(void **state)
{
	static const struct policy policy;
	struct source *source = make_source(NULL);
	struct loader *l = start(&policy);
	struct loader_result loaded = load(l, 3, source);
	uint8_t identity[IDENTITY_BYTES];

	(void)state;
	assert_int_equal(loaded.kind, LOADER_READY);
	assert_true(sums_is_complete(check_get_sums(loaded.export->check)));
	assert_true(check_get_identity(loaded.export->check, identity));
	uint64_t clean_ns = check_get_clean_ns(loaded.export->check);
	assert_int_not_equal(clean_ns, 0);
	start_check(l, loaded.export, 77);
	struct loader_result r = wait_result(l);
	assert_int_equal(r.kind, LOADER_CHECKED);
	assert_int_equal(r.tag, 77);
	assert_int_equal(r.generation, 3);
	assert_int_equal(r.code, 0);
	assert_int_equal(r.report->n_bytes, check_get_bytes(loaded.export->check));
	assert_int_equal(r.report->n_tensors, 0);
	assert_true(check_get_clean_ns(loaded.export->check) > clean_ns);
	drop(&r);
	source_unref(source);
	loader_free(l);
}

/* A second load of a generation that brings other bytes is refused, with the tensor's name. */
static void test_other_bytes(void **state)
{
	static const struct policy policy;
	int fd;
	struct source *source = make_source(&fd);
	struct loader *l = start(&policy);
	struct stat st;
	uint8_t byte;

	(void)state;
	assert_int_equal(load(l, 1, source).kind, LOADER_READY);
	assert_int_equal(load(l, 1, source).kind, LOADER_READY);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(pread(fd, &byte, 1, st.st_size - 1), 1);
	byte ^= 0x20;
	assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 1), 1);
	struct loader_result r = load(l, 1, source);
	assert_int_equal(r.kind, LOADER_FAILED);
	assert_int_equal(r.code, -EBADMSG);
	assert_non_null(strstr(r.err.text, "not those that were loaded before"));
	close(fd);
	source_unref(source);
	loader_free(l);
}

/* Released before its turn: answered, and not looked at. */
static void test_released(void **state)
{
	static const struct policy policy;
	struct source *source = make_source(NULL);
	struct loader *l = start(&policy);
	struct loader_result loaded = load(l, 1, source);
	uint32_t n_done = 0, n_dropped = 0;

	(void)state;
	for (uint64_t tag = 1; tag <= 8; tag++)
		start_check(l, loaded.export, tag);
	loader_release(l, loaded.export);
	for (uint64_t tag = 1; tag <= 8; tag++) {
		struct loader_result r = wait_result(l);
		assert_int_equal(r.kind, LOADER_CHECKED);
		assert_true(r.code == 0 || r.code == -ECANCELED);
		n_done += r.code == 0;
		n_dropped += r.code == -ECANCELED;
		drop(&r);
	}
	assert_int_equal(n_done + n_dropped, 8);
	source_unref(source);
	loader_free(l);
}

/* Left for loader_free: no report is lost. */
static void test_left(void **state)
{
	static const struct policy policy;
	struct source *source = make_source(NULL);
	struct loader *l = start(&policy);
	struct loader_result loaded = load(l, 1, source);

	(void)state;
	for (uint64_t tag = 1; tag <= 8; tag++)
		start_check(l, loaded.export, tag);
	source_unref(source);
	loader_free(l);
}

static void test_device_lost(void **state)
{
	static const struct policy policy;
	struct source *source = make_source(NULL);
	struct loader *l = start(&policy);
	struct loader_result loaded = load(l, 1, source);

	(void)state;
	atomic_store(&is_lost, true);
	start_check(l, loaded.export, 1);
	struct loader_result r = wait_result(l);
	assert_int_equal(r.kind, LOADER_CHECKED);
	assert_int_equal(r.code, -EIO);
	assert_true(r.is_device_lost);
	drop(&r);
	/* Its memory is gone; that is no difference. */
	start_check(l, loaded.export, 2);
	r = wait_result(l);
	assert_int_equal(r.code, -ENODEV);
	assert_int_equal(r.report->n_tensors, 0);
	drop(&r);
	/* A new device sums too. */
	loaded = load(l, 2, source);
	assert_int_equal(loaded.kind, LOADER_READY);
	start_check(l, loaded.export, 3);
	r = wait_result(l);
	assert_int_equal(r.code, 0);
	drop(&r);
	source_unref(source);
	loader_free(l);
}

/* A byte of the memfd, changed and changed back. */
static void test_staged(void **state)
{
	struct policy policy = {0};
	struct source *source = make_source(NULL);
	struct err e = ERR_NULL;
	uint8_t byte;

	(void)state;
	on_device_check(policy_add_rule(&policy, "*=staged", &e), &e, "rule");
	struct loader *l = start(&policy);
	struct loader_result loaded = load(l, 1, source);
	assert_int_equal(loaded.kind, LOADER_READY);
	int fd = source_get_memfd(source);
	assert_int_equal(pread(fd, &byte, 1, 0), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
	start_check(l, loaded.export, 1);
	struct loader_result r = wait_result(l);
	assert_int_equal(r.code, 0);
	assert_int_equal(r.report->n_tensors, 1);
	assert_int_equal(r.report->n_differences, 1);
	assert_false(r.report->is_in_file);
	assert_int_equal(r.report->differences[0].offset, 0);
	drop(&r);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
	start_check(l, loaded.export, 2);
	r = wait_result(l);
	assert_int_equal(r.report->n_tensors, 0);
	drop(&r);
	source_unref(source);
	loader_free(l);
}

/* Sums that were kept outside find what changed meanwhile; those of another model are refused. */
static void test_kept_sums(void **state)
{
	static const uint8_t description[IDENTITY_BYTES] = {1};
	static struct check_report report;
	const struct check_means means = {.key = &key};
	struct policy policy = {0};
	struct source *source = make_source(NULL);
	struct sums *sums = NULL, *other = NULL;
	struct check *check = NULL;
	struct err e = ERR_NULL;
	uint8_t *data = NULL, byte;
	uint64_t n_bytes;

	(void)state;
	on_device_check(policy_add_rule(&policy, "*=staged", &e), &e, "rule");
	struct loader *l = start(&policy);
	struct export *x = load(l, 1, source).export;
	assert_int_equal(sums_pack(check_get_sums(x->check), &data, &n_bytes), 0);
	on_device_check(sums_unpack(data, n_bytes, &e, &sums), &e, "unpack");
	free(data);
	on_device_check(check_new(x->manifest_fd, description, sums, &e, &check), &e, "check");
	on_device_check(check_run(check, x, &means, CHECK_ALL, &e, &report), &e, "run");
	assert_int_equal(report.n_tensors, 0);
	assert_int_equal(pread(source_get_memfd(source), &byte, 1, 0), 1);
	byte ^= 0x80;
	assert_int_equal(pwrite(source_get_memfd(source), &byte, 1, 0), 1);
	on_device_check(check_run(check, x, &means, CHECK_ALL, &e, &report), &e, "run");
	assert_int_equal(report.n_tensors, 1);
	check_free(check);
	assert_int_equal(sums_new(1, (const uint64_t[]){5}, &other), 0);
	assert_int_equal(check_new(x->manifest_fd, description, other, &e, &check), -EINVAL);
	sums_free(other);
	source_unref(source);
	loader_free(l);
}

static void test_cut_file(void **state)
{
	struct policy policy = {0};
	int fd;
	struct source *source = make_source(&fd);
	struct err e = ERR_NULL;
	struct stat st;

	(void)state;
	on_device_check(policy_add_rule(&policy, "*=paged", &e), &e, "rule");
	struct loader *l = start(&policy);
	struct export *x = load(l, 1, source).export;
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
	start_check(l, x, 1);
	struct loader_result r = wait_result(l);
	assert_int_equal(r.code, -ENODATA);
	assert_int_equal(r.report->n_tensors, 0);
	drop(&r);
	close(fd);
	source_unref(source);
	loader_free(l);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_clean),
		CASE(test_other_bytes),
		CASE(test_released),
		CASE(test_left),
		CASE(test_device_lost),
		CASE(test_staged),
		CASE(test_kept_sums),
		CASE(test_cut_file),
	};

	sum_key_init(&key, (const uint8_t[SUM_SECRET_BYTES]){2});
	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
