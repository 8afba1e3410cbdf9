/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/util/err.h"

int staging_refuse(struct err *ret_err, const char *what)
{
	int errnum = errno;

	return err_set(
		ret_err, errnum, "staged weights: cannot %s a memfd: %s", what, strerror(errnum));
}

int staging_new_memfd(const char *name, uint64_t n_bytes, struct err *ret_err, int *ret_memfd)
{
	_cleanup_(cleanup_close)
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return staging_refuse(ret_err, "create");
	if (ftruncate(fd, (off_t)n_bytes) < 0)
		return staging_refuse(ret_err, "size");
	/* Before it is mapped by anybody: a truncated mapping kills who reads it. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return staging_refuse(ret_err, "seal");
	*ret_memfd = TAKE_FD(fd);
	return 0;
}
