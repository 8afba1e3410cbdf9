/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/weights-baton.h"

#include <errno.h>

#include "proto/util/err.h"
#include "proto/weights-link.h"

enum { UUID_BYTES = 16 };

int weights_baton_take(
	struct weights_client *c, const uint8_t device_uuid[16], struct err *ret_err, int *ret_fd)
{
	struct weights_link *link = weights_client_get_link(c);
	_cleanup_(weights_link_free_reply)
	Wd__Reply *reply = NULL;
	_cleanup_(fdlist_fini)
	struct fdlist fds = FDLIST_NULL;
	Wd__TakeBaton m = WD__TAKE_BATON__INIT;
	Wd__Request request = WD__REQUEST__INIT;

	m.device_uuid = (ProtobufCBinaryData){.len = UUID_BYTES, .data = (uint8_t *)device_uuid};
	request.body_case = WD__REQUEST__BODY_TAKE_BATON;
	request.take_baton = &m;
	int r = weights_link_send(link, &request, NULL, ret_err);
	if (r == 0)
		r = weights_link_recv(link, WD__REPLY__BODY_BATON_TAKEN, WEIGHTS_LINK_TIMEOUT_MS,
			ret_err, &reply, &fds);
	if (r < 0)
		return r;
	if (fds.n != 1)
		return err_set(
			ret_err, EPROTO, "weightd: baton: expected a descriptor, found %u", fds.n);
	*ret_fd = fdlist_take(&fds, 0);
	return 0;
}
