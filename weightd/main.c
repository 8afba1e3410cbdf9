/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "weightd/registry.h"
#include "weightd/server.h"

enum { MAIN_FAILED = 1, MAIN_USAGE = 2, MAIN_MAX_MODELS = 64 };

#define MAIN_RUN_DIR "/run/weightd"

static const char usage[] =
	"Usage: weightd [OPTION]...\n"
	"Loads models once and hands their memory out to workers.\n"
	"\n"
	"  --socket PATH             where it listens; default $WEIGHTD_SOCKET, else\n"
	"                            $XDG_RUNTIME_DIR/weightd.sock, else " MAIN_RUN_DIR
	"/weightd.sock\n"
	"  --model NAME=FILE         load FILE (GGUF) as NAME before it is ready; may be repeated\n"
	"  --device DEVICE           auto (discrete, then integrated, then software), software,\n"
	"                            an index or a UUID; default auto\n"
	"  --place PATTERN=PLACEMENT where tensors go; this version knows the placement device\n"
	"  --alloc-bytes N           at most N bytes an allocation; default the device's limit\n"
	"  --no-uring                read files by pread\n"
	"  --log-level LEVEL         error, warn, info or debug; default info\n"
	"  --help, --version\n";

struct options {
	char socket[256];
	const char *device;
	uint64_t alloc_bytes;
	bool use_pread;
	enum log_level log_level;
	uint32_t n_models;
	struct server_model models[MAIN_MAX_MODELS];
};

/* What getopt_long returns for options that have no letter. */
enum option_id {
	OPTION_SOCKET = 256,
	OPTION_MODEL,
	OPTION_DEVICE,
	OPTION_PLACE,
	OPTION_ALLOC_BYTES,
	OPTION_NO_URING,
	OPTION_LOG_LEVEL,
	OPTION_HELP,
	OPTION_VERSION,
};

static int parse_model(struct options *o, char *text, struct err *ret_err)
{
	char *equals = strchr(text, '=');

	if (!equals || !equals[1])
		return err_set(ret_err, EINVAL, "--model: expected NAME=FILE, found \"%s\"", text);
	if (o->n_models == MAIN_MAX_MODELS)
		return err_set(ret_err, EINVAL, "--model: expected at most %d", MAIN_MAX_MODELS);
	*equals = '\0';
	int rc = registry_check_name(text, ret_err);
	if (rc < 0)
		return rc;
	o->models[o->n_models++] =
		(struct server_model){.name = text, .path = equals + 1, .fd = -1};
	return 0;
}

static int parse_place(const char *text, struct err *ret_err)
{
	const char *equals = strrchr(text, '=');

	if (!equals || equals == text || !equals[1])
		return err_set(
			ret_err, EINVAL, "--place: expected PATTERN=PLACEMENT, found \"%s\"", text);
	if (strcmp(equals + 1, "device"))
		return err_set(ret_err, EINVAL,
			"--place: placement \"%s\" is not available in this version: expected "
			"device",
			equals + 1);
	return 0;
}

static int parse_bytes(const char *text, struct err *ret_err, uint64_t *ret_bytes)
{
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || n == 0)
		return err_set(ret_err, EINVAL,
			"--alloc-bytes: expected a number above 0, found \"%s\"", text);
	*ret_bytes = n;
	return 0;
}

static int parse_option(struct options *o, int id, char *value, struct err *ret_err)
{
	switch (id) {
	case OPTION_SOCKET:
		if (!*value || strlen(value) >= sizeof(o->socket))
			return err_set(ret_err, EINVAL, "--socket: expected 1 to %zu bytes",
				sizeof(o->socket) - 1);
		strcpy(o->socket, value);
		return 0;
	case OPTION_MODEL: return parse_model(o, value, ret_err);
	case OPTION_DEVICE: o->device = value; return 0;
	case OPTION_PLACE: return parse_place(value, ret_err);
	case OPTION_ALLOC_BYTES: return parse_bytes(value, ret_err, &o->alloc_bytes);
	case OPTION_NO_URING: o->use_pread = true; return 0;
	case OPTION_LOG_LEVEL:
		if (log_parse_level(value, &o->log_level) < 0)
			return err_set(ret_err, EINVAL,
				"--log-level: expected error, warn, info or debug, found \"%s\"",
				value);
		return 0;
	default: return err_set(ret_err, EINVAL, "%s", "see weightd --help");
	}
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{"socket", required_argument, NULL, OPTION_SOCKET},
		{"model", required_argument, NULL, OPTION_MODEL},
		{"device", required_argument, NULL, OPTION_DEVICE},
		{"place", required_argument, NULL, OPTION_PLACE},
		{"alloc-bytes", required_argument, NULL, OPTION_ALLOC_BYTES},
		{"no-uring", no_argument, NULL, OPTION_NO_URING},
		{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
		{"help", no_argument, NULL, OPTION_HELP},
		{"version", no_argument, NULL, OPTION_VERSION},
		{0},
	};
	struct err err = ERR_NULL;
	int id;

	opterr = 0; /* one line, in our words */
	while ((id = getopt_long(argc, argv, "", table, NULL)) != -1) {
		if (id == OPTION_HELP || id == OPTION_VERSION) {
			fputs(id == OPTION_HELP ? usage : "weightd " WEIGHTD_VERSION "\n", stdout);
			return 0;
		}
		if (id == '?')
			err_set(&err, EINVAL, "%s: unknown, or its value is missing",
				argv[optind - 1]);
		if (id == '?' || parse_option(o, id, optarg, &err) < 0) {
			log_error("%s; see weightd --help", err.text);
			return MAIN_USAGE;
		}
	}
	if (optind < argc) {
		log_error("%s: expected options only; see weightd --help", argv[optind]);
		return MAIN_USAGE;
	}
	return -1;
}

/* Every peer and every allocation costs descriptors. */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_debug("file descriptor limit: %s", strerror(errno));
}

static int choose_socket(struct options *o, struct err *ret_err)
{
	if (o->socket[0])
		return 0;
	int rc = weights_client_default_path(o->socket, sizeof(o->socket));
	if (rc < 0)
		return err_set(ret_err, -rc, "socket: default path: %s", strerror(-rc));
	if (!strncmp(o->socket, MAIN_RUN_DIR "/", strlen(MAIN_RUN_DIR "/")) &&
		mkdir(MAIN_RUN_DIR, 0755) < 0 && errno != EEXIST)
		return err_set(ret_err, errno, MAIN_RUN_DIR ": %s", strerror(errno));
	return 0;
}

static int open_models(struct options *o, struct err *ret_err)
{
	for (uint32_t i = 0; i < o->n_models; i++) {
		struct server_model *m = &o->models[i];
		/* A FIFO would wait for a writer; gguf_read refuses it by its kind. */
		m->fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (m->fd < 0)
			return err_set(ret_err, errno, "model %s: %s: %s", m->name, m->path,
				strerror(errno));
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct options o = {.device = "auto", .log_level = LOG_INFO};
	struct err err = ERR_NULL;

	log_init("weightd", LOG_INFO);
	int status = parse_options(argc, argv, &o);
	if (status >= 0)
		return status;
	log_init("weightd", o.log_level);
	signal(SIGPIPE, SIG_IGN);
	raise_fd_limit();
	int rc = choose_socket(&o, &err);
	if (rc == 0)
		rc = open_models(&o, &err);
	if (rc == 0) {
		const struct server_params params = {.socket = o.socket,
			.device = o.device,
			.alloc_bytes = o.alloc_bytes,
			.use_pread = o.use_pread,
			.n_models = o.n_models,
			.models = o.models};
		rc = server_run(&params, &err);
	}
	for (uint32_t i = 0; i < o.n_models; i++)
		cleanup_close(&o.models[i].fd);
	if (rc < 0) {
		log_error("%s", err.text);
		return MAIN_FAILED;
	}
	return 0;
}
