#!/bin/sh
# Completions against the tool: completion.sh TOOL. Each file has every command and every option of it, and no other; bash gives what
# a user would expect. Shells that are not installed are passed over.
set -eu
tool=$1
here=$(cd "$(dirname "$0")/../completion" && pwd)
bad=0
fault() {
    echo "$1"
    bad=1
}
commands=$("$tool" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
options() { "$tool" "$1" --help | grep -oE '(^|[ ,])--[a-z]+' | tr -d ' ,' | sort -u; }
known=$(for name in $commands; do options "$name"; done | sort -u)
for file in reprise.bash _reprise reprise.fish; do
    for name in $commands; do
        grep -qw "$name" "$here/$file" || fault "$file lacks the command $name"
    done
    for option in $known; do
        case $file in
        reprise.fish) grep -qE -- "-l ${option#--}( |\$)" "$here/$file" || fault "$file lacks $option" ;;
        *) grep -qE -- "$option([^a-z]|\$)" "$here/$file" || fault "$file lacks $option" ;;
        esac
    done
    case $file in
    reprise.fish) said=$(grep '^complete' "$here/$file" | grep -oE -- ' -l [a-z]+' | sed 's/ -l /--/') ;;
    *) said=$(grep -v '^#' "$here/$file" | grep -oE -- '--[a-z]+') ;;
    esac
    for option in $said; do
        case "$known --version --" in
        *"$option"*) ;;
        *) fault "$file has $option, which no command takes" ;;
        esac
    done
done
if command -v bash >/dev/null; then
    expect() { # WORDS OFFER
        # shellcheck disable=SC2086
        bash -c '. "$0"; tool=$1; shift; COMP_WORDS=("$tool" "$@"); COMP_CWORD=$#; _reprise; printf "%s\n" "${COMPREPLY[@]}"' \
            "$here/reprise.bash" "$tool" $1 | grep -qx -- "$2" || fault "bash does not offer $2 after: reprise $1"
    }
    expect "do" doctor
    expect "de" demo
    expect "run --com" --compare
    expect "run --backend fu" fused
    expect "explain t" trig
    expect "run resnet1" resnet18
    expect "train --dtype b" bf16
    expect "help e" explain
    expect "demo --device cu" cuda
    for name in $commands; do
        for option in $(options "$name"); do
            [ "$name" = help ] || expect "$name $option" "$option"
        done
    done
fi
! command -v zsh >/dev/null || zsh -n "$here/_reprise" || fault "_reprise is no zsh"
! command -v fish >/dev/null || fish -n "$here/reprise.fish" || fault "reprise.fish is no fish"
exit $bad
