#!/bin/sh
# A mixed agent task, the same for every arm: write 200 files, keep them in git, then ten times
# what an agent does all day: search them, change some, commit, compile and run a program, run
# a Python script. Everything stays below the current directory, temporary files too, so that
# each arm works on the same file system. The last line leaves a checksum of all that was
# found, for the bench to compare.
set -eu
PATH=/usr/bin:/bin
export PATH
. ./setting.sh

mkdir tmp home project
cd project
for part in 0 1 2 3 4 5 6 7 8 9; do mkdir -p "src/part$part"; done

i=0
while [ "$i" -lt 200 ]; do
    {
        echo "/* file $i of the task */"
        line=0
        while [ "$line" -lt 20 ]; do
            echo "static int value_${i}_$line(void) { return $((i * line)); }"
            line=$((line + 1))
        done
        if [ $((i % 7)) -eq 0 ]; then echo "/* needle $i */"; fi
    } > "src/part$((i % 10))/file$i.c"
    i=$((i + 1))
done

git init -q .
git add .
git commit -q -m 'The files'

round=0
while [ "$round" -lt 10 ]; do
    grep -rn needle src | sort >> ../found
    sed -i "s/return/return $round +/" src/part3/*.c src/part7/*.c
    git diff --stat >> ../changed
    git add -u
    git commit -q -m "Change $round"
    gcc -O2 -Wall -o ../program ../program.c
    ../program >> ../computed
    python3 ../summary.py src >> ../summary
    round=$((round + 1))
done
git log --format=%H > ../history

cd ..
cat found changed history computed summary | cksum > result
