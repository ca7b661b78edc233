#include "troika/nn/transformer.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/layers.h"
#include "troika/nn/token_part.h"

namespace troika::nn {

void check_transformer(const ModelOptions& options) {
  require_at_least(options, "vocab_size", options.vocab_size, 1);
  require_at_least(options, "context", options.context, 1);
  require_at_least(options, "layers", options.layers, 1);
  require_at_least(options, "heads", options.heads, 1);
  require_at_least(options, "width", options.width, 1);
  if (options.width % options.heads == 0) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("width of {} does not divide into its heads", options.name),
               .got = fmt::format("width {}, heads {}", options.width, options.heads),
               .expected = "a multiple of heads"});
}

void check_tokens(const at::Tensor& tokens, const ModelOptions& options) {
  const int64_t most = most_tokens(options.context);
  if (tokens.dim() == 2 && tokens.size(1) <= most && tokens.scalar_type() == at::kLong) return;
  throw Error("nn", ErrorKind::usage,
              {.what = options.name + " cannot read this batch",
               .got = fmt::format("{} of shape [{}]", c10::toString(tokens.scalar_type()),
                                  fmt::join(tokens.sizes(), ", ")),
               .expected = fmt::format("Long of shape [batch, length <= {}]", most)});
}

at::Tensor add_to_stream(const at::Tensor& stream, const at::Tensor& output) {
  return stream + output.to(stream.scalar_type());
}

}  // namespace troika::nn
