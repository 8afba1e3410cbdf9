/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_E2E_LISTEN_SITE_H
#define TESTS_E2E_LISTEN_SITE_H

/* A weightd with sockets of several tenants, and processes of other users. Failures fail the test.
 */
#include "tests/e2e/weightd-site.h"

#include <grp.h>

enum { STRANGER = 1234 }; /* a uid and a gid that nobody has */

/* weightd with `atlas` and `other`, and a --listen for each of the texts: its socket is DIR/NAME,
 * the text being "NAME,OPTION...". */
static inline void listen_start(struct site *s, const char *const *listens)
{
	char atlas[4200], other[4200], texts[4][256];
	const char *args[16] = {"--model", atlas, "--model", other};
	int n = 4;

	snprintf(atlas, sizeof(atlas), "atlas=%s", model_path());
	snprintf(other, sizeof(other), "other=%s", model_path());
	site_init(s);
	/* Strangers are stopped by weightd, not by the directory. */
	assert_int_equal(chmod(s->dir, 0755), 0);
	for (int i = 0; listens[i]; i++) {
		snprintf(texts[i], sizeof(texts[i]), "%s/%s", s->dir, listens[i]);
		args[n++] = "--listen";
		args[n++] = texts[i];
	}
	site_spawn(s, args, 0);
	site_wait_ready(s);
}

/* The same site, seen from another of its sockets. */
static inline struct site listen_at(const struct site *s, const char *name)
{
	struct site other = *s;

	snprintf(other.socket, sizeof(other.socket), "%s/%s", s->dir, name);
	return other;
}

static inline int try_acquire(struct weights_client *c, const char *model, struct err *e)
{
	const struct weights_client_device *d = weights_client_get_device(c);
	struct weights_client_acquired a;
	int rc = weights_client_acquire(c, model, d->uuid, d->driver_uuid, e, &a);

	if (rc == 0)
		weights_client_acquired_fini(&a);
	return rc;
}

/* A process of another user: 0 when fn says so. */
static inline void run_as(
	uid_t uid, gid_t gid, int group, int (*fn)(const struct site *s), const struct site *s)
{
	int status = -1;
	pid_t pid = fork();
	gid_t groups[] = {(gid_t)group};

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(20);
		if (setgroups(group >= 0, groups) < 0 || setresgid(gid, gid, gid) < 0 ||
			setresuid(uid, uid, uid) < 0)
			_exit(100);
		_exit(fn(s));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static inline int is_served(const struct site *s)
{
	struct weights_client *c = NULL;
	struct weights_client_status status;

	if (weights_client_new(s->socket, WEIGHTS_CLIENT_WORKER, NULL, &c) < 0)
		return 1;
	int rc = weights_client_list(c, NULL, &status);
	if (rc == 0)
		weights_client_status_fini(&status);
	weights_client_free(c);
	return rc < 0;
}

#endif
