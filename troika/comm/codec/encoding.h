// Encodes tensors in fewer bytes, independently of any collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "troika/comm/codec/codec.h"

namespace troika::comm {

// Encodes a tensor to bytes and decodes it again. The codec of the same name sends these bytes,
// except powersgd, whose factors are sums over ranks. Stateless; several threads may use it.
class Encoding {
 public:
  virtual ~Encoding() = default;
  virtual std::string_view name() const = 0;

  // Returns the encoded size of a tensor of these sizes and this floating type. It does not depend
  // on the values; on the shape it depends only with powersgd.
  virtual int64_t bytes_for(at::IntArrayRef sizes, c10::ScalarType type) const = 0;
  // Writes the encoding of `values` to `bytes`, Byte [bytes_for(values.sizes(), type)]. `values` is
  // contiguous, of `type` or of the wider type in which a codec computes. If `left_out` is
  // given, it becomes `values` minus what decode() will return, in the type and shape of `values`;
  // it may be `values` itself.
  virtual void encode(const at::Tensor& values, c10::ScalarType type, const at::Tensor& bytes,
                      const at::Tensor& left_out = {}) const = 0;
  // Decodes the bytes into `values`, which are as in encode(). NaN and infinities stay non-finite.
  virtual void decode(const at::Tensor& bytes, c10::ScalarType type,
                      const at::Tensor& values) const = 0;
};

// Returns the encoding of the codec in the options. Throws Error(usage) as make_codec() does.
std::unique_ptr<Encoding> make_encoding(const CodecOptions& options);

// An encoded tensor. Any process with the same options can decode it.
struct EncodedTensor {
  at::Tensor bytes;  // Byte [n], on the host
  c10::ScalarType type = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
};

// `tensor` is of a floating type, of any shape and on any device. Throws Error(usage) for others.
EncodedTensor encode(const Encoding& encoding, const at::Tensor& tensor);
// Returns a new tensor on the host. Throws Error(usage) if the number of bytes does not match shape
// and dtype.
at::Tensor decode(const Encoding& encoding, const EncodedTensor& encoded);

}  // namespace troika::comm
