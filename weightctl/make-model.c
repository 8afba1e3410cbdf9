/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "weightctl/figure.h"
#include "weightctl/options.h"
#include "weightctl/output.h"
#include "weightctl/synthetic.h"

enum { MAX_PIECE_BYTES = 1 << 30 };

static int copy(int from, int to, uint64_t n_bytes)
{
	while (n_bytes > 0) {
		size_t n_piece = n_bytes < MAX_PIECE_BYTES ? (size_t)n_bytes : MAX_PIECE_BYTES;
		ssize_t n = sendfile(to, from, NULL, n_piece);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		n_bytes -= (uint64_t)n;
	}
	return 0;
}

/* A file that is there already is somebody's. What could not be written whole does not stay. */
static int save(const char *path, int from, uint64_t n_bytes, struct err *ret_err)
{
	_cleanup_(cleanup_close)
	int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int r = to < 0 ? -errno : 0;

	if (!r) {
		r = copy(from, to, n_bytes);
		if (r)
			(void)unlink(path);
	}
	return r ? err_set(ret_err, -r, "%s: %s", path, strerror(-r)) : 0;
}

int make_model_run(const struct options *o, struct err *ret_err)
{
	const char *name = o->args[0], *path = o->args[1];
	uint64_t seed = o->sampling.has_seed ? o->sampling.seed : 1, n_bytes = 0;
	_cleanup_(cleanup_close)
	int fd = -1;
	int r = synthetic_make(name, seed, ret_err, &fd, &n_bytes);

	if (!r)
		r = save(path, fd, n_bytes, ret_err);
	if (r)
		return r;
	if (o->json)
		return output_json(json_pack("{s:o, s:o, s:I}", "model", output_name(name), "file",
			output_name(path), "n_bytes", (json_int_t)n_bytes));
	output_clean(path);
	printf(": %s\n", figure_bytes(n_bytes).text);
	return 0;
}
