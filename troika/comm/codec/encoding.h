// Tensors in fewer bytes, apart from any collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "troika/comm/codec/codec.h"

namespace troika::comm {

// How a flat tensor becomes bytes and is made from them again: what the codec of the same name
// sends is this. Holds no state; may be used by several threads.
class Encoding {
 public:
  virtual ~Encoding() = default;
  virtual std::string_view name() const = 0;

  // Bytes that `count` elements of a tensor of this floating type take: the same for any values.
  virtual int64_t bytes_for(int64_t count, c10::ScalarType type) const = 0;
  // Writes the encoding of `values` to `bytes`, Byte [bytes_for(values.numel(), type)]. `values` is
  // flat and contiguous, of `type`, or of a wider one in which a codec computes. `left_out`, if it
  // is given, becomes the values without what decode() will give, in their type and shape; it may
  // be `values` itself.
  virtual void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
                      const at::Tensor& left_out = {}) const = 0;
  // Makes `values`, as in encode(), from the bytes. NaN and infinities stay not finite.
  virtual void decode(const at::Tensor& bytes, c10::ScalarType type,
                      const at::Tensor& values) const = 0;
};

// The encoding of the codec that the options name: "none", "fp16", "bf16", "topk" or "int8". Throws
// Error(usage) as make_codec(), and for "powersgd", whose factors are sums over ranks.
std::unique_ptr<Encoding> make_encoding(const CodecOptions& options);

// An encoded tensor: with these facts and the same options any process can decode it.
struct EncodedTensor {
  at::Tensor bytes;  // Byte [n], on the host
  c10::ScalarType type = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
};

// `tensor` is of a floating type, of any shape and on any device. Throws Error(usage) for others.
EncodedTensor encode(const Encoding& encoding, const at::Tensor& tensor);
// A new tensor on the host. Throws Error(usage) where the bytes are not as many as the facts ask
// for.
at::Tensor decode(const Encoding& encoding, const EncodedTensor& encoded);

}  // namespace troika::comm
