#!/bin/sh
# Lines of src/ at two commits, a folder a row: src_lines.sh BEFORE [AFTER]. Counts lines of C, headers, tables and CUDA texts.
set -eu
cd "$(dirname "$0")/.."
before=${1:?src_lines.sh BEFORE [AFTER]} after=${2:-HEAD}
counts() {
    git ls-tree -r --name-only "$1" -- src | grep -E '\.(c|h|def|cuh|inc)$' | while read -r file; do
        printf '%s %s\n' "$(dirname "$file")" "$(git show "$1:$file" | wc -l)"
    done | awk '{ n[$1] += $2 } END { for (folder in n) print folder, n[folder] }'
}
{ counts "$before" | sed 's/^/before /'; counts "$after" | sed 's/^/after /'; } | awk '
    { n[$1, $2] = $3; all[$2]; sum[$1] += $3 }
    END {
        for (folder in all) printf "%-28s %8d %8d\n", folder, n["before", folder], n["after", folder] | "sort"
        close("sort")
        printf "%-28s %8d %8d\n", "all", sum["before"], sum["after"]
    }'
