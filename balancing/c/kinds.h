/* Counts the kinds of bytes by which tokens are estimated (`tokens.py`). */

#ifndef PENSTOCK_KINDS_H
#define PENSTOCK_KINDS_H

#include "text.h"

struct kinds {
    Py_ssize_t words, letters, digits, signs, backslashes, wide_bytes, escapes;
};

static inline int is_hex(unsigned char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/* Whether an escape of the form \uXXXX begins there. */
static inline int is_code(Place at, Place end)
{
    return end - at >= 6 && at[1] == 'u' && is_hex(at[2]) && is_hex(at[3]) && is_hex(at[4])
           && is_hex(at[5]);
}

/* Add what is in a text. A word goes on over an escape, as if the escape were not there. */
static void count_kinds(struct kinds *kinds, Place at, Place end)
{
    int in_word = 0;
    while (at < end) {
        unsigned char byte = *at;
        if (byte == '\\' && is_code(at, end)) {
            kinds->escapes++;
            at += 6;
            continue;
        }
        int letter = (unsigned char)((byte | 0x20) - 'a') < 26;
        kinds->letters += letter;
        kinds->words += letter & !in_word;
        in_word = letter;
        if (!letter) {
            if (byte >= 0x80)
                kinds->wide_bytes++;
            else if (byte >= '0' && byte <= '9')
                kinds->digits++;
            else if (byte == '\\')
                kinds->backslashes++;
            else if (byte > ' ' && byte < 0x7F)
                kinds->signs++;
        }
        at++;
    }
}

#endif
