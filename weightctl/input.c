/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/stream.h"
#include "proto/util/err.h"

/* name: what f is, for a person. */
static int read_all(
	FILE *f, const char *name, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes)
{
	_cleanup_(cleanup_free)
	char *text = malloc(STREAM_MAX_BYTES + 1);

	if (!text)
		return -ENOMEM;
	size_t n = fread(text, 1, STREAM_MAX_BYTES + 1, f);
	if (ferror(f))
		return err_set(ret_err, EIO, "%s: %s", name, strerror(errno));
	if (n > STREAM_MAX_BYTES)
		return err_set(
			ret_err, E2BIG, "%s: expected at most %d bytes", name, STREAM_MAX_BYTES);
	*ret_text = TAKE_PTR(text);
	*ret_n_bytes = (uint32_t)n;
	return 0;
}

int input_read(const char *argument, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes)
{
	if (strcmp(argument, "-") == 0)
		return read_all(stdin, "standard input", ret_err, ret_text, ret_n_bytes);
	size_t n = strlen(argument);
	if (n > STREAM_MAX_BYTES)
		return err_set(ret_err, E2BIG, "text: expected at most %d bytes, found %zu",
			STREAM_MAX_BYTES, n);
	char *text = strdup(argument);
	if (!text)
		return -ENOMEM;
	*ret_text = text;
	*ret_n_bytes = (uint32_t)n;
	return 0;
}

int input_read_file(const char *path, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes)
{
	_cleanup_(cleanup_fclose)
	FILE *f = fopen(path, "re");

	if (!f) {
		int code = errno;
		return err_set(ret_err, code, "%s: %s", path, strerror(code));
	}
	int r = read_all(f, path, ret_err, ret_text, ret_n_bytes);
	if (r == 0 && *ret_n_bytes == 0) {
		free(*ret_text);
		return err_set(
			ret_err, EINVAL, "%s: expected something, found an empty file", path);
	}
	return r;
}

int input_open(const char *path, struct err *ret_err, int *ret_fd, uint64_t *ret_n_bytes)
{
	/* O_NONBLOCK: the open of a FIFO would wait for a writer. */
	_cleanup_(cleanup_close)
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || fcntl(fd, F_SETFL, 0) < 0) {
		int code = errno;
		return err_set(ret_err, code, "%s: %s", path, strerror(code));
	}
	*ret_n_bytes = (uint64_t)st.st_size;
	*ret_fd = TAKE_FD(fd);
	return 0;
}
