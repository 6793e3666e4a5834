#!/bin/sh
# Checks what a release build made: check_hardening.sh FILE...
# Tables of the loader are read-only once the program runs (RELRO, all symbols bound at the start), no stack is executable, and
# functions with arrays have canaries. Programs may lie anywhere (PIE). Library and tool handle text, so they have checked copies;
# the oneDNN module has nothing to check.
set -eu
export LC_ALL=C
bad=0
fault() {
    echo "$1: $2"
    bad=1
}
[ $# -gt 0 ] || { echo "no file is named"; exit 1; }
for file in "$@"; do
    headers=$(readelf -lW "$file")
    dynamic=$(readelf -dW "$file")
    symbols=$(readelf -W --dyn-syms "$file")
    case $headers in *GNU_RELRO*) ;; *) fault "$file" "no RELRO" ;; esac
    case $dynamic in *BIND_NOW* | *"Flags: NOW"* | *"NOW "*) ;; *) fault "$file" "symbols are bound late" ;; esac
    case $(echo "$headers" | grep GNU_STACK) in *RWE*) fault "$file" "the stack is executable" ;; esac
    case $dynamic in *TEXTREL*) fault "$file" "its text is written when it is loaded" ;; esac
    case $symbols in *__stack_chk_fail*) ;; *) fault "$file" "no canaries" ;; esac
    case $symbols$file in *_chk@* | *_chk\ * | *libreprise-onednn.so) ;; *) fault "$file" "no checked copies" ;; esac
    case $(readelf -hW "$file") in *"DYN ("*) ;; *) fault "$file" "is loaded at one address" ;; esac
done
exit $bad
