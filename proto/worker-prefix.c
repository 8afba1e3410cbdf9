/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker-prefix.h"

#include <errno.h>

#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/worker-link.h"

int worker_prefix_publish(struct worker_client *c, const struct worker_prefix_params *params,
	struct err *ret_err, struct worker_prefix *ret_prefix)
{
	struct worker_link *link = worker_client_get_link(c);
	_cleanup_(worker_link_free_reply)
	Wk__Reply *reply = NULL;
	Wk__Text text = WK__TEXT__INIT;
	Wk__PublishPrefix m = WK__PUBLISH_PREFIX__INIT;
	Wk__Request request = WK__REQUEST__INIT;

	text.text = (ProtobufCBinaryData){.data = (uint8_t *)params->text, .len = params->n_bytes};
	text.parse_special = true;
	text.add_bos = params->has_bos;
	m.input_case = WK__PUBLISH_PREFIX__INPUT_TEXT;
	m.text = &text;
	if (params->name)
		m.name = (char *)params->name;
	m.shared = params->is_shared;
	request.body_case = WK__REQUEST__BODY_PUBLISH_PREFIX;
	request.publish_prefix = &m;
	int r = worker_link_send(link, &request, ret_err);
	if (r == 0)
		r = worker_link_recv(link, request.id, WORKER_LINK_FOREVER, ret_err, &reply);
	if (r)
		return r;
	if (reply->body_case != WK__REPLY__BODY_PREFIX_PUBLISHED)
		return err_set(ret_err, EPROTO, "worker: publish: expected %d, found reply %d",
			WK__REPLY__BODY_PREFIX_PUBLISHED, reply->body_case);
	*ret_prefix = (struct worker_prefix){
		.id = reply->prefix_published->id,
		.n_tokens = reply->prefix_published->n_tokens,
		.n_bytes = reply->prefix_published->n_bytes,
		.n_computed = reply->prefix_published->computed_tokens,
		.existed = reply->prefix_published->existed,
	};
	return 0;
}
