// Numbers of sums and averages that travel in the encoding of a codec.
#pragma once

#include <cstddef>
#include <memory>

#include "troika/comm/codec/encoding.h"
#include "troika/net/packing.h"

namespace troika::parallel {

// The first `exact` numbers travel as they are, all others in the encoding. Number is float or
// double. With block 1, encodings of blocks depend on where a range begins.
template <typename Number>
net::Packing<Number> encoded_packing(std::shared_ptr<const comm::Encoding> encoding, size_t exact,
                                     size_t block = 1);

}  // namespace troika::parallel
