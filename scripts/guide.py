#!/usr/bin/env python3
"""Runs the programs of docs/guide: guide.py BUILD, a build folder with the shared library.

A fence of C or C++ with a main() in it is a program: it is compiled with all warnings as errors, run in an empty folder, and
must end with 0; those of C++ are passed over where there is no C++ compiler. A ```text fence behind it is what it prints, to the letter. Other fences are not run, and hold no main()."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMPILERS = {"c": ["cc", "-std=c11", "-x", "c"], "cpp": ["c++", "-std=c++11", "-x", "c++"]}


def run(build, page, number, language, source, wanted, folder):
    program = folder / "program"
    program.with_suffix(".src").write_text(source)
    command = [*COMPILERS[language], "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", f"-I{build}/include",
               str(program.with_suffix(".src")), "-o", str(program), "-x", "none", f"-L{build}", "-lreprise", "-lm",
               f"-Wl,-rpath,{build}"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        print(f"{page.name}: program {number} is not compiled:\n{made.stderr}")
        return 1
    done = subprocess.run([str(program)], capture_output=True, text=True, cwd=folder, timeout=120,
                          env={**os.environ, "REPRISE_MODULE_DIR": str(build)})
    if done.returncode or (wanted is not None and done.stdout != wanted):
        print(f"{page.name}: program {number} ends with {done.returncode} and prints:\n{done.stdout}{done.stderr}")
        return 1
    return 0


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failures = programs = 0
    for page in sorted((ROOT / "docs/guide").glob("*.md")):
        fences = FENCE.findall(page.read_text())
        for i, (language, body) in enumerate(fences):
            if language not in COMPILERS or "main(" not in body or not shutil.which(COMPILERS[language][0]):
                continue
            programs += 1
            wanted = fences[i + 1][1] if i + 1 < len(fences) and fences[i + 1][0] == "text" else None
            with tempfile.TemporaryDirectory() as folder:
                failures += run(build, page, programs, language, body, wanted, pathlib.Path(folder))
    print(f"{programs} programs of the guide, {failures} failures")
    return failures != 0 or programs == 0


if __name__ == "__main__":
    sys.exit(main())
