/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/probe-cache.h"
#include "vk/probe-child.h"
#include "vk/store.h"

enum {
	DEFAULT_TIMEOUT_MS = 20 * 1000,
	/* A killed process in the middle of a driver call may take a while, or for ever. */
	KILL_TIMEOUT_MS = 2000,
	/* Of the child itself, should its parent be gone: longer than any timeout of a parent. */
	CHILD_SECONDS = 120,
	MAX_HUNG = 2,
};

static const char *const kind_names[VK_PROBE_N] = {
	[VK_PROBE_ANONYMOUS] = "anonymous",
	[VK_PROBE_MEMFD] = "memfd",
	[VK_PROBE_MEMFD_SEALED] = "memfd-sealed",
	[VK_PROBE_MEMFD_READ_ONLY] = "memfd-read-only",
	[VK_PROBE_TMPFS] = "tmpfs",
	[VK_PROBE_TMPFS_READ_ONLY] = "tmpfs-read-only",
	[VK_PROBE_DISK] = "disk",
	[VK_PROBE_DISK_READ_ONLY] = "disk-read-only",
	[VK_PROBE_FD_DEVICE] = "fd-device",
	[VK_PROBE_FD_HOST] = "fd-host",
	[VK_PROBE_DMA_BUF] = "dma-buf",
	[VK_PROBE_DMA_BUF_HOST] = "dma-buf-host",
	[VK_PROBE_MEMFD_DMA_BUF] = "memfd-dma-buf",
};

const char *vk_probe_kind_name(enum vk_probe_kind kind)
{
	return (unsigned)kind < VK_PROBE_N ? kind_names[kind] : "unknown";
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void set_no(
	struct vk_probe_result *ret_result, bool is_sure, const char *reason, const char *detail)
{
	*ret_result = (struct vk_probe_result){.is_sure = is_sure};
	snprintf(ret_result->reason, sizeof(ret_result->reason), "%s%s", reason, detail);
}

/* Signals as a program finds them at its start: a daemon blocks some and ignores others. */
static int set_signals(posix_spawnattr_t *attr)
{
	sigset_t none, usual;

	sigemptyset(&none);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE);
	sigaddset(&usual, SIGALRM);
	sigaddset(&usual, SIGCHLD);
	int r = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if (!r)
		r = posix_spawnattr_setsigmask(attr, &none);
	if (!r)
		r = posix_spawnattr_setsigdefault(attr, &usual);
	return r;
}

/* This program with the words of one trial; its stdout is `out`, and no other of our descriptors is
 * left to it: a driver's are not all O_CLOEXEC. */
static int spawn(char *const argv[], int out, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;

	int r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	r = posix_spawnattr_init(&attr);
	if (r) {
		posix_spawn_file_actions_destroy(&actions);
		return -r;
	}
	r = set_signals(&attr);
	if (!r)
		r = posix_spawn_file_actions_addopen(
			&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	if (!r)
		r = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	if (!r)
		r = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/* Reads until the end of the pipe, the deadline (-ETIMEDOUT) or more than fits (-EMSGSIZE). */
static int read_until(int fd, uint64_t deadline_ms, char *ret_text, size_t max_bytes)
{
	size_t n = 0;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		uint64_t now = now_ms();

		if (now >= deadline_ms)
			return -ETIMEDOUT;
		int r = poll(&p, 1, (int)(deadline_ms - now));
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r <= 0)
			continue;
		ssize_t got = read(fd, ret_text + n, max_bytes - n);
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got == 0) {
			ret_text[n] = '\0';
			return strlen(ret_text) == n ? 0 : -EMSGSIZE;
		}
		if (got > 0)
			n += (size_t)got;
		if (n == max_bytes)
			return -EMSGSIZE;
	}
}

/* The exit status, or -ETIMEDOUT. Asks again and again: SIGCHLD may be the program's own. */
static int wait_until(pid_t pid, uint64_t deadline_ms, int *ret_status)
{
	const struct timespec pause = {.tv_nsec = 2000000};

	for (;;) {
		pid_t r = waitpid(pid, ret_status, WNOHANG);

		if (r == pid)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (now_ms() >= deadline_ms)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
}

/* "probe KIND ..." and a line break, and nothing else. */
static bool parse_answer(char *text, enum vk_probe_kind kind, struct vk_probe_result *ret_result)
{
	static const char head[] = "probe ";
	char *end = strchr(text, '\n');
	enum vk_probe_kind found;

	if (!end || end[1] || strncmp(text, head, sizeof(head) - 1))
		return false;
	*end = '\0';
	return vk_probe_cache_parse_line(text + sizeof(head) - 1, true, &found, ret_result) &&
	       found == kind;
}

/* What is to be thought of a child that ended. */
static void judge(
	char *text, int read_code, int status, enum vk_probe_kind kind, struct vk_probe_result *ret)
{
	char detail[64];

	if (WIFSIGNALED(status)) {
		snprintf(detail, sizeof(detail), "%d (%s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
		set_no(ret, true, "the trial was killed by signal ", detail);
	} else if (WEXITSTATUS(status)) {
		snprintf(detail, sizeof(detail), "%d", WEXITSTATUS(status));
		set_no(ret, false, "the trial ended with exit status ", detail);
	} else if (read_code || !parse_answer(text, kind, ret)) {
		set_no(ret, false, "the trial gave no answer that can be read", "");
	}
}

/* Starts one trial and waits for its end; -errno when it could not be started. */
static int try_kind(const char *select, enum vk_probe_kind kind, const char *dir,
	uint64_t timeout_ms, bool *ret_hung, struct vk_probe_result *ret_result)
{
	/* posix_spawn takes words that it does not change as char * (POSIX, exec, rationale). */
	char *const argv[] = {(char *)"weightd-probe", (char *)"--probe", (char *)select,
		(char *)kind_names[kind], (char *)dir, NULL};
	char text[VK_PROBE_CACHE_LINE_BYTES + 16];
	uint64_t deadline_ms = now_ms() + timeout_ms;
	int pipe_fds[2], status = 0;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return -errno;
	int r = spawn(argv, pipe_fds[1], &pid);
	close(pipe_fds[1]);
	if (r) {
		close(pipe_fds[0]);
		return r;
	}
	int read_code = read_until(pipe_fds[0], deadline_ms, text, sizeof(text));
	close(pipe_fds[0]);
	/* One that still talks will not end by itself in every case. */
	r = read_code == -EMSGSIZE ? -ETIMEDOUT : wait_until(pid, deadline_ms, &status);
	if (r == -ETIMEDOUT) {
		kill(pid, SIGKILL);
		(void)wait_until(pid, now_ms() + KILL_TIMEOUT_MS, &status);
	}
	*ret_hung = r == -ETIMEDOUT && read_code != -EMSGSIZE;
	if (*ret_hung)
		set_no(ret_result, false, "the trial took too long and was killed", "");
	else if (read_code == -EMSGSIZE)
		judge(text, read_code, 0, kind, ret_result);
	else if (r)
		set_no(ret_result, false, "the trial's end could not be seen: ", strerror(-r));
	else
		judge(text, read_code, status, kind, ret_result);
	return 0;
}

/* The directory of the disk kinds. */
static int find_dir(
	const struct vk_probe_params *params, struct err *ret_err, char ret_dir[PATH_MAX])
{
	if (params && params->disk_dir) {
		if (snprintf(ret_dir, PATH_MAX, "%s", params->disk_dir) >= PATH_MAX)
			return err_set(ret_err, ENAMETOOLONG, "probe: directory: name too long");
		return 0;
	}
	/* Where there is none of ours, /var/tmp is on a disk if anything is (hier(7)). */
	if (vk_store_make_dir(ret_dir))
		snprintf(ret_dir, PATH_MAX, "/var/tmp");
	return 0;
}

int vk_probe_run(const char *select, const struct vk_probe_params *params, struct err *ret_err,
	struct vk_probe *ret_probe)
{
	uint64_t timeout_ms =
		params && params->timeout_ms ? params->timeout_ms : DEFAULT_TIMEOUT_MS;
	struct vk_probe probe = {0};
	char dir[PATH_MAX];
	int n_hung = 0;

	int r = find_dir(params, ret_err, dir);
	if (r)
		return r;
	for (int i = 0; i < VK_PROBE_N; i++) {
		bool has_hung = false;

		if (n_hung == MAX_HUNG) {
			set_no(&probe.kinds[i], false, "not tried: two trials before it hung", "");
			continue;
		}
		r = try_kind(
			select, (enum vk_probe_kind)i, dir, timeout_ms, &has_hung, &probe.kinds[i]);
		if (r)
			return err_set(ret_err, -r, "probe: this program cannot be started: %s",
				strerror(-r));
		n_hung += has_hung;
	}
	*ret_probe = probe;
	return 0;
}

static bool is_all_sure(const struct vk_probe *probe)
{
	for (int i = 0; i < VK_PROBE_N; i++)
		if (!probe->kinds[i].is_sure)
			return false;
	return true;
}

int vk_probe_get(const struct vk_device_info *info, const struct vk_probe_params *params,
	struct err *ret_err, struct vk_probe *ret_probe)
{
	const char *mode = getenv("WEIGHTD_PROBE");
	char select[2 * sizeof(info->uuid) + 1], dir[PATH_MAX];

	if (!mode)
		mode = "";
	if (!strcmp(mode, "off")) {
		for (int i = 0; i < VK_PROBE_N; i++)
			set_no(&ret_probe->kinds[i], false, "not tried: WEIGHTD_PROBE=off", "");
		return 0;
	}
	if (*mode && strcmp(mode, "fresh"))
		return err_set(ret_err, EINVAL,
			"WEIGHTD_PROBE: expected fresh or off, found \"%s\"", mode);
	int r = find_dir(params, ret_err, dir);
	if (r)
		return r;
	if (!*mode && !vk_probe_cache_load(info, dir, ret_probe))
		return 0;
	for (unsigned i = 0; i < sizeof(info->uuid); i++)
		snprintf(select + 2 * i, 3, "%02x", info->uuid[i]);
	r = vk_probe_run(select, params, ret_err, ret_probe);
	if (r)
		return r;
	/* A cache that cannot be written costs the next start some time. */
	if (is_all_sure(ret_probe))
		(void)!vk_probe_cache_save(info, dir, ret_probe);
	return 0;
}

static void print_line(enum vk_probe_kind kind, const struct vk_probe_result *result)
{
	char line[VK_PROBE_CACHE_LINE_BYTES];

	(void)vk_probe_cache_format_line(kind, result, line);
	printf("probe %s", line);
}

int vk_probe_main(int argc, char **argv)
{
	struct vk_probe_result result;
	struct vk_probe probe;
	struct err e = ERR_NULL;

	if (argc == 3) {
		if (vk_probe_run(argv[2], NULL, &e, &probe)) {
			fprintf(stderr, "%s\n", e.text);
			return 1;
		}
		for (int i = 0; i < VK_PROBE_N; i++)
			print_line((enum vk_probe_kind)i, &probe.kinds[i]);
		return fflush(stdout) ? 1 : 0;
	}
	if (argc == 5)
		for (int i = 0; i < VK_PROBE_N; i++)
			if (!strcmp(argv[3], kind_names[i])) {
				alarm(CHILD_SECONDS);
				vk_probe_child_run(
					argv[2], (enum vk_probe_kind)i, argv[4], &result);
				print_line((enum vk_probe_kind)i, &result);
				/* Without the drivers' destructors: how a process ends whose
				 * device was poisoned is no part of the answer. */
				_exit(fflush(stdout) ? 1 : 0);
			}
	fprintf(stderr, "usage: --probe DEVICE [KIND DIR]\n");
	return 2;
}
