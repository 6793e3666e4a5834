#!/bin/sh
# Checks libreprise.so of a build: check_exports.sh BUILD_DIR.
# What it exports is exactly what the version map lists (so: every declared function is defined, and nothing else is
# visible), its soname is right, and it needs libc, libm, libdl, threads and the loader only. Its thread-local storage is
# small: dlopen has to find room for it among what the loader set aside when the program started.
set -eu
dir=$1
so=$dir/libreprise.so
work=$dir/exports
mkdir -p "$work"
export LC_ALL=C

# Names of the map between global: and local:.
sed -n '/^global:/,/^local:/s/^ *\([A-Za-z_][A-Za-z0-9_]*\);.*$/\1/p' "$dir/gen/reprise.map" | sort >"$work/map"
nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$work/so"
bad=0
if [ ! -s "$work/map" ]; then
    echo "the version map is empty"
    bad=1
fi
if ! cmp -s "$work/map" "$work/so"; then
    comm -23 "$work/map" "$work/so" | sed 's/^/declared, not exported: /'
    comm -13 "$work/map" "$work/so" | sed 's/^/exported, not declared: /'
    bad=1
fi
readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
while read -r lib; do
    case $lib in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | ld-linux*) ;;
    *)
        echo "needs $lib"
        bad=1
        ;;
    esac
done <"$work/needed"
tls=$(readelf -lW "$so" | awk '$1 == "TLS" { print $6 }')
if [ $((${tls:-0})) -gt 320 ]; then
    echo "$((tls)) bytes of thread-local storage"
    bad=1
fi
soname=$(readelf -d "$so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
version=$(sed -n 's/^#define RP_VERSION_M[A-Z]* *\([0-9]*\).*/\1/p' "$(dirname "$0")/../include/reprise.h" | paste -sd.)
case $version in
0.*) ;; # before 1.0 a minor version may break programs
*) version=${version%%.*} ;;
esac
if [ "$soname" != "libreprise.so.$version" ]; then
    echo "soname is '$soname', expected libreprise.so.$version"
    bad=1
fi
if ! readelf -V "$so" | grep -q "Name: REPRISE_$version\$"; then
    echo "the version map is not that of REPRISE_$version"
    bad=1
fi
exit $bad
