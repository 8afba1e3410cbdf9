/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/size.h"

const char options_usage[] =
	"usage: workerd --model NAME [option]...\n"
	"Serves a model whose weights weightd holds.\n"
	"\n"
	"  --model NAME        a model that weightd has or is loading\n"
	"  --weights PATH      weightd's socket (default: $WEIGHTD_SOCKET, else weightd.sock in\n"
	"                      $XDG_RUNTIME_DIR or /run/weightd)\n"
	"  --socket PATH       the socket for clients (default: $WORKERD_SOCKET, else\n"
	"                      workerd.sock in the same places)\n"
	"  --device WHICH      auto, software, an index or a UUID (default: weightd's device)\n"
	"  --ctx TOKENS        a session holds so many (default: the model's, at most 4096)\n"
	"  --sessions N        at once, 1 to 256 (default: 4)\n"
	"  --kv-type TYPE      of keys and values: f16, or q8_0 in 53 % of its memory (default: "
	"f16)\n"
	"  --kv-tokens TOKENS  that all sessions have together, at least --ctx (default: each its\n"
	"                      whole context)\n"
	"  --chunk TOKENS      computed a step, a multiple of 64 (default: 256,\n"
	"                      with matrices 1024); the largest that fits when the device has\n"
	"                      no memory for it\n"
	"  --stream-rows N     steps of N tokens and more copy weights in host memory ahead of\n"
	"                      their use, smaller ones read them there (default: measured)\n"
	"  --expert-cache HOW  device memory for the experts in host memory that are wanted most:\n"
	"                      BYTES (a number, or with K, M, G or T behind it), auto (what the\n"
	"                      device has left; none in software) or off (default: auto)\n"
	"  --park-after S      give the device's memory and the lease back after S seconds "
	"without\n"
	"                      a generation, until the next one (default: when others need it)\n"
	"  --no-park           keep them, whoever needs memory\n"
	"  --step-tokens N     computed a step while an answer streams, so that a prompt beside "
	"it\n"
	"                      does not hold it up (default: as --chunk)\n"
	"  --client-sessions N of one connection at once (default: --sessions)\n"
	"  --session-ttl S     close sessions that were idle for S seconds (default: never)\n"
	"  --sessions-dir DIR  where clients' sessions are saved; a directory that is there\n"
	"                      (default: they are not)\n"
	"  --share-prefixes    what one client has had computed may be used for every other\n"
	"                      (default: for those of the same user)\n"
	"  --fail-on-spill     end, now or later, when memory does not fit where it belongs\n"
	"  --turn MS           how long a worker decodes while others of the device wait for\n"
	"                      their turn, one step at least; auto (6 ms; in software off) or\n"
	"                      off: all at once, which costs the device more (default: auto)\n"
	"  --kernels WHICH     fast, exact (an answer has the same bits whatever else is served) "
	"or\n"
	"                      auto: fast, in software exact (default: auto)\n"
	"  --deterministic     --kernels exact\n"
	"  --log-level LEVEL   error, warn, info or debug (default: info)\n"
	"  --help, --version\n"
	"\n"
	"Exit status: 0 ended by SIGTERM or SIGINT, 1 refused or failed, 2 wrong usage.\n";

enum option_id {
	OPTION_MODEL = 256,
	OPTION_WEIGHTS,
	OPTION_SOCKET,
	OPTION_HTTP,
	OPTION_DEVICE,
	OPTION_CTX,
	OPTION_SESSIONS,
	OPTION_KV_TYPE,
	OPTION_KV_TOKENS,
	OPTION_CHUNK,
	OPTION_STREAM_ROWS,
	OPTION_EXPERT_CACHE,
	OPTION_PARK_AFTER,
	OPTION_NO_PARK,
	OPTION_STEP_TOKENS,
	OPTION_CLIENT_SESSIONS,
	OPTION_SESSION_TTL,
	OPTION_SESSIONS_DIR,
	OPTION_SHARE_PREFIXES,
	OPTION_FAIL_ON_SPILL,
	OPTION_TURN,
	OPTION_KERNELS,
	OPTION_DETERMINISTIC,
	OPTION_LOG_LEVEL,
	OPTION_HELP,
	OPTION_VERSION,
};

static const struct option option_table[] = {
	{"model", required_argument, NULL, OPTION_MODEL},
	{"weights", required_argument, NULL, OPTION_WEIGHTS},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"http", required_argument, NULL, OPTION_HTTP},
	{"device", required_argument, NULL, OPTION_DEVICE},
	{"ctx", required_argument, NULL, OPTION_CTX},
	{"sessions", required_argument, NULL, OPTION_SESSIONS},
	{"kv-type", required_argument, NULL, OPTION_KV_TYPE},
	{"kv-tokens", required_argument, NULL, OPTION_KV_TOKENS},
	{"chunk", required_argument, NULL, OPTION_CHUNK},
	{"stream-rows", required_argument, NULL, OPTION_STREAM_ROWS},
	{"expert-cache", required_argument, NULL, OPTION_EXPERT_CACHE},
	{"park-after", required_argument, NULL, OPTION_PARK_AFTER},
	{"no-park", no_argument, NULL, OPTION_NO_PARK},
	{"step-tokens", required_argument, NULL, OPTION_STEP_TOKENS},
	{"client-sessions", required_argument, NULL, OPTION_CLIENT_SESSIONS},
	{"session-ttl", required_argument, NULL, OPTION_SESSION_TTL},
	{"sessions-dir", required_argument, NULL, OPTION_SESSIONS_DIR},
	{"share-prefixes", no_argument, NULL, OPTION_SHARE_PREFIXES},
	{"fail-on-spill", no_argument, NULL, OPTION_FAIL_ON_SPILL},
	{"turn", required_argument, NULL, OPTION_TURN},
	{"kernels", required_argument, NULL, OPTION_KERNELS},
	{"deterministic", no_argument, NULL, OPTION_DETERMINISTIC},
	{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
	{"help", no_argument, NULL, OPTION_HELP},
	{"version", no_argument, NULL, OPTION_VERSION},
	{0},
};

/* A whole number from 1 to max. */
static int options_parse_u32(
	const char *name, const char *text, uint32_t max, struct err *ret_err, uint32_t *ret_value)
{
	char *end;

	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || !value || value > max)
		return err_set(ret_err, EINVAL, "--%s: expected 1 to %" PRIu32 ", found %s", name,
			max, text);
	*ret_value = (uint32_t)value;
	return 0;
}

static int options_parse_turn(const char *text, struct err *ret_err, struct options *o)
{
	uint32_t n_ms = 0;

	if (!strcmp(text, "off")) {
		o->turn = OPTIONS_TURN_OFF;
		return 0;
	}
	if (!strcmp(text, "auto")) {
		o->turn = OPTIONS_TURN_AUTO;
		return 0;
	}
	int r = options_parse_u32("turn", text, OPTIONS_MAX_TURN_MS, ret_err, &n_ms);
	if (r)
		return r;
	o->turn = OPTIONS_TURN_NS;
	o->turn_ns = n_ms * UINT64_C(1000000);
	return 0;
}

static int options_parse_chunk(const char *text, struct err *ret_err, uint32_t *ret_value)
{
	int r = options_parse_u32("chunk", text, OPTIONS_MAX_CHUNK, ret_err, ret_value);

	if (!r && *ret_value % OPTIONS_CHUNK_STEP)
		return err_set(ret_err, EINVAL, "--chunk: expected a multiple of %d, found %s",
			OPTIONS_CHUNK_STEP, text);
	return r;
}

static int options_parse_seconds(
	const char *name, const char *text, struct err *ret_err, uint64_t *ret_value)
{
	uint32_t n_seconds;
	int r = options_parse_u32(name, text, UINT32_MAX, ret_err, &n_seconds);

	if (!r)
		*ret_value = n_seconds * 1000000000ull;
	return r;
}

static int options_parse_expert_cache(const char *text, struct err *ret_err, struct options *o)
{
	bool is_auto = strcmp(text, "auto") == 0;

	if (is_auto || strcmp(text, "off") == 0) {
		o->expert_cache = is_auto ? OPTIONS_EXPERT_CACHE_AUTO : OPTIONS_EXPERT_CACHE_OFF;
		return 0;
	}
	if (size_parse("--expert-cache", text, ret_err, &o->expert_cache_bytes))
		return err_set(ret_err, EINVAL,
			"--expert-cache: expected auto, off or bytes, as 4096, 512M or 8G, found "
			"\"%s\"",
			text);
	o->expert_cache = OPTIONS_EXPERT_CACHE_BYTES;
	return 0;
}

static int options_parse_kernels(
	const char *text, struct err *ret_err, enum plan_kernels *ret_kernels)
{
	static const char *const names[] = {[PLAN_KERNELS_AUTO] = "auto",
		[PLAN_KERNELS_EXACT] = "exact",
		[PLAN_KERNELS_FAST] = "fast"};

	for (uint32_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strcmp(text, names[i]))
			continue;
		*ret_kernels = (enum plan_kernels)i;
		return 0;
	}
	return err_set(
		ret_err, EINVAL, "--kernels: expected auto, exact or fast, found \"%s\"", text);
}

static int options_parse_one(int id, const char *text, struct err *ret_err, struct options *o)
{
	switch (id) {
	case OPTION_MODEL: o->model = text; return 0;
	case OPTION_WEIGHTS: o->weights = text; return 0;
	case OPTION_SOCKET: o->socket = text; return 0;
	case OPTION_HTTP:
		return err_set(ret_err, ENOTSUP,
			"--http: workerd " WEIGHTD_VERSION
			" has no HTTP; its clients use --socket");
	case OPTION_DEVICE: o->device = text; return 0;
	case OPTION_CTX: return options_parse_u32("ctx", text, OPTIONS_MAX_CTX, ret_err, &o->n_ctx);
	case OPTION_SESSIONS:
		return options_parse_u32(
			"sessions", text, OPTIONS_MAX_SESSIONS, ret_err, &o->n_sessions);
	case OPTION_KV_TYPE:
		if (kv_layout_parse_type(text, &o->kv_type))
			return err_set(
				ret_err, EINVAL, "--kv-type: expected f16 or q8_0, found %s", text);
		return 0;
	case OPTION_KV_TOKENS:
		return options_parse_u32(
			"kv-tokens", text, OPTIONS_MAX_KV_TOKENS, ret_err, &o->n_kv_tokens);
	case OPTION_CHUNK: return options_parse_chunk(text, ret_err, &o->n_chunk);
	case OPTION_STREAM_ROWS:
		return options_parse_u32("stream-rows", text, UINT32_MAX, ret_err, &o->stream_rows);
	case OPTION_EXPERT_CACHE: return options_parse_expert_cache(text, ret_err, o);
	case OPTION_PARK_AFTER:
		return options_parse_seconds("park-after", text, ret_err, &o->park_after_ns);
	case OPTION_NO_PARK: o->no_park = true; return 0;
	case OPTION_STEP_TOKENS:
		return options_parse_u32(
			"step-tokens", text, OPTIONS_MAX_CHUNK, ret_err, &o->n_step_tokens);
	case OPTION_CLIENT_SESSIONS:
		return options_parse_u32("client-sessions", text, OPTIONS_MAX_SESSIONS, ret_err,
			&o->n_client_sessions);
	case OPTION_SESSION_TTL:
		return options_parse_seconds("session-ttl", text, ret_err, &o->session_ttl_ns);
	case OPTION_SESSIONS_DIR: o->sessions_dir = text; return 0;
	case OPTION_SHARE_PREFIXES: o->shares_prefixes = true; return 0;
	case OPTION_FAIL_ON_SPILL: o->fail_on_spill = true; return 0;
	case OPTION_TURN: return options_parse_turn(text, ret_err, o);
	case OPTION_KERNELS: return options_parse_kernels(text, ret_err, &o->kernels);
	case OPTION_DETERMINISTIC: o->kernels = PLAN_KERNELS_EXACT; return 0;
	case OPTION_LOG_LEVEL:
		if (log_parse_level(text, &o->log_level))
			return err_set(ret_err, EINVAL,
				"--log-level: expected error, warn, info or debug, found %s", text);
		return 0;
	case OPTION_HELP: return OPTIONS_HELP;
	case OPTION_VERSION: return OPTIONS_VERSION;
	default: return -EINVAL;
	}
}

int options_parse(int argc, char **argv, struct err *ret_err, struct options *ret_options)
{
	struct options o = {.n_sessions = 4, .log_level = LOG_INFO};
	int id;

	opterr = 0;
	while ((id = getopt_long(argc, argv, ":", option_table, NULL)) != -1) {
		if (id == ':')
			return err_set(ret_err, EINVAL, "%s: expected a value", argv[optind - 1]);
		if (id == '?')
			return err_set(ret_err, EINVAL, "%s: no such option", argv[optind - 1]);
		int r = options_parse_one(id, optarg, ret_err, &o);
		if (r)
			return r;
	}
	if (optind < argc)
		return err_set(ret_err, EINVAL, "%s: expected options alone", argv[optind]);
	if (o.no_park && o.park_after_ns)
		return err_set(ret_err, EINVAL, "--no-park: expected it without --park-after");
	if (!o.model)
		return err_set(ret_err, EINVAL, "--model: expected the name of a model");
	*ret_options = o;
	return 0;
}
