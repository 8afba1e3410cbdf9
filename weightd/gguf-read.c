/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"

enum { READ_BYTES = 1 << 20 }; /* the first read; doubled until the metadata is in it */

static const char *describe_file(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR: return "a directory";
	case S_IFSOCK: return "a socket";
	case S_IFIFO: return "a pipe";
	case S_IFCHR: return "a character device";
	case S_IFBLK: return "a block device";
	default: return "a special file";
	}
}

/* Reads data[from..to) of the file. */
static int read_range(int fd, struct err *e, uint8_t *data, uint64_t from, uint64_t to)
{
	while (from < to) {
		ssize_t n = pread(fd, data + from, to - from, (off_t)from);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			int errnum = errno;
			return err_set(e, errnum, "file: cannot read byte %" PRIu64 ": %s", from,
				strerror(errnum));
		}
		if (n == 0)
			return err_set(e, EINVAL,
				"file: expected byte %" PRIu64 ", found the end: it was truncated",
				from);
		from += (uint64_t)n;
	}
	return 0;
}

static int read_metadata(int fd, uint64_t n_file_bytes, struct err *e, struct gguf **ret_gguf)
{
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	uint64_t n_have = 0, n_want = READ_BYTES;
	int r;

	do {
		uint64_t n = n_want < n_file_bytes ? n_want : n_file_bytes;
		uint8_t *grown = realloc(data, n);
		if (!grown)
			return err_set(
				e, ENOMEM, "file: no memory for %" PRIu64 " bytes of metadata", n);
		data = grown;
		r = read_range(fd, e, data, n_have, n);
		if (r < 0)
			return r;
		n_have = n;
		n_want = n * 2;
		r = gguf_parse(data, n_have, n_file_bytes, e, ret_gguf);
	} while (r == GGUF_MORE && n_have < GGUF_MAX_METADATA_BYTES);
	if (r == GGUF_MORE)
		return err_set(e, EINVAL, "metadata: expected at most %d bytes, found more",
			GGUF_MAX_METADATA_BYTES);
	if (r == 0)
		(*ret_gguf)->metadata = TAKE_PTR(data);
	return r;
}

int gguf_read(int fd, struct err *ret_err, struct gguf **ret_gguf)
{
	struct stat st;

	if (fstat(fd, &st) < 0) {
		int errnum = errno;
		return err_set(ret_err, errnum, "file: cannot stat: %s", strerror(errnum));
	}
	if (!S_ISREG(st.st_mode))
		return err_set(ret_err, EINVAL, "file: expected a regular file, found %s",
			describe_file(st.st_mode));
	if (st.st_size == 0)
		return err_set(ret_err, EINVAL, "file: expected a GGUF model, found an empty file");
	return read_metadata(fd, (uint64_t)st.st_size, ret_err, ret_gguf);
}
