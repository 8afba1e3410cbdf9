/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/batons.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/baton.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "weightd/loader.h"
#include "weightd/service-internal.h"

_Static_assert(sizeof(struct baton_memory) <= BATON_BYTES, "it has room");

void batons_init(struct service *s)
{
	for (uint32_t i = 0; i < SERVICE_MAX_DEVICES; i++)
		s->batons[i] = -1;
}

void batons_fini(struct service *s)
{
	for (uint32_t i = 0; i < SERVICE_MAX_DEVICES; i++) {
		if (s->batons[i] >= 0)
			close(s->batons[i]);
		s->batons[i] = -1;
	}
}

/* Of a size that stays, so that nobody takes pages away from who has it mapped. */
static int make(struct err *ret_err, int *ret_fd)
{
	_cleanup_(cleanup_close)
	int fd = memfd_create("weightd-baton", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, BATON_BYTES) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return err_set(ret_err, errno, "baton: %s", strerror(errno));
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int batons_get(struct service *s, const uint8_t device_uuid[16], struct err *ret_err, int *ret_fd)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		if (memcmp(device_uuid, loader_get_info(s->params->loaders[i])->uuid, 16))
			continue;
		int rc = s->batons[i] < 0 ? make(ret_err, &s->batons[i]) : 0;
		if (rc == 0)
			*ret_fd = s->batons[i];
		return rc;
	}
	return err_set(ret_err, ENOTSUP, "TakeBaton: the device is not weightd's");
}
