/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/account.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/prefixes.h"

struct account_row {
	enum account_kind kind;
	uint64_t id;
	bool is_gone; /* the id is a holder's */
	bool is_recalled;
	bool is_inherited; /* by account_resume */
	int32_t pid;
	char model[ACCOUNT_MAX_MODEL_BYTES];
	uint64_t n_bytes;
};

struct account_wait {
	struct account_request request;
	uint64_t since_ns;
	uint64_t pressed_ns;
};

struct account {
	struct account_params params;
	uint64_t n_used_bytes; /* of all rows, and what leaves */
	uint64_t n_leaving_bytes;
	uint32_t n_rows;
	struct account_row *rows; /* [ACCOUNT_MAX_ROWS], in no order */
	uint32_t n_waits;
	struct account_wait *waits; /* [ACCOUNT_MAX_ROWS], the oldest first */
	bool is_serving;
};

int account_new(const struct account_params *params, struct account **ret_account)
{
	struct account *a = calloc(1, sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->params = *params;
	a->rows = calloc(ACCOUNT_MAX_ROWS, sizeof(*a->rows));
	a->waits = calloc(ACCOUNT_MAX_ROWS, sizeof(*a->waits));
	if (!a->rows || !a->waits) {
		account_free(a);
		return -ENOMEM;
	}
	*ret_account = a;
	return 0;
}

struct account *account_free(struct account *a)
{
	if (!a)
		return NULL;
	free(a->rows);
	free(a->waits);
	free(a);
	return NULL;
}

static struct account_row *account_find(
	const struct account *a, enum account_kind kind, uint64_t id)
{
	for (uint32_t i = 0; i < a->n_rows; i++)
		if (a->rows[i].kind == kind && a->rows[i].id == id)
			return &a->rows[i];
	return NULL;
}

static uint64_t account_get_free(const struct account *a)
{
	return a->params.n_budget_bytes > a->n_used_bytes
		       ? a->params.n_budget_bytes - a->n_used_bytes
		       : 0;
}

/* The row has n_bytes from here on; a grant of nothing is no row, weights keep theirs until they
 * leave. */
static void account_set_row(struct account *a, struct account_row *row, uint64_t n_bytes)
{
	a->n_used_bytes = a->n_used_bytes - row->n_bytes + n_bytes;
	row->n_bytes = n_bytes;
	if (n_bytes == 0 && row->kind == ACCOUNT_GRANT)
		*row = a->rows[--a->n_rows];
}

/* There is room for a row. */
static void account_set(struct account *a, const struct account_request *q, uint64_t n_bytes)
{
	struct account_row *row = account_find(a, q->kind, q->id);

	if (!row) {
		row = &a->rows[a->n_rows++];
		*row = (struct account_row){.kind = q->kind, .id = q->id};
	}
	row->pid = q->pid;
	memcpy(row->model, q->model, sizeof(row->model));
	account_set_row(a, row, n_bytes);
}

/* The most that the request's id can have now. */
static uint64_t account_get_room(const struct account *a, const struct account_request *q)
{
	const struct account_row *row = account_find(a, q->kind, q->id);

	return account_get_free(a) + (row ? row->n_bytes : 0);
}

/* asker: of whom it is a refusal, which sees what it may see; NULL: grants alone, and all. */
static bool account_may_list(
	const struct account *a, const struct account_row *row, const struct account_request *asker)
{
	if (!asker)
		return row->kind == ACCOUNT_GRANT;
	return !a->params.shows ||
	       a->params.shows(a->params.userdata, asker, row->kind, row->id, row->model);
}

static void account_list(
	const struct account *a, const struct account_request *asker, struct err *err)
{
	enum { TAIL_BYTES = 24 }; /* " and NNNN more" */
	size_t n = strlen(err->text);
	uint32_t n_left = 0, n_listed = 0;

	for (uint32_t i = 0; i < a->n_rows; i++)
		n_left += account_may_list(a, &a->rows[i], asker);
	if (n + TAIL_BYTES >= sizeof(err->text) || (n_left == 0 && !asker))
		return;
	n += (size_t)snprintf(
		err->text + n, sizeof(err->text) - n, asker ? "; held: " : "; granted: ");
	if (n_left == 0)
		snprintf(err->text + n, sizeof(err->text) - n, "nothing");
	for (uint32_t i = 0; i < a->n_rows && n_left > 0; i++) {
		const struct account_row *row = &a->rows[i];
		char text[160];
		int k;

		if (!account_may_list(a, row, asker))
			continue;
		if (row->kind == ACCOUNT_GRANT)
			k = snprintf(text, sizeof(text), "pid %d (model %s) %llu%s", (int)row->pid,
				row->model, (unsigned long long)row->n_bytes,
				row->is_gone ? " without a connection" : "");
		else
			k = snprintf(text, sizeof(text), "%s of %s (%s %llu) %llu",
				row->id < PREFIXES_FIRST_ID ? "weights" : "a shared prefix",
				row->model, row->id < PREFIXES_FIRST_ID ? "generation" : "id",
				(unsigned long long)row->id, (unsigned long long)row->n_bytes);
		if (n + (size_t)k + 2 + TAIL_BYTES >= sizeof(err->text))
			break;
		n += (size_t)snprintf(
			err->text + n, sizeof(err->text) - n, "%s%s", n_listed++ ? ", " : "", text);
		n_left--;
	}
	if (n_left)
		snprintf(err->text + n, sizeof(err->text) - n, " and %u more", n_left);
}

void account_list_grants(const struct account *a, struct err *err)
{
	account_list(a, NULL, err);
}

static int account_refuse(
	const struct account *a, const struct account_request *q, struct err *ret_err)
{
	struct err err = ERR_NULL;
	char who[128];

	if (q->kind == ACCOUNT_GRANT)
		snprintf(who, sizeof(who), "pid %d (model %s)", (int)q->pid, q->model);
	else
		snprintf(who, sizeof(who), "weights of %s", q->model);
	err_set(&err, ENOMEM, "device %.64s: %s: expected %llu bytes, found %llu of %llu free",
		a->params.device, who, (unsigned long long)q->n_least_bytes,
		(unsigned long long)account_get_room(a, q),
		(unsigned long long)a->params.n_budget_bytes);
	account_list(a, q, &err);
	if (ret_err)
		*ret_err = err;
	return -ENOMEM;
}

/* What it waits for, and others are asked for. */
static uint64_t account_get_need(const struct account_request *q)
{
	return q->is_modest ? q->n_least_bytes : q->n_bytes;
}

/* Asks whoever could help: true when somebody could, or bytes are on their way out. */
static bool account_press(struct account *a, const struct account_request *q)
{
	uint64_t room = account_get_room(a, q) + a->n_leaving_bytes;
	uint32_t n_asked =
		a->params.press(a->params.userdata, q->kind == ACCOUNT_GRANT ? q->id : 0);

	/* A park may come to nothing, so what nobody has does not wait for it. */
	if (account_get_need(q) > room)
		a->params.evict(a->params.userdata, account_get_need(q) - room);
	return n_asked > 0 || a->n_leaving_bytes > 0;
}

static void account_drop_wait(struct account *a, uint32_t index)
{
	a->n_waits--;
	memmove(&a->waits[index], &a->waits[index + 1], (a->n_waits - index) * sizeof(*a->waits));
}

/*
 * Whoever waits, in order: those behind the first that does not fit wait too, or a large request
 * would never see the bytes that small ones take. It comes to its end at now_ns - wait_ns.
 */
static void account_serve(struct account *a, uint64_t now_ns)
{
	if (a->is_serving) /* by an answer */
		return;
	a->is_serving = true;
	while (a->n_waits > 0) {
		const struct account_request q = a->waits[0].request;
		bool is_over = now_ns - a->waits[0].since_ns >= a->params.wait_ns;
		uint64_t room = account_get_room(a, &q);
		struct err err = ERR_NULL;
		int rc = 0;

		uint64_t need = account_get_need(&q);
		if (room < need && !is_over) {
			/* Perhaps nobody has something any more. */
			if (room + a->n_leaving_bytes < need)
				a->params.evict(
					a->params.userdata, need - room - a->n_leaving_bytes);
			break;
		}
		account_drop_wait(a, 0);
		if (room > q.n_bytes)
			room = q.n_bytes;
		if (room >= q.n_least_bytes)
			account_set(a, &q, room);
		else
			rc = account_refuse(a, &q, &err);
		a->params.answer(a->params.userdata, &q, rc, rc ? 0 : room, &err);
	}
	a->is_serving = false;
}

void account_set_budget(struct account *a, uint64_t n_bytes, uint64_t now_ns)
{
	a->params.n_budget_bytes = n_bytes;
	account_serve(a, now_ns);
}

bool account_is_waiting(const struct account *a, enum account_kind kind, uint64_t id)
{
	for (uint32_t i = 0; i < a->n_waits; i++)
		if (a->waits[i].request.kind == kind && a->waits[i].request.id == id)
			return true;
	return false;
}

static int account_check(
	const struct account *a, const struct account_request *q, struct err *ret_err)
{
	if (account_is_waiting(a, q->kind, q->id))
		return err_set(ret_err, EBUSY,
			"device %.64s: a request for its memory waits already", a->params.device);
	/* A waiter becomes a row. */
	if (a->n_rows + a->n_waits >= ACCOUNT_MAX_ROWS)
		return err_set(ret_err, ENOSPC, "device %.64s: %u hold or await memory, the most",
			a->params.device, a->n_rows + a->n_waits);
	return 0;
}

int account_request(struct account *a, const struct account_request *q, uint64_t now_ns,
	struct err *ret_err, uint64_t *ret_n_bytes)
{
	const struct account_row *row = account_find(a, q->kind, q->id);
	uint64_t room = account_get_room(a, q);
	int rc = account_check(a, q, ret_err);

	if (rc < 0)
		return rc;
	if ((row && q->n_bytes <= row->n_bytes) || q->n_bytes == 0 ||
		(a->n_waits == 0 && account_get_need(q) <= room)) {
		uint64_t n_bytes = q->n_bytes < room ? q->n_bytes : room;
		if (row || n_bytes > 0)
			account_set(a, q, n_bytes);
		*ret_n_bytes = n_bytes;
		account_serve(a, now_ns);
		return 0;
	}
	/* Whoever parks, it would not be enough. */
	if (q->n_least_bytes > a->params.n_budget_bytes)
		return account_refuse(a, q, ret_err);
	if (!account_press(a, q) && a->n_waits == 0) {
		room = account_get_room(a, q);
		if (room < q->n_least_bytes)
			return account_refuse(a, q, ret_err);
		account_set(a, q, room < q->n_bytes ? room : q->n_bytes);
		*ret_n_bytes = room < q->n_bytes ? room : q->n_bytes;
		return 0;
	}
	a->waits[a->n_waits++] =
		(struct account_wait){.request = *q, .since_ns = now_ns, .pressed_ns = now_ns};
	account_serve(a, now_ns);
	return ACCOUNT_WAIT;
}

uint64_t account_take(struct account *a, const struct account_request *q)
{
	struct err ignored = ERR_NULL;
	uint64_t room = a->n_waits ? 0 : account_get_room(a, q);

	if (account_check(a, q, &ignored) < 0)
		return 0;
	account_set(a, q, room < q->n_bytes ? room : q->n_bytes);
	return room < q->n_bytes ? room : q->n_bytes;
}

void account_set_weights(struct account *a, uint64_t generation, uint64_t n_bytes, uint64_t now_ns)
{
	struct account_row *row = account_find(a, ACCOUNT_WEIGHTS, generation);

	if (row)
		account_set_row(a, row, n_bytes);
	account_serve(a, now_ns);
}

uint64_t account_leave(struct account *a, uint64_t generation, uint64_t now_ns)
{
	struct account_row *row = account_find(a, ACCOUNT_WEIGHTS, generation);
	uint64_t n_bytes = row ? row->n_bytes : 0;

	for (uint32_t i = 0; i < a->n_waits; i++)
		if (a->waits[i].request.kind == ACCOUNT_WEIGHTS &&
			a->waits[i].request.id == generation) {
			account_drop_wait(a, i);
			break;
		}
	if (row) {
		a->n_leaving_bytes += n_bytes;
		*row = a->rows[--a->n_rows];
	}
	account_serve(a, now_ns);
	return n_bytes;
}

void account_freed(struct account *a, uint64_t n_bytes, uint64_t now_ns)
{
	if (n_bytes > a->n_leaving_bytes)
		n_bytes = a->n_leaving_bytes;
	a->n_leaving_bytes -= n_bytes;
	a->n_used_bytes -= n_bytes;
	account_serve(a, now_ns);
}

void account_close(struct account *a, uint64_t peer, uint64_t holder, uint64_t now_ns)
{
	struct account_row *row = account_find(a, ACCOUNT_GRANT, peer);
	struct account_row *old = holder ? account_find(a, ACCOUNT_GRANT, holder) : NULL;

	for (uint32_t i = 0; i < a->n_waits; i++)
		if (a->waits[i].request.kind == ACCOUNT_GRANT && a->waits[i].request.id == peer) {
			account_drop_wait(a, i);
			break;
		}
	if (row && old && old != row) {
		old->n_bytes += row->n_bytes;
		*row = a->rows[--a->n_rows];
	} else if (row && holder) {
		row->id = holder;
		row->is_gone = true;
	} else if (row) {
		account_set_row(a, row, 0);
	}
	account_serve(a, now_ns);
}

void account_exit(struct account *a, uint64_t holder, uint64_t now_ns)
{
	struct account_row *row = account_find(a, ACCOUNT_GRANT, holder);

	if (row && row->is_gone)
		account_set_row(a, row, 0);
	account_serve(a, now_ns);
}

bool account_resume(struct account *a, uint64_t holder, uint64_t peer)
{
	struct account_row *row = account_find(a, ACCOUNT_GRANT, holder);
	struct account_row *own = account_find(a, ACCOUNT_GRANT, peer);

	if (!row || !row->is_gone)
		return false;
	bool is_recalled = row->is_recalled;
	if (own && own != row) {
		account_set_row(a, own, 0);
		row = account_find(a, ACCOUNT_GRANT, holder);
	}
	row->id = peer;
	row->is_gone = row->is_recalled = false;
	row->is_inherited = true;
	return is_recalled;
}

void account_restore(struct account *a, const struct account_request *q)
{
	if (a->n_rows < ACCOUNT_MAX_ROWS || account_find(a, q->kind, q->id))
		account_set(a, q, q->n_bytes);
}

void account_recall(struct account *a, const struct account_request *q)
{
	struct account_row *row = account_find(a, ACCOUNT_GRANT, q->id);

	/* Nothing is no row. */
	if ((a->n_rows >= ACCOUNT_MAX_ROWS && !row) || q->n_bytes == 0)
		return;
	account_set(a, q, q->n_bytes + (row ? row->n_bytes : 0));
	row = account_find(a, ACCOUNT_GRANT, q->id);
	row->is_gone = row->is_recalled = true;
}

bool account_is_recalled(const struct account *a, uint64_t holder)
{
	const struct account_row *row = account_find(a, ACCOUNT_GRANT, holder);

	return row && (row->is_recalled || (row->is_gone && row->is_inherited));
}

void account_tick(struct account *a, uint64_t now_ns)
{
	if (a->n_waits > 0 && now_ns - a->waits[0].pressed_ns >= ACCOUNT_PRESS_NS) {
		const struct account_request q = a->waits[0].request;
		a->waits[0].pressed_ns = now_ns;
		(void)account_press(a, &q);
	}
	account_serve(a, now_ns);
}

void account_get_figures(const struct account *a, struct account_figures *ret_figures)
{
	struct account_figures f = {.n_budget_bytes = a->params.n_budget_bytes,
		.n_weights_bytes = a->n_leaving_bytes,
		.n_waiting = a->n_waits};

	for (uint32_t i = 0; i < a->n_rows; i++) {
		if (a->rows[i].kind == ACCOUNT_GRANT)
			f.n_granted_bytes += a->rows[i].n_bytes;
		else
			f.n_weights_bytes += a->rows[i].n_bytes;
	}
	*ret_figures = f;
}

uint64_t account_get_grant(const struct account *a, uint64_t id)
{
	const struct account_row *row = account_find(a, ACCOUNT_GRANT, id);

	return row ? row->n_bytes : 0;
}

void account_visit_grants(const struct account *a, account_grant_fn fn, void *userdata)
{
	for (uint32_t i = 0; i < a->n_rows; i++)
		if (a->rows[i].kind == ACCOUNT_GRANT)
			fn(a->rows[i].id, a->rows[i].n_bytes, a->rows[i].model, userdata);
}
