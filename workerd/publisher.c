/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/publisher.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "proto/util/clock.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/share.h"
#include "vk/submit.h"
#include "workerd/engine-internal.h"
#include "workerd/guests.h"
#include "workerd/kv.h"
#include "workerd/loan.h"
#include "workerd/message.h"
#include "workerd/park.h"
#include "workerd/scheduler.h"
#include "workerd/session.h"
#include "workerd/turn.h"

/* Between two steps: of the slowest devices some 10 ms. */
static const uint64_t piece_bytes = 64 << 20;
/* What a driver may round an allocation up by: given back when it is known. */
static const uint64_t slack_bytes = 2 << 20;
static const uint64_t timeout_ns = 30ull * 1000 * 1000 * 1000;

static void publisher_close_session(struct engine *e)
{
	struct err ignored = ERR_NULL;

	/* Its time may be over, see --session-ttl. */
	if (scheduler_close(e->scheduler, PUBLISHER_CLIENT, e->publisher.session, &ignored))
		log_debug("%s", ignored.text);
}

/* Grants what the worker has without it; the client is the engine's. */
static void publisher_settle_grant(struct engine *e, struct weights_client *c)
{
	const uint8_t *uuid = vk_device_get_info(e->site.device)->uuid;
	uint64_t n_bytes = e->publisher.n_granted_bytes;
	struct err ignored = ERR_NULL;
	uint64_t n_got;

	if (!n_bytes)
		return;
	if (weights_client_reserve(c, uuid, n_bytes, n_bytes, false, &ignored, &n_got))
		log_warn("what was reserved for a shared prefix is not given back: %s",
			ignored.text);
	e->publisher.n_granted_bytes = 0;
}

/* Whatever there is of it goes. */
static void publisher_free(struct engine *e)
{
	struct publisher *p = &e->publisher;
	struct weights_client *c = NULL;
	struct err ignored = ERR_NULL;

	vk_command_free(p->command);
	vk_memory_free(p->memory);
	p->command = NULL;
	p->memory = NULL;
	if (p->n_granted_bytes && !loan_take(e->params.loan, &ignored, &c)) {
		publisher_settle_grant(e, c);
		loan_give_back(e->params.loan);
	}
	publisher_close_session(e);
	*p = (struct publisher){0};
}

static void publisher_fail(struct engine *e, int code, const struct err *why)
{
	struct message *m = TAKE_PTR(e->publisher.message);

	if (code > 0) { /* VK_DEVICE_LOST */
		engine_set_failed(e, code, why);
		message_refuse(m, e->code, &e->error);
	} else {
		message_refuse(m, code, why);
	}
	publisher_free(e);
	engine_send(e, m);
}

/* ---- computing ---- */

static int publisher_check(struct engine *e, const struct message *m, struct err *ret_err)
{
	const struct message_publish *p = &m->publish;
	uint32_t n_ctx = kv_get_params(e->stack->kv)->n_ctx;

	if (m->epoch && m->epoch != e->epoch)
		return err_set(
			ret_err, ESTALE, "prefix: the model was replaced by one with other tokens");
	if (e->publisher.message)
		return err_set(ret_err, EBUSY, "prefix: another one is being published");
	if (p->n_ids < KV_PAGE_TOKENS)
		return err_set(ret_err, EINVAL,
			"prefix: expected at least the %d tokens of a page, found %" PRIu64,
			KV_PAGE_TOKENS, p->n_ids);
	/* One token more is to be computed behind it. */
	if (p->n_ids >= n_ctx)
		return err_set(ret_err, ENOSPC,
			"prefix: expected fewer tokens than the %" PRIu32
			" of the context, found %" PRIu64,
			n_ctx, p->n_ids);
	return 0;
}

static int publisher_generate(struct engine *e, const struct message *m, struct err *ret_err)
{
	struct message *generate = message_new(MESSAGE_GENERATE, PUBLISHER_CLIENT, 0);

	if (!generate)
		return -ENOMEM;
	generate->arrived_ns = m->arrived_ns;
	generate->generate.session = e->publisher.session;
	generate->generate.is_prefill = true;
	/* Nobody waits for its first token. */
	generate->generate.priority = -TURN_MAX_PRIORITY;
	int r = scheduler_generate(e->scheduler, generate, ret_err);
	if (r)
		message_free(generate);
	return r;
}

int publisher_begin(struct engine *e, struct message *m, struct err *ret_err, bool *ret_is_done)
{
	struct message_publish *p = &m->publish;
	uint32_t n_tokens, n_total;
	int r = e->stack ? 0 : park_unpark(e, ret_err);

	if (!r)
		r = publisher_check(e, m, ret_err);
	if (r)
		return r;
	n_tokens = (uint32_t)p->n_ids / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
	guests_seek(e, p->ids, n_tokens);
	p->n_tokens = n_tokens;
	p->existed = *ret_is_done =
		guests_has(e->guests, p->ids, n_tokens, p->is_shared, &p->prefix, &p->n_bytes);
	if (p->existed)
		return 0;
	r = scheduler_open(e->scheduler, PUBLISHER_CLIENT, engine_get_scope(e, m), ret_err,
		&e->publisher.session);
	if (r)
		return r;
	r = scheduler_append(e->scheduler, PUBLISHER_CLIENT, e->publisher.session, p->ids, n_tokens,
		ret_err, &n_total);
	if (!r)
		r = publisher_generate(e, m, ret_err);
	if (r) {
		publisher_close_session(e);
		return r;
	}
	e->publisher.message = m;
	return 0;
}

void publisher_take_finished(struct engine *e, struct message *generate)
{
	struct publisher *p = &e->publisher;
	const struct message_finished *f = &generate->generate.finished;
	struct err why = ERR_NULL;

	if (f->reason == MESSAGE_REASON_STOP) {
		p->message->publish.n_computed = f->prompt_tokens - f->cached_tokens;
		p->is_computed = true;
	} else if (p->message) {
		p->code = generate->code ? generate->code : -ECANCELED;
		err_set(&why, -p->code, "prefix: %.400s",
			generate->code ? message_get_error(generate) : "it was cancelled");
		p->why = why;
	}
	message_free(generate);
}

/* ---- copying ---- */

/* Nobody parks for it, and nobody waits: others may be decoding. */
static int publisher_reserve(struct engine *e, uint64_t n_bytes, struct err *ret_err)
{
	const uint8_t *uuid = vk_device_get_info(e->site.device)->uuid;
	uint64_t n_had = e->stack->n_granted_bytes;
	bool is_busy = scheduler_is_busy(e->scheduler);
	struct weights_client *c = NULL;
	uint64_t n_got = 0;
	int r = loan_take(e->params.loan, ret_err, &c);

	if (r)
		return r;
	r = weights_client_reserve(c, uuid, n_had + n_bytes, is_busy ? n_had : n_had + n_bytes,
		is_busy, ret_err, &n_got);
	if (!r)
		e->publisher.n_granted_bytes = n_had;
	if (!r && n_got < n_had + n_bytes) {
		publisher_settle_grant(e, c);
		r = err_set(ret_err, ENOSPC,
			"prefix: the device has no %" PRIu64
			" bytes free, and others are answered just now",
			n_bytes);
	}
	loan_give_back(e->params.loan);
	return r;
}

static int publisher_allocate(struct engine *e, struct err *ret_err)
{
	struct publisher *p = &e->publisher;
	uint64_t n_pages = p->message->publish.n_tokens / KV_PAGE_TOKENS;
	const struct vk_memory_params params = {
		.role = VK_MEMORY_KV,
		.n_bytes = n_pages * kv_get_page_bytes(e->stack->kv),
		.is_exportable = true,
		.is_home_only = true,
		.handle = VK_HANDLE_OPAQUE_FD,
		.name = "shared prefix",
	};
	int r = publisher_reserve(e, params.n_bytes + slack_bytes, ret_err);

	if (!r)
		r = vk_memory_new(e->site.device, &params, ret_err, &p->memory);
	if (!r)
		r = vk_command_new(e->site.device, 0, ret_err, &p->command);
	return r;
}

static int publisher_submit(struct engine *e, struct err *ret_err)
{
	struct publisher *p = &e->publisher;
	uint64_t ticket = 0;
	int r = vk_command_end(p->command, ret_err);

	if (!r)
		r = vk_submit(e->site.device, &p->command, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(e->site.device, ticket, timeout_ns);
	if (r != -ETIMEDOUT)
		return r;
	/* The device still has them: better that memory is left than that it is used again. */
	p->command = NULL;
	p->memory = NULL;
	r = err_set(ret_err, EIO, "prefix: the device does not answer");
	engine_set_failed(e, r, ret_err);
	return r;
}

static int publisher_copy(struct engine *e, struct err *ret_err)
{
	struct publisher *p = &e->publisher;
	uint32_t n_pages = p->message->publish.n_tokens / KV_PAGE_TOKENS;
	uint64_t n_page_bytes = kv_get_page_bytes(e->stack->kv);
	const struct session *s = NULL;
	uint64_t n_done = 0;
	int r = scheduler_borrow(e->scheduler, PUBLISHER_CLIENT, p->session, ret_err, &s);

	if (r)
		return r;
	vk_command_begin(p->command);
	for (; p->n_copied < n_pages && n_done < piece_bytes; n_done += n_page_bytes) {
		const struct vk_slice to = {.memory = p->memory,
			.offset = p->n_copied * n_page_bytes,
			.n_bytes = n_page_bytes};
		struct vk_slice from;

		r = kv_get_page(e->stack->kv, s->slot, p->n_copied, &from);
		if (r)
			return err_set(ret_err, EIO, "prefix: its pages are gone");
		vk_command_copy(p->command, &to, &from);
		p->n_copied++;
	}
	if (p->n_copied == n_pages)
		vk_command_release(p->command, p->memory);
	return publisher_submit(e, ret_err);
}

/* ---- publishing ---- */

/* existed: somebody was faster, and this copy goes. */
static int publisher_hand_over(
	struct engine *e, struct guests_own *own, struct err *ret_err, bool *ret_existed)
{
	struct weights_client *c = NULL;
	struct err ignored = ERR_NULL;
	int r = loan_take(e->params.loan, ret_err, &c);

	if (r)
		return r;
	r = guests_publish(e, c, own, ret_err, &own->id, ret_existed);
	if (!r && *ret_existed && weights_prefix_drop(c, own->id, &ignored))
		log_debug("%s", ignored.text);
	/* weightd took what it charges out of the grant; the rest was slack. */
	publisher_settle_grant(e, c);
	loan_give_back(e->params.loan);
	return r;
}

static int publisher_publish(struct engine *e, struct err *ret_err)
{
	struct publisher *p = &e->publisher;
	struct message_publish *m = &p->message->publish;
	struct vk_share_params shape = {0};
	struct guests_own own = {.name = m->name,
		.is_shared = m->is_shared,
		.tokens = m->ids,
		.n_tokens = m->n_tokens,
		.memory = p->memory,
		.fd = -1};
	int code = 0; /* of using it here */
	int r = vk_share_export(p->memory, ret_err, &own.fd, &shape);

	if (r)
		return r;
	own.shape = (struct weights_prefix_memory){.n_bytes = shape.n_bytes,
		.buffer_bytes = shape.buffer_bytes,
		.memory_type_index = shape.memory_type_index,
		.is_dedicated = shape.is_dedicated};
	r = publisher_hand_over(e, &own, ret_err, &m->existed);
	if (!r) {
		m->prefix = own.id;
		m->n_bytes = shape.n_bytes;
	}
	/* Where this worker has no more room for it, others may. */
	if (!r && !m->existed)
		code = guests_add(e, &own, ret_err);
	if (r || m->existed || code)
		close(own.fd);
	else
		p->memory = NULL;
	if (m->existed)
		guests_note_changed(e->guests);
	return code > 0 ? code : r;
}

bool publisher_is_due(const struct engine *e)
{
	return e->publisher.message && (e->publisher.is_computed || e->publisher.code);
}

void publisher_attend(struct engine *e)
{
	struct publisher *p = &e->publisher;
	struct err error = ERR_NULL;
	int r = 0;

	if (!publisher_is_due(e))
		return;
	if (p->code) {
		error = p->why;
		publisher_fail(e, p->code, &error);
		return;
	}
	if (!p->memory)
		r = publisher_allocate(e, &error);
	if (!r)
		r = publisher_copy(e, &error);
	if (!r && p->n_copied < p->message->publish.n_tokens / KV_PAGE_TOKENS)
		return; /* a step comes first */
	if (!r)
		r = publisher_publish(e, &error);
	if (r) {
		publisher_fail(e, r, &error);
		return;
	}
	struct message *m = TAKE_PTR(p->message);
	log_info("shared prefix %" PRIu64 ": %" PRIu32 " tokens, %" PRIu64 " bytes",
		m->publish.prefix, m->publish.n_tokens, m->publish.n_bytes);
	publisher_free(e);
	engine_send(e, m);
}

void publisher_suspend(struct engine *e)
{
	struct err why = ERR_NULL;

	if (!e->publisher.message || !e->publisher.is_computed)
		return;
	/* The grant goes with the stack. */
	e->publisher.n_granted_bytes = 0;
	publisher_fail(
		e, err_set(&why, ECANCELED, "prefix: the worker lets go of its memory"), &why);
}

void publisher_stop(struct engine *e)
{
	struct err why = ERR_NULL;

	if (!e->publisher.message)
		return;
	e->publisher.n_granted_bytes = 0;
	publisher_fail(e, err_set(&why, ESHUTDOWN, "workerd is stopping"), &why);
}
