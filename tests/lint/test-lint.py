#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every check of scripts/lint finds what it is for, and nothing in a clean tree."""
import os
import shutil
import subprocess
import sys
import tempfile

LINT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lint")
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"

# check, file, text behind the SPDX line, a word of the expected line (None: clean)
CASES = [
    ("layers", "proto/a.c", '#include "proto/b.h"\n', None),
    ("layers", "proto/a.c", '#include "vk/device.h"\n', "vk/device.h"),
    ("layers", "vk/a.c", '#include "proto/util/err.h"\n#include <vulkan/vulkan.h>\n', None),
    ("layers", "vk/a.c", '#include "proto/wire.h"\n', "proto/wire.h"),
    ("layers", "weightd/a.c", '#include "workerd/kv.h"\n', "workerd/kv.h"),
    ("layers", "workerd/a.c", '#include "weightd/gguf.h"\n', "weightd/gguf.h"),
    ("layers", "weightctl/a.c", '#include "weightd/gguf.h"\n', None),
    ("layers", "weightctl/a.c", '#include "weightd/registry.h"\n', "weightd/registry.h"),
    ("layers", "workerd/a.c", "#include <vulkan/vulkan.h>\n", "outside vk/"),
    ("layers", "workerd/a.c", "static VkBuffer b;\n", "VkBuffer"),
    ("layers", "workerd/a.c", "/* a VkBuffer elsewhere */\n", None),
    ("layers", "weightd/uring.h", "#include <liburing.h>\n", "in a header"),
    ("layers", "weightd/rpc.c", '#include "proto/weightd.pb-c.h"\n', None),
    ("layers", "proto/weights-client.c", '#include "proto/weightd.pb-c.h"\n', None),
    ("layers", "weightd/server.c", '#include "proto/weightd.pb-c.h"\n', "pb-c"),
    ("layers", "weightd/a.c", '#include "local.h"\n', "local.h"),
    ("layers", "tests/unit/a.c", '#include "weightd/gguf.h"\n#include "workerd/kv.h"\n', None),
    ("spdx", "proto/a.c", "", None),
    ("spdx", "proto/a.py", "", "SPDX"),
    ("length", "proto/a.c", "\n" * 700, "warning"),
    ("length", "proto/a.c", "\n" * 801, "at most 800"),
    ("length", "proto/a.c", "int a(void)\n{\n" + "\n" * 101 + "}\n", "at most 100"),
    ("tidy", "proto/a.c", "int a; \n", "trailing"),
    ("tidy", "proto/a.c", "/* " + "/wor" + "k/main */\n", "machine"),
    ("tidy", "proto/a.c", "/* net" + "/wor" + "k/main */\n", None),
    ("format", "proto/a.c", "int  a;\n", "clang-format"),
    ("format", "proto/a.c", "int a;\n", None),
    ("format", "proto/a.c", "#define A(x)   {x,  1}\n", None),
    ("format", "proto/a.c", "#define A(x)   {x,  1}\nint  a;\n", "proto/a.c:3"),
    ("headers", "proto/a.h", "static inline int a_get(void)\n{\n\treturn 1;\n}\n", None),
    ("headers", "proto/a.h", "int a_get(uint32_t x);\n", "does not compile alone"),
]

# file, code, a symbol that the check must name (None: clean)
SYMBOLS = [
    ("proto/util/err.c", "int err_set(void) { return 0; }", None),
    ("vk/submit.c", "int vk_submit(void) { return 0; }", None),
    ("vk/submit.c", "int submit_all(void) { return 0; }", "submit_all"),
    ("weightd/manifest-writer.c", "int manifest_writer_write(void) { return 0; }", None),
    ("workerd/ops/rope.c", "int op_rope_new(void) { return 0; }", None),
    ("workerd/ops/rope.c", "int rope_new(void) { return 0; }", "rope_new"),
    ("proto/util/notify-none.c", "int notify_ready(void) { return 0; }", None),
    ("proto/util/notify-none.c", "int ready(void) { return 0; }", "ready"),
    ("weightd/main.c", "int main(void) { return 0; }", None),
    ("proto/wire.c", "int wirefoo;", "wirefoo"),
    ("proto/wire.c", "static int helper(void) { return 0; } int wire_x(void) { return helper(); }",
     None),
]


def run_lint(root, check):
    run = subprocess.run([sys.executable, LINT, "--root", root, "--build", root + "/build", check],
                         capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


def write(root, name, text):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def try_case(root, check, name, text, word):
    shutil.copy(os.path.join(os.path.dirname(LINT), "..", ".clang-format"), root)
    write(root, name, ("" if name.endswith(".py") else SPDX) + text)
    status, out = run_lint(root, check)
    wanted = 0 if word in (None, "warning") else 1
    if status != wanted or (word or "0 problems, 0 warnings") not in out:
        return f"{check} on {name} {text[:60]!r}: status {status}, {out!r}"
    return None


def try_symbols(root, name, code, symbol):
    write(root, "proto/util/notify.h", "")
    source = write(root, name, code + "\n")
    build = os.path.join(root, "build")
    os.makedirs(build, exist_ok=True)
    subprocess.run(["cc", "-c", source, "-o", os.path.join(build, "a.o")], check=True)
    write(root, "build/compile_commands.json",
          f'[{{"directory": "{build}", "file": "{source}", "output": "a.o"}}]')
    status, out = run_lint(root, "symbols")
    if status != (1 if symbol else 0) or (symbol or "0 problems") not in out:
        return f"symbols on {name} {code!r}: status {status}, {out!r}"
    return None


def main():
    failures = []
    for function, rows in (try_case, CASES), (try_symbols, SYMBOLS):
        for row in rows:
            if row[0] == "format" and not shutil.which("clang-format"):
                continue
            with tempfile.TemporaryDirectory(prefix="weightd-lint-") as root:
                failures.append(function(root, *row))
    failures = [f for f in failures if f]
    print("\n".join(failures))
    print(f"{len(CASES) + len(SYMBOLS)} cases, {len(failures)} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
