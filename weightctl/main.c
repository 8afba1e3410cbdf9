/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightctl/commands.h"
#include "weightctl/options.h"
#include "weightctl/output.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

struct command {
	const char *name;
	const char *args; /* for the usage */
	uint32_t n_min, n_max;
	int (*run)(const struct options *o, struct err *ret_err);
};

static const struct command commands[] = {
	{"load", "NAME=FILE", 1, 1, load_run},
	{"unload", "NAME", 1, 1, unload_run},
	{"pin", "NAME", 1, 1, pin_run},
	{"unpin", "NAME", 1, 1, pin_run_undo},
	{"ls", "no argument", 0, 0, ls_run},
	{"status", "no argument", 0, 0, status_run},
	{"top", "no argument", 0, 0, top_run},
	{"map", "NAME", 1, 1, map_run},
	{"verify", "NAME", 1, 1, verify_run},
	{"inspect", "FILE", 1, 1, inspect_run},
	{"make-model", "SHAPE:TYPE and FILE", 2, 2, make_model_run},
	{"ask", "TEXT", 1, 1, ask_run},
	{"chat", "no argument", 0, 0, chat_run},
	{"complete", "TEXT", 1, 1, complete_run},
	{"tokenize", "TEXT", 1, 1, tokenize_run},
	{"detokenize", "ID...", 1, UINT32_MAX, detokenize_run},
	{"prefix", "add [MODEL] FILE, ls [MODEL] or rm ID", 1, 3, prefix_run},
	{"bench", "no argument", 0, 0, bench_run},
	{"bench-memory", "no argument", 0, 0, bench_memory_run},
	{"tune", "no argument", 0, 0, tune_run},
};

static const char help[] =
	"Usage: weightctl [OPTION]... COMMAND [ARGUMENT]...\n"
	"\n"
	"Models, asked of weightd:\n"
	"  load NAME=FILE      load a GGUF file under a name; --replace: behind a model of that "
	"name\n"
	"  unload NAME         no new leases; the memory goes with the last one. --timeout "
	"SECONDS:\n"
	"                      leases that last longer are ended; a worker that does not let go\n"
	"                      holds the memory until it ends\n"
	"  pin NAME            it makes no room for others and is never idle; unpin NAME: it may "
	"be\n"
	"  ls                  the models\n"
	"  status              device, models, allocations, workers and what sharing saves;\n"
	"                      with --worker that worker's own status too, with only --worker it "
	"alone\n"
	"                      with --devices what each device can do, and why not\n"
	"  top                 weightd and its workers, live: q quits, arrows or j and k select a "
	"worker.\n"
	"                      Where stdout is no terminal, a table each --interval S (default 1)\n"
	"                      seconds; --once: one, of rates over one interval; --json: an "
	"object\n"
	"                      a line. With only --worker that worker alone\n"
	"  map NAME            where every tensor of a model lives\n"
	"  verify NAME         is every byte of a model still what was loaded? Else exit status 1\n"
	"  inspect FILE        what a GGUF file holds, and whether it would load\n"
	"  make-model S:T FILE a model of random weights, as bench --synthetic makes it; --seed\n"
	"\n"
	"Text, asked of a worker:\n"
	"  ask TEXT            answer a question, through the model's chat template\n"
	"  chat                a conversation, a line of standard input a turn\n"
	"  complete TEXT       continue a text; special tokens written in it are recognised\n"
	"  tokenize TEXT       the ids of a text; special tokens written in it are recognised\n"
	"  detokenize ID...    the text of ids\n"
	"  bench-memory        what the memory of its weights gives, beside plain copies, and how\n"
	"                      fast they were loaded; generations wait meanwhile\n"
	"  tune                measures how its matrix products are best cut on its device, and\n"
	"                      keeps that on disk for this user's workers; a line for each, for\n"
	"                      --timeout SECONDS (50 on a GPU). With -m or --synthetic a worker "
	"of\n"
	"                      its own, as bench's\n"
	"  bench               prompt and generation rates, of that worker or of workers and "
	"models "
	"of\n"
	"                      its own; see below\n"
	"  A TEXT of \"-\" is read from standard input.\n"
	"\n"
	"Beginnings of prompts that workers share:\n"
	"  prefix add [MODEL] FILE\n"
	"                      the worker computes it and publishes it; --name NAME for people,\n"
	"                      --shared: for workers on other sockets of weightd too\n"
	"  prefix ls [MODEL]   those that there are, asked of weightd\n"
	"  prefix rm ID        no worker gets it any more; those that have it go on\n"
	"\n"
	"Options, before or after the command:\n"
	"  --weightd PATH      weightd's socket ($WEIGHTD_SOCKET)\n"
	"  --worker PATH       the worker's socket ($WORKERD_SOCKET)\n"
	"  --replace           load: a model of that name may be there\n"
	"  --timeout SECONDS   unload: until leases are ended; 0: at once. tune: that it measures\n"
	"  --interval S        top: seconds between two looks, 0.1 to 86400\n"
	"  --once              top: one table, then exit\n"
	"  --devices           status: the devices and what their probe found\n"
	"  --json              one JSON object; figures in bytes\n"
	"  --n-predict N       at most N tokens (0, the default: until the model ends)\n"
	"  --temp T            temperature (0, the default: always the likeliest token)\n"
	"  --top-k K           of the K likeliest tokens (0, the default: off)\n"
	"  --top-p P           of the likeliest tokens that hold the share P (0, the default: "
	"off)\n"
	"  --min-p P           of tokens at least P times as likely as the likeliest (default 0: "
	"off)\n"
	"  --repeat-penalty R  divide the logits of the last 64 tokens by R (0, the default: off)\n"
	"  --frequency-penalty F, --presence-penalty F\n"
	"                      lower those logits by F for each time, or once (0: off)\n"
	"  --typical-p P       of tokens of typical likelihood that hold the share P (0: off)\n"
	"  --dry-multiplier M, --dry-base B, --dry-allowed-length N\n"
	"                      lower the logit of a token that would prolong a repetition of\n"
	"                      R >= N tokens by M B^(R-N) (defaults 0: off, 1.75, 2)\n"
	"  --logit-bias ID=B   add B to the logit of a token; -inf: never; may be repeated\n"
	"  --stop-token ID     end at this token as at the model's own; may be repeated\n"
	"  --logprobs N        with --json: log probability of each token and of the N likeliest,\n"
	"                      1 to 20, as the model has them before all of the above\n"
	"  -n N                N completions, 1 to 8, of seeds S, S + 1 and so on; each takes one "
	"of\n"
	"                      the worker's sessions\n"
	"  --load NAME         ask, chat, complete: go on from a session that was saved\n"
	"  --save NAME         the same: save the session at the end (workerd --sessions-dir)\n"
	"  --seed S            of the random draws (by default the worker's choice)\n"
	"  --context-shift     go on when the context is full: the older half of what is behind "
	"the\n"
	"                      first --n-keep N tokens (default 0) is forgotten\n"
	"  --grammar FILE      the answer matches a GBNF grammar\n"
	"  --json-schema FILE  the answer is JSON of a schema; a value that begins with { is the\n"
	"                      schema itself\n"
	"\n"
	"bench: each combination is a test; LIST: numbers with commas\n"
	"  -m MODEL            a file, for a weightd of its own; or a name that weightd has, for\n"
	"                      workers of its own\n"
	"  --synthetic S:T     a model of shape S (llama-8b, llama-1b, qwen3-0.6b, qwen3-8b,\n"
	"                      qwen3moe-30b-a3b, tiny) and type T (f16, q8_0, q4_0, q4_k, q4_k_m,\n"
	"                      q6_k, tq2_0, q2_0, q1_0) of random weights, made in memory\n"
	"  -p LIST             tokens of a prompt (512); 0: none\n"
	"  -n LIST             tokens generated (128); 0: none\n"
	"  -b LIST             sessions of a worker at once (1)\n"
	"  -d LIST             tokens that a session has before (0)\n"
	"  -r N                runs that are counted (3)\n"
	"  --workers LIST      processes at once, as 1,4; or with sessions of each, as "
	"1x32,4x8,32x1\n"
	"  --profile           what each kernel takes, beside what the device can do\n"
	"  --device WHICH, --kv-type TYPE, --chunk TOKENS, --kernels auto|exact|fast\n"
	"                      as weightd's and workerd's options of these names\n"
	"  --seed S            of tokens and synthetic weights (1)\n"
	"\n"
	"  -h, --help          this text\n"
	"  --version           the version\n"
	"\n"
	"Exit status: 0 done, 1 refused or failed, 2 wrong usage.\n";

static const struct command *find_command(const char *name)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

/* The command that was meant; NULL with the complaint. */
static const struct command *judge_command(const struct options *o, struct err *ret_err)
{
	const struct command *command = o->command ? find_command(o->command) : NULL;

	if (!o->command)
		(void)err_set(ret_err, EINVAL, "expected a command");
	else if (!command)
		(void)err_set(ret_err, EINVAL, "unknown command %s", o->command);
	else if (o->n_args < command->n_min || o->n_args > command->n_max)
		(void)err_set(ret_err, EINVAL, "%s: expected %s, found %u arguments", command->name,
			command->args, o->n_args);
	else
		return command;
	return NULL;
}

static int complain(const struct err *err, int r)
{
	fflush(stdout);
	fprintf(stderr, "weightctl: %s\n", err->text[0] ? err->text : strerror(-r));
	return EXIT_REFUSED;
}

static int complain_usage(const struct err *err)
{
	fprintf(stderr, "weightctl: %s\nTry 'weightctl --help'.\n", err->text);
	return EXIT_USAGE;
}

static int run(const struct options *o)
{
	struct err err = ERR_NULL;
	const struct command *command = NULL;
	int r = 0;

	if (o->help) {
		fputs(help, stdout);
	} else if (o->version) {
		puts("weightctl " WEIGHTD_VERSION);
	} else {
		command = judge_command(o, &err);
		if (!command)
			return complain_usage(&err);
		r = command->run(o, &err);
	}
	if (r > 0)
		return complain_usage(&err);
	if (r == 0)
		r = output_flush(&err);
	return r < 0 ? complain(&err, r) : 0;
}

int main(int argc, char **argv)
{
	struct err err = ERR_NULL;
	struct options o = {0};
	int r = options_parse(argc, argv, &err, &o);

	if (r)
		return r > 0 ? complain_usage(&err) : complain(&err, r);
	r = run(&o);
	options_fini(&o);
	return r;
}
