#include "troika/parallel/context/context_parallel.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/token_part.h"
#include "troika/parallel/context/context_table.h"
#include "troika/parallel/context/head_attention.h"
#include "troika/parallel/context/ring_attention.h"
#include "troika/parallel/context/sample_parts.h"
#include "troika/parallel/tensor/axis_functions.h"

namespace troika::parallel {

namespace {

// Runs the blocks of a language model on this rank's part of the tokens.
class ContextWrapper : public nn::BlockWrapper {
 public:
  ContextWrapper(comm::Group axis, size_t embedding)
      : axis_(std::move(axis)), part_{axis_.rank(), axis_.size()}, embedding_(embedding) {}

  nn::WrapperKind kind() const override { return nn::WrapperKind::context; }

  nn::Tensors run(const nn::BlockRun& given, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override {
    if (given.begin == embedding_) {
      require_divisible_context(inputs.front(), axis_.size());
      inputs.front() = own_part(inputs.front(), part_);
    }
    const int64_t samples = inputs.front().size(0);
    const bool is_last = given.end == next.model().blocks().size();
    nn::BlockRun run = given;
    if (is_last && given.loss) run.loss = own_loss(*given.loss, samples);
    nn::Tensors outputs = [&] {
      const nn::TokenPartGuard positions(part_);
      return next(run, std::move(inputs));
    }();
    if (is_last) join(outputs, given.loss.get(), samples);
    return outputs;
  }

 private:
  // The loss of this rank's targets, as a summand of the mean over all targets.
  std::shared_ptr<const nn::OutputLoss> own_loss(const nn::OutputLoss& loss,
                                                 int64_t samples) const {
    nn::OutputLoss result = loss;
    result.targets = own_part(loss.targets.reshape({samples, -1}), part_);
    if (!loss.divisor) result.divisor = loss.targets.ne(loss.ignored).sum().item<int64_t>();
    return std::make_shared<const nn::OutputLoss>(std::move(result));
  }

  // Replaces what the last block gave for this rank's tokens by that of all tokens.
  void join(nn::Tensors& outputs, const nn::OutputLoss* loss, int64_t samples) const {
    for (auto& output : outputs) {
      if (!loss) {
        output = gather_parts(output, axis_);
      } else if (loss->kind == nn::OutputLoss::Kind::mean) {
        output = sum_parts(output, axis_);
      } else {
        output = gather_parts(output.reshape({samples, -1}), axis_).flatten();
      }
    }
  }

  const comm::Group axis_;
  const nn::TokenPart part_;
  const size_t embedding_;
};

nn::AttentionModule::Core core_of(const comm::Group& axis, layout::ContextMethod method) {
  if (method == layout::ContextMethod::ring) {
    return [axis](const nn::AttentionHeads& own, double dropout, nn::Attention /*attention*/,
                  const std::optional<nn::EqualPart>& part) {
      return ring_attention(own, dropout, part, axis);
    };
  }
  return [axis](const nn::AttentionHeads& own, double dropout, nn::Attention attention,
                const std::optional<nn::EqualPart>& part) {
    return head_attention(own, dropout, attention, part, axis);
  };
}

}  // namespace

void require_divisible_context(const at::Tensor& inputs, int ranks) {
  const int64_t count = inputs.size(kTokens), chunks = 2 * ranks;
  if (count % chunks == 0) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "the tokens cannot be cut over the context axis",
               .got = fmt::format("{} tokens, {} ranks", count, ranks),
               .expected = fmt::format("a multiple of {} tokens, two chunks for each rank", chunks),
               .hint = "change data.context or mesh.context"});
}

ContextParallel::ContextParallel(nn::Model& model, const comm::Group& axis, const SplitTable& table,
                                 const ContextOptions& options)
    : model_(model) {
  const size_t embedding =
      require_context(model, table, axis.size(), options.method, options.tensor_ranks);
  wrapper_ = nn::WrapperGuard(model, std::make_shared<ContextWrapper>(axis, embedding));
  for (auto* const attention : nn::attention_modules(model)) {
    attention->use_core(core_of(axis, options.method));
  }
}

ContextParallel::~ContextParallel() {
  for (auto* const attention : nn::attention_modules(model_)) attention->use_core({});
}

}  // namespace troika::parallel
