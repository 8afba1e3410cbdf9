/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver makes an import wait while other processes open the device and are killed: the
 * part of attaching that no program of ours can shorten. One process imports the same 6 MB again
 * and again, each time with a device of its own as a worker has, first alone and then beside
 * N_BESIDE processes that do nothing but open the device, and die at a random moment.
 *
 *	bench-neighbours                   WEIGHTD_TEST_DEVICE as for the tests
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "proto/util/clock.h"
#include "tests/vulkan/on-device.h"
#include "vk/share.h"

enum { N_ROUNDS = 60, N_BESIDE = 4, N_BYTES = 6 << 20 };

struct victim {
	pid_t pid;
	uint64_t until_ns;
};

static pid_t start(const char *what)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl("/proc/self/exe", "bench-neighbours", what, (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* Opens the device and stays until it is killed. */
static int be_victim(void)
{
	struct vk_device *d = on_device_new();

	pause();
	vk_device_free(d);
	return 0;
}

/* Stays for up to four times what opening a device takes. */
static void keep_dying(struct victim *victims, uint64_t open_ns)
{
	for (int i = 0; i < N_BESIDE; i++) {
		struct victim *v = &victims[i];

		if (v->pid && clock_now_ns() < v->until_ns)
			continue;
		if (v->pid) {
			kill(v->pid, SIGKILL);
			waitpid(v->pid, NULL, 0);
		}
		v->pid = start("--victim");
		v->until_ns = clock_now_ns() + (uint64_t)rand() % (4 * open_ns);
	}
}

/* A process of its own that opens a device, imports once, and says how long that took. */
static double time_import(struct vk_memory *m, struct victim *victims, uint64_t open_ns)
{
	struct vk_share_params share;
	struct err e = ERR_NULL;
	int fd, out[2], status;
	double ms = 0;

	on_device_check(vk_share_export(m, &e, &fd, &share), &e, "export");
	if (pipe(out) < 0)
		fail_msg("pipe: %m");
	pid_t pid = fork();
	if (pid == 0) {
		char text[2][16];

		dup2(fd, 10);
		dup2(out[1], 11);
		snprintf(text[0], sizeof(text[0]), "%u", share.memory_type_index);
		snprintf(text[1], sizeof(text[1]), "%llu", (unsigned long long)share.n_bytes);
		execl("/proc/self/exe", "bench-neighbours", "--import", text[0], text[1],
			(char *)NULL);
		_exit(127);
	}
	close(fd);
	close(out[1]);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (victims)
			keep_dying(victims, open_ns);
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	if (read(out[0], &ms, sizeof(ms)) != sizeof(ms))
		fail_msg("an import ended with %d", status);
	close(out[0]);
	return ms;
}

static int be_importer(char **argv)
{
	struct vk_device *d = on_device_new();
	struct vk_share_params share = {.n_bytes = strtoull(argv[3], NULL, 10),
		.buffer_bytes = N_BYTES,
		.memory_type_index = (uint32_t)strtoul(argv[2], NULL, 10),
		.handle = VK_HANDLE_OPAQUE_FD};
	struct err e = ERR_NULL;
	struct vk_memory *m;
	uint64_t start_ns = clock_now_ns();

	on_device_check(
		vk_share_import(d, 10, &share, VK_MEMORY_WEIGHTS, "bench", &e, &m), &e, "import");
	double ms = (double)(clock_now_ns() - start_ns) / 1e6;
	ssize_t n = write(11, &ms, sizeof(ms));
	vk_memory_free(m);
	vk_device_free(d);
	return n == sizeof(ms) ? 0 : 1;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_row(const char *name, double *ms)
{
	qsort(ms, N_ROUNDS, sizeof(*ms), compare);
	double median = ms[N_ROUNDS / 2], p99 = ms[N_ROUNDS * 99 / 100];

	printf("%-28s median %6.2f ms, p90 %6.2f, p99 %6.2f (%.1f x)\n", name, median,
		ms[N_ROUNDS * 9 / 10], p99, p99 / median);
}

int main(int argc, char **argv)
{
	struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
		.n_bytes = N_BYTES,
		.is_exportable = true,
		.name = "bench"};
	struct victim victims[N_BESIDE] = {0};
	double alone[N_ROUNDS], beside[N_ROUNDS];
	struct err e = ERR_NULL;
	struct vk_memory *m;

	if (argc == 2 && !strcmp(argv[1], "--victim"))
		return be_victim();
	if (argc == 4 && !strcmp(argv[1], "--import"))
		return be_importer(argv);
	uint64_t start_ns = clock_now_ns();
	struct vk_device *d = on_device_new();
	uint64_t open_ns = clock_now_ns() - start_ns;
	on_device_check(vk_memory_new(d, &params, &e, &m), &e, "memory");
	printf("%s, %s\n%d imports of %d bytes, a process each\n", vk_device_get_info(d)->name,
		vk_device_get_info(d)->driver, N_ROUNDS, N_BYTES);
	for (int i = 0; i < N_ROUNDS; i++)
		alone[i] = time_import(m, NULL, 0);
	for (int i = 0; i < N_ROUNDS; i++)
		beside[i] = time_import(m, victims, open_ns);
	for (int i = 0; i < N_BESIDE; i++) {
		kill(victims[i].pid, SIGKILL);
		waitpid(victims[i].pid, NULL, 0);
	}
	print_row("alone", alone);
	print_row("beside processes that die", beside);
	vk_memory_free(m);
	vk_device_free(d);
	return 0;
}
