/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/bench-site.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "weightctl/bench-options.h"

/* The longest name in the directory is w99.sock; a socket's path has 107 bytes. */
enum { MAX_DIR_BYTES = 90, PATH_BYTES = 128, MAX_ARGS = 24, LOG_BYTES = 8192 };
enum { WEIGHTD = BENCH_OPTIONS_MAX_WORKERS, N_CHILDREN }; /* behind the workers */
enum { STOP_SECONDS = 10 };

static const struct timespec poll_pause = {.tv_nsec = 2 * 1000 * 1000};

struct child {
	pid_t pid; /* 0: none */
	char socket[PATH_BYTES];
	char log[PATH_BYTES];
};

struct bench_site {
	char *dir; /* owned */
	sigset_t signals, before;
	pthread_t watcher;
	bool is_watched;
	atomic_bool is_ending;
	atomic_int n_signals;
	pthread_mutex_t lock; /* of pids: the watcher signals them */
	uint32_t n_workers;
	struct child children[N_CHILDREN];
};

/* ---- signals ---- */

static void signal_children(struct bench_site *s, int signum)
{
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < N_CHILDREN; i++)
		if (s->children[i].pid)
			kill(s->children[i].pid, signum);
	pthread_mutex_unlock(&s->lock);
}

/* The first signal asks the children to end, which ends whatever waits for them; more insist. */
static void *watch(void *userdata)
{
	struct bench_site *s = userdata;
	int signum;

	while (!sigwait(&s->signals, &signum) && !s->is_ending)
		signal_children(s, s->n_signals++ ? SIGKILL : SIGTERM);
	return NULL;
}

static int start_watcher(struct bench_site *s)
{
	sigemptyset(&s->signals);
	sigaddset(&s->signals, SIGINT);
	sigaddset(&s->signals, SIGTERM);
	sigaddset(&s->signals, SIGHUP);
	int r = -pthread_sigmask(SIG_BLOCK, &s->signals, &s->before);
	if (!r)
		r = -pthread_create(&s->watcher, NULL, watch, s);
	s->is_watched = r == 0;
	return r;
}

static void stop_watcher(struct bench_site *s)
{
	if (!s->is_watched)
		return;
	s->is_ending = true;
	pthread_kill(s->watcher, SIGTERM);
	pthread_join(s->watcher, NULL);
	pthread_sigmask(SIG_SETMASK, &s->before, NULL);
}

bool bench_site_is_interrupted(const struct bench_site *s)
{
	return s->n_signals > 0;
}

/* ---- the directory ---- */

static int make_dir(struct bench_site *s, struct err *ret_err)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char dir[MAX_DIR_BYTES];
	int n = 0;

	if (runtime && runtime[0] == '/')
		n = snprintf(dir, sizeof(dir), "%s/weightctl-XXXXXX", runtime);
	if (n <= 0 || n >= MAX_DIR_BYTES || !mkdtemp(dir)) {
		snprintf(dir, sizeof(dir), "/tmp/weightctl-XXXXXX");
		if (!mkdtemp(dir))
			return err_set(ret_err, errno, "%s: %s", dir, strerror(errno));
	}
	s->dir = strdup(dir);
	if (s->dir)
		return 0;
	rmdir(dir);
	return -ENOMEM;
}

/* Logs, a state; sockets of daemons that were killed. There are no directories in it. */
static void remove_dir(struct bench_site *s)
{
	DIR *dir = s->dir ? opendir(s->dir) : NULL;
	struct dirent *entry;

	if (!dir)
		return;
	while ((entry = readdir(dir)))
		(void)unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	rmdir(s->dir);
}

int bench_site_new(struct err *ret_err, struct bench_site **ret_site)
{
	struct bench_site *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	pthread_mutex_init(&s->lock, NULL);
	int r = make_dir(s, ret_err);
	if (!r)
		r = start_watcher(s);
	if (r) {
		bench_site_free(s);
		return r;
	}
	*ret_site = s;
	return 0;
}

/* ---- children ---- */

static bool is_program(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* Beside this program, or as in a build tree; else the name, for $PATH. */
static void find_program(const char *name, char ret_path[static PATH_MAX])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n > 0) {
		self[n] = '\0';
		const char *dir = dirname(self);
		int n_path = snprintf(ret_path, PATH_MAX, "%s/%s", dir, name);
		if (n_path < PATH_MAX && is_program(ret_path))
			return;
		n_path = snprintf(ret_path, PATH_MAX, "%s/../%s/%s", dir, name, name);
		if (n_path < PATH_MAX && is_program(ret_path))
			return;
	}
	snprintf(ret_path, PATH_MAX, "%s", name);
}

/* Only what is safe between fork and exec. A group of its own: a terminal's ^C is for weightctl. */
static void become(const struct bench_site *s, const char *path, char *const *argv, int log,
	int null, pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(127);
	dup2(null, STDIN_FILENO);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	sigprocmask(SIG_SETMASK, &s->before, NULL);
	execvp(path, argv);
	dprintf(STDERR_FILENO, "%s: %s\n", path, strerror(errno));
	_exit(127);
}

static int start(struct bench_site *s, struct child *c, const char *program, const char **argv,
	struct err *ret_err)
{
	char path[PATH_MAX];
	_cleanup_(cleanup_close)
	int log = open(c->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	_cleanup_(cleanup_close)
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	pid_t parent = getpid();

	if (log < 0 || null < 0)
		return err_set(ret_err, errno, "%s: %s", c->log, strerror(errno));
	find_program(program, path);
	argv[0] = program;
	/* With the lock: a signal finds the child, or finds that there is none yet. */
	pthread_mutex_lock(&s->lock);
	bool is_over = s->n_signals > 0;
	pid_t pid = is_over ? -1 : fork();
	int error = errno;
	if (pid == 0)
		become(s, path, (char *const *)argv, log, null, parent);
	if (pid > 0)
		c->pid = pid;
	pthread_mutex_unlock(&s->lock);
	if (pid > 0)
		return 0;
	return is_over ? err_set(ret_err, EINTR, "interrupted")
		       : err_set(ret_err, error, "%s: fork: %s", program, strerror(error));
}

static void read_log(const struct child *c, char ret_text[static LOG_BYTES])
{
	_cleanup_(cleanup_close)
	int fd = open(c->log, O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	if (fd >= 0) {
		off_t end = lseek(fd, 0, SEEK_END);
		n = pread(fd, ret_text, LOG_BYTES - 1, end < LOG_BYTES ? 0 : end - (LOG_BYTES - 1));
	}
	ret_text[n > 0 ? n : 0] = '\0';
}

static bool has_ended(struct bench_site *s, struct child *c)
{
	bool ended = false;

	if (!c->pid)
		return true;
	/* With the lock: once it is waited for, the number may be another process's. */
	pthread_mutex_lock(&s->lock);
	if (waitpid(c->pid, NULL, WNOHANG) != 0) {
		c->pid = 0;
		ended = true;
	}
	pthread_mutex_unlock(&s->lock);
	return ended;
}

/* The daemon's own last words are why. */
static int tell_end(const struct child *c, struct err *ret_err)
{
	char text[LOG_BYTES];

	read_log(c, text);
	size_t n = strlen(text);
	while (n > 0 && text[n - 1] == '\n')
		text[--n] = '\0';
	const char *line = strrchr(text, '\n');
	line = line ? line + 1 : text;
	return err_set(ret_err, ECHILD, "%.400s", line[0] ? line : "a daemon ended without a word");
}

static int wait_ready(struct bench_site *s, struct child *c, struct err *ret_err)
{
	char text[LOG_BYTES];

	for (;;) {
		bool ended = has_ended(s, c);

		if (s->n_signals)
			return err_set(ret_err, EINTR, "interrupted");
		if (ended)
			return tell_end(c, ret_err);
		read_log(c, text);
		if (strstr(text, ": ready"))
			return 0;
		nanosleep(&poll_pause, NULL);
	}
}

/* Asks them all, then waits for each; who does not end by itself is killed. */
static void stop(struct bench_site *s, uint32_t begin, uint32_t end)
{
	uint64_t deadline_ns = clock_now_ns() + STOP_SECONDS * 1000000000ull;

	for (uint32_t i = begin; i < end; i++)
		if (s->children[i].pid)
			kill(s->children[i].pid, SIGTERM);
	for (uint32_t i = begin; i < end; i++) {
		struct child *c = &s->children[i];

		while (!has_ended(s, c)) {
			if (clock_now_ns() > deadline_ns)
				kill(c->pid, SIGKILL);
			nanosleep(&poll_pause, NULL);
		}
	}
}

static struct child *name_child(struct bench_site *s, uint32_t i)
{
	struct child *c = &s->children[i];
	char name[16] = "weightd";

	if (i != WEIGHTD)
		snprintf(name, sizeof(name), "w%u", i);
	snprintf(c->socket, sizeof(c->socket), "%s/%s.sock", s->dir, name);
	snprintf(c->log, sizeof(c->log), "%s/%s.log", s->dir, name);
	return c;
}

static void add_flag(const char **argv, const char *option)
{
	uint32_t n = 1; /* argv[0] is the program */

	while (argv[n])
		n++;
	argv[n] = option;
}

static void add_arg(const char **argv, const char *option, const char *value)
{
	if (!value)
		return;
	add_flag(argv, option);
	add_flag(argv, value);
}

int bench_site_start_weightd(struct bench_site *s, const char *device, struct err *ret_err)
{
	struct child *c = name_child(s, WEIGHTD);
	const char *argv[MAX_ARGS] = {0};

	add_arg(argv, "--socket", c->socket);
	/* Nobody comes after it. */
	add_arg(argv, "--keep", "0");
	add_arg(argv, "--device", device);
	int r = start(s, c, "weightd", argv, ret_err);
	return r ? r : wait_ready(s, c, ret_err);
}

const char *bench_site_get_weightd(const struct bench_site *s)
{
	return s->children[WEIGHTD].socket;
}

int bench_site_start_workers(
	struct bench_site *s, const struct bench_site_workers *p, struct err *ret_err)
{
	char ctx[16], sessions[16];
	int r = 0;

	snprintf(ctx, sizeof(ctx), "%u", p->n_ctx);
	snprintf(sessions, sizeof(sessions), "%u", p->n_sessions);
	for (; !r && s->n_workers < p->n; s->n_workers++) {
		struct child *c = name_child(s, s->n_workers);
		const char *argv[MAX_ARGS] = {0};

		add_arg(argv, "--model", p->model);
		add_arg(argv, "--socket", c->socket);
		add_arg(argv, "--ctx", ctx);
		add_arg(argv, "--sessions", sessions);
		add_arg(argv, "--weights", p->weightd);
		add_arg(argv, "--kv-type", p->kv_type);
		add_arg(argv, "--chunk", p->chunk);
		add_arg(argv, "--kernels", p->kernels);
		add_arg(argv, "--device", p->device);
		/* Where there is no memory for all, they say so instead of taking turns. */
		add_flag(argv, "--no-park");
		r = start(s, c, "workerd", argv, ret_err);
	}
	for (uint32_t i = 0; !r && i < s->n_workers; i++)
		r = wait_ready(s, &s->children[i], ret_err);
	return r;
}

void bench_site_stop_workers(struct bench_site *s)
{
	stop(s, 0, s->n_workers);
	s->n_workers = 0;
}

const char *bench_site_get_worker(const struct bench_site *s, uint32_t i)
{
	return s->children[i].socket;
}

struct bench_site *bench_site_free(struct bench_site *s)
{
	if (!s)
		return NULL;
	bench_site_stop_workers(s);
	stop(s, WEIGHTD, N_CHILDREN);
	stop_watcher(s);
	remove_dir(s);
	free(s->dir);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return NULL;
}
