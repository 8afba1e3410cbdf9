/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/restart.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/util/notify-fds.h"
#include "weightd/access.h"
#include "weightd/process.h"
#include "weightd/record.h"
#include "weightd/restart-internal.h"
#include "weightd/service-internal.h"

/* ---- the beginning: what is there ---- */

static bool save_take(const struct stash_name *name, int fd, void *userdata)
{
	struct restart *r = userdata;
	struct restart_generation *g = restart_find_generation(r, name->generation);
	struct err err = ERR_NULL;

	if (!g) {
		close(fd);
		return false;
	}
	if (adopt_give(g->adopt, name, fd, &err) == 0)
		return true;
	log_warn("a descriptor that was kept: %s", err.text);
	return false;
}

/* A tenant is its socket's path; the command line may have them in another order now. */
static uint32_t save_find_socket(
	const struct restart *r, const struct state *state, uint32_t socket)
{
	if (socket == 0 || state->n_listens == 0)
		return socket;
	for (uint32_t i = 0; i < r->n_listens && socket <= state->n_listens; i++)
		if (!strcmp(r->listens[i], state->listens[socket - 1]))
			return i + 1;
	return UINT32_MAX; /* nobody can come by that any more */
}

/* Takes what is in state. */
static int save_set_coming(struct restart *r, struct state *state)
{
	for (uint32_t i = 0; i < state->n_generations; i++) {
		struct restart_generation *g = calloc(1, sizeof(*g));
		if (!g)
			return -ENOMEM;
		g->claim_fd = -1;
		int rc = adopt_new(&state->generations[i], &g->adopt);
		if (rc < 0) {
			free(g);
			return rc;
		}
		TAILQ_INSERT_TAIL(&r->coming, g, entry);
		r->has_found = true;
	}
	r->last_id = state->last_id;
	for (uint32_t i = 0; i < state->n_holders; i++)
		state->holders[i].socket = save_find_socket(r, state, state->holders[i].socket);
	r->n_absent = state->n_holders;
	r->absent = state->holders;
	state->n_holders = 0;
	state->holders = NULL;
	return 0;
}

static int save_read(struct restart *r)
{
	_cleanup_(state_fini)
	struct state state = {0};
	struct err err = ERR_NULL;
	int rc = state_read(r->state_path, &err, &state);

	if (rc == -ENOENT)
		return 0;
	if (rc < 0) {
		log_warn("%s: nothing is brought back", err.text);
		return 0;
	}
	r->has_secret = state.has_secret;
	memcpy(r->secret, state.secret, sizeof(r->secret));
	return save_set_coming(r, &state);
}

bool restart_get_secret(const struct restart *r, uint8_t ret_secret[STATE_SECRET_BYTES])
{
	if (r->has_secret)
		memcpy(ret_secret, r->secret, STATE_SECRET_BYTES);
	return r->has_secret;
}

void restart_set_secret(struct restart *r, const uint8_t secret[STATE_SECRET_BYTES])
{
	r->has_secret = true;
	memcpy(r->secret, secret, STATE_SECRET_BYTES);
}

static void save_cleanup(struct restart **r)
{
	restart_free(*r);
}

int restart_new(const char *socket, const struct access *listens, uint32_t n_listens,
	unsigned n_keep_seconds, struct restart **ret_restart)
{
	_cleanup_(save_cleanup)
	struct restart *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	state_get_boot_id(r->boot_id);
	TAILQ_INIT(&r->coming);
	TAILQ_INIT(&r->waits);
	if (asprintf(&r->state_path, "%s.state", socket) < 0)
		r->state_path = NULL;
	if (asprintf(&r->keeper_path, "%s.keeper", socket) < 0)
		r->keeper_path = NULL;
	r->listens = calloc(n_listens + 1, sizeof(*r->listens));
	if (!r->state_path || !r->keeper_path || !r->listens)
		return -ENOMEM;
	r->n_listens = n_listens;
	for (uint32_t i = 0; i < n_listens; i++)
		memcpy(r->listens[i], listens[i].path, sizeof(r->listens[i]));
	rc = stash_new(r->keeper_path, n_keep_seconds, &r->stash);
	if (rc == 0)
		rc = save_read(r);
	if (rc < 0)
		return rc;
	stash_take_all(r->stash, save_take, r);
	*ret_restart = TAKE_PTR(r);
	return 0;
}

static void save_drop_held(struct restart *r)
{
	for (uint32_t i = 0; i < r->n_held; i++)
		cleanup_close(&r->held[i].fd);
	free(r->held);
	r->held = NULL;
	r->n_held = 0;
}

struct restart *restart_free(struct restart *r)
{
	struct restart_generation *g;
	struct restart_wait *w;

	if (!r)
		return NULL;
	while ((g = TAILQ_FIRST(&r->coming))) {
		TAILQ_REMOVE(&r->coming, g, entry);
		adopt_free(g->adopt);
		if (g->data) /* its exports are the loaders' */
			service_free_generation(g->data);
		cleanup_close(&g->claim_fd);
		free(g->claim_path);
		free(g);
	}
	while ((w = TAILQ_FIRST(&r->waits))) {
		TAILQ_REMOVE(&r->waits, w, entry);
		free(w);
	}
	while (r->n_absent > 0)
		restart_drop_absent(r, r->n_absent - 1);
	free(r->absent);
	save_drop_held(r);
	if (r->tick)
		event_free(r->tick);
	stash_free(r->stash);
	free(r->saved);
	free(r->state_path);
	free(r->keeper_path);
	free(r->listens);
	free(r);
	return NULL;
}

/* ---- while it lives ---- */

static int save_copy_residency(const struct state_residency *from, struct state_residency *to)
{
	*to = *from;
	to->sums = (struct state_bytes){0};
	to->allocs = calloc(from->n_allocs + 1, sizeof(*to->allocs));
	if (!to->allocs)
		return -ENOMEM;
	memcpy(to->allocs, from->allocs, from->n_allocs * sizeof(*to->allocs));
	return state_bytes_set(&to->sums, from->sums.data, from->sums.n_bytes);
}

/* What is on its way back stays on record until it is there: weightd may die again. */
static int save_copy_generation(const struct state_generation *from, struct state_generation *to)
{
	int rc;

	*to = *from;
	to->path = NULL;
	to->lost_why = NULL;
	to->staged = to->sums = (struct state_bytes){0};
	to->residencies = calloc(from->n_residencies + 1, sizeof(*to->residencies));
	to->path = strdup(from->path);
	if (from->lost_why)
		to->lost_why = strdup(from->lost_why);
	if (!to->residencies || !to->path || (from->lost_why && !to->lost_why))
		return -ENOMEM;
	rc = state_bytes_set(&to->staged, from->staged.data, from->staged.n_bytes);
	if (rc == 0)
		rc = state_bytes_set(&to->sums, from->sums.data, from->sums.n_bytes);
	for (uint32_t i = 0; i < from->n_residencies && rc == 0; i++)
		rc = save_copy_residency(&from->residencies[i], &to->residencies[i]);
	return rc;
}

/* They are not missed any more and have no lease yet: weightd may die in between. */
static int save_add_waiting(struct restart *r, struct state *state)
{
	const struct restart_wait *w;
	int rc = 0;

	TAILQ_FOREACH(w, &r->waits, entry)
	{
		const struct peer *p = peer_find(r->service->params->peers, w->peer);
		const struct state_holder who = {.pid = p->pid,
			.start_ticks = p->start_ticks,
			.uid = p->uid,
			.socket = peer_get_socket(p->id)};
		if (rc == 0)
			rc = record_add_holder(state, &who, w->generation);
	}
	return rc;
}

static int save_make_state(struct restart *r, struct state *state)
{
	const struct restart_generation *g;
	int rc = record_add(r->service, state);

	if (rc == 0)
		rc = save_add_waiting(r, state);

	TAILQ_FOREACH(g, &r->coming, entry)
	{
		if (restart_is_unwanted(&g->adopt->record))
			continue;
		struct state_generation *to =
			rc == 0 ? record_add_generation(state, g->adopt->record.id) : NULL;
		if (rc == 0)
			rc = to ? save_copy_generation(&g->adopt->record, to) : -ENOMEM;
	}
	for (uint32_t i = 0; i < r->n_absent; i++) {
		const struct state_holder *h = &r->absent[i];
		for (uint32_t k = 0; k < h->n_generations && rc == 0; k++)
			rc = record_add_holder(state, h, h->generations[k]);
	}
	if (state->last_id > r->last_id)
		r->last_id = state->last_id;
	state->last_id = r->last_id;
	state->listens = calloc(r->n_listens + 1, sizeof(*state->listens));
	if (!state->listens)
		return -ENOMEM;
	state->n_listens = r->n_listens;
	memcpy(state->listens, r->listens, r->n_listens * sizeof(*state->listens));
	state->has_secret = r->has_secret;
	memcpy(state->secret, r->secret, sizeof(state->secret));
	return rc;
}

static void save_want(const struct stash_name *name, int fd, void *userdata)
{
	stash_want(userdata, name, fd);
}

static void save_visit(const struct restart *r, record_fn fn, void *userdata)
{
	const struct restart_generation *g;

	record_visit(r->service, fn, userdata);
	TAILQ_FOREACH(g, &r->coming, entry)
	adopt_visit(g->adopt, fn, userdata);
}

static void save_stash(struct restart *r)
{
	stash_begin(r->stash);
	save_visit(r, save_want, r->stash);
	stash_end(r->stash);
}

/* Once each time that it begins to fail, and when it works again. why NULL: it has worked. */
static void save_tell(struct restart *r, const char *why)
{
	if (why && !r->is_save_failing)
		log_warn("the state for a restart cannot be written: %s", why);
	if (!why && r->is_save_failing)
		log_info("the state for a restart is written again");
	r->is_save_failing = why;
}

void restart_save(struct restart *r)
{
	_cleanup_(state_fini)
	struct state state = {0};
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	uint64_t n_bytes = 0;
	struct err err = ERR_NULL;

	if (!r || !r->has_begun)
		return;
	/* Most of what happens changes nothing of this. */
	uint64_t fingerprint = record_fingerprint(r->service);
	if (r->has_fingerprint && fingerprint == r->fingerprint)
		return;
	for (uint32_t i = r->n_absent; i > 0 && r->are_absent_held; i--)
		if (process_get_start_ticks(r->absent[i - 1].pid) != r->absent[i - 1].start_ticks)
			restart_drop_absent(r, i - 1);
	int rc = save_make_state(r, &state);
	if (rc == 0)
		rc = state_pack(&state, r->boot_id, &data, &n_bytes);
	if (rc < 0) {
		save_tell(r, strerror(-rc));
		return;
	}
	/* It says nothing of what is on its way, or of whom it is not known that they live. */
	r->has_fingerprint = TAILQ_EMPTY(&r->coming) && r->n_absent == 0;
	r->fingerprint = fingerprint;
	if (state.last_id == 0)
		return;
	if (r->saved && r->n_saved_bytes == n_bytes && !memcmp(r->saved, data, n_bytes)) {
		save_tell(r, NULL);
		return;
	}
	/* First the descriptors, then the word that they are there. */
	save_stash(r);
	if (state_write(r->state_path, data, n_bytes, &err) < 0) {
		r->has_fingerprint = false;
		save_tell(r, err.text);
		return;
	}
	free(r->saved);
	r->saved = TAKE_PTR(data);
	r->n_saved_bytes = n_bytes;
	save_tell(r, NULL);
}

void restart_check(struct restart *r)
{
	if (r && r->saved)
		save_stash(r);
}

bool restart_has_found(const struct restart *r)
{
	return r->has_found;
}

void restart_forget(struct restart *r)
{
	if (!r)
		return;
	stash_forget_all(r->stash);
	state_remove(r->state_path);
}

/* ---- the next weightd in this process ---- */

struct save_holding {
	struct restart *restart;
	uint32_t n_room;
	int code;
};

static void save_hold(const struct stash_name *name, int fd, void *userdata)
{
	struct save_holding *h = userdata;
	struct restart *r = h->restart;

	if (fd < 0 || h->code < 0)
		return;
	if (r->n_held == h->n_room) {
		uint32_t n = h->n_room ? 2 * h->n_room : 64;
		struct restart_held *more = reallocarray(r->held, n, sizeof(*more));
		if (!more) {
			h->code = -ENOMEM;
			return;
		}
		r->held = more;
		h->n_room = n;
	}
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		h->code = -errno;
	else
		r->held[r->n_held++] = (struct restart_held){.name = *name, .fd = copy};
}

/* Handing over moves each of them once more, above where they will be. What else is open by then
 * is not known, so some of the limit is left to it. */
static int save_check_held(const struct restart *r)
{
	enum { SAVE_SPARE_FDS = 32 };
	struct rlimit limit;

	if (r->n_held > NOTIFY_FDS_MAX)
		return -E2BIG;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
		limit.rlim_cur < 2 * (rlim_t)r->n_held + SAVE_SPARE_FDS)
		return -EMFILE;
	return 0;
}

int restart_hold(struct restart *r)
{
	struct save_holding h = {.restart = r};

	restart_save(r);
	save_visit(r, save_hold, &h);
	if (h.code == 0)
		h.code = save_check_held(r);
	if (h.code < 0) {
		save_drop_held(r);
		return h.code;
	}
	event_free(r->tick); /* before its base goes */
	r->tick = NULL;
	return 0;
}

void restart_block_signals(bool is_blocked)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(is_blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

int restart_execute(struct restart *r, const char *path, char *const argv[])
{
	_cleanup_(cleanup_free)
	char(*texts)[STASH_NAME_BYTES] = calloc(r->n_held + 1, sizeof(*texts));
	_cleanup_(cleanup_free)
	const char **names = calloc(r->n_held + 1, sizeof(*names));
	_cleanup_(cleanup_free)
	int *fds = calloc(r->n_held + 1, sizeof(*fds));

	if (!texts || !names || !fds)
		return -ENOMEM;
	for (uint32_t i = 0; i < r->n_held; i++) {
		stash_name_print(&r->held[i].name, texts[i]);
		names[i] = texts[i];
		fds[i] = r->held[i].fd;
	}
	int rc = notify_fds_hand_over(names, fds, r->n_held);
	if (rc == 0)
		execv(path, argv);
	return rc < 0 ? rc : -errno;
}
