// Encodings of gradients and means between summation servers and their workers, and what encodings
// have left out. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "troika/server/summation.h"
#include "troika/server/table.h"

namespace troika::server {

// An encoding of some values.
struct SumCoding {
  SumForm form = SumForm::plain;
  // int8, dither and natural: the number of values that share a scale. top and random: the number
  // of values that are sent. sign: 1.
  uint32_t parameter = 0;
  bool has_l2_norm = false;  // of a block; dither and natural only
};

// The encoding of `count` values under these options.
SumCoding coding_for(const SummationCoding& options, size_t count);

// Encodes values. Returns false, without a result, for `plain`, if a value is not finite or too
// large for the form, and if the result would not be shorter than the values. With `left_out`, of
// the bytes of `values`, it gets the differences between the values and what decode_sum() gives.
bool encode_sum(const SumCoding& coding, ValueType type, std::span<const char> values,
                std::string& encoded, char* left_out = nullptr);
// The inverse, up to what was left out. Throws Error(server, failure) for bytes that encode_sum()
// does not make, and for more than `most` bytes of values.
void decode_sum(SumForm form, ValueType type, std::span<const char> encoded, size_t most,
                std::string& values);

// For each key, what was left out of the values that were sent so far (error feedback: Seide et
// al., Interspeech 2014; Karimireddy et al., ICML 2019). It counts as much in parameters as it
// would have then: after a change of the learning rate it is multiplied by the old rate / the new
// one, as in BytePS's program (Zheng et al., NeurIPS 2019, algorithm 2). That of a first step with
// a rate of 0 counts nothing; later steps with a rate of 0 leave the old rate as it is.
class Residuals {
 public:
  // Adds the key's residual to the values, which are gradients for a step of this learning rate,
  // and encodes them. Keeps the new residual: of values that encode_sum() refuses, none, because
  // they are to be sent as they are then.
  bool encode(uint64_t key, const SumCoding& coding, ValueType type, std::span<char> values,
              std::string& encoded, double rate = 1);
  // Returns the key's residual; empty: none.
  std::string residual(uint64_t key) const;
  // Replaces it by that of a step of this learning rate.
  void keep(uint64_t key, std::string residual, double rate = 1);
  // Forgets the residuals of keys of other layouts (kLayoutBit) than this key's.
  void enter(uint64_t key);

 private:
  struct Kept {
    std::string values;
    double rate = 1;
  };

  std::map<uint64_t, Kept> kept_;
};

}  // namespace troika::server
