// SequenceShard: which tokens of every sequence a context rank holds. For c ranks the sequence is
// cut into 2c blocks, and rank r holds block r and then block 2c - 1 - r: an early one, which sees
// few tokens, and a late one, which sees many, so that causal attention is the same work for every
// rank. Pure arithmetic.
#pragma once

#include <cstdint>

namespace twinstream {

struct SequenceShard {
  int64_t sequence = 1;  // tokens of the whole; several ranks: 2 ranks divide it
  int ranks = 1, rank = 0;

  int64_t tokens() const { return sequence / ranks; }  // of this rank
  // Of this rank's token `index`, in the sequence; ascending.
  int64_t Position(int64_t index) const;

  struct Place {
    int rank;
    int64_t index;  // among that rank's tokens
  };
  // Where the token at this position is; the same on every rank.
  Place PlaceOf(int64_t position) const;
};

}  // namespace twinstream
