/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "proto/fdlist.h"
#include "proto/unix-path.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/wire.h"

enum {
	KEEPER_MODE = 0600,
	KEEPER_LISTEN_FD = 3,
	KEEPER_TIMEOUT_S = 5, /* of an answer; it has nothing else to do */
	KEEPER_END_MS = 2000,
};

extern char **environ;

static int keeper_send(int sock, enum keeper_op op, const char *name, int fd)
{
	struct keeper_packet p = {.protocol = KEEPER_PROTOCOL, .op = op};
	const struct fdlist fds = {.n = fd >= 0, .fds = {fd}}; /* borrowed: no fini */

	if (strlen(name) >= sizeof(p.name))
		return -ENAMETOOLONG;
	strcpy(p.name, name);
	int rc = wire_send(sock, &p, sizeof(p), &fds);
	return rc == WIRE_AGAIN ? -ETIMEDOUT : rc;
}

static int keeper_check_peer(int sock, const char *path, struct err *ret_err)
{
	const struct timeval timeout = {.tv_sec = KEEPER_TIMEOUT_S};
	struct ucred cred;
	socklen_t n = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0 ||
		setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
		return err_set(ret_err, errno, "%s: %s", path, strerror(errno));
	if (cred.uid != geteuid())
		return err_set(ret_err, EPERM, "%s: expected a keeper of uid %u, found uid %u",
			path, (unsigned)geteuid(), (unsigned)cred.uid);
	return 0;
}

int keeper_connect(const char *path, struct err *ret_err, int *ret_sock)
{
	_cleanup_(cleanup_close)
	int sock = -1;
	int rc = wire_connect(path, ret_err, &sock);

	if (rc == 0)
		rc = keeper_check_peer(sock, path, ret_err);
	if (rc == 0)
		*ret_sock = TAKE_FD(sock);
	return rc;
}

/* Signals as a program finds them, but those of a terminal: it outlives whoever is stopped there.
 */
static int keeper_set_attr(posix_spawnattr_t *attr)
{
	sigset_t none, usual;

	sigemptyset(&none);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE);
	sigaddset(&usual, SIGTERM);
	sigaddset(&usual, SIGINT);
	sigaddset(&usual, SIGHUP);
	int r = posix_spawnattr_setflags(
		attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
	if (!r)
		r = posix_spawnattr_setsigmask(attr, &none);
	if (!r)
		r = posix_spawnattr_setsigdefault(attr, &usual);
	return r;
}

/* No output of weightd's stays open in it: whoever reads that waits for its end. */
static int keeper_set_files(posix_spawn_file_actions_t *actions, int listen_fd)
{
	int r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

	if (!r)
		r = posix_spawn_file_actions_addopen(
			actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (!r)
		r = posix_spawn_file_actions_adddup2(actions, STDOUT_FILENO, STDERR_FILENO);
	if (!r)
		r = posix_spawn_file_actions_adddup2(actions, listen_fd, KEEPER_LISTEN_FD);
	/* A driver's descriptors are not all O_CLOEXEC, and would keep its memory. */
	if (!r)
		r = posix_spawn_file_actions_addclosefrom_np(actions, KEEPER_LISTEN_FD + 1);
	if (!r)
		r = posix_spawn_file_actions_addchdir_np(actions, "/");
	return r;
}

static int keeper_spawn(const char *path, unsigned n_seconds, int listen_fd)
{
	char seconds[16];
	char *argv[] = {(char *)"weightd", (char *)"--keeper", (char *)path, seconds, NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	pid_t pid;

	snprintf(seconds, sizeof(seconds), "%u", n_seconds);
	int r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	r = posix_spawnattr_init(&attr);
	if (r) {
		posix_spawn_file_actions_destroy(&actions);
		return -r;
	}
	r = keeper_set_attr(&attr);
	if (!r)
		r = keeper_set_files(&actions, listen_fd);
	if (!r)
		r = posix_spawn(&pid, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

int keeper_start(const char *path, unsigned n_seconds, struct err *ret_err, int *ret_sock)
{
	_cleanup_(cleanup_close)
	int listen_fd = -1, spare = -1;
	int rc = wire_listen(path, KEEPER_MODE, ret_err, &listen_fd);

	if (rc < 0)
		return rc;
	/* dup2 onto itself would leave it O_CLOEXEC. */
	if (listen_fd == KEEPER_LISTEN_FD) {
		spare = fcntl(listen_fd, F_DUPFD_CLOEXEC, KEEPER_LISTEN_FD + 1);
		if (spare < 0)
			rc = -errno;
	}
	if (rc == 0)
		rc = keeper_spawn(path, n_seconds, spare >= 0 ? spare : listen_fd);
	cleanup_close(&spare);
	if (rc < 0) {
		unlink(path);
		return err_set(ret_err, -rc, "keeper: %s", strerror(-rc));
	}
	return keeper_connect(path, ret_err, ret_sock);
}

int keeper_put(int sock, const char *name, int fd)
{
	return keeper_send(sock, KEEPER_PUT, name, fd);
}

int keeper_drop(int sock, const char *name)
{
	return keeper_send(sock, KEEPER_DROP, name, -1);
}

int keeper_take(int sock, keeper_fn fn, void *userdata, struct err *ret_err)
{
	int rc = keeper_send(sock, KEEPER_TAKE, "", -1);

	while (rc == 0) {
		static uint8_t data[WIRE_MAX_BYTES];
		struct keeper_packet p;
		_cleanup_(fdlist_fini)
		struct fdlist fds = FDLIST_NULL;
		uint32_t n_bytes = 0;
		rc = wire_recv(sock, data, &n_bytes, &fds, ret_err);
		if (rc < 0)
			return rc;
		if (rc > 0)
			return err_set(ret_err, ECONNRESET, "keeper: it does not answer");
		if (n_bytes != sizeof(p))
			return err_set(ret_err, EBADMSG, "keeper: a packet of %u bytes", n_bytes);
		memcpy(&p, data, sizeof(p));
		if (p.protocol != KEEPER_PROTOCOL || p.name[sizeof(p.name) - 1])
			return err_set(ret_err, EBADMSG, "keeper: protocol: expected %d, found %u",
				KEEPER_PROTOCOL, p.protocol);
		if (p.op == KEEPER_DONE)
			return 0;
		if (p.op != KEEPER_HAVE || fds.n != 1)
			return err_set(
				ret_err, EBADMSG, "keeper: op %u with %u descriptors", p.op, fds.n);
		fn(p.name, fdlist_take(&fds, 0), userdata);
	}
	return err_set(ret_err, -rc, "keeper: %s", strerror(-rc));
}

void keeper_dismiss(const char *path)
{
	_cleanup_(cleanup_close)
	int sock = -1;

	/* On a connection of its own: one that ends under an answer is not read any further. */
	int rc = keeper_connect(path, NULL, &sock);

	if (rc == 0)
		rc = keeper_send(sock, KEEPER_END, "", -1);
	if (rc < 0)
		log_debug("%s: the keeper is not told to end: %s", path, strerror(-rc));
}

/* SO_PEERCRED names who made the listening socket, so the keeper says its own pid. */
void keeper_end(int sock)
{
	struct keeper_packet p = {0};

	if (keeper_send(sock, KEEPER_END, "", -1) < 0 ||
		recv(sock, &p, sizeof(p), 0) != sizeof(p) || p.op != KEEPER_DONE)
		return;
	p.name[sizeof(p.name) - 1] = '\0';
	pid_t pid = (pid_t)strtol(p.name, NULL, 10);
	_cleanup_(cleanup_close)
	int pidfd = pid > 0 ? pidfd_open(pid, 0) : -1;
	struct pollfd end = {.fd = pidfd, .events = POLLIN};
	if (pidfd >= 0 && poll(&end, 1, KEEPER_END_MS) > 0)
		waitpid(pid, NULL, WNOHANG); /* where it is a child of ours */
}
