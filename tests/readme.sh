#!/bin/bash
# The commands of README.md do what it says: they are run, and what they print has the shape of the sample. So does the
# first job of docs/TUTORIAL.md.
# usage: tests/readme.sh SOURCE_DIR BUILD_DIR
#
# Not run are those that install packages or build (deploy/quickstart.sh, whose last command is run instead; sudo).
set -euo pipefail
export LC_ALL=C.UTF-8
usage='usage: tests/readme.sh SOURCE_DIR BUILD_DIR'
source_dir="$(cd "${1:?$usage}" && pwd)"
bin="$(cd "${2:?$usage}/bin" && pwd)"
for variable in $(compgen -e | grep '^KELP_' || true); do unset "$variable"; done

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
ln -s "$source_dir/examples" examples
mkdir -p build/release
ln -s "$bin" build/release/bin

# Lines of the first block of commands: "$ command", then what it prints.
awk '/^```console$/ { on = 1; next } /^```$/ { on = 0 } on' "$source_dir/README.md" >block
# Numbers, digests and times are another machine's.
shape() {
    sed -E -e 's/[0-9a-f]{32}/DIGEST/; s/[0-9]{8}-[0-9]{6}/TIME/; s/[0-9]+(\.[0-9]+)?/N/g' \
        -e 's/N (ms|min N s)/N s/g; s/ +/ /g'
}

run() {
    printf '$ %s\n' "$1"
    bash -euc "$1" >out 2>err || { cat out err; echo "README.md: this command failed: $1"; exit 1; }
    shape <out >"$2"
    sed -nE 's/^digest +//p' out >"$2.digest"
}

count=0
while IFS= read -r command; do
    case "$command" in
    ./deploy/quickstart.sh*) command='build/release/bin/kelp train examples/etth1-dlinear.yaml' ;;
    sudo*) continue ;;
    esac
    run "${command%%  #*}" "shape-$count"
    if ! cmp -s shape-0.digest "shape-$count.digest"; then
        echo "README.md: '$command' ends with another digest"
        exit 1
    fi
    count=$((count + 1))
done < <(sed -n 's/^\$ //p' block)

grep -v '^\$ ' block | shape >sample
diff -u sample shape-0 || { echo 'README.md: the sample output has another shape than what is printed'; exit 1; }
[ "$count" -ge 2 ] || { echo 'README.md: where are its commands?'; exit 1; }
# From a CSV file to predictions: those of the first sh block that run what was built.
awk 'BEGIN { print "size,district,rent"
    for (i = 0; i < 200; i++)
        printf "%d,%s,%d\n", 20 + i * 37 % 101, i % 3 ? "north" : "south", 300 + i * 370 % 1010 }' >flats.csv
head -n 3 flats.csv | cut -d , -f 1,2 >new.csv
mapfile -t own < <(awk '/^```sh$/ { on = 1; next } /^```$/ { if (on) exit } on && /^build/' "$source_dir/README.md")
for command in "${own[@]}"; do run "${command%%  #*}" own; done
[ "$(wc -l <predictions.csv)" -eq 3 ] || { echo 'README.md: a CSV file does not end in predictions'; exit 1; }
# The job of a table in docs/TUTORIAL.md fits the table that the page shows, and its predictions.
awk '/^ *```yaml$/ { on = 1; next } /^ *```$/ { if (on) exit } on' "$source_dir/docs/TUTORIAL.md" |
    sed 's/^   //' >rents.yaml
awk 'BEGIN { print "size,age,district,rent"
    for (i = 0; i < 200; i++)
        printf "%d,%d,%s,%d\n", 20 + i * 37 % 101, i * 7 % 50, i % 3 ? "north" : "centre", 300 + i * 370 % 1010 }' \
    >rents.csv
head -n 3 rents.csv | cut -d , -f 1-3 >new.csv
run 'build/release/bin/kelp train rents.yaml --set train.epochs=2 --no-plots' own
run 'build/release/bin/kelp predict --data new.csv --out rents-of-new.csv' own
[ "$(head -n 1 rents-of-new.csv)" = sample,rent ] || { echo 'docs/TUTORIAL.md: its table gives no rents'; exit 1; }

echo "readme: $((count + ${#own[@]})) commands"
