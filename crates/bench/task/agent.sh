#!/bin/sh
# The mixed task as an agent does it: ten commands, each by the shell that SHELL names, of which
# three need something outside of the workspace (../data to read, ../reports to write). The last
# line leaves a checksum of all that was found, for the bench to compare.
set -eu
. ./setting.sh
mkdir tmp home project

"$SHELL" -c 'cd project; mkdir -p src; i=0
while [ "$i" -lt 200 ]; do
    { line=0; while [ "$line" -lt 20 ]; do
        echo "static int value_${i}_$line(void) { return $((i * line)); }"; line=$((line + 1))
    done; echo "/* needle $i */"; } > "src/file$i.c"
    i=$((i + 1))
done'
"$SHELL" -c 'cd project && git init -q . && git add . && git commit -q -m "The files"'
"$SHELL" -c 'cd project && grep -rn needle src | sort > ../found'
"$SHELL" -c 'cat ../data/rows.csv > rows.csv'
"$SHELL" -c 'cd project && sed -i s/return/return\ 1\ +/ src/*.c && git diff --stat > ../changed && git commit -q -a -m Change'
"$SHELL" -c 'gcc -O2 -Wall -o program program.c && ./program > computed'
"$SHELL" -c 'sort ../data/rows.csv | uniq -c > counted'
"$SHELL" -c 'python3 summary.py project/src > summary'
"$SHELL" -c 'for round in 1 2 3 4 5 6 7 8 9; do
    gcc -O2 -Wall -o program program.c && ./program >> computed
    python3 summary.py project/src >> summary
    (cd project && grep -rn needle src | sort >> ../found && sed -i s/return/return\ 2\ +/ src/file3*.c && git commit -q -a -m "Round $round")
done'
"$SHELL" -c 'cp summary ../reports/summary'

cat found rows.csv changed computed counted summary | cksum > result
