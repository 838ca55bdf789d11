// Patterns of 16 bytes by their place, for memory.cu and sm.cu.
#pragma once
#include "intrinsics.cuh"
#include "place.cuh"

#define FORM_HASH 0
#define FORM_ADDRESS 1
#define FORM_WALKING 2

// What a pattern puts at vector `v`. The forms: words that all differ, by a hash; the address and its complement; one
// bit set in each word, and alternate bits, both at a place that the hash chooses. `salt` is the stream of the hash,
// `flip` inverts all bits (0 or ~0).
__device__ __forceinline__ uint4 pattern_at(unsigned long long v, word form, word salt, word flip) {
    const word hash = word_at(salt, v);
    uint4 p;
    if (form == FORM_HASH) {
        p = make_uint4(hash, hash * 0x9e3779b1u, hash * 0x85ebca77u, hash * 0xc2b2ae3du);
    } else if (form == FORM_ADDRESS) {
        const word low = (word)v, high = (word)(v >> 32);
        p = make_uint4(low, high, ~low, ~high);
    } else if (form == FORM_WALKING) {
        p = make_uint4(1u << (hash & 31u), 1u << (hash >> 5 & 31u), 1u << (hash >> 10 & 31u), 1u << (hash >> 15 & 31u));
    } else {
        p = make_uint4(0xaaaaaaaau >> (hash & 1u), 0xaaaaaaaau >> (hash >> 1 & 1u), 0xaaaaaaaau >> (hash >> 2 & 1u),
                       0xaaaaaaaau >> (hash >> 3 & 1u));
    }
    return make_uint4(p.x ^ flip, p.y ^ flip, p.z ^ flip, p.w ^ flip);
}
