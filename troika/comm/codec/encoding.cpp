#include "troika/comm/codec/encoding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/comm/codec/encodings.h"

namespace troika::comm {

std::unique_ptr<Encoding> make_encoding(const CodecOptions& options) {
  // Throws for invalid names and values.
  make_codec(options);
  if (options.name == "none") return std::make_unique<codec::CopyEncoding>();
  if (options.name == "fp16") return std::make_unique<codec::CastEncoding>(at::kHalf);
  if (options.name == "bf16") return std::make_unique<codec::CastEncoding>(at::kBFloat16);
  if (options.name == "topk") return std::make_unique<codec::TopKEncoding>(options.density);
  if (options.name == "int8") return std::make_unique<codec::Int8Encoding>(options.block);
  TROIKA_CHECK(options.name == "powersgd", "every codec has an encoding");
  return std::make_unique<codec::LowRankEncoding>(options.rank, options.seed);
}

EncodedTensor encode(const Encoding& encoding, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (!tensor.is_floating_point()) {
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("encoding {} of a tensor without fractions", encoding.name()),
                 .got = c10::toString(tensor.scalar_type()),
                 .expected = "a floating type"});
  }
  const auto type = tensor.scalar_type();
  const auto values = tensor.detach().cpu().contiguous();
  EncodedTensor encoded{at::empty({encoding.bytes_for(values.sizes(), type)}, at::kByte), type,
                        tensor.sizes().vec()};
  encoding.encode(values, type, encoded.bytes);
  return encoded;
}

at::Tensor decode(const Encoding& encoding, const EncodedTensor& encoded) {
  const at::NoGradGuard no_grad;
  const auto tensor = at::empty(encoded.sizes, encoded.type);
  const int64_t bytes = encoding.bytes_for(tensor.sizes(), encoded.type);
  if (encoded.bytes.numel() != bytes || encoded.bytes.scalar_type() != at::kByte) {
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("no tensor in encoding {}", encoding.name()),
                 .got = fmt::format("{} x {}", c10::toString(encoded.bytes.scalar_type()),
                                    encoded.bytes.numel()),
                 .expected = fmt::format("Byte x {} for {} x {}", bytes,
                                         c10::toString(encoded.type), tensor.numel()),
                 .hint = "decode with the options that it was encoded with"});
  }
  encoding.decode(encoded.bytes, encoded.type, tensor);
  return tensor;
}

}  // namespace troika::comm
