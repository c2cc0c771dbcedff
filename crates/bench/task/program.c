/* Compiled and run by the task: counts primes with a sieve and sorts a few numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT = 2000000, COUNT = 200000 };

static int ascending(const void *left, const void *right)
{
    unsigned a = *(const unsigned *)left, b = *(const unsigned *)right;
    return (a > b) - (a < b);
}

int main(void)
{
    char *composite = calloc(LIMIT + 1, 1);
    unsigned *numbers = malloc(COUNT * sizeof *numbers);
    unsigned primes = 0, state = 1;
    if (!composite || !numbers)
        return 1;
    for (unsigned i = 2; i <= LIMIT; i++) {
        if (composite[i])
            continue;
        primes++;
        for (unsigned long j = (unsigned long)i * i; j <= LIMIT; j += i)
            composite[j] = 1;
    }
    for (unsigned i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = state;
    }
    qsort(numbers, COUNT, sizeof *numbers, ascending);
    printf("%u primes, median %u\n", primes, numbers[COUNT / 2]);
    free(composite);
    free(numbers);
    return 0;
}
