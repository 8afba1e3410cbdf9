/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device can import, found by this program executed again. TEST_PROBE in the environment
 * makes the other one misbehave, TEST_PROBE_LOG names a file that grows by a byte with each that
 * starts.
 */
#include "tests/vulkan/on-device.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <vulkan/vulkan_core.h>

#include "vk/probe-cache.h"
#include "vk/probe.h"

VkResult __real_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret);
void __real_vkCmdCopyBuffer(VkCommandBuffer buffer, VkBuffer src, VkBuffer dst, uint32_t n,
	const VkBufferCopy *regions);
void __wrap_vkCmdCopyBuffer(VkCommandBuffer buffer, VkBuffer src, VkBuffer dst, uint32_t n,
	const VkBufferCopy *regions);

static const char *get_mode(void)
{
	return getenv("TEST_PROBE") ?: "";
}

VkResult __wrap_vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret)
{
	if (!strcmp(get_mode(), "full"))
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	if (!strcmp(get_mode(), "refuse"))
		for (const VkBaseInStructure *s = info->pNext; s; s = s->pNext)
			if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT)
				return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	return __real_vkAllocateMemory(device, info, allocator, ret);
}

/* A driver that says yes and reads nothing, or reads a copy made at the import. */
void __wrap_vkCmdCopyBuffer(
	VkCommandBuffer buffer, VkBuffer src, VkBuffer dst, uint32_t n, const VkBufferCopy *regions)
{
	static int n_copies;

	if (!strcmp(get_mode(), "blind") || (!strcmp(get_mode(), "stale") && n_copies++ > 0))
		return;
	__real_vkCmdCopyBuffer(buffer, src, dst, n, regions);
}

/* The child, when it is to misbehave before it has begun. */
static void misbehave(const char *mode, char **argv)
{
	const char *log = getenv("TEST_PROBE_LOG");
	int fd = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd >= 0 && write(fd, "x", 1) == 1)
		close(fd);
	if (!strcmp(mode, "hang"))
		pause();
	if (!strcmp(mode, "hang-silently")) {
		close(STDOUT_FILENO);
		pause();
	}
	/* A sanitizer would make an exit of it. */
	signal(SIGBUS, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	if (!strcmp(mode, "crash"))
		raise(SIGBUS);
	if (!strcmp(mode, "crash-late")) {
		printf("probe %s yes\n", argv[3]);
		fflush(stdout);
		raise(SIGSEGV);
	}
	if (!strcmp(mode, "exit"))
		_exit(3);
	if (!strcmp(mode, "silent"))
		_exit(0);
	if (!strcmp(mode, "garbage"))
		printf("probe %s perhaps\n", argv[3]);
	else if (!strcmp(mode, "two"))
		printf("probe %s yes\nprobe %s yes\n", argv[3], argv[3]);
	else if (!strcmp(mode, "other"))
		printf("probe %s yes\n", strcmp(argv[3], "memfd") ? "memfd" : "disk");
	else if (!strcmp(mode, "unended"))
		printf("probe %s yes", argv[3]);
	else if (!strcmp(mode, "escape"))
		printf("probe %s no \033[2J\n", argv[3]);
	else if (!strcmp(mode, "nul"))
		printf("probe %s yes%c\n", argv[3], 0);
	else if (!strcmp(mode, "flood"))
		for (;;)
			puts("probe memfd yes");
	else if (!strcmp(mode, "good"))
		printf("probe %s yes\n", argv[3]);
	else if (!strcmp(mode, "doubt"))
		printf("probe %s unsure the moon is full\n", argv[3]);
	else
		return;
	fflush(stdout);
	_exit(0);
}

static void run(const char *mode, uint32_t timeout_ms, struct vk_probe *ret_probe)
{
	struct vk_probe_params params = {.timeout_ms = timeout_ms};
	struct err e = ERR_NULL;

	setenv("TEST_PROBE", mode, 1);
	int r = vk_probe_run(on_device_select(), &params, &e, ret_probe);
	unsetenv("TEST_PROBE");
	on_device_check(r, &e, "probe");
}

static bool is_dma_buf(int kind)
{
	return kind == VK_PROBE_DMA_BUF || kind == VK_PROBE_DMA_BUF_HOST ||
	       kind == VK_PROBE_MEMFD_DMA_BUF;
}

/*
 * What is known beforehand of the software driver: it takes all pages, but tests/layer may have it
 * refuse those that NVIDIA 580 does and offer dma-bufs.
 */
static bool expect_ok(int kind)
{
	bool is_nvidia = getenv("WEIGHTD_LAYER_REFUSE") != NULL;

	if (is_dma_buf(kind))
		return getenv("WEIGHTD_LAYER_DMA_BUF") != NULL;
	/* The trial's file has no name any more, and the layer takes such a one for one on disk. */
	return !is_nvidia || (kind != VK_PROBE_MEMFD_READ_ONLY && kind != VK_PROBE_TMPFS &&
				     kind != VK_PROBE_TMPFS_READ_ONLY);
}

/* The truth, for whoever runs this on a new device. */
static void test_table(void **state)
{
	struct vk_probe probe;
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);

	(void)state;
	run("", 0, &probe);
	printf("%s, %s, transfer queue %s\n", info->name, info->driver,
		info->has_transfer_queue ? "of its own" : "shared");
	for (int i = 0; i < VK_PROBE_N; i++) {
		const struct vk_probe_result *k = &probe.kinds[i];

		printf("  %-16s %-6s %s\n", vk_probe_kind_name((enum vk_probe_kind)i),
			k->is_ok     ? "yes"
			: k->is_sure ? "no"
				     : "unsure",
			k->reason);
		assert_true(k->is_sure);
		assert_int_equal(k->is_ok, *k->reason == '\0');
		/* The cache's directory may be in memory, which is a no whatever the driver takes.
		 */
		bool is_disk = i == VK_PROBE_DISK || i == VK_PROBE_DISK_READ_ONLY;
		if (info->is_software && i != VK_PROBE_MEMFD_DMA_BUF && !is_disk)
			assert_int_equal(k->is_ok, expect_ok(i));
		if (info->is_software && is_disk && getenv("WEIGHTD_LAYER_REFUSE"))
			assert_false(k->is_ok);
	}
	assert_int_equal(probe.kinds[VK_PROBE_FD_DEVICE].is_ok, info->has_export_fd);
	/* Nobody gains by a dma-buf of host memory that the same driver does not take back. */
	if (!info->has_export_dma_buf || !info->has_import_dma_buf)
		assert_non_null(strstr(probe.kinds[VK_PROBE_DMA_BUF_HOST].reason, "dma-bufs"));
	if (!info->has_import_dma_buf)
		assert_non_null(strstr(probe.kinds[VK_PROBE_MEMFD_DMA_BUF].reason, "dma-bufs"));
	vk_device_free(d);
}

/* The driver's refusal is the reason, and ends with the process that met it. */
static void test_refusal(void **state)
{
	struct vk_probe probe;

	(void)state;
	run("refuse", 0, &probe);
	for (int i = 0; i <= VK_PROBE_DISK_READ_ONLY; i++) {
		const struct vk_probe_result *k = &probe.kinds[i];

		assert_true(k->is_sure);
		assert_false(k->is_ok);
		if (i != VK_PROBE_DISK && i != VK_PROBE_DISK_READ_ONLY)
			assert_non_null(strstr(k->reason, "VK_ERROR_OUT_OF_DEVICE_MEMORY"));
	}
	assert_true(probe.kinds[VK_PROBE_FD_DEVICE].is_ok);
}

/* Yes is not believed: the bytes are looked at, twice. */
static void test_verification(void **state)
{
	struct vk_probe probe;

	(void)state;
	run("blind", 0, &probe);
	assert_false(probe.kinds[VK_PROBE_ANONYMOUS].is_ok);
	assert_non_null(strstr(probe.kinds[VK_PROBE_MEMFD].reason, "the device read 0x00000000"));
	assert_false(probe.kinds[VK_PROBE_FD_DEVICE].is_ok);
	assert_false(probe.kinds[VK_PROBE_FD_HOST].is_ok);
	run("stale", 0, &probe);
	assert_false(probe.kinds[VK_PROBE_ANONYMOUS].is_ok);
	assert_false(probe.kinds[VK_PROBE_MEMFD].is_ok);
	assert_false(probe.kinds[VK_PROBE_TMPFS_READ_ONLY].is_ok);
	assert_false(probe.kinds[VK_PROBE_FD_HOST].is_ok);
	assert_false(probe.kinds[VK_PROBE_DMA_BUF_HOST].is_ok);
}

/* A device without memory left says nothing about its abilities. */
static void test_full_device(void **state)
{
	struct vk_probe probe;

	(void)state;
	run("full", 0, &probe);
	for (int i = 0; i < VK_PROBE_N; i++) {
		assert_false(probe.kinds[i].is_ok);
		assert_false(probe.kinds[i].is_sure);
		assert_non_null(strstr(probe.kinds[i].reason, "VK_ERROR_OUT_OF_DEVICE_MEMORY"));
	}
}

static void test_no_device(void **state)
{
	struct vk_probe probe;
	struct err e = ERR_NULL;

	(void)state;
	on_device_check(
		vk_probe_run("ffffffffffffffffffffffffffffffff", NULL, &e, &probe), &e, "probe");
	assert_false(probe.kinds[0].is_ok);
	assert_false(probe.kinds[0].is_sure);
	assert_non_null(strstr(probe.kinds[0].reason, "no device"));
}

static void test_bad_children(void **state)
{
	static const struct {
		const char *mode;
		bool is_sure;
		const char *reason;
	} rows[] = {
		{"crash", true, "signal 7 (Bus error)"},
		{"crash-late", true, "signal 11 (Segmentation fault)"},
		{"exit", false, "exit status 3"},
		{"silent", false, "no answer"},
		{"garbage", false, "no answer"},
		{"two", false, "no answer"},
		{"other", false, "no answer"},
		{"unended", false, "no answer"},
		{"escape", false, "no answer"},
		{"nul", false, "no answer"},
		{"flood", false, "no answer"},
		{"doubt", false, "the moon is full"},
	};
	struct vk_probe probe;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		run(rows[i].mode, 0, &probe);
		for (int k = 0; k < VK_PROBE_N; k++)
			if (probe.kinds[k].is_ok || probe.kinds[k].is_sure != rows[i].is_sure ||
				!strstr(probe.kinds[k].reason, rows[i].reason))
				fail_msg("%s, %s: %d %d \"%s\"", rows[i].mode,
					vk_probe_kind_name((enum vk_probe_kind)k),
					probe.kinds[k].is_ok, probe.kinds[k].is_sure,
					probe.kinds[k].reason);
	}
	run("good", 0, &probe);
	for (int k = 0; k < VK_PROBE_N; k++)
		assert_true(probe.kinds[k].is_ok && probe.kinds[k].is_sure);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void test_hang(void **state)
{
	static const char *const modes[] = {"hang", "hang-silently"};
	struct vk_probe probe;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(modes); i++) {
		uint64_t start = now_ms();

		run(modes[i], 300, &probe);
		assert_in_range(now_ms() - start, 600, 20000);
		for (int k = 0; k < VK_PROBE_N; k++) {
			assert_false(probe.kinds[k].is_ok || probe.kinds[k].is_sure);
			assert_non_null(strstr(probe.kinds[k].reason,
				k < 2 ? "took too long" : "two trials before it hung"));
		}
	}
	/* None of the killed is left, not even as a zombie. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* A program whose children are reaped by somebody else. */
static void test_lost_child(void **state)
{
	struct vk_probe probe;

	(void)state;
	signal(SIGCHLD, SIG_IGN);
	run("good", 0, &probe);
	signal(SIGCHLD, SIG_DFL);
	assert_false(probe.kinds[0].is_ok || probe.kinds[0].is_sure);
	assert_non_null(strstr(probe.kinds[0].reason, "end could not be seen"));
}

static char root[] = "/tmp/weightd-test-probe-XXXXXX";
static char dir[64], file[PATH_MAX], log_path[64];

/* A fresh directory for the cache. */
static void use_dir(void)
{
	static int n_dirs;

	snprintf(dir, sizeof(dir), "%s/%d", root, n_dirs++);
	setenv("WEIGHTD_CACHE", dir, 1);
}

/* The one file of the directory, its path in `file`. */
static bool find_file(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	if (!d)
		return false;
	for (struct dirent *entry; (entry = readdir(d));)
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
			snprintf(file, sizeof(file), "%s/%s", dir, entry->d_name);
			n++;
		}
	closedir(d);
	assert_true(n <= 1);
	return n == 1;
}

/* vk_probe_get with children of a mode; returns how many were started. */
static int get(const char *mode, const struct vk_device_info *info, struct vk_probe *ret_probe)
{
	struct err e = ERR_NULL;
	struct stat st = {0};

	(void)unlink(log_path);
	setenv("TEST_PROBE", mode, 1);
	setenv("TEST_PROBE_LOG", log_path, 1);
	int r = vk_probe_get(info, NULL, &e, ret_probe);
	unsetenv("TEST_PROBE");
	unsetenv("TEST_PROBE_LOG");
	on_device_check(r, &e, "probe");
	return stat(log_path, &st) ? 0 : (int)st.st_size;
}

static const struct vk_device_info some_device = {
	.name = "a device", .driver = "driver 1.2.3", .uuid = {0xa0, 1}, .driver_uuid = {0xb0, 2}};

static void test_cache(void **state)
{
	struct vk_device_info info = some_device;
	struct vk_probe probe, again;
	struct stat st;
	struct err e;

	(void)state;
	use_dir();
	assert_int_equal(get("crash", &info, &probe), VK_PROBE_N);
	assert_true(find_file());
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	/* Kept, whatever a child would say this time. */
	assert_int_equal(get("good", &info, &again), 0);
	assert_memory_equal(&again, &probe, sizeof(probe));
	/* Of another device, driver or version nothing is known. */
	info.uuid[15] = 1;
	assert_int_equal(get("doubt", &info, &again), VK_PROBE_N);
	info = some_device;
	info.driver_uuid[0] = 1;
	assert_int_equal(get("doubt", &info, &again), VK_PROBE_N);
	info = some_device;
	strcpy(info.driver, "driver 1.2.4");
	assert_int_equal(get("doubt", &info, &again), VK_PROBE_N);
	info = some_device;
	setenv("WEIGHTD_PROBE", "fresh", 1);
	assert_int_equal(get("good", &info, &again), VK_PROBE_N);
	assert_true(again.kinds[0].is_ok);
	setenv("WEIGHTD_PROBE", "off", 1);
	assert_int_equal(get("good", &info, &again), 0);
	assert_false(again.kinds[0].is_ok || again.kinds[0].is_sure);
	assert_non_null(strstr(again.kinds[VK_PROBE_N - 1].reason, "WEIGHTD_PROBE=off"));
	setenv("WEIGHTD_PROBE", "maybe", 1);
	assert_int_equal(vk_probe_get(&info, NULL, &e, &again), -EINVAL);
	unsetenv("WEIGHTD_PROBE");
	/* What was found afresh has replaced what was there. */
	assert_int_equal(get("crash", &info, &again), 0);
	assert_true(again.kinds[0].is_ok);
}

static void test_doubt_is_not_kept(void **state)
{
	struct vk_probe probe;

	(void)state;
	use_dir();
	assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
	assert_false(find_file());
	assert_int_equal(get("exit", &some_device, &probe), VK_PROBE_N);
	assert_false(find_file());
	/* Without a place to keep them the answers are still right. */
	snprintf(dir, sizeof(dir), "/proc/nothing");
	setenv("WEIGHTD_CACHE", dir, 1);
	assert_int_equal(get("good", &some_device, &probe), VK_PROBE_N);
	assert_true(probe.kinds[0].is_ok);
}

static void read_text(char ret_text[8192])
{
	FILE *f = fopen(file, "re");

	assert_non_null(f);
	ret_text[fread(ret_text, 1, 8191, f)] = '\0';
	fclose(f);
}

static void write_text(const char *text, size_t n_bytes)
{
	FILE *f = fopen(file, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, n_bytes, f), n_bytes);
	fclose(f);
}

static void expect_none(const char *text, size_t n_bytes)
{
	struct vk_probe probe;

	write_text(text, n_bytes);
	assert_int_equal(vk_probe_cache_load(&some_device, dir, &probe), -ENOENT);
}

/* Cut, lengthened or changed in any of its words, the file is as none. */
static void test_cache_damage(void **state)
{
	char text[8192], bad[8192 + 16];
	struct vk_probe probe;

	(void)state;
	use_dir();
	assert_int_equal(get("good", &some_device, &probe), VK_PROBE_N);
	assert_true(find_file());
	read_text(text);
	size_t n = strlen(text);
	for (size_t at = 0; at < n; at++) {
		expect_none(text, at);
		memcpy(bad, text, n);
		bad[at] = bad[at] == '!' ? '?' : '!';
		expect_none(bad, n);
		bad[at] = '\0';
		expect_none(bad, n);
	}
	snprintf(bad, sizeof(bad), "%s\n", text);
	expect_none(bad, n + 1);
	write_text(text, n);
	assert_int_equal(truncate(file, 1 << 20), 0);
	assert_int_equal(vk_probe_cache_load(&some_device, dir, &probe), -ENOENT);
	write_text(text, n);
	assert_int_equal(get("doubt", &some_device, &probe), 0);
	/* It is of one directory. */
	assert_int_equal(vk_probe_cache_load(&some_device, "/elsewhere", &probe), -ENOENT);
}

/* Nobody else's word is taken for what this device can do. */
static void test_cache_foreign(void **state)
{
	char target[128];
	struct vk_probe probe;

	(void)state;
	use_dir();
	assert_int_equal(get("good", &some_device, &probe), VK_PROBE_N);
	assert_true(find_file());
	assert_int_equal(chmod(dir, 0770), 0);
	assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
	assert_int_equal(chmod(dir, 0700), 0);
	assert_int_equal(get("doubt", &some_device, &probe), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(dir, 12345, 12345), 0);
		assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
		assert_int_equal(chown(dir, 0, 0), 0);
		assert_int_equal(chown(file, 12345, 12345), 0);
		assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
		assert_int_equal(chown(file, 0, 0), 0);
	}
	snprintf(target, sizeof(target), "%s/elsewhere", root);
	assert_int_equal(rename(file, target), 0);
	assert_int_equal(symlink(target, file), 0);
	assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(mkfifo(file, 0600), 0);
	assert_int_equal(get("doubt", &some_device, &probe), VK_PROBE_N);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rename(target, file), 0);
	assert_int_equal(get("doubt", &some_device, &probe), 0);
}

static void test_lines(void **state)
{
	static const char *const bad[] = {"", "memfd", "memfd ", "memfd no", "memfd no ",
		"memfd Yes", "memfd yes ", " memfd yes", "memfd  yes", "memfdyes", "mem yes",
		"unknown no reason", "memfd unsure", "memfd-sealedyes", "memfd no a\tb",
		"memfd no \x7f"};
	struct vk_probe_result result = {.is_ok = true, .reason = "untouched"};
	char line[VK_PROBE_CACHE_LINE_BYTES], text[600];
	enum vk_probe_kind kind = VK_PROBE_N;

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		if (vk_probe_cache_parse_line(bad[i], true, &kind, &result))
			fail_msg("\"%s\" was taken", bad[i]);
	assert_false(vk_probe_cache_parse_line("memfd unsure x", false, &kind, &result));
	snprintf(text, sizeof(text), "memfd no %0*d", VK_PROBE_REASON_BYTES, 7);
	assert_false(vk_probe_cache_parse_line(text, true, &kind, &result));
	assert_string_equal(result.reason, "untouched");
	assert_true(vk_probe_cache_parse_line("memfd-sealed yes", false, &kind, &result));
	assert_int_equal(kind, VK_PROBE_MEMFD_SEALED);
	assert_true(result.is_ok && result.is_sure && !*result.reason);
	assert_true(vk_probe_cache_parse_line("disk unsure so", true, &kind, &result));
	assert_int_equal(kind, VK_PROBE_DISK);
	assert_false(result.is_ok || result.is_sure);
	/* The longest reason fits, and a name with a line break forges nothing. */
	result = (struct vk_probe_result){.is_sure = true};
	memset(result.reason, '\n', VK_PROBE_REASON_BYTES - 1);
	int n = vk_probe_cache_format_line(VK_PROBE_MEMFD_READ_ONLY, &result, line);
	assert_int_equal(n, strlen(line));
	assert_ptr_equal(strchr(line, '\n'), line + n - 1);
	line[n - 1] = '\0';
	assert_true(vk_probe_cache_parse_line(line, false, &kind, &result));
	assert_int_equal(strlen(result.reason), VK_PROBE_REASON_BYTES - 1);
}

static void test_usage(void **state)
{
	char *words[] = {(char *)"program", (char *)"--probe", (char *)"software",
		(char *)"no-such-kind", (char *)"/tmp", NULL};

	(void)state;
	assert_int_equal(vk_probe_main(2, words), 2);
	assert_int_equal(vk_probe_main(4, words), 2);
	assert_int_equal(vk_probe_main(5, words), 2);
	assert_string_equal(vk_probe_kind_name(VK_PROBE_N), "unknown");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(test_table),
		CASE(test_refusal),
		CASE(test_verification),
		CASE(test_full_device),
		CASE(test_no_device),
		CASE(test_bad_children),
		CASE(test_hang),
		CASE(test_lost_child),
		CASE(test_cache),
		CASE(test_doubt_is_not_kept),
		CASE(test_cache_damage),
		CASE(test_cache_foreign),
		CASE(test_lines),
		CASE(test_usage),
	};
	char command[128];

	if (argc > 1 && !strcmp(argv[1], "--probe")) {
		if (argc == 5)
			misbehave(get_mode(), argv);
		return vk_probe_main(argc, argv);
	}
	on_device_warm_up();
	if (!mkdtemp(root))
		return 1;
	snprintf(log_path, sizeof(log_path), "%s/log", root);
	use_dir();
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command) ? 1 : r;
}
