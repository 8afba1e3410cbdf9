/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "vk/probe.h"
#include "weightd/access.h"
#include "weightd/checker.h"
#include "weightd/keeper.h"
#include "weightd/policy.h"
#include "weightd/registry.h"
#include "weightd/restart.h"
#include "weightd/server.h"
#include "weightd/service.h"

enum {
	MAIN_FAILED = 1,
	MAIN_USAGE = 2,
	MAIN_MAX_MODELS = 64,
	MAIN_MAX_SECONDS = 1000000000,
	MAIN_MAX_SCRUB_SECONDS = 366 * 86400
};

#define MAIN_RUN_DIR "/run/weightd"

static const char usage[] =
	"Usage: weightd [OPTION]...\n"
	"Loads models once and hands their memory out to workers.\n"
	"\n"
	"  --socket PATH             where it listens; default $WEIGHTD_SOCKET, else\n"
	"                            $XDG_RUNTIME_DIR/weightd.sock, else " MAIN_RUN_DIR
	"/weightd.sock\n"
	"  --listen PATH[,OPTION...] a further socket, for a tenant; may be repeated\n"
	"      models=A+B            shows these alone (names, or patterns of a shell); default "
	"all\n"
	"      uids=0+1000, gids=... who may connect, beside the file's permissions: one of the\n"
	"                            uids, or a member of one of the groups\n"
	"      leases=N              at most that many at a time\n"
	"      bytes=BYTES           of weights (each model once) and reservations at a time\n"
	"      requests=N            a second; what comes faster waits\n"
	"      connections=N, uid-connections=N  at a time, and of one uid\n"
	"      control=yes|no        may load, unload, pin, verify, see others; default no\n"
	"      mode=0660             of the socket's file\n"
	"  --model NAME=FILE         load FILE (GGUF) as NAME before it is ready; may be repeated\n"
	"  --device DEVICE           auto (discrete, then integrated, then software), software,\n"
	"                            an index or a UUID; default auto. Several: the first is the\n"
	"                            default, the others get their copy when a worker asks for it\n"
	"\n"
	"Placement: tensors stay on the device until its room is spent; experts leave first, then\n"
	"layers from the last. What leaves is pinned, else staged, else paged.\n"
	"  --vram-budget BYTES       at most that many bytes of weights on a device; 0: none\n"
	"  --device-budget BYTES     at most that many of a device in all: weights, and what "
	"workers\n"
	"                            reserve; default what the driver has\n"
	"  --host-budget BYTES       at most that many in host memory, of all models; 0: none\n"
	"  --reserve BYTES           of what is free on a device, left to others than weightd's "
	"workers\n"
	"  --place PATTERN=PLACEMENT tensors whose names match (as file names in a shell) are "
	"device,\n"
	"                            pinned (the file's own pages), staged (one copy in host\n"
	"                            memory) or paged (copied by each worker); the last match "
	"wins\n"
	"  --experts auto|device|host  experts leave first (auto), with their layers (device), or\n"
	"                            are never on the device\n"
	"  --pin-writable NAME       that model's file may be handed out for writing, where it "
	"was\n"
	"                            opened so: drivers import pages of a file in memory only "
	"then\n"
	"  --alloc-bytes BYTES       at most that many an allocation; default the device's limit\n"
	"  --window BYTES            at most that many an import of host pages; default the same\n"
	"  BYTES: a number, or with K, M, G or T behind it.\n"
	"\n"
	"Checks: every byte of weights is summed when it is loaded, and anew by weightctl verify.\n"
	"  --scrub SECONDS           and all of them once in that time, on the side; 0: never;\n"
	"                            default 3600, on software devices 0. What differs is lost "
	"and\n"
	"                            loaded anew\n"
	"  --scrub-budget PERCENT    of the device's time, at most, for that; default 1\n"
	"\n"
	"Lifetimes: a load that does not fit on the device makes those go that nobody uses, the\n"
	"least recently used first; what is pinned (weightctl pin) stays.\n"
	"  --idle SECONDS            a model that nobody has had for so long gives its device "
	"memory\n"
	"                            back and is warm: ready in host memory, within "
	"--host-budget,\n"
	"                            else in its file; who asks for it waits until it is back\n"
	"  --idle-unload SECONDS     one that nobody has had for so long is unloaded\n"
	"\n"
	"When weightd dies, workers go on, and the next weightd on the same socket reads nothing\n"
	"again: systemd's store of descriptors, else a keeper process, else the workers bring the\n"
	"memory back. SIGHUP executes the program anew in place, for an upgrade.\n"
	"  --keep SECONDS            how long the keeper waits for the next weightd; default 60;\n"
	"                            0: no keeper\n"
	"\n"
	"  --no-uring                read files by pread\n"
	"  --log-level LEVEL         error, warn, info or debug; default info\n"
	"  --help, --version\n"
	"  --probe DEVICE            as the first option: what can be imported and exported "
	"there\n";

struct options {
	char socket[256];
	uint32_t n_listens;
	struct access listens[SERVER_MAX_LISTENS];
	const char *devices[SERVICE_MAX_DEVICES];
	uint32_t n_devices;
	struct policy policy;
	uint64_t alloc_bytes;
	uint64_t window_bytes;
	const char *pin_writable[MAIN_MAX_MODELS];
	uint32_t n_pin_writable;
	uint64_t idle_ns;
	uint64_t idle_unload_ns;
	bool use_pread;
	uint64_t scrub_ns;
	uint64_t scrub_percent;
	unsigned n_keep_seconds;
	enum log_level log_level;
	uint32_t n_models;
	struct server_model models[MAIN_MAX_MODELS];
};

/* What getopt_long returns for options that have no letter. */
enum option_id {
	OPTION_SOCKET = 256,
	OPTION_LISTEN,
	OPTION_MODEL,
	OPTION_DEVICE,
	OPTION_PLACE,
	OPTION_EXPERTS,
	OPTION_VRAM_BUDGET,
	OPTION_DEVICE_BUDGET,
	OPTION_HOST_BUDGET,
	OPTION_RESERVE,
	OPTION_PIN_WRITABLE,
	OPTION_ALLOC_BYTES,
	OPTION_WINDOW,
	OPTION_IDLE,
	OPTION_IDLE_UNLOAD,
	OPTION_KEEP,
	OPTION_NO_URING,
	OPTION_SCRUB,
	OPTION_SCRUB_BUDGET,
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

static int add_text(const char *option, const char *text, const char **list, uint32_t max,
	struct err *ret_err, uint32_t *n)
{
	if (*n == max)
		return err_set(ret_err, EINVAL, "%s: expected at most %u", option, max);
	list[(*n)++] = text;
	return 0;
}

static int parse_whole(const char *option, const char *text, uint64_t min, uint64_t max,
	struct err *ret_err, uint64_t *ret)
{
	char *end;

	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (errno || *text < '0' || *text > '9' || *end || n < min || n > max)
		return err_set(ret_err, EINVAL,
			"%s: expected a whole number from %llu to %llu, found \"%s\"", option,
			(unsigned long long)min, (unsigned long long)max, text);
	*ret = n;
	return 0;
}

static int parse_seconds(const char *option, const char *value, uint64_t min, uint64_t max,
	struct err *ret_err, uint64_t *ret_ns)
{
	uint64_t seconds;
	int rc = parse_whole(option, value, min, max, ret_err, &seconds);

	if (rc == 0)
		*ret_ns = seconds * 1000000000;
	return rc;
}

static int parse_keep(const char *value, struct err *ret_err, unsigned *ret_seconds)
{
	uint64_t seconds;
	int rc = parse_whole("--keep", value, 0, KEEPER_MAX_SECONDS, ret_err, &seconds);

	if (rc == 0)
		*ret_seconds = (unsigned)seconds;
	return rc;
}

/* Options whose values are judged by the policy. */
static int parse_placement(struct options *o, int id, const char *value, struct err *ret_err)
{
	switch (id) {
	case OPTION_PLACE: return policy_add_rule(&o->policy, value, ret_err);
	case OPTION_EXPERTS: return policy_parse_experts(value, ret_err, &o->policy.experts);
	case OPTION_VRAM_BUDGET:
		return policy_parse_budget("--vram-budget", value, ret_err, &o->policy.vram_budget);
	case OPTION_DEVICE_BUDGET:
		return policy_parse_bytes(
			"--device-budget", value, ret_err, &o->policy.device_budget);
	case OPTION_HOST_BUDGET:
		return policy_parse_budget("--host-budget", value, ret_err, &o->policy.host_budget);
	case OPTION_RESERVE:
		return policy_parse_reserve("--reserve", value, ret_err, &o->policy.reserve_bytes);
	case OPTION_ALLOC_BYTES:
		return policy_parse_bytes("--alloc-bytes", value, ret_err, &o->alloc_bytes);
	case OPTION_WINDOW: return policy_parse_bytes("--window", value, ret_err, &o->window_bytes);
	default: return err_set(ret_err, EINVAL, "%s", "see weightd --help");
	}
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
	case OPTION_LISTEN:
		if (o->n_listens == SERVER_MAX_LISTENS)
			return err_set(ret_err, EINVAL, "--listen: expected at most %d",
				SERVER_MAX_LISTENS);
		return access_parse(value, ret_err, &o->listens[o->n_listens++]);
	case OPTION_MODEL: return parse_model(o, value, ret_err);
	case OPTION_DEVICE:
		return add_text(
			"--device", value, o->devices, SERVICE_MAX_DEVICES, ret_err, &o->n_devices);
	case OPTION_PIN_WRITABLE:
		return add_text("--pin-writable", value, o->pin_writable, MAIN_MAX_MODELS, ret_err,
			&o->n_pin_writable);
	case OPTION_IDLE:
		return parse_seconds("--idle", value, 1, MAIN_MAX_SECONDS, ret_err, &o->idle_ns);
	case OPTION_IDLE_UNLOAD:
		return parse_seconds(
			"--idle-unload", value, 1, MAIN_MAX_SECONDS, ret_err, &o->idle_unload_ns);
	case OPTION_KEEP: return parse_keep(value, ret_err, &o->n_keep_seconds);
	case OPTION_NO_URING: o->use_pread = true; return 0;
	case OPTION_SCRUB:
		return parse_seconds(
			"--scrub", value, 0, MAIN_MAX_SCRUB_SECONDS, ret_err, &o->scrub_ns);
	case OPTION_SCRUB_BUDGET:
		return parse_whole(
			"--scrub-budget", value, 1, SCRUB_MAX_PERCENT, ret_err, &o->scrub_percent);
	case OPTION_LOG_LEVEL:
		if (log_parse_level(value, &o->log_level) < 0)
			return err_set(ret_err, EINVAL,
				"--log-level: expected error, warn, info or debug, found \"%s\"",
				value);
		return 0;
	default: return parse_placement(o, id, value, ret_err);
	}
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{"socket", required_argument, NULL, OPTION_SOCKET},
		{"listen", required_argument, NULL, OPTION_LISTEN},
		{"model", required_argument, NULL, OPTION_MODEL},
		{"device", required_argument, NULL, OPTION_DEVICE},
		{"place", required_argument, NULL, OPTION_PLACE},
		{"experts", required_argument, NULL, OPTION_EXPERTS},
		{"vram-budget", required_argument, NULL, OPTION_VRAM_BUDGET},
		{"device-budget", required_argument, NULL, OPTION_DEVICE_BUDGET},
		{"host-budget", required_argument, NULL, OPTION_HOST_BUDGET},
		{"reserve", required_argument, NULL, OPTION_RESERVE},
		{"pin-writable", required_argument, NULL, OPTION_PIN_WRITABLE},
		{"alloc-bytes", required_argument, NULL, OPTION_ALLOC_BYTES},
		{"window", required_argument, NULL, OPTION_WINDOW},
		{"scrub", required_argument, NULL, OPTION_SCRUB},
		{"scrub-budget", required_argument, NULL, OPTION_SCRUB_BUDGET},
		{"idle", required_argument, NULL, OPTION_IDLE},
		{"idle-unload", required_argument, NULL, OPTION_IDLE_UNLOAD},
		{"keep", required_argument, NULL, OPTION_KEEP},
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

static bool may_pin_writable(const struct options *o, const char *name)
{
	for (uint32_t i = 0; i < o->n_pin_writable; i++)
		if (!strcmp(o->pin_writable[i], name))
			return true;
	return false;
}

/* A name that nothing has may be of a model that comes later, or mistyped. */
static void say_unused(const struct options *o)
{
	for (uint32_t i = 0; i < o->n_pin_writable; i++) {
		uint32_t k = 0;
		while (k < o->n_models && strcmp(o->models[k].name, o->pin_writable[i]) != 0)
			k++;
		if (k == o->n_models)
			log_warn("--pin-writable %s: no --model has that name", o->pin_writable[i]);
	}
}

static int open_models(struct options *o, struct err *ret_err)
{
	for (uint32_t i = 0; i < o->n_models; i++) {
		struct server_model *m = &o->models[i];
		/* A FIFO would wait for a writer; gguf_read refuses it by its kind. */
		int mode = may_pin_writable(o, m->name) ? O_RDWR : O_RDONLY;
		m->fd = open(m->path, mode | O_CLOEXEC | O_NONBLOCK);
		if (m->fd < 0)
			return err_set(ret_err, errno, "model %s: %s: %s", m->name, m->path,
				strerror(errno));
	}
	say_unused(o);
	return 0;
}

/* Before options cut them up. The program's path as it is now: an upgrade puts another file there.
 * NULL where that cannot be had. */
static char **copy_arguments(int argc, char **argv, char ret_program[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", ret_program, PATH_MAX - 1);
	char **copy = calloc((size_t)argc + 1, sizeof(*copy));

	ret_program[n > 0 ? n : 0] = '\0';
	for (int i = 0; i < argc && copy; i++)
		copy[i] = strdup(argv[i]);
	return copy;
}

static void free_arguments(char **copy)
{
	for (char **at = copy; at && *at; at++)
		free(*at);
	free(copy);
}

static int run(struct options *o, const char *program, char **arguments, struct err *ret_err)
{
	const struct server_params params = {.socket = o->socket,
		.listens = o->listens,
		.n_listens = o->n_listens,
		.devices = o->devices,
		.n_devices = o->n_devices,
		.policy = &o->policy,
		.alloc_bytes = o->alloc_bytes,
		.window_bytes = o->window_bytes,
		.pin_writable = o->pin_writable,
		.n_pin_writable = o->n_pin_writable,
		.use_pread = o->use_pread,
		.n_keep_seconds = o->n_keep_seconds,
		.idle_ns = o->idle_ns,
		.idle_unload_ns = o->idle_unload_ns,
		.scrub_ns = o->scrub_ns,
		.scrub_percent = (uint32_t)o->scrub_percent,
		.n_models = o->n_models,
		.models = o->models};
	struct restart *restart = NULL;
	int rc = server_run(&params, ret_err, &restart);

	if (rc != SERVER_EXECUTE)
		return rc;
	log_info("SIGHUP: %s is executed anew", program);
	rc = arguments ? restart_execute(restart, program, arguments) : -ENOMEM;
	restart_free(restart);
	return err_set(ret_err, -rc, "SIGHUP: %s: %s", program, strerror(-rc));
}

int main(int argc, char **argv)
{
	struct options o = {.log_level = LOG_INFO,
		.n_keep_seconds = RESTART_KEEP_SECONDS,
		.scrub_ns = CHECKER_DEFAULT_NS,
		.scrub_percent = 1};
	struct err err = ERR_NULL;
	char program[PATH_MAX];

	if (argc > 1 && !strcmp(argv[1], "--probe"))
		return vk_probe_main(argc, argv);
	if (argc > 1 && !strcmp(argv[1], "--keeper"))
		return keeper_main(argc, argv);
	/* Until the server has its handlers: one that is ended before gives up what was left. */
	restart_block_signals(true);
	char **arguments = copy_arguments(argc, argv, program);
	log_init("weightd", LOG_INFO);
	int status = parse_options(argc, argv, &o);
	if (status >= 0) {
		free_arguments(arguments);
		return status;
	}
	log_init("weightd", o.log_level);
	if (o.n_devices == 0)
		o.devices[o.n_devices++] = "auto";
	signal(SIGPIPE, SIG_IGN);
	raise_fd_limit();
	int rc = choose_socket(&o, &err);
	if (rc == 0)
		rc = open_models(&o, &err);
	if (rc == 0)
		rc = run(&o, program, arguments, &err);
	for (uint32_t i = 0; i < o.n_models; i++)
		cleanup_close(&o.models[i].fd);
	free_arguments(arguments);
	if (rc < 0) {
		log_error("%s", err.text);
		return MAIN_FAILED;
	}
	return 0;
}
